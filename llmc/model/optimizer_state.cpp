// optimizer_state.cpp - sizes and ranges of an optimizer's state
#include "llmc/model/optimizer_state.h"

namespace llmc {

std::vector<ElementRange> StateTensor::ranges() const {
    std::vector<ElementRange> all;
    for (const Shard& shard : shards) all.push_back({.first = shard.first, .size = std::ssize(shard.values)});
    return all;
}

std::int64_t StateTensor::elements() const {
    std::int64_t sum = 0;
    for (const Shard& shard : shards) sum += std::ssize(shard.values);
    return sum;
}

std::int64_t StateFile::elements() const {
    std::int64_t sum = 0;
    for (const StateTensor& tensor : tensors) sum += tensor.elements();
    return sum;
}

}  // namespace llmc
