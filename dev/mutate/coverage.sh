#!/usr/bin/env bash
# coverage.sh - lines of kernels/ that the tests execute at the GPU's geometry, counted by gcov
#
# Builds into build/fibers-coverage, runs the kernel tests on one thread, and prints for each file of kernels/ the share
# of executed lines and the lines that were not executed. Exit codes: 0 all lines were executed except those in files of
# `exceptions`, 1 others were not. Needs gcov and jq; takes some minutes.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 0 "$@"
cd "$(dirname "$0")/../.."
build=(make -j"$(nproc)" DEVICE=fibers SUFFIX=-coverage OPTIMISE=-O1 EXTRA=--coverage build/fibers-coverage/tests)
"${build[@]}" >build/coverage.log 2>&1 || { tail -n 20 build/coverage.log; exit 1; }
find build/fibers-coverage build/host-coverage -name '*.gcda' -delete
OMP_NUM_THREADS=1 build/fibers-coverage/tests "[kernels]~[matmul]" | tail -n 3

# FILE reason: code without the GPU's geometry, or code that runs only on failures
exceptions='
kernels/attention/attention.cpp     host code; some branches need cuDNN
kernels/attention/attention_cudnn_absent.cpp replaces cuDNN where it is missing: never computes
kernels/rows_by_token.cpp           a closing brace: unwinding when memory runs out
kernels/matmul/check.h              for library calls: no kernels
kernels/matmul/matmul_onednn.cpp    the same
kernels/matmul/onednn_widen.h       the same
kernels/sketch.cu                   truncated rows, which do not occur with one column per thread
kernels/simt/simt_fiber.h           no memory for stacks
kernels/simt/simt_host.cpp          frees memory after gcov has written its counts
kernels/simt/simt_report.h          places of races: see the next lines
kernels/simt/races/                 runs only in builds that detect races
kernels/simt/simt_scheduler.cpp     the same
kernels/simt/simt_shared.cpp        the same
kernels/simt/simt_tensor.cpp        the same
kernels/simt/simt_skip.cpp          ends its process before gcov has written its counts
'
find build/fibers-coverage build/host-coverage -name '*.gcda' | while read -r data; do
    gcov --json-format --stdout "$data" 2>/dev/null |
        jq -r '.files[] | select(.file | test("^(\\./)?kernels/")) | .file as $file |
               .lines[] | "\($file) \(.line_number) \(.count)"'
done | sed 's|^\./||' | awk -v exceptions="$exceptions" '
    { count[$1 " " $2] += $3; if (!($1 in first)) { first[$1] = 1; files[++n] = $1 } }
    END {
        m = split(exceptions, rows, "\n")
        for (i = 1; i <= m; ++i)
            if (split(rows[i], field, " ") > 1) {
                sub(/^[^ ]+ +/, "", rows[i])
                excused[field[1]] = rows[i]
            }
        for (key in count) {
            split(key, at, " ")
            ++lines[at[1]]
            if (count[key] == 0) { ++missed[at[1]]; list[at[1]] = list[at[1]] " " at[2] }
        }
        for (i = 1; i <= n; ++i) {
            file = files[i]
            why = ""
            for (prefix in excused) if (index(file, prefix) == 1) why = excused[prefix]
            printf "%6.1f %%  %-44s", 100 * (1 - missed[file] / lines[file]), file
            if (missed[file]) printf " not:%s%s", list[file], why == "" ? "" : " (" why ")"
            print ""
            if (missed[file] && why == "") ++wrong
        }
        exit wrong > 0
    }' | sort -k 3
