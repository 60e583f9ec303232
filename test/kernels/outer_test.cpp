// outer_test.cpp - exact results of the outer step in fp32, its limits, and the vectors of the specification (random
// values in fp64, also of quantized changes: operations/outer.cpp)
#include "kernels/outer.h"

#include <limits>
#include <numeric>

#include "test/kernels/onebit_ranks.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

using Weights = std::vector<float>;

// The result of one operation: a compiler must not fuse it with the next.
float once(float x) {
    const volatile float rounded = x;
    return rounded;
}

// All workers of a run in one process; the host adds their weights, in pairs: the sum of eight equal weights is exact.
struct OuterRun {
    device::Array<float> anchor, momentum;
    std::vector<Weights> workers;
    double norm = 0;  // of the last step

    OuterRun(const Weights& initial, std::size_t count)
        : anchor(on_device(initial)), momentum(on_device(Weights(initial.size()))), workers(count, initial) {}
    void step(float learning_rate, float mu) {
        const std::size_t size = anchor.size(), count = workers.size();
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
        for (std::size_t stride = 1; stride < count; stride *= 2)
            for (std::size_t k = 0; k + stride < count; k += 2 * stride)
                for (std::size_t i = 0; i < size; ++i) workers[k][i] += workers[k + stride][i];
        sums.upload(workers[0], nullptr);
        outer_mean({sums.span(), anchor.span(), tiles.span(), partial.span(), int(count)}, nullptr);
        const std::vector<double> parts = partial.download(nullptr);
        norm = std::accumulate(parts.begin(), parts.end(), 0.0);
        const auto device_norm = on_device(std::vector{norm});
        const auto scalars = on_device(std::vector<StepScalars>(1));
        outer_update<float>({master.span(), master.span(), anchor.span(), momentum.span(), sums.span(),
                             device_norm.span(), scalars.span(), int(count), learning_rate, mu}, nullptr);
        workers.assign(count, master.download(nullptr));
    }
};

double sine(std::size_t i, double phase) { return std::sin(0.7 * double(i * i) + 1.3 * double(i) + phase); }

Weights specified_start(std::size_t size, double phase) {
    Weights initial(size);
    for (std::size_t i = 0; i < size; ++i) initial[i] = float(0.1 * sine(i, phase));
    return initial;
}
// A round of two workers: two steps of plain SGD in fp64 on quadratic losses with noise. Returns the sum of the
// learning rates.
float train(std::vector<Weights>& workers, std::size_t size, int round) {
    for (int k = 0; k < 2; ++k)
        for (std::size_t i = 0; i < size; ++i) {
            double theta = workers[std::size_t(k)][i];
            for (int t = 2 * round; t < 2 * round + 2; ++t)
                theta -= (0.1 - 0.01 * t) * ((0.5 + 0.25 * sine(i, 3)) * (theta - 0.2 * sine(i, 7 + k)) +
                                             0.1 * sine(i, 20 + 5 * k + t));
            workers[std::size_t(k)][i] = float(theta);
        }
    return float(0.2 - 0.01 * (4 * round + 1));
}
OuterRun specified_run(std::size_t size, double phase, int rounds) {
    OuterRun run(specified_start(size, phase), 2);
    for (int round = 0; round < rounds; ++round) {
        train(run.workers, size, round);
        run.step(0.7f, 0.6f);
    }
    return run;
}

// The workers of a run that exchange quantized changes, in one process. Elements beyond `initial` are masked, up to a
// multiple of 32; `masked` is one more.
struct QuantizedRun {
    std::size_t size;
    OnebitRanks ranks;
    std::vector<device::Array<float>> anchors, momenta;
    std::vector<Weights> workers;

