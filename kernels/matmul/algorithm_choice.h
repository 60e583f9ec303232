// algorithm_choice.h - selects the form and algorithm of a library for a product: the stored one, otherwise the fastest
// if timing is allowed, otherwise the library's first. Host code; the library is behind functions
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matmul/product.h"
#include "kernels/tuning/tuned_algorithms.h"

namespace kernels {

// Opaque: only the library version that returned it can read it.
using AlgorithmBytes = std::vector<unsigned char>;

struct ChosenAlgorithm {
    ProductForm form;
    AlgorithmBytes algorithm;
    bool operator==(const ChosenAlgorithm&) const = default;
};
// As it is stored: "fused-gelu 0a1b..."
std::string text_of(const ChosenAlgorithm& chosen);
// Empty if the text is not what text_of() returns for a form of this shape.
std::optional<ChosenAlgorithm> parse_algorithm(const std::string& text, const ProductShape& shape);

// A library, for one product.
struct ProductLibrary {
    std::string name;  // with its version
    // At most `most` of a form, in the library's order; none if it lacks the form.
    std::function<std::vector<AlgorithmBytes>(const ProductForm& form, int most)> algorithms;
    // Whether it can run a stored algorithm.
    std::function<bool(const ChosenAlgorithm&)> accepts;
    // Enqueues the product and the other kernels that its form needs. Must not change tensors that it would add to.
    std::function<void(const ChosenAlgorithm&)> run;
    // Whether its results are bit-identical in every run. Called after run() only.
    std::function<bool(const ChosenAlgorithm&)> repeats;
};

// Empty if the library has no algorithm for any form. tuned may be nullptr.
std::optional<ChosenAlgorithm> choose_algorithm(const ProductShape& shape, const ProductLibrary& library,
                                                TunedAlgorithms* tuned, StreamRef stream);

// Whether the bias gradient of a pair is summed faster with the second layer's input gradient than with the first
// layer's weight gradient, by the times of all four products; false if one is unknown. tuned may be nullptr.
bool bias_is_faster_with_input(const TunedAlgorithms* tuned, const std::string& library, DType dtype, bool tf32,
                               const GeluPair& pair);
// Whether it is, and the library fuses the sum into a bf16 product, which rounds it to bf16.
bool bias_gradient_is_rounded(const TunedAlgorithms* tuned, const std::string& library, DType dtype, bool tf32,
                              const GeluPair& pair);
// Whether the weight gradient is faster with the bias gradient than without; false if one time is unknown.
bool bias_is_faster_with_weight(const TunedAlgorithms* tuned, const std::string& library, DType dtype, bool tf32,
                              const LinearShape& layer);

// Caches both answers, because every block asks again: after the first call the table must not change.
class BiasSums {
public:
    // tuned may be nullptr.
    BiasSums(const TunedAlgorithms* tuned, std::string library) : tuned_(tuned), library_(std::move(library)) {}

    bool with_input(DType dtype, bool tf32, const GeluPair& pair) {
        return remembered(with_input_, {dtype, pair},
                          [&] { return bias_is_faster_with_input(tuned_, library_, dtype, tf32, pair); });
    }
    bool with_weight(DType dtype, bool tf32, const LinearShape& layer) {
        return remembered(with_weight_, {dtype, layer},
                          [&] { return bias_is_faster_with_weight(tuned_, library_, dtype, tf32, layer); });
    }

private:
    template <class Key> using Answers = std::map<std::pair<DType, Key>, bool>;
    template <class Key, class Ask>
    static bool remembered(Answers<Key>& answers, const std::pair<DType, Key>& key, Ask&& ask) {
        const auto [answer, is_new] = answers.try_emplace(key);
        if (is_new) answer->second = ask();
        return answer->second;
    }

    const TunedAlgorithms* tuned_;
    std::string library_;
    Answers<GeluPair> with_input_;
    Answers<LinearShape> with_weight_;
};

}  // namespace kernels
