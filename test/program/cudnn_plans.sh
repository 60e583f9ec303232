#!/usr/bin/env bash
# cudnn_plans.sh - cuDNN accepts the program's attention graphs and compiles its kernels without a GPU, using only the
# libraries that the program is linked to and none from the loader's cache, as with libraries in python3's packages
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
program=build/stand-in/cudnn_plans
[ -x $program ] || { echo "the CUDA build has no cuDNN, or build/deps not its frontend"; exit 77; }
loader=$(ldd $program | grep -oE '/[^ ]*/ld-linux[^ ]*')
exec "$loader" --inhibit-cache $program
