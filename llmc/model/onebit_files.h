// onebit_files.h - what 1-bit Adam keeps beside the moments, in a checkpoint: the slow second moment of its warm-up, or
// the errors of every rank
//
//   onebit-00000-of-00001.safetensors   shadow_moment (elements)
//   onebit-00002-of-00004.safetensors   of rank 2: worker_error and server_error: its stretches of the flat array
//
// The metadata say which it is, of how many elements and ranks, the stretches, and what the errors fit. Where ranks are
// the workers each has the errors of all elements; where nodes are, of its shards, and every file names the node of
// each rank.
#pragma once
#include <filesystem>
#include <string>

#include "llmc/base/fingerprint.h"
#include "llmc/model/onebit_settings.h"

namespace llmc {

std::string onebit_file_name(int number, int files);

// How many files a checkpoint of this state has, and whether this rank writes one.
int onebit_file_count(const OnebitState& state, int ranks);
bool writes_onebit(const OnebitState& state, int rank);

// `values`: as Optimizer::copy_onebit_to_host() gives them. Throws a run-time Error where the system refuses.
FileFingerprint write_onebit(const std::filesystem::path& file, const OnebitState& state, std::int64_t elements,
                             std::span<const float> values);

struct OnebitErrors {
    std::vector<float> values{};  // for Optimizer::load_onebit(); empty: what is there stays
    std::string note{};           // what is not as it was, for rank 0 to tell; empty: nothing
};
// For an optimizer in this state, whose moments are loaded, from the `files` of a checkpoint; `elements`: of the flat
// array. With as many ranks as then, on the same nodes where those are the workers, every rank has its own errors
// again, bit for bit; with others the servers' go to who serves those elements now, and every worker has the mean of
// all workers' errors of an element, which keeps what they together still owe. Throws Error where files are missing or
// not what was written.
OnebitErrors read_onebit(const OnebitState& state, std::int64_t elements, const std::filesystem::path& folder,
                         int files, int rank, int ranks);

}  // namespace llmc
