// bench_attention.cpp - how fast causal attention runs, forward and backward, at the shapes that training meets
//
// Work is counted as the contract does: half of the score matrix, backward 2.5 times forward.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "dev/bench.h"
#include "kernels/attention.h"

namespace {

using kernels::bf16;

template <class T>
std::vector<T> pattern(std::size_t size, unsigned seed) {  // uniform in [-1, 1)
    std::vector<T> values(size);
    for (T& value : values) {
        seed = seed * 1664525u + 1013904223u;
        const float x = float(seed >> 8) / float(1 << 23) - 1.0f;
        if constexpr (sizeof(T) == 2) value = kernels::bf16_from_float(x);
        else value = x;
    }
    return values;
}

template <class T>
void time_shape(const char* type, int batch, int heads, int head_size, int seq_len) {
    const std::size_t elements = std::size_t(batch) * seq_len * heads * head_size, rows = std::size_t(batch) * heads * seq_len;
    const std::vector<T> host_qkv = pattern<T>(3 * elements, 1), host_dout = pattern<T>(elements, 2);
    const llmc::DeviceArray<T> qkv(host_qkv, nullptr), dout(host_dout, nullptr), out(elements), dqkv(3 * elements);
    const llmc::DeviceArray<float> logsumexp(rows), delta(rows);
    llmc::wait(nullptr);
    const double flops = 4.0 * batch * heads * seq_len * seq_len / 2 * head_size;
    const double forward = bench::median_seconds([&] {
        kernels::attention_forward<T>({out.span(), logsumexp.span(), qkv.span(), batch, seq_len, heads, head_size}, nullptr);
    });
    const double backward = bench::median_seconds([&] {
        kernels::attention_backward<T>(
            {dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(), logsumexp.span(), batch, seq_len, heads, head_size}, nullptr);
    });
    std::printf("%-5s %5d %5d %9d %7d %11.3f %8.1f %12.3f %8.1f\n", type, batch, heads, head_size, seq_len, forward * 1e3, flops / forward * 1e-9,
                backward * 1e3, 2.5 * flops / backward * 1e-9);
}

}  // namespace

// bench_attention [BATCH HEADS HEAD_SIZE SEQ_LEN]: one shape instead of those that suit a CPU.
int main(int argc, char** argv) try {
    if (argc != 1 && argc != 5) return std::fprintf(stderr, "usage: bench_attention [BATCH HEADS HEAD_SIZE SEQ_LEN]\n"), 2;
    const llmc::DeviceInfo device = llmc::open_device(0);
    std::printf("%s, %d threads\n%-5s %5s %5s %9s %7s %11s %8s %12s %8s\n", device.name.c_str(), device.threads, "type", "batch", "heads",
                "head_size", "seq_len", "forward ms", "GFLOP/s", "backward ms", "GFLOP/s");
    struct Shape { int batch, heads, head_size, seq_len; };
    std::vector<Shape> shapes{{4, 12, 64, 64}, {8, 4, 32, 128}, {4, 12, 64, 1024}};
    if (argc == 5) shapes = {{std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])}};
    for (const auto& [batch, heads, head_size, seq_len] : shapes) {
        time_shape<float>("fp32", batch, heads, head_size, seq_len);
        time_shape<bf16>("bf16", batch, heads, head_size, seq_len);
    }
} catch (const std::exception& error) {
    std::fprintf(stderr, "bench_attention: %s\n", error.what());
    return 1;
}
