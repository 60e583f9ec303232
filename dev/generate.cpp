// generate.cpp - generates text from a saved model and streams it, for one prompt or for each line of standard input
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "llmc/base/clock.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/model.h"
#include "llmc/model/precision.h"
#include "llmc/run/control/interrupt.h"
#include "llmc/run/evaluation/generation.h"
#include "llmc/text/bpe_merges.h"
#include "llmc/text/tokenizer_files.h"
#include "llmc/weights/saved_model.h"

using namespace base;

namespace {

using llmc::mebibytes, llmc::Tokenizer, llmc::Vocabulary;
using Ids = std::vector<int>;

cxxopts::Options command_line() {
    cxxopts::Options options("dev/generate",
                             "Generates text from a saved model.\n\n"
                             "  dev/generate -e runs/mine --prompt \"In the beginning\"\n"
                             "  dev/generate -e runs/mine/step_00000200 -n 100 --top-p 0.9 --samples 3\n"
                             "  dev/generate -e gpt2_folder --prompt-ids \"464 2068 7586\"    (no tokenizer needed)\n"
                             "  dev/generate -e runs/mine                                     (interactive)\n");
    options.custom_help("-e PATH [OPTION...]").positional_help("");
    const auto text = [] { return cxxopts::value<std::string>(); };
    options.add_options("Model")(
        "e,checkpoint",
        "a saved model: a checkpoint folder of this program or of transformers, a .safetensors file or llm.c's .bin "
        "file; or the folder of a run, for its newest checkpoint",
        text(), "PATH")("dtype", "fp32, or bf16: half the memory traffic, and faster",
                        text()->default_value("fp32"), "TYPE")(
        "threads", "CPU threads; 0: one per hardware thread, at most the CPU quota", text()->default_value("0"), "N");
    options.add_options("Prompt")(
        "prompt",
        "text to continue, after an end-of-text token, which starts a document; \"\": that token alone (default: each "
        "line of standard input is a prompt)",
        text(), "TEXT")("no-bos", "do not add an end-of-text token before the text")(
        "prompt-ids", "the prompt as token ids, separated by spaces or commas; no token is added before them", text(),
        "IDS");
    options.add_options("Text")("n,tokens", "maximum number of new tokens; an end-of-text token ends a text earlier",
                                text()->default_value("256"), "N")(
        "samples", "texts to generate; the first is streamed, the others follow", text()->default_value("1"), "N");
    options.add_options("Sampling")("temperature", "softmax temperature; 0: always the most likely token",
                                    text()->default_value("1"), "T")(
        "top-k", "sample from the K most likely tokens; 0: from all", text()->default_value("50"), "K")(
        "top-p", "nucleus sampling: sample only from the smallest set of the --top-k tokens with at least this "
        "cumulative probability; 1: off",
        text()->default_value("1"), "P")("seed", "the same seed and prompt give the same text",
                                         text()->default_value("0"), "N");
    options.add_options("Other")("h,help", "print this help and exit");
    return options;
}

template <class Number>
Number number(const cxxopts::ParseResult& given, const std::string& flag, Number least, Number most) {
    return llmc::parse_number("--" + flag, given[flag].as<std::string>(), least, most);
}

// ---- the model

// The model's tokenizer, loaded from its folder if saved there. A model may have more ids than its tokenizer (padding),
// so the end-of-text id identifies the vocabulary, or the number of ids if the model does not name one.
std::unique_ptr<Tokenizer> tokenizer_of(const llmc::SavedModel& checkpoint, const std::filesystem::path& folder) {
    Vocabulary vocabulary{checkpoint.config().vocabulary, checkpoint.end_of_text()};
    for (const Vocabulary& known : {llmc::kByteVocabulary, llmc::kGpt2Vocabulary})
        if (vocabulary.end_of_text >= 0 ? vocabulary.end_of_text == known.end_of_text && vocabulary.size >= known.size
                                        : vocabulary.size == known.size)
            return llmc::load_tokenizer(folder, known);
    try {
        // A BPE of its own; or GPT-2's with added tokens.
        auto own = llmc::load_tokenizer(folder, {vocabulary.end_of_text + 1, vocabulary.end_of_text});
        if (own->has_table()) return own;
        if (vocabulary.end_of_text >= llmc::kGpt2Vocabulary.size && !llmc::read_tokenizer_files(folder).empty())
            return llmc::load_tokenizer(folder, llmc::kGpt2Vocabulary);
    } catch (const Error&) {  // another
    }
    return llmc::tokenizer_for(vocabulary);
}

struct SavedModel {
    std::filesystem::path path;
    llmc::SavedModel checkpoint;
    std::unique_ptr<Tokenizer> tokenizer;
};

// Opened files stay readable if the run deletes the checkpoint; if it did so before, the search starts again.
SavedModel open_newest(const std::filesystem::path& given) {
    while (true) {
        const auto newest = llmc::newest_model(given);
        try {
            llmc::SavedModel checkpoint(newest.path);
            auto tokenizer = tokenizer_of(checkpoint, newest.path);
            if (newest.path != given && llmc::is_deleted(newest.path)) continue;
            for (const std::string& note : newest.notes) std::cerr << "note: " << note << '\n';
            return {newest.path, std::move(checkpoint), std::move(tokenizer)};
        } catch (const Error&) {
            if (newest.path == given || !llmc::is_deleted(newest.path)) throw;
        }
    }
}

std::unique_ptr<llmc::Model> load_model(const llmc::SavedModel& checkpoint, kernels::DType dtype,
                                        const llmc::DecoderShape& shape, llmc::Context& context) {
    const llmc::ModelSetup setup{.config = checkpoint.config(), .dtype = dtype, .shape = {1, 1}, .training = false};
    const llmc::ParameterTable table(setup.config);
    const llmc::ModelBytes model = llmc::model_bytes(setup, table, context.device);
    const llmc::DecoderBytes decoder = llmc::decoder_bytes(setup.config, dtype, shape);
    const std::size_t needed = model.parameters + model.master_weights + model.activations + model.load +
                               decoder.total() + context.device.library_bytes;
    const std::size_t available = context.device.memory_available();
    if (available > 0 && needed > available)
        fail("the memory for the model", mebibytes(needed) + ", including a cache of " + mebibytes(decoder.cache),
             "at most the available " + mebibytes(available),
             std::string(shape.sequences > 1 ? "use fewer --samples, " : "use ") +
                 (dtype == kernels::DType::fp32 ? "--dtype bf16 or " : "") + "a smaller model");
    auto loaded = llmc::make_model(setup, table, context);
    std::vector<float> weights(std::size_t(table.elements()));
    checkpoint.read(table, weights);
    loaded->load(weights);
    return loaded;
}

// ---- prompts

// Token ids of `text`; with `bos` after an end-of-text token, which starts every document.
Ids prompt_of(const Tokenizer& tokenizer, const std::string& text, bool bos) {
    const Vocabulary vocabulary = tokenizer.vocabulary();
    Ids prompt;
    if (bos && vocabulary.end_of_text >= 0) prompt.push_back(vocabulary.end_of_text);
    if (!text.empty()) {
        const Ids ids = tokenizer.encode(text);
        prompt.insert(prompt.end(), ids.begin(), ids.end());
    }
    require(!prompt.empty(), "the prompt", "empty",
            bos ? "some text, as this model has no id for the start of a document" : "some text, with --no-bos");
    return prompt;
}

Ids ids_in(const std::string& text, const std::string& what, int vocabulary) {
    constexpr std::string_view kBetween = " ,\t";
    Ids ids;
    const char *at = text.data(), *const end = at + text.size();
    int commas = 0;  // after the last id
    while (true) {
        for (; at != end && (*at == ' ' || *at == ',' || *at == '\t'); ++at) commas += *at == ',';
        require(commas == 0 || (commas == 1 && !ids.empty() && at != end), what, in_quotes(text),
                "a token id before and after every comma");
        if (at == end) break;
        commas = 0;
        int id = -1;
        const std::string word{at, std::find_first_of(at, end, kBetween.begin(), kBetween.end())};
        at += word.size();
        const auto [rest, error] = std::from_chars(at - word.size(), at, id);
        require(error == std::errc{} && rest == at && id >= 0 && id < vocabulary, what,
                in_quotes(text) + (text == word ? "" : " with " + in_quotes(word)),
                "token ids from 0 to " + std::to_string(vocabulary - 1) + ", separated by spaces or commas");
        ids.push_back(id);
    }
    require(!ids.empty(), what, in_quotes(text), "at least one token id");
    return ids;
}

// Reads lines from standard input. next() also returns nothing once `interrupt` has received a signal.
class Lines {
public:
    explicit Lines(const llmc::Interrupt& interrupt) : interrupt_(interrupt) {}
    std::optional<std::string> next() {
        constexpr int kMilliseconds = 100;
        while (true) {
            if (const auto newline = pending_.find('\n'); newline != std::string::npos) {
                const std::string line = pending_.substr(0, newline);
                pending_.erase(0, newline + 1);
                return line;
            }
            if (ended_) return pending_.empty() ? std::nullopt : std::optional(std::exchange(pending_, {}));
            if (interrupt_.signal() != 0) return std::nullopt;
            pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
            if (poll(&input, 1, kMilliseconds) <= 0) continue;
            char bytes[4096];
            const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
            if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (count <= 0) ended_ = true;
            else pending_.append(bytes, std::size_t(count));
        }
    }

private:
    const llmc::Interrupt& interrupt_;
    std::string pending_;
    bool ended_ = false;
};

// ---- output

// Prints the samples of one prompt one after the other; streams the first sample that has not ended.
class Printer {
public:
    // Every sample begins with `shown`, whose last token is `last`; -1: none.
    Printer(const Tokenizer& tokenizer, int samples, const std::string& shown, int last)
        : tokenizer_(tokenizer),
          prompt_(shown),
          last_(last),
          samples_(std::size_t(samples)),
          ended_(std::size_t(samples)) {
        head();
    }
    void add(int sample, int token) {
        samples_[std::size_t(sample)].push_back(token);
        ++tokens_;
        if (token == tokenizer_.vocabulary().end_of_text) ended_[std::size_t(sample)] = true;
        show();
    }
    // All samples have ended or were interrupted.
    void finish() {
        ended_.assign(samples_.size(), true);
        show();
    }
    std::int64_t tokens() const { return tokens_; }

private:
    void head() {
        if (samples_.size() > 1) std::cout << "--- sample " << current_ + 1 << " of " << samples_.size() << " ---\n";
        write(prompt_);
        before_ = last_;
    }
    void show() {
        while (current_ < samples_.size()) {
            const Ids& ids = samples_[current_];
            for (; shown_ < ids.size(); ++shown_) {
                if (ids[shown_] != tokenizer_.vocabulary().end_of_text) write(piece(ids[shown_]));
                before_ = ids[shown_];
            }
            if (!ended_[current_]) break;
            write("", true);
            shown_ = 0;
            if (++current_ < samples_.size()) head();
        }
    }
    // Text of a token after the token before it: a tokenizer may put a space between them.
    std::string piece(int token) const {
        if (before_ < 0 || before_ == tokenizer_.vocabulary().end_of_text) return tokenizer_.decode({&token, 1});
        const int both[] = {before_, token};
        return tokenizer_.decode(both).substr(tokenizer_.decode({both, 1}).size());
    }
    void write(const std::string& bytes, bool last = false) {
        std::cout << stream_.add(bytes);
        if (last) std::cout << stream_.finish() << '\n';
        std::cout << std::flush;
    }

