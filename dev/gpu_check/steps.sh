# shellcheck shell=bash disable=SC2034,SC2154
# steps.sh - for gpu_check.sh: runs steps, each with a time limit, and writes their results after each. Sourced, not run
#
# If the machine is killed, only the running step is lost: its name is in the summary before it starts, and after every
# step summary.md and results.tar.gz, with the logs of steps and the files in $work/results, are complete. $memory has
# the output folders of runs, whose logs are kept and checkpoints deleted.
deadline=0 group=0 total=0 failed=0 steps_run=0 last_status=0 filter='' not_run=()
declare -A limits=() name_of=() began_of=()  # seconds of the chosen steps; of running ones, by process

say() {
    echo "$*"
    echo "$*" >>"$folder/summary.md"
}

# start NAME WHY-NOT COMMAND...: starts a step if it was chosen, unless WHY-NOT says why it cannot run here. It may take
# its limit plus the unused time of earlier steps. Steps that are started before the next join run concurrently, and
# have the deadline of the longest of them.
start() {
    local name=$1 why_not=$2 limit=${limits[$1]-} left
    shift 2
    [ -n "$limit" ] || { not_run+=("$name"); return; }
    if [ $((group + limit)) -gt $deadline ]; then
        total=$((total + group + limit - deadline)) deadline=$((group + limit))
    fi
    if $list; then
        echo "$name $limit${filter:+ $filter}"
        return
    fi
    if [ -n "$why_not" ]; then
        say "- **$name** skipped: $why_not"
        not_run+=("$name ($why_not)")
        return
    fi
    left=$((deadline - SECONDS))
    [ "$left" -ge 5 ] || left=5
    say "- **$name** started at $(date -u +%H:%M:%SZ), at most $left s: \`${*//"$PWD/"/}\`"
    echo "\$ $*" >"$work/logs/$name.log"
    timeout -k 5 "$left" "$@" >>"$work/logs/$name.log" 2>&1 </dev/null &
    name_of[$!]=$name began_of[$!]=$SECONDS
    steps_run=$((steps_run + 1))
}

# Waits for all running steps.
join() {
    local process status
    while [ ${#name_of[@]} -gt 0 ]; do
        status=0
        wait -n -p process "${!name_of[@]}" || status=$?
        finish "$process" "$status"
    done
    group=$deadline
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
    line=$(note "$name" "$work/logs/$name.log")
    say "- **$name** $verdict, $took s${line:+: $line}"
    { echo; details "$name" "$work/logs/$name.log" | cut -c 1-240 | sed 's/^/      /'; echo; } >>"$folder/summary.md"
    archive
}

# The result of a step in one line. A run's median step is without the first three, which autotune and warm up caches.
note() {
    local key
    grep -E '^(error: |PASS|FAIL|median |a whole step|total average|All tests|test cases:)|(ERROR|RACECHECK) SUMMARY' \
        "$2" | tail -n 1 | cut -c 1-300
    [[ $1 = levers ]] || awk '/^step .* MFU / { mfu = 1 }
        /^step [0-9]/ && $5 ~ /e[-+]/ && ++n > 3 { print $7 " ms, " $8 " tok/s, MFU " (mfu ? $9 : "n/a") }' "$2" |
        sort -n | awk '{ line[NR] = $0 } END { if (NR) print "median " line[int((NR + 1) / 2)] " of " NR " steps" }'
    [ "$1" != training ] || for key in step_j mean_power_w sm_mhz; do
        sed -nE "s/.*\"$key\":([0-9.e+-]+).*/\1/p" "$memory/training/log.jsonl" 2>/dev/null | tail -n +21 | sort -g |
            awk -v key=$key '{ x[NR] = $0 } END { if (NR) printf ", %s %.1f", key, x[int((NR + 1) / 2)] }'
    done
}
# What the summary has of a step's log.
details() {
    case $1 in
        *check* | tests_*)
            grep -A 4 -E 'FAILED:|^[0-9.]{4,} s: |^skipped: |^=+ (Error|Warning|Invalid|Barrier|Race|Uninit)' "$2" |
                head -n 80
            tail -n 4 "$2"
            ;;
        machine | batch | levers) grep '^|' "$2" ;;
        *) grep -vE '^(step|\$) ' "$2" | tail -n 150; grep -E '^step ' "$2" | tail -n 1 ;;
    esac
}

# Keeps both ends of logs that are too long, and logs of runs, then replaces the archive.
archive() {
    local log
    find "$memory" -name 'step_*' -prune -exec rm -rf {} +
    (cd "$memory" && find . -regex '.*\.\(jsonl?\|log\)' -print0 | xargs -0r cp --parents -t "$work/results")
    if [ -e "$choices" ]; then cp "$choices" "$work/results/"; fi
    for log in "$work"/logs/*; do
        [ "$(wc -c <"$log")" -le 2000000 ] && continue
        { head -c 900000 "$log"; printf '\n...\n'; tail -c 900000 "$log"; } >"$work/shortened"
        mv "$work/shortened" "$log"
    done
    tar -C "$work" -czf "$work/results.tar.gz" logs results && mv "$work/results.tar.gz" "$folder"
}

# stop SIGNAL-NUMBER: the signal handler.
stop() {
    local process
    trap '' INT TERM HUP
    for process in "${!name_of[@]}"; do
        kill -TERM "$process"
        say "- **${name_of[$process]}** stopped by signal $1 after $((SECONDS - began_of[$process])) s"
    done
    wait "${!name_of[@]}"
    archive
    exit $((128 + $1))
}

# begin TITLE: empties the folders and writes the heading of the summary.
begin() {
    rm -rf "$folder"/{summary.md,results.tar.gz} "$work"
    mkdir -p "$folder" "$work"/{logs,results} "$memory" || exit 1
    trap 'stop 2' INT
    trap 'stop 15' TERM
    trap 'stop 1' HUP
    say "# $1"
    say
}

conclude() {
    say "    $folder/results.tar.gz: $(du -k "$folder/results.tar.gz" | cut -f 1) KiB"
    say "not run: $(printf '%s, ' "${not_run[@]}" | sed 's/, $//')"
    say "$folder/summary.md: $steps_run steps, $failed failed, $SECONDS s; limits without a build: $total s"
    [ "$failed" -eq 0 ]
}
