// graph_cuda_test.cpp - attention within a CUDA graph
#include <cuda_runtime.h>

#include "test/kernels/attention/passes.h"
#include "test/support/support.h"

using namespace test;

TEST_CASE("attention can be captured in a CUDA graph and replayed", "[attention][attention_methods]") {
    skip_without_device();
    const AttentionShape shape{2, 128, 2, 64};
    const auto qkv = normal<bf16>(3 * elements_of(shape), 41), dout = normal<bf16>(elements_of(shape), 42);
    for (AttentionMethod method : {AttentionMethod::plain, AttentionMethod::flash, AttentionMethod::cudnn}) {
        CAPTURE(int(method));
        if (!is_built(method)) continue;
        Attention attention = make_attention(method);
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
        CHECK(captured.results().out == direct.results().out);
        CHECK(captured.results().dqkv == direct.results().dqkv);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
    }
}
