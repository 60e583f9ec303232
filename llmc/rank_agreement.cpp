#include "llmc/rank_agreement.h"

#include <cstdio>
#include <cstring>

namespace llmc {

double sum_over_ranks(Communicator& communicator, double value) {
    double sum = 0;
    for (const std::string& bytes : communicator.host_gather({reinterpret_cast<const char*>(&value), sizeof value})) {
        double of_rank;
        std::memcpy(&of_rank, bytes.data(), sizeof of_rank);
        sum += of_rank;
    }
    return sum;
}

std::string fingerprint(std::span<const float> values) {
    // FNV-1a, over words of four bytes instead of single ones.
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const float value : values) {
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3;
    }
    char text[24];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    return text;
}

}  // namespace llmc
