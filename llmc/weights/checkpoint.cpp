// checkpoint.cpp - Hugging Face's names and shapes matched with the parameter table, to read and to write
#include "llmc/weights/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "kernels/device/error.h"
#include "llmc/weights/config_json.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";
// Rows of a file that are transposed at a time: with 64 the columns written and the rows read both stay in the cache.
constexpr std::int64_t kTransposedRows = 64;
// Smaller matrices are transposed by one thread: on a busy machine waking the others takes longer than the work.
constexpr std::int64_t kElementsWorthThreads = 1 << 16;

std::vector<std::int64_t> shape_in_files(const ParameterSpec& spec) {
    if (spec.is_vector()) return {spec.rows};
    if (spec.transposed_in_files) return {spec.columns, spec.rows};
    return {spec.rows_in_files, spec.columns};
}

// The causal mask and the constant of masked scores, which older versions of transformers saved with every block.
bool is_old_buffer(std::string_view name) {
    if (!name.starts_with("h.")) return false;
    name.remove_prefix(2);
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    name.remove_prefix(digits);
    return digits > 0 && (name == ".attn.bias" || name == ".attn.masked_bias");
}

fs::path tensors_of(const fs::path& path) {
    if (!fs::is_directory(path)) return path;
    const fs::path file = path / "model.safetensors";
    if (!fs::exists(file) && fs::exists(path / "model.safetensors.index.json"))
        fail("the checkpoint " + path.string(), "cut into several files", "one model.safetensors",
             "save it again with save_pretrained(..., max_shard_size=\"100GB\")");
    require(fs::exists(file), "the checkpoint " + path.string(), "a folder without model.safetensors",
            "a folder with config.json and model.safetensors",
            "name a folder step_XXXXXXXX of an output folder, or what save_pretrained wrote");
    return file;
}

void check_shape(const std::string& where, const TensorInfo& found, const ParameterSpec& spec) {
    const auto expected = shape_in_files(spec);
    if (found.shape == expected) return;
    const bool transposed = expected.size() == 2 && found.shape == std::vector<std::int64_t>{expected[1], expected[0]};
    fail(where + ": the shape", describe_shape(found.shape), describe_shape(expected) + ", as config.json has it",
         transposed ? "transpose it: the layers of a GPT-2 file are stored as (in, out)"
                    : "give the config.json that belongs to this file");
}

// The tensors of the table, in its order. Everything else in the file must be known to be superfluous.
std::vector<TensorInfo> match(const SafetensorsFile& file, const ParameterTable& table) {
    std::map<std::string_view, const TensorInfo*> found;  // names without prefix
    for (const TensorInfo& tensor : file.tensors()) {
        std::string_view name = tensor.name;
        if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
        if (is_old_buffer(name)) continue;
        const auto [place, is_new] = found.emplace(name, &tensor);
        require(is_new, file.path() + ": tensor " + in_quotes(name), "given with and without \"transformer.\"",
                "one of the two", "save the model again");
    }

    std::vector<TensorInfo> matched;
    for (const ParameterSpec& spec : table.tensors()) {
        const auto place = found.find(spec.name);
        const std::string where = file.path() + ": tensor " + in_quotes(spec.name);
        require(place != found.end(), where, "missing", describe_shape(shape_in_files(spec)),
                "give the config.json that belongs to this file");
        const TensorInfo& tensor = *place->second;
        check_shape(where, tensor, spec);
        require(tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16", where + ": the dtype",
                tensor.dtype, "F32, F16 or BF16", "save the model in one of these");
        matched.push_back(tensor);
        found.erase(place);
    }

    if (const auto head = found.find(kHead); head != found.end()) {
        const TensorInfo& tokens = matched[std::size_t(table.token_table())];
        const auto a = file.bytes(*head->second), b = file.bytes(tokens);
        require(head->second->dtype == tokens.dtype && head->second->shape == tokens.shape &&
                    std::memcmp(a.data(), b.data(), a.size()) == 0,
                file.path() + ": tensor \"lm_head.weight\"", "different from wte.weight",
                "equal, or absent: the head is tied to the token table",
                "a model with a head of its own cannot be trained here");
        found.erase(head);
    }
    if (!found.empty())
        fail(file.path() + ": tensor " + in_quotes(found.begin()->second->name), "unknown",
             "the tensors of a GPT-2 with " + describe(table.config()),
             "give the config.json that belongs to this file");
    return matched;
}

