#!/usr/bin/env bash
# bench.sh - tests the benchmark of the operations: it explains its columns once, reports unsupported operations, and no
# operation exceeds its ceiling
#
#   test/program/bench.sh [BUILD]     with the program in BUILD (build/cpu)
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=$PWD/${1:-build/cpu}/bench
out=$(mktemp)
trap 'rm -f "$out"' EXIT

"$bench" "flash attention" --seconds 0.001 >"$out"
for column in "ms, +-" GB/s GFLOP/s "x plain" roofline; do
    [ "$(grep -c "^  $column  " "$out")" = 1 ] || { cat "$out"; echo "wrong: $column is not explained once"; exit 1; }
done
grep -q "not supported here" "$out" || { cat "$out"; echo "wrong: unsupported operations are not reported"; exit 1; }

"$bench" gelu --seconds 0x1 >"$out" 2>&1 && { echo "wrong: --seconds 0x1 is accepted"; exit 1; }
grep -q 'error: --seconds is "0x1"; expected' "$out" || { cat "$out"; echo "wrong: another error"; exit 1; }

# A file that no run wrote is refused.
"${bench}_matmul" --rows 32 --tune-file README.md >"$out" 2>&1 && { echo "wrong: README.md is a tune file"; exit 1; }
grep -q 'error: --tune-file is "README.md"; expected' "$out" || { cat "$out"; echo "wrong: another error"; exit 1; }

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
[ -z "$wrong" ] || { echo "$wrong"; exit 1; }
jq -r '[.results[].roofline] | "\(length) lines: from \(min * 100 | floor) to \(max * 100 | floor) %"' "$out"
