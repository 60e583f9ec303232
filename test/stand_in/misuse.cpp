// misuse.cpp - misuse NAME: a program with one deliberate error, or without any; for
// test/program/cuda_build_stand_in_test.cpp
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "llmc/comm/communicator.h"

namespace {

constexpr std::size_t kElements = 1024;

struct Tensors {
    device::Stream one, two;
    std::optional<device::Array<float>> a{kElements}, b{kElements};
    device::PinnedMemory pinned{kElements * sizeof(float)};
    std::vector<float> host = std::vector<float>(kElements, 1.0f);

    void fill() { a->zero(one); }
    // b = gelu(a)
    void gelu(device::StreamRef stream, std::size_t elements = kElements) {
        kernels::gelu_forward<float>({{b->span().data(), elements}, {a->span().data(), elements}}, stream);
    }
    // Work enqueued on `two` waits for the preceding work of `one`.
    void order() {
        device::Event event;
        event.record(one);
        device::wait(two, event);
    }
    void end() {
        one.sync();
        two.sync();
    }
};

// The device may read memory that the host has already overwritten: no tool detects that, but a late schedule shows it
// in the results.
void reuse_pinned_memory(Tensors& t) {
    auto* const memory = reinterpret_cast<float*>(t.pinned.data());
    std::fill_n(memory, kElements, 1.0f);
    device::copy_to_device(t.a->span().data(), memory, kElements * sizeof(float), t.one);
    std::fill_n(memory, kElements, 2.0f);
    std::printf("%g\n", t.a->download(t.one)[5]);
}

const std::map<std::string, std::function<void(Tensors&)>> kCases{
    {"nothing", [](Tensors& t) { t.fill(); t.gelu(t.one); t.end(); }},
    {"host reads device memory", [](Tensors& t) { t.fill(); t.end(); t.host[0] = t.a->span()[17]; }},
    {"kernel past the end", [](Tensors& t) { t.fill(); t.gelu(t.one, kElements + 64); t.end(); }},
    {"kernel on host memory",
     [](Tensors& t) {
         kernels::gelu_forward<float>({t.b->span(), t.host}, t.one);
         t.end();
     }},
    {"copy past the end",
     [](Tensors& t) {
         t.host.resize(kElements + 1);
         device::copy_to_device(t.a->span().data(), t.host.data(), (kElements + 1) * sizeof(float), t.one);
         t.end();
     }},
    {"use after free",
     [](Tensors& t) {
         t.fill();
         const auto gone = t.a->span();
         t.a.reset();
         device::fill_zero(gone.data(), gone.size_bytes(), t.one);
         t.end();
     }},
    {"copy from pinned memory after free",
     [](Tensors& t) {
         void* memory = nullptr;
         cudaMallocHost(&memory, 100);
         cudaFreeHost(memory);
         device::copy_to_device(t.a->span().data(), memory, 100, t.one);
         t.end();
     }},
    {"double free",
     [](Tensors&) {
         void* memory = nullptr;
         cudaMalloc(&memory, 100);
         cudaFree(memory);
         cudaFree(memory);
     }},
    {"cudaFree of pinned memory", [](Tensors& t) { cudaFree(t.pinned.data()); }},
    {"leak",
     [](Tensors&) {
         void* memory = nullptr;
         cudaMalloc(&memory, 100);
     }},
    {"event destroyed twice",
     [](Tensors&) {
         cudaEvent_t event = nullptr;
         cudaEventCreate(&event);
         cudaEventDestroy(event);
         cudaEventDestroy(event);
     }},
    {"pinned memory after free",
     [](Tensors&) {
         void* memory = nullptr;
         cudaMallocHost(&memory, 100);
         cudaFreeHost(memory);
         *static_cast<float*>(memory) = 1;
     }},
    {"race of kernels", [](Tensors& t) { t.fill(); t.gelu(t.two); t.end(); }},
    {"write concurrent with a read",
     [](Tensors& t) {
         t.fill();
         t.order();
         t.gelu(t.one);
         t.a->zero(t.two);
         t.end();
     }},
    {"pinned memory reused", reuse_pinned_memory},
};

// With two ranks over NCCL, on initialized tensors.
using Ranks = llmc::Communicator;

const std::map<std::string, std::function<void(Tensors&, Ranks&)>> kRankCases{
    {"ranks do not wait for a collective",
     [](Tensors& t, Ranks& ranks) {
         ranks.group_begin(t.one);
         ranks.all_reduce(t.a->span());
         ranks.group_end();
         t.gelu(t.one);
         t.end();
     }},
    {"ranks call different collectives",
     [](Tensors& t, Ranks& ranks) {
         ranks.group_begin(t.one);
         if (ranks.rank() == 0) ranks.all_gather<float>(t.a->span(), t.a->span().first(kElements / 2));
         else ranks.reduce_scatter<float>(t.a->span().subspan(kElements / 2), t.a->span());
         ranks.sync(ranks.group_end());
     }},
    {"ranks send different numbers of elements",
     [](Tensors& t, Ranks& ranks) {
         ranks.group_begin(t.one);
         ranks.broadcast(t.a->span().first(ranks.rank() == 0 ? 100 : 200), 0);
         ranks.sync(ranks.group_end());
     }},
    {"a rank stays away",
     [](Tensors& t, Ranks& ranks) {
         if (ranks.rank() == 0) {
             ranks.group_begin(t.one);
             ranks.all_reduce(t.a->span());
             ranks.sync(ranks.group_end());
         }
         ranks.barrier();
     }},
};

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc == 2 ? argv[1] : "";
    if (const auto found = kCases.find(name); found != kCases.end()) {
        Tensors tensors;
        found->second(tensors);
    } else if (const auto of_ranks = kRankCases.find(name); of_ranks != kRankCases.end()) {
        const auto ranks = llmc::over_nccl(llmc::open_communicator());
        Tensors tensors;
        tensors.fill();
        of_ranks->second(tensors, *ranks);
    } else {
        std::fprintf(stderr, "usage: misuse NAME\n");
        return 2;
    }
    return 0;
}
