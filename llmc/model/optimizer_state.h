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
    std::string name;           // in the files
    std::vector<Shard> shards;  // in the order of the file
    bool non_negative = false;
    bool of_each_rank = false;  // the same ranks read their own values, others the mean over ranks
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
    // Which ranks write it: rank 0; those of the first worker, which has what all workers have; all.
    enum class By { rank_0, first_worker, all } by = By::rank_0;
    // The number of workers that each have values of their own for the same elements; 0: none. Worker w is the ranks
    // from w * ranks / workers on. With as many ranks and workers each reads its own values, otherwise the mean of all.
    int workers = 0;
    bool optional = false;      // true: a checkpoint may lack it, and the values stay as they are
    std::vector<StateTensor> tensors{};
    // More of the metadata, unless empty, and what happens if a checkpoint has another value: an Error; the values stay
    // as they are; the ranks are not the same.
    enum class Otherwise { refused, starts_at_0, resharded };
    struct Mark {
        std::string key, value;
        Otherwise otherwise;
    };
    std::vector<Mark> marks{};

    // The number of files, which as many of the first ranks write.
    int files(int ranks, int ranks_of_worker) const {
        return by == By::all ? ranks : by == By::first_worker ? ranks_of_worker : 1;
    }
    std::int64_t elements() const {  // of all tensors
        std::int64_t sum = 0;
        for (const StateTensor& tensor : tensors) sum += tensor.elements();
        return sum;
    }
};

}  // namespace llmc
