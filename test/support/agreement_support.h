// agreement_support.h - runs a check of agreement between ranks, and collects each rank's error message
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "test/support/communicator_local.h"
#include "test/support/shard_support.h"

namespace test {

using namespace llmc;

// The error message of every rank when `work` runs on all of them; "accepted": none.
inline std::vector<std::string> complaints(int ranks, const std::function<void(Communicator&)>& work) {
    std::vector<std::string> heard(static_cast<std::size_t>(ranks));
    llmc::run_ranks(ranks, [&](Communicator& communicator) {
        heard[std::size_t(communicator.rank())] = error_of([&] { work(communicator); });
    });
    return heard;
}

inline std::string on_this_host(int rank) {
    return "rank " + std::to_string(rank) + " on " + host_name();
}

inline std::string only(const std::vector<std::string>& heard) {
    for (const std::string& one : heard) CHECK(one == heard[0]);
    return heard[0];
}

}  // namespace test
