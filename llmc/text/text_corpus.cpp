// text_corpus.cpp - converts text files to training and validation shards, document by document
#include "llmc/text/text_corpus.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include "kernels/base/error.h"
#include "kernels/device/control_groups.h"
#include "llmc/base/staged_file.h"
#include "llmc/base/utf8.h"
#include "llmc/text/bpe_split.h"
#include "llmc/text/bpe_tokenizer.h"
#include "llmc/text/corpus_input.h"
#include "llmc/text/encoding_pool.h"
#include "llmc/text/shard_writer.h"
#include "llmc/text/text_source.h"
#include "llmc/text/tokenizer_files.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBatchBytes = 1 << 18, kProbedBytes = 8192;
constexpr std::size_t kMostPieces = 32 << 20;  // bytes; training takes 20 times as much

// Shards of an earlier run would be read together with the new ones.
void refuse_older_shards(const fs::path& folder, const std::string& name) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const std::string file = entry->path().filename().string();
        if ((file.starts_with(name + "_train_") || file.starts_with(name + "_val_")) && file.ends_with(".bin"))
            fail("output file " + entry->path().string(), "already present", "a folder without shards named " + name,
                 "remove them, or change --name or --output-dir");
    }
    if (error)
        fail("output folder " + folder.string(), "unreadable (" + error.message() + ")",
             "a folder that this user may read and write", "change --output-dir");
}

// Beside the shards; bytes and GPT-2's have none, as their vocabulary identifies them.
fs::path tokenizer_file(const TextCorpusSettings& settings) { return fs::path(settings.output_dir) / "tokenizer.json"; }

// `tokenizer`: null: it is not trained yet.
void refuse_other_tokenizer(const TextCorpusSettings& settings, const Tokenizer* tokenizer) {
    const fs::path file = tokenizer_file(settings);
    std::error_code none;
    if ((!tokenizer || tokenizer->vocabulary().merges != 0) && fs::exists(file, none))
        require(tokenizer && read_tokenizer(file)->vocabulary() == tokenizer->vocabulary(),
                "the tokenizer " + file.string(),
                "already present", "a folder without another tokenizer",
                "use it (--tokenizer " + settings.output_dir + "), remove it, or change --output-dir");
}

// The length of the part of `text` before the tail of its file, or npos if that starts later: the tail follows the
// first line end in the last tenth of the file, or the first space in its last twentieth. `at`: where `text` starts in
// the file, of `size` bytes.
std::size_t before_tail(std::string_view text, std::int64_t at, std::int64_t size) {
    const auto from = [&](std::int64_t twentieths) {  // where in `text` these end
        return std::size_t(std::max<std::int64_t>(size / 20 * twentieths + size % 20 * twentieths / 20 - at, 0));
    };
    const std::size_t end = std::min(text.find('\n', from(18)), text.find(' ', from(19)));
    return end == text.npos ? end : end + 1;
}

// Creates the output folder; remove() removes the created folders, if empty, after an error.
class OutputFolder {
public:
    explicit OutputFolder(const std::string& name) {
        std::error_code error;
        std::string why, fix;
        for (fs::path path = name; !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
            created_.push_back(path);
            if (!fs::is_symlink(path, error)) continue;
            const std::string target = fs::read_symlink(path, error).string();
            why = path.string() + " is a symbolic link to " + target + ", which does not exist";
            fix = "create " + target + ", or ";
        }
        fs::create_directories(name, error);
        if (error)
            fail("output folder " + name, "impossible to create (" + (why.empty() ? error.message() : why) + ")",
                 "a folder that this user may write to", fix + "change --output-dir");
    }
    void remove() const {
        std::error_code error;
        for (const fs::path& path : created_) fs::remove(path, error);
    }

private:
    std::vector<fs::path> created_;  // the innermost first
};

constexpr const char* kSplits[] = {"_train", "_val"};

std::string prefix_of(const TextCorpusSettings& settings, const char* split) {
    return (fs::path(settings.output_dir) / (settings.name + split)).string();
}

class SplitWriter {
public:
    SplitWriter(const TextCorpusSettings& settings, const char* split, const Tokenizer& tokenizer)
        : shards_(prefix_of(settings, split), tokenizer.vocabulary(), settings.shard_tokens) {}

