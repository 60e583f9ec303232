// agreement_support.h - ranks that compare what they were started with, and what each of them hears
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "test/support/communicator_local.h"
#include "test/support/shard_support.h"

namespace test {

using namespace llmc;

// What every rank hears when `work` runs on all of them; "accepted" where it hears nothing.
inline std::vector<std::string> complaints(int ranks, const std::function<void(Communicator&)>& work) {
    std::vector<std::string> heard(static_cast<std::size_t>(ranks));
    llmc::run_ranks(ranks, [&](Communicator& communicator) {
        heard[std::size_t(communicator.rank())] = complaint([&] { work(communicator); });
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
