#!/usr/bin/env bash
# mutate_barriers.sh [FILE...] - mutation test of barriers: checks that a test fails without each barrier of the kernels
#
# Deletes each __syncthreads() and __syncwarp() of kernels/ (or of FILE...) in turn, compiles, and runs the kernel's
# tests as scripts/test.sh runs them on fibers, in two orders of threads, then in the build that detects races, until
# one fails. If none fails the barrier SURVIVES: the kernel does not need it, or a test is missing. The exit status is
# then 1; also if a run takes longer than 300 seconds, which decides nothing. Restores the files.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
cd "$(dirname "$0")/../.." || exit
export OMP_WAIT_POLICY=passive
fibers=build/fibers/tests races=build/fibers-thread/tests changed=''
log=$(mktemp) kept=$(mktemp)
restore() { [ -z "$changed" ] || cp "$kept" "$changed"; }
trap 'restore; rm -f "$log" "$kept"' EXIT
# The same builds as in scripts/test.sh, but every file separately: one changes.
build() {
    make -j"$(nproc)" DEVICE=fibers UNITE= TESTS=test/kernels $fibers &&
        make -j"$(nproc)" DEVICE=fibers UNITE= SANITIZE=thread TESTS=test/kernels $races
} >"$log" 2>&1

# run CHECK TAG: runs the tests of this tag that scripts/test.sh runs with this check
run() {
    local program=$fibers order=$1 filter="[kernels]$2~[matmul]"
    case $1 in
        forward) ;;
        races) program=$races order=forward filter+="~[large]~[races]~[at_once]" ;;
        *) filter+="~[one_order]~[large]" ;;
    esac
    SIMT_ORDER=$order timeout 300 $program "$filter" --abort >"$log" 2>&1
}
build || { tail -n 20 "$log"; exit 1; }
for check in forward races; do
    run $check "" || { tail -n 20 "$log"; echo "$check fails with every barrier in place"; exit 1; }
done

survivors=0 barriers=0
if [ $# -eq 0 ]; then mapfile -t files < <(find kernels -name '*.cu' -o -name '*.cuh' | sort); else files=("$@"); fi
while IFS=: read -r file line text; do
    began=$SECONDS killer=""
    # A kernel's tests have the tag of its file or folder; files that several kernels include are tested by all tests.
    name=$(basename "${file%.*}")
    for tag in "[${name%_gpu}]" "[$(basename "$(dirname "$file")")]"; do
        $fibers --list-tests "$tag" | grep -q '^0 matching' || break
    done
    cp "$file" "$kept" && changed=$file
    sed -i -E "${line}s/__sync(threads|warp)\(\)/(void)0/" "$file"
    build || { tail -n 20 "$log"; exit 1; }
    for check in forward mix races; do
        run $check "$tag"
        status=$?
        if [ $status -eq 124 ]; then killer="UNDECIDED: timeout, $check"; break; fi
        if [ $status -ne 0 ]; then killer=$check; break; fi
    done
    restore
    changed=''
    [[ $killer == U* ]] && survivors=$((survivors + 1))
    barriers=$((barriers + 1))
    [ -n "$killer" ] || { killer=SURVIVES; survivors=$((survivors + 1)); }
    printf '%-44s %-16s %s (%d s)\n' "$file:$line" "$(grep -oE '__sync[a-z]+' <<<"$text" | head -n 1)" "$killer" \
        $((SECONDS - began))
done < <(grep -HnE '^[^/]*__sync(threads|warp)\(\)' "${files[@]}")
echo "$barriers barriers, $survivors that no test needs ($SECONDS s)"
[ $survivors -eq 0 ] && [ $barriers -gt 0 ]
