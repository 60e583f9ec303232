// staged_file.h - a small file that is replaced whole or not at all
#pragma once
#include <filesystem>
#include <string_view>

namespace llmc {

// Writes a hidden file beside `place`, brings it to the disk and renames it. Whenever the program or the machine stops,
// `place` has its old contents or the new ones. Creates the parent folders. Throws a run-time Error if the system
// refuses; nothing is left behind then.
void write_whole(const std::filesystem::path& place, std::string_view contents);

}  // namespace llmc
