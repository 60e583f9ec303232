# progress.sh - sourced by scripts: prints the progress of long silent commands every few seconds
#
#   with_progress REPORT LOG COMMAND...   runs COMMAND with its output in LOG, and REPORT every 10 seconds
#                                         (PROGRESS_SECONDS)
#   build_with_progress LOG MAKE...       the same for a build: "built 34 of 93 files, 12 per minute, about 5 min left"
# shellcheck shell=bash

# COMMAND stays in the foreground, so that Ctrl-C ends it. Returns its exit code.
with_progress() {
    local report=$1 log=$2 status=0 reporter seconds=0
    shift 2
    (
        trap - EXIT
        # one second at a time: the last sleep may outlive the script
        # shellcheck disable=SC2217
        while sleep 1 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 1))
            [ $((seconds % ${PROGRESS_SECONDS:-10})) -ne 0 ] || $report
        done
    ) &
    reporter=$!
    "$@" >"$log" 2>&1 || status=$?
    kill $reporter 2>/dev/null || true
    wait $reporter 2>/dev/null || true
    return $status
}

# The number of files is exact for a first build. For an incremental build it is an upper bound: make decides during the
# build which files are up to date.
build_with_progress() {
    local log=$1 begun files status=0
    shift
    begun=$(mktemp)
    files=$("$@" --dry-run 2>/dev/null | grep -cE -- ' -c .* -o [^ ]+\.o( |$)') || true
    print_built() {
        [ "$files" -eq 0 ] && return
        local built
        built=$(find build -name '*.o' -newer "$begun" 2>/dev/null | wc -l)
        echo "built $built of $files files$([ "$built" -eq 0 ] || [ "$built" -ge "$files" ] ||
            echo ", $(((built * 60 + seconds / 2) / seconds)) per minute," \
                "about $((((files - built) * seconds / built + 59) / 60)) min left")"
    }
    with_progress print_built "$log" "$@" || status=$?
    rm -f "$begun"
    return $status
}
