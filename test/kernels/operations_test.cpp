// operations_test.cpp - tests every registered operation: one test case for each of its types and edge shapes
#include "test/kernels/operations_test.h"

#include <omp.h>

#include <cmath>
#include <cstring>

#include "kernels/device/stream.h"
#include "test/operations/confirmed.h"
#include "test/operations/operation.h"
#include "test/support/scratch_folder.h"

namespace {

using namespace operations;
using Bytes = std::vector<std::byte>;

// The inputs of the forward pass of `op`: tensors with the same name have the same values.
Values<double> forward_values(const Operation& op, const Operation& forward) {
    auto values = forward.values<double>();
    for (std::size_t i = 0; i < forward.tensors.size(); ++i)
        if (const int same = op.find(forward.tensors[i].name); same >= 0 && forward.tensors[i].is_read())
            for (std::size_t k = 0; k < values.tensor[i].size(); ++k) values.tensor[i][k] = op.tensors[same].initial(k);
    return values;
}

// Sets the inputs of the backward pass that are outputs of the forward pass to the exact results of the forward
// formula.
void take_from_forward(Operation& op, const Operation& forward) {
    auto values = forward_values(op, forward);
    forward.evaluate(values);
    for (std::size_t i = 0; i < forward.tensors.size(); ++i)
        if (const int here = op.find(forward.tensors[i].name); here >= 0 && forward.tensors[i].role == Role::output)
            op.tensors[here].set_initial(values.tensor[i]);
}

// Runs `op` on `threads` threads; returns the device memory of all tensors, including guards.
std::vector<Bytes> run(Operation& op, int threads) {
    for (Storage& tensor : op.tensors) tensor.reset();
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    op.run(nullptr);
    device::sync(nullptr);
    op.collect();
    omp_set_num_threads(before);
    std::vector<Bytes> after;
    for (const Storage& tensor : op.tensors) after.push_back(tensor.bytes());
    return after;
}

void check_memory(const Storage& tensor, const Bytes& after) {
    const Bytes before = tensor.bytes_before();
    REQUIRE(after.size() == before.size());
    INFO("memory before and after " << tensor.name);
    CHECK(std::memcmp(after.data(), before.data(), Storage::kGuard) == 0);
    CHECK(std::memcmp(&*after.end() - Storage::kGuard, &*before.end() - Storage::kGuard, Storage::kGuard) == 0);
    INFO("which is an input");
    if (tensor.role == Role::input) CHECK((after == before));
}

void check_values(const Storage& tensor, const Bytes& after, const std::vector<Rounded>& want) {
    std::size_t wrong = 0, first = 0;
    double worst = 0;
    for (std::size_t i = want.size(); i-- > 0;) {
        const double got = tensor.value(after, i), slack = tensor.exact ? 0 : kDeviations * std::sqrt(want[i].variance);
        bool good = std::fabs(got - want[i].value) <=
                    slack + 0.5 * tensor.element->ulp(std::fabs(want[i].value) + slack);
        if (want[i].value == 0 && want[i].variance == 0) good = got == 0;
        if (!good) ++wrong, first = i, worst = std::max(worst, std::fabs(got - want[i].value));
    }
    INFO(tensor.name << ": " << wrong << " of " << want.size() << " elements are wrong, by " << worst
                     << " at most; the first is " << first << ": " << (wrong ? tensor.value(after, first) : 0)
                     << ", want " << (wrong ? want[first].value : 0) << " to "
                     << (wrong ? kDeviations * std::sqrt(want[first].variance) : 0) << " and rounding");
    CHECK(wrong == 0);
}

// The loss of the forward formula, sum of weight * out, and the sum of its terms' magnitudes.
struct Loss {
    double value = 0, magnitude = 0;
};
Loss loss_of(const Operation& op, const Operation& forward, Values<double> values) {
    values.rounding = false;
    forward.evaluate(values);
    Loss loss;
    for (const auto& [tensor, name] : op.weights) {
        const auto& out = values.tensor[forward.find(name)];
        for (std::size_t i = 0; i < out.size(); ++i) {
            const double weight = op.tensors[tensor].initial(i), term = weight == 0 ? 0 : weight * out[i];
            loss.value += term;
            loss.magnitude += std::fabs(term);
        }
    }
    return loss;
}

// Compares the result of the backward pass with the directional derivative of the forward formula in a random
// direction. The formula of the backward pass is used only for the rounding tolerance.
void check_gradients(const Operation& op, const Operation& forward, const std::vector<Bytes>& after) {
    const auto at = forward_values(op, forward);
    auto errors = op.values<Rounded>();
    for (std::size_t i = 0; i < op.tensors.size(); ++i)  // outputs of the forward pass were also rounded
        if (const int from = forward.find(op.tensors[i].name); from >= 0 && forward.tensors[from].role == Role::output)
            for (Rounded& x : errors.tensor[i]) x.variance = square(0.5 * op.tensors[i].element->ulp(x.value));
    op.evaluate(errors);

    for (const auto& [tensor, of, accumulates] : op.gradients) {
        const Storage& gradient = op.tensors[tensor];
        const int variable = forward.find(of);
        const std::size_t size = at.tensor[variable].size();
        std::mt19937 engine(12345);  // differs from the seeds of all tensors
        std::normal_distribution<double> normal;
        std::vector<double> direction(size);
        // NaN: an element that the operation does not read
        for (std::size_t i = 0; i < size; ++i) direction[i] = std::isnan(at.tensor[variable][i]) ? 0 : normal(engine);

        // Central differences with `step` and half of it: they differ by three times the error of the second one.
        double slope[2], predicted = 0, squares = 0, variance = 0, roundoff = 0;
        for (int halvings = 0; halvings < 2; ++halvings) {
            const double step = 1e-5 / (1 << halvings);
            auto above = at, below = at;
            predicted = squares = variance = 0;
            for (std::size_t i = 0; i < size; ++i) {
                if (direction[i] == 0) continue;
                double& high = above.tensor[variable][i] += step * direction[i];
                double& low = below.tensor[variable][i] -= step * direction[i];
                const double moved = (high - low) / (2 * step), held = gradient.value(after[tensor], i);
                const double got = held - (accumulates ? gradient.initial(i) : 0);
                predicted += moved * got;
                squares += square(got);
                variance += square(moved) *
                            (errors.tensor[tensor][i].variance + square(0.5 * gradient.element->ulp(held)));
            }
            const Loss high = loss_of(op, forward, std::move(above)), low = loss_of(op, forward, std::move(below));
            slope[halvings] = (high.value - low.value) / (2 * step);
            roundoff = 8 * 0x1p-53 * high.magnitude / step;
        }
        const double allowed = std::fabs(slope[0] - slope[1]) + roundoff + kDeviations * std::sqrt(variance);
        INFO("the slope along a direction of " << of << " is " << slope[1] << ", the gradient says " << predicted
                                               << ", " << allowed << " is allowed");
        CHECK(std::fabs(slope[1] - predicted) <= allowed);
        // expected magnitude of the derivative in a random direction; 0 with a vocabulary of one
        const double length = std::sqrt(squares);
        CHECK((allowed < 0.1 * length || length == 0));  // otherwise the check would be weak
    }
}

void check(const std::string& name, const Registration& registration, DType dtype, const Shape& shape) {
    const auto op = registration.make(dtype, shape);
    if (!op->runs_here()) test::skip("the operation does not run on this machine");
    const auto forward = registration.forward ? registration.forward(dtype, shape) : nullptr;
    if (forward) take_from_forward(*op, *forward);
    auto want = op->values<Rounded>();
    op->evaluate(want);

    const auto after = run(*op, registration.same_on_any_threads ? 1 : omp_get_max_threads());
    // of 8 threads some are idle
    const auto again = run(*op, registration.same_on_any_threads ? 8 : omp_get_max_threads());
    std::vector<OutputSum> outputs;
    for (std::size_t i = 0; i < op->tensors.size(); ++i) {
        const Storage& tensor = op->tensors[i];
        check_memory(tensor, after[i]);
        if (!tensor.is_written()) continue;
        check_values(tensor, after[i], want.tensor[i]);
        outputs.push_back(sum_of(tensor, after[i], want.tensor[i]));
        INFO(tensor.name << " a second time");
        CHECK((after[i] == again[i]));
    }
    CHECK(record_and_compare(*op, name, outputs) == "");
    if (forward) check_gradients(*op, *forward, after);
}

}  // namespace

