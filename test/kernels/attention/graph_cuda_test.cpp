// graph_cuda_test.cpp - attention within a CUDA graph
#include <cuda_runtime.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/implementations.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "test/support/support.h"

using namespace test;

namespace {

using kernels::Attention;
using kernels::AttentionMethod;
using kernels::AttentionShape;

struct Passes {
    AttentionShape shape;
    device::Array<bf16> qkv, dout, out, dqkv;
    device::Array<float> logsumexp, delta;
    Passes(const AttentionShape& s, const std::vector<bf16>& host_qkv, const std::vector<bf16>& host_dout)
        : shape(s),
          qkv(on_device(host_qkv)),
          dout(on_device(host_dout)),
          out(poisoned<bf16>(s.elements())),
          dqkv(poisoned<bf16>(3 * s.elements())),
          logsumexp(poisoned<float>(s.rows())),
          delta(poisoned<float>(s.rows())) {}
    void both_passes(Attention& attention, device::StreamRef stream = nullptr) {
        attention.forward<bf16>({out.span(), logsumexp.span(), qkv.span(), shape}, stream);
        attention.backward<bf16>({dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(), logsumexp.span(),
                                  shape}, stream);
    }
};

}  // namespace

TEST_CASE("attention can be captured in a CUDA graph and replayed", "[attention][graph]") {
    try {
        device::open(0);
    } catch (const Error& error) {
        skip(error.what());
    }
    const AttentionShape shape{2, 128, 2, 64};
    const auto qkv = normal<bf16>(3 * shape.elements(), 41), dout = normal<bf16>(shape.elements(), 42);
    for (AttentionMethod method : kernels::attention_methods()) {
        CAPTURE(int(method));
        Attention attention({.method = method});
        Passes direct(shape, qkv, dout), captured(shape, qkv, dout);
        direct.both_passes(attention);  // plans, and takes the workspace
        device::sync(nullptr);
        const device::Stream stream;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        captured.both_passes(attention, stream);
        REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
        REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        for (int replay = 0; replay < 2; ++replay) REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
        stream.sync();
        CHECK(same_bits(captured.out.download(nullptr), direct.out.download(nullptr)));
        CHECK(same_bits(captured.dqkv.download(nullptr), direct.dqkv.download(nullptr)));
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
    }
}