    const Tokenizer& tokenizer_;
    const std::string prompt_;
    const int last_;
    std::vector<Ids> samples_;
    std::vector<bool> ended_;
    llmc::TextStream stream_;
    std::size_t current_ = 0, shown_ = 0;
    int before_ = -1;
    std::int64_t tokens_ = 0;
};

// "256 tokens in 6.10 s: the first after 0.21 s, with the prompt's 5 tokens, then 42.0 tokens/s"
void report(std::int64_t tokens, int samples, std::size_t prompt, double first, double all) {
    std::cerr << llmc::format("%s in %.2f s: the first after %.2f s, with the prompt's %s",
                              llmc::counted(tokens, "token").c_str(), all, first,
                              llmc::counted(std::int64_t(prompt), "token").c_str());
    if (tokens > samples && all > first)
        std::cerr << llmc::format(", then %.1f tokens/s", double(tokens - samples) / (all - first));
    std::cerr << '\n';
}

// ---- the program

struct Session {
    const Tokenizer& tokenizer;
    const llmc::GenerationSettings& settings;
    llmc::Generator& generator;
    const llmc::Interrupt& interrupt;
    const bool bos;

    // Generates and prints the samples, `shown` before each.
    void one_prompt(const Ids& prompt, const std::string& shown) const {
        if (int(prompt.size()) > settings.window)
            std::cerr << "note: the prompt has " << prompt.size() << " tokens; the model sees the last "
                      << settings.window << '\n';
        Printer printer(tokenizer, settings.samples, shown, shown.empty() ? -1 : prompt.back());
        const double began = llmc::seconds_now();
        double first = 0;
        generator.generate(
            prompt,
            [&](int sample, int token) {
                printer.add(sample, token);
                if (first == 0) first = llmc::seconds_now();
            },
            [&] { return interrupt.signal() != 0 || !std::cout; });
        printer.finish();
        if (!std::cout) fail("standard output", "closed, or has no room", "a place for the text", {}, Blame::runtime);
        if (printer.tokens() > 0)
            report(printer.tokens(), settings.samples, prompt.size(), first - began,
                   llmc::seconds_now() - began);
    }

