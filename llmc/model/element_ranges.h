// element_ranges.h - ranges of an array in the metadata of a checkpoint's files: "0+1024 4096+512",
// the first element and the length of each
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/safetensors.h"

namespace llmc {

std::string text_of_ranges(const std::vector<ElementRange>& ranges);
// The value of `key` in a file's metadata. Throws Error if it is missing; `kind` is the expected kind of file.
const std::string& metadata_of(const SafetensorsFile& file, const std::string& key, const char* kind);
// The ranges of a text, which `where` names. Throws Error unless they are within `elements` and do not overlap.
std::vector<ElementRange> ranges_in(const std::string& text, const std::string& where, std::int64_t elements);

bool are_disjoint(std::vector<ElementRange> ranges);
// The number of ranges that contain each of `elements` elements, if it is the same for all elements.
std::optional<std::int64_t> times_covered(const std::vector<ElementRange>& ranges, std::int64_t elements);

}  // namespace llmc
