// rehearsal.h - runs a product before training, to time it and to compare its bias gradients: gradients that it would
// add to do not change
#pragma once
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/matmul/algorithm_choice.h"

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
        if constexpr (requires { op.right_factor; })  // an Fp8Product
            if constexpr (std::is_same_v<decltype(op.out), std::span<float>>)
                op.out = stand_in(dweight, op.out, stream);
        if constexpr (requires { op.norm; }) op.norm.residual = op.linear.out;  // its own may be `left`
    }
    static std::span<float> stand_in(device::Array<float>& scratch, std::span<float> of, StreamRef stream) {
        scratch = device::Array<float>(of.size());
        scratch.zero(stream);
        return scratch.span();
    }

    // Whether two run()s leave the same bits in the result of a product with GELU.
    template <class Run>
    bool repeats_result(Run&& run, StreamRef stream) const {
        std::span<const std::byte> result;
        if constexpr (requires { op.din; }) result = std::as_bytes(op.din);
        if constexpr (requires { op.pre, op.out; }) result = std::as_bytes(op.out);
        std::vector<std::byte> runs[2];
        for (std::vector<std::byte>& host : runs) {
            host.resize(result.size());
            run();
            device::copy_to_host(host.data(), result.data(), result.size(), stream);
            device::sync(stream);
        }
        return runs[0] == runs[1];
    }

    // Whether every run() leaves the same bits in the bias gradient. Each run starts from the same nonzero gradient of
    // earlier runs, because sums that start from zero may be equal in any order.
    template <class Run>
    bool repeats_bias_gradient(Run&& run, StreamRef stream) {
        constexpr int kRuns = 3;
        const std::vector<float> before = dbias.download(stream);
        std::vector<float> first;
        for (int i = 0; i < kRuns; ++i) {
            dbias.upload(before, stream);
            run();
            const std::vector<float> sums = dbias.download(stream);
            if (first.empty()) first = sums;
            if (std::memcmp(sums.data(), first.data(), sums.size() * sizeof(float)) != 0) return false;
        }
        return true;
    }
};

}  // namespace kernels
