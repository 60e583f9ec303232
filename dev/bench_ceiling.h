// bench_ceiling.h - the least that a machine takes for an operation's bytes and flops: they are moved, and multiplied,
// by code that does nothing else, at the operation's own sizes and in turn with it
//
// One copy of large arrays, timed once, is no ceiling for all. On a core of an EPYC it moved 19.8 GB/s, and
//   - arrays that are only read 31.4 (bias gradient, 12 MB): what is only written must be read first (write-allocate),
//     which nobody counts;
//   - smaller copies 28.2 (LayerNorm forward, 6 MB): what a call writes is in a cache when it returns;
//   - other programs, which ran while it was timed and not later, made shares of 400 to 570 % of it.
#pragma once
#include <omp.h>

#include <array>
#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "kernels/matmul/matmul.h"
#include "test/operations/operation.h"

namespace bench {

// Of one call, in bytes: arrays that are only read, only written, or read and written where they lie.
struct Moved {
    double read = 0, written = 0, updated = 0;
};

// By the operation's count of what must move and the roles of its tensors: what is not written is read. Where they have
// more room to write than moves, as a table of which some rows are touched, they share what moves.
inline Moved moved_by(const operations::Operation& op) {
    Moved moved;
    for (const operations::Storage& tensor : op.tensors) {
        const double bytes = double(tensor.size * tensor.element->size);
        if (tensor.role == operations::Role::output) moved.written += bytes;
        if (tensor.role == operations::Role::in_out) moved.updated += bytes;
    }
    const double most = moved.written + 2 * moved.updated, share = most > op.bytes ? op.bytes / most : 1;
    moved.written *= share;
    moved.updated *= share;
    moved.read = op.bytes - moved.written - 2 * moved.updated;
    return moved;
}

// Moves so many bytes as fast as a loop can that does nothing else, by all threads; on a GPU by copies, and by a kernel
// that reads and writes nothing.
class Traffic {
public:
    explicit Traffic(const Moved& moved)
        : read_(words(moved.read)),
          written_(words(moved.written)),
          updated_(words(moved.updated)),
          from_(bytes(read_ + (device::is_gpu() ? updated_ : 0))),
          to_(bytes(written_ + updated_)) {
        for (device::Memory* const memory : {&from_, &to_})
            if (memory->bytes() > 0) device::fill_zero(memory->data(), memory->bytes(), nullptr);
        if (!device::is_gpu() || read_ <= written_) return;
        std::vector<kernels::NormTile> tiles;
        kernels::append_tiles(tiles, 0, std::int64_t(read_ - written_));
        tiles_ = device::Array<kernels::NormTile>(std::span<const kernels::NormTile>(tiles), nullptr);
        partial_ = device::Array<double>(tiles.size());
        device::sync(nullptr);  // the host's tiles end here
    }

    void run() {
        if (device::is_gpu()) run_on_gpu();
        else run_on_cpu();
    }

private:
    using Word = std::uint32_t;
    static std::size_t words(double bytes) {  // whole tiles' starts
        constexpr std::size_t kUnit = 32;
        return std::size_t(bytes / sizeof(Word)) / kUnit * kUnit;
    }
    static std::size_t bytes(std::size_t words) { return words * sizeof(Word); }

    void run_on_gpu() {
        const std::size_t copied = std::min(read_, written_) + updated_;
        if (copied > 0) device::copy_on_device(to_.data(), from_.data(), bytes(copied), nullptr);
        if (read_ > written_)
            kernels::squared_norms({.partial = partial_.span(),
                                    .values = {reinterpret_cast<const float*>(from_.data()) + copied, read_ - written_},
                                    .tiles = tiles_.span()}, nullptr);
        if (written_ > read_) device::fill_zero(to_.data() + bytes(copied), bytes(written_ - read_), nullptr);
    }

    void run_on_cpu() {
        const Word* const from = reinterpret_cast<const Word*>(from_.data());
        Word* const to = reinterpret_cast<Word*>(to_.data());
        Word* const updated = to + written_;
        const std::size_t both = std::min(read_, written_);
        Word seen = 0;
        #pragma omp parallel reduction(| : seen)
        {
            // one stretch of everything for each thread, in whole cache lines
            const auto part = [](std::size_t begin, std::size_t end, int index) {
                constexpr std::size_t kLine = 64 / sizeof(Word);
                const std::size_t lines = (end - begin) / kLine, count = std::size_t(omp_get_num_threads());
                return index == omp_get_num_threads() ? end : begin + lines * std::size_t(index) / count * kLine;
            };
            const int thread = omp_get_thread_num();
            const std::size_t copied = part(0, both, thread + 1), stored = part(both, written_, thread + 1),
                              loaded = part(both, read_, thread + 1), changed = part(0, updated_, thread + 1);
            #pragma omp simd
            for (std::size_t i = part(0, both, thread); i < copied; ++i) to[i] = from[i];
            #pragma omp simd reduction(| : seen)
            for (std::size_t i = part(both, read_, thread); i < loaded; ++i) seen |= from[i];
            #pragma omp simd
            for (std::size_t i = part(both, written_, thread); i < stored; ++i) to[i] = 1;
            #pragma omp simd
            for (std::size_t i = part(0, updated_, thread); i < changed; ++i) updated[i] += 1;
        }
        seen_ = seen;
    }

    std::size_t read_, written_, updated_;  // words
    device::Memory from_, to_;
    device::Array<kernels::NormTile> tiles_{};
    device::Array<double> partial_{};
    volatile Word seen_ = 0;  // so that what is read is used
};

// A product of square matrices.
template <class T>
class Product {
public:
    explicit Product(int size) : Product(size, values(size)) {}
    void run() { matmul_.forward<T>({out_.span(), {}, left_.span(), right_.span(), {}, size_, size_, size_}, nullptr); }
    double flops() const { return 2.0 * size_ * size_ * size_; }

private:
    static std::vector<T> values(int size) {
        std::vector<T> values(std::size_t(size) * std::size_t(size));
        // no zeros: they would cost a GPU less power
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = operations::narrow<T>(double(i % 251) / 251 - 0.5);
        return values;
    }
    Product(int size, const std::vector<T>& host) : size_(size), left_(host, nullptr), right_(host, nullptr),
                                                    out_(host.size()) {
        device::sync(nullptr);
    }

    int size_;
    kernels::Matmul matmul_;
    device::Array<T> left_, right_, out_;
};

}  // namespace bench
