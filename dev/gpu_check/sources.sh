#!/usr/bin/env bash
# sources.sh - one line that tells what a build is made of, by content: what is copied to a machine twice has other
# times, and make would build it all again
set -euo pipefail
cd "$(dirname "$0")/../.."
find Makefile config.mk train_gpt2.cu kernels llmc dev test -type f \( -name Makefile -o -name '*.cu' -o -name '*.cpp' \
    -o -name '*.cuh' -o -name '*.h' \) -print0 | LC_ALL=C sort -z | xargs -0 cat | cksum
