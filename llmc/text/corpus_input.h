// corpus_input.h - the files of a text corpus: their formats, the checks before anything is written, and their sizes
#pragma once
#include "llmc/text/text_corpus.h"

namespace llmc {

// What is read at once.
inline constexpr std::size_t kReadBytes = 1 << 18;
// For kReadBytes and a NUL: AddressSanitizer takes the text of regexec() for a C string, also with REG_STARTEND.
inline std::vector<char> room_for_text() { return std::vector<char>(kReadBytes + 1); }
// A line of JSON that has only these is no document.
inline constexpr std::string_view kBlanks = " \t\r";
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Whether every line of the file is a document.
bool is_jsonl(const TextCorpusSettings& settings, std::string_view path);

// Throws Error for a text that starts as JSON if it is not read as such, and for JSON on several lines. `start`: the
// start of the text, decompressed.
void check_format(const TextCorpusSettings& settings, const std::string& path, std::string_view start);

// Throws Error for invalid settings, and for a file that is missing, empty, named twice or of another format: without
// it, the last file would be reported only after all previous ones were read. Pipes are not read.
void check(const TextCorpusSettings& settings);

// The size of each file, if their tails are held out: bytes of text, or lines of JSON. Otherwise empty.
std::vector<std::int64_t> sizes_for_tails(const TextCorpusSettings& settings);

}  // namespace llmc
