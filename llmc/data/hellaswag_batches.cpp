// hellaswag_batches.cpp - sorts rows by length and fills batches
#include "llmc/data/hellaswag_batches.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/device/types.h"

namespace llmc {
namespace {

constexpr int kRowLengthStep = 64;  // rounds lengths up, so that few shapes occur

}  // namespace

HellaSwagBatches::HellaSwagBatches(const HellaSwagFile& file, int micro_batch, int seq_len)
    : file_(file), seq_len_(seq_len), order_(4 * file_.examples().size()) {
    std::vector<int> length(order_.size());
    for (std::size_t i = 0; i < file_.examples().size(); ++i) {
        const HellaSwagExample& example = file_.examples()[i];
        bool cut = false;
        for (std::size_t e = 0; e < 4; ++e) {
            const std::size_t ending = example.endings[e].size();
            require(ending <= std::size_t(seq_len),
                    "HellaSwag file " + file_.path() + ": tokens of ending " + std::to_string(e) + " of example " +
                        std::to_string(i), ending, "at most --seq-len = " + std::to_string(seq_len));
            const std::size_t inputs = example.context.size() + ending - 1;
            cut |= inputs > std::size_t(seq_len);
            const std::size_t rounded = round_up(inputs, kRowLengthStep);
            length[4 * i + e] = int(std::min<std::size_t>(rounded, std::size_t(seq_len)));
        }
        cut_contexts_ += cut;
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, {}, [&](std::int64_t row) { return length[std::size_t(row)]; });
    for (std::size_t first = 0; first < order_.size(); first += batches_.back().count) {
        const int of_batch = length[std::size_t(order_[first])];
        const auto most = std::size_t(std::int64_t(micro_batch) * seq_len / of_batch);
        std::size_t count = 1;
        while (count < most && first + count < order_.size() &&
               length[std::size_t(order_[first + count])] == of_batch)
            ++count;
        batches_.push_back({first, count, of_batch});
    }
}

std::span<const std::int64_t> HellaSwagBatches::rows_of(std::int64_t j) const {
    const Extent& batch = batches_.at(std::size_t(j));
    return std::span(order_).subspan(batch.first, batch.count);
}

HellaSwagBatches::RowBatch HellaSwagBatches::operator[](std::int64_t j) const {
    const auto length = std::size_t(batches_.at(std::size_t(j)).seq_len);
    RowBatch batch{.rows = rows_of(j), .seq_len = int(length), .inputs = {}, .targets = {}};
    batch.inputs.resize(batch.rows.size() * length, 0);
    batch.targets.resize(batch.inputs.size(), kernels::kIgnoreTarget);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const HellaSwagExample& example = file_.examples()[std::size_t(batch.rows[i]) / 4];
        const auto ending = example.endings[std::size_t(batch.rows[i]) % 4];
        // The end of the context, as far as it fits beside the ending, whose last token is only a target.
        const std::size_t room = std::size_t(seq_len_) - ending.size() + 1;
        const auto context = example.context.last(std::min(example.context.size(), room));
        auto input = batch.inputs.begin() + std::ptrdiff_t(i * length);
        input = std::ranges::copy(context, input).out;
        std::copy(ending.begin(), ending.end() - 1, input);
        std::ranges::copy(ending, batch.targets.begin() + std::ptrdiff_t(i * length + context.size() - 1));
    }
    return batch;
}

}  // namespace llmc
