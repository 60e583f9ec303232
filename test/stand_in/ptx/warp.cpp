// warp.cpp - scheduling of lanes, warps and blocks, and instructions across lanes
//
// Lanes at the same instruction execute it together. After divergence the lanes that are behind run first until they
// reconverge: a GPU may choose any order. An instruction that needs lanes that are elsewhere waits for them; if they
// can no longer arrive, the program ends, since a GPU would hang or behave in an undefined way.
#include "test/stand_in/ptx/warp.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <random>

#include "test/stand_in/accesses.h"
#include "test/stand_in/protocol.h"
#include "test/stand_in/ptx/operations.h"

namespace stand_in::ptx {
namespace {

constexpr std::uint32_t kAllLanes = 0xffffffff, kNever = 0xffffffff;

struct Group {
    std::uint32_t pc, lanes;
    bool waits = false;  // waits for other lanes
};

// A warp and the positions of its lanes.
class WarpRun {
public:
    WarpRun(const Launch& launch, std::mt19937_64& random) : launch_(launch), random_(random) {
        const Function& function = *launch.function;
        const std::size_t bytes = std::max(function.register_bytes, 64u);
        registers_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
        std::memset(registers_.get(), 0xff, bytes);
        local_.resize(std::size_t(function.local_bytes) * kLanes);
        warp_.function = &function;
        warp_.parameters = launch.parameters;
        warp_.parameter_bytes = launch.parameter_bytes;
        warp_.registers = registers_.get();
        warp_.local = local_.data();
        for (const auto& [bits, row, bytes] : function.constants)
            for (unsigned lane = 0; lane < kLanes; ++lane)
                std::memcpy(warp_.registers + row + lane * bytes, &bits, bytes);
        if (function.dynamic_base_row != kNone)
            std::fill_n(warp_.row<std::uint32_t>(function.dynamic_base_row), kLanes, function.dynamic_shared_at);
        initial_.assign(registers_.get(), registers_.get() + bytes);
    }

    void begin(unsigned number, const Dim3& block, std::span<std::byte> shared) {
        using Special = Function::Special;
        const Dim3 &grid = launch_.grid, &threads = launch_.block;
        warp_.shared = shared;
        std::ranges::copy(initial_, registers_.get());
        std::ranges::fill(local_, std::byte(0xff));
        for (const auto& [special, row] : warp_.function->specials)
            for (unsigned lane = 0; lane < kLanes; ++lane) {
                const unsigned thread = number * kLanes + lane;
                const unsigned values[] = {thread % threads.x, thread / threads.x % threads.y,
                                           thread / threads.x / threads.y, threads.x, threads.y, threads.z, block.x,
                                           block.y, block.z, grid.x, grid.y, grid.z, lane};
                static_assert(int(Special::laneid) == std::size(values) - 1);
                warp_.row<std::uint32_t>(row)[lane] = values[int(special)];
            }
        const std::uint64_t left = count(threads) - std::uint64_t(number) * kLanes;
        live_ = left >= kLanes ? kAllLanes : (1u << left) - 1;
        warp_.copies.clear();
        groups_ = {{0, live_}};
        at_barrier_ = false;
    }

    bool is_at_barrier() const { return at_barrier_; }
    void pass_barrier() {
        at_barrier_ = false;
        ++groups_.front().pc;
    }

    // Runs until all lanes have ended or are at a barrier of the block.
    void run() {
        while (live_ && !at_barrier_) run_group(choose());
    }

private:
    using Kind = Instruction::Kind;

    // The group to run next, merged with all groups at the same instruction.
    std::size_t choose() {
        for (std::size_t i = 0; i < groups_.size(); ++i)
            for (std::size_t j = groups_.size() - 1; j > i; --j)
                if (groups_[j].pc == groups_[i].pc) {
                    groups_[i].lanes |= groups_[j].lanes;
                    groups_[i].waits = false;
                    groups_.erase(groups_.begin() + std::ptrdiff_t(j));
                }
        std::vector<std::size_t> ready;
        for (std::size_t i = 0; i < groups_.size(); ++i)
            if (!groups_[i].waits) ready.push_back(i);
        if (ready.empty()) fail_deadlock();
        if (launch_.order == Launch::Order::random) return ready[random_() % ready.size()];
        const auto position = [&](std::size_t i) { return groups_[i].pc; };
        return launch_.order == Launch::Order::forward ? *std::ranges::min_element(ready, {}, position)
                                                       : *std::ranges::max_element(ready, {}, position);
    }
    [[noreturn]] void fail_deadlock() {
        std::string where;
        for (const Group& group : groups_) {
            char lanes[16];
            std::snprintf(lanes, sizeof lanes, "%08x", group.lanes);
            where += std::string(where.empty() ? "" : ", ") + "lanes 0x" + lanes + " at " + place(group.pc);
        }
        fail(warp_, "lanes wait for others that wait elsewhere: " + where);
    }
    std::string place(std::uint32_t pc) const {
        return warp_.function->places[warp_.function->code[pc].place];
    }

