#!/usr/bin/env bash
# install_deps.sh [build | tests] - installs the dependencies of the build, the tests and the quickstart
#
# On Debian and Ubuntu it installs packages with apt; elsewhere it prints the missing ones and stops. Does nothing if
# everything is installed. Reports a library that is too old, with its version and the required one. CXX: the compiler
# (default: g++). Does not need CUDA: the CUDA build finds its toolkit by nvcc on PATH. If nvcc is found, cuDNN's
# header-only frontend is downloaded to build/deps/include; without it the CUDA build only lacks cuDNN attention.
# `build`: only what a build without MPI needs: no matplotlib, jq, Python or text either. `tests`: also installs xz,
# iproute2, procps, clang with libFuzzer, if available, and, in build/python, pyarrow and huggingface_hub, which read
# Parquet and download; the tests skip what is missing.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
# shellcheck source=scripts/progress.sh
. "$(dirname "$(realpath "$0")")/progress.sh"
needs=all
case ${1:-} in build | tests) needs=$1 && shift ;; esac
most_words 0 "$@"
cd "$(dirname "$0")/.."

nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null || true)

# A library is present if its block of scripts/probes.cpp compiles, which it does not with versions that are too old.
# Other dependencies are looked up by command: package, command.
export CXX=${CXX:-g++}
bundled=$([ ! -d build/deps/include ] || echo -isystem build/deps/include)
commands=("make make")
[ $needs = build ] ||
    commands+=("openmpi-bin mpirun" "jq jq" "bible-kjv bible" "python3 python3")
# The test of the GPU check packs a build; tests of two hosts connect network namespaces.
[ $needs != tests ] || commands+=("xz-utils xz" "iproute2 ip")
# Python packages provide pyarrow, and parts that the CUDA toolkit may lack.
case $needs$nvcc in tests* | all?*) commands+=("python3-pip pip3") ;; esac
probed=build/probes  # compiler output of each probe that does not compile
mkdir -p $probed 2>/dev/null || true
[ -w $probed ] && [ -z "$(find $probed ! -writable)" ] || probed=$(mktemp -d)  # for example, written by root before
# of_probe PROBE FIELD: the field with this number in the comment of the probe
library=1 expected=2 packages=3 version=4 link=5
of_probe() { sed -n "/PROBE_$1\$/{n;s|^// ||p}" scripts/probes.cpp | cut -d '|' -f "$2" | xargs; }
defined() { printf -- '-DPROBE_%s ' "$@"; }  # PROBE...
# compiles NAME PROBE...: whether the probes compile as one file, for several a third of the time. Output: $probed/NAME
compiles() {
    local name=$1 compiler=$CXX probe
    shift
    export OMPI_CXX=$CXX MPICH_CXX=$CXX
    [[ " $* " != *" mpi "* ]] || compiler=mpicxx
    # shellcheck disable=SC2046,SC2086
    $compiler -std=c++20 -fopenmp -I. $bundled -fsyntax-only $(defined "$@") scripts/probes.cpp >"$probed/$name" 2>&1 &&
        echo 'int main() {}' | $compiler -x c++ - -o "$probed/$name.out" \
            $([ ! -e build/deps/lib ] || echo -Lbuild/deps/lib) $(for probe; do of_probe "$probe" $link; done) \
            >>"$probed/$name" 2>&1
}
# Prints the given probes that do not compile.
fails_to_compile() {
    local probe
    ! compiles all "$@" || return 0
    for probe; do
        { compiles "$probe" "$probe" && rm "$probed/$probe"; } &
    done
    wait
    for probe; do [ ! -e "$probed/$probe" ] || echo "$probe"; done
}
# The version according to the library's header; empty if the header is not found.
version_of() {
    local compiler=$CXX
    [ "$1" != mpi ] || compiler=mpicxx
    # shellcheck disable=SC2046,SC2086
    { cat scripts/probes.cpp; echo "probed $(of_probe "$1" $version)"; } |
        $compiler -std=c++20 -fopenmp -I. $bundled $(defined "$1") -E -P -x c++ - 2>/dev/null | sed -n '$s/^probed//p' |
        sed 's/ *\. */./g; s/[A-Z_]*VERSION[A-Z_]*//g; s/^[". ]*\([0-9][0-9.a-z]*\).*/\1/'
}

missing_commands() {
    local command
    for command in "${commands[@]}"; do command -v "${command#* }" >/dev/null || echo "${command% *}"; done
}

