// operation.h - one registration per operation of kernels/: its tensors, how to run it, its formula, its shapes, and
// what it must move and compute
//
// A file of this folder describes an operation once, as a class template over T that derives from Operation, lists its
//   tensors and has a member template <class V> void formula(V& values) const
// From that follow, without another line:
//   test/kernels/operations_test.cpp  result against the formula, memory around the tensors, repeated bits, gradient
//                                     against the slope of the forward formula
//   dev/bench.cpp             speed, against the same formula as a plain loop and against what the machine can do
//
// The formula is a function template over what it is evaluated on: Rounded numbers give reference and tolerance
// (rounded.h), doubles the slope, the tensors themselves the plain loop.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
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
    input,    // read only: must be as it was afterwards
    output,   // NaN before
    in_out,   // read and written
    scratch,  // NaN before, anything after
};

// What a tensor holds at first: these values, then normal ones.
struct Fill {
    double deviation = 1, mean = 0;
    std::vector<double> first = {};
};

// An element type, for code that handles tensors of any.
struct Element {
    std::size_t size;
    double (*widen)(const std::byte*);
    void (*narrow)(std::byte*, double);
    double (*ulp)(double);  // 0 for whole numbers
};
template <class T> const Element& element_of() {
    static constexpr Element element{
        sizeof(T), [](const std::byte* at) { return widen(*reinterpret_cast<const T*>(at)); },
        [](std::byte* at, double x) { *reinterpret_cast<T*>(at) = narrow<T>(x); },
        [](double x) { return std::is_same_v<T, int> ? 0.0 : ulp<T>(x); }};
    return element;
}

// One tensor of an operation, in device memory between two guards, all 0xff: NaN in every float type.
class Storage {
public:
    static constexpr std::size_t kGuard = kernels::kTensorAlignment;  // bytes

    Storage(std::string name, Role role, std::size_t size, const Element& element, const Fill& fill, unsigned seed);

    std::string name;
    Role role;
    std::size_t size;
    const Element* element;
    bool exact = false;  // no rounding but the one to the element type is allowed

    bool is_read() const { return role == Role::input || role == Role::in_out; }
    bool is_written() const { return role == Role::output || role == Role::in_out; }
    std::byte* data() const { return memory_.data() + kGuard; }
    bool repeats() const { return size > period_; }
    double initial(std::size_t i) const { return element->widen(&initial_[i % period_ * element->size]); }
    void set_initial(const std::vector<double>& values);
    void reset();                            // puts device memory into its state before a run
    std::vector<std::byte> bytes() const;    // device memory with its guards
    double value(const std::vector<std::byte>& bytes, std::size_t i) const {
        return element->widen(&bytes[kGuard + i * element->size]);
    }
    std::vector<std::byte> bytes_before() const;

private:
    // large tensors repeat their first million elements: filling gigabytes must not take longer than timing them
    std::size_t period_;
    std::vector<std::byte> initial_;
    device::Memory memory_;
};

// A tensor by its number and element type; in a contract it is the span of device memory.
template <class E>
struct Tensor {
    const std::vector<Storage>* storages;
    int number;
    const Storage& storage() const { return (*storages)[number]; }
    std::span<E> span() const { return {reinterpret_cast<E*>(storage().data()), storage().size}; }
    operator std::span<E>() const { return span(); }
    operator std::span<const E>() const { return span(); }
};

// What a formula is evaluated on, one way: all tensors as vectors of Number.
template <class Number_>
struct Values {
    using Number = Number_;
    std::vector<std::vector<Number>> tensor;
    bool rounding = true;  // false: as if every tensor held real numbers, for slopes

    template <class E> std::span<Number> operator[](const Tensor<E>& t) { return tensor[t.number]; }
    // A value that the operation keeps as a T and goes on with; or may, or may not, so that it is off by a rounding at
    // most.
    template <class T> Number stored(Number x) const { return rounding ? Number(widen(narrow<T>(double(x)))) : x; }
    template <class T> Number perhaps_stored(Number x) const { return with_error(x, 0.5 * ulp<T>(double(x))); }
    // `error` is the largest, here half of what is allowed: a tie of roundings must not fail for a float's worth of
    // error beside it.
    Number with_error(Number x, [[maybe_unused]] double error) const {
        if constexpr (std::is_same_v<Number, Rounded>) x.variance += square(error / 2);
        return x;
    }
    using Sum = Number;  // of numbers added in double
    static void add_in_double(Sum& sum, const Number& x) {
        if constexpr (std::is_same_v<Number, Rounded>) sum = {sum.value + x.value, sum.variance + x.variance};
        else sum += x;
    }
    template <class Work> void each(std::size_t count, Work work) {
        for (std::size_t i = 0; i < count; ++i) work(i);
    }
};

