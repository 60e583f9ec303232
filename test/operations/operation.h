// operation.h - one registration per operation of kernels/: its tensors, how to run it, its formula, its shapes, and
// the bytes and flops of a run
//
// A file of this folder describes an operation once, as a class template over T that derives from Operation, lists its
//   tensors and has a member template <class V> void formula(V& values) const
// Two programs use every registration:
//   test/kernels/operations_test.cpp  compares the result with the formula, checks the memory around the tensors and
//                                     bit-identical repetition, and compares the gradient with the derivative of the
//                                     forward formula
//   dev/bench/bench.cpp               measures speed, compared with the same formula as a plain loop and with the peak
//                                     of the machine
//
// The formula is a template over the values that it is evaluated on: Rounded numbers give reference and tolerance
// (rounded.h), doubles the derivative, the tensors themselves the plain loop.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/memory.h"
#include "test/operations/rounded.h"

namespace operations {

using kernels::DType;
using Shape = std::vector<int>;

enum class Role {
    input,    // read only: must be unchanged after a run
    output,   // NaN before a run
    in_out,   // read and written
    scratch,  // NaN before a run, unspecified after it
};

// The initial values of a tensor: `first`, then normally distributed values.
struct Fill {
    double deviation = 1, mean = 0;
    std::vector<double> first = {};
};

// An element type at run time.
struct Element {
    std::size_t size;
    double (*widen)(const std::byte*);
    void (*narrow)(std::byte*, double);
    double (*ulp)(double);  // 0 for integer types
};
template <class T> const Element& element_of() {
    static constexpr Element element{
        sizeof(T), [](const std::byte* at) { return widen(*reinterpret_cast<const T*>(at)); },
        [](std::byte* at, double x) { *reinterpret_cast<T*>(at) = narrow<T>(x); },
        [](double x) { return std::is_same_v<T, int> ? 0.0 : ulp<T>(x); }};
    return element;
}

// One tensor of an operation, in device memory between two guard areas of 0xff bytes, NaN in every float type.
class Storage {
public:
    static constexpr std::size_t kGuard = kernels::kTensorAlignment;  // bytes

    Storage(std::string name, Role role, std::size_t size, const Element& element, const Fill& fill, unsigned seed);

    std::string name;
    Role role;
    std::size_t size;
    const Element* element;
    bool exact = false;  // the only rounding allowed is that to the element type
    bool cut = false;    // the operation gets only one element

    bool is_read() const { return role == Role::input || role == Role::in_out; }
    bool is_written() const { return role == Role::output || role == Role::in_out; }
    std::byte* data() const { return memory_.data() + kGuard; }
    bool repeats() const { return size > period_; }
    double initial(std::size_t i) const { return element->widen(&initial_[i % period_ * element->size]); }
    void set_initial(const std::vector<double>& values);
    void reset();                            // initializes device memory for a run
    std::vector<std::byte> bytes() const;    // copy of device memory, including the guards
    double value(const std::vector<std::byte>& bytes, std::size_t i) const {
        return element->widen(&bytes[kGuard + i * element->size]);
    }
    std::vector<std::byte> bytes_before() const;

private:
    // Large tensors repeat their first million elements, because generating gigabytes would take longer than timing.
    std::size_t period_;
    std::vector<std::byte> initial_;
    device::Memory memory_;
};

// A handle of a tensor: its number and element type; converts to the span of device memory that a contract takes.
template <class E>
struct Tensor {
    const std::vector<Storage>* storages;
    int number;
    const Storage& storage() const { return (*storages)[number]; }
    std::span<E> span() const { return {reinterpret_cast<E*>(storage().data()), storage().cut ? 1 : storage().size}; }
    operator std::span<E>() const { return span(); }
    operator std::span<const E>() const { return span(); }
};

// A tensor that an operation has only with documents.
inline std::span<const int> if_any(const std::optional<Tensor<int>>& tensor) {
    return tensor ? tensor->span() : std::span<int>();
}

// One way to evaluate a formula: all tensors as vectors of Number.
template <class Number_>
struct Values {
    using Number = Number_;
    std::vector<std::vector<Number>> tensor;
    bool rounding = true;  // false: as if every tensor held real numbers, for derivatives

