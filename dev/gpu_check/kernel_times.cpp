// kernel_times.cpp - a library that CUDA loads into train_gpt2: what ran on the GPU in a step, how long, by CUPTI
//
//   CUDA_INJECTION64_PATH=./kernel_times.so KERNEL_TIMES=FILE train_gpt2 ...
//
// FILE gets a line for every kernel, copy and fill: nanoseconds and launches of an average step, and the name,
// separated by tabs; then "step", the time from the end of one step to the end of the next, and "idle", what of that
// nothing ran. A step ends with the last of its AdamW kernels. The first two steps are left out. Kernels run as they do
// without this, side by side where they can. ncu sees more of each, but runs them one by one.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Interval {
    std::uint64_t start, end;
    std::string name;
    bool is_kernel;
    bool ends_step() const { return name.find("adamw") != std::string::npos; }
};
// CUPTI calls from threads of its own and has no place for a context object.
std::mutex guard;
std::vector<Interval> intervals;

constexpr std::size_t kBufferBytes = 8 << 20;
constexpr int kStepsLeftOut = 2;

void hand_out(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kBufferBytes));
    *bytes = kBufferBytes;
    *most_records = 0;
}

template <class Record> void keep(CUpti_Activity* activity, const char* name, bool is_kernel = false) {
    const auto* record = reinterpret_cast<const Record*>(activity);
    intervals.push_back({record->start, record->end, name, is_kernel});
}

void take_back(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
    const std::lock_guard lock(guard);
    CUpti_Activity* activity = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) {
        if (activity->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            keep<CUpti_ActivityKernel9>(activity, reinterpret_cast<CUpti_ActivityKernel9*>(activity)->name, true);
        if (activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY) keep<CUpti_ActivityMemcpy5>(activity, "memory copy");
        if (activity->kind == CUPTI_ACTIVITY_KIND_MEMSET) keep<CUpti_ActivityMemset3>(activity, "memory fill");
    }
    std::free(buffer);
}

// One past the last AdamW kernel of each step. Copies of the next step's tokens may run among those kernels.
std::vector<std::size_t> ends_of_steps() {
    std::vector<std::size_t> ends;
    bool ending = false;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
        const bool another = intervals[i].ends_step() && !ending;
        if (intervals[i].is_kernel) ending = intervals[i].ends_step();
        if (another) ends.push_back(i + 1);
        else if (intervals[i].ends_step()) ends.back() = i + 1;
    }
    return ends;
}

void write(std::FILE* file) {
    std::ranges::sort(intervals, {}, &Interval::start);
    const std::vector<std::size_t> ends = ends_of_steps();
    const int steps = int(ends.size()) - kStepsLeftOut;
    if (steps < 1) return;
    struct Total {
        std::uint64_t ns = 0, launches = 0;
    };
    std::map<std::string, Total> totals;
    const std::uint64_t begin = intervals[ends[kStepsLeftOut - 1] - 1].end, end = intervals[ends.back() - 1].end;
    std::uint64_t busy_until = begin, idle = 0;
    for (std::size_t i = ends[kStepsLeftOut - 1]; i < ends.back(); ++i) {
        const Interval& x = intervals[i];
        Total& total = totals[x.name];
        total.ns += x.end - x.start;
        ++total.launches;
        if (x.start > busy_until) idle += x.start - busy_until;
        busy_until = std::max(busy_until, x.end);
    }
    for (const auto& [name, total] : totals)
        std::fprintf(file, "%.0f\t%.0f\t%s\n", double(total.ns) / steps, double(total.launches) / steps, name.c_str());
    std::fprintf(file, "%.0f\t1\tstep\n%.0f\t1\tidle\n", double(end - begin) / steps, double(idle) / steps);
}

void finish() {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(guard);
    const char* path = std::getenv("KERNEL_TIMES");
    std::FILE* file = path ? std::fopen(path, "w") : nullptr;
    if (!file) return;
    write(file);
    std::fclose(file);
}

}  // namespace

// CUDA calls this where it starts.
extern "C" int InitializeInjection() {
    cuptiActivityRegisterCallbacks(hand_out, take_back);
    for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                            CUPTI_ACTIVITY_KIND_MEMSET})
        if (const auto status = cuptiActivityEnable(kind); status != CUPTI_SUCCESS) {
            const char* why = "unknown";
            cuptiGetResultString(status, &why);
            std::fprintf(stderr, "kernel_times: CUPTI cannot be used: %s\n", why);
            return 0;
        }
    std::atexit(finish);
    return 1;
}
