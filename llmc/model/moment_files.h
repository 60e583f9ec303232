// moment_files.h - the Adam moments of all ranks in a checkpoint: one file per rank that stores some. Any number of
// ranks, with any sharding, can read them
//
//   OUT/step_00000100/optimizer-00000-of-00004.safetensors    first_moments, second_moments: fp32 vectors of the
//                                                             elements that the rank owned, range after range
//     its metadata   stretches: "0+1024 4096+512", first element and length of each range in the flat array of
//                    parameters; elements: the size of that array
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/safetensors.h"

namespace llmc {

// "optimizer-00000-of-00004.safetensors"
std::string moment_file_name(int number, int files);

// Both moments are arrays of all elements that a rank owns, in the order of OwnedShard::offset. Throws a run-time Error
// if the system refuses.
FileFingerprint write_moments(const std::filesystem::path& file, std::vector<OwnedShard> owned, std::int64_t elements,
                              std::span<const float> first_moments, std::span<const float> second_moments);

class MomentFiles {
public:
    // Opens all `files` files. Throws Error unless together they have `elements` elements, each once.
    MomentFiles(const std::filesystem::path& folder, int files, std::int64_t elements);

    // Reads elements [first, first + size) of the flat array to spans of that size. Throws Error for a value that is
    // not finite, and for a negative second moment.
    void read(std::int64_t first, std::span<float> first_moments, std::span<float> second_moments) const;

private:
    struct FileRange {
        std::int64_t first, size;
        std::size_t file;
        std::int64_t offset;  // offset in the file's vectors
    };
    std::vector<SafetensorsFile> files_;
    std::vector<FileRange> ranges_;  // in the order of the flat array, without gaps
};

}  // namespace llmc
