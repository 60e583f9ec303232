# progress.sh - sourced by scripts: prints the progress of a long silent command every 10 seconds
# shellcheck shell=bash

# with_progress REPORT LOG COMMAND...: runs COMMAND with its output in LOG, and REPORT every 10 seconds, which may read
# the seconds since the start in $seconds. COMMAND stays in the foreground, so that Ctrl-C ends it. Returns its exit
# code.
with_progress() {
    local report=$1 log=$2 status=0 reporter seconds=0
    shift 2
    (
        trap - EXIT
        # one second at a time: the last sleep may outlive the script
        # shellcheck disable=SC2217
        while sleep 1 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 1))
            [ $((seconds % 10)) -ne 0 ] || $report
        done
    ) &
    reporter=$!
    "$@" >"$log" 2>&1 || status=$?
    kill $reporter 2>/dev/null || true
    wait $reporter 2>/dev/null || true
    return $status
}
