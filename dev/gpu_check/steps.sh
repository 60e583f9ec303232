# shellcheck shell=bash disable=SC2034,SC2154
# steps.sh - for gpu_check.sh: runs steps, each with a time limit, and writes their results after each. Sourced, not run
#
# The script that sources it defines: `folder`, for summary.md, logs.tar.gz and results.tar.gz; `work`, for logs/,
# results/ (the files to keep) and files that steps pass to each other; `memory`, for output folders of runs, whose logs
# are kept and checkpoints deleted; `choices`, one more file to keep; `limits`: the chosen steps and their seconds;
# `mode`: run, list (print the chosen steps) or names (print all steps); `note NAME`, which prints the result of a step
# in one line, and `details NAME`, which prints further lines for the summary.
#
# If the machine is killed, only the running step is lost: its name is in the summary before it starts, and after every
# step the summary and both archives are complete.
readonly largest_file=$((16 << 20))  # bytes; the limit of files fetched from a lent machine
deadline=0 group=0 total=0 failed=0 steps_run=0 last_status=0 overview=() not_run=()
declare -A limits=() name_of=() began_of=()  # the last two by process, of the running steps

say() {
    echo "$*"
    echo "$*" >>"$folder/summary.md"
}
in_order() { overview+=("| $1 | $2 | $3 | $4 |"); }

# start NAME WHY-NOT COMMAND...: starts a step if it was chosen, unless WHY-NOT says why it cannot run here. It may take
# its limit plus the unused time of earlier steps. Steps that are started before the next join run concurrently, and
# have the deadline of the longest of them.
start() {
    local name=$1 why_not=$2 limit=${limits[$1]-} left
    shift 2
    [ "$mode" != names ] || { echo "$name"; return; }
    [ -n "$limit" ] || { not_run+=("$name"); return; }
    if [ $((group + limit)) -gt $deadline ]; then
        total=$((total + group + limit - deadline)) deadline=$((group + limit))
    fi
    if [ "$mode" = list ]; then
        echo "$name $limit$([ "$1" != dev/gpu_check/cases.sh ] || echo " $2")"
        return
    fi
    if [ -n "$why_not" ]; then
        say "- **$name** skipped: $why_not"
        in_order "$name" skipped - "$why_not"
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
    line=$(note "$name")
    say "- **$name** $verdict, $took s${line:+: $line}"
    in_order "$name" "$verdict" "$took s" "$line"
    { echo; details "$name" | cut -c 1-240 | sed 's/^/      /'; echo; } >>"$folder/summary.md"
    archive
}

# Keeps both ends of logs that are too long, takes logs and choices from memory, then writes both archives.
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
    pack logs logs
    pack results results
}
# pack NAME PATHS...: FOLDER/NAME.tar.gz, replaced atomically
pack() { tar -C "$work" -czf "$work/$1.tar.gz" "${@:2}" && mv "$work/$1.tar.gz" "$folder/$1.tar.gz"; }

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
    rm -rf "$folder"/{summary.md,logs.tar.gz,results.tar.gz} "$work"
    mkdir -p "$folder" "$work"/{logs,results} "$memory" || exit 1
    trap 'stop 2' INT
    trap 'stop 15' TERM
    trap 'stop 1' HUP
    say "# $1"
    say
}

# The table of all steps, the files to keep, and the exit code.
conclude() {
    local file bytes
    {
        printf '\n| step | result | time | |\n|---|---|---|---|\n'
        printf '%s\n' "${overview[@]}"
        echo
    } | tee -a "$folder/summary.md"
    archive
    for file in "$folder"/{summary.md,logs.tar.gz,results.tar.gz}; do
        bytes=$(wc -c <"$file")
        say "    $file: $(((bytes + 1023) / 1024)) KiB"
        [ "$bytes" -le "$largest_file" ] && continue
        say "    **too large**: more than $((largest_file >> 20)) MiB"
        failed=$((failed + 1))
    done
    tar -tzvf "$folder/results.tar.gz" | awk '$1 ~ /^-/ { print "        " $NF ": " int(($3 + 1023) / 1024) " KiB" }' |
        tee -a "$folder/summary.md"
    say "not run: $(printf '%s, ' "${not_run[@]}" | sed 's/, $//')"
    say "$folder/summary.md: $steps_run steps, $failed failed, $SECONDS s; limits without a build: $total s"
    [ "$failed" -eq 0 ]
}
