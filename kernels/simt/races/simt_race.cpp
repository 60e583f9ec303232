// simt_race.cpp - simt_race.h: who accessed which bytes last, and whether what a thread does now comes after it
#include "kernels/simt/races/simt_race.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/device/error.h"
#include "kernels/simt/races/simt_race_place.h"
#include "kernels/simt/simt_host.h"
#include "kernels/simt/simt_report.h"

namespace simt::races {
namespace {

struct Record {
    // code: of the instruction after the access, as from where the program begins in memory
    std::uint32_t moment, code;
    std::uint16_t thread;
    std::uint8_t bytes;  // which of the cell's; 0: no access
};
struct Cell { Record write, reads[2], atomics[2]; };
constexpr std::uintptr_t kCellBytes = 2;  // a bf16 has one of its own
constexpr std::uintptr_t kPageBytes = 4096;
struct Page { std::array<Cell, kPageBytes / kCellBytes> cells; };

using Lanes = std::array<std::uint32_t, kWarpLanes>;

// What comes before a __threadfence of a thread. Its block is that of the moments from block_begin to `until`, as
// blocks run one after another.
struct View {
    std::uint32_t block_begin, phase_begin, until;
    unsigned thread;
    Lanes lanes;
    bool holds(const Record& record) const {
        if (record.moment < block_begin || record.moment >= until) return false;
        return record.thread == thread || record.moment < phase_begin ||
               (record.thread / kWarpLanes == thread / kWarpLanes && lanes[record.thread % kWarpLanes] > record.moment);
    }
};
using Views = std::vector<View>;
void add(Views& views, const Views& more) {
    for (const View& view : more) {
        const auto old = std::find_if(views.begin(), views.end(), [&](const View& v) {
            return v.block_begin == view.block_begin && v.thread == view.thread;
        });
        if (old == views.end()) views.push_back(view);
        else if (old->until < view.until) *old = view;
    }
}

class Detector {
public:
    void begin_launch() {
        block_begins_.clear();
        launch_begin_ = next_moment();
        published_.clear();
        fenced_ = false;
        if (pages_.size() > kPagesKept) {  // what earlier launches left there is ordered before all that comes
            pages_.clear();
            recent_ = {};
        }
    }
    void begin_block(unsigned threads) {
        block_begin_ = phase_begin_ = next_moment();
        block_begins_.push_back({block_begin_, blockIdx});
        if (known_.size() < threads) known_.resize(threads);
        views_.assign(threads, {});
        views_of_block_.clear();
    }
    void meet_block() {
        phase_begin_ = next_moment();
        if (!fenced_) return;
        for (ThreadViews& views : views_) add(views_of_block_, std::exchange(views.before, {}));
    }
    void meet_warp(unsigned first, unsigned mask) {
        Lanes together{};
        for_each_lane(mask, [&](int lane) {
            for (int i = 0; i < kWarpLanes; ++i) together[i] = std::max(together[i], known_[first + lane][i]);
        });
        const std::uint32_t now = next_moment();
        for_each_lane(mask, [&](int lane) { together[lane] = now; });
        for_each_lane(mask, [&](int lane) { known_[first + lane] = together; });
        if (!fenced_) return;
        Views before;
        for_each_lane(mask, [&](int lane) { add(before, views_[first + lane].before); });
        for_each_lane(mask, [&](int lane) { views_[first + lane].before = before; });
    }

    void fence() {
        const unsigned thread = running.scheduler->thread_number();
        ThreadViews& mine = views_[thread];
        add(mine.before, std::exchange(mine.met, {}));
        mine.fenced = mine.before;
        add(mine.fenced, views_of_block_);
        add(mine.fenced, {{block_begin_, phase_begin_, next_moment(), thread, known_[thread]}});
        fenced_ = true;
    }
    void meet_at(std::uintptr_t address) {
        if (!fenced_) return;
        ThreadViews& mine = views_[running.scheduler->thread_number()];
        Views& here = published_[address];
        add(mine.met, here);
        add(here, mine.fenced);
    }

