// classifier.cpp - softmax and cross-entropy, whose gradient overwrites the logits
#include "kernels/classifier.h"

#include "test/operations/operation.h"
#include "test/operations/text_tokens.h"

namespace operations::classifier_operation {
namespace {

constexpr float kScale = 1.0f / 37;

template <class T>
struct Classifier : Operation {
    int rows = shape[0], vocabulary = shape[1], padded = shape[2];
    bool write = shape[4];
    Tensor<T> logits = tensor<T>(write ? Role::in_out : Role::input, "logits", std::size_t(rows) * padded,
                                 {.deviation = 2, .mean = double(shape[3])});
    Tensor<int> targets = input<int>("targets", rows);
    Tensor<float> losses = output<float>("losses", rows);

    explicit Classifier(const Shape& shape) : Operation(shape) {
        adjust(logits.number, [this](std::size_t i, double x) { return int(i % padded) < vocabulary ? x : NAN; });
        TextTokens text(vocabulary);
        adjust(targets.number, [&, this](std::size_t row, double) {
            if (row == 0 || rows == 1) return double(vocabulary - 1);
            if (int(row) == rows / 2) return 0.0;
            if (rows > 3 && int(row) == rows - 1) return double(kernels::kIgnoreTarget);
            return double(text.next());
        });
        bytes = (write ? 2.0 : 1.0) * rows * padded * sizeof(T);
        if (!write) return;
        weights = {{input<float>("dlosses", rows, {.deviation = 0, .mean = kScale}).number, "losses"}};
        gradients = {{logits.number, "logits", false}};
    }
    void run(device::StreamRef stream) override {
        kernels::classifier<T>({logits, losses, targets, rows, vocabulary, padded, kScale, write}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto id = v[targets];
        v.each(rows, [=, this, all = v[logits], loss = v[losses]](std::size_t row) {
            const std::size_t first = row * padded;
            const int target = int(id[row]);
            const bool ignored = target == kernels::kIgnoreTarget;
            N maximum = all[first], sum = 0;
            for (int c = 1; c < vocabulary; ++c) maximum = maximum < N(all[first + c]) ? N(all[first + c]) : maximum;
            for (int c = 0; c < vocabulary; ++c) sum += exp(N(all[first + c]) - maximum);
            loss[row] = ignored ? N(0) : log(sum) + maximum - N(all[first + target]);
            if (!write) return;
            for (int c = 0; c < vocabulary; ++c)
                all[first + c] = ignored ? N(0) : (exp(N(all[first + c]) - maximum) / sum - N(c == target)) * N(kScale);
            for (int c = vocabulary; c < padded; ++c) all[first + c] = N(0);
        });
    }
};

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

}  // namespace
}  // namespace operations::classifier_operation
