// simt_order.h - the order in which the threads of a block run: a GPU guarantees none, so a kernel must be correct
// under all of them
//
//   SIMT_ORDER=forward        ascending threads; a warp continues after a collective before the next warp runs (the
//                             default, and the fastest)
//   SIMT_ORDER=mix[:SEED]     warps and lanes are shuffled at the start and after every barrier, lanes after every
//                             collective; between half of the barriers each switch picks any ready thread of any warp
//   SIMT_POISON=0|1           fills shared memory with 0xff bytes, NaN in every float type, before each block (the
//                             default is 1 in every order: it costs one memset per block and shows reads of
//                             uninitialized memory in every order)
//
// Blocks of one thread have no order, and their shared memory is not poisoned.
#pragma once
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/device/random.h"

namespace simt {

struct Order {
    enum class Kind : std::uint8_t { forward, mix };
    Kind kind = Kind::forward;
    std::uint64_t seed = 1;
    bool poison = true;

    bool operator==(const Order&) const = default;
};

// Parses the values of SIMT_ORDER and SIMT_POISON; empty: the default. Throws Error (Blame::input) if a value is
// unknown.
inline Order parse_order(std::string_view order, std::string_view poison) {
    Order parsed;
    const auto colon = order.find(':');
    const std::string_view kind = order.substr(0, colon);
    const bool mixes = kind == "mix";
    bool known = mixes || kind == "forward" || order.empty();
    if (mixes) parsed.kind = Order::Kind::mix;
    if (colon != std::string_view::npos) {
        const char *begin = order.data() + colon + 1, *end = order.data() + order.size();
        const auto [rest, error] = std::from_chars(begin, end, parsed.seed);
        known = known && mixes && rest == end && error == std::errc{};
    }
    require(known, "SIMT_ORDER", '"' + std::string(order) + '"',
            "forward or mix[:SEED], SEED an integer below 2^64");
    require(poison.empty() || poison == "0" || poison == "1", "SIMT_POISON", '"' + std::string(poison) + '"', "0 or 1");
    parsed.poison = poison != "0";
    return parsed;
}

// The order for launches by this OS thread: from the environment, read once, unless a UseOrder is alive.
const Order& current_order();

// During its lifetime, launches by this OS thread use `order`.
class UseOrder {
public:
    explicit UseOrder(const Order& order) : order_(order), before_(std::exchange(chosen_, &order_)) {}
    ~UseOrder() { chosen_ = before_; }
    UseOrder(const UseOrder&) = delete;
    static const Order* chosen() { return chosen_; }

private:
    static inline thread_local constinit const Order* chosen_ = nullptr;
    const Order order_;
    const Order* const before_;
};

// Random numbers of a block, which depend only on the seed and the block, not on the core that runs it.
class Draws {
public:
    Draws() : bits_(0) {}
    Draws(std::uint64_t seed, std::uint64_t block) : bits_(kernels::SplitMix64(seed).next() + block) {}
    unsigned below(unsigned limit) { return unsigned((bits_.next() >> 32) * limit >> 32); }
    template <class T> void shuffle(T* items, unsigned count) {
        for (unsigned left = count; left > 1; --left) std::swap(items[left - 1], items[below(left)]);
    }

private:
    kernels::SplitMix64 bits_;
};

}  // namespace simt
