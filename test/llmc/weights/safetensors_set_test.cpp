// safetensors_set_test.cpp - a model in several files equals the model in one; a contradicting index is refused
#include "llmc/weights/safetensors_set.h"

#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "llmc/weights/saved_model.h"
#include "test/support/model_support.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using test::Contains;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndexName = "model.safetensors.index.json";
std::string file_name(std::size_t number) { return "model-0000" + std::to_string(number) + "-of-00003.safetensors"; }

// A model's safetensors distributed over three files with transformers' names, and their index.
struct Sharded {
    test::ScratchFolder scratch;
    ParameterTable table{ModelConfig{1, 1, 8, 4, 7}};
    std::vector<float> flat = test::initial_weights(table, 3);
    std::map<std::string, std::vector<std::string>> names;  // of tensors, by file
    json index{{"metadata", {{"total_size", 4242}}}};

    Sharded() {
        write_model(path(), table, flat, -1);
        std::size_t count = 0;
        const SafetensorsFile whole(path() / "model.safetensors");
        for (const TensorInfo& tensor : whole.tensors())
            names[file_name(++count % 3 + 1)].push_back(tensor.name);
        deal();
        fs::rename(path() / "model.safetensors", path() / "whole");
    }
    const fs::path& path() const { return scratch.path(); }
    // Writes the files and the index of `names`.
    void deal() {
        const SafetensorsFile whole(path() / (fs::exists(path() / "whole") ? "whole" : "model.safetensors"));
        for (const auto& [file, tensors] : names) {
            std::vector<TensorToWrite> infos;
            std::vector<const TensorInfo*> found;
            for (const std::string& name : tensors)
                for (const TensorInfo& tensor : whole.tensors())
                    if (tensor.name == name) {
                        infos.push_back({tensor.name, tensor.dtype, tensor.shape});
                        found.push_back(&tensor);
                        index["weight_map"][name] = file;
                    }
            SafetensorsWriter writer(path() / file, infos, {{"format", "pt"}});
            for (const TensorInfo* tensor : found) {
                std::vector<std::byte> bytes(tensor->end - tensor->begin);
                whole.read_bytes(*tensor, 0, bytes);
                writer.append(bytes);
            }
            writer.finish();
        }
        write_index(text_of(index));
    }
    void write_index(const std::string& text) const { test::write_bytes(path() / kIndexName, text); }
    std::string fault() const {
        const std::string text = test::error_of([&] { test::weights_in(path()); });
        CHECK_THAT(text, !Contains("\n"));
        if (text != "accepted") CHECK_THAT(text, Contains(path().string()) && Contains("; expected "));
        return text;
    }
    std::string fault_of_index(const std::function<void(json&)>& edit) const {
        json changed = index;
        edit(changed);
        write_index(text_of(changed));
        return fault();
    }
};
constexpr const char* kBias = "transformer.h.0.attn.c_attn.bias";

}  // namespace

TEST_CASE("a model in several safetensors files is bit-identical to the model in one", "[safetensors_set]") {
    Sharded model;
    CHECK(test::same_bits(test::weights_in(model.path()), model.flat));
    CHECK(SafetensorsSet(model.path()).path() == (model.path() / kIndexName).string());
    CHECK(SafetensorsSet(model.path()).tensors().size() == model.table.tensors().size());
    // A folder with both: model.safetensors is used, as in transformers.
    fs::rename(model.path() / "whole", model.path() / "model.safetensors");
    model.write_index("no index");
    CHECK(SafetensorsSet(model.path()).path() == (model.path() / "model.safetensors").string());
    CHECK(test::same_bits(test::weights_in(model.path()), model.flat));
}

TEST_CASE("the tied head may be stored in another file than the token table", "[safetensors_set]") {
    Sharded model;
    const TensorToWrite head{"lm_head.weight", "F32", {7, 8}};
    const auto write_head = [&](float first) {
        std::vector<float> values(model.flat.begin(), model.flat.begin() + 56);
        values[0] = first;
        SafetensorsWriter writer(model.path() / "head.safetensors", {head}, {});
        writer.append(values);
        writer.finish();
        return model.fault_of_index([](json& index) { index["weight_map"]["lm_head.weight"] = "head.safetensors"; });
    };
    CHECK(write_head(model.flat[0]) == "accepted");
    CHECK_THAT(write_head(1), Contains("head.safetensors: tensor \"lm_head.weight\" is different from wte.weight"));
}

