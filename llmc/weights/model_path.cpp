// model_path.cpp - recognizes names of Hugging Face's hub, and maps GPT-2's names to sizes
#include "llmc/weights/model_path.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/weights/step_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOwner = "openai-community/";
// The published GPT-2 models on the hub, and the names of their sizes in this program.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPublished{
    {{"gpt2", "d12"}, {"gpt2-medium", "d24"}, {"gpt2-large", "d36"}, {"gpt2-xl", "d48"}}};

bool is_hub_word(std::string_view word) {
    return !word.empty() && word.front() != '.' && std::ranges::all_of(word, [](unsigned char c) {
        return std::isalnum(c) || c == '-' || c == '_' || c == '.';
    });
}

// Whether the path has the form OWNER/NAME and there is no folder OWNER. "runs" is where this program's examples write.
bool looks_like_hub_name(const std::string& path) {
    const auto slash = path.find('/');
    if (slash == path.npos || path.ends_with(".bin") || path.ends_with(".safetensors") || path.ends_with(".json"))
        return false;
    const std::string_view text = path, owner = text.substr(0, slash), name = text.substr(slash + 1);
    std::error_code none;
    return owner != "runs" && is_hub_word(owner) && is_hub_word(name) && !fs::exists(owner, none);
}

// How to download a model of the hub.
std::string download(const std::string& of_hub) {
    const std::string folder = fs::path(of_hub).filename();
    return "hf download " + of_hub + " config.json model.safetensors merges.txt --local-dir " + folder +
           ", then pass " + folder;
}

}  // namespace

void require_model_path(const std::string& path) {
    std::error_code none;
    const bool there = fs::exists(path, none);
    for (const fs::path& part : fs::path(path))
        if (there && is_partial_checkpoint(part))
            fail(in_quotes(path), "an incomplete checkpoint", "a complete one",
                 "pass a step_XXXXXXXX beside it; --resume auto resumes its run from the newest one");
    if (there) return;
    const std::string name = path.starts_with(kOwner) ? path.substr(kOwner.size()) : path;
    const auto* const published =
        std::ranges::find_if(kPublished, [&](const auto& size) { return size.first == name; });
    if (published != kPublished.end())
        fail(in_quotes(path), "a model on Hugging Face's hub", "a model on this machine",
             "download it: " + download(std::string(kOwner) + name) + "; or pass " + std::string(published->second) +
                 ", its size with random weights");
    if (looks_like_hub_name(path)) refuse_missing_model(path);
}

void refuse_missing_model(const std::string& path) {
    fail(in_quotes(path), "no folder, run or model",
         "the folder of a run, a checkpoint or a transformers model, a .safetensors file or llm.c's .bin file",
         looks_like_hub_name(path)
             ? "if it is on Hugging Face's hub: " + download(path)
             : "check the spelling; -e of train_gpt2 also takes a size, such as d12 or custom:l=4,h=4,c=128");
}

void add_options(OptionList& list, ModelSettings& s) {
    list.group("Data and model");
    list.entry("e,init", s.init,
        "model: d12 (depth 12), gpt3:c768 (GPT-3 with 768 channels), custom:l=4,h=4,c=128[,t=1024][,v=257] (layers, "
        "heads, channels, positions, vocabulary), or a model to start from: a folder, a .safetensors file, or "
        "llm.c's .bin file; or the folder of a run, for its newest checkpoint; auto: the size with the lowest expected "
        "loss",
        OnResume::same, ByRun{});
    list.group("Tokenizer");
    list.entry("merges", s.merges,
        "file with GPT-2's BPE merges, for text in prompts and samples and for the tokenizer in checkpoints: "
        "vocab.bpe, merges.txt or tokenizer.json; empty: from the folder of --init, else "
        "data/gpt2/vocab.bpe (written by scripts/get_gpt2_tokenizer.sh)",
        OnRanks::of_the_host);
    list.entry("allow-larger-vocabulary", s.allow_larger_vocabulary,
        "allow a model whose vocabulary is larger than the shards'; the extra ids never occur, and checkpoints "
        "keep the tokenizer files and eos_token_id of a model that adds tokens to GPT-2's");
}

}  // namespace llmc
