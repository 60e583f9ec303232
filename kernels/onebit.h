// onebit.h - mean over ranks at one bit an element: what a rank sends, what the server of a chunk answers, and what
// each keeps of the error for the next time
//
// A bucket of n elements is padded to n_pad and cut into a chunk for each of the R ranks; rank q serves chunk q.
//
//   onebit_compress: z = x + worker error, bits = z >= 0, squares of z;       x = what is to be averaged, 0 in padding
//   onebit_scales:   a = sqrt(sum of z^2 / active elements) of each group, into the messages
//                    (messages go: rank r sends message q to rank q)
//   onebit_serve:    s = sum over r, in their order, of (a_r / R) * sign_r + server error, bits = s >= 0, squares of s
//   onebit_scales:   b, as above, into the reply
//                    (replies go: every rank gets that of every chunk)
//   onebit_verdict:  whether every scale is finite: one number that is not, on any rank, and no rank changes anything
//   onebit_unpack:   y = b * sign; worker error = z - a * sign(z)
//                    (1-bit Adam does this within its update, from the same bits: onebit_adam.h)
//   onebit_commit:   server error = s - b * sign(s)
//
// sign(x) = +1 where x >= 0, also for -0, else -1. What compensates is staged: z lies in the gradient's place, s in a
// scratch, until the verdict is known. Masked elements send a 1, get 0, keep errors of 0 and their gradient, and count
// nowhere. Where all padding is masked, z needs no place for it: n elements do.
//
// Message   the scales of its groups (float), then the bits of the chunk: element i of a chunk is bit i % 32 of word
//           i / 32. OnebitLayout says where. The bits behind the chunk's last one are written as 0; words that have
//           neither scales nor bits are not written: zero them once.
// Groups    the elements that share a scale, within a chunk. A worker's scale may span all chunks (OnebitScales::one).
// Numerics  squares in float over short runs, sums of runs in double, in an order that depends on the tiles alone;
//           everything else in float, as written above.
// Traffic   bytes an element, beside 1/8 for every bit: compress 12 (16 with momentum, 20 with second_moment), unpack
//           12, and of a chunk serve 8, commit 8. The scale is not needed for the bits, so that each side reads its
//           values once before it sends.
// Source    Tang et al. 2021, arXiv 2102.02888 (1-bit Adam), with the differences above.
#pragma once
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

// How a bucket is cut, and where its messages have what.
struct OnebitLayout {
    std::int64_t size = 0;    // n
    int ranks = 1;
    std::int64_t chunk = 0;   // elements of a chunk: n_pad / ranks, a multiple of 8
    int scales = 1;           // of a message: the most groups that a chunk has
    constexpr std::int64_t padded() const { return chunk * ranks; }
    constexpr std::int64_t header_words() const { return (std::int64_t(scales) + 3) / 4 * 4; }
    // a multiple of 128 bytes: parts that communicators move, and equal shards
    constexpr std::int64_t message_words() const { return (header_words() + (chunk + 31) / 32 + 31) / 32 * 32; }
};
// `alignment`: n_pad is the smallest multiple of alignment * ranks that holds n; a multiple of 8. 128 lets 16 bytes of
// bits begin with any chunk.
OnebitLayout onebit_layout(std::int64_t size, int ranks, int alignment = 128);

// A stretch of the padded bucket, one block's work: within one group. `first` - chunk * layout.chunk is a multiple of
// 32, `size` of 8.
struct OnebitTile {
    std::int64_t first;
    std::int32_t size, chunk, group;  // group: within its chunk
};
struct OnebitGroup {
    std::int32_t first_tile, end_tile;
    std::int32_t chunk, index;
    std::int64_t active;  // elements that are not masked, padding included
};
// For plans made on the host: what lies where, in the order of elements.
struct OnebitPlan {
    OnebitLayout layout;
    std::vector<OnebitTile> tiles;
    std::vector<OnebitGroup> groups;
};
// A group for every `group_elements` elements of a chunk, a multiple of 32; 0: one a chunk. `active`: a bit for each of
// the n_pad elements, element i at bit i % 32 of word i / 32; empty: all of them.
OnebitPlan onebit_plan(const OnebitLayout& layout, std::int64_t group_elements, std::span<const std::uint32_t> active);
// Groups that end at `ends`, ascending multiples of 32 in the bucket, and with every chunk, whose length must then be
// such a multiple, too; the last one takes the padding.
OnebitPlan onebit_plan(const OnebitLayout& layout, std::span<const std::int64_t> ends,
                       std::span<const std::uint32_t> active);
