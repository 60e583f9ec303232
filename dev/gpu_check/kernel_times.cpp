// kernel_times.cpp - a library that CUDA loads into train_gpt2: records the GPU activities of a step with CUPTI
//
//   CUDA_INJECTION64_PATH=./kernel_times.so KERNEL_TIMES=FILE [KERNEL_TRACE=FILE] [KERNEL_STEPS_LEFT_OUT=N]
//       train_gpt2 ...
//
// KERNEL_TIMES gets one line for each kernel and launch shape, memory copy and memory fill of an average step,
// separated by tabs: nanoseconds, launches, grid, block, name. The last two lines are "step", the time from the end of
// one step to the end of the next, and "idle", the part of it in which nothing ran. The first N steps are excluded, by
// default 2; with N = 100 the card is as hot, and its clock as low, as in a long run.
// KERNEL_TRACE gets every activity of the last step as a row of the table that its first line names: nanoseconds since
// the end of the step before, stream, grid, block, shared memory, registers, bytes copied or filled, name. One kernel
// of a library serves several shapes under one name; grid and stream tell them apart.
//
// A step ends with the last of its AdamW kernels. Kernels run as they do without this library, concurrently where they
// can. ncu reports more about each kernel, but runs one at a time.
#include <cupti.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Activity {
    std::uint64_t start, end;
    std::string name;
    std::uint32_t stream;
    std::array<int, 3> grid{}, block{};
    int shared_bytes = 0, registers = 0;
    std::uint64_t bytes = 0;
    bool is_kernel() const { return block[0] > 0; }
    bool ends_step() const { return name.find("adamw") != std::string::npos; }
    std::string shape() const {
        const auto extent = [](const std::array<int, 3>& e) {
            return std::to_string(e[0]) + ',' + std::to_string(e[1]) + ',' + std::to_string(e[2]);
        };
        return is_kernel() ? extent(grid) + '\t' + extent(block) : "-\t-";
    }
};
// CUPTI calls back from its own threads and passes no context object.
std::mutex guard;
std::vector<Activity> activities;

constexpr std::size_t kBufferBytes = 8 << 20;
// A function because CUDA loads this library before main().
int steps_left_out() {
    const char* const given = std::getenv("KERNEL_STEPS_LEFT_OUT");
    return given ? std::max(std::atoi(given), 1) : 2;
}

void request_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kBufferBytes));
    *bytes = kBufferBytes;
    *most_records = 0;
}

void add_kernel(const CUpti_ActivityKernel9& r) {
    activities.push_back({r.start, r.end, r.name, r.streamId, {r.gridX, r.gridY, r.gridZ},
                          {r.blockX, r.blockY, r.blockZ}, r.staticSharedMemory + r.dynamicSharedMemory,
                          r.registersPerThread});
}
template <class Record> void add_transfer(const Record& r, const char* name) {
    Activity activity{r.start, r.end, name, r.streamId};
    activity.bytes = r.bytes;
    activities.push_back(activity);
}

void buffer_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
    const std::lock_guard lock(guard);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            add_kernel(*reinterpret_cast<CUpti_ActivityKernel9*>(record));
        if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
            add_transfer(*reinterpret_cast<CUpti_ActivityMemcpy5*>(record), "memory copy");
        if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET)
            add_transfer(*reinterpret_cast<CUpti_ActivityMemset3*>(record), "memory fill");
    }
    std::free(buffer);
}

// One past the last AdamW kernel of each step. Copies of the next step's tokens may run among those kernels.
std::vector<std::size_t> ends_of_steps() {
    std::vector<std::size_t> ends;
    bool ending = false;
    for (std::size_t i = 0; i < activities.size(); ++i) {
        const bool another = activities[i].ends_step() && !ending;
        if (activities[i].is_kernel()) ending = activities[i].ends_step();
        if (another) ends.push_back(i + 1);
        else if (activities[i].ends_step()) ends.back() = i + 1;
    }
    return ends;
}

void write_times(std::FILE* file, const std::vector<std::size_t>& ends) {
    const int left_out = steps_left_out(), steps = int(ends.size()) - left_out;
    struct Total {
        std::uint64_t ns = 0, launches = 0;
    };
    std::map<std::string, Total> totals;
    const std::size_t first = ends[std::size_t(left_out) - 1];
    const std::uint64_t begin = activities[first - 1].end, end = activities[ends.back() - 1].end;
    std::uint64_t busy_until = begin, idle = 0;
    for (std::size_t i = first; i < ends.back(); ++i) {
        const Activity& activity = activities[i];
        Total& total = totals[activity.shape() + '\t' + activity.name];
        total.ns += activity.end - activity.start;
        ++total.launches;
        if (activity.start > busy_until) idle += activity.start - busy_until;
        busy_until = std::max(busy_until, activity.end);
    }
    for (const auto& [key, total] : totals)
        std::fprintf(file, "%.0f\t%.2f\t%s\n", double(total.ns) / steps, double(total.launches) / steps, key.c_str());
    std::fprintf(file, "%.0f\t1\t-\t-\tstep\n%.0f\t1\t-\t-\tidle\n", double(end - begin) / steps, double(idle) / steps);
}

void write_trace(std::FILE* file, const std::vector<std::size_t>& ends) {
    const std::size_t first = ends[ends.size() - 2];
    const std::uint64_t begin = activities[first - 1].end;
    std::fputs("start_ns\tend_ns\tstream\tgrid\tblock\tshared_bytes\tregisters\tbytes\tname\n", file);
    for (std::size_t i = first; i < ends.back(); ++i) {
        const Activity& a = activities[i];
        // Copies of this step's tokens may have started before the step before ended.
        std::fprintf(file, "%lld\t%lld\t%u\t%s\t%d\t%d\t%llu\t%s\n", static_cast<long long>(a.start - begin),
                     static_cast<long long>(a.end - begin), a.stream, a.shape().c_str(), a.shared_bytes, a.registers,
                     static_cast<unsigned long long>(a.bytes), a.name.c_str());
    }
}

void finish() {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(guard);
    std::ranges::sort(activities, {}, &Activity::start);
    const std::vector<std::size_t> ends = ends_of_steps();
    const auto write = [&](const char* variable, void (*table)(std::FILE*, const std::vector<std::size_t>&)) {
        const char* const path = std::getenv(variable);
        std::FILE* const file = path ? std::fopen(path, "w") : nullptr;
        if (!file) return;
        if (int(ends.size()) > steps_left_out()) table(file, ends);
        std::fclose(file);
    };
    write("KERNEL_TIMES", write_times);
    write("KERNEL_TRACE", write_trace);
}

}  // namespace

// CUDA calls this when it is initialized.
extern "C" int InitializeInjection() {
    cuptiActivityRegisterCallbacks(request_buffer, buffer_completed);
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
