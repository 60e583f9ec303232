// saved_model_test.cpp - a saved model is read back bit-identical; damaged and unsupported ones are refused by name
#include "llmc/weights/saved_model.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "llmc/base/staged_folder.h"
#include "llmc/weights/config_json.h"
#include "llmc/weights/safetensors.h"
#include "llmc/weights/step_folder.h"
#include "test/support/model_support.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// More than 64 channels and not a multiple, so that matrices are transposed in several parts, the last one shorter.
const ModelConfig kConfig{2, 3, 72, 10, 61};
const ModelConfig kWide{1, 1, 200, 3, 128};  // transposed by several threads; no padding rows

// Saves only the model, in a run's step folder.
fs::path save_checkpoint(const fs::path& output_dir, std::int64_t step, const ParameterTable& table,
                         std::span<const float> flat, int end_of_text) {
    const fs::path place = step_folder(output_dir, step);
    StagedFolder folder(place);
    write_model(folder.path(), table, flat, end_of_text);
    folder.commit();
    return place;
}

struct Saved {
    ScratchFolder scratch;
    ParameterTable table;
    std::vector<float> flat;
    fs::path folder;
    explicit Saved(const ModelConfig& config = kConfig) : table(config), flat(varied_weights(table)) {
        folder = save_checkpoint(scratch / "run", 100, table, flat, 60);
    }
    std::string fault() const {
        const std::string text = error_of([&] { weights_in(folder); });
        CHECK_THAT(text, !Contains("\n"));
        if (text != "accepted") CHECK_THAT(text, Contains("; expected ") && Contains(folder.string()));
        return text;
    }
    fs::path tensors() const { return folder / "model.safetensors"; }
};
struct Entry { TensorToWrite info; std::string bytes; };

// Reads all tensors of a file, lets `edit` change them and writes the file again.
template <class Edit> void rewrite(const fs::path& file, Edit&& edit) {
    std::vector<Entry> entries;
    {
        const SafetensorsFile source(file);
        for (const TensorInfo& tensor : source.tensors()) {
            Entry& entry = entries.emplace_back(TensorToWrite{tensor.name, tensor.dtype, tensor.shape},
                                                std::string(tensor.end - tensor.begin, ' '));
            source.read_bytes(tensor, 0, std::as_writable_bytes(std::span(entry.bytes)));
        }
    }
    edit(entries);
    std::vector<TensorToWrite> infos;
    for (const Entry& entry : entries) infos.push_back(entry.info);
    SafetensorsWriter writer(file, infos, {{"format", "pt"}});
    for (const Entry& entry : entries) writer.append(std::as_bytes(std::span(entry.bytes)));
    writer.finish();
}
Entry& find(std::vector<Entry>& entries, const std::string& name) {
    for (Entry& entry : entries)
        if (entry.info.name == name) return entry;
    throw std::runtime_error("no tensor " + name);
}
std::string config_fault(const Saved& saved, const json& change) {
    const std::string before = read_bytes(saved.folder / "config.json");
    json config = llmc::parse_json(before);
    config.merge_patch(change);
    for (const auto& [key, value] : change.items())
        if (value.is_null()) config[key] = nullptr;  // a merge patch alone would remove it
    write_bytes(saved.folder / "config.json", config.dump());
    const std::string text = saved.fault();
    write_bytes(saved.folder / "config.json", before);
    return text;
}
std::string config_fault(const json& change) { return config_fault(Saved(), change); }

}  // namespace

TEST_CASE("a saved model is read back bit-identical, with zeros in padding and gaps", "[checkpoint]") {
    const ModelConfig config = GENERATE(kConfig, kWide);
    const Saved saved(config);
    CHECK(saved.folder.filename() == "step_00000100");
    const SavedModel checkpoint(saved.folder);
    CHECK(checkpoint.config() == config);
    CHECK(same_bits(weights_in(saved.folder), saved.flat));
    CHECK(same_bits(weights_in(saved.tensors()), saved.flat));
}

