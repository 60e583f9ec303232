// simt_race.cpp - simt_race.h: stores the last accesses to each byte, and checks whether they happen before the current
// access
#include "kernels/simt/races/simt_race.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/simt/simt_host.h"
#include "kernels/simt/simt_report.h"

namespace simt::races {
namespace {

// Offset from the start of the program in memory: 32 bits instead of 64.
std::uint32_t code_offset(const void* code) {
    extern char program_begin[] asm("__executable_start");
    return std::uint32_t(static_cast<const char*>(code) - program_begin);
}

std::string output_of(const std::string& command) {
    struct Close { void operator()(FILE* pipe) const { pclose(pipe); } };
    const std::unique_ptr<FILE, Close> pipe(popen(command.c_str(), "r"));
    std::string output;
    std::array<char, 4096> chunk;
    for (std::size_t count; pipe && (count = std::fread(chunk.data(), 1, chunk.size(), pipe.get())) > 0;)
        output.append(chunk.data(), count);
    return output;
}

// The source line of the instruction before `offset`: "kernels/reduce.cuh:43, called at kernels/classifier.cu:80", with
// the callers of inlined functions, but not the executor itself. Without binutils' addr2line: the offset.
std::string source_location(std::uint32_t offset) {
    std::ostringstream command;
    command << "addr2line -i -e /proc/" << getpid() << "/exe 0x" << std::hex << offset - 1 << " 2>/dev/null";
    std::istringstream frames(output_of(command.str()));
    std::string location;
    for (std::string frame; std::getline(frames, frame);) {
        while (frame.starts_with("./")) frame.erase(0, 2);
        frame = frame.substr(0, frame.find(' '));  // "(discriminator 2)"
        // skip frames of libraries and of the executor
        if (frame.starts_with('/') || frame.starts_with('?') || frame.starts_with("kernels/simt/")) continue;
        location += (location.empty() ? "" : ", called at ") + frame;
    }
    if (!location.empty()) return location;
    std::ostringstream unknown;
    unknown << "instruction 0x" << std::hex << offset;
    return unknown.str();
}

struct Record {
    // code: offset of the instruction after the access from the start of the program in memory
    std::uint32_t time, code;
    std::uint16_t thread;
    std::uint8_t bytes;  // bit mask of the cell's bytes; 0: no access
};
struct Cell { Record write, reads[2]; };
constexpr std::uintptr_t kCellBytes = 2;  // one bf16
constexpr std::uintptr_t kPageBytes = 4096;
struct Page { std::array<Cell, kPageBytes / kCellBytes> cells; };

using LaneTimes = std::array<std::uint32_t, kWarp>;

class Detector {
public:
    void begin_launch() {
        block_begins_.clear();
        launch_begin_ = next_time();
        if (pages_.size() > kPagesKept) {  // records of earlier launches are ordered before all later accesses
            pages_.clear();
            recent_ = {};
        }
    }
    void begin_block(unsigned threads) {
        block_begin_ = phase_begin_ = next_time();
        block_begins_.push_back({block_begin_, blockIdx});
        if (clocks_.size() < threads) clocks_.resize(threads);
    }
    void sync_block() { phase_begin_ = next_time(); }
    void sync_warp(unsigned first, unsigned mask) {
        LaneTimes joined{};
        for_each_lane(mask, [&](int lane) {
            for (int i = 0; i < kWarp; ++i) joined[i] = std::max(joined[i], clocks_[first + lane][i]);
        });
        const std::uint32_t now = next_time();
        for_each_lane(mask, [&](int lane) { joined[lane] = now; });
        for_each_lane(mask, [&](int lane) { clocks_[first + lane] = joined; });
    }

    // Returns false if the access races with an earlier one; the block then fails with an Error.
    bool note(std::uintptr_t address, std::size_t bytes, Access access, std::uint32_t code) {
        scope_begin_ = running.shared.holds(reinterpret_cast<const void*>(address)) ? block_begin_ : launch_begin_;
        Record now{time_, code, std::uint16_t(running.scheduler->thread_number()), 0};
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
                           other == &cell.write ? Access::write : Access::read);
                    return false;
                }
                at += first + second;
            }
        }
        return true;
    }

