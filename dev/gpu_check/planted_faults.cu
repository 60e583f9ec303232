// planted_faults.cu - a faulty kernel for each tool of compute-sanitizer: a tool that misses it, with the filter for
// this project's kernels, would miss faults in the other kernels, too
//
//   planted_faults memcheck|racecheck|synccheck|initcheck
#include <cstdio>
#include <cstring>

namespace kernels {
namespace {

constexpr int kThreads = 64;

__global__ void writes_past_the_end(int* data) { data[threadIdx.x + 1] = 1; }

__global__ void reads_what_another_warp_writes(int* data) {
    __shared__ int cell[kThreads];
    cell[threadIdx.x] = data[threadIdx.x];
    data[threadIdx.x] = cell[kThreads - 1 - threadIdx.x];
}

// Threads of one warp at two barriers. Threads that have ended count as arrived: synccheck does not report them.
__global__ void waits_with_some_threads(int* data) {
    __shared__ int cell[kThreads];
    cell[threadIdx.x] = data[threadIdx.x];
    if (threadIdx.x % 2) {
        __syncthreads();
        data[threadIdx.x] = cell[kThreads - 1 - threadIdx.x];
    } else {
        __syncthreads();
        data[threadIdx.x] = 2 * cell[kThreads - 1 - threadIdx.x];
    }
}

__global__ void reads_what_nobody_wrote(int* data, const int* nothing) { data[threadIdx.x] = nothing[threadIdx.x]; }

}  // namespace
}  // namespace kernels

int main(int argc, char** argv) {
    const char* tool = argc == 2 ? argv[1] : "";
    int *data = nullptr, *nothing = nullptr;
    const std::size_t bytes = kernels::kThreads * sizeof(int);
    if (cudaMalloc(&data, bytes) != cudaSuccess || cudaMalloc(&nothing, bytes) != cudaSuccess ||
        cudaMemset(data, 0, bytes) != cudaSuccess) {
        std::fprintf(stderr, "planted_faults: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 2;
    }
    if (!std::strcmp(tool, "memcheck")) kernels::writes_past_the_end<<<1, kernels::kThreads>>>(data);
    else if (!std::strcmp(tool, "racecheck")) kernels::reads_what_another_warp_writes<<<1, kernels::kThreads>>>(data);
    else if (!std::strcmp(tool, "synccheck")) kernels::waits_with_some_threads<<<1, kernels::kThreads>>>(data);
    else if (!std::strcmp(tool, "initcheck")) kernels::reads_what_nobody_wrote<<<1, kernels::kThreads>>>(data, nothing);
    else return 2;
    cudaDeviceSynchronize();  // its error is ignored: the tool must report the fault
    return 0;
}
