#!/usr/bin/env bash
# install_deps.sh [tests] - installs what train_gpt2 is built with and the tests and the quickstart need
#
# On Debian and Ubuntu with apt; elsewhere it names what is missing and stops. Does nothing where all is there. Needs no
# CUDA: the CUDA build finds its toolkit by nvcc on PATH. Where there is one, cuDNN's frontend, which is headers only,
# goes to build/deps/include; without it the CUDA build has no cuDNN attention, and that is all. The disassembler that
# dev/kernel_sass.py reads goes to build/deps/bin where the toolkit has none. `tests`: clang with libFuzzer, too, where
# it can be had, and in build/python pyarrow, which reads Parquet; without them the tests skip the fuzz targets, and the
# reading of Parquet.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
# shellcheck source=scripts/progress.sh
. "$(dirname "$(realpath "$0")")/progress.sh"
most_words 1 "$@"
cd "$(dirname "$0")/.."

nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null || true)
if [ -n "$nvcc" ] && [ ! -e build/deps/include/cudnn_frontend.h ]; then
    scripts/unpack_wheel.sh nvidia-cudnn-frontend==1.32.0 include build/deps/include ||
        echo "note: cuDNN's frontend could not be downloaded; the CUDA build goes without cuDNN attention" >&2
fi
if [ -n "$nvcc" ]; then
    for tool in cuobjdump nvdisasm; do
        command -v $tool >/dev/null || [ -x "$(dirname "$nvcc")/$tool" ] || [ -x build/deps/bin/$tool ] ||
            { scripts/unpack_wheel.sh nvidia-cuda-$tool==13.2.51 'nvidia/*/bin' build/deps/bin &&
                chmod +x build/deps/bin/$tool; } ||
            echo "note: $tool could not be downloaded; dev/kernel_sass.py cannot run" >&2
    done
fi

# package, and a file or a command by which it is known to be there
needs=(
    "g++ cmd:g++"
    "make cmd:make"
    "libopenmpi-dev cmd:mpicxx"
    "openmpi-bin cmd:mpirun"
    "libdnnl-dev header:dnnl.hpp"
    "catch2 header:catch2/catch.hpp"
    "libcxxopts-dev header:cxxopts.hpp"
    "nlohmann-json3-dev header:nlohmann/json.hpp"
    "libxxhash-dev header:xxhash.h"
    "libpcre2-dev header:pcre2posix.h"
    "zlib1g-dev header:zlib.h"
    "libzstd-dev header:zstd.h"
    "gnuplot-nox cmd:gnuplot"
    "jq cmd:jq"
    "bible-kjv cmd:bible"
    "python3 cmd:python3"
)

has_header() { printf '#include <%s>\n' "$1" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1; }

missing=()
for need in "${needs[@]}"; do
    package=${need%% *} probe=${need#* }
    case $probe in
        cmd:*) command -v "${probe#cmd:}" >/dev/null || missing+=("$package") ;;
        header:*) has_header "${probe#header:}" || missing+=("$package") ;;
    esac
done
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
# Silent, but for where it is while it takes long, and for what went wrong.
apt_get() {
    local log status=0
    log=$(mktemp)
    last_line() { echo "apt-get: $(tail -n 1 "$log" | cut -c 1-100)"; }
    while_telling last_line "$log" "${as_root[@]}" apt-get -qq "$@" || status=$?
    [ $status -eq 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $status
}
install() { apt_get install -y --no-install-recommends "$@"; }

if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "error: these are missing: ${missing[*]} (Debian's names); this system has no apt-get;" \
            "install them with its package manager and start again" >&2
        exit 2
    fi
    [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null || {
        echo "error: these are missing: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
        exit 2
    }
    echo "installing: ${missing[*]}"
    apt_get update
    install "${missing[@]}"
fi

# Clang's libraries for libFuzzer and the sanitizers are a package of their own where the system has one of that name,
# else a part of what clang needs.
has_fuzzer() { make -s -f test/fuzz/Makefile found >/dev/null 2>&1; }
if [ "${1:-}" = tests ] && ! has_fuzzer; then
    [ ${#as_root[@]} -eq 0 ] || as_root=(sudo -n)  # not worth asking for a password
    echo "installing, for fuzz targets: clang"
    {
        [ ${#missing[@]} -gt 0 ] || apt_get update
        runtime=$(apt-cache pkgnames libclang-rt-dev | grep -x libclang-rt-dev)
        install clang $runtime
    } 2>/dev/null || true
    has_fuzzer || echo "note: no clang with libFuzzer could be installed; the tests skip the fuzz targets" >&2
fi

reads_parquet() { PYTHONPATH=build/python python3 -c 'import pyarrow.parquet' >/dev/null 2>&1; }
if [ "${1:-}" = tests ] && ! reads_parquet; then  # any version will do
    echo "installing, for tests of Parquet: pyarrow"
    python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary=:all: --target build/python pyarrow \
        >/dev/null 2>&1 || true
    reads_parquet || echo "note: no pyarrow could be installed; the tests skip Parquet" >&2
fi
