// target.h - what a file of test/fuzz/targets needs: its parser under a name, and files that hold what libFuzzer makes
//
// The contract that contract.cpp holds every parser to: whatever the bytes, it returns or throws Error with a message
// of one line. A target says more by must().
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

using Parse = void (*)(std::string_view bytes);

// A static one in each file of test/fuzz/targets; its name is that of the file, its corpus and its program.
struct Target {
    Target(std::string_view name, Parse parse);
};
struct NamedTarget {
    std::string_view name;
    Parse parse;
};
std::vector<NamedTarget>& targets();

// A finding: says `what`, and ends the process as a crash does.
void must(bool holds, std::string_view what);
// Finds fault with text that a terminal would not show on one line as it is.
void must_be_plain(std::string_view text);

// Of this process, empty at its start and deleted at its end.
const std::filesystem::path& scratch_folder();
// The file `name` of the scratch folder from now on holds `bytes`.
std::filesystem::path file_with(const std::string& name, std::string_view bytes);

// The file whose header of 1024 bytes begins with the first `meant` of these bytes, and is 0 from there on, and whose
// rest follows: no mutation has to keep what means nothing. Bytes that are a header or more, or fewer than `meant`, as
// they are.
std::string with_header_of(std::size_t meant, std::string_view bytes);

// A safetensors file from its header, up to the first line feed, and its data: the length in front of them, which no
// mutation would keep right, is added.
std::string safetensors_of(std::string_view text);

}  // namespace fuzz
