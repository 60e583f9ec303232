#!/usr/bin/env bash
# gpu_filters.sh TESTS - every alternative of the filters of dev/gpu_check.sh matches cases of TESTS
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
mapfile -t filters < <(for size in '' --rehearse; do dev/gpu_check.sh 1 2 3 4 5 $size --list; done |
    cut -d ' ' -f 3- | tr ', ' '\n' | grep . | sort -u)
[ ${#filters[@]} -ge 4 ] || fail "gpu_check.sh --list has ${#filters[@]} filters"
for filter in "${filters[@]}"; do
    [[ $("$1" --list-tests "$filter") =~ (^|$'\n')[1-9][0-9]*" matching test case" ]] || fail "no test case: $filter"
done
exit $failed