// (in, out) in the file to (out, in) in memory.
void read_transposed(const SafetensorsFile& file, const TensorInfo& tensor, std::int64_t inputs, std::int64_t outputs,
                     std::span<float> values) {
#pragma omp parallel if (inputs * outputs >= kElementsWorthThreads)
    {
        std::vector<float> rows(std::size_t(kTransposedRows * outputs));
#pragma omp for schedule(static)
        for (std::int64_t first = 0; first < inputs; first += kTransposedRows) {
            const std::int64_t count = std::min(kTransposedRows, inputs - first);
            file.read(tensor, first * outputs, std::span(rows).first(std::size_t(count * outputs)));
            for (std::int64_t out = 0; out < outputs; ++out)
                for (std::int64_t in = 0; in < count; ++in)
                    values[std::size_t(out * inputs + first + in)] = rows[std::size_t(in * outputs + out)];
        }
    }
}

void append_transposed(SafetensorsWriter& writer, std::span<const float> values, std::int64_t inputs,
                       std::int64_t outputs) {
    std::vector<float> rows(std::size_t(kTransposedRows * outputs));
    for (std::int64_t first = 0; first < inputs; first += kTransposedRows) {
        const std::int64_t count = std::min(kTransposedRows, inputs - first);
#pragma omp parallel for schedule(static) if (inputs * outputs >= kElementsWorthThreads)
        for (std::int64_t out = 0; out < outputs; ++out)
            for (std::int64_t in = 0; in < count; ++in)
                rows[std::size_t(in * outputs + out)] = values[std::size_t(out * inputs + first + in)];
        writer.append(std::span<const float>(rows).first(std::size_t(count * outputs)));
    }
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& path)
    : file_(tensors_of(path)),
      table_(read_config_json(fs::path(file_.path()).parent_path() / "config.json")),
      tensors_(match(file_, table_)) {}

void Checkpoint::read(const ParameterTable& table, std::span<float> flat) const {
    require(table.config() == config(), "the model to fill", describe(table.config()),
            describe(config()) + ", as the checkpoint has it");
    require(std::int64_t(flat.size()) == table.elements(), "the length of the array to fill", flat.size(),
            std::to_string(table.elements()));
    std::fill(flat.begin(), flat.end(), 0.0f);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const ParameterSpec& spec = table.tensors()[i];
        const auto values = table.view(flat, int(i)).first(std::size_t(spec.rows_in_files * spec.columns));
        if (spec.transposed_in_files) read_transposed(file_, tensors_[i], spec.columns, spec.rows, values);
        else file_.read(tensors_[i], 0, values);
        const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
        if (bad != values.end())
            fail(file_.path() + ": a value of tensor " + in_quotes(tensors_[i].name), *bad, "finite numbers",
                 "start from a checkpoint saved before the run diverged");
    }
}

TensorSource from_flat(const ParameterTable& table, std::span<const float> flat) {
    require(std::int64_t(flat.size()) == table.elements(), "the length of the array to save", flat.size(),
            std::to_string(table.elements()));
    return [&table, flat](int tensor) { return table.view(flat, tensor); };
}

fs::path step_folder(const fs::path& output_dir, std::int64_t step) {
    require(step >= 0, "the step of a checkpoint", step, "0 or more");
    char name[32];
    std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
    return output_dir / name;
}

std::map<std::int64_t, fs::path> step_folders(const fs::path& output_dir) {
    std::map<std::int64_t, fs::path> folders;
    std::error_code none;
    for (fs::directory_iterator entry(output_dir, none), end; !none && entry != end; entry.increment(none)) {
        const std::string name = entry->path().filename().string();
        constexpr std::string_view kStep = "step_";
        std::uint32_t step = 0;  // without a sign
        if (!name.starts_with(kStep)) continue;
        const auto [rest, fault] = std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
        if (fault == std::errc{} && *rest == 0 && step_folder("", step) == name) folders[step] = entry->path();
    }
    return folders;
}

void write_model(const fs::path& folder, const ParameterTable& table, const TensorSource& master_weights,
                 int end_of_text) {
    write_config_json(folder / "config.json", table.config(), end_of_text);
    std::vector<TensorToWrite> tensors;
    for (const ParameterSpec& spec : table.tensors())
        tensors.push_back({std::string(kPrefix) + spec.name, "F32", shape_in_files(spec)});
    // transformers refuses files without this word
    SafetensorsWriter writer(folder / "model.safetensors", tensors, {{"format", "pt"}});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const ParameterSpec& spec = table.tensors()[i];
        const auto values = master_weights(int(i));
        require(std::int64_t(values.size()) == spec.size(), "the length of " + spec.name, values.size(),
                std::to_string(spec.size()));
        if (spec.transposed_in_files) append_transposed(writer, values, spec.columns, spec.rows);
        else writer.append(values.first(std::size_t(spec.rows_in_files * spec.columns)));
    }
    writer.finish();
}

}  // namespace llmc
