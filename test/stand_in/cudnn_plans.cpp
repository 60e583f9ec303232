// cudnn_plans.cpp - a program in which the real cuDNN plans attention for GPUs that are not present: from the program's
// graphs (cudnn_graph.h) to kernels compiled by NVRTC and their workspace sizes. Runs no kernel
//
// cuDNN plans without a device if the device's properties are given as JSON
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, from 9.8 on). It loads the compiled kernels into the driver, which
// driver.cpp replaces. Exit code 77: this cuDNN does not support it.
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/attention/cudnn_graph.h"

namespace {

using kernels::AttentionShape, kernels::CudnnPass;
namespace fe = cudnn_frontend;

struct Gpu {
    const char* name;
    int sm_version, multiprocessors, shared_bytes, cache_bytes, sm_khz, memory_khz, bus_bits;
    std::size_t memory_bytes;
    int largest_head;  // largest head size of the backward pass

    std::string properties() const {
        const auto field = [](const char* key, std::size_t value) {
            return std::string(", \"") + key + "\": " + std::to_string(value);
        };
        return std::string("{\"deviceName\": \"") + name + '"' + field("deviceVer", std::size_t(sm_version) * 10) +
               field("multiProcessorCount", std::size_t(multiprocessors)) +
               field("maxSharedMemoryPerBlockOptin", std::size_t(shared_bytes)) +
               field("l2CacheSize", std::size_t(cache_bytes)) + field("smClockRateKHz", std::size_t(sm_khz)) +
               field("memClockRateKHz", std::size_t(memory_khz)) +
               field("memoryBusWidth", std::size_t(bus_bits)) + field("totalGlobalMem", memory_bytes) +
               R"(, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "warpSize": 32,
                  "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
                  "maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
                  "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "cudaDeviceId": 0, "driverVer": 13000})";
    }
};
constexpr Gpu kGpus[] = {
    {"NVIDIA H200", 90, 132, 232448, 60 << 20, 1980000, 3201000, 6144, 150754820096, 256},
    {"NVIDIA A100-SXM4-80GB", 80, 108, 166912, 40 << 20, 1410000, 1593000, 5120, 85899345920, 128}};

// Shapes of models, of prompts of a decoder, and of the tests that compare with fp64 on a GPU.
constexpr AttentionShape kShapes[] = {{64, 1024, 12, 64}, {16, 1024, 25, 64}, {1, 64, 12, 64}, {1, 17, 2, 64},
                                      {1, 200, 1, 128},   {2, 77, 1, 80},     {4, 256, 2, 256}};

void check(fe::error_t status) {
    if (status.is_bad()) throw std::runtime_error(status.get_message());
}

// The workspaces of the plans in bytes: of all plans, or of the first.
std::vector<std::int64_t> workspaces(CudnnPass pass, const AttentionShape& shape, const Gpu& gpu,
                                     std::shared_ptr<fe::DeviceProperties> properties, bool all) {
    fe::graph::Graph graph;
    graph.set_device_properties(properties).set_sm_version(gpu.sm_version);
    kernels::cudnn_graph::describe(graph, pass, shape);
    check(graph.validate());
    check(graph.build_operation_graph());
    check(kernels::cudnn_graph::list_plans(graph, pass));
    std::vector<std::int64_t> bytes(all ? std::size_t(graph.get_execution_plan_count()) : 1);
    for (std::size_t i = 0; i < bytes.size(); ++i) check(kernels::cudnn_graph::build_plan(graph, int(i), bytes[i]));
    return bytes;
}

// Whether all plans are as attention_cudnn.cpp and attention.cpp expect.
bool plans_all(const Gpu& gpu, std::shared_ptr<fe::DeviceProperties> properties) {
    bool fine = true;
    for (const AttentionShape& shape : kShapes)
        for (const auto pass : {CudnnPass::forward, CudnnPass::backward_deterministic, CudnnPass::backward_fast}) {
            if (pass != CudnnPass::forward && shape.head_size > gpu.largest_head) continue;
            if (gpu.sm_version == 80 && shape.batch == 1) continue;  // each plan takes half a second
            std::printf("%s, batch %d, seq_len %d, heads %d, head_size %d, %s: ", gpu.name, shape.batch, shape.seq_len,
                        shape.heads, shape.head_size,
                        pass == CudnnPass::forward         ? "forward"
                        : pass == CudnnPass::backward_fast ? "backward, fast"
                                                           : "backward, deterministic");
            try {
                // All of GPT-2 124M's shape on an H200: cuDNN 9.19 and 9.28 have 4, 2 and 3.
                const auto plans = workspaces(pass, shape, gpu, properties, &gpu == kGpus && &shape == kShapes);
                const auto bytes = double(std::ranges::max(plans));
                const double scores = 2.0 * shape.batch * shape.heads * shape.seq_len * shape.seq_len,
                             tensor = 2.0 * shape.batch * shape.seq_len * shape.heads * shape.head_size;
                std::printf("%zu plans, workspace of %.3f MiB", plans.size(), bytes / (1 << 20));
                if (&gpu == kGpus && &shape == kShapes) fine &= plans.size() > 1;
                // The fast one adds in fp32, on an A100 in two places; with it come sums of rows, and edges of tiles.
                const double most = pass == CudnnPass::forward         ? 1 << 20
                                    : pass == CudnnPass::backward_fast ? 5 * tensor + (1 << 20)
                                                                       : 1.1 * scores + tensor + (1 << 20);
                if (bytes > most) fine = false, std::printf(", expected at most %.3f MiB", most / (1 << 20));
            } catch (const std::exception& error) {
                fine = false;
                std::printf("refused: %s", error.what());
            }
            std::printf("\n");
        }
    return fine;
}

}  // namespace

int main() {
    if (cudnnGetVersion() < 90800) {
        std::printf("cuDNN %zu cannot plan without a GPU\n", cudnnGetVersion());
        return 77;
    }
    bool fine = true;
    for (const Gpu& gpu : kGpus) {
        const std::string text = gpu.properties();
        const auto properties = std::make_shared<fe::DeviceProperties>();
        if (const auto status = properties->deserialize({text.begin(), text.end()}); status.is_bad()) {
            char why[256] = "";
            cudnnGetLastErrorString(why, sizeof why);
            std::printf("cuDNN rejects the properties of an %s: %s\n", gpu.name, why);
            return 1;
        }
        fine &= plans_all(gpu, properties);
    }
    return fine ? 0 : 1;
}
