// parameters_test.cpp - counts, layout and initial values of the parameter table
#include <omp.h>

#include <numbers>

#include "llmc/weights/parameters.h"
#include "test/support/model_support.h"

using namespace llmc;
using test::initial_weights, test::same_bits;

namespace {

std::span<const float> view(const ParameterTable& table, const std::vector<float>& flat, int tensor) {
    return table.view(std::span<const float>(flat), tensor);
}
}  // namespace

TEST_CASE("parameters and optimizer groups of the published sizes", "[parameters]") {
    struct Row {
        const char* name;
        std::int64_t unpadded, padded;
        int tensors;
        std::int64_t elements;
        int others;
        std::int64_t other_elements;
    };
    const auto row = GENERATE(values<Row>({{"d12", 124439808, 124475904, 50, 124354560, 98, 121344},
                                           {"d24", 354823168, 354871296, 98, 354549760, 194, 321536},
                                           {"d36", 774030080, 774090240, 146, 773488640, 290, 601600},
                                           {"d48", 1557611200, 1557686400, 194, 1556684800, 386, 1001600}}));
    CAPTURE(row.name);
    const ParameterTable table(model_by_name(row.name, 50257).config);
    std::int64_t unpadded = 0;
    for (const ParameterSpec& spec : table.tensors()) unpadded += spec.rows_in_files * spec.columns;
    CHECK(unpadded == row.unpadded);
    CHECK(table.parameters() == row.padded);
    CHECK(table.decayed().tensors == row.tensors);
    CHECK(table.decayed().elements == row.elements);
    CHECK(table.not_decayed().tensors == row.others);
    CHECK(table.not_decayed().elements == row.other_elements);
}

TEST_CASE("tensors are aligned, in order and disjoint, and every range of the array has its decay", "[parameters]") {
    const ParameterTable table(ModelConfig{2, 3, 24, 7, 61});
    const auto segments = table.decay_segments();
    REQUIRE(segments.size() == table.tensors().size());
    std::int64_t end = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
        const ParameterSpec& spec = table.tensors()[i];
        CAPTURE(spec.name);
        CHECK(spec.offset == end);
        CHECK(spec.offset % kTensorMultiple == 0);
        CHECK(segments[i].end >= spec.offset + spec.size());
        CHECK(segments[i].end < spec.offset + spec.size() + kTensorMultiple);
        CHECK(segments[i].decays == int(spec.decays));
        end = segments[i].end;
    }
    CHECK(end == table.elements());
}

TEST_CASE("names and shapes are those of Hugging Face, transposed to (out, in)", "[parameters]") {
    const ParameterTable table(ModelConfig{2, 2, 16, 7, 61});
    const auto is = [&](int tensor, const char* name, std::int64_t rows, std::int64_t columns,
                        std::int64_t rows_in_files, bool transposed) {
        const ParameterSpec& spec = table.tensors()[std::size_t(tensor)];
        CAPTURE(name);
        CHECK(spec.name == name);
        CHECK(spec.rows == rows);
        CHECK(spec.columns == columns);
        CHECK(spec.rows_in_files == rows_in_files);
        CHECK(spec.transposed_in_files == transposed);
    };
    is(table.token_table(), "wte.weight", 128, 16, 61, false);
    is(table.position_table(), "wpe.weight", 7, 16, 7, false);
    const BlockParameters& block = table.block(1);
    is(block.ln1.weight, "h.1.ln_1.weight", 16, 1, 16, false);
    is(block.ln1.bias, "h.1.ln_1.bias", 16, 1, 16, false);
    is(block.qkv.weight, "h.1.attn.c_attn.weight", 48, 16, 48, true);
    is(block.qkv.bias, "h.1.attn.c_attn.bias", 48, 1, 48, false);
    is(block.attn_proj.weight, "h.1.attn.c_proj.weight", 16, 16, 16, true);
    is(block.attn_proj.bias, "h.1.attn.c_proj.bias", 16, 1, 16, false);
    is(block.ln2.weight, "h.1.ln_2.weight", 16, 1, 16, false);
    is(block.ln2.bias, "h.1.ln_2.bias", 16, 1, 16, false);
    is(block.fc.weight, "h.1.mlp.c_fc.weight", 64, 16, 64, true);
    is(block.fc.bias, "h.1.mlp.c_fc.bias", 64, 1, 64, false);
    is(block.mlp_proj.weight, "h.1.mlp.c_proj.weight", 16, 64, 16, true);
    is(block.mlp_proj.bias, "h.1.mlp.c_proj.bias", 16, 1, 16, false);
    is(table.final_ln().weight, "ln_f.weight", 16, 1, 16, false);
    is(table.final_ln().bias, "ln_f.bias", 16, 1, 16, false);
    for (const Linear& layer : {block.qkv, block.attn_proj, block.fc, block.mlp_proj}) {
        CHECK(table.tensors()[std::size_t(layer.weight)].rows == layer.out_channels);
        CHECK(table.tensors()[std::size_t(layer.weight)].columns == layer.in_channels);
        CHECK(table.tensors()[std::size_t(layer.bias)].rows == layer.out_channels);
    }
    CHECK(table.tensors().size() == 2 + 12 * 2 + 2);
}

