// onebit_files.h - 1-bit Adam's state in a checkpoint, in addition to the Adam moments: the slow second moment of its
// warm-up, or the errors of every rank
//
//   onebit-00000-of-00001.safetensors   shadow_moment (elements)
//   onebit-00002-of-00004.safetensors   rank 2: worker_error and server_error of its ranges of the flat array
//
// The metadata has the kind, the number of elements, the ranges, and the settings that the errors are valid for. If
// ranks are the workers, each has the errors of all elements; if nodes are, those of its shards, and every file lists
// the node of each rank.
#pragma once
#include <filesystem>
#include <string>

#include "llmc/base/fingerprint.h"
#include "llmc/model/onebit_settings.h"

namespace llmc {

std::string onebit_file_name(int number, int files);

// The number of files in a checkpoint of this state, and whether this rank writes one.
int onebit_file_count(const OnebitState& state, int ranks);
bool writes_onebit(const OnebitState& state, int rank);

// `values`: from Optimizer::copy_onebit_to_host(). Throws a run-time Error if the system refuses.
FileFingerprint write_onebit(const std::filesystem::path& file, const OnebitState& state, std::int64_t elements,
                             std::span<const float> values);

struct OnebitErrors {
    std::vector<float> values{};  // for Optimizer::load_onebit(); empty: the state is not changed
    std::string note{};           // what differs from the checkpoint, for rank 0 to print; empty: nothing
};
// Reads the errors for an optimizer in this state, whose moments are loaded, from the `files` files of a checkpoint;
// `elements`: size of the flat array. With the same number of ranks (and the same nodes, if those are the workers),
// every rank gets its own errors, bit-identical. Otherwise the server errors go to the ranks that serve those elements
// now, and every worker gets the mean of all workers' errors of an element, which preserves their pending sum. Throws
// Error if files are missing or damaged.
OnebitErrors read_onebit(const OnebitState& state, std::int64_t elements, const std::filesystem::path& folder,
                         int files, int rank, int ranks);

}  // namespace llmc