// Tensors whose size a kernel takes as it is, or from tiles in device memory; and one that only a formula reads.
bool has_any_size(const std::string& operation, const std::string& tensor) {
    if (tensor == "tokens") return operation == "embedding backward";
    if (tensor == "values") return operation.starts_with("squared norm") || operation == "sketch";
    return operation == "muon momentum" || operation == "muon normalize" || operation == "muon update";
}

TEST_CASE("every operation refuses each of its tensors if it is too short", "[operations][one_order]") {
    for (const Registration& registration : all())
        for (const DType dtype : registration.dtypes)
            for (const Shape& shape : registration.edges) {
                const auto op = registration.make(dtype, shape);
                if (!op || !op->runs_here()) continue;
                for (Storage& tensor : op->tensors) tensor.reset();
                for (Storage& tensor : op->tensors) {
                    if (tensor.size < 2 || has_any_size(registration.name, tensor.name)) continue;
                    CAPTURE(registration.name, registration.describe(shape), tensor.name);
                    tensor.cut = true;
                    CHECK_THAT(test::error_of([&] { op->run(nullptr); }), test::Contains("; expected "));
                    tensor.cut = false;
                }
                if (std::ranges::all_of(op->tensors, [](const Storage& tensor) { return tensor.size > 1; })) break;
            }
}

