#!/usr/bin/env bash
# bundle_deps.sh - gathers in build/deps what building for CUDA needs beside the compiler and the CUDA toolkit, for machines without network or packages
#
# These are headers only, some 2 MB, and no program needs them at run time:
#   cxxopts           the options of train_gpt2 and the tools
#   nlohmann-json     logs, configurations, checkpoints
#   Catch2 2          the tests; without it `make DEVICE=cuda` still builds, `make DEVICE=cuda tests` does not
# Not gathered: cuBLASLt, which is part of the toolkit; oneDNN, a library that only the CPU build links; Open MPI and the cuDNN frontend, which nothing
# here includes.
#
# Run this where scripts/install_deps.sh can install, or has installed, the packages; then copy the whole tree, build/deps with it, and run make there:
# it takes build/deps/include when that is there. `make clean` leaves it alone.
set -euo pipefail
cd "$(dirname "$0")/.."
headers=(cxxopts.hpp nlohmann/json.hpp nlohmann/json_fwd.hpp catch2/catch.hpp)

# Every file that the headers include, by the compiler's own account, those of build/deps left out of the search.
included() { printf '#include <%s>\n' "${headers[@]}" | "${CXX:-g++}" -std=c++20 -M -x c++ - | tr -d '\\' | tr ' ' '\n'; }
included >/dev/null 2>&1 || scripts/install_deps.sh
files=$(included) || { echo "error: these headers are not all there: ${headers[*]}; expected the packages libcxxopts-dev, nlohmann-json3-dev and catch2" >&2; exit 2; }

# Files outside the libraries' own folders belong to the compiler and stay with it.
gathered=$(mktemp -d)
trap 'rm -rf "$gathered"' EXIT
for header in "${headers[@]}"; do
    path=$(grep -m 1 "/$header\$" <<<"$files") || { echo "error: no file of the compiler's list ends with $header" >&2; exit 1; }
    root=${path%"/$header"} folder=${header%%/*}
    while read -r file; do
        mkdir -p "$gathered/include/$(dirname "${file#"$root/"}")"
        cp "$file" "$gathered/include/${file#"$root/"}"
    done < <(if [ "$folder" = "$header" ]; then echo "$path"; else grep "^$root/$folder/" <<<"$files"; fi)
done

# What the licences ask to go with a copy, where Debian keeps it.
for package in libcxxopts-dev nlohmann-json3-dev catch2; do
    if [ -f "/usr/share/doc/$package/copyright" ]; then
        mkdir -p "$gathered/licences"
        cp "/usr/share/doc/$package/copyright" "$gathered/licences/$package"
    fi
done

mkdir -p build
rm -rf build/deps
mv "$gathered" build/deps
trap - EXIT
chmod -R u=rwX,go=rX build/deps
echo "build/deps: $(find build/deps -name '*.h*' | wc -l) headers, $(du -sk build/deps | cut -f1) KiB"
