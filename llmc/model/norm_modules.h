// norm_modules.h - the modules whose gradient norms are told apart, and the tiles that their squares are summed in
//
// Plain host code.
#pragma once
#include <string>
#include <vector>

#include "kernels/grad_norm.h"
#include "llmc/model/gradient_buckets.h"

namespace llmc {

// Modules, as PyTorch names them: wte, wpe, and of every block attn, mlp and ln, and ln_f. Each lies within one bucket.
struct NormModules {
    NormModules(const ParameterTable& table, const GradientBuckets& buckets);
    struct Stretch {
        std::int64_t first, size;  // in the flat array
        int bucket, module;
    };
    std::vector<std::string> names;  // in the order of the buckets
    std::vector<Stretch> stretches;  // ascending by bucket, then by module
};

// Whole buckets, or this rank's shards of them.
enum class TilesOf { buckets, shards };

// Tiles of every module, by bucket. A tile's first element is counted from the start of the bucket or shard.
struct NormTiles {
    NormTiles(const NormModules& modules, const GradientBuckets& buckets, TilesOf of);
    std::vector<kernels::NormTile> tiles;
    std::vector<std::int32_t> module_start;  // (modules + 1)
    std::vector<std::size_t> bucket_start;   // (buckets + 1)
};

}  // namespace llmc
