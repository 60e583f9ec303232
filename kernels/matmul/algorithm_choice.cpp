// algorithm_choice.cpp - algorithms as text, and the timing of all forms of a product
#include "kernels/matmul/algorithm_choice.h"

#include <charconv>
#include <cstdio>
#include <string_view>

#include "kernels/tuning/timing.h"

namespace kernels {
namespace {

// Candidates per form of a matmul. The library returns them in order of its own time estimate; at which position the
// fastest one usually is has not been measured.
constexpr int kCandidates = 32;

std::vector<ChosenAlgorithm> candidates(const ProductShape& shape, ProductLibrary& library, int max_per_form) {
    std::vector<ChosenAlgorithm> all;
    for (const ProductForm& form : forms_of(shape))
        for (AlgorithmBytes& algorithm : library.algorithms(form, max_per_form))
            all.push_back({form, std::move(algorithm)});
    return all;
}

std::optional<ChosenAlgorithm> stored(const ProductShape& shape, ProductLibrary& library, TunedAlgorithms& tuned) {
    const TunedAlgorithm* const known = tuned.find(library.name(), shape.problem());
    if (!known) return std::nullopt;
    for (const ProductForm& form : forms_of(shape))  // a form without an algorithm: an entry to force it
        if (known->taken == name_of(form))
            if (auto first = library.algorithms(form, 1); !first.empty())
                return ChosenAlgorithm{form, std::move(first.front())};
    const auto chosen = parse_algorithm(known->taken, shape);
    if (chosen && library.accepts(*chosen)) return chosen;
    tuned.reject(library.name(), shape.problem());
    return std::nullopt;
}

std::optional<ChosenAlgorithm> fastest(const ProductShape& shape, ProductLibrary& library, TunedAlgorithms& tuned,
                                       StreamRef stream) {
    const std::vector<ChosenAlgorithm> all = candidates(shape, library, kCandidates);
    if (all.empty()) return std::nullopt;
    const auto name = [&](int i) {
        return shape.problem() + ", " + name_of(all[std::size_t(i)].form) + ", algorithm " + std::to_string(i + 1) +
               " of " + std::to_string(all.size());
    };
    Timing timing = time_candidates({int(all.size()), name, [&](int i) { library.run(all[std::size_t(i)]); },
                                     std::exchange(tuned.load_seconds, 0.0)}, tuned.cache_bytes, stream);
    const int chosen = fastest_reproducible(timing, [&](int i) { return library.repeats(all[std::size_t(i)]); });
    if (chosen < 0) {
        tuned.note(shape.problem() + ": the library's first algorithm" + timing.notes);
        return std::nullopt;
    }
    const double best = timing.seconds[std::size_t(chosen)];
    char times[96];
    std::snprintf(times, sizeof times, "%.4f ms; the library's first %.4f ms; %zu candidates", 1e3 * best,
                  1e3 * timing.seconds.front(), all.size());
    tuned.keep(library.name(), shape.problem(), {text_of(all[std::size_t(chosen)]), times + timing.notes, best});
    return all[std::size_t(chosen)];
}

}  // namespace

std::string text_of(const ChosenAlgorithm& chosen) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text = name_of(chosen.form) + ' ';
    for (const unsigned char byte : chosen.algorithm) text.append({kDigits[byte >> 4], kDigits[byte & 15]});
    return text;
}

std::optional<ChosenAlgorithm> parse_algorithm(const std::string& text, const ProductShape& shape) {
    const auto space = text.find(' ');
    if (space == text.npos) return std::nullopt;
    const std::string_view digits = std::string_view(text).substr(space + 1);
    if (digits.size() % 2 != 0) return std::nullopt;
    for (const ProductForm& form : forms_of(shape)) {
        if (name_of(form) != text.substr(0, space)) continue;
        ChosenAlgorithm chosen{form, std::vector<unsigned char>(digits.size() / 2)};
        for (std::size_t i = 0; i < chosen.algorithm.size(); ++i) {
            const char* const two = digits.data() + 2 * i;
            if (std::from_chars(two, two + 2, chosen.algorithm[i], 16).ptr != two + 2) return std::nullopt;
        }
        return chosen;
    }
    return std::nullopt;
}

std::optional<ChosenAlgorithm> choose_algorithm(const ProductShape& shape, ProductLibrary& library,
                                                TunedAlgorithms* tuned, StreamRef stream) {
    if (tuned)
        if (const auto known = stored(shape, library, *tuned)) return known;
    if (tuned && tuned->timing)
        if (const auto timed = fastest(shape, library, *tuned, stream)) return timed;
    for (const ProductForm& form : forms_of(shape))
        if (auto first = library.algorithms(form, 1); !first.empty())
            return ChosenAlgorithm{form, std::move(first.front())};
    return std::nullopt;
}

}  // namespace kernels