private:
    static constexpr std::size_t kPagesKept = 2048;  // 240 MiB

    std::uint32_t next_time() {
        if (++time_ == 0)
            throw Error("the race detector's logical clock has reached 2^32; run fewer tests in one process",
                        Blame::runtime);
        return time_;
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

    // Whether `earlier` happens before the current access of `thread`.
    bool ordered(const Record& earlier, unsigned thread) const {
        if (earlier.time < scope_begin_) return true;
        if (earlier.time >= block_begin_ && (earlier.thread == thread || earlier.time < phase_begin_)) return true;
        return earlier.time >= block_begin_ && earlier.thread / kWarp == thread / kWarp &&
               clocks_[thread][earlier.thread % kWarp] > earlier.time;
    }

    // Returns the record that `now` races with; or null, after storing `now`.
    const Record* update(Cell& cell, const Record& now, Access access) const {
        const auto races = [&](const Record& earlier) {
            return (earlier.bytes & now.bytes) != 0 && !ordered(earlier, now.thread);
        };
        if (races(cell.write)) return &cell.write;
        if (access == Access::read) {
            keep(cell.reads, now);
            return nullptr;
        }
        for (const Record& read : cell.reads)
            if (races(read)) return &read;
        cell.write = now;
        for (Record& read : cell.reads) read.bytes &= std::uint8_t(~now.bytes);  // all happen before this write
        return nullptr;
    }

    // An access that is ordered after `now` is ordered after everything before `now`, so those records can be dropped.
    // Of the others two are enough if they come from different blocks or warps: only a barrier that is common to all
    // threads can order an access after both.
    void keep(Record (&kept)[2], const Record& now) const {
        Record* slot = nullptr;
        for (Record& record : kept)
            if ((record.bytes & ~now.bytes) == 0 && ordered(record, now.thread)) {
                record.bytes = 0;
                slot = &record;
            }
        const auto warp = [&](const Record& record) { return record.time < block_begin_ ? -1 : record.thread / kWarp; };
        if (!slot && warp(kept[0]) == warp(kept[1]) && warp(kept[0]) != -1 && warp(now) != warp(kept[0]))
            slot = &kept[1];
        if (slot) *slot = now;
    }

    void report(const void* address, std::size_t bytes, Access access, const Record& now, const Record& other,
                Access other_access) const {
        static constexpr const char *kDoes[] = {"reads", "writes"}, *kDid[] = {"read", "wrote"};
        const std::string here = source_location(now.code), there = source_location(other.code);
        const std::string shared = running.shared.describe(address);
        std::ostringstream text;
        text << describe_block() << ": a race: thread " << now.thread << ' ' << kDoes[int(access)] << ' ' << bytes
             << (bytes == 1 ? " byte " : " bytes ");
        if (shared.empty()) text << "of global memory, " << address << ',';
        else text << shared;
        text << " at " << here << ", which thread " << other.thread;
        if (other.time < block_begin_) text << " of block " << spell(block_of(other));
        text << ' ' << kDid[int(other_access)] << " at " << there << "; ";
        if (other.time < block_begin_) text << "blocks are not ordered";
        else if (other.thread / kWarp == now.thread / kWarp) text << "no __syncthreads or __syncwarp separates them";
        else text << "no __syncthreads separates them";
        running.scheduler->fail_at_next_wait(std::make_exception_ptr(Error(text.str(), Blame::runtime)));
    }
    dim3 block_of(const Record& record) const {
        const auto after = std::upper_bound(block_begins_.begin(), block_begins_.end(), record.time,
                                            [](std::uint32_t time,
                                               const auto& block) { return time < block.first; });
        const uint3 index = std::prev(after)->second;
        return {index.x, index.y, index.z};
    }

    std::uint32_t time_ = 0, launch_begin_ = 0, block_begin_ = 0;
    std::uint32_t phase_begin_ = 0;  // time of the block's last barrier
    // Earlier accesses cannot race on the current bytes: for shared memory the start of the block, otherwise the
    // launch.
    std::uint32_t scope_begin_ = 0;
    std::vector<std::pair<std::uint32_t, uint3>> block_begins_;  // of this launch
    // Vector clocks: for each thread and each lane of its warp, that lane's accesses before this time happen before the
    // thread's current access.
    std::vector<LaneTimes> clocks_;
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
void sync_block() { this_core().sync_block(); }
void sync_warp(unsigned first_thread, unsigned mask) { this_core().sync_warp(first_thread, mask); }

void note(const void* address, std::size_t bytes, Access access, const void* caller) {
    if (!watching || running.scheduler->on_own_stack(address)) return;
    if (!watching->note(reinterpret_cast<std::uintptr_t>(address), bytes, access, code_offset(caller)))
        watching = nullptr;
}

Pause::Pause() : before_(std::exchange(watching, nullptr)) {}
Pause::~Pause() { watching = static_cast<Detector*>(before_); }

}  // namespace simt::races