    // False: it races with an earlier one, and an Error is on its way.
    bool note(std::uintptr_t address, std::size_t bytes, Access access, std::uint32_t code) {
        scope_begin_ = running.shared.holds(reinterpret_cast<const void*>(address)) ? block_begin_ : launch_begin_;
        Record now{moment_, code, std::uint16_t(running.scheduler->thread_number()), 0};
        const std::uintptr_t end = address + bytes;
        for (std::uintptr_t at = address; at < end;) {
            Page& page = page_of(at);
            const std::uintptr_t page_end = std::min(end, (at / kPageBytes + 1) * kPageBytes);
            while (at < page_end) {
                Cell& cell = page.cells[at % kPageBytes / kCellBytes];
                const bool first = at % kCellBytes == 0, second = !first || at + 1 < end;
                now.bytes = std::uint8_t(first + 2 * second);
                if (const Record* other = update(cell, now, access)) {
                    report(reinterpret_cast<void*>(address), bytes, access, now, *other,
                           other == &cell.write ? Access::write
                           : other >= cell.atomics ? Access::atomic : Access::read);
                    return false;
                }
                at += first + second;
            }
        }
        return true;
    }

private:
    // For fences and atomics: what comes before this thread's next access, what will after its next fence, and what
    // came before its last one.
    struct ThreadViews { Views before, met, fenced; };
    static constexpr std::size_t kPagesKept = 2048;  // 240 MiB

    std::uint32_t next_moment() {
        if (++moment_ == 0)
            throw Error("the race detector has counted 2^32 moments; run fewer tests in one process", Blame::runtime);
        return moment_;
    }

    Page& page_of(std::uintptr_t address) {
        const std::uintptr_t number = address / kPageBytes;
        auto& [recent, page] = recent_[number % recent_.size()];
        if (recent != number || !page) {
            std::unique_ptr<Page>& kept = pages_[number];
            if (!kept) kept = std::make_unique<Page>();
            recent = number;
            page = kept.get();
        }
        return *page;
    }

    // Whether `earlier` comes before what `thread` does now.
    bool ordered(const Record& earlier, unsigned thread) const {
        if (earlier.moment < scope_begin_) return true;
        if (earlier.moment >= block_begin_ && (earlier.thread == thread || earlier.moment < phase_begin_)) return true;
        if (earlier.moment >= block_begin_ && earlier.thread / kWarpLanes == thread / kWarpLanes &&
            known_[thread][earlier.thread % kWarpLanes] > earlier.moment)
            return true;
        const auto holds = [&](const View& view) { return view.holds(earlier); };
        return fenced_ && (std::any_of(views_[thread].before.begin(), views_[thread].before.end(), holds) ||
                           std::any_of(views_of_block_.begin(), views_of_block_.end(), holds));
    }

    // Null, and `now` is kept; or the record that it races with.
    const Record* update(Cell& cell, const Record& now, Access access) const {
        const auto races = [&](const Record& earlier) {
            return (earlier.bytes & now.bytes) != 0 && !ordered(earlier, now.thread);
        };
        if (races(cell.write)) return &cell.write;
        if (access != Access::read)
            for (const Record& read : cell.reads)
                if (races(read)) return &read;
        if (access != Access::atomic)
            for (const Record& atomic : cell.atomics)
                if (races(atomic)) return &atomic;
        switch (access) {
            case Access::read: keep(cell.reads, now); break;
            case Access::atomic: keep(cell.atomics, now); break;
            case Access::write:
                cell.write = now;
                for (Record& read : cell.reads) read.bytes &= std::uint8_t(~now.bytes);  // all come before this write
                for (Record& atomic : cell.atomics) atomic.bytes &= std::uint8_t(~now.bytes);
        }
        return nullptr;
    }

