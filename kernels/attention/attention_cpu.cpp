// attention_cpu.cpp - attention.h on a CPU: tiles of 64 queries by 64 keys, every product a register-blocked loop over
// vectors (cpu_tile.h)
//
// Scores are stored transposed, keys as rows and queries as columns, so that no product needs transposed keys or
// values, and the softmax of 16 queries uses the lanes of one vector without horizontal sums:
//
//   forward:   scores[key][query] = K Q^T,   out += P^T V
//   backward:  dP = V dout^T,   dv += P dout,   dk += dS Q,   dq += dS^T K
//
// Tensors of bf16 are widened to float tiles when they are loaded; p and ds are never rounded. Scores are in units of
// log 2, for exp2. The order of every sum is independent of the number of threads, so results are deterministic.
#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "kernels/attention/check.h"
#include "kernels/attention/cpu_tile.h"
#include "kernels/attention/flash.h"
#include "kernels/attention/implementations.h"
#include "kernels/base/error.h"

namespace kernels {
namespace {

using namespace tile;

// 64 x 64: five tiles of 16 KiB at head size 64, of which a product accesses three: about the size of an L1 cache.
constexpr int kTile = 64, kTileVectors = kTile / kLanes;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Sizes and offsets: `tiles` tiles of queries (or keys) per head; a row of a tile has `padded` floats, or `vectors`
// vectors.
struct Tiling : AttentionShape {
    int tiles = ceil_div(seq_len, kTile), padded = round_up(head_size, kLanes), vectors = padded / kLanes;
    std::size_t row = std::size_t(heads) * head_size;  // elements of a position in `out`; three times that in `qkv`
    float scale = 1.0f / std::sqrt(float(head_size));

    long sequences() const { return long(batch) * heads; }
    int rows(int tile) const { return std::min(kTile, seq_len - tile * kTile); }
    // Index of the first element of a position, for a tensor with `parts` vectors per position and head; `sequence` is
    // batch * heads + head.
    std::size_t at(long sequence, int position, int parts, int part) const {
        const std::size_t token = std::size_t(sequence / heads) * seq_len + position;
        return (token * parts + part) * row + std::size_t(sequence % heads) * head_size;
    }
};

// One allocation for all threads, made before they start so that a failure can throw. Each thread touches its own part
// first, for NUMA placement.
class Scratch {
public:
    explicit Scratch(std::size_t floats_per_thread)
        : stride_(round_up(floats_per_thread, 16)),
          data_(static_cast<float*>(std::aligned_alloc(64, stride_ * omp_get_max_threads() * sizeof(float)))) {
        if (!data_)
            fail("an allocation of attention's scratch memory", stride_ * omp_get_max_threads() * sizeof(float),
                 "room for that many bytes", "use fewer threads or a smaller --seq-len", Blame::runtime);
    }
    float* of_thread() { return data_.get() + stride_ * omp_get_thread_num(); }

private:
    struct Free { void operator()(float* data) const { std::free(data); } };
    std::size_t stride_;
    std::unique_ptr<float, Free> data_;
};

// The matrix products. On the diagonal (query tile == key tile) the masked blocks are neither computed nor read.
// to[key][query] = sum_c left[key][c] * right[c][query]
void multiply_keys_queries(Tile to, Tile left, Tile right, int keys, int queries, int channels, bool diagonal) {
    for (int key = 0; key < keys; key += kBlockRows)
        multiply_rows<false, false>(to, left, right, key, 0, channels, diagonal ? key / kLanes : 0,
                                    ceil_div(queries, kLanes));
}
// to[query][c] += sum_key left[key][query] * right[key][c]
void add_over_keys(Tile to, Tile left, Tile right, int keys, int queries, int vectors, bool diagonal) {
    for (int query = 0; query < queries; query += kBlockRows)
        multiply_rows<true, true>(to, left, right, query, 0, diagonal ? std::min(keys, query + kBlockRows) : keys, 0,
                                  vectors);
}
// to[key][c] += sum_query left[key][query] * right[query][c]
void add_over_queries(Tile to, Tile left, Tile right, int keys, int queries, int vectors, bool diagonal) {
    for (int key = 0; key < keys; key += kBlockRows)
        multiply_rows<false, true>(to, left, right, key, diagonal ? key : 0, queries, 0, vectors);
}

// The first key that a query attends to.
template <class Op>
int first_key_of(const Op& op, long sequence, int query) {
    return op.starts.empty() ? 0 : op.starts[std::size_t(sequence / op.shape.heads) * op.shape.seq_len + query];
}
template <class Op>
int first_key_tile_of(const Op& op, long sequence, int query_tile) {
    return first_key_of(op, sequence, query_tile * kTile) / kTile;
}

// The first key of each query of a tile, and the largest of them.
struct FirstKeys {
    alignas(64) int key[kTile] = {};
    int last = 0;
    template <class Op>
    void load(const Op& op, long sequence, int first_query, int queries) {
        if (op.starts.empty()) return;
        for (int query = 0; query < queries; ++query) key[query] = first_key_of(op, sequence, first_query + query);
        last = key[queries - 1];
    }
};

// Which queries of a tile attend to which keys of another, all numbers relative to the tiles.
struct Mask {
    const FirstKeys& first;
    int first_key;
    bool diagonal;
    bool cuts_documents() const { return first_key < first.last; }
    // The first key of a vector of queries that some of them do not attend to; `keys`: none.
    int first_masked(int vector, int keys) const {
        return cuts_documents() ? 0 : diagonal ? vector * kLanes : keys;
    }
    // The lanes of a vector of queries that attend to `key`.
    IntVector attends(int vector, int key) const {
        IntVector lanes = lane_numbers() + vector * kLanes >= (diagonal ? key : 0);
        if (cuts_documents())
            lanes &= *reinterpret_cast<const IntVector*>(first.key + vector * kLanes) <= first_key + key;
        return lanes;
    }
};

// ---- forward: a task is a query tile; it iterates over the key tiles up to its own

struct ForwardTiles {
    float *queries, *queries_transposed, *keys, *values, *scores, *out;
    ForwardTiles(float* memory, int padded) {
        const int area = kTile * padded;
        queries = memory, queries_transposed = queries + area, keys = queries_transposed + area, values = keys + area,
        out = values + area;
        scores = out + area;
    }
    static std::size_t floats(int padded) { return std::size_t(5) * kTile * padded + kTile * kTile; }
};

// Running maximum and sum of exp2(score - maximum) of each query of a tile.
struct OnlineSoftmax {
    Vector maximum[kTileVectors], sum[kTileVectors];

