// corpus_input.cpp - checks the files of a text corpus and counts their documents
#include "llmc/text/corpus_input.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/file_name.h"
#include "llmc/base/file_status.h"
#include "llmc/text/text_source.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

bool is_pipe(const std::string& path) {  // can be opened only once
    std::error_code none;
    return path == "-" || fs::is_fifo(path, none) || fs::is_character_file(path, none);
}

void check_files(const TextCorpusSettings& settings) {
    std::array<char, 4096> start;
    std::map<std::pair<dev_t, ino_t>, std::string> names;
    for (const std::string& path : settings.files) {
        if (is_pipe(path)) continue;
        TextSource source(path);
        require(source.bytes_in_all() > 0, "text file " + path, "empty", "at least one byte", "leave it out");
        const struct stat status = status_of_file(path, "text file");
        const auto [first, is_new] = names.try_emplace({status.st_dev, status.st_ino}, path);
        require(is_new, "text file " + path, "the same file as " + first->second, "each file once", "leave it out");
        check_format(settings, path, {start.data(), source.read(start)});
    }
}

}  // namespace

bool is_jsonl(const TextCorpusSettings& settings, std::string_view path) {
    if (settings.format != TextFormat::automatic) return settings.format == TextFormat::jsonl;
    for (const std::string_view end : {".gz", ".zst"})
        if (has_ending(path, end)) path.remove_suffix(end.size());
    return has_ending(path, ".jsonl") || has_ending(path, ".ndjson") || has_ending(path, ".json");
}

void check_format(const TextCorpusSettings& settings, const std::string& path, std::string_view start) {
    if (settings.format == TextFormat::text) return;
    if (start.starts_with(kByteOrderMark)) start.remove_prefix(kByteOrderMark.size());
    const auto blanks = [&](std::string_view kind) { return std::min(start.find_first_not_of(kind), start.size()); };
    const auto take = [&](char c) {
        start.remove_prefix(blanks(" \t\r\n"));
        const bool there = start.starts_with(c);
        start.remove_prefix(there);
        return there;
    };
    const bool array = take('['), object = take('{');
    const bool lines = !array && !start.substr(blanks(kBlanks)).starts_with('\n');
    const bool key = take('"');
    start.remove_prefix(std::min(start.find('"'), start.size()));
    const bool refused = is_jsonl(settings, path) ? array || (object && !lines)
                                                  : object && key && take('"') && take(':');
    require(!refused, path == "-" ? "standard input" : "text file " + path,
            array   ? "an array of JSON"
            : lines ? "lines of JSON, by its start"
                    : "a JSON object on several lines",
            lines ? "text, as its name does not end with .jsonl" : "text, or lines of JSON: an object on each line",
            lines ? "set --format jsonl if each line is a document, or --format text"
                  : std::string("convert it: jq -c ") + (array ? "'.[]'" : ".") +
                        " FILE >NAME.jsonl; or set --format text");
}

void check(const TextCorpusSettings& settings) {
    require(!settings.files.empty(), "number of text files", 0, "at least 1", "name the files to read");
    require(!settings.output_dir.empty(), "the output folder", "empty", "a folder", "set --output-dir");
    require(is_file_name(settings.name) && settings.name.find_first_of("*?[]{}\\") == std::string::npos &&
                settings.name.find(kTemporaryShard) == std::string::npos, "the name of the shards",
            in_quotes(settings.name), "a name without '/', *?[]{}\\, control characters or \".bin.partial-\"",
            "change --name");
    require(
        settings.hold_out >= 2 || settings.hold_out == 0, "--hold-out", settings.hold_out,
        "N >= 2: every N-th document is held out for validation, the others are for training; or 0: none");
    require(settings.threads >= 0 && settings.threads <= 1024, "--threads", settings.threads,
            "0 to 1024; 0: one per hardware thread");
    require(settings.shard_tokens >= 2 && settings.shard_tokens <= std::numeric_limits<std::int32_t>::max(),
            "--shard-tokens", settings.shard_tokens, "2 to 2147483647");
    const bool any_jsonl = std::any_of(settings.files.begin(), settings.files.end(),
                                       [&](const std::string& path) { return is_jsonl(settings, path); });
    require(!any_jsonl || settings.documents.is_whole_text(), "--document-start or --document-key",
            "set for lines of JSON", "neither, as every line is a document", "leave it out, or set --format text");
    require(any_jsonl || settings.field == "text", "--field", in_quotes(settings.field) + " without lines of JSON",
            "a file NAME.jsonl, or --format jsonl");
    check_files(settings);
}

std::vector<std::int64_t> sizes_for_tails(const TextCorpusSettings& settings) {
    std::vector<std::int64_t> sizes;
    if (settings.hold_out == 0 || settings.tail_below == 0) return sizes;
    const auto report_progress = [&] {
        if (settings.progress) settings.progress({});
    };
    std::vector<char> room = room_for_text();
    std::int64_t documents = 0;
    for (const std::string& path : settings.files) {
        if (is_pipe(path)) return {};
        const bool jsonl = is_jsonl(settings, path);
        bool blank = true;  // the line so far
        TextSource source(path, report_progress);
        DocumentStream stream(settings.documents, [&](std::string_view, bool begins) { documents += begins; });
        sizes.push_back(0);
        while (const std::size_t got = source.read(std::span(room).first(kReadBytes))) {
            const std::string_view text(room.data(), got);
            if (jsonl) {
                for (const char c : text) {
                    const bool begins = blank && c != '\n' && kBlanks.find(c) == kBlanks.npos;
                    blank = c == '\n' || (blank && !begins);
                    sizes.back() += begins;
                    documents += begins;
                }
            } else {
                stream.append(text);
                sizes.back() += std::int64_t(got);
            }
            if (documents >= settings.tail_below) return {};
            report_progress();
        }
        stream.end();
    }
    return documents < settings.tail_below ? sizes : std::vector<std::int64_t>{};
}

}  // namespace llmc
