// agreement.cpp - gathers and compares failures and facts of all ranks
#include "llmc/comm/agreement.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"

namespace llmc {
namespace {

using nlohmann::json;

std::string name_of(std::size_t rank, const json& entry) {
    return "rank " + std::to_string(rank) + " on " + entry["host"].get<std::string>();
}

// " (one of 3 that differ)"
std::string one_of(std::ptrdiff_t count, const char* that) {
    return count > 1 ? " (one of " + std::to_string(count) + ' ' + that + ')' : "";
}

Error error_in(const std::exception_ptr& thrown) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        return error;
    } catch (const std::exception& error) {
        return Error(message_of(error), Blame::runtime);
    } catch (...) {
        return Error("an exception of an unknown type", Blame::runtime);
    }
}

}  // namespace

std::vector<json> gather_json(Communicator& communicator, const json& mine) {
    std::vector<json> all;
    for (const std::string& text : communicator.host_gather(text_of(mine))) all.push_back(parse_json(text));
    return all;
}

void share_failure(Communicator& communicator, const std::exception_ptr& mine) {
    if (communicator.size() == 1) {
        if (!mine) return;
        const Error failure = error_in(mine);
        throw SharedError(communicator, failure.what(), failure.blame());
    }
    json entry = {{"host", host_name()}, {"failed", mine != nullptr}};
    if (mine) {
        const Error failure = error_in(mine);
        entry["text"] = failure.what();
        entry["input"] = failure.blame() == Blame::input;
    }
    const std::vector<json> all = gather_json(communicator, entry);
    const auto failed = [](const json& rank) { return rank["failed"].get<bool>(); };
    const auto first = std::find_if(all.begin(), all.end(), failed);
    if (first == all.end()) return;
    const auto count = std::count_if(all.begin(), all.end(), failed);
    const bool all_equal = std::all_of(
        all.begin(), all.end(), [&](const json& rank) { return failed(rank) && rank["text"] == (*first)["text"]; });
    const std::string text = (*first)["text"];
    throw SharedError(
        communicator,
        all_equal ? text
                  : name_of(std::size_t(first - all.begin()), *first) + one_of(count, "that failed") + ": " + text,
        (*first)["input"].get<bool>() ? Blame::input : Blame::runtime);
}

void require_same(Communicator& communicator, const std::vector<Fact>& facts, const std::string& hint) {
    if (communicator.size() == 1) return;
    json entry = {{"host", host_name()}, {"facts", json::array()}};
    for (const Fact& fact : facts) entry["facts"].push_back({fact.name, fact.value, fact.detail});
    const std::vector<json> all = gather_json(communicator, entry);

    // Finds the first fact in which a rank differs from rank 0. Lists may differ in length or names: then an earlier
    // fact, such as the number of shards, also differs, and is the one that is reported.
    const json& first = all[0]["facts"];
    const auto fact_of = [](const json& rank, std::size_t i) {
        return i < rank["facts"].size() ? rank["facts"][i] : json{"no further", "setting", ""};
    };
    const auto differs = [&](const json& rank, std::size_t i) {
        return fact_of(rank, i)[0] != first[i][0] || fact_of(rank, i)[1] != first[i][1];
    };
    const auto text_of_fact = [](const json& fact) {
        const std::string value = fact[1], detail = fact[2];
        return value + (detail.empty() ? "" : " (" + detail + ")");
    };
    for (std::size_t i = 0; i < first.size(); ++i)
        for (std::size_t rank = 1; rank < all.size(); ++rank) {
            if (!differs(all[rank], i)) continue;
            const auto count = std::count_if(all.begin() + 1, all.end(),
                                             [&](const json& other) { return differs(other, i); });
            const json theirs = fact_of(all[rank], i);
            const std::string name = theirs[0],
                              name_of_first = theirs[0] == first[i][0] ? "" : first[i][0].get<std::string>() + ' ';
            throw SharedError(communicator, name_of(rank, all[rank]) + one_of(count, "that differ") + " has " + name +
                                                ' ' + text_of_fact(theirs) + ", " + name_of(0, all[0]) + " has " +
                                                name_of_first + text_of_fact(first[i]) + "; " + hint);
        }
}

}  // namespace llmc
