#!/usr/bin/env bash
# mutate_barriers.sh [FILE...] - whether some test misses each barrier of the kernels
#
# Skips every __syncthreads() and __syncwarp() of kernels/ (or of the files named) in turn, without compiling anew, and
# runs the tests of that kernel that scripts/test.sh runs on fibers, in four orders of threads, then in the build that
# looks for races, until one fails. What none misses SURVIVES: either the kernel does not need it or a test is lacking.
# The exit status is then 1; also where a run takes longer than TIMEOUT seconds (300), which tells nothing.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../scripts/help.sh"
cd "$(dirname "$0")/.."
export OMP_WAIT_POLICY=passive
limit=${TIMEOUT:-300}
fibers=build/fibers/tests races=build/fibers-thread/tests
# As scripts/test.sh builds them.
make -j"$(nproc)" DEVICE=fibers UNITE="llmc test" $fibers >/dev/null || exit 1
make -j"$(nproc)" DEVICE=fibers UNITE="llmc test" SANITIZE=thread TESTS=test/kernels $races >/dev/null || exit 1

# run JUDGE TAG: the tests of this tag that this judge runs in scripts/test.sh
run() {
    local program=$fibers order=$1 filter="[kernels]$2~[matmul]"
    case $1 in
        forward) ;;
        races) program=$races order=forward filter+="~[large]~[races]~[at_once]" ;;
        *) filter+="~[one_order]~[large]" ;;
    esac
    SIMT_ORDER=$order timeout "$limit" $program "$filter" --abort >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for judge in forward races; do
    run $judge "" || { tail -n 20 "$log"; echo "$judge fails with every barrier in place"; exit 1; }
done

survivors=0 barriers=0
if [ $# -eq 0 ]; then mapfile -t files < <(find kernels -name '*.cu' -o -name '*.cuh' | sort); else files=("$@"); fi
while IFS=: read -r file line text; do
    began=$SECONDS killer=""
    # A kernel's tests have the tag of its file or folder; what several kernels include is every test's.
    for tag in "[$(basename "${file%.*}")]" "[$(basename "$(dirname "$file")")]"; do
        $fibers --list-tests "$tag" | grep -q '^0 matching' || break
    done
    for judge in forward reverse random mix races; do
        SIMT_SKIP_BARRIER=$file:$line run $judge "$tag"
        status=$?
        if grep -q '^SIMT_SKIP_BARRIER is' "$log"; then killer="NOT REACHED by $tag"; break; fi
        if [ $status -eq 124 ]; then killer="UNDECIDED: out of time, $judge"; break; fi
        if [ $status -ne 0 ]; then killer=$judge; break; fi
    done
    [[ $killer == [NU]* ]] && survivors=$((survivors + 1))
    barriers=$((barriers + 1))
    [ -n "$killer" ] || { killer=SURVIVES; survivors=$((survivors + 1)); }
    printf '%-44s %-16s %s (%d s)\n' "$file:$line" "$(grep -oE '__sync[a-z]+' <<<"$text" | head -n 1)" "$killer" \
        $((SECONDS - began))
done < <(grep -HnE '^[^/]*__sync(threads|warp)\(\)' "${files[@]}")
echo "$barriers barriers, $survivors that no test misses ($SECONDS s)"
[ $survivors -eq 0 ] && [ $barriers -gt 0 ]
