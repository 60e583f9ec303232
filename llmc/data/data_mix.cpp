// data_mix.cpp - the table of one period of the mix
#include "llmc/data/data_mix.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace llmc {

DataMix::DataMix(const std::vector<std::int64_t>& weights) : weights_(weights) {
    std::int64_t sum = 0;
    for (const std::int64_t weight : weights) sum = std::min(sum + weight, kMostRows + 1);
    require(sum <= kMostRows, "the sum of the weights of --train-data, as whole numbers without a common factor,",
            "above " + std::to_string(kMostRows), "at most that", "round them, for example to 0.7 and 0.3");
    std::vector<std::int64_t> drawn(weights.size());
    for (std::int64_t position = 0; position < sum; ++position) {
        std::size_t first = weights.size();
        for (std::size_t i = 0; i < weights.size(); ++i) {
            if ((position + 1) * weights[i] <= drawn[i] * sum) continue;
            if (first == weights.size() || (drawn[i] + 1) * weights[first] < (drawn[first] + 1) * weights[i]) first = i;
        }
        rows_.push_back({std::int64_t(first), drawn[first]++});
    }
}

DataMix::Row DataMix::operator()(std::int64_t position) const {
    const auto period = std::int64_t(rows_.size());
    const auto [corpus, number] = rows_[std::size_t(position % period)];
    return {corpus, position / period * weights_[std::size_t(corpus)] + number};
}

std::int64_t DataMix::rows_of(std::int64_t corpus, std::int64_t rows) const {
    const auto period = std::int64_t(rows_.size());
    return rows / period * weights_[std::size_t(corpus)] +
           std::count_if(rows_.begin(), rows_.begin() + rows % period,
                         [&](const Row& row) { return row.corpus == corpus; });
}

}  // namespace llmc
