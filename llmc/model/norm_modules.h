// norm_modules.h - the modules with separate gradient norms, and the tiles in which their squares are summed
//
// Plain host code.
#pragma once
#include <string>
#include <vector>

#include "kernels/grad_norm.h"
#include "llmc/model/gradient_buckets.h"

namespace llmc {

// Modules with PyTorch's names: wte, wpe, ln_f, and attn, mlp and ln of every block. Each is within one bucket.
struct NormModules {
    NormModules(const ParameterTable& table, const GradientBuckets& buckets);
    struct Part {
        ElementRange flat;
        int bucket, module;
    };
    std::vector<std::string> names;  // bucket by bucket, those with matrices first
    std::vector<Part> parts;  // ascending by bucket, then by module
};

// Whole buckets, or this rank's shards of their parts.
enum class TilesOf { buckets, shards };

// Tiles of every module, by bucket. A tile's first element is relative to the start of the bucket; of a shard, to the
// start of the array of reduced gradients: the flat array, or at stage 2 that of what this rank owns.
struct NormTiles {
    NormTiles(const NormModules& modules, const GradientBuckets& buckets, TilesOf of);
    std::vector<kernels::NormTile> tiles;
    std::vector<std::int32_t> module_start;  // (modules + 1)
    std::vector<std::size_t> bucket_start;   // (buckets + 1)
};

}  // namespace llmc
