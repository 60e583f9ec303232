// stretches.h - stretches of the flat array of parameters, as the metadata of a checkpoint's files name them:
// "0+1024 4096+512", first element and length of each
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/safetensors.h"

namespace llmc {

std::string text_of_stretches(const std::vector<ShardRange>& stretches);
// The value of `key` in a file's metadata. Throws Error that calls the file `kind` where there is none.
const std::string& metadata_of(const SafetensorsFile& file, const std::string& key, const char* kind);
// ... as stretches. Throws Error unless they lie within `elements`, none over another.
std::vector<ShardRange> stretches_in(const SafetensorsFile& file, const std::string& key, const char* kind,
                                     std::int64_t elements);

std::int64_t total(const std::vector<ShardRange>& stretches);
bool are_disjoint(std::vector<ShardRange> stretches);
// In how many of the stretches every one of `elements` elements lies, where that is the same number for all.
std::optional<std::int64_t> times_covered(const std::vector<ShardRange>& stretches, std::int64_t elements);

}  // namespace llmc
