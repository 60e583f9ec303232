#!/usr/bin/env bash
# bench_onebit.sh [-o FILE] [GBIT_S ...] - time to average gradients on slow links at 1 bit per element, in bf16 and in
# fp32: two ranks on two hosts, which are network namespaces of this machine, joined by a link of GBIT_S Gbit/s each way
# (default: 0.1 1 10)
#
#   dev/bench/bench_onebit.sh                   # GPT-2 124M; some seven minutes, most of them at 0.1 Gbit/s
#   ROUNDS=3 FLAGS="--model d6" dev/bench/bench_onebit.sh -o links.md 0.5
#
# Prints a Markdown table and writes it to FILE. Its columns are those of bench_onebit.cpp, medians over ROUNDS (default
# 5); ratios are medians over the rounds. "link" is the share of the link's rate that the all-reduces reached. FLAGS are
# passed to the program; PROGRAM is another build of it. Each host has half of the cores. The link adds no delay. Exit
# codes: 1 failed, or the link exceeded its rate; 77 links are not possible here: they need root, network namespaces,
# and tc's token bucket filter.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
cd "$(dirname "$(realpath "$0")")/../.."
program=$(realpath -m "${PROGRAM:-build/cpu/bench_onebit}") rounds=${ROUNDS:-5} file=
if [ "${1:-}" = -o ]; then
    [ $# -ge 2 ] || refuse "-o is the last argument; expected a file after it"
    file=$2
    shift 2
fi
[ $# -gt 0 ] || set -- 0.1 1 10
# shellcheck source=dev/bench/limited_link.sh
. dev/bench/limited_link.sh
rates "$@"
whole_numbers "$rounds"
if [ -n "$file" ]; then { : >>"$file"; } 2>/dev/null || refuse "$file cannot be written; pass another file with -o"; fi
[ -x "$program" ] || refuse "no $program; run make DEVICE=cpu tools first"

command -v jq >/dev/null || { echo "skipped: no jq"; exit 77; }
make_hosts
export PROGRAM=$program

header='| Gbit/s | 1-bit s | bf16 s | fp32 s | 1-bit / bf16 | 1-bit / fp32 | compression s '
header+='| 1-bit MB | bf16 MB | fp32 MB | link in bf16, fp32 |'
{ echo "$header" && tr -dc '|\n' <<<"$header" | sed 's/|/|---/g; s/---$//'; } | tee "$work/table"
read -ra flags <<<"${FLAGS:-}"
status=0
for rate; do
    limit "$rate"
    on_first_host \
        scripts/run_two_nodes.sh --rounds "$rounds" ${flags[@]+"${flags[@]}"} --json >"$work/json" 2>"$work/errors" ||
        { cat "$work/json" "$work/errors" >&2; exit 1; }
    jq -r --argjson bits "$bits" --arg rate "$rate" '
        def seconds: . * 10000 | round / 10000;
        def ratio: . * 1000 | round / 1000;
        def mb: . / 10000 | round / 100;
        def link: .bytes_sent * 8 / .median / $bits * 100 | round | "\(.) %";
        "| \($rate) | \(.["1-bit"].median | seconds) | \(.bf16.median | seconds) | \(.fp32.median | seconds) " +
        "| \(.bf16.onebit_ratio | ratio) | \(.fp32.onebit_ratio | ratio) | \(.compression.median | seconds) " +
        "| \(.["1-bit"].bytes_sent | mb) | \(.bf16.bytes_sent | mb) | \(.fp32.bytes_sent | mb) " +
        "| \(.bf16 | link), \(.fp32 | link) |"' "$work/json" | tee -a "$work/table"
    # Each message adds headers, so no all-reduce exceeds the link's rate, except by a burst.
    jq -e --argjson bits "$bits" '[.bf16, .fp32] | all(.bytes_sent * 8 / (.seconds | min) <= 1.02 * $bits)' \
        "$work/json" >/dev/null || { echo "error: the link of $rate Gbit/s exceeded its rate" >&2; status=1; }
    jq -r '"\(.elements) elements, \(.ranks) ranks, \(.rounds) rounds; \(.machine); \(.transport)"' "$work/json" \
        >"$work/run"
done
{ echo && cat "$work/run"; } | tee -a "$work/table"
if [ -n "$file" ]; then cat "$work/table" >"$file"; fi
exit $status
