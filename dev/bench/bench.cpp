// bench.cpp - times every registered operation (test/operations) and compares it with a plain loop and with the
// machine's roofline
//
//   bench layernorm adamw     operations whose name contains one of the words; see bench --help for the options
//
// Prints one line per operation, type and shape. kColumns, printed first, explains the columns.
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "kernels/matmul/matmul.h"
#include "llmc/base/value_text.h"
#include "test/operations/operation.h"

// a timer: warms up, repeats for a time budget, reports the median; and lower bounds of an operation's time:
// code that does nothing else moves the same bytes and does the same flops, at the operation's sizes and interleaved
// with its calls
//
// One copy of large arrays, timed once, is not a valid ceiling. On a core of an EPYC it moved 19.8 GB/s, but
//   - arrays that are only read reached 31.4 (bias gradient, 12 MB): a written line is read first (write-allocate),
//     and that read is not counted;
//   - smaller copies reached 28.2 (LayerNorm forward, 6 MB): written data is still in a cache when the call returns;
//   - other programs, which ran while the copy was timed but not later, led to shares of 400 to 570 % of it.
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

namespace {

using namespace operations;

constexpr const char* kColumns =
    "Caches are cold: before every call a buffer larger than the last-level cache is written.\n"
    "  ms, +-     median of one call; half the interquartile range as a share of the median\n"
    "  GB/s       bytes that must move / time; written data may still be in a cache when a call ends\n"
    "  GFLOP/s    required flops / time\n"
    "  x plain    time / time of the formula as a plain float loop on the same tensors; n/a on a GPU\n"
    "  roofline   lower bound / time, and what sets the bound. The bound is the longer of two times: moving the same\n"
    "             bytes by loops that do nothing else, interleaved with the operation's calls (memory), and its flops\n"
    "             at the rate of the fastest square product so far (products). Both are fastest calls. If the fastest\n"
    "             call of the operation is faster than that, it is the bound (itself)\n";

struct Options {
    std::vector<std::string> names;
    std::string dtype, shapes;
    double seconds;
    int threads;
};

cxxopts::Options command_line() {
    cxxopts::Options options("bench", "Times operations and compares them with a plain loop and the roofline.\n");
    options.custom_help("[OPTION...] [NAME...]     default: all operations; else those whose name contains a NAME")
        .positional_help("");
    options.add_options()
        ("dtype", "fp32, bf16 or both", cxxopts::value<std::string>()->default_value("both"), "TYPE")
        ("shapes", "small or large (default: small on a CPU, large on a GPU)", cxxopts::value<std::string>(), "SIZE")
        ("seconds", "time to spend on each measurement", cxxopts::value<std::string>()->default_value("0.3"), "S")
        ("threads", "CPU threads; 0: all", cxxopts::value<int>()->default_value("0"), "N")
        ("h,help", "print this help and exit");
    options.add_options("names")("filter", "", cxxopts::value<std::vector<std::string>>());
    options.parse_positional("filter");
    return options;
}

Options options_of(const cxxopts::ParseResult& given) {
    const Options o{given.count("filter") ? given["filter"].as<std::vector<std::string>>()
                                          : std::vector<std::string>{""},
                    given["dtype"].as<std::string>(),
                    given.count("shapes") ? given["shapes"].as<std::string>() : "",
                    llmc::parse_number("--seconds", given["seconds"].as<std::string>(), 1e-6, 1e6),
                    given["threads"].as<int>()};
    require(o.dtype == "fp32" || o.dtype == "bf16" || o.dtype == "both", "--dtype", in_quotes(o.dtype),
            "fp32, bf16 or both");
    require(o.shapes.empty() || o.shapes == "small" || o.shapes == "large", "--shapes", in_quotes(o.shapes),
            "small or large");
    require(o.threads >= 0, "--threads", o.threads, "0 or more");
    return o;
}

// Square products of the size with the highest rate, and that rate.
template <class T>
class ProductCeiling {
public:
    ProductCeiling(bench::ColdTimer& timer, const std::vector<int>& sizes, double budget) {
        for (const int size : sizes) {
            auto product = std::make_unique<bench::Product<T>>(size);
            const double seconds = timer.time({[&] { product->run(); }}, budget / double(sizes.size()))[0].fastest;
            if (product->flops() / seconds < flops_per_second_) continue;
            product_ = std::move(product);
            flops_per_second_ = product_->flops() / seconds;
        }
    }
    void run() { product_->run(); }
    void saw(double seconds) { flops_per_second_ = std::max(flops_per_second_, product_->flops() / seconds); }
    double flops_per_second() const { return flops_per_second_; }

private:
    std::unique_ptr<bench::Product<T>> product_;
    double flops_per_second_ = 0;
};

struct Ceilings {
    double copied_per_second;  // bytes of large arrays, read and written; printed only
    ProductCeiling<float> fp32;
    ProductCeiling<bf16> bf16_;
    template <class Use> decltype(auto) of(DType dtype, Use&& use) {
        return dtype == DType::bf16 ? use(bf16_) : use(fp32);
    }
};

Ceilings measure_ceilings(bench::ColdTimer& timer, const device::Info& device, double budget) {
    const double bytes = double(std::max<std::size_t>(std::size_t(64) << 20, 2 * device.cache));
    bench::Traffic copy({.read = bytes, .written = bytes});
    const std::vector<int> sizes = device.kind == "cuda" ? std::vector{4096, 8192} : std::vector{512, 1024};
    return {2 * bytes / timer.time({[&] { copy.run(); }}, budget)[0].fastest, {timer, sizes, budget},
            {timer, sizes, budget}};
}

bool wanted(const Options& options, const Registration& registration, DType dtype) {
    const bool named = std::ranges::any_of(options.names, [&](const std::string& name) {
        return registration.name.find(name) != std::string::npos;
    });
    return named && (options.dtype == "both" || options.dtype == name_of(dtype));
}

struct Row {
    double ms, spread, roofline;
    const char* roofline_by;
    std::optional<double> gb_per_s{}, gflops_per_s{}, times_plain{};
};

// Returns nothing if this build or machine does not support the operation.
std::optional<Row> measure(const Registration& registration, DType dtype, const Shape& shape,
                           Ceilings& ceilings, bench::ColdTimer& timer, const device::Info& device, double budget) {
    const auto op = registration.make(dtype, shape);
    if (!op || !op->runs_here()) return {};
    for (Storage& tensor : op->tensors) tensor.reset();
    bench::Traffic traffic(bench::moved_by(*op));
    bench::ColdTimer::Works works{[&] { op->run(nullptr); }, [&] { traffic.run(); }};
    if (op->flops > 0) works.push_back([&] { ceilings.of(dtype, [](auto& products) { products.run(); }); });
    const std::vector<bench::Timing> timings = timer.time(works, budget);
    const bench::Timing& timing = timings[0];
    const double moved = timings[1].fastest, multiplied = op->flops == 0 ? 0 : ceilings.of(dtype, [&](auto& products) {
        products.saw(timings[2].fastest);
        return op->flops / products.flops_per_second();
    });
    const double least = std::max(moved, multiplied);
    const char* const by = timing.fastest < least ? "itself" : moved >= multiplied ? "memory" : "products";
    Row row{timing.median * 1e3, timing.spread, std::min(least, timing.fastest) / timing.median, by};
    if (op->bytes > 0) row.gb_per_s = op->bytes / timing.median * 1e-9;
    if (op->flops > 0) row.gflops_per_s = op->flops / timing.median * 1e-9;
    if (device.kind != "cuda") {  // device memory is host memory, which a plain loop can read
        PlainLoop tensors;
        row.times_plain = timing.median / timer.time({[&] { op->evaluate(tensors); }}, budget)[0].median;
    }
    return row;
}

void print(const Row& row, const std::string& shape) {
    const auto figure = [](std::optional<double> value, int width, int digits, const char* unit = "") {
        if (value) std::printf(" %*.*f%s", width - int(std::strlen(unit)), digits, *value, unit);
        else std::printf(" %*s", width, "n/a");
    };
    figure(row.ms, 10, 3);
    figure(100 * row.spread, 5, 0, "%");
    figure(row.gb_per_s, 9, 1);
    figure(row.gflops_per_s, 9, 1);
    figure(row.times_plain, 8, 2);
    figure(100 * row.roofline, 8, 0, "%");
    std::printf(" %-8s  %s\n", row.roofline_by, shape.c_str());
}

void run(const cxxopts::ParseResult& given) {
    const Options options = options_of(given);
    for (const std::string& name : options.names) {
        Options one = options;
        one.names = {name};
        const bool known = std::ranges::any_of(all(), [&](const Registration& r) {
            return std::ranges::any_of(r.dtypes, [&](DType dtype) { return wanted(one, r, dtype); });
        });
        require(known, "the name of an operation", in_quotes(name),
                "part of the name of an operation that has that type", "give no name to time all");
    }
    const device::Info device = device::open(options.threads);
    bench::ColdTimer timer(std::max<std::size_t>(device.cache, std::size_t(32) << 20));
    Ceilings ceilings = measure_ceilings(timer, device, options.seconds);
    const double copied = ceilings.copied_per_second * 1e-9, fp32 = ceilings.fp32.flops_per_second() * 1e-9,
                 in_bf16 = ceilings.bf16_.flops_per_second() * 1e-9;
    const bool large = options.shapes.empty() ? device.kind == "cuda" : options.shapes == "large";
    std::printf("%s, %d threads; copies %.1f GB/s, multiplies %.0f GFLOP/s in fp32 and %.0f in bf16\n\n",
                device.name.c_str(), device.threads, copied, fp32, in_bf16);
    std::printf("%s\n%-28s %-5s %10s %5s %9s %9s %8s %17s  %s\n", kColumns, "operation", "dtype", "ms", "+-", "GB/s",
                "GFLOP/s", "x plain", "roofline", "shape");
    for (const Registration& registration : all())
        for (const DType dtype : registration.dtypes)
            for (const Shape& shape : large ? registration.large : registration.small) {
                if (!wanted(options, registration, dtype)) continue;
                const auto row = measure(registration, dtype, shape, ceilings, timer, device, options.seconds);
                std::printf("%-28s %-5s", registration.name.c_str(), name_of(dtype));
                if (row) print(*row, registration.describe(shape));
                else std::printf(" %50s  %s\n", "not supported here", registration.describe(shape).c_str());
                std::fflush(stdout);
            }
}

}  // namespace

int main(int argc, char** argv) { return tool_main("bench", command_line(), argc, argv, run); }
