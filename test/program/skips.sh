#!/usr/bin/env bash
# skips.sh - scripts/test.sh counts skipped tests, not as passed ones, and prints each reason once with their number:
# test cases, scripts
#
#   test/program/skips.sh [BUILD]     with the tests in BUILD (build/cpu)
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
build=${1:-build/cpu}
logs=$work  # of the functions of scripts/test.sh
mkdir "$logs/results" "$logs/tests"
eval "$(sed -nE '/^(timed|skips|run_one|run_cases)\(\) \{/,/^}/p' scripts/test.sh)"
# counts KIND "PASSED FAILED SKIPPED" LINES COMMAND...: the result of run_KIND, and its lines about skipped tests
counts() {
    local kind=$1 expected=$2 lines=$3 got said
    shift 3
    said=$("run_$kind" 1 it "$@" 2>&1)
    got=$(cat "$logs/results/1")
    [ "$got" = "$expected" ] || fail "$*: counts are $got; expected $expected"
    got=$(grep '^skipped: it: ' <<<"$said" || true)
    [ "$got" = "$lines" ] || fail "$*: printed \"$got\"; expected \"$lines\""
}
printed() { echo "$2"; return "$1"; }  # STATUS OUTPUT

cases="skipped: it: no fish (2)
skipped: it: no lake: dry (1)"
counts cases "1 0 3" "$cases" "$build/tests" "[skips]~[fails]"
counts cases "0 0 1" "skipped: it: no fish (1)" "$build/tests" "[all_skipped]"
counts cases "0 1 0" "" "$build/tests" "[fails]"

counts one "1 0 2" "skipped: it: no fish (2)" printed 0 'skipped: "one: 1": no fish
skipped: no fish'
counts one "0 0 1" "skipped: it: no fish" printed 77 "skipped: no fish"
counts one "0 1 0" "" printed 1 'skipped: "one": no fish'
# The last line of scripts/test.sh.
for results in "1 0 0:1 passed, 0 failed" "1 2 3:1 passed, 2 failed, 3 skipped"; do
    echo "${results%:*}" >"$logs/results/1"
    got=$(eval "$(sed -n '/^read -r passed failed skipped/,$p' scripts/test.sh)")
    [ "$got" = "${results#*:}" ] || fail "the last line is \"$got\"; expected \"${results#*:}\""
done
exit $failed
