// optimizer_state.h - an optimizer's state as quantities of parameters, such as the first moment of "wpe.weight", from
// which checkpoints are written and read (state_files.h)
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "llmc/weights/parameters.h"

namespace llmc {

// Consecutive elements of an array that this rank holds.
struct StateShard {
    std::int64_t first;       // in the array
    std::span<float> values;  // device memory
};

// Of one parameter, as far as this rank holds it. Working memory may be laid out otherwise (by_parameter()).
struct StateTensor {
    std::string parameter;            // ParameterSpec::name
    std::vector<std::int64_t> shape;  // of all ranks' elements: the parameter's, or another such as (rows)
    std::vector<StateShard> shards;   // ascending

    std::int64_t elements() const {  // of all ranks
        return std::accumulate(shape.begin(), shape.end(), std::int64_t(1), std::multiplies<>());
    }
};
// The tensors of a quantity that has the parameters' shapes, from shards of an array that is laid out like all
// parameters: without the gaps between them and the padding rows of the vocabulary, which are 0 in every state.
inline std::vector<StateTensor> by_parameter(std::span<const ParameterSpec> parameters,
                                             std::vector<StateShard> shards) {
    std::ranges::sort(shards, {}, &StateShard::first);
    std::vector<StateTensor> tensors;
    for (const ParameterSpec& spec : parameters) {
        StateTensor tensor{.parameter = spec.name, .shape = {spec.rows_in_files}, .shards = {}};
        if (!spec.is_vector()) tensor.shape.push_back(spec.columns);
        for (const auto& [first, values] : shards) {
            const ElementRange held = common({first, std::ssize(values)}, spec.range_in_files());
            if (held.size <= 0) continue;
            tensor.shards.push_back({held.first - spec.offset, ElementRange{held.first - first, held.size}.of(values)});
        }
        if (!tensor.shards.empty()) tensors.push_back(std::move(tensor));
    }
    return tensors;
}

struct StateQuantity {
    std::string name;  // in the files, after the parameter's and a dot; without dots
    std::vector<StateTensor> tensors;
    bool non_negative = false;
    bool of_each_rank = false;  // the same ranks read their own values, others the mean over ranks
};

// The quantities that a rank writes to one file of a checkpoint: NAME-00000-of-00004.safetensors.
struct StateFile {
    std::string name;
    // Which ranks write it: rank 0; those of the first worker, which has what all workers have; all.
    enum class By { rank_0, first_worker, all } by = By::rank_0;
    // The number of workers that each have values of their own for the same elements; 0: none. Worker w is the ranks
    // from w * ranks / workers on. With as many ranks and workers each reads its own values, otherwise the mean of all.
    int workers = 0;
    bool optional = false;      // true: a checkpoint may lack it, and the values stay as they are
    std::vector<StateQuantity> quantities{};
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
    std::vector<std::span<float>> values() const {  // of all shards, in the order of the file
        std::vector<std::span<float>> all;
        for (const StateQuantity& quantity : quantities)
            for (const StateTensor& tensor : quantity.tensors)
                for (const StateShard& shard : tensor.shards) all.push_back(shard.values);
        return all;
    }
    std::int64_t elements() const {
        std::int64_t sum = 0;
        for (const std::span<float> shard : values()) sum += std::ssize(shard);
        return sum;
    }
};

}  // namespace llmc
