// norm_modules.cpp - the ranges of the flat array that form a module, and their division into tiles
#include "llmc/model/norm_modules.h"

#include <algorithm>

namespace llmc {

NormModules::NormModules(const ParameterTable& table, const GradientBuckets& buckets) {
    // A range extends from its first tensor to the first tensor after it, including gaps, which are 0.
    const auto add = [&](int module, int from, int to) {
        const auto offset = [&](int tensor) {
            return tensor < int(table.tensors().size()) ? table.tensors()[std::size_t(tensor)].offset
                                                        : table.elements();
        };
        ranges.push_back({.first = offset(from), .size = offset(to) - offset(from),
                             .bucket = buckets.of_tensor(from), .module = module});
    };
    const auto module = [&](const std::string& name) {
        names.push_back(name);
        return int(names.size()) - 1;
    };
    const int layers = table.config().layers;
    for (int layer = layers - 1; layer >= 0; --layer) {
        const BlockParameters& block = table.block(layer);
        const std::string h = "h." + std::to_string(layer) + ".";
        add(module(h + "attn"), block.qkv.weight, block.ln2.weight);
        add(module(h + "mlp"), block.fc.weight,
            layer + 1 < layers ? table.block(layer + 1).ln1.weight : table.final_ln().weight);
        const int ln = module(h + "ln");
        add(ln, block.ln1.weight, block.qkv.weight);
        add(ln, block.ln2.weight, block.fc.weight);
        if (layer == layers - 1) add(module("ln_f"), table.final_ln().weight, table.final_ln().bias + 1);
    }
    add(module("wte"), table.token_table(), table.position_table());
    add(module("wpe"), table.position_table(), table.block(0).ln1.weight);
}

NormTiles::NormTiles(const NormModules& modules, const GradientBuckets& buckets, TilesOf of)
    : module_start{0},
      bucket_start{0} {
    const auto close = [&](int module, int bucket) {
        while (int(module_start.size()) <= module) module_start.push_back(std::int32_t(tiles.size()));
        while (int(bucket_start.size()) <= bucket) bucket_start.push_back(tiles.size());
    };
    for (const NormModules::Range& range : modules.ranges) {
        close(range.module, range.bucket);
        const GradientBucket& bucket = buckets[range.bucket];
        // `origin`: in the flat array, of the first element of the array that the tiles are relative to
        const auto add = [&](std::int64_t begin, std::int64_t size, std::int64_t origin) {
            const std::int64_t first = std::max(begin, range.first),
                               last = std::min(begin + size, range.first + range.size);
            if (last > first) kernels::append_tiles(tiles, first - origin, last - first);
        };
        if (of == TilesOf::buckets) {
            add(bucket.flat.first, bucket.flat.size, bucket.flat.first);
            continue;
        }
        for (const BucketPart& part : bucket.parts) {
            const std::int64_t begin = bucket.flat.first + part.shard.first;
            add(begin, part.shard.size, buckets.sharding().shards_gradients() ? begin - part.offset : 0);
        }
    }
    close(int(modules.names.size()), buckets.size());
}

}  // namespace llmc