TEST_CASE("initial values: deviation, mean, constants, padding and gaps", "[parameters][statistics]") {
    // 12 layers as in the 124M model, so that the projections' deviation is the published one; narrower, with an odd
    // vocabulary.
    const ParameterTable table(ModelConfig{12, 6, 384, 1024, 1003});
    const auto flat = initial_weights(table, 1337);
    for (int i = 0; i < int(table.tensors().size()); ++i) {
        const ParameterSpec& spec = table.tensors()[std::size_t(i)];
        CAPTURE(spec.name);
        const auto values = view(table, flat, i);
        const std::size_t filled = std::size_t(spec.rows_in_files * spec.columns);
        CHECK(std::all_of(values.begin() + std::ptrdiff_t(filled), values.end(), [](float x) { return x == 0; }));
        if (spec.is_vector()) {
            const bool norm_weight = spec.name.find("ln_") != std::string::npos && spec.name.ends_with("weight");
            const float expected = norm_weight ? 1.0f : 0.0f;
            CHECK(std::all_of(values.begin(), values.end(), [&](float x) { return x == expected; }));
            continue;
        }
        const double expected = spec.name.ends_with("c_proj.weight") ? 0.0040824829 : 0.02;
        double sum = 0, square = 0;
        for (std::size_t k = 0; k < filled; ++k) {
            const double x = values[k] / expected;
            sum += x, square += x * x;
        }
        // The bounds are five standard deviations of each estimate over n independent normals; for the deviation this
        // is below 1 %.
        const double n = double(filled), five = 5 / std::sqrt(n);
        CHECK(std::fabs(std::sqrt(square / n) - 1) < five / std::sqrt(2.0));
        CHECK(five / std::sqrt(2.0) < 0.01);
        CHECK(std::fabs(sum / n) < five);
    }
    // gaps are written too: everything was NaN before
    CHECK(std::all_of(flat.begin(), flat.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("the random numbers are Philox4x32-10 and Box-Muller", "[parameters]") {
    const ParameterTable table(ModelConfig{1, 1, 8, 4, 5});
    const auto values = initial_weights(table, 0);
    // The generator's published known answer for counter 0 and key 0.
    const double bits[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    for (int pair = 0; pair < 2; ++pair) {
        const double radius = std::sqrt(-2 * std::log((bits[2 * pair] + 0.5) / 4294967296.0));
        const double angle = 2 * std::numbers::pi * bits[2 * pair + 1] / 4294967296.0;
        CHECK(values[std::size_t(2 * pair)] == Approx(0.02 * radius * std::cos(angle)).epsilon(1e-7));
        CHECK(values[std::size_t(2 * pair + 1)] == Approx(0.02 * radius * std::sin(angle)).epsilon(1e-7));
    }
}

TEST_CASE("initial values depend on the seed and the tensor, not on threads or other tensors", "[parameters]") {
    const ModelConfig config{2, 2, 96, 16, 61};  // wide enough for several threads
    const ParameterTable table(config);
    const auto flat = initial_weights(table, 42);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(threads == 3 ? 1 : 3);
    CHECK(same_bits(initial_weights(table, 42), flat));
    omp_set_num_threads(threads);

    for (const std::uint64_t seed : {std::uint64_t(43), (std::uint64_t(1) << 32) + 42}) {
        const auto other = initial_weights(table, seed);
        for (int i = 0; i < int(table.tensors().size()); ++i)
            if (!table.tensors()[std::size_t(i)].is_vector())
                CHECK_FALSE(same_bits(view(table, other, i), view(table, flat, i)));
    }
    CHECK_FALSE(same_bits(view(table, flat, table.block(0).fc.weight), view(table, flat, table.block(1).fc.weight)));

    ModelConfig longer = config;
    longer.max_seq_len = 64, longer.vocabulary = 257;  // moves every offset
    const ParameterTable longer_table(longer);
    const auto longer_flat = initial_weights(longer_table, 42);
    for (int layer = 0; layer < 2; ++layer)
        CHECK(same_bits(view(longer_table, longer_flat, longer_table.block(layer).qkv.weight),
                        view(table, flat, table.block(layer).qkv.weight)));
    const auto first_rows = [](std::span<const float> tokens) { return tokens.first(61 * 96); };
    CHECK(same_bits(first_rows(view(longer_table, longer_flat, table.token_table())),
                    first_rows(view(table, flat, table.token_table()))));
}
