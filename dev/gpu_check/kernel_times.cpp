// kernel_times.cpp - a library that CUDA loads into train_gpt2: the GPU activities of an average step, from CUPTI
//
//   CUDA_INJECTION64_PATH=./kernel_times.so KERNEL_TIMES=FILE [KERNEL_STEPS_LEFT_OUT=N] train_gpt2 ...
//
// FILE gets a table with a row for each kernel and launch grid, and for memory copies and fills; a kernel of a library
// serves several shapes under one name, which the grid tells apart. Below it: the time from the end of one step to the
// end of the next, and how much of it nothing ran. The first N steps are left out, by default 2; with N = 100 the card
// is as hot, and its clock as low, as in a long run. A step ends with the last of its AdamW kernels. Kernels run as
// they do without this library, concurrently where they can.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Activity {
    std::uint64_t start, end;
    std::string name;  // with the grid; of a transfer without
    bool is_kernel, ends_step;
};
// CUPTI calls back from its own threads and passes no context object.
std::mutex guard;
std::vector<Activity> activities;

constexpr std::size_t kBufferBytes = 8 << 20;

void request_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kBufferBytes));
    *bytes = kBufferBytes;
    *most_records = 0;
}

void buffer_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
    const std::lock_guard lock(guard);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto& kernel = *reinterpret_cast<CUpti_ActivityKernel9*>(record);
            const std::string name = kernel.name, grid = std::to_string(kernel.gridX) + ',' +
                                                         std::to_string(kernel.gridY) + ',' +
                                                         std::to_string(kernel.gridZ);
            activities.push_back({kernel.start, kernel.end, name + '\t' + grid, true,
                                  name.find("adamw") != std::string::npos});
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const auto& copy = *reinterpret_cast<CUpti_ActivityMemcpy5*>(record);
            activities.push_back({copy.start, copy.end, "memory copy", false, false});
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const auto& fill = *reinterpret_cast<CUpti_ActivityMemset3*>(record);
            activities.push_back({fill.start, fill.end, "memory fill", false, false});
        }
    }
    std::free(buffer);
}

// One past the last AdamW kernel of each step. Copies of the next step's tokens may run among those kernels.
std::vector<std::size_t> ends_of_steps() {
    std::vector<std::size_t> ends;
    bool ending = false;
    for (std::size_t i = 0; i < activities.size(); ++i) {
        const bool another = activities[i].ends_step && !ending;
        if (activities[i].is_kernel) ending = activities[i].ends_step;
        if (another) ends.push_back(i + 1);
        else if (activities[i].ends_step) ends.back() = i + 1;
    }
    return ends;
}

// "`gelu_kernel<float>` | 8,1,1", without this project's namespaces, return type and parameters.
std::string cells(const std::string& name) {
    const std::size_t tab = std::min(name.find('\t'), name.size());
    int status = 0;
    char* const demangled = abi::__cxa_demangle(name.substr(0, tab).c_str(), nullptr, nullptr, &status);
    std::string text = demangled ? demangled : name.substr(0, tab);
    std::free(demangled);
    if (text.starts_with("void ")) text.erase(0, 5);
    for (const std::string gone : {"kernels::", "(anonymous namespace)::"})
        for (std::size_t at; (at = text.find(gone)) != std::string::npos;) text.erase(at, gone.size());
    const std::size_t end = text.find(">(");
    text.resize(end != std::string::npos ? end + 1 : std::min(text.find('('), text.size()));
    return '`' + text.substr(0, 90) + "` | " + (tab < name.size() ? name.substr(tab + 1) : "-");
}

void write_table(std::FILE* file, int left_out) {
    std::ranges::sort(activities, {}, &Activity::start);
    const std::vector<std::size_t> ends = ends_of_steps();
    const int steps = int(ends.size()) - left_out;
    if (steps < 1) return;
    struct Row {
        double ns = 0, launches = 0;
        std::string name{};
    };
    std::map<std::string, Row> of_names;
    const std::size_t first = ends[std::size_t(left_out) - 1];
    const std::uint64_t begin = activities[first - 1].end;
    std::uint64_t busy_until = begin;
    double idle = 0, busy = 0;
    for (std::size_t i = first; i < ends.back(); ++i) {
        const Activity& activity = activities[i];
        Row& row = of_names[activity.name];
        row.ns += double(activity.end - activity.start);
        busy += double(activity.end - activity.start);
        ++row.launches;
        if (activity.start > busy_until) idle += double(activity.start - busy_until);
        busy_until = std::max(busy_until, activity.end);
    }
    std::vector<Row> rows;
    for (const auto& [name, row] : of_names) rows.push_back({row.ns, row.launches, name});
    std::ranges::sort(rows, std::greater(), &Row::ns);
    std::fputs("| kernel | grid | launches | us each | ms | share |\n|---|---|---|---|---|---|\n", file);
    for (const Row& row : rows)
        std::fprintf(file, "| %s | %.3g | %.1f | %.3f | %.1f %% |\n", cells(row.name).c_str(), row.launches / steps,
                     row.ns / row.launches / 1e3, row.ns / steps / 1e6, 100 * row.ns / busy);
    const double whole = double(activities[ends.back() - 1].end - begin);
    std::fprintf(file, "\na whole step: %.3f ms, of which nothing ran for %.3f ms (%.1f %%)\n", whole / steps / 1e6,
                 idle / steps / 1e6, 100 * idle / whole);
}

void finish() {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(guard);
    const char *const path = std::getenv("KERNEL_TIMES"), *const given = std::getenv("KERNEL_STEPS_LEFT_OUT");
    std::FILE* const file = path ? std::fopen(path, "w") : nullptr;
    if (!file) return;
    write_table(file, given ? std::max(std::atoi(given), 1) : 2);
    std::fclose(file);
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
