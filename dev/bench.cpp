// bench.cpp - how fast every registered operation runs (test/operations), against its plain loop and against what the
// machine can do
//
//   bench layernorm adamw     those whose name contains one of the words; bench --help has the options
//
// Caches are cold: a buffer larger than the last one is written before every call. One line per operation, type and
//   shape:
//   ms, +-     median of one call, and half the distance between the quartiles as a share of it
//   GB/s       bytes that must move / time                       GFLOP/s   flops that must be done / time
//   x plain    time / time of the formula as a plain float loop on the same tensors: below 1 is faster; n/a on a GPU
//   roofline   shortest time that copying those bytes and multiplying that much would take on this machine, as measured
//              in this run / time
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <cxxopts.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "dev/bench.h"
#include "dev/tool_main.h"
#include "kernels/device/device.h"
#include "kernels/device/error.h"
#include "kernels/matmul/matmul.h"
#include "test/operations/operation.h"

namespace {

using namespace operations;

struct Options {
    std::vector<std::string> names;
    std::string dtype, shapes;
    double seconds;
    int threads;
    bool json;
};

cxxopts::Options command_line() {
    cxxopts::Options options("bench", "Times operations beside a plain loop and the machine's roofline.\n");
    options.custom_help("[OPTION...] [NAME...]     all operations, or those whose name contains one of these")
        .positional_help("").set_width(110);
    options.add_options()
        ("dtype", "fp32, bf16 or both", cxxopts::value<std::string>()->default_value("both"), "TYPE")
        ("shapes", "small or large; left out: small on a CPU", cxxopts::value<std::string>()->default_value(""), "SIZE")
        ("seconds", "to spend on each figure", cxxopts::value<double>()->default_value("0.3"), "S")
        ("threads", "CPU threads; 0: all", cxxopts::value<int>()->default_value("0"), "N")
        ("json", "one JSON object instead of the table")
        ("h,help", "print this and stop");
    options.add_options("names")("filter", "", cxxopts::value<std::vector<std::string>>());
    options.parse_positional("filter");
    return options;
}

Options options_of(const cxxopts::ParseResult& given) {
    const Options o{given.count("filter") ? given["filter"].as<std::vector<std::string>>()
                                          : std::vector<std::string>{""},
                    given["dtype"].as<std::string>(), given["shapes"].as<std::string>(),
                    given["seconds"].as<double>(), given["threads"].as<int>(), given.count("json") > 0};
    require(o.dtype == "fp32" || o.dtype == "bf16" || o.dtype == "both", "--dtype", in_quotes(o.dtype),
            "fp32, bf16 or both");
    require(o.shapes.empty() || o.shapes == "small" || o.shapes == "large", "--shapes", in_quotes(o.shapes),
            "small or large");
    require(o.seconds > 0, "--seconds", o.seconds, "more than 0");
    require(o.threads >= 0, "--threads", o.threads, "0 or more");
    return o;
}

// What the machine was seen to do in this run.
struct Roofline {
    double bytes_per_second = 0, flops_fp32 = 0, flops_bf16 = 0;
    double seconds(double bytes, double flops, DType dtype) const {
        return std::max(bytes / bytes_per_second, flops / (dtype == DType::bf16 ? flops_bf16 : flops_fp32));
    }
};

template <class T>
double gemm_flops_per_second(bench::ColdTimer& timer, int size, double budget) {
    const std::size_t elements = std::size_t(size) * size;
    std::vector<T> host(elements);
    // no zeros: they would cost a GPU less power
    for (std::size_t i = 0; i < elements; ++i) host[i] = narrow<T>(double(i % 251) / 251 - 0.5);
    const device::Array<T> left(std::span<const T>(host), nullptr), right(std::span<const T>(host), nullptr);
    const device::Array<T> out(elements);
    kernels::Matmul matmul;
    const auto multiply = [&] {
        matmul.forward<T>({out.span(), {}, left.span(), right.span(), {}, size, size, size}, nullptr);
    };
    return 2.0 * size * size * size / timer.time(multiply, budget).median;
}

Roofline measure_roofline(bench::ColdTimer& timer, const device::Info& device, double budget) {
    const std::size_t bytes = std::max<std::size_t>(std::size_t(64) << 20, 4 * device.cache);
    const device::Memory from(bytes), to(bytes);
    device::fill_zero(from.data(), bytes, nullptr);
    const int size = device.kind == "cuda" ? 8192 : 1024;
    return {2.0 * bytes /
                timer.time([&] { device::copy_on_device(to.data(), from.data(), bytes, nullptr); }, budget).median,
            gemm_flops_per_second<float>(timer, size, budget), gemm_flops_per_second<bf16>(timer, size, budget)};
}

bool wanted(const Options& options, const Registration& registration, DType dtype) {
    const bool named = std::ranges::any_of(options.names, [&](const std::string& name) {
        return registration.name.find(name) != std::string::npos;
    });
    return named && (options.dtype == "both" || options.dtype == name_of(dtype));
}

// Nothing where this build or this machine cannot do it.
std::optional<nlohmann::json> measure(const Registration& registration, DType dtype, const Shape& shape,
                                      const Roofline& roofline, bench::ColdTimer& timer, const device::Info& device,
                                      double budget) {
    const auto op = registration.make(dtype, shape);
    if (!op || !op->runs_here()) return {};
    for (Storage& tensor : op->tensors) tensor.reset();
    const bench::Timing timing = timer.time([&] { op->run(nullptr); }, budget);
    nlohmann::json result{{"operation", registration.name},
                          {"dtype", name_of(dtype)},
                          {"shape", registration.describe(shape)},
                          {"ms", timing.median * 1e3},
                          {"spread", timing.spread},
                          {"roofline", roofline.seconds(op->bytes, op->flops, dtype) / timing.median}};
    if (op->bytes > 0) result["GB/s"] = op->bytes / timing.median * 1e-9;
    if (op->flops > 0) result["GFLOP/s"] = op->flops / timing.median * 1e-9;
    if (device.kind != "cuda") {  // device memory is host memory: a plain loop may run on it
        PlainLoop tensors;
        result["x plain"] = timing.median / timer.time([&] { op->evaluate(tensors); }, budget).median;
    }
    return result;
}

void print_header() {
    std::printf("%-28s %-5s %10s %5s %9s %9s %8s %8s  %s\n", "operation", "dtype", "ms", "+-", "GB/s", "GFLOP/s",
                "x plain", "roofline", "shape");
}
void print(const nlohmann::json& result) {
    const auto figure = [&](const char* key, int width, int digits, double factor = 1, const char* unit = "") {
        if (result.contains(key))
            std::printf(" %*.*f%s", width - int(std::strlen(unit)), digits, result[key].get<double>() * factor, unit);
        else std::printf(" %*s", width, "n/a");
    };
    std::printf("%-28s %-5s", result["operation"].get<std::string>().c_str(),
                result["dtype"].get<std::string>().c_str());
    figure("ms", 10, 3);
    figure("spread", 5, 0, 100, "%");
    figure("GB/s", 9, 1);
    figure("GFLOP/s", 9, 1);
    figure("x plain", 8, 2);
    figure("roofline", 8, 0, 100, "%");
    std::printf("  %s\n", result["shape"].get<std::string>().c_str());
    std::fflush(stdout);
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
                "part of the name of one that exists in that type", "without a name all are timed");
    }
    const device::Info device = device::open(options.threads);
    bench::ColdTimer timer(std::max<std::size_t>(device.cache, std::size_t(32) << 20));
    const Roofline roofline = measure_roofline(timer, device, options.seconds);
    const bool large = options.shapes.empty() ? device.kind == "cuda" : options.shapes == "large";
    nlohmann::json report{{"device", device.name},
                          {"threads", device.threads},
                          {"copy GB/s", roofline.bytes_per_second * 1e-9},
                          {"fp32 GFLOP/s", roofline.flops_fp32 * 1e-9},
                          {"bf16 GFLOP/s", roofline.flops_bf16 * 1e-9}};
    if (!options.json) {
        std::printf("%s, %d threads; copies %.1f GB/s, multiplies %.0f GFLOP/s in fp32 and %.0f in bf16\n",
                    device.name.c_str(), device.threads, roofline.bytes_per_second * 1e-9, roofline.flops_fp32 * 1e-9,
                    roofline.flops_bf16 * 1e-9);
        print_header();
    }
    for (const Registration& registration : all())
        for (const DType dtype : registration.dtypes)
            for (const Shape& shape : large ? registration.large : registration.small) {
                if (!wanted(options, registration, dtype)) continue;
                const auto result = measure(registration, dtype, shape, roofline, timer, device, options.seconds);
                if (options.json && result) report["results"].push_back(*result);
                else if (result) print(*result);
                else if (!options.json)
                    std::printf("%-28s %-5s %41s  %s\n", registration.name.c_str(), name_of(dtype),
                                "cannot be done here", registration.describe(shape).c_str());
            }
    if (options.json) std::printf("%s\n", report.dump(2).c_str());
}

}  // namespace

int main(int argc, char** argv) { return tool_main("bench", command_line(), argc, argv, run); }