    OnlineSoftmax() {
        // finite, because a query may attend to none of the first keys
        for (int v = 0; v < kTileVectors; ++v) maximum[v] = broadcast(-FLT_MAX), sum[v] = broadcast(0.0f);
    }
    // Replaces scores by p relative to the new maximum and multiplies `out` by exp2(old maximum - new).
    void update(Tile scores, Tile out, int keys, int queries, int vectors_of_out, const Mask& mask) {
        const int vectors = ceil_div(queries, kLanes);
        alignas(64) float correction[kTile];
        for (int v = 0; v < vectors; ++v) {
            const int last_key = mask.diagonal ? std::min(keys, (v + 1) * kLanes) : keys,
                      first_masked = mask.first_masked(v, last_key);
            float* column = scores.data + v * kLanes;
            Vector largest = maximum[v];
            for (int key = 0; key < last_key; ++key) {
                Vector& score = vector_at(column + key * scores.stride);
                if (key >= first_masked) score = mask.attends(v, key) ? score : broadcast(-INFINITY);
                largest = score > largest ? score : largest;
            }
            const Vector shrink = exp2(maximum[v] - largest);
            Vector total = sum[v] * shrink;
            for (int key = 0; key < last_key; ++key) {
                Vector& score = vector_at(column + key * scores.stride);
                Vector p = exp2(score - largest);
                if (key >= first_masked) p = mask.attends(v, key) ? p : broadcast(0.0f);
                total += p;
                score = p;
            }
            maximum[v] = largest, sum[v] = total;
            vector_at(correction + v * kLanes) = shrink;
        }
        for (int query = 0; query < queries; ++query)
            if (correction[query] != 1.0f)  // the maximum rarely grows after the first tiles
                for (int v = 0; v < vectors_of_out; ++v)
                    vector_at(out.data + query * out.stride + v * kLanes) *= correction[query];
    }
};

template <class T>
void forward_tile(const AttentionForward<T>& op, const Tiling& tiling, long sequence, int query_tile,
                  const ForwardTiles& tiles) {
    const int padded = tiling.padded, channels = tiling.head_size, first_query = query_tile * kTile,
              queries = tiling.rows(query_tile);
    const std::size_t stride = 3 * tiling.row;
    load_rows(tiles.queries, &op.qkv[tiling.at(sequence, first_query, 3, 0)], stride, queries, channels, padded);
    transpose(tiles.queries_transposed, kTile, tiles.queries, padded, ceil_div(queries, kLanes), padded,
              tiling.scale * kLog2E);
    const Tile scores{tiles.scores, kTile}, out{tiles.out, padded};
    std::fill_n(tiles.out, kTile * padded, 0.0f);

    OnlineSoftmax softmax;
    FirstKeys first;
    first.load(op, sequence, first_query, queries);
    for (int key_tile = first.key[0] / kTile; key_tile <= query_tile; ++key_tile) {
        const int keys = tiling.rows(key_tile);
        const bool diagonal = key_tile == query_tile;
        load_rows(tiles.keys, &op.qkv[tiling.at(sequence, key_tile * kTile, 3, 1)], stride, keys, channels, padded);
        load_rows(tiles.values, &op.qkv[tiling.at(sequence, key_tile * kTile, 3, 2)], stride, keys, channels, padded);
        multiply_keys_queries(scores, {tiles.keys, padded}, {tiles.queries_transposed, kTile}, keys, queries, channels,
                              diagonal);
        softmax.update(scores, out, keys, queries, tiling.vectors, {first, key_tile * kTile, diagonal});
        add_over_keys(out, scores, {tiles.values, padded}, keys, queries, tiling.vectors, diagonal);
    }

    for (int query = 0; query < queries; ++query) {
        const float sum = softmax.sum[query / kLanes][query % kLanes],
                    maximum = softmax.maximum[query / kLanes][query % kLanes];
        store_row(&op.out[tiling.at(sequence, first_query + query, 1, 0)], tiles.out + query * padded, 1.0f / sum,
                  channels);
        op.logsumexp[sequence * tiling.seq_len + first_query + query] = maximum * kLn2 + std::log(sum);
    }
}

// ---- backward: a task is a whole head; or, if that would leave threads idle, one tile of queries (for dq) or of keys
// (for dk, dv)

// One query tile, loaded once and used with several key tiles.
struct QueryTile {
    float *q, *q_transposed, *dout, *dout_transposed, *dq, *p, *ds;
    alignas(64) float logsumexp[kTile] = {}, delta[kTile] = {};
    FirstKeys first_keys{};
    int queries = 0;
    QueryTile(float* memory, int padded) {
        const int area = kTile * padded;
        q = memory, q_transposed = q + area, dout = q_transposed + area, dout_transposed = dout + area,
        dq = dout_transposed + area;
        p = dq + area, ds = p + kTile * kTile;
    }
    static std::size_t floats(int padded) { return std::size_t(5) * kTile * padded + 2 * kTile * kTile; }
};
// One key tile, with its gradients.
struct KeyTile {
    float *k, *v, *dk, *dv;
    KeyTile(float* memory, int padded)
        : k(memory),
          v(k + kTile * padded),
          dk(v + kTile * padded),
          dv(dk + kTile * padded) {}
    static std::size_t floats(int padded) { return std::size_t(4) * kTile * padded; }
};

template <class T>
void load_queries(QueryTile& tile, const AttentionBackward<T>& op, const Tiling& tiling, long sequence, int number) {
    const int padded = tiling.padded, first = number * kTile;
    tile.queries = tiling.rows(number);
    const int vectors = ceil_div(tile.queries, kLanes);
    load_rows(tile.q, &op.qkv[tiling.at(sequence, first, 3, 0)], 3 * tiling.row, tile.queries, tiling.head_size,
              padded);
    load_rows(tile.dout, &op.dout[tiling.at(sequence, first, 1, 0)], tiling.row, tile.queries, tiling.head_size,
              padded);
    transpose(tile.q_transposed, kTile, tile.q, padded, vectors, padded, tiling.scale * kLog2E);
    transpose(tile.dout_transposed, kTile, tile.dout, padded, vectors, padded, 1.0f);
    std::fill_n(tile.dq, kTile * padded, 0.0f);
    const std::size_t row = std::size_t(sequence) * tiling.seq_len + first;
    for (int query = 0; query < tile.queries; ++query) tile.logsumexp[query] = op.logsumexp[row + query] * kLog2E;
    for (int query = 0; query < tile.queries; ++query) tile.delta[query] = op.delta[row + query];
    tile.first_keys.load(op, sequence, first, tile.queries);
}

template <class T>
void load_keys(const KeyTile& tile, const AttentionBackward<T>& op, const Tiling& tiling, long sequence, int number) {
    const int padded = tiling.padded, keys = tiling.rows(number);
    load_rows(tile.k, &op.qkv[tiling.at(sequence, number * kTile, 3, 1)], 3 * tiling.row, keys, tiling.head_size,
              padded);
    load_rows(tile.v, &op.qkv[tiling.at(sequence, number * kTile, 3, 2)], 3 * tiling.row, keys, tiling.head_size,
              padded);
    std::fill_n(tile.dk, 2 * kTile * padded, 0.0f);  // and dv, which follows it
}

template <class T>
void store_gradient(const AttentionBackward<T>& op, const Tiling& tiling, long sequence, int number, int part,
                    const float* from, float scale) {
    for (int row = 0; row < tiling.rows(number); ++row)
        store_row(&op.dqkv[tiling.at(sequence, number * kTile + row, 3, part)], from + row * tiling.padded, scale,
                  tiling.head_size);
}

// Computes p and ds of a query tile and a key tile, and adds their contributions to the requested gradients.
template <bool WantQueries, bool WantKeys>
void backward_tiles(const QueryTile& query, const KeyTile& key, const Tiling& tiling, int key_tile, bool diagonal) {
    const int padded = tiling.padded, channels = tiling.head_size, queries = query.queries,
              keys = tiling.rows(key_tile);
    const Mask mask{query.first_keys, key_tile * kTile, diagonal};
    const Tile p{query.p, kTile}, ds{query.ds, kTile};
    multiply_keys_queries(p, {key.k, padded}, {query.q_transposed, kTile}, keys, queries, channels, diagonal);
    multiply_keys_queries(ds, {key.v, padded}, {query.dout_transposed, kTile}, keys, queries, channels, diagonal);
    for (int row = 0; row < round_up(keys, kBlockRows); ++row)
        for (int v = diagonal ? row / kLanes : 0; v * kLanes < queries; ++v) {
            const int at = v * kLanes;
            Vector& score = vector_at(p.data + row * kTile + at);
            Vector& dp = vector_at(ds.data + row * kTile + at);
            Vector weight = exp2(score - vector_at(query.logsumexp + at));
            if (row >= mask.first_masked(v, keys)) weight = mask.attends(v, row) ? weight : broadcast(0.0f);
            score = weight;
            dp = weight * (dp - vector_at(query.delta + at));
        }
    if constexpr (WantKeys) {
        add_over_queries({key.dv, padded}, p, {query.dout, padded}, keys, queries, tiling.vectors, diagonal);
        add_over_queries({key.dk, padded}, ds, {query.q, padded}, keys, queries, tiling.vectors, diagonal);
    }
    if constexpr (WantQueries)
        add_over_keys({query.dq, padded}, ds, {key.k, padded}, keys, queries, tiling.vectors, diagonal);
}

template <class T>
void compute_delta(const AttentionBackward<T>& op, const Tiling& tiling) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < tiling.sequences() * tiling.seq_len; ++row) {
        const std::size_t at = tiling.at(row / tiling.seq_len, int(row % tiling.seq_len), 1, 0);
        float partial[kLanes] = {};  // one sum per lane, so that the loop vectorises
        for (int c = 0; c < tiling.head_size; c += 4)
            for (int k = 0; k < 4; ++k)
                partial[(c + k) % kLanes] += widen(op.dout[at + c + k]) * widen(op.out[at + c + k]);
        float sum = 0.0f;
        for (float x : partial) sum += x;
        op.delta[row] = sum;
    }
}

