// memory_host.cpp - memory.h where the device is the processor itself
#include "kernels/device/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/device/error.h"

namespace device {
namespace {

constexpr std::size_t kHugePage = std::size_t(2) << 20;

}  // namespace

Memory::Memory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    // Large arrays on huge pages: a step walks through all of them, and small pages would miss the TLB all the way.
    const std::size_t alignment = bytes >= 4 * kHugePage ? kHugePage : kernels::kTensorAlignment;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = rounded >= bytes ? static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)) : nullptr;
    if (!data_)
        fail("an allocation of device memory", bytes, "room for that many bytes",
             "make --micro-batch or --seq-len smaller", Blame::runtime);
    if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
}
Memory::~Memory() { std::free(data_); }

PinnedMemory::PinnedMemory(std::size_t bytes) : data_(static_cast<std::byte*>(std::malloc(bytes))) {
    if (bytes && !data_) fail("an allocation of host memory", bytes, "room for that many bytes", {}, Blame::runtime);
}
PinnedMemory::~PinnedMemory() { std::free(data_); }

void copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef) {
    if (bytes) std::memcpy(device, host, bytes);
}
void copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef) {
    if (bytes) std::memcpy(host, device, bytes);
}
void copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef) {
    constexpr std::size_t kChunk = std::size_t(1) << 20;
    #pragma omp parallel for
    for (std::size_t first = 0; first < bytes; first += kChunk)
        std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first,
                    std::min(kChunk, bytes - first));
}
void fill_zero(void* device, std::size_t bytes, StreamRef) {
    if (bytes) std::memset(device, 0, bytes);
}
bool memory_is_host_memory() { return true; }

}  // namespace device
