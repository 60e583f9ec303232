#!/usr/bin/env bash
# coverage.sh - lines of the kernels (.cu and .cuh) that the tests execute at the GPU's geometry, listed by gcovr
#
# Builds into build/fibers-coverage, runs the kernel tests on one thread, and prints for each file the share of executed
# lines and the lines that were not executed. Exit code 2: there are such lines. Needs gcov, and installs gcovr in
# build/python if python3 has none; takes some minutes.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 0 "$@"
cd "$(dirname "$0")/../.."
PYTHONPATH=dev python3 -c 'import tool_main; tool_main.library("gcovr")'
make -j"$(nproc)" DEVICE=fibers SUFFIX=-coverage OPTIMISE=-O1 EXTRA=--coverage TESTS=test/kernels \
    build/fibers-coverage/tests >build/coverage.log 2>&1 || { tail -n 20 build/coverage.log; exit 1; }
find build/fibers-coverage build/host-coverage -name '*.gcda' -delete
OMP_NUM_THREADS=1 build/fibers-coverage/tests "[kernels]~[matmul]" | tail -n 3
# Files that were renamed after an earlier build are not there.
PYTHONPATH=build/python python3 -m gcovr --filter 'kernels/.*\.cuh?$' --merge-lines --fail-under-line 100 \
    --gcov-ignore-errors=source_not_found build/fibers-coverage build/host-coverage
