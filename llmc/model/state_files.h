// state_files.h - an optimizer's state in a checkpoint: one safetensors file per rank that writes some. Any number of
// ranks, with any sharding, can read them
//
//   OUT/step_00000100/optimizer-00000-of-00004.safetensors
//     h.0.attn.c_attn.weight.first_moment, ...   fp32: PARAMETER.QUANTITY, for the parameters of which the rank owned
//                                                elements
//
// A tensor that the rank owned as a whole has its shape: mostly that of the parameter, with matrices as (out, in), as
// in PyTorch's Linear, and the token table without padding rows. Otherwise it is a vector of the elements that the rank
// owned, and the metadata has under its name "0+1024 4096+512 of [2304, 768]": the first element, in row-major order,
// and the length of each range, and the whole shape.
//
// Files, quantities and further metadata are those of Optimizer::state().
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/fingerprint.h"
#include "llmc/model/optimizer_state.h"
#include "llmc/weights/safetensors.h"

namespace llmc {

// Ranges of an array in the metadata: "0+1024 4096+512", the first element and the length of each.
std::string text_of_ranges(const std::vector<ElementRange>& ranges);
// The value of `key` in a file's metadata. Throws Error if it is missing; `kind` is the expected kind of file.
const std::string& metadata_of(const SafetensorsFile& file, const std::string& key, const char* kind);
// The ranges of a text, which `where` names. Throws Error unless they are within `elements` and do not overlap.
std::vector<ElementRange> ranges_in(const std::string& text, const std::string& where, std::int64_t elements);

bool are_disjoint(std::vector<ElementRange> ranges);
// The number of ranges that contain each of `elements` elements, if it is the same for all elements.
std::optional<std::int64_t> times_covered(const std::vector<ElementRange>& ranges, std::int64_t elements);

// "optimizer-00000-of-00004.safetensors"
std::string state_file_name(const std::string& name, int number, int files);

// `values`: of all shards, in the order of StateFile::values(). Throws a run-time Error if the system refuses.
FileFingerprint write_state(const std::filesystem::path& path, const StateFile& file, std::span<const float> values);

// What the state is read from, and by whom.
struct StateSource {
    std::filesystem::path folder;  // of the checkpoint
    int files = 0;                 // of this name
    std::span<const ParameterSpec> parameters{};  // where they are in the flat array, for files of 0.3.0
    std::int64_t elements = 0;                    // of that array
    int rank = 0, ranks = 1;
};
// Reads the elements of all shards, and calls store(part of a shard, its values), which must have used the values when
// it returns. Returns what differs from the checkpoint, for rank 0 to print; empty: nothing. Throws Error that names
// the file if files are missing or damaged, lack an element of this rank or have it twice, or have a value that is not
// finite or, where it should not be, negative.
std::string read_state(const StateFile& file, const StateSource& source,
                       const std::function<void(std::span<float>, std::span<const float>)>& store);

}  // namespace llmc