TEST_CASE("a recorded output may differ by rounding, not by a value", "[operations][one_order]") {
    const auto named = [](const Registration& registration) { return registration.name == "gelu forward"; };
    const auto op = std::find_if(all().begin(), all().end(), named)->make(DType::fp32, {1000});
    auto want = op->values<Rounded>();
    op->evaluate(want);
    const int out = op->find("out");
    Bytes after = run(*op, 1)[out];
    float* const values = reinterpret_cast<float*>(&after[Storage::kGuard]);
    const auto sums = [&] { return std::vector{sum_of(op->tensors[out], after, want.tensor[out])}; };

    const test::ScratchFolder folder;
    Recording recording(test::write_bytes(folder / "one.tsv", line_of("gelu forward, it", "0", sums()) + '\n'));
    CHECK(recording.differences("another case", "1", sums()) == "");
    CHECK(recording.differences("gelu forward, it", "0", sums()) == "");
    for (int i = 0; i < 1000; ++i) values[i] = std::nextafter(values[i], i % 3 ? 1e3f : -1e3f);
    CHECK(recording.differences("gelu forward, it", "0", sums()) == "");
    std::swap(values[20], values[21]);
    CHECK_THAT(recording.differences("gelu forward, it", "1", sums()),
               test::Contains("out has the sum") && test::Contains("the inputs differ, too"));
    CHECK_THAT(recording.summary(), test::EndsWith("of 1 cases 1 are bit-identical, 1 within the tolerance, 1 differ"));
}

void register_operation_tests() {
    for (const Registration& registration : all())
        for (const DType dtype : registration.dtypes)
            for (const Shape& shape : registration.edges)
                if (registration.make.applies(dtype, shape)) {
                    const std::string name = registration.name + ", " + name_of(dtype) + ": " +
                                             registration.describe(shape);
                    const std::string tags = "[operations]" + registration.tag;
                    test::add_case(name, tags, {__FILE__, __LINE__},
                                   [=, &registration] { check(name, registration, dtype, shape); });
                }
}
