// agreement.h - nobody goes on before everybody can: what the ranks were started with is compared, and what one of them
// cannot do ends all of them, before anything is written; later, what rank 0 does for all
//
// Every rank makes the same calls in the same order. One rank alone agrees with itself.
#pragma once
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/device/error.h"
#include "llmc/comm/communicator.h"

namespace llmc {

// What every rank brings, in the order of the ranks.
std::vector<nlohmann::json> gather_json(Communicator& communicator, const nlohmann::json& mine);

// Known to every rank when it is thrown: rank 0 says it, and all end in order with the same exit code.
class SharedError : public Error {
public:
    using Error::Error;
};

// Throws SharedError on every rank where any of them brings an exception: that of the lowest rank, which the message
// names with its host unless all failed alike.
void share_failure(Communicator& communicator, const std::exception_ptr& mine);

// The result of `work`, once it has succeeded on every rank. `work` must not call the communicator.
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

// Rank 0 works while the others wait for it; what it throws leaves on every rank as from together(). `work` must not
// call the communicator.
template <class Work>
void on_first_rank(Communicator& communicator, Work&& work) {
    together(communicator, [&] {
        if (communicator.rank() == 0) work();
    });
}

// Something that all ranks must have alike, such as "--seed" = "1".
struct Fact {
    std::string name, value;
    std::string detail = {};  // for the message; ranks may differ in it
};
// Throws SharedError on every rank, which names ranks, hosts and the first difference, where one has other facts than
// rank 0:
// "rank 1 on hostB has --seed 2, rank 0 on hostA has 1; MEND".
void require_alike(Communicator& communicator, const std::vector<Fact>& facts, const std::string& mend);

}  // namespace llmc
