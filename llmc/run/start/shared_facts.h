// shared_facts.h - what must be the same on all ranks before a run starts: build, flags, data (comm/agreement.h
// compares)
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "llmc/comm/agreement.h"
#include "llmc/data/hellaswag_file.h"
#include "llmc/data/shard_set.h"
#include "llmc/run/options/options.h"

namespace llmc {

// The build, from its version_json(); unknown values are "unknown".
std::vector<Fact> build_facts(const nlohmann::ordered_json& version);
// The build and the flags, except those that may differ between hosts (paths of data, threads, GPU).
std::vector<Fact> command_line_facts(const CommandLine& line);
// Parses the command line. Every rank calls it. Throws SharedError if a rank cannot parse it, or if build or flags
// differ from rank 0's.
CommandLine parse_on_all_ranks(int argc, char** argv, Communicator& ranks);
// The shards of one `kind` of data, "training" or "validation"; null: none. A shard is identified by its number of
// tokens, its vocabulary and a fingerprint of 16 blocks of 4 KiB spread over the file, including its header and its
// end. This is fast for any size; differences between the blocks are not detected.
std::vector<Fact> shard_facts(const std::string& kind, const ShardSet* shards);
// The HellaSwag examples; null: none.
std::vector<Fact> hellaswag_facts(const HellaSwagFile* file);

}  // namespace llmc
