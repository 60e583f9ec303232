// onebit.h - the mean over ranks at 1 or 4 bits per element: the messages that ranks send, the replies of a chunk's
// server, and the error feedback that both carry over to the next step
//
// A bucket of n elements is padded to n_pad and cut into R equal chunks, one per rank; rank q serves chunk q.
//
//   onebit_compress: z = x + d * worker error, bits = z >= 0, squares of z;   x = the values to average, 0 in padding
//   onebit_scales:   a = sqrt(sum of z^2 / active elements) of each group, into the messages
//                    (exchange of messages: rank r sends message q to rank q)
//   onebit_serve:    s = sum over r, in their order, of (a_r / R) * sign_r, + d * server error, bits = s >= 0, squares
//   onebit_scales:   b, as above, into the reply
//                    (exchange of replies: every rank gets the reply of every chunk)
//   onebit_check_scales:  whether all scales are finite; if a number on any rank is not, no rank changes anything
//   onebit_adam:     y = b * sign; worker error = z - a * sign(z), within its update (onebit_adam.h)
//   onebit_commit:   server error = s - b * sign(s)
//
// With 4 bits the levels i = -7..7 replace the signs:
//
//   onebit_scales:   a = 0.3529 * root mean square, for which the squared error of Gaussian values is smallest (1.3 %)
//   onebit_quantize: i = z / a, rounded to nearest, at most 7 in magnitude; 0 if a is 0. It follows onebit_scales, for
//                    messages and replies, because the levels depend on the scale.
//   outer_apply:     y = b * i; with errors worker error = z - a * i, within the outer step (outer.h)
//
// 0 stays 0, and the error feedback is optional: without it all errors are empty spans.
//
// sign(x) = +1 for x >= 0, including -0, otherwise -1. The errors are updated only after the verdict: until then z is
// stored in place of the gradient, s in scratch memory. A masked element sends a 1, receives 0, keeps an error of 0 and
// its gradient, and is not counted. If all padding is masked, z needs n elements instead of n_pad.
//
// Message   the scales of its groups (float), then the bits of the chunk: element i of a chunk is bit i % 32 of word
//           i / 32; with 4 bits, i + 7 of element j is in bits 4 * (j % 8) and above of word j / 8. OnebitLayout
//           defines the offsets. Bits after the chunk's last element are written as 0; words that hold neither scales
//           nor bits are not written: zero them once.
// Groups    a group is a range of a chunk that shares a scale. A worker's scale may span all chunks
//           (OnebitScales::one).
// Numerics  squares in float over short runs, sums of runs in double, in an order that depends only on the tiles;
//           everything else in float, as written above; the products with d, and with a level, are rounded before they
//           are added.
// Traffic   bytes per element, plus 1/8 for every bit: compress 12 (16 with momentum, 20 with second_moment; 4 less
//           without errors); for a chunk serve 8 (4 without errors), commit 8. The sign does not depend on the scale,
//           so each side reads its values once before it sends; with 4 bits, twice: quantize 4.
// Source    Tang et al. 2021, arXiv 2102.02888 (1-bit Adam), with the differences above.
#pragma once
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

// How a bucket is cut into chunks, and the layout of its messages.
struct OnebitLayout {
    std::int64_t size = 0;    // n
    int ranks = 1;
    std::int64_t chunk = 0;   // elements of a chunk: n_pad / ranks, a multiple of 8
    int scales = 1;           // per message: the maximum number of groups in a chunk
    int bits = 1;             // per element: 1 or 4
    constexpr std::int64_t padded() const { return chunk * ranks; }
    constexpr std::int64_t header_words() const { return round_up(std::int64_t(scales), 4); }
    // a multiple of 128 bytes, as communicators require for equal shards
    constexpr std::int64_t message_words() const { return round_up(header_words() + ceil_div(chunk * bits, 32), 32); }
    // One chunk as a bucket of one rank.
    constexpr OnebitLayout of_chunk() const { return {chunk, 1, chunk, scales, bits}; }
};
inline constexpr int kLargestLevel = 7;          // with 4 bits
inline constexpr float kScaleOf4Bits = 0.3529f;  // of the root mean square

// n_pad is the smallest multiple of alignment * ranks that is at least n; `alignment` is a multiple of 8. With 128 the
// bits of every chunk start at a multiple of 16 bytes.
OnebitLayout onebit_layout(std::int64_t size, int ranks, int alignment = 128, int bits = 1);

