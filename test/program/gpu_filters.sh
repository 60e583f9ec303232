#!/usr/bin/env bash
# gpu_filters.sh TESTS - every filter of dev/gpu_check.sh matches cases of TESTS, and another one is refused
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
ends 1 'no test case matches "plain attention*"' dev/gpu_check/cases.sh "[attention],plain attention*" true "$1"
mapfile -t filters < <(for size in '' --rehearse; do dev/gpu_check.sh 1 2 3 4 5 $size --list; done |
    awk 'NF > 2 { print $3 }' | sort -u)
[ ${#filters[@]} -ge 4 ] || fail "gpu_check.sh --list has ${#filters[@]} filters"
for filter in "${filters[@]}"; do ends 0 "$filter" dev/gpu_check/cases.sh "$filter" echo "$1"; done
exit $failed