TEST_CASE("the folder has the files that GPT2LMHeadModel.from_pretrained needs", "[checkpoint]") {
    const Saved saved;
    const json config = llmc::parse_json(read_bytes(saved.folder / "config.json"));
    CHECK(config == llmc::parse_json(R"({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 72,
        "n_positions": 10, "n_ctx": 10, "vocab_size": 61, "n_inner": null, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "scale_attn_weights": true,
        "tie_word_embeddings": true, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": 60, "eos_token_id": 60, "torch_dtype": "float32"})"));
    const SafetensorsFile file(saved.tensors());
    CHECK(file.metadata() == Metadata{{"format", "pt"}});
    CHECK(file.tensors().size() == 28);
    for (const TensorInfo& tensor : file.tensors()) {
        CHECK(tensor.dtype == "F32");
        CHECK(tensor.name != "lm_head.weight");
    }

    // Matrices are stored as (in, out).
    const int qkv = saved.table.block(1).qkv.weight;
    const auto ours = saved.table.view(std::span<const float>(saved.flat), qkv);
    for (const TensorInfo& tensor : file.tensors()) {
        if (tensor.name != "transformer.h.1.attn.c_attn.weight") continue;
        std::vector<float> theirs(72 * 216);
        file.read(tensor, 0, theirs);
        std::size_t wrong = 0;
        for (std::size_t in = 0; in < 72; ++in)
            for (std::size_t out = 0; out < 216; ++out) wrong += theirs[in * 216 + out] != ours[out * 72 + in];
        CHECK(wrong == 0);
    }
}

TEST_CASE("a model may have no end of text; odd arguments are refused", "[checkpoint]") {
    const Saved saved;
    const std::span<const float> flat(saved.flat);
    const fs::path folder = save_checkpoint(saved.scratch.path(), 123456789, saved.table, flat, -1);
    CHECK(folder.filename() == "step_123456789");
    CHECK(read_bytes(folder / "model.safetensors") == read_bytes(saved.tensors()));
    CHECK(llmc::parse_json(read_bytes(folder / "config.json"))["eos_token_id"].is_null());
    CHECK_THAT(error_of([&] { save_checkpoint(saved.scratch.path(), 5, saved.table, flat, 61); }),
               Contains("end-of-text id is 61"));
}

TEST_CASE("files of other programs: no prefix, old buffers, a tied head, two-byte values", "[checkpoint]") {
    Saved saved;
    SECTION("names without prefix") {
        rewrite(saved.tensors(), [](auto& entries) {
            for (Entry& entry : entries) entry.info.name.erase(0, std::strlen("transformer."));
        });
    }
    SECTION("prefixes of torch.compile and DDP") {
        const std::string prefix = GENERATE("_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module.");
        rewrite(saved.tensors(), [&](auto& entries) {
            for (Entry& entry : entries) entry.info.name = prefix + entry.info.name;
        });
    }
    SECTION("buffers of old versions, and the head that equals the token table") {
        rewrite(saved.tensors(), [](auto& entries) {
            entries.push_back({{"transformer.h.0.attn.bias", "BOOL", {1, 1, 2, 2}}, "abcd"});
            entries.push_back({{"h.1.attn.masked_bias", "F32", {}}, "abcd"});
            Entry head = find(entries, "transformer.wte.weight");
            head.info.name = "lm_head.weight";
            entries.push_back(head);
        });
    }
    SECTION("bf16") {
        saved.flat[1] = 0;  // too small for bf16
        for (float& x : saved.flat) x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000);
        rewrite(saved.tensors(), [](auto& entries) {
            for (Entry& entry : entries) {
                const std::string whole = std::exchange(entry.bytes, "");
                for (std::size_t i = 0; i < whole.size(); i += 4) entry.bytes += whole.substr(i + 2, 2);
                entry.info.dtype = "BF16";
            }
        });
    }
    SECTION("fp16") {
        for (float& x : saved.flat) x = 0;
        rewrite(saved.tensors(), [](auto& entries) {
            for (Entry& entry : entries)
                entry.info.dtype = "F16", entry.bytes = std::string(entry.bytes.size() / 2, '\0');
            // sets 1 at in = 1, out = 1
            find(entries, "transformer.h.0.attn.c_attn.weight").bytes.replace(2 * 216 + 2, 2, std::string("\0\x3c", 2));
        });
        saved.table.view(std::span(saved.flat), saved.table.block(0).qkv.weight)[72 + 1] = 1;
    }
    CHECK(same_bits(weights_in(saved.folder), saved.flat));
}