template <class T>
void backward_by_heads(const AttentionBackward<T>& op, const Tiling& tiling) {
    const int padded = tiling.padded, tiles = tiling.tiles;
    const std::size_t key_floats = KeyTile::floats(padded);
    Scratch scratch(QueryTile::floats(padded) + tiles * key_floats);
#pragma omp parallel for schedule(dynamic)
    for (long sequence = 0; sequence < tiling.sequences(); ++sequence) {
        QueryTile query(scratch.of_thread(), padded);
        const auto key = [&](int tile) {
            return KeyTile(scratch.of_thread() + QueryTile::floats(padded) + tile * key_floats, padded);
        };
        for (int i = 0; i < tiles; ++i) {
            load_keys(key(i), op, tiling, sequence, i);
            load_queries(query, op, tiling, sequence, i);
            for (int j = first_key_tile_of(op, sequence, i); j <= i; ++j)
                backward_tiles<true, true>(query, key(j), tiling, j, i == j);
            store_gradient(op, tiling, sequence, i, 0, query.dq, tiling.scale);
        }
        for (int j = 0; j < tiles; ++j) {
            store_gradient(op, tiling, sequence, j, 1, key(j).dk, tiling.scale);
            store_gradient(op, tiling, sequence, j, 2, key(j).dv, 1.0f);
        }
    }
}

