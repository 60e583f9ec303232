# shellcheck shell=bash disable=SC2034,SC2154
# steps.sh - for gpu_check.sh: runs steps, each with a limit of time, and writes what comes of them as it comes.
# Sourced, not run
#
# Of the script that sources it: `folder` gets summary.md and logs.tar.gz, `work` holds logs/ and what steps leave for
# each other; `list` is true where steps are to be named, not run; `note NAME` prints what a step's log comes to, in one
# line, and `details NAME` what else of it belongs into the summary.
#
# A killed machine loses nothing but the step that ran: what is begun is named before it runs, and after every step its
# results are in the summary and its log in the archive.
deadline=0 failed=0 steps_run=0 last_status=0 overview=()
declare -A name_of=() began_of=()  # by process, of the steps that run

say() {
    echo "$*"
    echo "$*" >>"$folder/summary.md"
}
in_order() { overview+=("| $1 | $2 | $3 | $4 |"); }

# start NAME LIMIT WHY-NOT COMMAND...: begins a step, unless WHY-NOT says why it cannot be done here. It may take LIMIT
# seconds and what earlier steps left of theirs; LIMIT 0 is for one that runs beside the step begun last, until the same
# time.
start() {
    local name=$1 limit=$2 why_not=$3 left
    shift 3
    if $list; then
        echo "$name $limit"
        return
    fi
    deadline=$((deadline + limit))
    if [ -n "$why_not" ]; then
        say "- **$name** skipped: $why_not"
        in_order "$name" skipped - "$why_not"
        return
    fi
    left=$((deadline - SECONDS))
    [ "$left" -ge 5 ] || left=5
    say "- **$name** begun at $(date -u +%H:%M:%SZ), at most $left s: \`${*//"$PWD/"/}\`"
    echo "\$ $*" >"$work/logs/$name.log"
    timeout -k 5 "$left" "$@" >>"$work/logs/$name.log" 2>&1 </dev/null &
    name_of[$!]=$name began_of[$!]=$SECONDS
    steps_run=$((steps_run + 1))
}

# Waits for every step that runs.
join() {
    local process status
    while [ ${#name_of[@]} -gt 0 ]; do
        status=0
        wait -n -p process "${!name_of[@]}" || status=$?
        finish "$process" "$status"
    done
}

step() {
    start "$@"
    join
}

finish() {
    local name=${name_of[$1]} took=$((SECONDS - began_of[$1])) status=$2 verdict line
    unset "name_of[$1]" "began_of[$1]"
    last_status=$status
    case $status in
        0) verdict=pass ;;
        124 | 137) verdict="**time limit**" ;;
        *) verdict="**fail** ($status)" ;;
    esac
    [ "$status" -eq 0 ] || failed=$((failed + 1))
    line=$(note "$name")
    say "- **$name** $verdict, $took s${line:+: $line}"
    in_order "$name" "$verdict" "$took s" "$line"
    { echo; details "$name" | cut -c 1-240 | sed 's/^/      /'; echo; } >>"$folder/summary.md"
    archive
}

# Of a log that grew beyond bounds, both ends.
archive() {
    local log
    for log in "$work"/logs/*; do
        [ "$(wc -c <"$log")" -le 2000000 ] && continue
        { head -c 900000 "$log"; printf '\n...\n'; tail -c 900000 "$log"; } >"$work/shortened"
        mv "$work/shortened" "$log"
    done
    tar -C "$work" -czf "$work/logs.tar.gz" logs && mv "$work/logs.tar.gz" "$folder/logs.tar.gz"
}

# stop SIGNAL-NUMBER: somebody wants this to end.
stop() {
    local process
    trap '' INT TERM HUP
    for process in "${!name_of[@]}"; do
        kill -TERM "$process"
        say "- **${name_of[$process]}** stopped by signal $1 after $((SECONDS - began_of[$process])) s"
    done
    wait
    archive
    exit $((128 + $1))
}

# begin TITLE: empty folders and the head of the summary.
begin() {
    rm -rf "$folder/summary.md" "$folder/logs.tar.gz" "$work"
    mkdir -p "$folder" "$work/logs" || exit 1
    trap 'stop 2' INT
    trap 'stop 15' TERM
    trap 'stop 1' HUP
    say "# $1"
    say
}

# The table of all steps, and the exit code.
conclude() {
    {
        printf '\n| step | result | time | |\n|---|---|---|---|\n'
        printf '%s\n' "${overview[@]}"
        echo
    } | tee -a "$folder/summary.md"
    say "$folder/summary.md: $steps_run steps, $failed failed, $SECONDS s"
    archive
    [ "$failed" -eq 0 ]
}