missing=()
mapfile -t probes < <(sed -n 's/^#ifdef PROBE_//p' scripts/probes.cpp)
# Only the tests need catch2.
case $needs in all) without='catch2' ;; build) without='catch2|mpi' ;; tests) without='' ;; esac
mapfile -t probes < <(printf '%s\n' "${probes[@]}" | grep -vxE "$without")
mapfile -t lacking < <(fails_to_compile "${probes[@]}")
for probe in "${lacking[@]}"; do read -ra names < <(of_probe "$probe" $packages) && missing+=("${names[@]}"); done
if [ "$CXX" != g++ ] && [[ " ${lacking[*]} " = *" compiler "* ]]; then
    refuse "CXX is \"$CXX\", which cannot compile a small C++20 program; expected" \
        "$(of_probe compiler $expected): set CXX to one, or unset it for g++" \
        "($(grep -m 1 -E 'error|not found' "$probed/compiler" | cut -c 1-160))"
fi
# dev/plot draws with matplotlib. That of Debian suits only Debian's Python; another one gets its own, with pip.
imports() { PYTHONPATH=build/python "${2:-python3}" -c "import $1" >/dev/null 2>&1; }
[ $needs = build ] || imports matplotlib || imports matplotlib /usr/bin/python3 || missing+=(python3-matplotlib)
mapfile -t missing < <({ printf '%s\n' "${missing[@]}"; missing_commands; } | sort -u | grep .)
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
# Silent, except for progress if it takes long, and for errors.
apt_get() {
    local log status=0
    log=$(mktemp)
    last_line() { echo "apt-get: $(tail -n 1 "$log" | cut -c 1-100)"; }
    with_progress last_line "$log" "${as_root[@]}" apt-get -qq "$@" || status=$?
    [ $status -eq 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $status
}
install() { apt_get install -y --no-install-recommends "$@"; }

# Prints one error per library whose probe does not compile; if the compiler is too old, only that error.
name_lacking() {
    local probe found why
    [[ " ${lacking[*]} " != *" compiler "* ]] || lacking=(compiler)
    for probe in "${lacking[@]}"; do
        found=$(version_of "$probe") || found=
        why=$(grep -m 1 -E 'error|cannot find|not found' "$probed/$probe" | cut -c 1-160) || why=
        echo "error: $(of_probe "$probe" $library) is ${found:-missing}; expected $(of_probe "$probe" $expected)," \
            "Debian's and Ubuntu's packages: $(of_probe "$probe" $packages)" \
            "${why:+($why)}" >&2
    done
}

if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        name_lacking
        refuse "these are missing: ${missing[*]} (Debian's names); this system has no apt-get;" \
            "install them with the package manager of this system and run this again"
    fi
    [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null || {
        name_lacking
        refuse "these are missing: ${missing[*]}; run as root: apt-get install ${missing[*]}"
    }
    echo "installing: ${missing[*]}"
    apt_get update
    install "${missing[@]}"
    mapfile -t lacking < <(fails_to_compile "${lacking[@]}")
    if [ ${#lacking[@]} -gt 0 ]; then
        name_lacking
        exit 2
    fi
    mapfile -t missing < <(missing_commands)
    [ ${#missing[@]} -eq 0 ] ||
        refuse "these are still missing after apt-get installed them: ${missing[*]}; check PATH"
fi

if [ -n "$nvcc" ] && [ ! -e build/deps/include/cudnn_frontend.h ]; then
    scripts/unpack_wheel.sh nvidia-cudnn-frontend==1.32.0 include build/deps/include ||
        echo "note: cuDNN's frontend could not be downloaded; the CUDA build will have no cuDNN attention" >&2
fi

# Some systems have clang's libraries for libFuzzer and the sanitizers in a separate package, others in a dependency of
# clang.
has_fuzzer() { make -s -f test/fuzz/Makefile found >/dev/null 2>&1; }
if [ $needs = tests ] && ! has_fuzzer; then
    [ ${#as_root[@]} -eq 0 ] || as_root=(sudo -n)  # not worth asking for a password
    echo "installing clang, for the fuzz targets"
    {
        apt_get update
        runtime=$(apt-cache pkgnames libclang-rt-dev | grep -x libclang-rt-dev)
        install clang $runtime
    } 2>/dev/null || true
    has_fuzzer || echo "note: clang with libFuzzer could not be installed; the tests skip the fuzz targets" >&2
fi

# python_package MODULE WITHOUT: installs a package for python3 in build/python, if it has none of any version.
python_package() {
    PYTHONPATH=dev python3 -c "import tool_main; tool_main.library('$1')" 2>/dev/null ||
        echo "note: $1 could not be installed with pip: $2" >&2
}
[ $needs = build ] || python_package matplotlib "dev/plot does not work"
if [ $needs = tests ]; then
    python_package pyarrow.parquet "the Parquet tests are skipped"
    python_package huggingface_hub "the download tests are skipped"
fi