    // Runs one group until it diverges, waits, ends, or reaches another group.
    void run_group(std::size_t which) {
        Group& group = groups_[which];
        std::uint32_t meets = kNever;
        for (const Group& other : groups_)
            if (&other != &group && other.pc > group.pc) meets = std::min(meets, other.pc);
        // random order: switches to other groups now and then
        unsigned left = launch_.order == Launch::Order::random && groups_.size() > 1 ? 1 + unsigned(random_() % 64) : 0;
        const Instruction* const code = warp_.function->code.data();
        std::uint32_t pc = group.pc;
        for (;;) {
            const Instruction& instruction = code[pc];
            std::uint32_t active = group.lanes;
            if (instruction.guard != kNone) {
                const std::uint32_t holds = *warp_.row<std::uint32_t>(instruction.guard);
                active &= instruction.guard_negated ? ~holds : holds;
            }
            warp_.active = active;
            warp_.pc = pc;
            switch (instruction.kind) {
                case Kind::plain:
                    if (active) instruction.handler(warp_, instruction);
                    ++pc;
                    break;
                case Kind::branch:
                    if (active == 0) {
                        ++pc;
                    } else if (active == group.lanes) {
                        pc = instruction.target;
                        if (groups_.size() > 1) return move(which, pc);
                    } else {
                        group = {pc + 1, group.lanes & ~active};
                        groups_.push_back({instruction.target, active});
                        return;
                    }
                    break;
                case Kind::end:
                    live_ &= ~active;
                    group.lanes &= ~active;
                    if (active)
                        for (Group& other : groups_) other.waits = false;  // they may have waited for lanes that ended
                    if (group.lanes == 0) {
                        groups_.erase(groups_.begin() + std::ptrdiff_t(which));
                        return;
                    }
                    if (active && groups_.size() > 1) return move(which, pc + 1);
                    ++pc;
                    break;
                case Kind::with_lanes:
                case Kind::with_warp:
                case Kind::block_barrier: {
                    if (active == 0) {
                        ++pc;
                        break;
                    }
                    if (active != group.lanes) {  // the guard excludes the other lanes
                        group = {pc + 1, group.lanes & ~active};
                        groups_.push_back({pc, active});
                        return;
                    }
                    if (instruction.kind == Kind::with_warp && live_ != kAllLanes)
                        fail(warp_, "an instruction of whole warps, but lanes have ended or do not exist");
                    group.pc = pc;
                    if (waits_for_lanes(instruction, active)) {
                        group.waits = true;
                        return;
                    }
                    if (instruction.kind == Kind::block_barrier) {
                        at_barrier_ = true;
                        return;
                    }
                    for (std::uint32_t left = active; left; left &= ~warp_.active) {  // equal masks at a time
                        warp_.active = left & mask_of(instruction, unsigned(std::countr_zero(left)));
                        instruction.handler(warp_, instruction);
                    }
                    ++pc;
                    break;
                }
            }
            if (pc >= meets || (left && --left == 0)) return move(which, pc);
        }
    }
    void move(std::size_t which, std::uint32_t pc) { groups_[which].pc = pc; }

    // The mask of lanes that execute the instruction with this lane.
    std::uint32_t mask_of(const Instruction& instruction, unsigned lane) const {
        return instruction.kind == Kind::with_lanes ? warp_.row<std::uint32_t>(instruction.row[0])[lane] : kAllLanes;
    }
    // Whether a lane of the mask is elsewhere. Each mask must include its own lane; lanes of a mask must have equal
    // masks.
    bool waits_for_lanes(const Instruction& instruction, std::uint32_t active) {
        const std::uint32_t first = mask_of(instruction, unsigned(std::countr_zero(active)));
        bool waits = (first & live_ & ~active) != 0, equal = (active & ~first) == 0;
        for (unsigned lane = 0; lane < kLanes; ++lane)
            equal &= !(active >> lane & 1) || mask_of(instruction, lane) == first;
        if (equal) return waits;
        for (std::uint32_t left = active; left; left &= left - 1) {
            const auto lane = unsigned(std::countr_zero(left));
            const std::uint32_t mask = mask_of(instruction, lane);
            if (!(mask >> lane & 1)) fail(warp_, "a lane is not in its own mask");
            for (std::uint32_t others = mask & active; others; others &= others - 1)
                if (mask_of(instruction, unsigned(std::countr_zero(others))) != mask)
                    fail(warp_, "lanes of one mask have different masks");
            waits |= (mask & live_ & ~active) != 0;
        }
        return waits;
    }

    struct Free { void operator()(std::byte* memory) const { std::free(memory); } };

