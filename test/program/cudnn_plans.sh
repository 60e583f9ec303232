#!/usr/bin/env bash
# cudnn_plans.sh - cuDNN takes the program's graphs of attention and compiles its kernels for GPUs that are not there,
# with the libraries that the program is linked to and none that only the loader's cache knows, as where they lie in
# python3's packages
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
program=build/stand-in/cudnn_plans
[ -x $program ] || { echo "the CUDA build has no cuDNN, or build/deps not its frontend"; exit 77; }
loader=$(ldd $program | grep -oE '/[^ ]*/ld-linux[^ ]*')
exec "$loader" --inhibit-cache $program
