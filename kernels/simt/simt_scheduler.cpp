// simt_scheduler.cpp - simt_block.h: schedules the threads of a block, and matches the threads of a barrier or
// collective
#include <algorithm>
#include <cstdlib>

#include "kernels/simt/races/simt_race.h"
#include "kernels/simt/simt_fiber.h"
#include "kernels/simt/simt_report.h"

namespace simt {
namespace {

[[noreturn]] void fiber_entry() {
    running.scheduler->run_fiber();
    std::abort();  // run_fiber never returns: an idle fiber stays suspended
}

// Thrown in the waiting threads of a failed block to unwind them.
struct Unwind {};

}  // namespace

BlockScheduler::BlockScheduler() : own_(std::make_unique<Fiber>()) {}
BlockScheduler::~BlockScheduler() = default;

void BlockScheduler::reset(dim3 block) {
    const unsigned count = block.x * block.y * block.z;
    if (block.x != shape_.x || block.y != shape_.y || block.z != shape_.z) {
        shape_ = block;
        threads_.resize(count);
        ready_.reserve(count);
        warps_.resize(ceil_div(count, kWarp));
        for (unsigned i = 0; i < count; ++i) {
            threads_[i].number = i;
            threads_[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        }
        for (unsigned w = 0; w < warps_.size(); ++w) {
            const unsigned lanes = std::min(count - w * kWarp, unsigned(kWarp));
            warps_[w].existing = lanes == kWarp ? ~0u : (1u << lanes) - 1;
        }
    }
    for (Thread& thread : threads_) {
        thread.fiber = nullptr;
        thread.state = State::ready;
    }
    for (Warp& warp : warps_) warp.active_collectives = 0;
    live_ = count;
    at_barrier_ = 0;
    failure_ = nullptr;
    unwound_ = 0;
    ready_.clear();
    draws_ = Draws(order_.seed, (std::uint64_t(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
    wake_all();
}

void BlockScheduler::run_block(const BoundKernel& kernel, dim3 block) {
    kernel_ = kernel;
    running.shared.begin_block(order_.poison);
    reset(block);
    running_ = own_.get();
    if constexpr (finds_races) races::begin_block(live_);
    transfer(*next_thread());
    if constexpr (finds_races) races::end_block();
    current_ = nullptr;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (const std::string stray = running.shared.describe_stray_write(); !stray.empty())
        throw Error(describe_block() + ": a thread wrote " + stray, Blame::runtime);
}

void BlockScheduler::run_fiber() {
    running_->arrive();
    for (;;) {
        run_thread(*starting_);
        Thread* next = next_thread();
        if (next && !next->fiber) {  // start it on this stack, which is free now
            starting_ = next;
            continue;
        }
        idle_.push_back(running_);
        if (next) transfer(*next);
        else switch_to(*own_);
        // The fiber resumes here when it is switched to again, with another thread to start.
    }
}

void BlockScheduler::run_thread(Thread& thread) {
    thread.fiber = running_;
    current_ = &thread;
    threadIdx = thread.index;
    try {
        kernel_.call(kernel_.arguments);
    } catch (const Unwind&) {
    } catch (...) {
        if (!failure_) failure_ = std::current_exception();
    }
    thread.state = State::exited;
    thread.fiber = nullptr;
    --live_;
}

// The thread woken last runs first, so a woken warp runs as far as it can before the next warp does.
void BlockScheduler::wake(Thread& thread) {
    thread.state = State::ready;
    ready_.push_back(&thread);
}
void BlockScheduler::wake_all() {
    any_may_run_ = order_.kind == Order::Kind::mix && draws_.below(2) == 0;
    std::array<unsigned, kMaxBlockThreads / kWarp> numbers;
    const unsigned count = unsigned(warps_.size());
    for (unsigned i = 0; i < count; ++i) numbers[i] = count - 1 - i;
    if (order_.kind == Order::Kind::mix) draws_.shuffle(numbers.data(), count);
    for (unsigned i = 0; i < count; ++i) wake_lanes(&threads_[numbers[i] * kWarp], warps_[numbers[i]].existing);
}
// `first`: lane 0 of the warp.
void BlockScheduler::wake_lanes(Thread* first, unsigned mask) {
    const std::size_t begin = ready_.size();
    for (int lane = kWarp; lane-- > 0;)
        if (mask >> lane & 1) wake(first[lane]);
    if (order_.kind == Order::Kind::mix) draws_.shuffle(ready_.data() + begin, unsigned(ready_.size() - begin));
}

// The thread to run after the current one waits or ends; null: all have ended.
BlockScheduler::Thread* BlockScheduler::next_thread() {
    if (!failure_) {
        if (!ready_.empty()) {
            if (any_may_run_) std::swap(ready_.back(), ready_[draws_.below(unsigned(ready_.size()))]);
            Thread* next = ready_.back();
            ready_.pop_back();
            return next;
        }
        if (live_ == 0) return nullptr;
        const char* why = live_ < threads_.size() ? ": threads wait for others that have exited"
                                                  : ": deadlock: the threads wait in different operations";
        failure_ = std::make_exception_ptr(Error(describe_block() + why + describe_threads(), Blame::runtime));
    }
    return next_to_unwind();
}
BlockScheduler::Thread* BlockScheduler::next_to_unwind() {
    for (; unwound_ < threads_.size(); ++unwound_)
        if (threads_[unwound_].fiber) return &threads_[unwound_];
    return nullptr;
}

bool BlockScheduler::on_own_stack(const void* address) const { return running_->holds(address); }

void BlockScheduler::fail_at_next_wait(std::exception_ptr failure) {
    if (!failure_) failure_ = std::move(failure);
}

void BlockScheduler::suspend() {
    Thread* const me = current_;
    Thread* const next = next_thread();  // never null: this thread has not ended
    if (next != me) transfer(*next);
    if (failure_) throw Unwind{};
}

void BlockScheduler::transfer(Thread& next) {
    if (next.fiber) {
        current_ = &next;
        threadIdx = next.index;
        switch_to(*next.fiber);
    } else {
        Fiber& fiber = idle_fiber();
        starting_ = &next;
        switch_to(fiber);
    }
}

// All context switches happen here.
void BlockScheduler::switch_to(Fiber& fiber) {
    Fiber& from = *running_;
    running_ = &fiber;
    from.leave_for(fiber);
    simt_switch_context(&from.stack_pointer, fiber.stack_pointer);
    from.arrive();
}

Fiber& BlockScheduler::idle_fiber() {
    if (idle_.empty()) {
        idle_.reserve(fibers_.size() + 1);  // so that adding an idle fiber never allocates
        fibers_.push_back(std::make_unique<Fiber>(fibers_.size(), fiber_entry));
        return *fibers_.back();
    }
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return *fiber;
}

// Copies member by member: a copy of the struct would load 16 bytes that were just stored in two parts, and stall on
// store forwarding (2 of 11 ns per collective).
void BlockScheduler::note_site(Thread& thread, Site site) {
    thread.site.wait = site.wait;
    thread.site.where = site.where;
}

void BlockScheduler::wait_block(Site site) {
    Thread& me = *current_;
    note_site(me, site);
    if (at_barrier_ == 0) barrier_site_ = site;
    else if (!same(site, barrier_site_)) {
        me.state = State::at_barrier;
        fault("threads of one block wait in different barriers");
    }
    if (++at_barrier_ == threads_.size()) {
        at_barrier_ = 0;
        if constexpr (finds_races) races::sync_block();
        wake_all();  // including this thread: the first in the order runs next
    } else {
        me.state = State::at_barrier;
    }
    suspend();
}

void BlockScheduler::wait_warp(unsigned mask, Site site, void* operands, Combine combine) {
    Thread& me = *current_;
    const unsigned lane = me.number % kWarp;
    Warp& warp = warps_[me.number / kWarp];
    note_site(me, site);
    me.mask = mask;
    if (!(mask >> lane & 1))
        fault("lane " + std::to_string(lane) + " calls " + spell(site) + " with mask " + hexadecimal(mask) +
              ", which does not include it");
    mask &= warp.existing;  // in a partial last warp do not wait for lanes that do not exist
    Collective* const end = warp.collectives.data() + warp.active_collectives;
    Collective* collective = std::find_if(warp.collectives.data(), end,
                                          [&](const Collective& c) { return c.mask == mask; });
    if (collective == end) {
        *collective = {mask, 0, site, combine};
        ++warp.active_collectives;
    } else if (!same(site, collective->site) || combine != collective->combine) {
        me.state = State::in_collective;
        fault("lanes of one warp wait in different operations");
    }
    collective->arrived |= 1u << lane;
    warp.operands[lane] = operands;
    if (collective->arrived != mask) {
        me.state = State::in_collective;
        suspend();
        return;
    }
    if constexpr (finds_races) {
        if (site.wait == Wait::syncwarp) races::sync_warp(me.number - lane, mask);
        const races::Pause pause;
        if (combine) combine(warp.operands.data(), mask);
    } else if (combine) {
        combine(warp.operands.data(), mask);
    }
    *collective = warp.collectives[--warp.active_collectives];
    if (order_.kind == Order::Kind::forward) {
        wake_lanes(&me - lane, mask & ~(1u << lane));  // this lane continues directly, which saves a switch
    } else {
        wake_lanes(&me - lane, mask);
        suspend();
    }
}

}  // namespace simt
