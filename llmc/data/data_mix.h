// data_mix.h - the order in which the rows of several corpora are drawn by weight
//
// Weights w_1, w_2, ... are whole numbers, W is their sum. At position r of the mix (from 0) one of the corpora is
// drawn, and its next row taken. Row n of corpus i (from 0) may be drawn if n W < (r + 1) w_i, and is due at
// (n + 1) W / w_i: of the rows that may be drawn, the one that is due first is drawn, of equal ones that of the first
// corpus. So the first r rows have floor(r w_i / W) or ceil(r w_i / W) of corpus i, for every r, and the order repeats
// after W rows. It depends on r alone: there is no state, and it is the same for any ranks and micro-batches.
//
// Source    the quota method, Balinski and Young 1975; as a schedule: earliest deadline first, Liu and Layland 1973.
#pragma once
#include <cstdint>
#include <vector>

namespace llmc {

class DataMix {
public:
    static constexpr std::int64_t kMostRows = 1'000'000;  // W; of the table

    // Positive weights, without a common factor. Throws Error if W is above kMostRows.
    explicit DataMix(const std::vector<std::int64_t>& weights);

    struct Row {
        std::int64_t corpus, number;  // number: of the corpus's rows, from 0; it exceeds those that it has
    };
    Row operator()(std::int64_t position) const;
    // Of the first `rows` rows.
    std::int64_t rows_of(std::int64_t corpus, std::int64_t rows) const;

private:
    std::vector<std::int64_t> weights_;
    std::vector<Row> rows_;  // of the first W positions
};

}  // namespace llmc
