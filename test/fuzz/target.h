// target.h - interface of the files in test/fuzz/targets: a named parser, and files with libFuzzer's inputs
//
// The contract that check() requires of every parser: for any bytes it returns, or throws Error with a message of
// one line. A target checks further properties with must().
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

using Parse = void (*)(std::string_view bytes);

// Each file in test/fuzz/targets defines a static one, with the name of the file, its corpus and its program.
struct Target {
    Target(std::string_view name, Parse parse);
};
struct NamedTarget {
    std::string_view name;
    Parse parse;
};
std::vector<NamedTarget>& targets();

// Not a std::exception, so that no parser and no check handles it: libFuzzer's process ends.
struct Finding {
    std::string what;
};
// Throws Finding, also for what a target requires with must().
void check(Parse parse, std::string_view bytes);

// If `holds` is false: prints that it is not `what`, and throws Finding.
void must(bool holds, std::string_view what);
// Reports a finding if a terminal would not show the text unchanged on one line.
void must_be_plain(std::string_view text);

// Folder of this process, empty at its start and deleted at its end.
const std::filesystem::path& scratch_folder();
// Overwrites the file `name` in the scratch folder with `bytes`.
std::filesystem::path file_with(const std::string& name, std::string_view bytes);

// A file with a header of 1024 bytes: the first `meant` of these bytes, then zeros; the rest of the bytes follows. So
// mutations need not preserve unused header bytes. Returns `bytes` unchanged if they are a whole header or more, or
// fewer than `meant`.
std::string with_header_of(std::size_t meant, std::string_view bytes);

// A safetensors file from its header, up to the first line feed, and its data; adds the length of the header, which
// mutations would not keep correct.
std::string safetensors_of(std::string_view text);

}  // namespace fuzz