    void append(std::span<const std::uint16_t> ids, std::int64_t bytes) {
        shards_.append(ids);
        summary_.bytes += bytes;
    }
    std::int64_t tokens() const { return shards_.tokens(); }
    void seal() { shards_.seal(); }
    void withdraw() { shards_.withdraw(); }
    TextCorpusSplit publish(std::int64_t documents) {
        summary_.documents = documents;
        summary_.tokens = shards_.tokens();
        summary_.shards = shards_.publish();
        return summary_;
    }

private:
    ShardSeriesWriter shards_;
    TextCorpusSplit summary_;
};

// Reads files, divides them into batches, and writes the ids from the pool, all on one thread.
class CorpusWriter {
public:
    explicit CorpusWriter(const TextCorpusSettings& settings)
        : settings_(settings),
          threads_(settings.threads > 0 ? settings.threads : device::usable_threads()),
          sizes_(sizes_for_tails(settings)) {
        if (settings.ids_of_bpe) pool_.emplace(nullptr, settings.files, settings.field, threads_);
        else encode_with(settings.tokenizer);
        for (const std::string& path : settings.files) {
            std::error_code unknown;
            const auto size = fs::file_size(path, unknown);
            if (unknown) {
                progress_.bytes_in_all = 0;
                break;
            }
            progress_.bytes_in_all += std::int64_t(size);
        }
    }

    TextCorpusSummary write() {
        for (file_ = 0; file_ < settings_.files.size(); ++file_) read_file();
        submit();
        if (settings_.hold_out > 0 && held_out_documents_ == 0) nothing_held_out();
        if (!tokenizer_) train_tokenizer();
        while (!pool_->empty()) take_oldest();
        train_->seal();
        if (settings_.hold_out > 0) val_->seal();  // before either is published, so that a full disk leaves neither
        publish();
        summary_.tails = !sizes_.empty();
        summary_.bytes_read = progress_.bytes_read;
        summary_.threads = threads_;
        return summary_;
    }

private:
    void publish() {
        std::error_code none;
        std::vector<fs::path> written;
        try {
            refuse_other_tokenizer(settings_, tokenizer_.get());  // another program may have trained it meanwhile
            if (tokenizer_->vocabulary().merges != 0) summary_.tokenizer_file = tokenizer_file(settings_).string();
            if (!summary_.tokenizer_file.empty() && !fs::exists(summary_.tokenizer_file, none))
                for (const auto& [name, contents] : tokenizer_files(*tokenizer_, 0))
                    if (name.starts_with("tokenizer"))
                        write_whole(written.emplace_back(fs::path(settings_.output_dir) / name), contents);
            summary_.train = train_->publish(documents_ - held_out_documents_);
            if (settings_.hold_out > 0) summary_.val = val_->publish(held_out_documents_);
        } catch (...) {
            train_->withdraw();
            for (const fs::path& file : written) fs::remove(file, none);
            throw;
        }
        summary_.tokenizer = tokenizer_;
    }
    [[noreturn]] void nothing_held_out() const {
        constexpr std::int64_t kShort = 20;  // bytes, or lines of JSON
        if (!sizes_.empty())
            fail("the text", std::ranges::max(sizes_) <= kShort ? "too short to hold out its last tenth"
                 : "without a line end in its last tenth, or a space in its last twentieth, to hold out what follows",
                 "a line end in the last tenth of a file, or two lines of JSON",
                 "add text or line ends, or set --hold-out 0, which writes no validation shards");
        std::string how = "lower --hold-out (0: none)";
        if (settings_.tail_below > 0) how += ", or pass files instead of a pipe, to hold out their last tenth";
        if (line_ends_ > 0) how += ", or split the text with --document-key or --document-start";
        if (summary_.crlf_lines > 0)
            how += "; a line that ends with CR LF is not blank: convert them to LF with sed 's/\\r$//'";
        fail("number of documents", documents_, "at least the " + std::to_string(settings_.hold_out) +
             " of --hold-out, so that one is left for validation", how);
    }
    void read_file() {
        TextSource source(settings_.files[file_], [this] { report_progress(); });
        documents_before_ = documents_;
        const std::int64_t bytes_before = progress_.bytes_read;
        const bool jsonl = is_jsonl(settings_, source.path());
        const DocumentStream::Take add_part = [&](std::string_view text, bool begins) { add(text, begins); };
        std::optional<DocumentStream> documents(std::in_place, settings_.documents, add_part);
        std::int64_t read = 0;  // bytes of text
        in_tail_ = false;
        std::string line;
        TextCheck check;
        line_ = 0;
        bool first = true, binary = false;
        for (;;) {
            const std::size_t got = source.read(std::span(room_).first(kReadBytes));
            if (got == 0) break;
            std::string_view text(room_.data(), got);
            if (std::exchange(first, false)) {
                check_format(settings_, source.path(), text);
                binary = text.substr(0, kProbedBytes).find('\0') != text.npos;
                summary_.binary_files += binary;
                if (text.starts_with(kByteOrderMark)) {
                    text.remove_prefix(kByteOrderMark.size());
                    ++summary_.boms;
                }
            }
            if (jsonl) {
                add_lines(text, line);
            } else {
                check.append({room_.data(), got});
                const bool ahead = !sizes_.empty() && !in_tail_;  // the tail of this file
                if (const std::size_t head = ahead ? before_tail(text, read, sizes_[file_]) : text.npos;
                    head != text.npos) {
                    documents->append(text.substr(0, head));
                    documents->end();
                    documents.emplace(settings_.documents, add_part);
                    in_tail_ = true;
                    text.remove_prefix(head);
                }
                documents->append(text);
            }
            read += std::int64_t(got);
            progress_.bytes_read = bytes_before + source.bytes_taken();
        }
        documents->end();
        if (jsonl) add_line(line);
        else add_check(check, binary);
        require(documents_ > documents_before_,
                source.path() == "-" ? "standard input" : "text file " + source.path(), "empty",
                jsonl ? "at least one line" : "at least one byte", "leave it out");
    }

