// moment_files.h - Adam's moments of all ranks in a checkpoint: a file for every rank that keeps some, which any number
// of ranks reads, whatever each of them keeps
//
//   OUT/step_00000100/optimizer-00000-of-00004.safetensors    first_moments, second_moments: fp32 vectors of what the
//                                                             rank owned, one stretch after another
//     its metadata   stretches: "0+1024 4096+512", first element and length of each in the flat array of parameters;
//                    elements: of that array
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/safetensors.h"

namespace llmc {

// "optimizer-00000-of-00004.safetensors"
std::string moment_file_name(int number, int files);

// Both moments are those of all that a rank owns, as OwnedShard::offset says. Throws a run-time Error where the system
// refuses.
FileFingerprint write_moments(const std::filesystem::path& file, std::vector<OwnedShard> owned, std::int64_t elements,
                              std::span<const float> first_moments, std::span<const float> second_moments);

class MomentFiles {
public:
    // Opens all `files` of them. Throws Error unless together they hold `elements` elements, each once.
    MomentFiles(const std::filesystem::path& folder, int files, std::int64_t elements);

    // Elements [first, first + size) of the flat array, into spans of that size. Throws Error at the first that no run
    // can have left.
    void read(std::int64_t first, std::span<float> first_moments, std::span<float> second_moments) const;

private:
    struct Stretch {
        std::int64_t first, size;
        std::size_t file;
        std::int64_t place;  // within the file's vectors
    };
    std::vector<SafetensorsFile> files_;
    std::vector<Stretch> stretches_;  // in the order of the flat array, without gaps
};

}  // namespace llmc
