#!/usr/bin/env bash
# install_deps.sh [tests] - installs what train_gpt2 is built with and the tests and the quickstart need
#
# On Debian and Ubuntu with apt; elsewhere it names what is missing and stops. Does nothing where all is there. A
# library that is too old is named, with its version and the one expected. CXX: the compiler, by default g++. Needs no
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

# Libraries are there where a small program that uses of them what train_gpt2 uses compiles (scripts/probes): of an old
# version it does not. Other programs are there by their names: package, command.
export CXX=${CXX:-g++}
bundled=$([ ! -d build/deps/include ] || echo -isystem build/deps/include)
commands=(
    "make make"
    "openmpi-bin mpirun"
    "gnuplot-nox gnuplot"
    "jq jq"
    "bible-kjv bible"
    "python3 python3"
)
# Python's packages hold what CUDA's toolkit may lack, and pyarrow.
[ -z "$nvcc${1:-}" ] || commands+=("python3-pip pip3")
probed=build/probes  # what the compiler says of each that does not compile
mkdir -p $probed
# what PROBE says of itself: library, expected, packages, version, link
of_probe() { sed -n "s|^// $2: *||p" "scripts/probes/$1.cpp"; }
compiles() {
    local probe=$1 compiler=$CXX link
    [ "$probe" != mpi ] || { compiler=mpicxx; export OMPI_CXX=$CXX MPICH_CXX=$CXX; }
    link=$(of_probe "$probe" link)
    [ ! -e build/deps/lib ] || link="-Lbuild/deps/lib $link"
    # shellcheck disable=SC2086
    $compiler -std=c++20 -fopenmp -I. $bundled -fsyntax-only "scripts/probes/$probe.cpp" >"$probed/$probe" 2>&1 &&
        echo 'int main() {}' | $compiler -x c++ - -o "$probed/$probe.out" $link >>"$probed/$probe" 2>&1
}
# Prints those of the probes named that do not compile.
fails_to_compile() {
    local probe
    for probe; do
        { compiles "$probe" && rm "$probed/$probe"; } &
    done
    wait
    for probe; do [ ! -e "$probed/$probe" ] || echo "$probe"; done
}
# The version by the library's own header; nothing where that is not found.
version_of() {
    local compiler=$CXX
    [ "$1" != mpi ] || compiler=mpicxx
    { grep '^#' "scripts/probes/$1.cpp"; echo "probed $(of_probe "$1" version)"; } |
        $compiler -std=c++20 -fopenmp -I. $bundled -E -P -x c++ - 2>/dev/null | sed -n '$s/^probed//p' |
        sed 's/ *\. */./g; s/[A-Z_]*VERSION[A-Z_]*//g; s/^[". ]*\([0-9][0-9.a-z]*\).*/\1/'
}

missing=()
mapfile -t lacking < <(fails_to_compile $(basename -s .cpp scripts/probes/*.cpp))
for probe in "${lacking[@]}"; do read -ra packages < <(of_probe "$probe" packages) && missing+=("${packages[@]}"); done
for command in "${commands[@]}"; do command -v "${command#* }" >/dev/null || missing+=("${command% *}"); done
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u | grep .)
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

# What is wrong with the libraries that do not compile, a line each; of a compiler that is too old nothing else is.
name_lacking() {
    local probe version
    [[ " ${lacking[*]} " != *" compiler "* ]] || lacking=(compiler)
    for probe in "${lacking[@]}"; do
        version=$(version_of "$probe") || version=
        echo "error: $(of_probe "$probe" library) is ${version:-missing}; expected $(of_probe "$probe" expected)," \
            "Debian's and Ubuntu's packages: $(of_probe "$probe" packages)" \
            "${version:+($(grep -m 1 -E 'error|cannot find' "$probed/$probe" | cut -c 1-160))}" >&2
    done
}

if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        name_lacking
        echo "error: these are missing: ${missing[*]} (Debian's names); this system has no apt-get;" \
            "install them with its package manager and start again" >&2
        exit 2
    fi
    [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null || {
        name_lacking
        echo "error: these are missing: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
        exit 2
    }
    echo "installing: ${missing[*]}"
    apt_get update
    install "${missing[@]}"
    mapfile -t lacking < <(fails_to_compile "${lacking[@]}")
    if [ ${#lacking[@]} -gt 0 ]; then
        name_lacking
        exit 2
    fi
fi

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
