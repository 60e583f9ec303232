// parameters.cpp - the table of tensors, and their initial values
//
// A normal number depends only on (seed, tensor, element): Philox computes 128 random bits from that triple, and
// Box-Muller four normals from those. So initialization is parallel and bit-identical for any number of threads.
#include "llmc/weights/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"
#include "kernels/device/random.h"

namespace llmc {
namespace {

constexpr float kDeviation = 0.02f;

// Elements 4 * counter .. 4 * counter + 3 of a tensor's stream.
std::array<double, 4> four_normals(std::uint64_t seed, std::uint32_t stream, std::uint64_t counter) {
    kernels::Philox<1> bits{{{std::uint32_t(counter)}, {counter >> 32}, {stream}, {0}}};
    bits.run(seed);
    std::array<double, 4> normals;
    for (int pair = 0; pair < 2; ++pair) {
        // 0.5 keeps the logarithm finite
        const double radius = std::sqrt(-2 * std::log((double(bits.lane[2 * pair][0]) + 0.5) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * 0x1p-32 * double(bits.lane[2 * pair + 1][0]);
        normals[2 * pair] = radius * std::cos(angle);
        normals[2 * pair + 1] = radius * std::sin(angle);
    }
    return normals;
}

std::int64_t aligned(std::int64_t elements) { return round_up(elements, kTensorMultiple); }

}  // namespace

int ParameterTable::add(ParameterSpec spec) {
    spec.offset = elements_;
    elements_ = aligned(elements_ + spec.size());
    tensors_.push_back(std::move(spec));
    return int(tensors_.size()) - 1;
}

// The table is in forward order: the backward pass finishes tensors from the end of the array to its start, and last
// the token table, which the head and the embedding share. So a bucketed reduction can take contiguous ranges, one
// after the other, from the end.
ParameterTable::ParameterTable(const ModelConfig& config) : config_(config) {
    check(config);
    const std::int64_t channels = config.channels, hidden = config.hidden_channels();
    // The last layer of a residual branch has a smaller deviation, so that the sum over 2 * layers branches does not
    // grow with their number.
    const float branch_deviation = float(0.02 / std::sqrt(2.0 * config.layers));

    const auto embedding = [&](std::string name, std::int64_t rows, std::int64_t rows_in_files) {
        return add({.name = std::move(name), .rows = rows, .columns = channels, .rows_in_files = rows_in_files,
                    .init_deviation = kDeviation, .decays = true});
    };
    const auto matrix = [&](std::string name, std::int64_t outputs, std::int64_t inputs, float deviation) {
        return add({.name = std::move(name), .rows = outputs, .columns = inputs, .rows_in_files = outputs,
                    .init_deviation = deviation, .decays = true, .transposed_in_files = true});
    };
    const auto vector = [&](std::string name, std::int64_t size, float value) {
        return add({.name = std::move(name), .rows = size, .columns = 1, .rows_in_files = size, .init_value = value});
    };
    // Braced initializers are evaluated from left to right, so the weight comes first in the table.
    const auto layernorm = [&](const std::string& name) {
        return LayerNorm{.weight = vector(name + ".weight", channels, 1), .bias = vector(name + ".bias", channels, 0)};
    };
    const auto linear = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs, float deviation) {
        return Linear{.weight = matrix(name + ".weight", outputs, inputs, deviation),
                      .bias = vector(name + ".bias", outputs, 0),
                      .in_channels = int(inputs), .out_channels = int(outputs)};
    };

    token_table_ = embedding("wte.weight", config.padded_vocabulary(), config.vocabulary);
    position_table_ = embedding("wpe.weight", config.max_seq_len, config.max_seq_len);
    for (int layer = 0; layer < config.layers; ++layer) {
        const std::string h = "h." + std::to_string(layer) + ".";
        blocks_.push_back({.ln1 = layernorm(h + "ln_1"),
                           .qkv = linear(h + "attn.c_attn", 3 * channels, channels, kDeviation),
                           .attn_proj = linear(h + "attn.c_proj", channels, channels, branch_deviation),
                           .ln2 = layernorm(h + "ln_2"),
                           .fc = linear(h + "mlp.c_fc", hidden, channels, kDeviation),
                           .mlp_proj = linear(h + "mlp.c_proj", channels, hidden, branch_deviation)});
    }
    final_ln_ = layernorm("ln_f");
}

std::int64_t ParameterTable::parameters() const { return decayed().elements + not_decayed().elements; }
std::int64_t ParameterTable::padding() const {
    return std::int64_t(config_.padded_vocabulary() - config_.vocabulary) * config_.channels;
}

std::vector<kernels::DecaySegment> ParameterTable::decay_segments() const {
    std::vector<kernels::DecaySegment> segments;
    for (const ParameterSpec& spec : tensors_)
        segments.push_back({aligned(spec.offset + spec.size()), spec.decays ? 1 : 0});
    return segments;
}

ParameterTable::Count ParameterTable::count(bool decays) const {
    Count sum;
    for (const ParameterSpec& spec : tensors_)
        if (spec.decays == decays) {
            ++sum.tensors;
            sum.elements += spec.size();
        }
    return sum;
}
ParameterTable::Count ParameterTable::decayed() const { return count(true); }
ParameterTable::Count ParameterTable::not_decayed() const { return count(false); }

void ParameterTable::initialise(std::span<float> flat, std::uint64_t seed) const {
    require(std::int64_t(flat.size()) == elements_, "the length of the array to initialise", flat.size(),
            std::to_string(elements_));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const ParameterSpec& spec = tensors_[i];
        float* const tensor = flat.data() + spec.offset;
        const std::int64_t filled = spec.rows_in_files * spec.columns;
        if (spec.init_deviation == 0) {
            std::fill_n(tensor, filled, spec.init_value);
        } else {
#pragma omp parallel for schedule(static) if (filled >= 1 << 14)  // from about one millisecond of work
            for (std::int64_t first = 0; first < filled; first += 4) {
                const auto normals = four_normals(seed, std::uint32_t(i), std::uint64_t(first / 4));
                for (std::int64_t k = 0; k < std::min<std::int64_t>(4, filled - first); ++k)
                    tensor[first + k] = float(double(spec.init_deviation) * normals[std::size_t(k)]);
            }
        }
        // Padding rows of the vocabulary, and the gap before the next tensor.
        std::fill(tensor + filled, flat.data() + aligned(spec.offset + spec.size()), 0.0f);
    }
}

}  // namespace llmc
