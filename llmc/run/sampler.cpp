// sampler.cpp - draws tokens from logits
#include "llmc/run/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/device/error.h"

namespace llmc {

double Sampler::uniform() { return double(bits_.next() >> 11) * 0x1p-53; }

int Sampler::next(std::span<const float> logits) {
    // NaN compares false with everything; an id with a NaN logit is never drawn.
    std::vector<int> ids;
    for (int id = 0; id < int(logits.size()); ++id)
        if (std::isfinite(logits[std::size_t(id)])) ids.push_back(id);
    if (ids.empty())
        throw Error("no logit is finite, so there is no token to sample; the model has diverged", Blame::runtime);
    const auto likelier = [&](int a, int b) {
        return logits[std::size_t(a)] != logits[std::size_t(b)] ? logits[std::size_t(a)] > logits[std::size_t(b)]
                                                                : a < b;
    };
    const std::size_t wanted = temperature_ == 0 ? 1 : top_k_ > 0 ? std::size_t(top_k_) : ids.size();
    const std::size_t kept = std::min(ids.size(), wanted);
    if (kept < ids.size()) std::nth_element(ids.begin(), ids.begin() + std::ptrdiff_t(kept) - 1, ids.end(), likelier);
    ids.resize(kept);
    if (kept == 1) return ids[0];
    float highest = logits[std::size_t(ids[0])];
    for (int id : ids) highest = std::max(highest, logits[std::size_t(id)]);

    std::vector<double> cumulative;
    double sum = 0;
    for (int id : ids)
        cumulative.push_back(sum += std::exp((double(logits[std::size_t(id)]) - highest) / temperature_));
    const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), uniform() * sum);
    return ids[std::min(std::size_t(drawn - cumulative.begin()), kept - 1)];
}

std::vector<int> sample_tokens(Sampler& sampler, std::vector<int> start, int count, int longest, int end_of_text,
                               const std::function<std::vector<float>(std::span<const int>)>& logits_after,
                               const std::function<bool()>& stop) {
    for (int i = 0; i < count && !(stop && stop()); ++i) {
        const std::size_t seen = std::min(start.size(), std::size_t(longest));
        start.push_back(sampler.next(logits_after(std::span<const int>(start).last(seen))));
        if (start.back() == end_of_text) break;
    }
    return start;
}

}  // namespace llmc