TEST_CASE("errors name a tensor that is missing, unknown, of the wrong shape or not finite", "[checkpoint]") {
    using Entries = std::vector<Entry>;
    static const auto add = [](Entries& e, const char* name) { e.push_back({{name, "F32", {1}}, "abcd"}); };
    struct Row { void (*edit)(Entries&); std::vector<std::string> says; };
    for (const Row& row : std::vector<Row>{
             {[](Entries& e) { e.erase(e.begin() + 5); }, {"\"h.0.attn.c_attn.bias\" is missing", "[216]"}},
             {[](Entries& e) { std::erase_if(e, [](const Entry& x) { return x.info.name.ends_with("bias"); }); },
              {"\"h.0.ln_1.bias\" is missing, like 12 others: h.0.attn.c_attn.bias, h.0.attn.c_proj.bias, "
               "h.0.ln_2.bias, ...; expected [72]; add the biases as zeros"}},
             {[](Entries& e) { for (Entry& x : e) x.info.name = "model." + x.info.name; },
              {"rename the tensors: they have the prefix \"model.transformer.\""}},
             {[](Entries& e) { add(e, "transformer.h.2.ln_1.bias"); },
              {"\"transformer.h.2.ln_1.bias\" is unknown", "2 layers"}},
             {[](Entries& e) { add(e, "transformer.h.x.attn.bias"); }, {"\"transformer.h.x.attn.bias\" is unknown"}},
             {[](Entries& e) { add(e, "score.weight"); }, {"\"score.weight\" is unknown"}},
             {[](Entries& e) { e.push_back(e[0]), e.back().info.name = "wte.weight"; }, {"with and without"}},
             {[](Entries& e) { find(e, "transformer.h.1.attn.c_attn.weight").info.shape = {216, 72}; },
              {"\"h.1.attn.c_attn.weight\": the shape is [216, 72]", "expected [72, 216]", "transpose"}},
             {[](Entries& e) { find(e, "transformer.wte.weight").info.shape = {72, 61, 1}; },
              {"[72, 61, 1]", "[61, 72]"}},
             {[](Entries& e) { find(e, "transformer.ln_f.bias").info.dtype = "I32"; },
              {"\"ln_f.bias\": the dtype is I32"}},
             {[](Entries& e) { e.push_back(e[0]), e.back().info.name = "lm_head.weight", e.back().bytes[9] ^= 1; },
              {"\"lm_head.weight\" is different from wte.weight"}},
             {[](Entries& e) { find(e, "transformer.h.0.mlp.c_proj.weight").bytes.replace(8, 4, "\0\0\xc0\x7f", 4); },
              {"\"transformer.h.0.mlp.c_proj.weight\" is nan"}},
             {[](Entries& e) { find(e, "transformer.wpe.weight").bytes.replace(8, 4, "\0\0\x80\xff", 4); },
              {"\"transformer.wpe.weight\" is -inf"}}}) {
        const Saved saved;
        rewrite(saved.tensors(), row.edit);
        const std::string fault = saved.fault();
        for (const std::string& part : row.says) CHECK_THAT(fault, Contains(part));
    }
}

TEST_CASE("an unsupported configuration is refused with key, value and expected value", "[checkpoint]") {
    const Saved saved;
    CHECK(config_fault(saved, {{"attn_pdrop", 0.1}, {"unheard_of", {1, 2}}}) == "accepted");
    CHECK(config_fault(saved, {{"n_inner", 288}, {"reorder_and_upcast_attn", true}}) == "accepted");
    for (const char* name : {"gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"})
        CHECK(config_fault(saved, {{"activation_function", name}}) == "accepted");
    for (const json& names : {json(nullptr), json::array(), json::array({"GPT2Model"})})
        CHECK(config_fault(saved, {{"architectures", names}}) == "accepted");
    struct Row { std::string key; json value; std::string expected; };
    const Row refused[]{
        {"model_type", "llama", "\"gpt2\""}, {"model_type", nullptr, "\"gpt2\""},
        {"architectures", json::array({"GPT2ForSequenceClassification"}), "[\"GPT2LMHeadModel\"]"},
        {"architectures", json::array({"GPT2LMHeadModel", "LlamaForCausalLM"}), "[\"GPT2LMHeadModel\"]"},
        {"architectures", "GPT2LMHeadModel", "[\"GPT2LMHeadModel\"]"},
        {"architectures", json::array({3}), "[\"GPT2LMHeadModel\"]"},
        {"activation_function", "gelu", "\"gelu_accurate\" or \"gelu_fast\" or \"gelu_new\" or"},
        {"activation_function", "relu", "\"gelu_accurate\" or"}, {"activation_function", 3, "\"gelu_accurate\" or"},
        {"num_attention_heads", 9, "3, the value of n_head"}, {"hidden_size", 144, "72, the value of n_embd"},
        {"num_hidden_layers", 1, "2, the value of n_layer"}, {"max_position_embeddings", "8", "an integer"},
        {"n_inner", 100, "null or 288"}, {"layer_norm_epsilon", 1e-6, "1e-05"}, {"scale_attn_weights", false, "true"},
        {"scale_attn_by_inverse_layer_idx", true, "false"}, {"add_cross_attention", true, "false"},
        {"tie_word_embeddings", false, "true"},
        {"n_layer", 2.5, "an integer"}, {"n_head", "3", "an integer"}, {"n_embd", -72, "an integer"},
        {"n_positions", 3000000000, "an integer"}, {"vocab_size", nullptr, "an integer"}};
    for (const auto& [key, value, expected] : refused) {
        CAPTURE(key, value.dump());
        CHECK_THAT(config_fault(saved, {{key, value}}),
                   Contains("config.json: " + key + " is " + value.dump()) && Contains("expected " + expected));
    }
}

