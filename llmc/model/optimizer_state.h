// optimizer_state.h - an optimizer's state as a list of tensors over ranges of the flat array of parameters, from which
// checkpoints are written and read (state_files.h)
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/element_range.h"

namespace llmc {

// A tensor of the state, as far as this rank holds it.
struct StateTensor {
    struct Shard {
        std::int64_t first;       // in the flat array
        std::span<float> values;  // device memory
    };
    // How another number of ranks, or another ZeRO stage, reads it.
    enum class Reshard {
        by_element,  // every element has one value: ranks share the elements, or all have the same
        mean,        // every rank has a value of its own: the same ranks get theirs, others the mean over ranks
    };
    std::string name;           // in the files
    std::vector<Shard> shards;  // in the order of the file
    Reshard reshard = Reshard::by_element;
    bool non_negative = false;
    // Where the file's metadata has the ranges. A file without this key has the whole flat array.
    std::string ranges_key = "stretches";
    bool whole = false;         // this is the whole flat array, and the file gets no ranges

    std::vector<ElementRange> ranges() const {
        std::vector<ElementRange> all;
        for (const Shard& shard : shards) all.push_back({shard.first, std::ssize(shard.values)});
        return all;
    }
    std::int64_t elements() const {
        std::int64_t sum = 0;
        for (const Shard& shard : shards) sum += std::ssize(shard.values);
        return sum;
    }
};

// The tensors that a rank writes to one file of a checkpoint: NAME-00000-of-00004.safetensors.
struct StateFile {
    std::string name;
    bool every_rank = false;    // false: all ranks hold the same, and rank 0 writes it
    bool optional = false;      // true: a checkpoint may lack it, and the values stay as they are
    std::vector<StateTensor> tensors;
    // In the metadata, if not empty. Another version is refused; with another layout the values stay as they are; with
    // another placement of ranks the state is resharded.
    std::string version{}, layout{}, placement_key{}, placement{};

    std::int64_t elements() const {  // of all tensors
        std::int64_t sum = 0;
        for (const StateTensor& tensor : tensors) sum += tensor.elements();
        return sum;
    }
};

}  // namespace llmc
