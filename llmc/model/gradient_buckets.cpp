// gradient_buckets.cpp - divides the parameters into one bucket per block, and each bucket into parts with owners
#include "llmc/model/gradient_buckets.h"

#include <tuple>

#include "kernels/base/error.h"

namespace llmc {

std::vector<BlockMatrix> block_matrices(const ParameterTable& table, int ranks) {
    std::vector<BlockMatrix> matrices;
    const auto add = [&](int tensor, int parts) {
        const ParameterSpec& spec = table.tensors()[std::size_t(tensor)];
        for (int part = 0; part < parts; ++part)
            matrices.push_back({.first = spec.offset + part * spec.size() / parts, .rows = int(spec.rows) / parts,
                                .columns = int(spec.columns), .owner = 0});
    };
    for (int layer = 0; layer < table.config().layers; ++layer) {
        const BlockParameters& block = table.block(layer);
        for (const Linear& linear : block.linears()) add(linear.weight, linear.weight == block.qkv.weight ? 3 : 1);
    }
    std::vector<BlockMatrix*> by_cost;
    for (BlockMatrix& matrix : matrices) by_cost.push_back(&matrix);
    std::ranges::stable_sort(by_cost, [](auto* a, auto* b) { return a->cost() > b->cost(); });
    std::vector<double> work(std::size_t(ranks), 0);
    for (BlockMatrix* const matrix : by_cost) {
        const auto least = std::ranges::min_element(work);
        *least += matrix->cost();
        matrix->owner = int(least - work.begin());
    }
    return matrices;
}

GradientBuckets::GradientBuckets(const ParameterTable& table, const Sharding& sharding)
    : sharding_(sharding) {
    require(sharding.stage >= 0 && sharding.stage <= 2, "--zero-stage", sharding.stage, "0, 1 or 2");
    if (sharding.whole_matrices) matrices_ = block_matrices(table, sharding.ranks);
    const int layers = table.config().layers;
    const auto offset = [&](int tensor) { return table.tensors()[std::size_t(tensor)].offset; };
    std::int64_t end = table.elements();
    const auto cut = [&](std::int64_t first) {
        divide(buckets_.emplace_back(GradientBucket{.flat = {first, end - first}}));
        end = first;
    };
    for (int layer = layers - 1; layer >= 0; --layer) {
        cut(offset(table.block(layer).ln1.weight));
        largest_block_ = std::max(largest_block_, buckets_.back().flat.size);
    }
    cut(0);
    int bucket = size() - 1;  // tensors are in ascending order, buckets in descending order
    for (const ParameterSpec& spec : table.tensors()) {
        while (spec.offset >= buckets_[std::size_t(bucket)].flat.end()) --bucket;
        of_tensor_.push_back(bucket);
    }
    assign();
}

void GradientBuckets::divide(GradientBucket& bucket) const {
    std::int64_t first = 0;
    const auto add_shared_until = [&](std::int64_t end) {
        if (end == first) return;
        const ElementRange shard = shard_of(end - first, sharding_.rank, sharding_.ranks);
        bucket.parts.push_back({.whole = {first, end - first}, .shard = {first + shard.first, shard.size}});
    };
    for (int i = 0; i < int(matrices_.size()); ++i) {
        const BlockMatrix& matrix = matrices_[std::size_t(i)];
        if (matrix.first < bucket.flat.first || matrix.first >= bucket.flat.end()) continue;
        const ElementRange whole{matrix.first - bucket.flat.first, matrix.size()};
        add_shared_until(whole.first);
        bucket.parts.push_back({.whole = whole, .matrix = i,
                                .shard = {whole.first, matrix.owner == sharding_.rank ? whole.size : 0}});
        first = whole.end();
    }
    add_shared_until(bucket.flat.size);
}

// What this rank owns, and where it is in an array of that.
void GradientBuckets::assign() {
    const bool shares_all = !sharding_.shards_state();  // what is in no matrix
    std::int64_t offset = 0;
    std::vector<BucketPart*> matrices;
    for (GradientBucket& bucket : buckets_)
        for (BucketPart& part : bucket.parts) {
            if (part.matrix) {
                matrices.push_back(&part);
                continue;
            }
            part.offset = offset;
            offset += (shares_all ? part.whole : part.shard).size;
        }
    outside_matrices_ = offset;
    std::ranges::sort(matrices, {}, [&](const BucketPart* part) {
        const BlockMatrix& matrix = matrices_[std::size_t(*part->matrix)];
        return std::tuple(matrix.rows, matrix.columns, matrix.first);
    });
    for (BucketPart* const part : matrices) {
        part->offset = offset;
        offset += part->shard.size;
    }
    owned_elements_ = offset;
    if (shares_all && matrices_.empty()) {
        owned_.push_back({.flat = {0, owned_elements_}, .owned = {0, owned_elements_}, .bucket = {}, .matrix = {}});
        return;
    }
    for (int i = size() - 1; i >= 0; --i)
        for (const BucketPart& part : buckets_[std::size_t(i)].parts) {
            if (part.matrix && owner(part) != sharding_.rank) continue;
            const ElementRange& range = shares_all ? part.whole : part.shard;
            owned_.push_back({.flat = {buckets_[std::size_t(i)].flat.first + range.first, range.size},
                              .owned = {part.offset, range.size}, .bucket = i, .matrix = part.matrix});
        }
}

}  // namespace llmc