    QuantizedRun(Weights initial, std::size_t count, int bits, bool errors, float decay, std::size_t masked)
        : size(round_up(initial.size(), std::size_t(32))),
          ranks(std::int64_t(size), int(count), 32, active(initial.size(), masked), bits) {
        ranks.errors = errors;
        ranks.decay = decay;
        initial.resize(size);
        workers.assign(count, initial);
        for (std::size_t k = 0; k < count; ++k) {
            anchors.push_back(on_device(initial));
            momenta.push_back(on_device(Weights(size)));
        }
    }
    static std::vector<bool> active(std::size_t count, std::size_t masked) {
        std::vector<bool> kept(round_up(count, std::size_t(4096)));  // padding is masked
        for (std::size_t i = 0; i < count; ++i) kept[i] = i != masked;
        return kept;
    }
    void step(float learning_rate, float mu, float rate_sum) {
        std::vector<NormTile> all;
        append_tiles(all, 0, std::int64_t(size));
        const auto tiles = on_device(all);
        auto squares = poisoned<double>(all.size());
        std::vector<device::Array<float>> masters;
        std::vector<Weights> changes;
        for (std::size_t k = 0; k < workers.size(); ++k) {
            masters.push_back(on_device(workers[k]));
            auto change = poisoned<float>(size);
            outer_change({change.span(), masters[k].span(), anchors[k].span(), tiles.span(), squares.span(), rate_sum,
                          ranks.active.span()}, nullptr);
            changes.push_back(change.download(nullptr));
        }
        ranks.exchange(changes);
        for (std::size_t k = 0; k < workers.size(); ++k) {
            OnebitRanks::Rank& mine = ranks.rank[k];
            auto partial = poisoned<double>(ranks.plan.tiles.size());
            ranks.check_scales(int(k));
            OuterApply op{.layout = ranks.plan.layout, .tiles = ranks.tiles.span(),
                                 .replies = mine.replies.span(), .active = ranks.active.span(), .one = true,
                                 .anchor = anchors[k].span(), .momentum = momenta[k].span(), .partial = partial.span(),
                                 .finite = mine.finite.span(), .rate_sum = rate_sum,
                                 .learning_rate = learning_rate, .mu = mu};
            if (ranks.errors) {
                op.compensated = mine.values.span();
                op.error = mine.error.span();
                op.messages = mine.messages.span();
            }
            outer_apply(op, nullptr);
            ranks.commit(int(k));
            workers[k] = anchors[k].download(nullptr);
        }
        for (std::size_t k = 1; k < workers.size(); ++k) {
            CHECK(same_bits(anchors[k].download(nullptr), anchors[0].download(nullptr)));
            CHECK(same_bits(momenta[k].download(nullptr), momenta[0].download(nullptr)));
        }
    }
};

// The first eight elements, which are all that a test vector has.
Weights first_eight(const device::Array<float>& array) {
    Weights values = array.download(nullptr);
    values.resize(8);
    return values;
}

template <class T> void check_update(std::size_t size, float learning_rate, float mu, const Rounding& rounding) {
    const auto head = [&](auto values) { return values.resize(size), values; };
    const Weights sums = normal<float>(size, 1, 0.06);
    Weights anchor = normal<float>(size, 2, 0.02), u = mu == 0 ? Weights() : normal<float>(size, 3, 0.02);
    const auto device_sums = on_device(sums);
    const auto norm = on_device(std::vector{1.0});
    const auto scalars = on_device(std::vector{StepScalars{.adam_step = 12}});
    auto device_anchor = on_device(anchor), momentum = on_device(u), master = poisoned<float>((size + 15) / 16 * 16);
    auto parameter = poisoned<T>(size);
    std::span<T> out = parameter.span();
    if constexpr (sizeof(T) == 4) out = master.span().first(size);
    outer_update<T>({out, master.span().first(size), device_anchor.span(), momentum.span(), device_sums.span(),
                     norm.span(), scalars.span(), 3, learning_rate, mu, rounding}, nullptr);
    for (std::size_t i = 0; i < size; ++i) {
        const float p = sums[i] / 3, y = once(p - anchor[i]), next = mu == 0 ? y : once(once(mu * u[i]) + y);
        anchor[i] = once(p + once(once(once(learning_rate - 1) * y) + once(once(learning_rate * mu) * next)));
        if (mu != 0) u[i] = next;
    }
    CHECK(same_bits(momentum.download(nullptr), u));
    CHECK(same_bits(device_anchor.download(nullptr), anchor));
    CHECK(same_bits(head(master.download(nullptr)), anchor));
    if constexpr (sizeof(T) == 2) {
        auto rounded = poisoned<bf16>(master.size());
        round_parameters({rounded.span(), master.span(), scalars.span(), rounding}, nullptr);
        CHECK(same_bits(parameter.download(nullptr), head(rounded.download(nullptr))));
    }
}

}  // namespace

TEST_CASE("an outer update rounds once per operation, and parameters as after an inner update", "[kernels][outer]") {
    const std::size_t size = GENERATE(1, 8, 15, 16, 47, 4099, 20000 + 13);
    const auto [learning_rate, mu] = GENERATE(std::pair{0.7f, 0.6f}, std::pair{1.0f, 0.9f}, std::pair{0.8f, 0.0f});
    CAPTURE(size, learning_rate, mu);
    check_update<float>(size, learning_rate, mu, {});
    check_update<bf16>(size, learning_rate, mu, {});
    check_update<bf16>(size, learning_rate, mu, {.stochastic = true, .seed = 5, .first_element = 48});
}

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