    void prompts_of_user() const {
        const char* const empty = !tokenizer.has_table() ? "token ids"
                                  : bos                  ? "an empty line starts a document"
                                                         : "text";
        std::cerr << "each line is a prompt (" << empty << "); Ctrl-D exits\n";
        Lines lines(interrupt);
        for (std::uint64_t number = 0; interrupt.signal() == 0; ++number) {
            std::cerr << "> " << std::flush;
            const auto line = lines.next();
            if (!line) break;
            try {
                const Ids prompt = tokenizer.has_table()
                                       ? prompt_of(tokenizer, *line, bos)
                                       : ids_in(*line, "the prompt", tokenizer.vocabulary().size);
                generator.reseed(settings.seed + number);
                one_prompt(prompt, "");
            } catch (const Error& error) {
                if (error.blame() != Blame::input) throw;
                std::cerr << error.what() << '\n';
            }
        }
        std::cerr << '\n';
    }
};

void run(const cxxopts::ParseResult& given) {
    require(given.count("checkpoint") > 0, "--checkpoint", "not given", "a saved model", "see --help");
    require(given.count("prompt") + given.count("prompt-ids") <= 1, "the number of prompts", 2, "at most 1",
            "pass --prompt or --prompt-ids, not both");
    const auto dtype = llmc::value_by_name("--dtype", given["dtype"].as<std::string>(), llmc::kDTypes);
    llmc::GenerationSettings settings{
        .tokens = number(given, "tokens", 1, 1 << 20),
        .samples = number(given, "samples", 1, 1000),
        .sampling = {.top_k = number(given, "top-k", 0, 65536), .top_p = number(given, "top-p", 1e-6, 1.0),
                     .temperature = number(given, "temperature", 0.0, 100.0)},
        .seed = std::uint64_t(number(given, "seed", std::int64_t(0), std::numeric_limits<std::int64_t>::max()))};
    const int threads = number(given, "threads", 0, 1024);
    const bool bos = !given["no-bos"].as<bool>();

    const llmc::Interrupt interrupt;  // before anything starts a thread
    const SavedModel saved = open_newest(given["checkpoint"].as<std::string>());
    const auto& [path, checkpoint, tokenizer] = saved;
    settings.window = checkpoint.config().max_seq_len;
    std::cerr << path.string() << ": " << llmc::describe(checkpoint.config()) << '\n';

    // An invalid prompt is refused before the model is loaded.
    std::optional<Ids> prompt;
    std::string shown;
    if (given.count("prompt")) {
        shown = given["prompt"].as<std::string>();
        prompt = prompt_of(*tokenizer, shown, bos);
    } else if (given.count("prompt-ids")) {
        prompt = ids_in(given["prompt-ids"].as<std::string>(), "--prompt-ids",
                        tokenizer->has_table() ? tokenizer->vocabulary().size : checkpoint.config().vocabulary);
        shown = tokenizer->decode(*prompt);
    }
    llmc::Context context{device::open(threads), device::Stream(), kernels::Matmul()};
    const auto longest = prompt ? prompt->size() : std::size_t(settings.window);
    const auto model = load_model(checkpoint, dtype, llmc::decoder_shape(settings, longest), context);
    llmc::Generator generator(*model, settings, tokenizer->vocabulary(), longest, context);
    const Session session{*tokenizer, settings, generator, interrupt, bos};
    if (prompt) session.one_prompt(*prompt, shown);
    else session.prompts_of_user();
}

}  // namespace

int main(int argc, char** argv) {
    return tool_main("dev/generate", command_line(), argc, argv, run, {"Model", "Prompt", "Text", "Sampling", "Other"});
}
