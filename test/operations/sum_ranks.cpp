// sum_ranks.cpp - the sum of all ranks' contributions, in rank order
#include "kernels/sum_ranks.h"

#include "test/operations/operation.h"

namespace operations::sum_ranks_operation {
namespace {

template <class T>
struct SumRanks : Operation {
    int elements = shape[0], ranks = shape[1], rank = shape[2];
    bool in_place = shape[3];
    std::size_t stride = elements / 32 * 32 + 32;
    Tensor<T> own = in_place ? in_out<T>("out", elements) : input<T>("own", elements);
    Tensor<T> out = in_place ? own : output<T>("out", elements);
    Tensor<T> others = input<T>("others", stride * ranks);

    explicit SumRanks(const Shape& shape) : Operation(shape) {
        // Very different magnitudes, so that another order of additions gives different bits; NaN in unused elements.
        adjust(own.number, [&](std::size_t, double x) { return x * size_of(rank); });
        adjust(others.number, [&](std::size_t i, double x) {
            const int of = int(i / stride);
            return of == rank || i % stride >= std::size_t(elements) ? NAN : x * size_of(of);
        });
        bytes = (ranks + 1.0) * elements * sizeof(T);
    }
    static double size_of(int rank) { return rank % 2 ? 1 : 1000; }
    void run(device::StreamRef stream) override {
        kernels::sum_ranks<T>({out, own, others, std::int64_t(stride), rank, ranks}, stream);
    }
    // Float additions one after another: the result must be bit-identical.
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(elements, [&, mine = v[own], theirs = v[others], sums = v[out]](std::size_t i) {
            const auto contribution = [&](int r) -> N { return r == rank ? mine[i] : theirs[r * stride + i]; };
            N sum = contribution(0);
            for (int r = 1; r < ranks; ++r) sum = v.template stored<float>(sum + contribution(r));
            sums[i] = sum;
        });
    }
};

// No elements; less than a pack, exactly one, a little more; tiles and a remainder. First, middle and last rank of few
// and of many.
const Registered sum_ranks({.name = "sum over ranks", .tag = "[sum_ranks][one_order]",
                            .dimensions = {"elements", "ranks", "rank", "in place"},
                            .edges = {{0, 2, 1, 0}, {1, 1, 0, 0}, {1, 3, 2, 1}, {31, 2, 0, 0}, {32, 8, 7, 0},
                                      {33, 3, 1, 1}, {4096, 2, 1, 1}, {5000, 8, 0, 0}, {20011, 1, 0, 1},
                                      {20011, 3, 1, 0}, {20011, 3, 2, 0}, {20011, 8, 4, 1}},
                            .small = {{1 << 23, 4, 1, 1}}, .large = {{1 << 26, 8, 1, 1}}, .make = make<SumRanks>});

}  // namespace
}  // namespace operations::sum_ranks_operation
