// start_agreement.h - nobody goes on before everybody can: what the ranks were started with is compared, and what one of them cannot do ends
// all of them, before anything is written; later, what rank 0 does for all
//
// Every rank makes the same calls in the same order. One rank alone agrees with itself.
#pragma once
#include <exception>
#include <optional>

#include "llmc/communicator.h"
#include "llmc/error.h"
#include "llmc/options.h"
#include "llmc/shard_set.h"

namespace llmc {

// Known to every rank when it is thrown: rank 0 says it, and all end in order with the same exit code.
class SharedError : public Error {
public:
    using Error::Error;
};

// Throws SharedError on every rank where any of them brings an exception: that of the lowest rank, which the message names with its host unless
// all failed alike. A rank alone throws its own.
void share_failure(Communicator& communicator, const std::exception_ptr& mine);

// The result of `work`, once it has succeeded on every rank. `work` must not call the communicator.
template <class Work>
auto together(Communicator& communicator, Work&& work) {
    std::optional<decltype(work())> result;
    std::exception_ptr thrown;
    try {
        result.emplace(work());
    } catch (...) {
        thrown = std::current_exception();
    }
    share_failure(communicator, thrown);
    return std::move(*result);
}

// Rank 0 works while the others wait for it; what it throws leaves on every rank as from together(). `work` must not call the communicator.
template <class Work>
void on_first_rank(Communicator& communicator, Work&& work) {
    together(communicator, [&] {
        if (communicator.rank() == 0) work();
        return true;
    });
}

// Something that all ranks must have alike, such as "--seed" = "1".
struct Fact {
    std::string name, value;
    std::string detail = {};  // for the message; ranks may differ in it
};
// Throws SharedError on every rank, which names ranks, hosts and the first difference, where one has other facts than rank 0:
// "rank 1 on hostB has --seed 2, rank 0 on hostA has 1; MEND".
void require_alike(Communicator& communicator, const std::vector<Fact>& facts, const std::string& mend);

// What is compared: the build and the flags, but for those that a host may have of its own (where its data lie, its threads, its GPU); the data,
// shard by shard.
std::vector<Fact> facts_of_start(Request request, const Options& options);
// Either may be null. Contents are told apart by the number of tokens, the vocabulary and a fingerprint of 16 blocks of 4 KiB spread over the
// file, its header and its end among them, which takes a moment for any size; a difference elsewhere goes unseen.
std::vector<Fact> facts_of_data(const ShardSet* train, const ShardSet* val);

}  // namespace llmc
