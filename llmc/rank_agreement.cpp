#include "llmc/rank_agreement.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "llmc/error.h"

namespace llmc {

double sum_over_ranks(Communicator& communicator, double value) {
    if (communicator.size() == 1) return value;
    double sum = 0;
    for (const std::string& bytes : communicator.host_gather({reinterpret_cast<const char*>(&value), sizeof value})) {
        double of_rank;
        std::memcpy(&of_rank, bytes.data(), sizeof of_rank);
        sum += of_rank;
    }
    return sum;
}

void require_same_on_all_ranks(Communicator& communicator, const std::string& what, const std::string& text) {
    if (communicator.size() == 1) return;
    const auto texts = communicator.host_gather(text);
    for (std::size_t rank = 1; rank < texts.size(); ++rank)
        require(texts[rank] == texts[0], what + " of rank " + std::to_string(rank), texts[rank], "those of rank 0, " + texts[0],
                "start the same program with the same flags and files everywhere");
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

int ranks_on_this_machine(Communicator& communicator) {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    const auto names = communicator.host_gather(name);
    return int(std::count(names.begin(), names.end(), name));
}

void on_first_rank(Communicator& communicator, const std::function<void()>& work) {
    std::exception_ptr thrown;
    std::string text;
    if (communicator.rank() == 0) {
        try {
            work();
        } catch (const std::exception& error) {
            thrown = std::current_exception();
            text = error.what();
            if (text.empty()) text = "unknown";
        }
    }
    if (communicator.size() > 1) text = communicator.host_gather(text)[0];
    if (thrown) std::rethrow_exception(thrown);
    if (!text.empty()) throw Error("rank 0 failed: " + text, Blame::runtime);
}

}  // namespace llmc
