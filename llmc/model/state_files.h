// state_files.h - an optimizer's state in a checkpoint: one safetensors file per rank that writes some. Any number of
// ranks, with any sharding, can read them
//
//   OUT/step_00000100/optimizer-00000-of-00004.safetensors    fp32 vectors first_moments, second_moments: of the
//                                                             elements that the rank owned, range after range
//     its metadata   stretches: "0+1024 4096+512", first element and length of each range in the flat array of
//                    parameters; elements: the size of that array
//
// Files, tensors and metadata are those of Optimizer::state().
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "llmc/base/fingerprint.h"
#include "llmc/model/optimizer_state.h"

namespace llmc {

// "optimizer-00000-of-00004.safetensors"
std::string state_file_name(const std::string& name, int number, int files);

// `values`: the shards of all tensors, in their order; `elements`: of the flat array. Throws a run-time Error if the
// system refuses.
FileFingerprint write_state(const std::filesystem::path& path, const StateFile& file, std::int64_t elements,
                            std::span<const float> values);

// What the state is read from, and by whom.
struct StateSource {
    std::filesystem::path folder;  // of the checkpoint
    int files = 0;                 // of this name
    std::int64_t elements = 0;     // of the flat array
    int rank = 0, ranks = 1;
};
// Reads the elements of all shards, and calls store(part of a shard, its values), which must have used the values when
// it returns. Returns what differs from the checkpoint, for rank 0 to print; empty: nothing. Throws Error that names
// the file if files are missing or damaged, lack an element of this rank or have it twice, or have a value that is not
// finite or, where it should not be, negative.
std::string read_state(const StateFile& file, const StateSource& source,
                       const std::function<void(std::span<float>, std::span<const float>)>& store);

}  // namespace llmc