TEST_CASE("outer steps of two workers at 4 bits and 1 bit match the specification", "[kernels][outer][onebit]") {
    using Row = std::vector<double>;
    struct Vectors {
        int bits;
        bool errors;
        float decay;
        std::size_t masked;
        std::vector<Row> anchors;  // after rounds 1, 2, 3, or only after 3
        Row momentum, first_error, second_error, served;
    };
    const std::vector<Vectors> all{
        {4, false, 1, 8,
         {{-.07380811, .06017758, -.06621941, .03207663, .03916827, -.04980015, .02411578, -.07360502},
          {-.05069506, .06498336, -.05644465, -.00189023, .00520141, -.05212145, .03496959, -.05653999},
          {-.02088675, .05991270, -.03578943, -.02798868, -.02089704, -.03987396, .03694586, -.02809249}},
         {.03712617, -.00361152, .02379461, -.03675467, -.03675467, .01223768, .00470540, .03388616},
         Row(8), Row(8), Row(8)},
        {4, true, 1, 8,
         {{-.02435219, .05953816, -.03750216, -.02343962, -.01634798, -.03983398, .03552769, -.03084885}},
         {.03500107, -.00362291, .02258840, -.03430808, -.03430808, .01195037, .00408521, .03207115},
         {.00560734, .00978015, .01633556, -.00174972, .00038621, .00841285, .00625599, .00689302},
         {-.01153125, .01066327, .01133481, -.00461728, -.00997717, .01748191, .01851900, -.01565660},
         {.00205205, -.02005269, -.00266242, .01023178, -.00112571, -.00532072, -.01637326, .00333011}},
        {1, true, 1, 8,
         {{-.07997793, .04978417, -.06686815, .03272538, .03981701, -.05044889, .01372236, -.07977484},
          {-.05587859, .06672199, -.04276881, .00862603, .01571766, -.06738672, .03066019, -.05567549},
          {-.03241266, .05248942, -.05270446, -.01483990, -.00774827, -.05315415, .04982921, -.03220956}},
         {.03101889, -.00903469, .00119605, -.03101889, -.03101889, .00903469, .02078815, .03101889},
         {-.02698138, -.01817517, .12910622, -.08724852, -.08497501, -.00612746, .06279076, .15722866},
         {.02540630, .10384842, .02902577, -.06774524, .08129568, -.04223586, -.15015362, .09040001},
         {.04764964, .00079401, .10192416, .04083947, -.04764964, .08769510, -.10066258, -.11202047}},
        {1, true, 0.9f, 3,
         {{-.03390741, .05051818, -.05503145, .04863987, -.00625351, -.05118291, .04869021, -.03370432}},
         {.03059052, -.01012206, .00002460, .00000000, -.03059052, .01012206, .02044385, .03059052},
         {.02713164, -.00177136, .13049776, .00000000, -.12042344, -.02068128, .07604638, -.09342874},
         {.04246861, .09160443, .03351794, .00000000, .04997074, -.03373272, -.12616309, .09350240},
         {.01742071, .00826180, .11840922, .00000000, -.01742071, .07060376, -.11953972, .01742071}}};
    for (const Vectors& want : all) {
        CAPTURE(want.bits, want.errors, want.decay);
        QuantizedRun run(specified_start(8, 5), 2, want.bits, want.errors, want.decay, want.masked);
        for (int round = 0; round < 3; ++round) {
            const float rate_sum = train(run.workers, 8, round);
            run.step(0.7f, 0.6f, rate_sum);
            if (const int at = round - 3 + int(want.anchors.size()); at >= 0)
                CHECK(largest_error(first_eight(run.anchors[0]), want.anchors[std::size_t(at)]) <= 3e-8);
        }
        CHECK(largest_error(first_eight(run.momenta[0]), want.momentum) <= 3e-8);
        CHECK(largest_error(first_eight(run.ranks.rank[0].error), want.first_error) <= 2e-7);
        CHECK(largest_error(first_eight(run.ranks.rank[1].error), want.second_error) <= 2e-7);
        CHECK(largest_error(first_eight(run.ranks.rank[0].server_error), want.served) <= 2e-7);
    }
}

TEST_CASE("a weight that is not finite returns all workers to the anchor", "[kernels][outer]") {
    const float bad = GENERATE(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                               std::numeric_limits<float>::max());  // the sum of two overflows
    const Weights anchor = normal<float>(3000, 1), momentum = normal<float>(3000, 2);
    OuterRun run(anchor, 2);
    run.momentum = on_device(momentum);
    for (Weights& worker : run.workers) (worker = normal<float>(3000, 3))[2999] = bad;
    run.step(0.7f, 0.6f);
    CHECK(!std::isfinite(run.norm));
    CHECK(same_bits(run.anchor.download(nullptr), anchor));
    CHECK(same_bits(run.momentum.download(nullptr), momentum));
    CHECK(same_bits(run.workers[1], anchor));
}
