// memory_cuda.cpp - memory.h on a GPU
#include "kernels/device/memory.h"

#include "kernels/device/checked_cuda.h"

namespace device {

std::size_t allocation_size(std::size_t bytes) { return bytes; }

Memory::Memory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
        cudaGetLastError();
        fail("an allocation of device memory", bytes, "room for that many bytes",
             "make --micro-batch or --seq-len smaller", Blame::runtime);
    }
    data_ = {static_cast<std::byte*>(data), [](std::byte* allocated) { cudaFree(allocated); }};
}

PinnedMemory::PinnedMemory(std::size_t bytes) {
    void* data = nullptr;
    if (bytes) CHECKED(cudaMallocHost(&data, bytes));
    data_.reset(static_cast<std::byte*>(data));
}
// The documentation says that cudaFree waits for work that may use the memory; it says nothing of cudaFreeHost. When an
// error ends a run, copies may be in flight.
void PinnedMemory::Free::operator()(std::byte* data) const noexcept {
    cudaDeviceSynchronize();
    cudaFreeHost(data);
}

void copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream) {
    if (bytes) CHECKED(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}
void copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream) {
    if (bytes) CHECKED(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}
void copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream) {
    if (bytes) CHECKED(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}
void fill_zero(void* device, std::size_t bytes, StreamRef stream) {
    if (bytes) CHECKED(cudaMemsetAsync(device, 0, bytes, stream));
}
bool memory_is_host_memory() { return false; }

}  // namespace device