// A range of the padded bucket within one group, the work of one block. `first` - chunk * layout.chunk is a multiple of
// 32, `size` a multiple of 8.
struct OnebitTile {
    std::int64_t first;
    std::int32_t size, chunk, group;  // group: within its chunk
};
struct OnebitGroup {
    std::int32_t first_tile, end_tile;
    std::int32_t chunk, index;
    std::int64_t active;  // elements that are not masked, padding included
};
// Made on the host: the tiles and groups of a bucket, in the order of elements.
struct OnebitPlan {
    OnebitLayout layout;
    std::vector<OnebitTile> tiles;
    std::vector<OnebitGroup> groups;
};
// One group for every `group_elements` elements of a chunk, a multiple of 32; 0: one per chunk. `active`: a bit for
// each of the n_pad elements, element i at bit i % 32 of word i / 32; empty: all are active.
OnebitPlan onebit_plan(const OnebitLayout& layout, std::int64_t group_elements, std::span<const std::uint32_t> active);
// Groups end at `ends`, ascending multiples of 32 in the bucket, and at the end of every chunk, whose length must then
// be a multiple of 32, too; the last group includes the padding.
OnebitPlan onebit_plan(const OnebitLayout& layout, std::span<const std::int64_t> ends,
                       std::span<const std::uint32_t> active);
// Tiles and groups of one chunk, with offsets from the chunk's start, as if it were chunk 0: for its server.
OnebitPlan onebit_plan_of_chunk(const OnebitPlan& plan, int chunk);

struct OnebitCompress {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;     // on the device, like all spans below
    std::span<float> values;               // (n_pad) or (n): in the gradient (its padding is not read), out z
    std::span<const float> error;          // (n_pad): the worker's error; with 4 bits it may be empty
    std::span<std::uint32_t> messages;     // (ranks, message_words): bits written, unless there are 4 per element
    std::span<double> partial;             // (tiles): sum of z^2
    std::span<const std::uint32_t> active = {};   // as in the plan
    std::span<const float> momentum = {};         // (n) or empty
    std::span<const float> second_moment = {};    // (n) or empty; if set, x is divided by sqrt(second_moment) + eps
    std::span<const float> gradient_scale = {};   // (1); empty: 1
    // x = (momentum_weight * momentum + gradient_weight * (gradient_scale * gradient)) / (sqrt(second_moment) + eps)
    float momentum_weight = 0, gradient_weight = 1, eps = 0;
    float error_weight = 1;                       // d
};
// All functions enqueue on `stream` and throw Error if an array is too short for the layout.
void onebit_compress(const OnebitCompress& op, StreamRef stream);

struct OnebitScales {
    OnebitLayout layout;
    std::span<const OnebitGroup> groups;
    std::span<const double> partial;
    std::span<std::uint32_t> messages;  // (messages, message_words): scales written, into message group.chunk
    bool one = false;                   // all groups share one scale, which is written into every message
    float factor = 1;                   // of the root mean square; kScaleOf4Bits with 4 bits
};
void onebit_scales(const OnebitScales& op, StreamRef stream);

// Only with 4 bits. A worker passes the arguments of OnebitCompress and OnebitScales; a server layout.of_chunk(), its
// tiles, its sums as `values`, its reply as `messages` and no mask, because masked sums are 0.
struct OnebitQuantize {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;
    std::span<const float> values;      // (n_pad) or (n), as in OnebitCompress
    std::span<std::uint32_t> messages;  // (ranks, message_words): scales read, levels written
    std::span<const std::uint32_t> active = {};
    bool one = false;
};
void onebit_quantize(const OnebitQuantize& op, StreamRef stream);

// For the rank's own chunk; tiles and groups come from onebit_plan_of_chunk.
struct OnebitServe {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;
    std::span<float> sums;                      // (chunk): out s
    std::span<const float> error;               // (chunk): the server's error; with 4 bits it may be empty
    std::span<const std::uint32_t> received;    // (ranks, message_words)
    std::span<std::uint32_t> reply;             // (message_words): bits written, unless there are 4 per element
    std::span<double> partial;                  // (tiles): sum of s^2
    std::span<const std::uint32_t> active = {}; // of the bucket
    int chunk = 0;                              // index of the chunk in the bucket
    bool one = false;                           // the value of OnebitScales::one for the workers' scales
    float error_weight = 1;                     // d
};
void onebit_serve(const OnebitServe& op, StreamRef stream);

struct OnebitScalesCheck {
    OnebitLayout layout;
    std::span<const OnebitGroup> groups;       // of the bucket
    std::span<const std::uint32_t> replies;    // (ranks, message_words)
    std::span<std::int32_t> finite;            // (1): 1 or 0; ANDed with its old value, so that buckets can share it
};
void onebit_check_scales(const OnebitScalesCheck& op, StreamRef stream);

// The logical AND of verdicts over buckets that other ranks see.
struct OnebitAgree {
    std::span<const std::int32_t> verdicts;    // any number, 1 or 0
    std::span<std::int32_t> finite;            // (1): ANDed with its old value
};
void onebit_agree(const OnebitAgree& op, StreamRef stream);

struct OnebitCommit {
    OnebitLayout layout;
    std::span<const OnebitTile> tiles;         // as in OnebitServe
    std::span<const float> sums;               // (chunk): s
    std::span<float> error;                    // (chunk): out, the server's error
    std::span<const std::uint32_t> reply;      // (message_words)
    std::span<const std::int32_t> finite;
    std::span<const std::uint32_t> active = {};
    int chunk = 0;
};
void onebit_commit(const OnebitCommit& op, StreamRef stream);

}  // namespace kernels
