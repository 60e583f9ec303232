# check.sh - what the shell tests share; to source first: enters the root of the sources, and makes $work, a folder
# that is removed at exit
#
# fail counts on; wrong ends the test. A test that uses fail ends with `exit $failed`.
# shellcheck shell=bash
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
export LC_ALL=C.UTF-8
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# tool NAME: a program in $work/bin, whose text is the input
tool() {
    mkdir -p "$work/bin"
    cat >"$work/bin/$1" && chmod +x "$work/bin/$1"
}
failed=0
fail() {
    echo "$1"
    failed=1
}
wrong() {
    echo "wrong: $1"
    exit 1
}
# says WHAT SAID EXPECTED...: the text SAID contains each EXPECTED
says() {
    local what=$1 said=$2 expected
    shift 2
    for expected; do
        [[ $said == *"$expected"* ]] || { fail "$what lacks \"$expected\": $said"; return; }
    done
}
# ends STATUS EXPECTED COMMAND...: its exit code is STATUS, and its output contains EXPECTED
ends() {
    local want=$1 expected=$2 said status=0
    shift 2
    said=$("$@" 2>&1) || status=$?
    [ $status = "$want" ] || fail "$*: exit code $status, not $want: $said"
    says "$*" "$said" "$expected"
}
# says_line STATUS EXPECTED COMMAND...: its exit code is STATUS, its output one line, which contains EXPECTED; lines of
# progress do not count
says_line() {
    local want=$1 expected=$2 said status=0
    shift 2
    said=$("$@" 2>&1) || status=$?
    [ "$status, $(grep -vc '^installing: ' <<<"$said")" = "$want, 1" ] || fail "$*: exit code $status: $said"
    says "$*" "$said" "$expected"
}
one_line() { says_line 2 "$@"; }  # EXPECTED COMMAND...
