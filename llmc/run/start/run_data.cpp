// run_data.cpp - opens shards, HellaSwag and the model of --init, and makes batches
#include "llmc/run/start/run_data.h"

#include <algorithm>
#include <exception>
#include <set>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"
#include "llmc/base/fingerprint.h"
#include "llmc/base/input_file.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/run/checkpoint/trainer_state.h"
#include "llmc/run/options/command_line.h"
#include "llmc/text/tokenizer_files.h"
#include "llmc/weights/model_path.h"

namespace llmc {
namespace {

// Reads only some blocks, unlike fingerprint_of_file(): shards may be very large.
std::string fingerprint_of_blocks(const std::string& path) {
    constexpr std::size_t kBlocks = 16, kBlockBytes = 4096;
    const InputFile file(path, "shard");
    const std::size_t block = std::min<std::uint64_t>(file.size(), kBlockBytes), spread = file.size() - block;
    std::vector<std::byte> read(kBlocks * block);
    for (std::size_t i = 0; i < kBlocks; ++i)
        file.read(spread * i / (kBlocks - 1), std::span(read).subspan(i * block, block));
    return fingerprint(read);
}

}  // namespace

std::vector<Fact> shard_facts(const std::string& kind, const ShardSet* shards, const ShardSet* weighted) {
    std::vector<Fact> facts{{"a number of " + kind + " shards of", std::to_string(shards ? shards->size() : 0)}};
    for (std::int64_t i = 0; shards && i < shards->size(); ++i) {
        const Shard& shard = (*shards)[i];
        const auto [vocabulary, end_of_text, merges] = shard.vocabulary();  // the fingerprint includes merges
        facts.push_back({kind + " shard " + std::to_string(i) + " with",
                         std::to_string(shard.tokens()) + " tokens, vocabulary " + std::to_string(vocabulary) +
                             ", end of text " + std::to_string(end_of_text) + ", fingerprint " +
                             fingerprint_of_blocks(shard.path()),
                         shard.path()});
    }
    for (std::size_t i = 0; weighted && i < shards->corpora().size(); ++i) {
        const Corpus& corpus = shards->corpora()[i];
        const std::int64_t weight = weighted->corpora()[i].weight;
        facts.push_back({kind + " corpus " + std::to_string(i) + " with",
                         "weight " + std::to_string(weight) + " and " + counted(corpus.shards, "shard"),
                         corpus.pattern});
    }
    return facts;
}

std::vector<Fact> hellaswag_facts(const HellaSwagFile* file) {
    if (!file) return {{"HellaSwag", "none"}};
    return {{"HellaSwag",
             counted(std::int64_t(file->examples().size()), "example") + ", fingerprint " + file->fingerprint(),
             file->path()}};
}

const ShardSet* weights_of_validation(const RunFiles& files) {
    if (!files.val || files.val->corpora().size() == 1) return nullptr;
    if (files.val->is_weighted()) return files.val.get();
    const std::size_t count = files.train && files.train->is_weighted() ? files.train->corpora().size() : 1;
    if (count == 1) return nullptr;
    require(files.val->corpora().size() == count, "the number of patterns of --val-data", files.val->corpora().size(),
            std::to_string(count) + ", in the order of --train-data, whose weights they get, or a single one",
            "or give each of them a weight, such as :0.5");
    return files.train.get();
}

RunFiles open_files(const RunSettings& o) {
    RunFiles files;
    const auto open = [&](const std::vector<std::string>& patterns) {
        const auto unmatched = [](const std::string& pattern) { return !ShardSet::unmatched({pattern}).empty(); };
        const bool none = patterns.empty() || (o.dry_run.plans && std::ranges::all_of(patterns, unmatched));
        return none ? nullptr : std::make_unique<const ShardSet>(patterns);
    };
    files.train = open(o.data.train);
    files.val = open(o.data.val);
    const auto require_same = [&](const std::string& path, Vocabulary vocabulary, const std::string& others) {
        if (vocabulary != files.vocabulary())
            fail("the vocabulary of " + path, describe(vocabulary),
                 "that of " + others + ", " + describe(files.vocabulary()), "tokenize both with the same tokenizer");
    };
    if (files.train && files.val)
        require_same((*files.val)[0].path(), files.val->vocabulary(), (*files.train)[0].path());
    if (!o.hellaswag.file.empty()) {
        files.hellaswag = std::make_unique<const HellaSwagFile>(o.hellaswag.file);
        require_same(o.hellaswag.file, files.hellaswag->vocabulary(), "the shards");
    }
    const ShardSet *const train = files.train.get(), *const val = files.val.get();
    const bool sets = val && val->corpora().size() > 1;  // each has a loss, with or without weights
    const ShardSet* const weighted = weights_of_validation(files);
    files.train_facts = shard_facts("training", train, train && train->is_weighted() ? train : nullptr);
    files.val_facts = shard_facts("validation", val, weighted || !sets ? weighted : val);
    files.hellaswag_facts = hellaswag_facts(files.hellaswag.get());
    return files;
}

RunBatches make_batches(const RunFiles& files, const RunSettings& o, const StepPlan& steps) {
    RunBatches batches;
    if (files.hellaswag) batches.hellaswag.emplace(*files.hellaswag, int(o.batch.micro_batch), int(o.batch.seq_len));
    try {
        if (!o.eval_only && files.train)
            batches.loader = std::make_unique<DataLoader>(
                *files.train,
                DataLoaderSettings{.steps = steps, .data = o.data, .seed = std::uint64_t(o.seed)});
    } catch (const Error& error) {
        if (!o.dry_run.elsewhere() || error.blame() != Blame::input) throw;
        batches.too_small = error.what();
    }
    std::vector<std::int64_t> weights;
    if (const ShardSet* const weighted = weights_of_validation(files))
        for (const Corpus& corpus : weighted->corpora()) weights.push_back(corpus.weight);
    if (files.val)
        batches.validation =
            validation_sets(*files.val, weights, o.validation.tokens, steps.batch(), o.data.mask_document_start,
                            o.validation.spread);
    return batches;
}

std::unique_ptr<Tokenizer> bpe_of_data(const RunFiles& files, const std::filesystem::path& model) {
    const Vocabulary vocabulary = files.vocabulary();
    std::set<std::filesystem::path> folders;
    if (!model.empty()) {
        const auto folder = std::filesystem::is_directory(model) ? model : model.parent_path();
        folders.insert(folder);
        const auto theirs = load_tokenizer(folder, {vocabulary.size, vocabulary.end_of_text});
        require(!theirs->has_table() || theirs->vocabulary() == vocabulary, "the tokenizer of " + folder.string(),
                describe(theirs->vocabulary()), "that of the shards, " + describe(vocabulary),
                "make shards with dev/tokenize --tokenizer " + folder.string());
    }
    for (const ShardSet* const shards : {files.train.get(), files.val.get()})
        for (std::int64_t i = 0; shards && i < shards->size(); ++i)
            folders.insert(std::filesystem::path((*shards)[i].path()).parent_path());
    for (const std::filesystem::path& folder : folders)
        if (auto found = load_tokenizer(folder, vocabulary); found->has_table()) return found;
    return tokenizer_for(vocabulary);
}

bool is_model_name(const std::string& init) {
    const auto has_end = [&](const char* end) { return init.ends_with(end); };
    return !is_present(init) && init.find('/') == std::string::npos && !has_end(".bin") &&
           !has_end(".safetensors") && !has_end(".json");
}

NewestModel model_of_init(const std::string& init, Communicator& ranks) {
    NewestModel model{init, {}};
    on_first_rank(ranks, [&] {
        require_model_path(init);
        if (is_model_name(init)) return;
        model = newest_model(init);
        if (model.path != init) model.notes.push_back("starts from the newest checkpoint, " + model.path.string());
    });
    model.path = ranks.host_gather(model.path.string())[0];
    return model;
}

StartingPoint starting_point(const NewestModel& model, const RunSettings& options, const RunFiles& files) {
    const Vocabulary vocabulary = files.vocabulary();
    const bool no_data = !files.train && !files.val && !files.hellaswag;
    const std::string init = model.path.string();
    StartingPoint start{.notes = model.notes};
    require_model_path(init);
    if (!is_model_name(init)) {
        start.path = init;
        start.checkpoint.emplace(start.path);
        start.config = start.checkpoint->config();
        const std::string dropout = start.checkpoint->dropout();
        if (!dropout.empty()) start.notes.push_back("dropout is not applied: config.json of --init has " + dropout);
        const auto folder = std::filesystem::is_directory(start.path) ? start.path : start.path.parent_path();
        try {
            if (is_present(folder / kStateName))
                start.run = continued({}, *read_trainer_state(folder).run.options, kStateName).settings;
        } catch (const std::exception& error) {
            start.notes.push_back(std::string("-t, --optimizer, --document-mask and --mask-document-start of --init's "
                                              "run are not known: ") +
                                  error.what());
        }
    } else {
        start.config = model_by_name(init, vocabulary.size).config;
    }
    check(start.config);
    const bool larger = start.config.vocabulary > vocabulary.size;
    require(start.config.vocabulary == vocabulary.size || (larger && options.model.allow_larger_vocabulary) || no_data,
            "the vocabulary of --init " + init, start.config.vocabulary,
            "that of the shards, " + std::to_string(vocabulary.size),
            larger ? "use shards made for this model, or set --allow-larger-vocabulary"
                   : "use shards made for this model, or another --init");
    require(options.batch.seq_len <= start.config.max_seq_len, "--seq-len", options.batch.seq_len,
            "at most the model's " + counted(start.config.max_seq_len, "position"),
            "use -t " + std::to_string(start.config.max_seq_len) +
                ", or train a model with more positions (custom:...,t=N)");
    return start;
}

std::vector<float> initial_weights(const StartingPoint& start, const ParameterTable& table, std::int64_t seed) {
    std::vector<float> weights(std::size_t(table.elements()));
    if (start.checkpoint) {
        start.checkpoint->read(table, weights);
        return weights;
    }
    table.initialise(weights, std::uint64_t(seed));
    return weights;
}

}  // namespace llmc
