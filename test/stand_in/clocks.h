// clocks.h - vector clocks: the order of operations that the program's calls define, independent of when they run
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace stand_in {

// Number of preceding operations in each stream.
class Clock {
public:
    std::uint32_t operator[](std::uint32_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
    void set(std::uint32_t stream, std::uint32_t count) {
        if (stream >= counts_.size()) counts_.resize(stream + 1);
        counts_[stream] = count;
    }
    void join(const Clock& other) {
        if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
        for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
    }

private:
    std::vector<std::uint32_t> counts_;
};

}  // namespace stand_in
