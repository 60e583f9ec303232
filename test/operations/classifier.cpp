// classifier.cpp - softmax and cross-entropy, whose gradient overwrites the logits, or is written in fp8
#include "kernels/classifier.h"

#include "test/operations/operation.h"
#include "test/operations/text_tokens.h"

namespace operations::classifier_operation {
namespace {

constexpr float kScale = 1.0f / 37;

template <class T, class Dlogit>
struct ClassifierOf : Operation {
    static constexpr bool kFp8 = is_fp8<Dlogit>;
    int rows = shape[0], vocabulary = shape[1], padded = shape[2];
    bool write = shape[4];
    Tensor<T> logits = tensor<T>(write && !kFp8 ? Role::in_out : Role::input, "logits", std::size_t(rows) * padded,
                                 {.deviation = 2, .mean = double(shape[3])});
    Tensor<int> targets = input<int>("targets", rows);
    Tensor<float> losses = output<float>("losses", rows);
    Tensor<Dlogit> dlogits = gradients_of(logits);

    explicit ClassifierOf(const Shape& shape) : Operation(shape) {
        adjust(logits.number, [this](std::size_t i, double x) { return int(i % padded) < vocabulary ? x : NAN; });
        TextTokens text(vocabulary);
        adjust(targets.number, [&, this](std::size_t row, double) {
            if (row == 0 || rows == 1) return double(vocabulary - 1);
            if (int(row) == rows / 2) return 0.0;
            if (rows > 3 && int(row) == rows - 1) return double(kernels::kIgnoreTarget);
            return double(text.next());
        });
        bytes = double(rows) * padded * (sizeof(T) + (write ? sizeof(Dlogit) : 0));
        if (!write || kFp8) return;
        weights = {{input<float>("dlosses", rows, {.deviation = 0, .mean = kScale}).number, "losses"}};
        gradients = {{logits.number, "logits", false}};
    }
    Tensor<Dlogit> gradients_of([[maybe_unused]] const Tensor<T>& logits) {
        if constexpr (kFp8) return output<Dlogit>("fp8", std::size_t(rows) * padded);
        else return logits;
    }
    void run(device::StreamRef stream) override {
        std::span<e5m2> fp8{};
        if constexpr (kFp8) fp8 = dlogits;
        kernels::classifier<T>({logits, losses, targets, rows, vocabulary, padded, kScale, write && !kFp8, fp8},
                               stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto id = v[targets];
        constexpr float scale = kFp8 ? kernels::kFp8GradientScale : kScale;
        v.each(rows, [=, this, all = v[logits], gradient = v[dlogits], loss = v[losses]](std::size_t row) {
            const std::size_t first = row * padded;
            const int target = int(id[row]);
            const bool ignored = target == kernels::kIgnoreTarget;
            N maximum = all[first], sum = 0;
            for (int c = 1; c < vocabulary; ++c) maximum = maximum < N(all[first + c]) ? N(all[first + c]) : maximum;
            for (int c = 0; c < vocabulary; ++c) sum += exp(N(all[first + c]) - maximum);
            loss[row] = ignored ? N(0) : log(sum) + maximum - N(all[first + target]);
            if (!write) return;
            for (int c = 0; c < vocabulary; ++c)
                gradient[first + c] =
                    ignored ? N(0) : (exp(N(all[first + c]) - maximum) / sum - N(c == target)) * N(scale);
            for (int c = vocabulary; c < padded; ++c) gradient[first + c] = N(0);
        });
    }
};
template <class T> using Classifier = ClassifierOf<T, T>;

std::unique_ptr<Operation> losses_only(DType dtype, const Shape& s) {
    return make<Classifier>(dtype, {s[0], s[1], s[2], s[3], 0});
}

const std::vector<Shape> kEdges{{1, 61, 64}, {37, 61, 64}, {5, 257, 384}, {1, 257, 264}, {3, 384, 384}, {2, 1, 8},
                                {4, 9000, 9024}, {9, 9000, 9024}, {3, 50257, 50304}};
const Registered classifier({.name = "classifier", .tag = "[classifier]",
                             .dimensions = {"rows", "vocabulary", "padded", "mean", "write dlogits"},
                             .edges = with_each(kEdges, {0, -300}, {0, 1}),
                             .small = with_each({{256, 50257, 50304, 0}}, {0, 1}),
                             .large = with_each({{8192, 50257, 50304, 0}}, {0, 1}), .make = make<Classifier>,
                             .forward = losses_only});
const Registered in_fp8({.name = "classifier, fp8", .tag = "[classifier][fp8]",
                         .dimensions = {"rows", "vocabulary", "padded", "mean", "write dlogits"},
                         .edges = with_each({{1, 61, 64}, {37, 61, 64}, {1, 257, 272}, {3, 384, 384}, {2, 1, 16},
                                             {9, 9000, 9024}, {3, 50257, 50304}}, {0, -300}, {1}),
                         .small = {{256, 50257, 50304, 0, 1}}, .large = {{65536, 50257, 50304, 0, 1}},
                         .make = make_one<ClassifierOf<bf16, e5m2>>, .dtypes = {DType::bf16}});

}  // namespace
}  // namespace operations::classifier_operation