template <class T>
void backward_by_tiles(const AttentionBackward<T>& op, const Tiling& tiling) {
    const int padded = tiling.padded, tiles = tiling.tiles;
    Scratch scratch(QueryTile::floats(padded) + KeyTile::floats(padded));
    const long tasks = 2 * tiling.sequences() * tiles;
#pragma omp parallel for schedule(dynamic)
    for (long task = 0; task < tasks; ++task) {
        QueryTile query(scratch.of_thread(), padded);
        const KeyTile key(scratch.of_thread() + QueryTile::floats(padded), padded);
        const long sequence = task % tiling.sequences();
        const int rank = int(task / tiling.sequences() / 2);  // the longest tasks come first
        if (task / tiling.sequences() % 2 == 0) {
            load_keys(key, op, tiling, sequence, rank);
            for (int i = rank; i < tiles && first_key_tile_of(op, sequence, i) <= rank; ++i) {
                load_queries(query, op, tiling, sequence, i);
                backward_tiles<false, true>(query, key, tiling, rank, i == rank);
            }
            store_gradient(op, tiling, sequence, rank, 1, key.dk, tiling.scale);
            store_gradient(op, tiling, sequence, rank, 2, key.dv, 1.0f);
        } else {
            const int i = tiles - 1 - rank;
            load_queries(query, op, tiling, sequence, i);
            for (int j = first_key_tile_of(op, sequence, i); j <= i; ++j) {
                load_keys(key, op, tiling, sequence, j);
                backward_tiles<true, false>(query, key, tiling, j, i == j);
            }
            store_gradient(op, tiling, sequence, i, 0, query.dq, tiling.scale);
        }
    }
}

}  // namespace

