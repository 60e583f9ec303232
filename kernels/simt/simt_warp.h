// simt_warp.h - warp collectives: __syncwarp and __shfl_xor_sync
//
// Each lane keeps its operands on its own stack and waits; the last lane to arrive computes every lane's result. In a
// block of one thread the only lane is 0, and nothing waits.
#pragma once
#include <bit>
#include <concepts>

#include "kernels/simt/simt_block.h"

namespace simt {

// The types that CUDA's shuffles accept.
template <class T>
concept Shuffled = std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, long> ||
    std::same_as<T, unsigned long> || std::same_as<T, long long> || std::same_as<T, unsigned long long> ||
    std::same_as<T, float> || std::same_as<T, double>;
[[noreturn, gnu::cold, gnu::noinline]] void fault_lane_outside_mask(int lane, int source, unsigned mask);

inline int lane() { return running.scheduler ? running.scheduler->lane() : 0; }

template <class Visit>
void for_each_lane(unsigned mask, Visit&& visit) {
    for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

template <class T>
struct ShuffleOperands { T value; int source; T result; };

template <class T>
T shuffle(unsigned mask, T value, int source, const CallSite& where) {
    if (!running.scheduler) {
        if (source != 0) fault_lane_outside_mask(0, source, 1);
        return value;
    }
    ShuffleOperands<T> mine{value, source, value};
    running.scheduler->wait_warp(mask, {Wait::shfl_xor, where}, &mine, [](void* const* operands, unsigned mask) {
        for_each_lane(mask, [&](int lane) {
            auto& mine = *static_cast<ShuffleOperands<T>*>(operands[lane]);
            if (!(mask >> mine.source & 1)) fault_lane_outside_mask(lane, mine.source, mask);
            mine.result = static_cast<ShuffleOperands<T>*>(operands[mine.source])->value;
        });
    });
    return mine.result;
}

}  // namespace simt

#define SIMT_HERE const simt::CallSite& where = simt::CallSite::current()

inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) {
    if (simt::running.scheduler)
        simt::running.scheduler->wait_warp(mask, {simt::Wait::syncwarp, where}, nullptr, nullptr);
}

template <simt::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, SIMT_HERE) {
    return simt::shuffle(mask, value, simt::lane() ^ lane_mask, where);
}

#undef SIMT_HERE