TEST_CASE("a file in the index must exist in the same folder and be complete", "[safetensors_set]") {
    Sharded model;
    const auto mapped_to = [&](const json& file) {
        return model.fault_of_index([&](json& index) { index["weight_map"][kBias] = file; });
    };
    fs::create_directory(model.path() / "sub");
    test::write_bytes(model.path() / "sub" / "x", "");
    for (const char* name : {"../x", "sub/x", "/etc/passwd", "..", ".", ""})
        CHECK_THAT(mapped_to(name), Contains(kIndexName) && Contains(kBias) && Contains(name) &&
                                        Contains("the name of a file beside the index"));
    CHECK_THAT(mapped_to(json(std::string("a\0b", 3))), Contains("\"a\\u0000b\"; expected the name of a file"));
    CHECK_THAT(mapped_to(7), Contains("is 7; expected the name of a file"));
    CHECK_THAT(mapped_to("sub"), Contains("the file \"sub\" is not a regular file"));
    CHECK_THAT(mapped_to("model-00004-of-00003.safetensors"),
               Contains("the file \"model-00004-of-00003.safetensors\" is missing"));
    const std::string longest(255, 'x');  // the maximum length of a file name
    CHECK_THAT(mapped_to(longest), Contains("the file \"" + longest + "\" is missing"));
    CHECK_THAT(mapped_to(longest + 'x'), Contains("expected the name of a file beside the index"));
    CHECK_THAT(mapped_to(std::string(5000, 'x')), Contains("expected the name of a file beside the index"));
    model.write_index(text_of(model.index));
    CHECK(model.fault() == "accepted");
    const std::string bytes = test::read_bytes(model.path() / file_name(3));
    test::write_bytes(model.path() / file_name(3), bytes.substr(0, bytes.size() - 1));
    CHECK_THAT(model.fault(), Contains(file_name(3)) && Contains("cut off"));
    fs::remove(model.path() / file_name(3));
    CHECK_THAT(model.fault(), Contains("the file \"" + file_name(3) + "\" is missing"));
}

TEST_CASE("index and files must agree on every tensor", "[safetensors_set]") {
    const Sharded model;
    const std::string here = model.index["weight_map"][kBias].get<std::string>(), bias = '"' + std::string(kBias) + '"';
    const std::string other = here == file_name(1) ? file_name(2) : file_name(1), text = text_of(model.index);
    const std::string entry = bias + ":\"" + here + "\"";
    struct Row { std::function<void(Sharded&)> edit; std::string says; };
    const auto index_with = [](const auto& edit) {
        return [edit](Sharded& of) { edit(of.index["weight_map"]), of.write_index(text_of(of.index)); };
    };
    for (const auto& [edit, says] : std::vector<Row>{
             {index_with([&](json& map) { map[kBias] = other; }),
              here + ": tensor " + bias + " is in this file; expected only in \"" + other},
             {index_with([&](json& map) { map["more.weight"] = other; }), "\"more.weight\" is not in \"" + other},
             {index_with([](json& map) { map.erase(kBias); }), here + ": tensor " + bias + " is not in weight_map"},
             {[&](Sharded& of) { of.names[other].push_back(kBias), of.deal(); },
              bias + " is in this file; expected only in"},
             {[&](Sharded& of) { of.write_index(std::string(text).insert(text.find(entry), entry + ",")); },
              "key is " + bias + "; expected each key once"},
             {[&](Sharded& of) { std::erase(of.names[here], kBias), of.index.erase("weight_map"), of.deal(); },
              "\"h.0.attn.c_attn.bias\" is missing"}}) {
        CAPTURE(says);
        Sharded changed;
        edit(changed);
        CHECK_THAT(changed.fault(), Contains(says));
    }
}

TEST_CASE("an invalid index is refused", "[safetensors_set]") {
    const Sharded model;
    for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
             {"", std::string(kIndexName) + " is invalid at byte 1; expected JSON"},
             {"[]", "[]; expected a JSON object"}, {"{}", "weight_map is missing"},
             {R"({"weight_map": {}})", "weight_map is {}"}, {R"({"weight_map": ["a"]})", "weight_map is [\"a\"]"},
             {std::string(300000, '['), "100 levels deep"},
             {text_of(model.index).substr(0, 100), "is invalid at byte 101"},
             {R"({"weight_map": {"a\nb": "../x"}})", "tensor \"a\\x0ab\" is \"../x\""},
             {"{\"weight_map\": {\"a\xff\": \"x\"}}", "is invalid at byte"}}) {
        model.write_index(text);
        CHECK_THAT(model.fault(), Contains(says));
    }
}
