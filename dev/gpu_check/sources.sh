#!/usr/bin/env bash
# sources.sh - prints one line that identifies the contents of a build's sources: copying them again changes their
# modification times, and make would rebuild everything
set -euo pipefail
cd "$(dirname "$0")/../.."
find Makefile config.mk train_gpt2.cu kernels llmc dev test -type f \( -name Makefile -o -name '*.cu' -o -name '*.cpp' \
    -o -name '*.cuh' -o -name '*.h' \) -print0 | LC_ALL=C sort -z | xargs -0 cat | cksum
