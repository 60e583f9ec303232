#!/usr/bin/env bash
# bench.sh - tests the benchmark of the operations: it explains its columns, reports unsupported operations, and no
# operation exceeds its ceiling
#
#   test/program/bench.sh [BUILD]     with the program in BUILD (build/cpu)
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/support/check.sh
. test/support/check.sh
bench=$PWD/${1:-build/cpu}/bench
out=$(mktemp)
trap 'rm -f "$out"' EXIT

"$bench" "flash attention" --seconds 0.001 >"$out"
says "an operation that is not supported here" "$(cat "$out")" "  ms, +-  " "  GB/s  " "  GFLOP/s  " "  x plain  " \
    "  roofline  " "not supported here"
ends 2 'error: --seconds is "0x1"; expected' "$bench" gelu --seconds 0x1

# Operations that read, copy, and do both, on 3 to 37 MB. No fraction of the roofline exceeds 1, whatever else runs. The
# ceiling's loops take at most a fifth more than the fastest call of the operation; this is checked without
# interference: on one thread, in three attempts. One large copy as the ceiling of all took 1.2 to 5 times as long.
wrong=
for ((attempt = 0; attempt < 3; attempt++)); do
    "$bench" gelu "bias gradient" "layernorm forward" --dtype fp32 --threads 1 --json --seconds 0.1 >"$out"
    wrong=$(jq -r '.results[] | select(.roofline > 1 or .roofline <= 0) |
        "wrong: \(.operation), \(.shape): \(.roofline) of what the machine can do"' "$out")
    [ -z "$wrong" ] || break
    wrong=$(jq -r '.results[] | select(."ceiling ms" > 1.2 * ."fastest ms") |
        "wrong: \(.operation), \(.shape): \(."fastest ms") ms, its ceiling \(."ceiling ms")"' "$out")
    [ -n "$wrong" ] || break
done
[ -z "$wrong" ] || fail "$wrong"
jq -r '[.results[].roofline] | "\(length) lines: from \(min * 100 | floor) to \(max * 100 | floor) %"' "$out"
exit $failed