    void add_check(TextCheck& check, bool binary) {
        check.append("", true);
        line_ends_ += check.line_ends;
        if (binary) return;
        summary_.crlf_lines += check.crlf;
        if (check.invalid > 0 && summary_.invalid_bytes == 0)
            summary_.first_invalid = "line " + std::to_string(check.first_line) + " of " +
                                     name_of_text(settings_.files[file_]) + ", byte " +
                                     std::to_string(check.first_byte);
        summary_.invalid_bytes += check.invalid;
    }

    // Adds the next part of a document; splits it if the batch is full.
    void add(std::string_view text, bool begins) {
        begin_part(begins);
        batch_.text += text;
        batch_.parts.back().length += text.size();
        if (batch_.text.size() < full_at_) return;
        const std::size_t part = batch_.parts.back().length, before = batch_.text.size() - part;
        const std::string_view last = std::string_view(batch_.text).substr(before);
        const std::size_t cut = tokenizer_ ? tokenizer_->certain_prefix(last) : certain_pieces(last);
        if (cut == 0 && before == 0) {
            full_at_ = 2 * batch_.text.size();
            return;
        }
        // The rest is encoded with the text that follows it.
        const std::string rest = batch_.text.substr(before + cut);
        const bool rest_begins = cut == 0 && batch_.parts.back().begins;
        batch_.text.resize(before + cut);
        batch_.parts.back().length = cut;
        if (cut == 0) batch_.parts.pop_back();
        submit();
        if (rest.empty()) return;
        batch_.parts.push_back({.length = rest.size(), .held_out = held_out_, .begins = rest_begins, .file = file_});
        batch_.text = rest;
    }
    void begin_part(bool begins) {
        if (begins) {
            ++documents_;
            held_out_ = sizes_.empty() ? settings_.hold_out > 0 && documents_ % settings_.hold_out == 0 : in_tail_;
            held_out_documents_ += held_out_;
        }
        if (begins || batch_.parts.empty())
            batch_.parts.push_back({.held_out = held_out_, .begins = begins, .file = file_});
    }