// Tiles and groups of one chunk, counted from its start, as if it were chunk 0: for its server.
OnebitPlan onebit_plan_of_chunk(const OnebitPlan& plan, int chunk);

struct OnebitCompress {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;     // on the device, as all that follows
    std::span<float> values;               // (n_pad): in the gradient (its padding is not read), out z; or (n)
    std::span<const float> error;          // (n_pad): the worker's
    std::span<std::uint32_t> messages;     // (ranks, message_words): bits written
    std::span<double> partial;             // (tiles): sum of z^2
    std::span<const std::uint32_t> active = {};   // as in the plan
    std::span<const float> momentum = {};         // (n), or none
    std::span<const float> second_moment = {};    // (n), or none: x is divided by sqrt(second_moment) + eps
    std::span<const float> gradient_scale = {};   // (1), or none: 1
    // x = (momentum_weight * momentum + gradient_weight * (gradient_scale * gradient)) / (sqrt(second_moment) + eps)
    float momentum_weight = 0, gradient_weight = 1, eps = 0;
};
// All enqueue on `stream`. Throw Error where an array is too short for the layout.
void onebit_compress(const OnebitCompress& op, StreamRef stream);

struct OnebitScales {
    OnebitLayout layout;
    std::span<const OnebitGroup> groups;
    std::span<const double> partial;
    std::span<std::uint32_t> messages;  // (messages, message_words): scales written; group.chunk says in which
    bool one = false;                   // all groups share one scale, which every message gets
};
void onebit_scales(const OnebitScales& op, StreamRef stream);

// Of the rank's own chunk; tiles and groups are those of a plan of one chunk (layout.ranks = 1) of these groups.
struct OnebitServe {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;
    std::span<float> sums;                      // (chunk): out s
    std::span<const float> error;               // (chunk): the server's
    std::span<const std::uint32_t> received;    // (ranks, message_words)
    std::span<std::uint32_t> reply;             // (message_words): bits written
    std::span<double> partial;                  // (tiles): sum of s^2
    std::span<const std::uint32_t> active = {}; // of the bucket
    int chunk = 0;                              // which one of the bucket
    bool one = false;                           // as for the workers' scales
};
void onebit_serve(const OnebitServe& op, StreamRef stream);

struct OnebitVerdict {
    OnebitLayout layout;
    std::span<const OnebitGroup> groups;       // of the bucket
    std::span<const std::uint32_t> replies;    // (ranks, message_words)
    std::span<std::int32_t> finite;            // (1): 1 or 0; ANDed into what is there, so that buckets share it
};
void onebit_verdict(const OnebitVerdict& op, StreamRef stream);

struct OnebitUnpack {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;
    std::span<const float> compensated;        // (n_pad): z, or (n)
    std::span<float> error;                    // (n_pad): out, the worker's
    std::span<float> mean;                     // (n): out y
    std::span<const std::uint32_t> messages;   // (ranks, message_words): what this rank sent
    std::span<const std::uint32_t> replies;    // (ranks, message_words)
    std::span<const std::int32_t> finite;      // (1): 0: nothing is written
    std::span<const std::uint32_t> active = {};
    bool one = false;
};
void onebit_unpack(const OnebitUnpack& op, StreamRef stream);

struct OnebitCommit {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;         // as onebit_serve
    std::span<const float> sums;               // (chunk): s
    std::span<float> error;                    // (chunk): out, the server's
    std::span<const std::uint32_t> reply;      // (message_words)
    std::span<const std::int32_t> finite;
    std::span<const std::uint32_t> active = {};
    int chunk = 0;
};
void onebit_commit(const OnebitCommit& op, StreamRef stream);

}  // namespace kernels
