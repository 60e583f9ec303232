#!/usr/bin/env bash
# run.sh SECONDS [TARGET...] - builds the fuzz targets and runs each, or each TARGET, for SECONDS on its corpus and
# mutations of it; one target per core at a time
#
# SEED=N seeds the mutations (1). NEW=FOLDER also starts from the inputs in FOLDER/TARGET, and stores inputs there that
# reach new code. Exit codes: 0 nothing found, 1 a finding, whose input is in build/fuzz/findings, 2 wrong arguments, 77
# no clang with libFuzzer.
set -uo pipefail
cd "$(dirname "$0")/../.."
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { sed -n 's/^# \(run.sh.*\)/usage: \1/p' "$0" >&2; exit 2; }
seconds=$1
shift
targets=("$@")
[ $# -gt 0 ] || for file in test/fuzz/targets/*.cpp; do targets+=("$(basename "$file" .cpp)"); done
for target in "${targets[@]}"; do
    [ -e "test/fuzz/targets/$target.cpp" ] || { echo "error: no target \"$target\" in test/fuzz/targets" >&2; exit 2; }
done
mkdir -p build
make -f test/fuzz/Makefile >build/fuzz.log 2>&1 || { tail -n 40 build/fuzz.log; exit 1; }
[ -e "build/fuzz/${targets[0]}" ] || { echo "no clang with libFuzzer (apt: clang, libclang-rt-dev)"; exit 77; }

# Targets write to memory; their files are removed at the end.
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
findings=build/fuzz/findings
mkdir -p "$findings" "$work/tmp"
export TMPDIR=$work/tmp ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=4
seed=${SEED:-1}
echo "seed $seed, $seconds s per target"
# Writes the output to $work/TARGET.out; a finding also creates $work/TARGET.found.
run_target() {
    local target=$1 new=${NEW:-$work/new}/$1 log=$work/$1.log  # libFuzzer writes to the first folder
    mkdir -p "$new"
    if "build/fuzz/$target" -seed="$seed" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=512 \
        -malloc_limit_mb=128 -dict=test/fuzz/json.dict -print_final_stats=1 \
        -artifact_prefix="$findings/$target-" "$new" "test/fuzz/corpus/$target" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        covered=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 edges, \2 features/p' "$log" | tail -n 1)
        echo "$target: $runs inputs, $covered, no finding"
    else
        touch "$work/$target.found"
        grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse|INITED|READ|RELOAD)' "$log" | tail -n 40
        echo "$target: FINDING, $(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)"
    fi >"$work/$target.out"
}
# One per core at a time: each is a process with one thread.
for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    run_target "$target" &
done
wait
status=0
for target in "${targets[@]}"; do
    cat "$work/$target.out"
    [ ! -e "$work/$target.found" ] || status=1
done
exit $status
