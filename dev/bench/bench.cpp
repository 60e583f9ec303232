// bench.cpp - times every registered operation (test/operations) and compares it with a plain loop and with the
// machine's roofline
//
//   bench layernorm adamw     operations whose name contains one of the words; see bench --help for the options
//
// Prints one line per operation, type and shape. kColumns, printed first, explains the columns.
#include <cstdio>
#include <cstring>
#include <optional>

#include "dev/bench/bench.h"
#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "llmc/base/value_text.h"
#include "test/operations/operation.h"

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
