# progress.sh - for scripts to source: what is silent for long says every few seconds how far it is
#
#   while_telling TELL LOG COMMAND...   runs COMMAND, its output in LOG, and TELL every 10 seconds (PROGRESS_SECONDS)
#   telling_what_is_built LOG MAKE...   the same of a build: "built 34 of 93 files"
# shellcheck shell=bash

# COMMAND stays in the foreground: Ctrl-C ends it as it would alone. Returns its exit code.
while_telling() {
    local tell=$1 log=$2 status=0 teller seconds=0
    shift 2
    (
        trap - EXIT
        # a second at a time: what the last sleep outlives the script by
        while sleep 1 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 1))
            [ $((seconds % ${PROGRESS_SECONDS:-10})) -ne 0 ] || $tell
        done
    ) &
    teller=$!
    "$@" >"$log" 2>&1 || status=$?
    kill $teller 2>/dev/null || true
    wait $teller 2>/dev/null || true
    return $status
}

# Of a first build the number of files is exact. Of one that goes on it is the most that there may be: make knows as it
# goes what need not be done.
telling_what_is_built() {
    local log=$1 begun files status=0
    shift
    begun=$(mktemp)
    files=$("$@" --dry-run 2>/dev/null | grep -cE -- ' -c .* -o [^ ]+\.o( |$)') || true
    share_built() {
        [ "$files" -eq 0 ] ||
            echo "built $(find build -name '*.o' -newer "$begun" 2>/dev/null | wc -l) of $files files"
    }
    while_telling share_built "$log" "$@" || status=$?
    rm -f "$begun"
    return $status
}
