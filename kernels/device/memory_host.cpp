// memory_host.cpp - memory.h on a CPU
#include "kernels/device/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/base/error.h"

namespace device {
namespace {

constexpr std::size_t kHugePage = std::size_t(2) << 20;

// Large arrays use huge pages: each step reads all of them, and every small page would be a TLB miss. A copy into new
// memory takes half the time.
std::size_t alignment_of(std::size_t bytes) { return bytes >= 4 * kHugePage ? kHugePage : kernels::kTensorAlignment; }

std::byte* allocate(std::size_t bytes) {
    const std::size_t alignment = alignment_of(bytes), rounded = allocation_size(bytes);
    auto* const data = rounded >= bytes ? static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)) : nullptr;
    if (data && alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
    return data;
}

// Uses all threads where the copy takes longer than starting them.
void copy(void* to, const void* from, std::size_t bytes) {
    constexpr std::size_t kChunk = std::size_t(1) << 20;
    #pragma omp parallel for if (bytes > kChunk)
    for (std::size_t first = 0; first < bytes; first += kChunk)
        std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first,
                    std::min(kChunk, bytes - first));
}

}  // namespace

std::size_t allocation_size(std::size_t bytes) { return round_up(bytes, alignment_of(bytes)); }

Memory::Memory(std::size_t bytes) : Memory(bytes > 0 ? allocate(bytes) : nullptr, bytes, std::free) {
    if (bytes > 0 && !data_)
        fail("an allocation of device memory", bytes, "room for that many bytes",
             "make --micro-batch or --seq-len smaller", Blame::runtime);
}

PinnedMemory::PinnedMemory(std::size_t bytes) : data_(bytes > 0 ? allocate(bytes) : nullptr) {
    if (bytes > 0 && !data_)
        fail("an allocation of host memory", bytes, "room for that many bytes", {}, Blame::runtime);
}
void PinnedMemory::Free::operator()(std::byte* data) const noexcept { std::free(data); }

void copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef) { copy(device, host, bytes); }
void copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef) { copy(host, device, bytes); }
void copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef) { copy(to, from, bytes); }
void fill_zero(void* device, std::size_t bytes, StreamRef) {
    if (bytes) std::memset(device, 0, bytes);
}
bool memory_is_host_memory() { return true; }

}  // namespace device
