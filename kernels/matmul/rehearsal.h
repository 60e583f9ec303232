// rehearsal.h - runs a product before training, to time it and to compare its results: gradients that it would add to
// do not change
#pragma once
#include <utility>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/matmul/algorithm_choice.h"
#include "kernels/tuning/first_bits.h"

namespace kernels {

// A call with its own memory for parameter gradients. Plans are created once, so that their creation is not timed.
template <class Op, class Plan>
struct Rehearsal {
    Op op;
    device::Array<float> dweight, dbias;
    std::vector<std::pair<ChosenAlgorithm, Plan>> plans;

    Rehearsal(const Op& call, StreamRef stream) : op(call) {
        if constexpr (requires { op.dweight; }) op.dweight = stand_in(dweight, op.dweight, stream);
        if constexpr (requires { op.dbias; }) op.dbias = stand_in(dbias, op.dbias, stream);
    }
    static std::span<float> stand_in(device::Array<float>& scratch, std::span<float> of, StreamRef stream) {
        scratch = device::Array<float>(of.size());
        scratch.zero(stream);
        return scratch.span();
    }

    // Whether every run() leaves the same bits in the bias gradient and, if `and_result`, in `result`. Each run starts
    // from the same nonzero gradients of earlier runs, because sums that start from zero may be equal in any order.
    template <class Run>
    bool repeats(Run&& run, std::span<const std::byte> result, bool and_result, StreamRef stream) {
        constexpr int kRuns = 3;
        const bool keeps_weights = and_result && dweight.size() > 0, has_bias = dbias.size() > 0;
        const std::vector<float> weights = keeps_weights ? dweight.download(stream) : std::vector<float>(),
                                 biases = has_bias ? dbias.download(stream) : std::vector<float>();
        FirstBits first_result, first_bias;
        for (int i = 0; i < kRuns; ++i) {
            if (keeps_weights) dweight.upload(weights, stream);
            if (has_bias) dbias.upload(biases, stream);
            run();
            if (and_result && !first_result.match(result.data(), result.size(), stream)) return false;
            if (has_bias && !first_bias.match(dbias.span().data(), dbias.span().size_bytes(), stream)) return false;
        }
        return true;
    }
};

}  // namespace kernels