    template <class E> std::span<Number> operator[](const Tensor<E>& t) { return tensor[t.number]; }
    // stored: a value that the operation rounds to T before it continues. perhaps_stored: a value that it may or may
    // not round, which adds an error of at most one rounding.
    template <class T> Number stored(Number x) const { return rounding ? Number(widen(narrow<T>(double(x)))) : x; }
    template <class T> Number perhaps_stored(Number x) const { return with_error(x, 0.5 * ulp<T>(double(x))); }
    // `error` is the maximum error and counts as half the tolerance: a rounding tie must not fail because of an
    // additional float rounding error.
    Number with_error(Number x, [[maybe_unused]] double error) const {
        if constexpr (std::is_same_v<Number, Rounded>) x.variance += square(error / 2);
        return x;
    }
    using Sum = Number;  // a sum that is accumulated in double
    static void add_in_double(Sum& sum, const Number& x) {
        if constexpr (std::is_same_v<Number, Rounded>) sum = {sum.value + x.value, sum.variance + x.variance};
        else sum += x;
    }
    template <class Work> void each(std::size_t count, Work work) {
        for (std::size_t i = 0; i < count; ++i) work(i);
    }
};

// The other way: on the tensors themselves, in float arithmetic, in parallel over threads.
struct PlainLoop {
    using Number = float;
    template <class E> struct Stored {  // an element of fewer bits than a float
        E* at;
        operator float() const { return float(widen(*at)); }
        void operator=(float x) const { *at = narrow<E>(x); }
        void operator+=(float x) const { *this = *this + x; }
    };
    template <class E> struct View {
        E* data;
        Stored<E> operator[](std::size_t i) const { return {data + i}; }
    };
    template <class E> auto operator[](const Tensor<E>& t) const {
        if constexpr (sizeof(E) < sizeof(float)) return View<E>{t.span().data()};
        else return t.span().data();
    }
    template <class T> float stored(float x) const { return float(widen(narrow<T>(x))); }
    template <class T> float perhaps_stored(float x) const { return x; }
    float with_error(float x, double) const { return x; }
    using Sum = double;
    static void add_in_double(Sum& sum, float x) { sum += x; }
    template <class Work> void each(std::size_t count, Work work) const {
        #pragma omp parallel for
        for (std::size_t i = 0; i < count; ++i) work(i);
    }
};

// out[c] (+)= sum over rows of term(row, c), processed in whole cache lines.
template <class V, class Out, class Term>
void sum_rows(V& v, Out out, int rows, int channels, bool accumulate, Term term) {
    using N = typename V::Number;
    constexpr int kWidth = 64;
    v.each((channels + kWidth - 1) / kWidth, [=](std::size_t slice) {
        const int first = int(slice) * kWidth, width = std::min(kWidth, channels - first);
        N sum[kWidth] = {};
        for (int c = 0; c < width && accumulate; ++c) sum[c] = out[first + c];
        for (int row = 0; row < rows; ++row)
            for (int c = 0; c < width; ++c) sum[c] += term(row, first + c);
        for (int c = 0; c < width; ++c) out[first + c] = sum[c];
    });
}

// LayerNorm of a row.
template <class N, class In, class Out, class Statistic, class Parameter>
void normalise(int channels, In x, Out normed, Statistic mean, Statistic rstd, Parameter weight, Parameter bias,
               std::size_t row) {
    const std::size_t first = row * channels;
    N sum = 0, squares = 0;
    for (int c = 0; c < channels; ++c) sum += x[first + c];
    const N average = sum / N(channels);
    for (int c = 0; c < channels; ++c) squares += (N(x[first + c]) - average) * (N(x[first + c]) - average);
    const N scale = N(1) / sqrt(squares / N(channels) + N(1e-5));
    for (int c = 0; c < channels; ++c)
        normed[first + c] = (N(x[first + c]) - average) * scale * N(weight[c]) + N(bias[c]);
    mean[row] = average;
    rstd[row] = scale;
}

// GELU and its derivative, with (1 + tanh u) / 2 as 1 / (1 + exp(-2u)); float's exponents end at 88.
inline constexpr double kTwiceRootTwoOverPi = 1.5957691216057308, kCubic = 0.044715;

template <class N> N gelu_gate(N x) {
    const N argument = -N(kTwiceRootTwoOverPi) * (x + N(kCubic) * x * x * x);
    return N(1) / (N(1) + exp(argument < N(88) ? argument : N(88)));
}
template <class N> N gelu(N x) { return x * gelu_gate(x); }
template <class N> N gelu_slope(N x) {
    const N gate = gelu_gate(x);
    const N rest = N(1 - kUnit / 2) < gate ? N(0) : N(1) - gate;  // in float 1 + exp is exactly 1 from here on
    return gate + x * gate * rest * (N(kTwiceRootTwoOverPi) * (N(1) + N(3 * kCubic) * x * x));
}

// An operation at one shape in one type.
class Operation {
public:
    explicit Operation(const Shape& shape) : shape(shape) {}
    virtual ~Operation() = default;
    // Calls the kernel's launcher; a forward pass that exists only for its formula has none.
    virtual void run(device::StreamRef) {}
    // Host work after a tested run, if the contract does not specify how a result is distributed over elements.
    virtual void collect() {}
    virtual void evaluate(Values<double>& values) const = 0;
    virtual void evaluate(Values<Rounded>& values) const = 0;
    virtual void evaluate(PlainLoop& values) const = 0;
    static bool applies(const Shape&) { return true; }  // whether T supports this shape; fast
    // Whether the machine or the library supports it; called only before a run, because it may be slow.
    virtual bool runs_here() { return true; }

