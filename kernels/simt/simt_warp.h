// simt_warp.h - warp collectives: shuffles, votes, reductions
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
template <class T>
concept Word = std::same_as<T, int> || std::same_as<T, unsigned>;

[[noreturn, gnu::cold, gnu::noinline]] void fault_lane_outside_mask(int lane, int source, unsigned mask);
[[noreturn, gnu::cold, gnu::noinline]] void fault_width(int width);

inline int lane() { return running.scheduler ? running.scheduler->lane() : 0; }

template <class Visit>
void for_each_lane(unsigned mask, Visit&& visit) {
    for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

template <class T>
struct ShuffleOperands { T value; int source; T result; };

template <class T>
T shuffle(unsigned mask, T value, int source, Wait wait, const CallSite& where) {
    if (!running.scheduler) {
        if (source != 0) fault_lane_outside_mask(0, source, 1);
        return value;
    }
    ShuffleOperands<T> mine{value, source, value};
    running.scheduler->wait_warp(mask, {wait, where}, &mine, [](void* const* operands, unsigned mask) {
        for_each_lane(mask, [&](int lane) {
            auto& mine = *static_cast<ShuffleOperands<T>*>(operands[lane]);
            if (!(mask >> mine.source & 1)) fault_lane_outside_mask(lane, mine.source, mask);
            mine.result = static_cast<ShuffleOperands<T>*>(operands[mine.source])->value;
        });
    });
    return mine.result;
}

// First lane of the segment of `width` lanes that this lane belongs to.
inline int segment_begin(int lane, int width) {
    if (width < 1 || width > kWarpLanes || !std::has_single_bit(unsigned(width))) fault_width(width);
    return lane & -width;
}

template <class Operation, class T>
T reduce(unsigned mask, T value, Wait wait, const CallSite& where) {
    if (!running.scheduler) return value;
    T mine = value;
    running.scheduler->wait_warp(mask, {wait, where}, &mine, [](void* const* operands, unsigned mask) {
        T total = *static_cast<T*>(operands[std::countr_zero(mask)]);
        for_each_lane(mask & (mask - 1),
                      [&](int lane) { total = Operation{}(total, *static_cast<T*>(operands[lane])); });
        for_each_lane(mask, [&](int lane) { *static_cast<T*>(operands[lane]) = total; });
    });
    return mine;
}

// wraps, as on a GPU
struct Add { template <class T> T operator()(T a, T b) const { return T(unsigned(a) + unsigned(b)); } };
struct Min { template <class T> T operator()(T a, T b) const { return b < a ? b : a; } };
struct Max { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };
struct Or { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <class T> T operator()(T a, T b) const { return a ^ b; } };

}  // namespace simt

#define SIMT_HERE const simt::CallSite& where = simt::CallSite::current()

inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) {
    if (simt::running.scheduler)
        simt::running.scheduler->wait_warp(mask, {simt::Wait::syncwarp, where}, nullptr, nullptr);
}

template <simt::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, SIMT_HERE) {
    return simt::shuffle(mask, value, simt::segment_begin(simt::lane(), width) | (source & (width - 1)),
                         simt::Wait::shfl, where);
}
template <simt::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane(), source = lane ^ lane_mask;
    return simt::shuffle(mask, value, source < simt::segment_begin(lane, width) + width ? source : lane,
                         simt::Wait::shfl_xor, where);
}
template <simt::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane(), source = lane - int(delta);
    return simt::shuffle(mask, value, source >= simt::segment_begin(lane, width) ? source : lane, simt::Wait::shfl_up,
                         where);
}
template <simt::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMT_HERE) {
    const int lane = simt::lane(), source = lane + int(delta);
    return simt::shuffle(mask, value, source < simt::segment_begin(lane, width) + width ? source : lane,
                         simt::Wait::shfl_down, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE) {
    return simt::reduce<simt::Or>(mask, unsigned(predicate != 0) << simt::lane(), simt::Wait::ballot, where);
}
inline int __any_sync(unsigned mask, int predicate, SIMT_HERE) {
    return simt::reduce<simt::Or>(mask, int(predicate != 0), simt::Wait::any, where);
}
inline int __all_sync(unsigned mask, int predicate, SIMT_HERE) {
    return simt::reduce<simt::And>(mask, int(predicate != 0), simt::Wait::all, where);
}

template <simt::Word T> T __reduce_add_sync(unsigned mask, T value, SIMT_HERE) {
    return simt::reduce<simt::Add>(mask, value, simt::Wait::reduce_add, where);
}
template <simt::Word T> T __reduce_min_sync(unsigned mask, T value, SIMT_HERE) {
    return simt::reduce<simt::Min>(mask, value, simt::Wait::reduce_min, where);
}
template <simt::Word T> T __reduce_max_sync(unsigned mask, T value, SIMT_HERE) {
    return simt::reduce<simt::Max>(mask, value, simt::Wait::reduce_max, where);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, SIMT_HERE) {
    return simt::reduce<simt::And>(mask, value, simt::Wait::reduce_and, where);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, SIMT_HERE) {
    return simt::reduce<simt::Or>(mask, value, simt::Wait::reduce_or, where);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, SIMT_HERE) {
    return simt::reduce<simt::Xor>(mask, value, simt::Wait::reduce_xor, where);
}

#undef SIMT_HERE
