// norm_modules.cpp - the ranges of the flat array that form a module, and their division into tiles
#include "llmc/model/norm_modules.h"

#include <algorithm>

namespace llmc {
namespace {

// "h.0.attn" of "h.0.attn.c_proj.weight", "h.0.ln" of "h.0.ln_2.bias", "ln_f" of "ln_f.weight"
std::string module_of(const ParameterSpec& tensor) {
    const bool in_block = tensor.name.starts_with("h.");
    const std::size_t start = in_block ? tensor.name.find('.', 2) + 1 : 0;
    return tensor.name.substr(0, tensor.name.find_first_of(in_block ? "._" : ".", start));
}

}  // namespace

NormModules::NormModules(const ParameterTable& table, const GradientBuckets& buckets) {
    const std::vector<ParameterSpec>& tensors = table.tensors();
    std::vector<std::string> modules;  // of every tensor
    for (const ParameterSpec& tensor : tensors) modules.push_back(module_of(tensor));
    for (int bucket = 0; bucket < buckets.size(); ++bucket)
        for (const bool matrices : {true, false})  // modules with matrices come first
            for (std::size_t i = 0; i < tensors.size(); ++i)
                if (buckets.of_tensor(int(i)) == bucket && tensors[i].decays == matrices &&
                    std::ranges::find(names, modules[i]) == names.end())
                    names.push_back(modules[i]);
    for (std::size_t module = 0; module < names.size(); ++module)
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (modules[i] != names[module]) continue;
            // with the gap after the tensor, which is 0
            const std::int64_t end = i + 1 < tensors.size() ? tensors[i + 1].offset : table.elements();
            if (i > 0 && modules[i - 1] == modules[i]) parts.back().flat.size = end - parts.back().flat.first;
            else parts.push_back({.flat = {tensors[i].offset, end - tensors[i].offset},
                                  .bucket = buckets.of_tensor(int(i)), .module = int(module)});
        }
}

NormTiles::NormTiles(const NormModules& modules, const GradientBuckets& buckets, TilesOf of)
    : module_start{0},
      bucket_start{0} {
    const auto close = [&](int module, int bucket) {
        while (int(module_start.size()) <= module) module_start.push_back(std::int32_t(tiles.size()));
        while (int(bucket_start.size()) <= bucket) bucket_start.push_back(tiles.size());
    };
    for (const NormModules::Part& part_of_module : modules.parts) {
        close(part_of_module.module, part_of_module.bucket);
        const GradientBucket& bucket = buckets[part_of_module.bucket];
        const ElementRange& range = part_of_module.flat;
        // `origin`: in the flat array, of the first element of the array that the tiles are relative to
        const auto add = [&](std::int64_t begin, std::int64_t size, std::int64_t origin) {
            const std::int64_t first = std::max(begin, range.first),
                               last = std::min(begin + size, range.end());
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
