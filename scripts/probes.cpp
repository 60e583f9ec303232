// probes.cpp - what train_gpt2 needs of compiler and libraries: a block for each, which scripts/install_deps.sh
// compiles with -DPROBE_NAME, and whose fields it reads: library, expected version, Debian's packages, macros of its
// version, linker flags
#ifdef PROBE_catch2
// Catch2 | version 2.13 or 3 | catch2 | CATCH_VERSION_MAJOR.CATCH_VERSION_MINOR.CATCH_VERSION_PATCH |
#include "test/support/catch.h"
static_assert(CATCH_VERSION_MAJOR * 100 + CATCH_VERSION_MINOR >= 213);
TEST_CASE("a probe") { CHECK_THAT("a text", test::Contains("text")); }
#endif
#ifdef PROBE_compiler
// C++ compiler | g++ 11 or clang++ 14 | g++ | __VERSION__ |
#include <omp.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <compare>
#include <concepts>
#include <numbers>
#include <ranges>
#include <span>
#include <string_view>
#include <vector>
struct Shape {
    int rows, columns;
    auto operator<=>(const Shape&) const = default;
};
template <std::floating_point Number> Number parsed(std::string_view text) {
    Number value{};
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}
inline bool uses_cpp20() {
    std::vector<Shape> shapes{{.rows = 2, .columns = 1}, {.rows = 1, .columns = 2}};
    std::ranges::sort(shapes);
    const auto seen = [&]<class T>(T sum) { return sum + parsed<double>("1e3") + std::numbers::pi; };
    int threads = 0;
#pragma omp parallel reduction(+ : threads)
    threads += std::bit_cast<int>(1.0f) != 0;
    return std::string_view("ab").starts_with('a') && !std::as_bytes(std::span(shapes)).empty() && seen(threads) > 0;
}
#endif
#ifdef PROBE_cxxopts
// cxxopts | version 2.2 | libcxxopts-dev | CXXOPTS__VERSION_MAJOR.CXXOPTS__VERSION_MINOR.CXXOPTS__VERSION_PATCH |
#include "llmc/base/cxxopts_versions.h"
static_assert(CXXOPTS__VERSION_MAJOR * 100 + CXXOPTS__VERSION_MINOR >= 202);
#endif
#ifdef PROBE_mpi
// MPI | Open MPI 4 or MPICH 4 | libopenmpi-dev openmpi-bin | OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION MPICH_VERSION |
#include <mpi.h>
static_assert(MPI_VERSION >= 3);
inline int (*const split)(MPI_Comm, int, int, MPI_Info, MPI_Comm*) = MPI_Comm_split_type;
#endif
#ifdef PROBE_nlohmann_json
// nlohmann-json | version 3.10 | nlohmann-json3-dev | NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR |
#include <nlohmann/json.hpp>
static_assert(NLOHMANN_JSON_VERSION_MAJOR * 100 + NLOHMANN_JSON_VERSION_MINOR >= 310);
#endif
#ifdef PROBE_onednn
// oneDNN | version 2.6 | libdnnl-dev | DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH | -ldnnl
#include <dnnl_version.h>

#include "kernels/matmul/onednn_operation.h"
static_assert(DNNL_VERSION_MAJOR * 100 + DNNL_VERSION_MINOR >= 206);
#endif
#ifdef PROBE_pcre2
// PCRE2 | version 10.32 | libpcre2-dev | PCRE2_MAJOR.PCRE2_MINOR | -lpcre2-8
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
static_assert(PCRE2_MAJOR * 100 + PCRE2_MINOR >= 1032);
#endif
#ifdef PROBE_xxhash
// xxHash | version 0.8, which has XXH3 | libxxhash-dev | XXH_VERSION_MAJOR.XXH_VERSION_MINOR.XXH_VERSION_RELEASE |
#define XXH_INLINE_ALL
#include <xxhash.h>
inline XXH64_hash_t (*const digest)(const XXH3_state_t*) = XXH3_64bits_digest;
#endif
#ifdef PROBE_zlib
// zlib | any version | zlib1g-dev | ZLIB_VERSION | -lz
#include <zlib.h>
inline int (*const reset)(z_streamp) = inflateReset;
#endif
#ifdef PROBE_zstd
// zstd | version 1.3 | libzstd-dev | ZSTD_VERSION_MAJOR.ZSTD_VERSION_MINOR.ZSTD_VERSION_RELEASE | -lzstd
#include <zstd.h>
static_assert(ZSTD_VERSION_NUMBER >= 10300);
#endif
