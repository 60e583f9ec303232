// agreement.h - makes all ranks succeed or fail together: compares their settings at the start, and turns the failure
// of one rank into the same error on all ranks before anything is written; also runs work on rank 0 for all ranks
//
// Collective: every rank makes the same calls in the same order. With one rank nothing is compared.
#pragma once
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/base/error.h"
#include "llmc/comm/communicator.h"

namespace llmc {

// All ranks' values, in rank order.
std::vector<nlohmann::json> gather_json(Communicator& communicator, const nlohmann::json& mine);

// An error that is thrown on every rank: rank 0 prints it, and all ranks finish normally with the same exit code.
class SharedError : public Error {
public:
    SharedError(Communicator& ranks, const std::string& message, Blame blame = Blame::input) : Error(message, blame) {
        ranks.leave_together();
    }
};

// If any rank passes an exception, throws SharedError on every rank: the failure of the lowest such rank. The message
// names that rank and its host, unless all ranks failed with the same text.
void share_failure(Communicator& communicator, const std::exception_ptr& mine);

// Runs `work` on every rank and returns its result if it succeeded on all ranks; else throws as share_failure() does.
// `work` must not call the communicator.
template <class Work>
auto together(Communicator& communicator, Work&& work) {
    using Result = decltype(work());
    std::optional<std::conditional_t<std::is_void_v<Result>, std::monostate, Result>> result;
    std::exception_ptr thrown;
    try {
        if constexpr (std::is_void_v<Result>) work();
        else result.emplace(work());
    } catch (...) {
        thrown = std::current_exception();
    }
    share_failure(communicator, thrown);
    if constexpr (!std::is_void_v<Result>) return std::move(*result);
}

// Runs `work` on rank 0 while the others wait. Its exception is thrown on every rank as by together(). `work` must not
// call the communicator.
template <class Work>
void on_first_rank(Communicator& communicator, Work&& work) {
    together(communicator, [&] {
        if (communicator.rank() == 0) work();
    });
}

// A value that must be the same on all ranks, such as "--seed" = "1".
struct Fact {
    std::string name, value;
    std::string detail = {};  // only for the message; not compared
};
// If a rank's facts differ from those of rank 0, throws SharedError on every rank. It names ranks, hosts and the first
// difference: "rank 1 on hostB has --seed 2, rank 0 on hostA has 1; HINT".
void require_same(Communicator& communicator, const std::vector<Fact>& facts, const std::string& hint);

}  // namespace llmc
