// saved_model.cpp - reads and writes a model's files: matches Hugging Face's names and shapes with the parameter table,
// and reads llm.c's format
#include "llmc/weights/saved_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"
#include "llmc/weights/config_json.h"
#include "llmc/weights/llmc_file.h"
#include "llmc/weights/model_path.h"
#include "llmc/weights/safetensors_set.h"
#include "llmc/weights/step_folder.h"

namespace llmc {

namespace fs = std::filesystem;

// The open files of one format. Tensors are identified by their index in the table.
class SavedModel::Format {
public:
    virtual ~Format() = default;
    // "FILE: WHAT of tensor NAME", with the name in the file
    virtual std::string where(const char* what, int tensor) const = 0;
    // Reads the rows that the file has (without padding), as (out, in).
    virtual void read(int tensor, const ParameterSpec& spec, std::span<float> values) const = 0;

    ConfigJson config;
};

namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kPrefixes[] = {kPrefix, "_orig_mod.", "module."};  // of torch.compile and PyTorch's DDP
constexpr std::string_view kHead = "lm_head.weight";
// Rows of a file that are transposed at a time: with 64, both the written columns and the read rows stay in the cache.
constexpr std::int64_t kTransposedRows = 64;
constexpr std::size_t kComparedBytes = std::size_t(1) << 20;  // at a time
// Smaller matrices are transposed by one thread: on a busy machine, waking other threads takes longer than the work.
constexpr std::int64_t kElementsWorthThreads = 1 << 16;

std::vector<std::int64_t> shape_in_files(const ParameterSpec& spec) {
    if (spec.is_vector()) return {spec.rows};
    if (spec.transposed_in_files) return {spec.columns, spec.rows};
    return {spec.rows_in_files, spec.columns};
}

// The causal mask and the masked-score constant that older versions of transformers saved with every block.
bool is_old_buffer(std::string_view name) {
    if (!name.starts_with("h.")) return false;
    name.remove_prefix(2);
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    name.remove_prefix(digits);
    return digits > 0 && (name == ".attn.bias" || name == ".attn.masked_bias");
}

void check_shape(const std::string& where, const TensorInfo& found, const ParameterSpec& spec) {
    const auto expected = shape_in_files(spec);
    if (found.shape == expected) return;
    const bool transposed = expected.size() == 2 && found.shape == std::vector<std::int64_t>{expected[1], expected[0]};
    fail(where + ": the shape", describe_shape(found.shape), describe_shape(expected) + " according to config.json",
         transposed ? "transpose it: matrices of a GPT-2 file are stored as (in, out)"
                    : "use the config.json that belongs to this file");
}

// Tensors of one dtype and shape.
bool have_same_bytes(const StoredTensor& a, const StoredTensor& b) {
    std::vector<std::byte> ours(kComparedBytes), theirs(kComparedBytes);
    const std::uint64_t size = a.info->end - a.info->begin;
    for (std::uint64_t first = 0; first < size; first += kComparedBytes) {
        const std::size_t count = std::min<std::uint64_t>(kComparedBytes, size - first);
        a.file->read_bytes(*a.info, first, std::span(ours).first(count));
        b.file->read_bytes(*b.info, first, std::span(theirs).first(count));
        if (std::memcmp(ours.data(), theirs.data(), count) != 0) return false;
    }
    return true;
}

void require_all(const std::string& path, const std::map<std::string_view, StoredTensor>& found,
                 const ParameterTable& table) {
    std::vector<const ParameterSpec*> missing;
    for (const ParameterSpec& spec : table.tensors())
        if (!found.contains(spec.name)) missing.push_back(&spec);
    if (missing.empty()) return;
    std::string others, hint = "use the config.json that belongs to this file";
    if (std::ranges::all_of(missing, [](const auto* spec) { return spec->name.ends_with(".bias"); }))
        hint = "add the biases as zeros, which computes the same, if the model has none";
    for (const auto& [name, tensor] : found)
        if (const auto end = '.' + missing.front()->name; name.ends_with(end))
            hint = "rename the tensors: they have the prefix " +
                   in_quotes(name.substr(0, name.size() - end.size() + 1));
    for (std::size_t i = 1; i < std::min<std::size_t>(missing.size(), 4); ++i)
        others += (i > 1 ? ", " : ": ") + missing[i]->name;
    if (missing.size() > 1) others = ", like " + std::to_string(missing.size() - 1) + " others" + others;
    if (missing.size() > 4) others += ", ...";
    fail(path + ": tensor " + in_quotes(missing.front()->name), "missing" + others,
         describe_shape(shape_in_files(*missing.front())), hint);
}

// The tensors of the table, in its order. Any other tensor in the files must be a known redundant one.
std::vector<StoredTensor> match(const SafetensorsSet& files, const ParameterTable& table) {
    std::map<std::string_view, StoredTensor> found;  // names without prefix
    for (const StoredTensor& tensor : files.tensors()) {
        std::string_view name = tensor.info->name;
        const auto is_prefix = [&](std::string_view prefix) { return name.starts_with(prefix); };
        for (const std::string_view* found;
             (found = std::ranges::find_if(kPrefixes, is_prefix)) != std::end(kPrefixes);)
            name.remove_prefix(found->size());
        if (is_old_buffer(name)) continue;
        const auto [place, is_new] = found.emplace(name, tensor);
        require(is_new, tensor.file->path() + ": tensor " + in_quotes(name),
                "present with and without a prefix such as \"transformer.\"", "one of the two", "save the model again");
    }
    require_all(files.path(), found, table);

    std::vector<StoredTensor> matched;
    for (const ParameterSpec& spec : table.tensors()) {
        const auto place = found.find(spec.name);
        const auto& [file, info] = place->second;
        const std::string where = file->path() + ": tensor " + in_quotes(spec.name);
        check_shape(where, *info, spec);
        require(info->dtype == "F32" || info->dtype == "F16" || info->dtype == "BF16", where + ": the dtype",
                info->dtype, "F32, F16 or BF16", "save the model in one of these");
        matched.push_back(place->second);
        found.erase(place);
    }

    if (const auto place = found.find(kHead); place != found.end()) {
        const StoredTensor head = place->second, tokens = matched[std::size_t(table.token_table())];
        require(head.info->dtype == tokens.info->dtype && head.info->shape == tokens.info->shape &&
                    have_same_bytes(head, tokens),
                head.file->path() + ": tensor \"lm_head.weight\"", "different from wte.weight",
                "equal, or absent: the head is tied to the token table",
                "a model with an untied head cannot be trained here");
        found.erase(place);
    }
    if (!found.empty()) {
        const auto& [file, info] = found.begin()->second;
        fail(file->path() + ": tensor " + in_quotes(info->name), "unknown",
             "the tensors of a GPT-2 with " + describe(table.config()),
             "use the config.json that belongs to this file");
    }
    return matched;
}

// Transposes (in, out) in the file to (out, in) in memory.
void read_transposed(const SafetensorsFile& file, const TensorInfo& tensor, std::int64_t inputs, std::int64_t outputs,
                     std::span<float> values) {
    std::vector<float> rows(std::size_t(kTransposedRows * outputs));
    for (std::int64_t first = 0; first < inputs; first += kTransposedRows) {
        const std::int64_t count = std::min(kTransposedRows, inputs - first);
        file.read(tensor, first * outputs, std::span(rows).first(std::size_t(count * outputs)));
#pragma omp parallel for schedule(static) if (inputs * outputs >= kElementsWorthThreads)
        for (std::int64_t out = 0; out < outputs; ++out)
            for (std::int64_t in = 0; in < count; ++in)
                values[std::size_t(out * inputs + first + in)] = rows[std::size_t(in * outputs + out)];
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

class HuggingFaceFormat : public SavedModel::Format {
public:
    explicit HuggingFaceFormat(const fs::path& path) : files_(path) {
        config = read_config_json(fs::path(files_.path()).parent_path() / "config.json");
        tensors_ = match(files_, ParameterTable(config.model));
    }

    std::string where(const char* what, int tensor) const override {
        const auto& [file, info] = tensors_[std::size_t(tensor)];
        return file->path() + ": " + what + " of tensor " + in_quotes(info->name);
    }
    void read(int tensor, const ParameterSpec& spec, std::span<float> values) const override {
        const auto& [file, info] = tensors_[std::size_t(tensor)];
        if (spec.transposed_in_files) read_transposed(*file, *info, spec.columns, spec.rows, values);
        else file->read(*info, 0, values);
    }

private:
    SafetensorsSet files_;
    std::vector<StoredTensor> tensors_;  // in the table's order
};

class LlmcFormat : public SavedModel::Format {
public:
    explicit LlmcFormat(const fs::path& path) : file_(path) {
        constexpr int kGpt2Vocabulary = 50257;
        config.model = file_.table().config();
        if (config.model.vocabulary == kGpt2Vocabulary) config.end_of_text = kGpt2Vocabulary - 1;
    }
    std::string where(const char* what, int tensor) const override {
        return file_.path() + ": " + what + " of tensor " +
               in_quotes(file_.table().tensors()[std::size_t(tensor)].name);
    }
    void read(int tensor, const ParameterSpec&, std::span<float> values) const override { file_.read(tensor, values); }

private:
    LlmcFile file_;
};

std::unique_ptr<const SavedModel::Format> open_files(const fs::path& path) {
    require_model_path(path.string());
    const bool is_llmc = path.extension() == ".bin" || begins_as_llmc_file(path);
    if (is_llmc && !fs::is_directory(path)) return std::make_unique<LlmcFormat>(path);
    return std::make_unique<HuggingFaceFormat>(path);
}

}  // namespace

SavedModel::SavedModel(const fs::path& path) : files_(open_files(path)) {}
SavedModel::~SavedModel() = default;
SavedModel::SavedModel(SavedModel&& other) noexcept = default;

const ModelConfig& SavedModel::config() const { return files_->config.model; }
const std::string& SavedModel::dropout() const { return files_->config.dropout; }
int SavedModel::end_of_text() const { return files_->config.end_of_text; }

void SavedModel::read(const ParameterTable& table, std::span<float> flat) const {
    require(table.config() == config(), "the model to fill", describe(table.config()),
            describe(config()) + ", the size of the checkpoint");
    require(std::int64_t(flat.size()) == table.elements(), "the length of the array to fill", flat.size(),
            std::to_string(table.elements()));
    std::fill(flat.begin(), flat.end(), 0.0f);
    for (int i = 0; i < int(table.tensors().size()); ++i) {
        const ParameterSpec& spec = table.tensors()[std::size_t(i)];
        const auto values = table.view(flat, i).first(std::size_t(spec.rows_in_files * spec.columns));
        files_->read(i, spec, values);
        const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
        if (bad != values.end())
            fail(files_->where("a value", i), std::isnan(*bad) ? std::fabs(*bad) : *bad, "finite numbers",
                 "start from a checkpoint saved before the run diverged");
    }
}

bool is_deleted(const fs::path& path) { return !fs::exists(fs::symlink_status(path)); }

namespace {

// Whether it has the weights of single workers (model/outer_steps.h), which its model lacks.
bool is_within_round(const fs::path& folder) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none))
        if (entry.path().filename().string().starts_with("worker-")) return true;
    return false;
}

