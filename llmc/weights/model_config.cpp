// model_config.cpp - the tables of published sizes, and the limits of custom ones
#include "llmc/weights/model_config.h"

#include <array>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"

namespace llmc {
namespace {

struct TableRow { int key, layers, channels, heads; };

// GPT-2 by depth: Radford et al. 2019 for 12 to 48, extended in both directions with head sizes between 64 and 96.
constexpr std::array<TableRow, 8> kByDepth{{{6, 6, 384, 6},
                                            {12, 12, 768, 12},
                                            {24, 24, 1024, 16},
                                            {36, 36, 1280, 20},
                                            {48, 48, 1600, 25},
                                            {60, 60, 1920, 30},
                                            {72, 72, 2880, 30},
                                            {84, 84, 3456, 36}}};
// GPT-3 by channels: Brown et al. 2020, table 2.1, and a small one of half the width.
constexpr std::array<TableRow, 9> kByChannels{{{384, 6, 384, 6},
                                               {768, 12, 768, 12},
                                               {1024, 24, 1024, 16},
                                               {1536, 24, 1536, 16},
                                               {2048, 24, 2048, 16},
                                               {2560, 32, 2560, 32},
                                               {4096, 32, 4096, 32},
                                               {5120, 40, 5120, 40},
                                               {12288, 96, 12288, 96}}};
constexpr int kGpt2Positions = 1024, kGpt3Positions = 2048;

template <class Table> std::string known(std::string_view prefix, const Table& table) {
    std::string names;
    for (const TableRow& row : table)
        names += std::string(names.empty() ? "" : ", ") + std::string(prefix) + std::to_string(row.key);
    return names;
}

[[noreturn]] void refuse(std::string_view text, std::string_view wrong, std::string_view expected) {
    fail("the model name \"" + std::string(text) + "\"", wrong, expected,
         "set a size such as d12, gpt3:c768 or custom:l=4,h=4,c=128[,t=1024][,v=257], or a checkpoint's folder");
}

template <class Table>
ModelConfig look_up(std::string_view text, std::string_view prefix, const Table& table, int positions) {
    if (const auto key = number_of<int>(text.substr(prefix.size())))
        for (const TableRow& row : table)
            if (row.key == *key)
                return {.layers = row.layers, .heads = row.heads, .channels = row.channels, .max_seq_len = positions};
    refuse(text, "not in the table", "one of " + known(prefix, table));
}

// The sizes after "custom:", separated by commas.
NamedModel custom(std::string_view text, std::string_view sizes) {
    struct Size { char key; int ModelConfig::* member; bool needed, given = false; };
    std::array<Size, 5> known_sizes{{{'l', &ModelConfig::layers, true},
                                     {'h', &ModelConfig::heads, true},
                                     {'c', &ModelConfig::channels, true},
                                     {'t', &ModelConfig::max_seq_len, false},
                                     {'v', &ModelConfig::vocabulary, false}}};
    NamedModel model;
    for (bool last = false; !last;) {
        const std::size_t comma = sizes.find(',');
        const std::string_view part = sizes.substr(0, comma);
        last = comma == std::string_view::npos;
        if (!last) sizes.remove_prefix(comma + 1);

        Size* size = nullptr;
        if (part.size() >= 2 && part[1] == '=')
            for (Size& candidate : known_sizes)
                if (candidate.key == part[0]) size = &candidate;
        const std::string fault = "not understood at \"" + std::string(part) + "\"";
        if (!size) refuse(text, fault, "l= (layers), h= (heads), c= (channels), t= (positions) or v= (vocabulary)");
        if (size->given) refuse(text, "invalid: it has " + std::string(part.substr(0, 2)) + " twice", "each size once");
        const auto value = number_of<int>(part.substr(2));
        if (!value) refuse(text, fault, "an integer after " + std::string(part.substr(0, 2)));
        model.config.*size->member = *value;
        size->given = true;
    }
    for (const Size& size : known_sizes)
        if (size.needed && !size.given)
            refuse(text, std::string("without ") + size.key + "=", "at least l=, h= and c=");
    model.named_vocabulary = known_sizes.back().given;
    return model;
}

}  // namespace

void check(const ModelConfig& config) {
    const auto within = [](const char* what, int value, int most) {
        require(value >= 1 && value <= most, what, value, "between 1 and " + std::to_string(most));
    };
    // The largest model of the tables has 96 layers of 12288 channels. With these bounds, 12 * layers * channels^2 fits
    // in 64 bits and hidden_channels() in 32.
    within("the number of layers", config.layers, 1 << 16);
    within("the number of heads", config.heads, 1 << 16);
    within("the number of channels", config.channels, 1 << 20);
    within("the number of positions", config.max_seq_len, 1 << 24);
    within("the vocabulary", config.vocabulary, 1 << 24);
    require(config.channels % config.heads == 0, "the number of channels", config.channels,
            "a multiple of the " + counted(config.heads, "head"));
    require(config.head_size() % 8 == 0 && config.head_size() <= 256, "the head size (channels / heads)",
            config.head_size(), "a multiple of 8 and at most 256", "change the number of heads or of channels");
}

NamedModel model_by_name(std::string_view text, int vocabulary) {
    NamedModel model;
    constexpr std::string_view custom_prefix = "custom:", gpt3_prefix = "gpt3:c";
    if (text.starts_with(custom_prefix)) {
        model = custom(text, text.substr(custom_prefix.size()));
    } else if (text.starts_with(gpt3_prefix)) {
        model.config = look_up(text, gpt3_prefix, kByChannels, kGpt3Positions);
    } else if (text.size() >= 2 && text[0] == 'd' && text[1] >= '0' && text[1] <= '9') {
        model.config = look_up(text, "d", kByDepth, kGpt2Positions);
    } else {
        refuse(text, "no size, folder, run or model",
               "one of " + known("d", kByDepth) + ", " + known(gpt3_prefix, kByChannels) + ", or custom:...");
    }
    if (!model.named_vocabulary) model.config.vocabulary = vocabulary;
    try {
        check(model.config);
    } catch (const Error& error) {
        throw Error("the model name \"" + std::string(text) + "\": " + error.what(), error.blame());
    }
    return model;
}

std::string describe(const ModelConfig& config) {
    return counted(config.layers, "layer") + ", " + counted(config.heads, "head") + ", " +
           counted(config.channels, "channel") + ", " + counted(config.max_seq_len, "position") + ", vocabulary " +
           std::to_string(config.vocabulary);
}

}  // namespace llmc
