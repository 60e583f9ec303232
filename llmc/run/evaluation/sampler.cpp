// sampler.cpp - samples tokens from logits
#include "llmc/run/evaluation/sampler.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace llmc {
namespace {

// Reduces `ids` to the smallest set of the most likely ones with at least the fraction top_p of the total weight.
template <class Likelier, class Weight>
void keep_nucleus(std::vector<int>& ids, double top_p, const Likelier& likelier, const Weight& weight) {
    double sum = 0;
    for (const int id : ids) sum += weight(id);
    // A heap yields only the ids that stay: a full sort takes longer than a step of a small model.
    const auto last_out = [&](int a, int b) { return likelier(b, a); };
    std::make_heap(ids.begin(), ids.end(), last_out);
    std::vector<int> nucleus;
    double kept = 0;
    while (!ids.empty() && (nucleus.empty() || kept < top_p * sum)) {
        std::pop_heap(ids.begin(), ids.end(), last_out);
        kept += weight(ids.back());
        nucleus.push_back(ids.back());
        ids.pop_back();
    }
    ids = std::move(nucleus);
}

}  // namespace

double Sampler::uniform() { return double(bits_.next() >> 11) * 0x1p-53; }

int Sampler::next(std::span<const float> logits) {
    const auto& [top_k, top_p, temperature] = sampling_;
    // NaN breaks comparisons, so ids whose logit is not finite are removed first.
    std::vector<int> ids;
    ids.reserve(logits.size());
    for (int id = 0; id < int(logits.size()); ++id)
        if (std::isfinite(logits[std::size_t(id)])) ids.push_back(id);
    if (ids.empty())
        throw Error("no logit is finite, so there is no token to sample; the model has diverged", Blame::runtime);
    const auto likelier = [&](int a, int b) {
        return logits[std::size_t(a)] != logits[std::size_t(b)] ? logits[std::size_t(a)] > logits[std::size_t(b)]
                                                                : a < b;
    };
    if (temperature == 0) return *std::min_element(ids.begin(), ids.end(), likelier);
    const std::size_t limit = top_k > 0 ? std::size_t(top_k) : ids.size();
    const std::size_t most = std::min(ids.size(), limit);
    if (most < ids.size()) std::nth_element(ids.begin(), ids.begin() + std::ptrdiff_t(most) - 1, ids.end(), likelier);
    ids.resize(most);
    if (ids.size() == 1) return ids[0];
    float highest = logits[std::size_t(ids[0])];
    for (int id : ids) highest = std::max(highest, logits[std::size_t(id)]);
    const auto weight = [&, temperature = temperature](int id) {
        return std::exp((double(logits[std::size_t(id)]) - highest) / temperature);
    };
    if (top_p < 1) keep_nucleus(ids, top_p, likelier, weight);
    if (ids.size() == 1) return ids[0];

    std::vector<double> cumulative;
    double sum = 0;
    for (int id : ids) cumulative.push_back(sum += weight(id));
    const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), uniform() * sum);
    return ids[std::min(std::size_t(drawn - cumulative.begin()), ids.size() - 1)];
}

}  // namespace llmc