    // What comes after `now` comes after all that is ordered before it, so that need not be kept. Of what is not, two
    // are enough where they are of different blocks or warps: nothing that any thread does can come after both, but by
    // a barrier that is common to all.
    void keep(Record (&kept)[2], const Record& now) const {
        Record* place = nullptr;
        for (Record& record : kept)
            if ((record.bytes & ~now.bytes) == 0 && ordered(record, now.thread)) {
                record.bytes = 0;
                place = &record;
            }
        const auto warp = [&](const Record& record) {
            return record.moment < block_begin_ ? -1 : record.thread / kWarpLanes;
        };
        if (!place && warp(kept[0]) == warp(kept[1]) && warp(kept[0]) != -1 && warp(now) != warp(kept[0]))
            place = &kept[1];
        if (place) *place = now;
    }

    void report(const void* address, std::size_t bytes, Access access, const Record& now, const Record& other,
                Access other_access) const {
        static constexpr const char *kDoes[] = {"reads", "writes", "updates"}, *kDid[] = {"read", "wrote", "updated"};
        const auto [here, there] = source_places(now.code, other.code);
        const std::string shared = running.shared.describe(address);
        std::ostringstream text;
        text << place() << ": a race: thread " << now.thread << ' ' << kDoes[int(access)] << ' ' << bytes
             << (bytes == 1 ? " byte " : " bytes ");
        if (shared.empty()) text << "of global memory, " << address << ',';
        else text << shared;
        text << " at " << here << ", which thread " << other.thread;
        if (other.moment < block_begin_) text << " of block " << spell(block_of(other));
        text << ' ' << kDid[int(other_access)] << " at " << there << "; ";
        if (other.moment < block_begin_) text << "blocks run in no order";
        else if (other.thread / kWarpLanes == now.thread / kWarpLanes)
            text << "no __syncthreads or __syncwarp lies between";
        else text << "no __syncthreads lies between";
        running.scheduler->fail_at_next_wait(std::make_exception_ptr(Error(text.str(), Blame::runtime)));
    }
    dim3 block_of(const Record& record) const {
        const auto after = std::upper_bound(block_begins_.begin(), block_begins_.end(), record.moment,
                                            [](std::uint32_t moment,
                                               const auto& block) { return moment < block.first; });
        const uint3 index = std::prev(after)->second;
        return {index.x, index.y, index.z};
    }

    std::uint32_t moment_ = 0, launch_begin_ = 0, block_begin_ = 0;
    std::uint32_t phase_begin_ = 0;  // the block's last barrier
    // of what may race on the bytes looked at: in shared memory the block's, which has it for itself
    std::uint32_t scope_begin_ = 0;
    std::vector<std::pair<std::uint32_t, uint3>> block_begins_;  // of this launch
    std::vector<ThreadViews> views_;
    Views views_of_block_;  // before what all of its threads do now
    std::unordered_map<std::uintptr_t, Views> published_;  // by the address of an atomic
    bool fenced_ = false;                                  // in this launch
    // by thread, for each lane of its warp: what that one did before this moment comes before what the thread does now
    std::vector<Lanes> known_;
    std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
    std::array<std::pair<std::uintptr_t, Page*>, 256> recent_{};
};

Detector& this_core() {
    static thread_local Detector detector;
    return detector;
}
thread_local constinit Detector* watching = nullptr;

}  // namespace

void begin_launch() { this_core().begin_launch(); }
void begin_block(unsigned threads) {
    this_core().begin_block(threads);
    watching = &this_core();
}
void end_block() { watching = nullptr; }
void meet_block() { this_core().meet_block(); }
void meet_warp(unsigned first_thread, unsigned mask) { this_core().meet_warp(first_thread, mask); }

void note(const void* address, std::size_t bytes, Access access, const void* caller) {
    if (!watching || running.scheduler->on_own_stack(address)) return;
    if (!watching->note(reinterpret_cast<std::uintptr_t>(address), bytes, access, code_offset(caller)))
        watching = nullptr;
    else if (access == Access::atomic) watching->meet_at(reinterpret_cast<std::uintptr_t>(address));
}
void fence() {
    if (watching) watching->fence();
}

Pause::Pause() : before_(std::exchange(watching, nullptr)) {}
Pause::~Pause() { watching = static_cast<Detector*>(before_); }

}  // namespace simt::races
