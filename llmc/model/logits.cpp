// logits.cpp - Model::logits(): the logits at given positions of a sequence, on the host
#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/device/memory.h"
#include "llmc/model/model.h"

namespace llmc {
namespace {

// Lengths of sequences are rounded up to a multiple, so that few shapes occur; causality excludes the padding from
// results.
constexpr int kSeqLenStep = 64;

}  // namespace

std::vector<float> Model::logits(std::span<const int> tokens, int first_row, int rows) {
    const int longest = std::min(setup_.config.max_seq_len,
                                 int(std::min<std::size_t>(setup_.shape.rows(), 1 << 30)));
    require(int(tokens.size()) <= longest && !tokens.empty(), "the length of a sequence", tokens.size(),
            "1 to " + std::to_string(longest) + " tokens");
    const int seq_len = std::min(longest, round_up(int(tokens.size()), kSeqLenStep));
    std::vector<int> padded(tokens.begin(), tokens.end());
    padded.resize(std::size_t(seq_len), 0);
    const device::Array<int> on_device(padded, context_.stream);
    forward({.tokens = on_device.span(), .targets = {}, .sorted = {},
             .shape = {.batch = 1, .seq_len = seq_len}});
    return logits_of_rows(first_row, rows);
}

}  // namespace llmc
