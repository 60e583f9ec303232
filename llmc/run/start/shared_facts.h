// start_facts.h - what the ranks of a run must have alike before it starts (comm/agreement.h compares it)
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <utility>
#include <vector>

#include "llmc/comm/agreement.h"
#include "llmc/data/hellaswag_file.h"
#include "llmc/data/shard_set.h"
#include "llmc/run/options.h"

namespace llmc {

// What a build is, from its version_json(); what that does not know is "unknown".
std::vector<Fact> facts_of_build(const nlohmann::ordered_json& version);
// The build and the flags, but for those that a host may have of its own (where its data lie, its threads, its GPU).
std::vector<Fact> facts_of_start(Request request, const Options& options);
// The command line, once all ranks have been started alike. Throws SharedError where one of them cannot be parsed or is
// another than rank 0's.
std::pair<Request, Options> parse_alike(int argc, char** argv, Communicator& ranks);
// The shards that `kind` of data has, "training" or "validation"; null: none. Contents are told apart by the number of
// tokens, the vocabulary and a fingerprint of 16 blocks of 4 KiB spread over the file, its header and its end among
// them, which takes a moment for any size; a difference elsewhere goes unseen.
std::vector<Fact> facts_of_shards(const std::string& kind, const ShardSet* shards);
// The examples of HellaSwag; null: none.
std::vector<Fact> facts_of_hellaswag(const HellaSwagFile* file);

}  // namespace llmc