    const Launch& launch_;
    std::mt19937_64& random_;
    std::unique_ptr<std::byte, Free> registers_;
    std::vector<std::byte> initial_;  // initial contents of a block: constants, and NaN
    std::vector<std::byte> local_;
    Warp warp_;
    std::uint32_t live_ = 0;
    std::vector<Group> groups_;
    bool at_barrier_ = false;
};

class BlockRun {
public:
    explicit BlockRun(const Launch& launch) : launch_(launch), random_(launch.seed) {
        const std::size_t warps = (count(launch.block) + kLanes - 1) / kLanes;
        shared_.resize(launch.function->dynamic_shared_at + launch.dynamic_shared);
        for (std::size_t i = 0; i < warps; ++i) warps_.push_back(std::make_unique<WarpRun>(launch, random_));
        order_.resize(warps);
        for (std::size_t i = 0; i < warps; ++i) order_[i] = i;
        if (launch.order == Launch::Order::backward) std::ranges::reverse(order_);
    }

    // Uninitialized shared memory, registers and stack are NaN.
    void run(const Dim3& block) {
        std::ranges::fill(shared_, std::byte(0xff));
        for (std::size_t i = 0; i < warps_.size(); ++i) warps_[i]->begin(unsigned(i), block, shared_);
        for (bool anyone = true; anyone;) {
            if (launch_.order == Launch::Order::random) std::ranges::shuffle(order_, random_);
            for (const std::size_t i : order_) warps_[i]->run();
            // all lanes are at the barrier or have ended
            anyone = false;
            for (const auto& warp : warps_) {
                if (!warp->is_at_barrier()) continue;
                warp->pass_barrier();
                anyone = true;
            }
        }
    }

private:
    const Launch& launch_;
    std::mt19937_64 random_;
    std::vector<std::byte> shared_;
    std::vector<std::unique_ptr<WarpRun>> warps_;
    std::vector<std::size_t> order_;
};

float from_bf16(std::uint32_t bits) {
    const std::uint32_t wide = bits << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

}  // namespace

void run(const Launch& launch) {
    BlockRun block(launch);
    const Dim3& grid = launch.grid;
    std::vector<std::uint64_t> order(count(grid));
    for (std::uint64_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937_64 random(launch.seed);
    if (launch.order == Launch::Order::backward) std::ranges::reverse(order);
    if (launch.order == Launch::Order::random) std::ranges::shuffle(order, random);
    for (const std::uint64_t i : order)
        block.run({unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)});
}

void fail(const Warp& warp, const std::string& what) {
    const Function& function = *warp.function;
    report_wrong("\"" + running_operation().name + "\" at " + function.places[function.code[warp.pc].place] + ": " +
                 what);
}

void shuffle(Warp& warp, const Instruction& instruction) {
    const auto* const values = warp.row<std::uint32_t>(instruction.row[3]);
    const auto* const masks = warp.row<std::uint32_t>(instruction.row[4]);
    const auto* const clamps = warp.row<std::uint32_t>(instruction.row[5]);
    std::uint32_t result[kLanes];
    for_lanes(warp.active, [&](unsigned lane) {
        if (clamps[lane] != 31) fail(warp, "a shuffle within segments of a warp, which no kernel uses");
        const unsigned source = lane ^ (masks[lane] & 31);
        if (!(warp.active >> source & 1))
            fail(warp, "lane " + std::to_string(lane) + " reads the value of lane " + std::to_string(source) +
                           ", which does not take part");
        result[lane] = values[source];
    });
    for_lanes(warp.active, [&](unsigned lane) { warp.row<std::uint32_t>(instruction.row[1])[lane] = result[lane]; });
    if (instruction.row[2] != kNone) *warp.row<std::uint32_t>(instruction.row[2]) |= warp.active;
}

void do_nothing(Warp&, const Instruction&) {}

// With group = lane / 4 and t = lane % 4, the low half of a register first:
//   a[0..3]  rows group, group + 8, group, group + 8, columns 2 t and 2 t + 1, in a[2..3] 8 further
//   b[0..1]  rows 2 t and 2 t + 1, in b[1] 8 further, column group
//   c, d     rows group, group, group + 8, group + 8, columns 2 t, 2 t + 1, 2 t, 2 t + 1
// Products are exact. The order and precision of the sums are undocumented, except that they have at least the
// precision of a float.
void mma_m16n8k16_bf16(Warp& warp, const Instruction& instruction) {
    float a[16][16], b[8][16];
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned i = 0; i < 4; ++i) {
            const std::uint32_t two = warp.row<std::uint32_t>(instruction.row[4 + i])[lane];
            float* const to = &a[group + i % 2 * 8][pair + i / 2 * 8];
            to[0] = from_bf16(two & 0xffff);
            to[1] = from_bf16(two >> 16);
        }
        for (unsigned i = 0; i < 2; ++i) {
            const std::uint32_t two = warp.row<std::uint32_t>(instruction.row[8 + i])[lane];
            float* const to = &b[group][pair + i * 8];
            to[0] = from_bf16(two & 0xffff);
            to[1] = from_bf16(two >> 16);
        }
    }
    for (unsigned lane = 0; lane < kLanes; ++lane)
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = 0;
            for (unsigned k = 0; k < 16; ++k) sum += double(a[row][k]) * double(b[column][k]);
            warp.row<float>(instruction.row[i])[lane] =
                float(double(warp.row<float>(instruction.row[10 + i])[lane]) + sum);
        }
}

}  // namespace stand_in::ptx