    // The values before a run; outputs are 0.
    template <class Number> Values<Number> values() const {
        Values<Number> all;
        for (const Storage& storage : tensors) {
            all.tensor.emplace_back(storage.size);
            if (storage.is_read())
                for (std::size_t i = 0; i < storage.size; ++i) all.tensor.back()[i] = storage.initial(i);
        }
        return all;
    }
    int find(const std::string& name) const {  // number of a tensor, -1 if there is none
        const auto found = std::ranges::find(tensors, name, &Storage::name);
        return found == tensors.end() ? -1 : int(found - tensors.begin());
    }

    std::vector<Storage> tensors;
    double bytes = 0, flops = 0;  // minimum that one run must move and compute; 0: not reported

    // Set for a backward pass: for the loss, the sum of weight * out over the tensors of `weights`, `tensor` is set to
    // (or incremented by) the derivative with respect to the forward pass's tensor `of`.
    struct Weight { int tensor; std::string out; };
    struct Gradient { int tensor; std::string of; bool accumulates; };
    std::vector<Weight> weights;
    std::vector<Gradient> gradients;

protected:
    const Shape shape;  // members of derived classes are initialized from it

    // Changes the initial values of a tensor, element by element; does nothing for large tensors, which repeat.
    template <class Change> void adjust(int number, Change change) {
        Storage& storage = tensors[number];
        if (storage.repeats()) return;
        std::vector<double> values(storage.size);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = change(i, storage.initial(i));
        storage.set_initial(values);
    }
    // The order in which tensors are added seeds their values.
    template <class E> Tensor<E> tensor(Role role, const std::string& name, std::size_t size, const Fill& fill) {
        tensors.emplace_back(name, role, size, element_of<E>(), fill, unsigned(1000003 * (tensors.size() + 1) + size));
        return {&tensors, int(tensors.size()) - 1};
    }
    template <class E> Tensor<E> input(const std::string& name, std::size_t size, const Fill& fill = {}) {
        return tensor<E>(Role::input, name, size, fill);
    }
    template <class E> Tensor<E> in_out(const std::string& name, std::size_t size, const Fill& fill = {}) {
        return tensor<E>(Role::in_out, name, size, fill);
    }
    template <class E> Tensor<E> output(const std::string& name, std::size_t size) {
        return tensor<E>(Role::output, name, size, {});
    }
    template <class E> Tensor<E> scratch(const std::string& name, std::size_t size) {
        return tensor<E>(Role::scratch, name, size, {});
    }
    template <class E> Tensor<E> output_or_in_out(bool added_to, const std::string& name, std::size_t size) {
        return added_to ? in_out<E>(name, size) : output<E>(name, size);
    }
    // For collect(): adds element i of `partial` to element sum_of(i) of `sums`, because the contract does not specify
    // which elements a partial sum covers.
    template <class SumOf> void add_up(const Tensor<double>& partial, const Tensor<double>& sums, SumOf sum_of) {
        const auto parts = partial.storage().bytes();
        std::vector<double> totals(sums.storage().size);
        for (std::size_t i = 0; i < partial.storage().size; ++i)
            totals[sum_of(i)] += partial.storage().value(parts, i);
        device::copy_to_device(sums.span().data(), totals.data(), totals.size() * sizeof(double), nullptr);
        device::sync(nullptr);
    }
    // The parameters of master weights: in fp32 the master weights themselves.
    template <class E> Tensor<E> parameter_of(const Tensor<float>& master, Role role) {
        if constexpr (sizeof(E) == 2) return tensor<E>(role, "parameter", master.storage().size, {});
        else return master;
    }
};

// Instantiates the formula of Op for each kind of values.
template <class Op>
struct Evaluated final : Op {
    using Op::Op;
    void evaluate(Values<double>& values) const override { Op::formula(values); }
    void evaluate(Values<Rounded>& values) const override { Op::formula(values); }
    void evaluate(PlainLoop& values) const override { Op::formula(values); }
};

// returns nullptr if the type does not support the shape
using Maker = std::function<std::unique_ptr<Operation>(DType, const Shape&)>;

// Makes an operation; applies() tells quickly whether it can.
struct Factory {
    std::unique_ptr<Operation> (*make)(DType, const Shape&);
    bool (*applies)(DType, const Shape&);
    std::unique_ptr<Operation> operator()(DType dtype, const Shape& shape) const {
        return applies(dtype, shape) ? make(dtype, shape) : nullptr;
    }
};
template <template <class> class Op>
inline constexpr Factory make{[](DType dtype, const Shape& shape) -> std::unique_ptr<Operation> {
                                 if (dtype == DType::bf16) return std::make_unique<Evaluated<Op<bf16>>>(shape);
                                 return std::make_unique<Evaluated<Op<float>>>(shape);
                             },
                             [](DType dtype, const Shape& shape) {
                                 return dtype == DType::bf16 ? Op<bf16>::applies(shape) : Op<float>::applies(shape);
                             }};

// Of an operation whose element types are always the same.
template <class Op>
inline constexpr Factory make_one{[](DType, const Shape& shape) -> std::unique_ptr<Operation> {
                                      return std::make_unique<Evaluated<Op>>(shape);
                                  },
                                  [](DType, const Shape& shape) { return Op::applies(shape); }};

struct Registration {
    std::string name, tag;
    std::vector<std::string> dimensions;  // names of the numbers of a shape
    std::vector<Shape> edges;             // tested
    std::vector<Shape> small, large;      // timed on a CPU and on a GPU
    Factory make;
    Maker forward = {};                   // for a backward pass: its forward pass, with the same shapes
    std::vector<DType> dtypes = {DType::fp32, DType::bf16};
    bool same_on_any_threads = true;      // bit-identical for any number of threads

    std::string describe(const Shape& shape) const;
};

// The constructor adds the registration to the list, before main(); the list does not change afterwards.
struct Registered {
    explicit Registered(Registration registration);
};
const std::vector<Registration>& all();

// Each shape with each of these numbers appended.
std::vector<Shape> with_each(const std::vector<Shape>& shapes, const std::vector<int>& last);
inline std::vector<Shape> with_each(const std::vector<Shape>& shapes, const std::vector<int>& next_to_last,
                                    const std::vector<int>& last) {
    return with_each(with_each(shapes, next_to_last), last);
}
std::vector<Shape> joined(std::vector<Shape> shapes, const std::vector<Shape>& more);

inline const char* name_of(DType dtype) { return dtype == DType::bf16 ? "bf16" : "fp32"; }

}  // namespace operations