    void add_lines(std::string_view text, std::string& unfinished) {
        for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
            if (unfinished.empty()) {
                add_line(text.substr(0, end));
            } else {
                unfinished += text.substr(0, end);
                add_line(unfinished);
                unfinished.clear();
            }
        }
        unfinished += text;
    }
    void add_line(std::string_view line) {
        ++line_;
        if (line.find_first_not_of(kBlanks) == line.npos) return;
        if (const std::int64_t size = sizes_.empty() ? 0 : sizes_[file_]; size > 1)
            in_tail_ = documents_ - documents_before_ >= size - std::max<std::int64_t>(size / 10, 1);
        begin_part(true);
        batch_.parts.back().length = line.size();
        batch_.parts.back().json = true;
        batch_.parts.back().line = line_;
        batch_.text += line;
        if (batch_.text.size() >= kBatchBytes) submit();
    }

    // Passes the batch to the pool, which encodes it on other threads.
    void submit() {
        full_at_ = kBatchBytes;
        if (!batch_.parts.empty()) submit(std::exchange(batch_, {}));
        if (!tokenizer_ && has_enough_to_train()) train_tokenizer();
    }
    void submit(TextBatch batch) {
        if (pool_->full()) take_oldest();
        pool_->submit(std::move(batch));
    }
    // Waits for the pool's oldest batch, and writes its ids, or keeps it and counts its pieces.
    void take_oldest() {
        TokenBatch tokens = pool_->take();
        summary_.lone_surrogates += tokens.lone_surrogates;
        if (tokenizer_) {
            train_->append(tokens.train, tokens.train_bytes);
            val_->append(tokens.val, tokens.val_bytes);
            progress_.tokens = train_->tokens() + val_->tokens();
        } else {
            // Which batches count does not depend on how many are in the pool.
            if (!has_enough_to_train()) {
                pieces_.add(tokens.pieces);
                kept_bytes_ += tokens.text->text.capacity();  // of lines of JSON, their length
                summary_.trained_on += tokens.train_bytes;
            }
            kept_.push_back(std::move(tokens.text));
        }
        report_progress();
    }
    bool has_enough_to_train() const {
        return kept_bytes_ >= settings_.most_to_train || pieces_.bytes() >= kMostPieces;
    }
    void train_tokenizer() {
        while (!pool_->empty()) take_oldest();
        summary_.ids_wanted = settings_.ids_of_bpe(summary_.trained_on);
        BpeMerges merges = train_merges(std::exchange(pieces_, {}), summary_.ids_wanted - kByteVocabulary.size,
                                        [this] { report_progress(); });
        if (merges.merges.empty()) encode_with(tokenizer_for(kByteVocabulary));
        else encode_with(std::make_shared<BpeTokenizer>(std::move(merges)));
        for (auto& text : std::exchange(kept_, {})) submit(std::move(*std::exchange(text, nullptr)));
    }
    void encode_with(std::shared_ptr<const Tokenizer> tokenizer) {
        tokenizer_ = std::move(tokenizer);
        train_.emplace(settings_, kSplits[0], *tokenizer_);
        val_.emplace(settings_, kSplits[1], *tokenizer_);
        pool_.emplace(tokenizer_.get(), settings_.files, settings_.field, threads_);
    }
    void report_progress() const {
        if (settings_.progress) settings_.progress(progress_);
    }

    const TextCorpusSettings& settings_;
    const int threads_;
    std::shared_ptr<const Tokenizer> tokenizer_;  // null: it is being trained on the texts that are kept
    std::optional<SplitWriter> train_, val_;
    std::vector<std::unique_ptr<TextBatch>> kept_;
    PieceCounts pieces_;  // of kept_
    std::size_t kept_bytes_ = 0;
    TextCorpusSummary summary_;
    TextCorpusProgress progress_;
    std::vector<char> room_ = room_for_text();
    std::size_t file_ = 0;
    std::int64_t documents_ = 0, held_out_documents_ = 0, line_ = 0;
    std::int64_t documents_before_ = 0;        // this file
    bool held_out_ = false, in_tail_ = false;  // the current document; the current part of the file
    std::int64_t line_ends_ = 0;               // of text, not of JSON
    const std::vector<std::int64_t> sizes_;    // of the files, if their tails are held out
    TextBatch batch_;
    std::size_t full_at_ = kBatchBytes;        // more if the tokenizer cannot split the batch
    std::optional<EncodingPool> pool_;  // declared last: its threads end before the other members are destroyed
};

}  // namespace

TextCorpusSummary write_text_corpus(const TextCorpusSettings& settings) {
    check(settings);
    const OutputFolder folder(settings.output_dir);
    try {
        refuse_older_shards(settings.output_dir, settings.name);
        refuse_other_tokenizer(settings, settings.ids_of_bpe ? nullptr : settings.tokenizer.get());
        std::int64_t left_over = 0;
        for (const char* const split : kSplits)
            left_over += ShardSeriesWriter::remove_left_over(prefix_of(settings, split));
        TextCorpusSummary summary = CorpusWriter(settings).write();
        summary.left_over = left_over;
        return summary;
    } catch (const Error& error) {
        if (error.blame() == Blame::input) folder.remove();
        throw;
    } catch (...) {  // from settings.progress
        folder.remove();
        throw;
    }
}

}  // namespace llmc
