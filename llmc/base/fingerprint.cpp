// fingerprint.cpp - FNV-1a over words of four bytes
#include "llmc/base/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace llmc {

std::string fingerprint(std::span<const std::byte> bytes) {
    // FNV-1a, over words of four bytes instead of single ones; the last word is filled up with zeros, so the length
    // counts, too.
    std::uint64_t hash = 0xcbf29ce484222325 ^ bytes.size();
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint32_t)) {
        std::uint32_t word = 0;
        std::memcpy(&word, bytes.data() + i, std::min(sizeof word, bytes.size() - i));
        hash = (hash ^ word) * 0x100000001b3;
    }
    char text[24];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    return text;
}

}  // namespace llmc
