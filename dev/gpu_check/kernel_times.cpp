// kernel_times.cpp - a library that CUDA loads into train_gpt2: writes the times of all GPU activities, from CUPTI
//
//   CUDA_INJECTION64_PATH=./kernel_times.so KERNEL_TIMES=FILE train_gpt2 ... && c++filt <FILE | kernel_times.py 100
//
// Lines of FILE: start and end in ns, launch grid and name, with tabs between. Kernels run as they do without this
// library, concurrently where they can.
#include <cupti.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

std::FILE* file = nullptr;  // CUPTI calls back from its own threads and passes no context object

void request_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
    *bytes = 8 << 20;
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, *bytes));
    *most_records = 0;
}

void buffer_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
    CUpti_Activity* record = nullptr;
    const auto transfer = [](const auto* of, const char* name) {
        std::fprintf(file, "%" PRIu64 "\t%" PRIu64 "\t-\t%s\n", of->start, of->end, name);
    };
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
        if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            transfer(reinterpret_cast<CUpti_ActivityMemcpy5*>(record), "memory copy");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            transfer(reinterpret_cast<CUpti_ActivityMemset3*>(record), "memory fill");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto& kernel = *reinterpret_cast<CUpti_ActivityKernel9*>(record);
            std::fprintf(file, "%" PRIu64 "\t%" PRIu64 "\t%d,%d,%d\t%s\n", kernel.start, kernel.end, kernel.gridX,
                         kernel.gridY, kernel.gridZ, kernel.name);
        }
    std::free(buffer);
}

void finish() {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    std::fflush(file);
}

}  // namespace

// CUDA calls this when it is initialized.
extern "C" int InitializeInjection() {
    const char* const path = std::getenv("KERNEL_TIMES");
    if (file = path ? std::fopen(path, "w") : nullptr; !file) return 0;
    cuptiActivityRegisterCallbacks(request_buffer, buffer_completed);
    for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                            CUPTI_ACTIVITY_KIND_MEMSET})
        if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) std::fputs("kernel_times: CUPTI cannot be used\n", stderr);
    std::atexit(finish);
    return 1;
}
