// algorithm_choice.h - selects the form and algorithm of a library for a product: the stored one, otherwise the fastest
// if timing is allowed, otherwise the library's first. Host code; the library is behind functions
#pragma once
#include <functional>
#include <optional>
#include <string>
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

}  // namespace kernels