// The other way: the tensors themselves, in float arithmetic, shared out over the threads.
struct PlainLoop {
    using Number = float;
    struct Bf16Element {
        bf16* at;
        operator float() const { return kernels::bf16_to_float(*at); }
        void operator=(float x) const { *at = kernels::bf16_from_float(x); }
        void operator+=(float x) const { *this = *this + x; }
    };
    struct Bf16View {
        bf16* data;
        Bf16Element operator[](std::size_t i) const { return {data + i}; }
    };
    template <class E> auto operator[](const Tensor<E>& t) const {
        if constexpr (std::is_same_v<E, bf16>) return Bf16View{t.span().data()};
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

// out[c] (+)= sum over rows of term(row, c), whole cache lines at a time.
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

// An operation at one shape in one type.
class Operation {
public:
    virtual ~Operation() = default;
    // through its contract; a forward pass that is fused into others has only a formula
    virtual void run(device::StreamRef) {}
    // after a run that is tested: host work, where the contract leaves open how a result is spread over elements
    virtual void collect() {}
    virtual void evaluate(Values<double>& values) const = 0;
    virtual void evaluate(Values<Rounded>& values) const = 0;
    virtual void evaluate(PlainLoop& values) const = 0;
    static bool applies(const Shape&) { return true; }  // whether T can have this shape: known at once
    // Whether the machine, or a library, can do it; asked where it would run, as finding out may take long.
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
        for (std::size_t i = 0; i < tensors.size(); ++i)
            if (tensors[i].name == name) return int(i);
        return -1;
    }

    std::vector<Storage> tensors;
    double bytes = 0, flops = 0;  // that one run must move and compute; 0: does not count

    // What makes it the backward pass of another operation: for the loss sum of weight * out over the tensors of
    // weights, `tensor` holds or is added the slope with respect to the forward pass's tensor `of`.
    struct Weight { int tensor; std::string out; };
    struct Gradient { int tensor; std::string of; bool accumulates; };
    std::vector<Weight> weights;
    std::vector<Gradient> gradients;

protected:
    // Changes what a tensor holds at first, element by element; one so large that it repeats itself is left as it is.
    template <class Change> void adjust(int number, Change change) {
        Storage& storage = tensors[number];
        if (storage.repeats()) return;
        std::vector<double> values(storage.size);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = change(i, storage.initial(i));
        storage.set_initial(values);
    }
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
};

// The formula of Op for each thing that it is evaluated on.
template <class Op>
struct Evaluated final : Op {
    using Op::Op;
    void evaluate(Values<double>& values) const override { Op::formula(values); }
    void evaluate(Values<Rounded>& values) const override { Op::formula(values); }
    void evaluate(PlainLoop& values) const override { Op::formula(values); }
};

// nullptr where the type cannot have the shape
using Maker = std::function<std::unique_ptr<Operation>(DType, const Shape&)>;

// Makes an operation, or says whether it could, which takes no time.
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

struct Registration {
    std::string name, tag;
    std::vector<std::string> dimensions;  // what the numbers of a shape mean
    std::vector<Shape> edges;             // tested
    std::vector<Shape> small, large;      // timed on a CPU and on a GPU
    Factory make;
    Maker forward = {};                   // of a backward pass: takes the same shapes
    std::vector<DType> dtypes = {DType::fp32, DType::bf16};
    bool same_on_any_threads = true;      // bit for bit

    std::string describe(const Shape& shape) const;
};

// A registration enters the list as it is constructed, before main(); nothing changes it afterwards.
struct Registered {
    explicit Registered(Registration registration);
};
const std::vector<Registration>& all();

// Each shape with each of these numbers appended.
std::vector<Shape> with_each(const std::vector<Shape>& shapes, const std::vector<int>& last);

inline const char* name_of(DType dtype) { return dtype == DType::bf16 ? "bf16" : "fp32"; }

}  // namespace operations
