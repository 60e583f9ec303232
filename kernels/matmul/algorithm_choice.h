// algorithm_choice.h - which form and which algorithm of a library computes a product: the one kept, else the fastest,
// where timing is allowed, else the library's first. Host code; the library is behind functions
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matmul/product.h"
#include "kernels/tuning/choices.h"

namespace kernels {

// The library's own business: what only the version that gave it reads.
using AlgorithmBytes = std::vector<unsigned char>;

struct ChosenAlgorithm {
    ProductForm form;
    AlgorithmBytes algorithm;
    bool operator==(const ChosenAlgorithm&) const = default;
};
// As a choice keeps it: "fused-gelu 0a1b..."
std::string text_of(const ChosenAlgorithm& chosen);
// Empty: not what text_of() gives for a form of this shape.
std::optional<ChosenAlgorithm> parse_algorithm(const std::string& text, const ProductShape& shape);

// A library, for one product.
struct ProductLibrary {
    std::string name;  // with its version
    // At most `most` of a form, in the library's order; none: it lacks the form. `compared`: repeats() is called before
    // one of them is used, so the order of their sums need not be fixed.
    std::function<std::vector<AlgorithmBytes>(const ProductForm& form, int most, bool compared)> algorithms;
    // Whether it can run what was kept.
    std::function<bool(const ChosenAlgorithm&)> accepts;
    // Enqueues the product with all that its form leaves to other kernels. What a run adds to must not change.
    std::function<void(const ChosenAlgorithm&)> run;
    // Whether all that it computes is bit-identical each time. Called after run() only.
    std::function<bool(const ChosenAlgorithm&)> repeats;
};

// Empty: the library has no algorithm for any form. choices may be nullptr.
std::optional<ChosenAlgorithm> choose_algorithm(const ProductShape& shape, const ProductLibrary& library,
                                                Choices* choices, StreamRef stream);

// Whether the gradient of the bias of a pair is faster summed with the second layer's input gradient than with the
// first one's weight gradient: by the times of all four products, where all are known. choices may be nullptr.
bool bias_is_faster_with_input(const Choices* choices, const std::string& library, DType dtype, bool tf32,
                               const GeluPair& pair);
// Whether it is, and a library in bf16 sums it as it multiplies, which rounds the sums to bf16.
bool bias_gradient_is_rounded(const Choices* choices, const std::string& library, DType dtype, bool tf32,
                              const GeluPair& pair);
// Whether a weight's gradient is faster with that of the bias than without, where both times are known.
bool bias_is_faster_with_weight(const Choices* choices, const std::string& library, DType dtype, bool tf32,
                              const LinearShape& layer);

// The answers of both, remembered, as every block asks again: from the first question on the choices must stay.
class BiasSums {
public:
    // choices may be nullptr.
    BiasSums(const Choices* choices, std::string library) : choices_(choices), library_(std::move(library)) {}

    bool with_input(DType dtype, bool tf32, const GeluPair& pair) {
        return remembered(with_input_, {dtype, pair},
                          [&] { return bias_is_faster_with_input(choices_, library_, dtype, tf32, pair); });
    }
    bool with_weight(DType dtype, bool tf32, const LinearShape& layer) {
        return remembered(with_weight_, {dtype, layer},
                          [&] { return bias_is_faster_with_weight(choices_, library_, dtype, tf32, layer); });
    }

private:
    template <class Key> using Answers = std::map<std::pair<DType, Key>, bool>;
    template <class Key, class Ask>
    static bool remembered(Answers<Key>& answers, const std::pair<DType, Key>& key, Ask&& ask) {
        const auto [answer, is_new] = answers.try_emplace(key);
        if (is_new) answer->second = ask();
        return answer->second;
    }

    const Choices* choices_;
    std::string library_;
    Answers<GeluPair> with_input_;
    Answers<LinearShape> with_weight_;
};

}  // namespace kernels
