// outer_test.cpp - the vectors of the specification of outer steps (random values, also of quantized changes:
// operations/outer.cpp)
#include "kernels/outer.h"

#include <numeric>

#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

using Weights = std::vector<float>;

// Two workers of a run in one process; the host adds their weights.
struct OuterRun {
    device::Array<float> anchor, momentum;
    std::vector<Weights> workers;

    explicit OuterRun(const Weights& initial)
        : anchor(on_device(initial)), momentum(on_device(Weights(initial.size()))), workers(2, initial) {}
    void step(float learning_rate, float mu) {
        const std::size_t size = anchor.size();
        std::vector<NormTile> all;
        append_tiles(all, 0, std::int64_t(size));
        const auto tiles = on_device(all);
        auto sums = poisoned<float>(size), master = poisoned<float>(size);
        auto partial = poisoned<double>(all.size());
        for (Weights& worker : workers) {
            master.upload(worker, nullptr);
            outer_change({sums.span(), master.span(), anchor.span(), tiles.span(), partial.span()}, nullptr);
            worker = sums.download(nullptr);
        }
        for (std::size_t i = 0; i < size; ++i) workers[0][i] += workers[1][i];
        sums.upload(workers[0], nullptr);
        outer_mean({sums.span(), anchor.span(), tiles.span(), partial.span(), 2}, nullptr);
        const std::vector<double> parts = partial.download(nullptr);
        const auto device_norm = on_device(std::vector{std::accumulate(parts.begin(), parts.end(), 0.0)});
        const auto scalars = on_device(std::vector<StepScalars>(1));
        outer_update<float>({master.span(), master.span(), anchor.span(), momentum.span(), sums.span(),
                             device_norm.span(), scalars.span(), 2, learning_rate, mu}, nullptr);
        workers.assign(2, master.download(nullptr));
    }
};

double sine(std::size_t i, double phase) { return std::sin(0.7 * double(i * i) + 1.3 * double(i) + phase); }

Weights specified_start(std::size_t size, double phase) {
    Weights initial(size);
    for (std::size_t i = 0; i < size; ++i) initial[i] = float(0.1 * sine(i, phase));
    return initial;
}
// A round of two workers: two steps of plain SGD in fp64 on quadratic losses with noise.
void train(std::vector<Weights>& workers, std::size_t size, int round) {
    for (int k = 0; k < 2; ++k)
        for (std::size_t i = 0; i < size; ++i) {
            double theta = workers[std::size_t(k)][i];
            for (int t = 2 * round; t < 2 * round + 2; ++t)
                theta -= (0.1 - 0.01 * t) * ((0.5 + 0.25 * sine(i, 3)) * (theta - 0.2 * sine(i, 7 + k)) +
                                             0.1 * sine(i, 20 + 5 * k + t));
            workers[std::size_t(k)][i] = float(theta);
        }
}
OuterRun specified_run(std::size_t size, double phase, int rounds) {
    OuterRun run(specified_start(size, phase));
    for (int round = 0; round < rounds; ++round) {
        train(run.workers, size, round);
        run.step(0.7f, 0.6f);
    }
    return run;
}

}  // namespace

TEST_CASE("outer steps of two workers match the specification", "[kernels][outer]") {
    const std::vector<std::vector<double>> want{
        {-.07918966, .05910099, -.06386132, .03494021, .04132852, -.05212724, .02318071, -.07412988},
        {-.05577394, .06578017, -.05535201, .00444358, .01079440, -.05188084, .03478886, -.05760673},
        {-.02650463, .05880128, -.03522823, -.02086107, -.01573444, -.03924044, .03534846, -.03099288}};
    for (int round = 0; round < 3; ++round)
        CHECK(largest_error(specified_run(8, 5, round + 1).workers[1], want[std::size_t(round)]) <= 2e-8);
    CHECK(largest_error(specified_run(8, 5, 3).momentum.download(nullptr),
                        {.03607057, -.00482321, .02319248, -.03452447, -.03571835, .01315604, .00357568, .03200163}) <=
          2e-8);
    const OuterRun run = specified_run(160, 27, 5);
    double sum = 0, squares = 0, momentum = 0;
    for (const double x : widen(run.anchor.download(nullptr))) sum += x, squares += x * x;
    for (const double x : widen(run.momentum.download(nullptr))) momentum += x;
    CHECK(sum == Approx(-1.106975102).margin(1e-7));
    CHECK(squares == Approx(0.862545848).margin(1e-7));
    CHECK(momentum == Approx(-0.277435825).margin(1e-7));
}
