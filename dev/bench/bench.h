// bench.h - a timer: warms up, repeats for a time budget, reports the median; and lower bounds of an operation's time:
// code that does nothing else moves the same bytes and does the same flops, at the operation's sizes and interleaved
// with its calls
//
// One copy of large arrays, timed once, is not a valid ceiling. On a core of an EPYC it moved 19.8 GB/s, but
//   - arrays that are only read reached 31.4 (bias gradient, 12 MB): a written line is read first (write-allocate),
//     and that read is not counted;
//   - smaller copies reached 28.2 (LayerNorm forward, 6 MB): written data is still in a cache when the call returns;
//   - other programs, which ran while the copy was timed but not later, led to shares of 400 to 570 % of it.
#pragma once
#include <omp.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "kernels/matmul/matmul.h"
#include "test/operations/operation.h"

namespace bench {

// Half of the samples lie within median * (1 +- spread). Times in seconds.
struct Timing {
    double median = 0, spread = 0, fastest = 0;
};

// Times work with cold caches: before every call all threads write a buffer larger than the last-level cache, as each
// thread may have a cache of its own.
class ColdTimer {
public:
    explicit ColdTimer(std::size_t cache) : buffer_(2 * cache) {}

    // Calls the functions in turn, so that other load on the machine affects all of them equally: one warm-up round,
    // then about `budget` seconds of samples, at least five rounds unless they take more than 10 * `budget`.
    using Works = std::vector<std::function<void()>>;
    std::vector<Timing> time(const Works& works, double budget) {
        std::vector<std::vector<double>> times(works.size());
        const double begin = omp_get_wtime();
        for (const auto& work : works) work();
        device::sync(nullptr);
        for (double elapsed = 0; elapsed < budget || (times[0].size() < 5 && elapsed < 10 * budget) || times[0].empty();
             elapsed = omp_get_wtime() - begin)
            for (std::size_t i = 0; i < works.size(); ++i) {
                cool();
                timer_.start(nullptr);
                works[i]();
                timer_.stop(nullptr);
                times[i].push_back(timer_.seconds());
            }
        std::vector<Timing> result;
        for (std::vector<double>& of : times) {
            std::sort(of.begin(), of.end());
            const double median = of[of.size() / 2];
            result.push_back({median, (of[of.size() * 3 / 4] - of[of.size() / 4]) / 2 / median, of[0]});
        }
        return result;
    }

private:
    void cool() {
        if (device::is_gpu()) return device::fill_zero(buffer_.data(), buffer_.bytes(), nullptr);
        constexpr std::size_t kPart = std::size_t(1) << 18;
        #pragma omp parallel for schedule(static, 1)
        for (std::size_t first = 0; first < buffer_.bytes(); first += kPart)
            device::fill_zero(static_cast<std::byte*>(buffer_.data()) + first, std::min(kPart, buffer_.bytes() - first),
                              nullptr);
    }

    device::Memory buffer_;
    device::Timer timer_;
};

// Bytes of one call: of arrays that are only read, only written, or read and written in place.
struct Moved {
    double read = 0, written = 0, updated = 0;
};

// Derived from the operation's byte count and the roles of its tensors: bytes that are not written are read. If the
// written tensors are larger than the traffic (a table of which some rows are updated), they are scaled down to it.
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

// Moves `moved` bytes as fast as possible: on a CPU by a loop of all threads; on a GPU by copies, and by a kernel that
// reads and writes almost nothing.
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
        device::sync(nullptr);  // the host's tiles are freed here
    }

    void run() {
        if (device::is_gpu()) run_on_gpu();
        else run_on_cpu();
    }

private:
    using Word = std::uint32_t;
    static std::size_t words(double bytes) {  // a multiple of a tile's alignment
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
            // each thread takes one range of each array, in whole cache lines
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
    volatile Word seen_ = 0;  // keeps the compiler from removing the reads
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
        // not zeros: a GPU needs less power for those and runs faster
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
