// config_json.cpp - reads config.json and checks every key; writes config.json
#include "llmc/weights/config_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "llmc/base/json_text.h"
#include "llmc/base/input_file.h"
#include "llmc/base/output_file.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr double kLayerNormEpsilon = 1e-5;
constexpr const char* kForeign =
    "this program trains only the architecture of the published GPT-2 checkpoints: start from one of those";

class ConfigReader {
public:
    explicit ConfigReader(const std::filesystem::path& file) : path_(file.string()) {
        config_ = parse_json(read_text(path_, "the model's configuration"));
        const char* const fault = config_.is_discarded() ? "not valid JSON" : "not a JSON object";
        if (!config_.is_object())
            fail("the model's configuration " + path_, fault, "the config.json of a GPT-2", "copy it again");
    }

    int whole_number(const char* key, int otherwise) const {
        if (!config_.contains(key)) return otherwise;
        const json& value = config_[key];
        const bool good = value.is_number_integer() && value >= 1 && value <= std::numeric_limits<int>::max();
        if (!good) refuse(key, "an integer from 1 to 2147483647", "fix the file");
        return value.get<int>();
    }
    // For keys that transformers accepts under two names. They must agree: the number of heads, for example, does not
    // affect any tensor's shape.
    int whole_number(const char* key, const char* other_name, int otherwise) const {
        const int value = whole_number(key, whole_number(other_name, otherwise));
        if (whole_number(other_name, value) != value)
            refuse(other_name, std::to_string(value) + ", the value of " + key, "remove one of the two");
        return value;
    }
    // `wanted` is also the default of a missing key.
    void expect(const char* key, const json& wanted) const {
        if (config_.contains(key) && config_[key] != wanted) refuse(key, excerpt(wanted), kForeign);
    }
    void expect_one_of(const char* key, const std::set<std::string>& wanted) const {
        if (!config_.contains(key)) return;
        const json& value = config_[key];
        if (value.is_string() && wanted.contains(value.get<std::string>())) return;
        std::string names;
        for (const std::string& name : wanted) names.append(names.empty() ? "" : " or ").append(excerpt(name));
        refuse(key, names, kForeign);
    }
    // Accepts only the classes that compute this program's model; others add another head or are custom classes.
    void expect_architecture() const {
        const json known = {"GPT2LMHeadModel", "GPT2Model"};
        const char* const key = "architectures";
        if (!config_.contains(key) || config_[key].is_null()) return;
        bool good = config_[key].is_array();
        for (const json& name : good ? config_[key] : json::array())
            good = good && std::find(known.begin(), known.end(), name) != known.end();
        if (!good) refuse(key, excerpt(json::array({known[0]})), kForeign);
    }
    void expect_null_or(const char* key, int wanted) const {
        const bool given = config_.contains(key) && !config_[key].is_null();
        if (given && config_[key] != wanted) refuse(key, "null or " + std::to_string(wanted), kForeign);
    }
    std::string not_zero(const char* key) const {
        return config_.contains(key) && config_[key] != 0 ? excerpt(config_[key]) : "";
    }
    // -1: null, a list, or any other value that is not an id.
    int token_id(const char* key, int otherwise) const {
        if (!config_.contains(key)) return otherwise;
        const json& value = config_[key];
        const bool good = value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int>::max();
        return good ? value.get<int>() : -1;
    }
    const std::string& path() const { return path_; }

private:
    [[noreturn]] void refuse(const char* key, const std::string& expected, const char* hint) const {
        fail(path_ + ": " + key, excerpt(config_[key]), expected, hint);
    }

    std::string path_;
    json config_;
};

}  // namespace

ConfigJson read_config_json(const std::filesystem::path& file) {
    const ConfigReader reader(file);
    reader.expect("model_type", "gpt2");
    reader.expect_architecture();
    ConfigJson found;
    ModelConfig& config = found.model;
    config.layers = reader.whole_number("n_layer", "num_hidden_layers", 12);
    config.heads = reader.whole_number("n_head", "num_attention_heads", 12);
    config.channels = reader.whole_number("n_embd", "hidden_size", 768);
    config.max_seq_len = reader.whole_number("n_positions", "max_position_embeddings", 1024);
    config.vocabulary = reader.whole_number("vocab_size", 50257);
    try {
        check(config);
    } catch (const Error& error) {
        throw Error(reader.path() + ": " + error.what(), error.blame());
    }
    // Names of the tanh approximation: in fp64, transformers' five variants differ by at most 9e-13 from -12 to 12, but
    // by 5e-4 from "gelu".
    reader.expect_one_of("activation_function",
                         {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"});
    reader.expect_null_or("n_inner", config.hidden_channels());
    reader.expect("layer_norm_epsilon", kLayerNormEpsilon);
    // reorder_and_upcast_attn may have either value: it changes the order of scaling and rounding, not the formula.
    reader.expect("scale_attn_weights", true);
    reader.expect("scale_attn_by_inverse_layer_idx", false);
    reader.expect("add_cross_attention", false);
    reader.expect("tie_word_embeddings", true);
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"})
        if (const std::string value = reader.not_zero(key); !value.empty())
            found.dropout.append(found.dropout.empty() ? "" : ", ").append(key).append(" ").append(value);
    const int id = reader.token_id("eos_token_id", 50256);
    found.end_of_text = id < config.vocabulary ? id : -1;
    return found;
}

FileFingerprint write_config_json(const std::filesystem::path& file, const ModelConfig& config, int end_of_text) {
    require(end_of_text >= -1 && end_of_text < config.vocabulary, "the end-of-text id", end_of_text,
            "an id below the vocabulary of " + std::to_string(config.vocabulary) + ", or -1");
    const json token = end_of_text < 0 ? json(nullptr) : json(end_of_text);
    const nlohmann::ordered_json text = {
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"n_layer", config.layers},
        {"n_head", config.heads},
        {"n_embd", config.channels},
        {"n_positions", config.max_seq_len},
        {"n_ctx", config.max_seq_len},
        {"vocab_size", config.vocabulary},
        {"n_inner", nullptr},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", kLayerNormEpsilon},
        {"initializer_range", 0.02},
        {"scale_attn_weights", true},
        {"tie_word_embeddings", true},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
        {"bos_token_id", token},
        {"eos_token_id", token},
        {"torch_dtype", "float32"},  // every version of transformers understands this key
    };
    return write_file(file, text_of(text, 2) + '\n');
}

}  // namespace llmc
