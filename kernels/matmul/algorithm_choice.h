// algorithm_choice.h - selects the form and algorithm of a library for a product: the stored one, otherwise the fastest
// if timing is allowed, otherwise the library's first. Host code; the library is behind an interface
#pragma once
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
class ProductLibrary {
public:
    virtual ~ProductLibrary() = default;
    virtual std::string name() const = 0;  // with its version
    // At most `most` of a form, in the library's order, and variations of some; none if it lacks the form.
    virtual std::vector<AlgorithmBytes> algorithms(const ProductForm& form, int most) = 0;
    // Whether it can run a stored algorithm.
    virtual bool accepts(const ChosenAlgorithm& chosen) = 0;
    // Enqueues the product and the other kernels that its form needs. Must not change tensors that it would add to.
    virtual void run(const ChosenAlgorithm& chosen) = 0;
    // Whether its results are bit-identical in every run. Called after run() only.
    virtual bool repeats(const ChosenAlgorithm& chosen) = 0;
};

// Empty if the library has no algorithm for any form. tuned may be nullptr.
std::optional<ChosenAlgorithm> choose_algorithm(const ProductShape& shape, ProductLibrary& library,
                                                TunedAlgorithms* tuned, StreamRef stream);

}  // namespace kernels