template <class T>
void attention_forward(const AttentionForward<T>& op, StreamRef) {
    check_attention(op);
    const Tiling tiling{op.shape};
    Scratch scratch(ForwardTiles::floats(tiling.padded));
    const long tasks = tiling.sequences() * tiling.tiles;
#pragma omp parallel for schedule(dynamic)
    for (long task = 0; task < tasks; ++task) {
        // neighbouring tasks share their keys and values; within a head the longest comes first
        const int query_tile = tiling.tiles - 1 - int(task % tiling.tiles);
        forward_tile(op, tiling, task / tiling.tiles, query_tile, ForwardTiles(scratch.of_thread(), tiling.padded));
    }
}

template <class T>
void attention_backward(const AttentionBackward<T>& op, StreamRef) {
    check_attention(op);
    const Tiling tiling{op.shape};
    compute_delta(op, tiling);
    // Tasks per tile compute 7 products, tasks per head 5, so tiles are faster if whole heads would leave more than 2
    // of 7 threads idle on average.
    const long threads = omp_get_max_threads(), rounds = ceil_div(tiling.sequences(), threads);
    if (5 * rounds * threads <= 7 * tiling.sequences() || tiling.tiles == 1) backward_by_heads(op, tiling);
    else backward_by_tiles(op, tiling);
}

std::vector<AttentionMethod> attention_methods() { return {AttentionMethod::plain}; }

void flash_attention_forward(const AttentionForward<bf16>&, StreamRef) {
    throw Error("this build has no flash attention", Blame::runtime);
}
void flash_attention_backward(const AttentionBackward<bf16>&, StreamRef) {
    throw Error("this build has no flash attention", Blame::runtime);
}

template void attention_forward(const AttentionForward<float>&, StreamRef);
template void attention_forward(const AttentionForward<bf16>&, StreamRef);
template void attention_backward(const AttentionBackward<float>&, StreamRef);
template void attention_backward(const AttentionBackward<bf16>&, StreamRef);

}  // namespace kernels
