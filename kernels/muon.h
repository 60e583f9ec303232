// muon.h - the elementwise passes of Muon over many matrices: momentum and direction, normalization, and the update
// with the orthogonalized direction (newton_schulz.h)
//
//   g = grad * grad_scale;  M = mu M + (1 - mu) g;  U = (1 - mu) g + mu M (Nesterov, with the new M)
//   U /= max(|U|, 1e-7), the Frobenius norm of each matrix
//   W = (1 - lr decay) W - lr scale O; cautious: without decay where O W < 0, because there it opposes the update
//
// A skipped step (StepScalars) changes nothing but the directions. The matrices need not be neighbours in the flat
// array of parameters; their momentum and direction are in arrays of their own, one matrix after the other.
//
// Shapes    momentum, direction: (elements of all matrices); parameter: a flat array; grad, master: flat, or packed
//           like momentum; tiles: see MuonTile.
// Numerics  in float; squares and their sums in double, so that no size of U overflows; U is rounded to T before and
//           after the normalization.
// Traffic   momentum 12 + sizeof(T) bytes an element, normalization 2 sizeof(T), update 8 + sizeof(T), in bf16 2 more.
// Source    Jordan et al. 2024, kellerjordan.github.io/posts/muon; scale: Liu et al. 2025, arXiv 2502.16982; cautious
//           decay: Chen et al. 2025, arXiv 2510.12402.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/device/types.h"

namespace kernels {

// Neighbouring elements of one matrix, the work of a block. All but the matrix are multiples of 16.
struct MuonTile {
    std::int64_t first;  // in momentum, direction and packed arrays
    std::int64_t flat;   // in flat arrays
    std::int32_t size, matrix;
};
// Cuts a matrix of `size` elements into tiles, for plans made on the host.
void append_muon_tiles(std::vector<MuonTile>& tiles, std::int32_t matrix, std::int64_t first, std::int64_t flat,
                       std::int64_t size);

template <class T>
struct MuonMomentum {
    std::span<float> momentum;
    std::span<T> direction;             // out: U, not normalized
    std::span<double> partial;          // (tiles), out: the sum of squares of each tile of U; range_sums() adds them
    std::span<const float> grad;
    std::span<const MuonTile> tiles;    // on the device
    std::span<const StepScalars> scalars;  // (1)
    float mu;
    bool packed_grad = false;
};
// All enqueue on `stream`. Throw Error if `partial` or `scalars` is too short.
template <class T> void muon_momentum(const MuonMomentum<T>& op, StreamRef stream);

template <class T>
struct MuonNormalize {
    std::span<T> direction;               // in and out
    std::span<const double> squared_norm;  // (matrices)
    std::span<const MuonTile> tiles;
};
template <class T> void muon_normalize(const MuonNormalize<T>& op, StreamRef stream);

template <class T>
struct MuonUpdate {
    std::span<T> parameter;           // in fp32 the same memory as master
    std::span<float> master;
    std::span<const T> direction;     // O
    float scale;                      // of the direction
    std::span<const MuonTile> tiles;
    std::span<const StepScalars> scalars;  // (1)
    float learning_rate_factor = 1;   // of StepScalars::learning_rate, in the decay, too
    float weight_decay = 0;
    Rounding rounding{};              // first_element: 0, because tiles have their places in the flat array
    bool packed_master = false;       // not in fp32
    bool cautious = false;            // cautious decay
};
template <class T> void muon_update(const MuonUpdate<T>& op, StreamRef stream);

}  // namespace kernels
