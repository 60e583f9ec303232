// fingerprint.h - sixteen hexadecimal digits that tell one sequence of bytes from another: weights, shards and programs
// of different ranks
#pragma once
#include <span>
#include <string>

namespace llmc {

std::string fingerprint(std::span<const std::byte> bytes);

}  // namespace llmc