NewestModel search(const fs::path& path) {
    NewestModel newest{path, {}};
    require_model_path(path.string());
    if (!is_present(path)) refuse_missing_model(path.string());
    if (is_present(path / "config.json")) check_model_of_manifest(path);
    else if (path.filename() == "model.safetensors") check_model_of_manifest(path.parent_path());
    else {
        const auto folders = step_folders(path);
        for (auto entry = folders.rbegin(); entry != folders.rend(); ++entry) {
            const fs::path& folder = entry->second;
            try {
                check_model_of_manifest(folder);
                const SavedModel opens(folder);
                newest.path = folder;
                std::error_code none;
                const fs::path best = fs::read_symlink(path / kBestName, none);
                if (!best.empty() && best != folder.filename() && has_files_of_manifest(path / kBestName))
                    newest.notes.push_back(best.string() + " has the lowest validation loss: pass " +
                                           (path / kBestName).string());
                return newest;
            } catch (const UnreadableError&) {
                throw;
            } catch (const Error& error) {
                if (is_deleted(folder)) return search(path);  // deleted by the run, which has a newer one
                newest.notes.push_back("skips " + folder.string() + ": " + error.what());
            }
        }
    }
    return newest;
}

}  // namespace

NewestModel newest_model(const fs::path& path) {
    NewestModel newest = search(path);
    const bool is_folder = is_present(newest.path / "config.json");
    if (is_within_round(is_folder ? newest.path : newest.path.parent_path()))
        newest.notes.push_back(newest.path.string() + " was saved within a round of --outer-steps: its model is that "
                               "of the last outer step");
    return newest;
}

Manifest write_model(const fs::path& folder, const ParameterTable& table, std::span<const float> flat,
                     int end_of_text) {
    require(std::int64_t(flat.size()) == table.elements(), "the length of the array to save", flat.size(),
            std::to_string(table.elements()));
    Manifest written{{"config.json", write_config_json(folder / "config.json", table.config(), end_of_text)}};
    std::vector<TensorToWrite> tensors;
    for (const ParameterSpec& spec : table.tensors())
        tensors.push_back({std::string(kPrefix) + spec.name, "F32", shape_in_files(spec)});
    // transformers refuses files without this metadata
    SafetensorsWriter writer(folder / "model.safetensors", tensors, {{"format", "pt"}});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const ParameterSpec& spec = table.tensors()[i];
        const auto values = table.view(flat, int(i));
        if (spec.transposed_in_files) append_transposed(writer, values, spec.columns, spec.rows);
        else writer.append(values.first(std::size_t(spec.rows_in_files * spec.columns)));
    }
    written["model.safetensors"] = writer.finish();
    return written;
}

}  // namespace llmc
