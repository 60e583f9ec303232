// launches.cpp - registration and launches of kernels in libcudart: the device process executes the kernels' PTX
//
// The registration of kernels by nvcc's host code is not documented; the functions are those of the toolkit's header
// (crt/host_runtime.h). Of their arguments only the kernel's host address and its name are used.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "test/stand_in/accesses.h"
#include "test/stand_in/host.h"
#include "test/stand_in/ptx/warp.h"

using namespace stand_in;

namespace {

// A kernel needs an attribute for more dynamic shared memory.
constexpr std::size_t kDefaultShared = 48 * 1024;

struct Kernel {
    std::string name, shown;
    std::size_t most_dynamic_shared = kDefaultShared;
    bool asked = false;  // cudaFuncSetAttribute was called
};

struct Kernels {
    std::mutex mutex;
    std::map<const void*, Kernel> by_address;  // by the address of the kernel's host function
};
Kernels& kernels() {
    static Kernels& only = *new Kernels;
    return only;
}

// "gelu_forward_kernel<float, 16>": without leading namespaces and parameters.
std::string shown_name(const char* name) {
    int status = 0;
    char* const demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string text = status == 0 ? demangled : name;
    std::free(demangled);
    int depth = 0;
    std::size_t begin = 0, end = text.size();
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text.compare(i, 21, "(anonymous namespace)") == 0) {
            i += 20;
            continue;
        }
        if (text[i] == '<') ++depth;
        if (text[i] == '>') --depth;
        if (depth > 0) continue;
        if (text[i] == ' ' || text.compare(i, 2, "::") == 0) begin = i + (text[i] == ' ' ? 1 : 2);
        if (text[i] == '(') {
            end = i;
            break;
        }
    }
    return text.substr(begin, end - begin);
}

// Header of a launch's payload; name and parameters follow.
struct Sent {
    ptx::Dim3 grid, block;
    std::uint32_t dynamic_shared, most_shared, name_bytes, parameter_bytes;
};
std::size_t parameters_at(const Sent& sent) { return (sizeof sent + sent.name_bytes + 15) / 16 * 16; }

bool run_kernel(std::byte* payload) {
    Sent sent;
    std::memcpy(&sent, payload, sizeof sent);
    const std::string_view name(reinterpret_cast<const char*>(payload) + sizeof sent, sent.name_bytes);
    using Order = ptx::Launch::Order;
    static const std::string schedule = std::getenv("STAND_IN_SCHEDULE") ? std::getenv("STAND_IN_SCHEDULE") : "";
    static std::uint64_t seed = std::uint64_t(setting("STAND_IN_SEED", 1));
    const ptx::Function* const function = ptx::function_of(name);
    if (function->shared_bytes + sent.dynamic_shared > sent.most_shared)
        report_wrong("\"" + running_operation().name + "\" has " + std::to_string(function->shared_bytes) +
                     " bytes of static shared memory and " + std::to_string(sent.dynamic_shared) +
                     " of its launch; together at most " + std::to_string(sent.most_shared));
    ptx::run({.function = function, .grid = sent.grid, .block = sent.block,
              .dynamic_shared = sent.dynamic_shared, .parameters = payload + parameters_at(sent),
              .parameter_bytes = sent.parameter_bytes,
              .order = schedule == "random" ? Order::random : schedule == "late" ? Order::backward : Order::forward,
              .seed = ++seed});
    return true;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
    const std::lock_guard lock(kernels().mutex);
    kernels().by_address[host_function] = {name, shown_name(name)};
}

// A kernel needs this for more than 48 KiB of dynamic shared memory; the limit is a block's total minus static memory.
// The program sets no other attribute.
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    STAND_IN_MAY_FAIL(cudaErrorInvalidValue);
    const std::lock_guard lock(kernels().mutex);
    const auto found = kernels().by_address.find(function);
    if (found == kernels().by_address.end()) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > int(ptx::kMostShared))
        return cudaErrorInvalidValue;
    found->second.most_dynamic_shared = std::size_t(value);
    found->second.asked = true;
    return cudaSuccess;
}

// Enqueues the kernel; copies the arguments before the call returns. Limits: 2^31 - 1 blocks in x, 65535 in y and z;
// 1024 threads per block, 1024 in x and y, 64 in z, and the kernel's __launch_bounds__. (Clusters are not supported:
// the program has none.)
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
    Kernel kernel;
    {
        const std::lock_guard lock(kernels().mutex);
        const auto found = kernels().by_address.find(function);
        if (found == kernels().by_address.end()) return cudaErrorInvalidDeviceFunction;
        kernel = found->second;
    }
    STAND_IN_MAY_FAIL(cudaErrorLaunchFailure);
    if (config->numAttrs > 0) stop("a launch of " + kernel.shown + " with attributes is not supported by the stand-in");
    const ptx::Signature* const signature = ptx::signature_of(kernel.name);
    if (!signature) stop("no PTX for " + kernel.name + "; test/stand_in/Makefile collects it");
    const auto dim = [](const dim3& d) { return ptx::Dim3{d.x, d.y, d.z}; };
    const ptx::Dim3 grid = dim(config->gridDim), block = dim(config->blockDim);
    if (ptx::count(grid) == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || ptx::count(block) == 0 ||
        block.x > 1024 || block.y > 1024 || block.z > 64 || ptx::count(block) > 1024 ||
        config->dynamicSmemBytes > kernel.most_dynamic_shared)
        return cudaErrorInvalidValue;
    if (ptx::count(block) > signature->most_threads) return cudaErrorLaunchOutOfResources;
    const Sent sent{grid, block, std::uint32_t(config->dynamicSmemBytes),
                    std::uint32_t(kernel.asked ? ptx::kMostShared : kDefaultShared), std::uint32_t(kernel.name.size()),
                    signature->parameter_bytes};
    std::vector<std::byte> payload(parameters_at(sent) + sent.parameter_bytes);
    std::memcpy(payload.data(), &sent, sizeof sent);
    std::memcpy(payload.data() + sizeof sent, kernel.name.data(), kernel.name.size());
    for (std::size_t i = 0; i < signature->parameters.size(); ++i) {
        const auto [offset, bytes] = signature->parameters[i];
        std::memcpy(payload.data() + parameters_at(sent) + offset, arguments[i], bytes);
    }
    enqueue(config->stream, kernel.shown, run_kernel, payload, {});
    return cudaSuccess;
}

// ---- used by kernel<<<...>>>(); the program launches with cudaLaunchKernelExC

#define NEVER(...) \
    __VA_ARGS__ { stop(std::string(__func__) + " has no stand-in; it must not be called"); }
NEVER(cudaError_t __cudaGetKernel(cudaKernel_t*, const void*))
NEVER(cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t))
NEVER(cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*))

}  // extern "C"
