#!/usr/bin/env bash
# mutate_barriers.sh [FILE...] - whether some test misses each barrier of the kernels
#
# Skips every __syncthreads() and __syncwarp() of kernels/*.cu and *.cuh (or of the files named) in turn, without
# compiling anew, and runs the tests of that kernel on fibers in four orders of threads, then in the build that looks
# for races, until one fails. What none misses SURVIVES: either the kernel does not need it or a test is lacking. The
# exit status is then 1; also where a run takes longer than TIMEOUT seconds (300), which tells nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMP_WAIT_POLICY=passive
limit=${TIMEOUT:-300}
fibers=build/fibers/tests races=build/fibers-thread/tests
make -j"$(nproc)" DEVICE=fibers $fibers >/dev/null || exit 1
make -j"$(nproc)" DEVICE=fibers SANITIZE=thread $races >/dev/null || exit 1

# tag FILE: what tests of a kernel are tagged with, the name of its file or of its family's folder
tag() { case $1 in kernels/*/*) basename "$(dirname "$1")" ;; *) basename "$1" .cu ;; esac; }
kernels=(kernels/*.cu kernels/attention/*.cu)
all=("[simt]" "[ptx]")
while read -r tag; do all+=("[$tag]"); done < <(for file in "${kernels[@]}"; do tag "$file"; done | sort -u)

# run PROGRAM TAG...: the tests of any of these tags that a build without OS threads and without races on purpose can
# pass
run() {
    local program=$1 filter=""
    shift
    for tag in "$@"; do filter+="${filter:+,}$tag~[races]~[at_once]"; done
    timeout "$limit" "$program" "$filter" --abort >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for program in $fibers $races; do
    run $program "${all[@]}" || { tail -n 20 "$log"; echo "$program fails with every barrier in place"; exit 1; }
done

survivors=0 barriers=0
[ $# -gt 0 ] || set -- "${kernels[@]}" kernels/*.cuh kernels/attention/*.cuh
while IFS=: read -r file line text; do
    began=$SECONDS killer=""
    tests=("[$(tag "$file")]")
    $fibers --list-tests "${tests[0]}" | grep -q '^0 matching' && tests=("${all[@]}")
    for judge in forward reverse random mix races; do
        program=$fibers order=$judge
        [ $judge = races ] && program=$races order=forward
        SIMT_ORDER=$order SIMT_SKIP_BARRIER=$file:$line run $program "${tests[@]}"
        status=$?
        if grep -q '^SIMT_SKIP_BARRIER is' "$log"; then
            killer="NOT REACHED by ${tests[*]}" survivors=$((survivors + 1)); break
        fi
        if [ $status -eq 124 ]; then killer="UNDECIDED: out of time, $judge" survivors=$((survivors + 1)); break; fi
        if [ $status -ne 0 ]; then killer=$judge; break; fi
    done
    barriers=$((barriers + 1))
    [ -n "$killer" ] || { killer=SURVIVES; survivors=$((survivors + 1)); }
    barrier=$(grep -oE '__sync[a-z]+' <<<"$text" | head -n 1)
    printf '%-28s %-16s %s (%d s)\n' "$file:$line" "$barrier" "$killer" $((SECONDS - began))
done < <(grep -HnE '^[^/]*__sync(threads|warp)\(\)' "$@")
echo "$barriers barriers, $survivors that no test misses ($SECONDS s)"
[ $survivors -eq 0 ] && [ $barriers -gt 0 ]