TEST_CASE("invalid sizes, and sizes that do not match the file, are refused", "[checkpoint]") {
    CHECK_THAT(config_fault({{"n_head", 5}}), Contains("config.json") && Contains("channels is 72"));
    CHECK_THAT(config_fault({{"n_layer", 3}}), Contains("\"h.2.ln_1.weight\" is missing"));
    CHECK_THAT(config_fault({{"vocab_size", 62}}),
               Contains("\"wte.weight\": the shape is [61, 72]; expected [62, 72]"));
    const Saved saved;
    const ParameterTable other(ModelConfig{2, 3, 72, 11, 61});
    std::vector<float> flat(std::size_t(other.elements()));
    CHECK_THAT(error_of([&] { SavedModel(saved.folder).read(other, flat); }),
               Contains("11 positions") && Contains("10 positions"));
}

TEST_CASE("missing keys have the defaults of GPT2Config", "[checkpoint]") {
    const ScratchFolder scratch;
    write_bytes(scratch / "config.json", "{}");
    CHECK(read_config_json(scratch / "config.json").model == ModelConfig{12, 12, 768, 1024, 50257});
    write_bytes(scratch / "config.json", R"({"num_hidden_layers": 3, "num_attention_heads": 2,
        "hidden_size": 64, "max_position_embeddings": 99, "n_embd": 64})");  // transformers' other names
    CHECK(read_config_json(scratch / "config.json").model == ModelConfig{3, 2, 64, 99, 50257});
    write_bytes(scratch / "config.json", "[]");
    CHECK_THAT(error_of([&] { read_config_json(scratch / "config.json"); }), Contains("not a JSON object"));
    for (const char* text : {"", "{", "{\"n_layer\": 2", "nonsense"}) {
        write_bytes(scratch / "config.json", text);
        CHECK_THAT(error_of([&] { read_config_json(scratch / "config.json"); }),
                   Contains("config.json") && Contains("not valid JSON"));
    }
}

TEST_CASE("for an incomplete checkpoint the error names what is missing", "[checkpoint]") {
    const Saved saved;
    CHECK_THAT(error_of([&] { SavedModel(saved.folder / "none"); }), Contains("none") && Contains("missing"));
    CHECK_THAT(error_of([&] { SavedModel(saved.scratch.path()); }), Contains("without model.safetensors"));
    fs::remove(saved.folder / "config.json");
    CHECK_THAT(error_of([&] { SavedModel(saved.folder); }), Contains("config.json is missing"));
}

TEST_CASE("a step folder appears atomically and is never overwritten", "[checkpoint]") {
    Saved saved;
    const std::span<const float> source(saved.flat);
    const fs::path run = saved.scratch / "run";
    const std::string before = read_bytes(saved.tensors());

    saved.flat[5] += 1;
    CHECK_THAT(error_of([&] { save_checkpoint(run, 100, saved.table, source, -1); }),
               Contains("step_00000100 is already present"));
    // before anything is written
    CHECK_THAT(error_of([&] { StagedFolder(run / "step_00000100"); }), Contains("is already present"));
    CHECK(read_bytes(saved.tensors()) == before);
    CHECK(names_in(run).size() == 1);

    // The hidden folder of a killed run is replaced.
    fs::create_directory(run / ".step_00000103.partial");
    write_bytes(run / ".step_00000103.partial" / "junk", "junk");
    const fs::path folder = save_checkpoint(run, 103, saved.table, source, -1);
    CHECK(same_bits(weights_in(folder), saved.flat));
    CHECK_FALSE(fs::exists(folder / "junk"));
    CHECK(names_in(run).size() == 2);

    // The name appears while the folder is being written.
    StagedFolder staged(run / "step_00000104");
    fs::create_directory(run / "step_00000104");
    CHECK_THAT(error_of([&] { staged.commit(); }), Contains("step_00000104 is already present"));
}
