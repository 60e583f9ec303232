#!/usr/bin/env bash
# quickstart.sh - tests the duration of a quickstart: what its estimate includes, that it is not exceeded if the machine
# becomes slower, and that a build prints its progress; runs the commands of README's section Start, as they stand
#
#   test/program/quickstart.sh [BUILD]     with the programs in BUILD (build/cpu)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/${1:-build/cpu}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wrong() {
    echo "wrong: $1"
    exit 1
}

# STEP_MS VALIDATION_MS END_MS STEPS: the log of a probe with these times; the first step takes three times as long
log() {
    awk -v step="$1" -v val="$2" -v end="$3" -v steps="$4" 'BEGIN {
        printf "{\"event\":\"start\"}\n{\"event\":\"val\",\"ms\":%g,\"valid_tokens\":16384}\n", val
        for (i = 0; i < steps; i++) printf "{\"event\":\"step\",\"ms\":%g}\n", i == 0 ? 3 * step : step
        printf "{\"event\":\"val\",\"ms\":%g,\"valid_tokens\":16384}\n", val
        printf "{\"event\":\"end\",\"seconds\":%.9g}\n", ((steps + 2) * step + 2 * val + end) / 1000
    }'
}
# MINUTES TOKENS < LOG
plan() { awk -v minutes="$1" -v tokens="$2" -f scripts/quickstart_plan.awk; }

# ---- the estimate: with the times of the probe, steps, validations, samples and checkpoint fill the time; validations
# take at most a tenth of it
while read -r step val end minutes tokens; do
    { read -r flags && read -r said; } < <(log "$step" "$val" "$end" 60 | plan "$minutes" "$tokens")
    set -- $flags
    awk -v step="$step" -v token="$val" -v end="$end" -v minutes="$minutes" -v steps="$2" -v every="$6" \
        -v val_tokens="$8" -v max_minutes="${12}" 'BEGIN {
        val = token / 16384 * val_tokens
        validations = int((steps + every - 1) / every) + 1
        share = (steps * step + validations * val + end) / (minutes * 60000)
        after = (minutes - max_minutes) * 60000 - (2 * val + step + end)
        exit !(share > 0.9 && share < 0.951 && after > -1 && after < 1 && validations * val < 6001 * minutes)
    }' || wrong "$minutes minutes of steps of $step ms: $flags"
    [[ $said == "$step ms per step: $2 steps, "* && $said == *" take $minutes minute"* ]] || wrong "it says: $said"
    [[ $said == *"1 minute" || ($minutes != 1 && $said == *minutes) ]] || wrong "it says: $said"
done <<'CASES'
    50 300 1000 3 215408
    50 300 1000 1 215408
    6 100 300 0.1 215408
    50 300 1000 9999 400000000
    400 20000 2000 3 215408
    2500 12000 15000 3 215408
CASES
# If there is too little time: a few steps; those that would take too long are skipped.
{ read -r flags && read -r said; } < <(log 20000 60000 9000 1 | plan 0.1 215408)
[[ "$flags" == "-x 20 -u 5 -v "*" --val-tokens 1024 -s 20 --max-minutes 0.05" ]] || wrong "0.1 minutes: $flags"

# ---- a machine on which steps, validations and samples are many times slower than in the probe
"$build/tokenize" -o "$scratch" --name text --document-start '^$' README.md llmc/README.md >"$scratch/out"
read -r -a flags < <(log 0.2 2 20 60 | plan 0.03 1000000)
"$build/train_gpt2" -i "$scratch/text_train_*.bin" -j "$scratch/text_val_*.bin" -e custom:l=2,h=2,c=64,t=64 -b 8 -t 64 \
    --samples 2 -g 100 "${flags[@]}" -o "$scratch/run" >"$scratch/out" || { cat "$scratch/out"; exit 1; }
jq -es --argjson planned "${flags[1]}" '
    (map(select(.event == "step")) | length) as $made
    | (map(select(.event == "end")) | last) as $last
    | $made < $planned / 2 and ($last.reason | startswith("out of time")) and $last.seconds < 15
      and $made == (map(select(.event == "val")) | last.step)
      and (map(select(.event == "sample")) | length) == 2 and (map(select(.event == "checkpoint")) | length) == 1
' "$scratch/run/log.jsonl" >/dev/null || wrong "a machine slower than measured: $(tail -n 5 "$scratch/run/log.jsonl")"

# ---- a build prints the fraction of compiled files, and returns its exit code
cat >"$scratch/Makefile" <<'MAKE'
all: build/a.o build/b.o build/c.o
build/%.o:
	@mkdir -p build
	sleep 0.8; touch $@ # -c $* -o $@
build/c.o: build/b.o
build/b.o: build/a.o
fails:
	sleep 1.2; exit 3
MAKE
. scripts/progress.sh
said=$(cd "$scratch" && PROGRESS_SECONDS=1 build_with_progress log make)
[[ $said == "built 1 of 3 files"*"built 2 of 3 files"* && -e $scratch/build/c.o ]] || wrong "a build says: $said"
(cd "$scratch" && PROGRESS_SECONDS=1 build_with_progress log make fails) >"$scratch/out" &&
    wrong "a failed build passes"
[ ! -s "$scratch/out" ] && grep -q "Error 3" "$scratch/log" || wrong "a build of no files"

# ---- README's commands, in their order, in a tree without programs, and those that a quickstart ends with
tree=$scratch/tree
mkdir -p "$tree/dev" "$tree/build"
cp -r scripts "$tree"
cp -r dev/{plot,plotting,run_log.py,tool_main.py} "$tree/dev"
ln -s "$PWD"/{kernels,llmc} "$tree"
[ ! -e build/deps ] || ln -s "$PWD/build/deps" "$tree/build"
seq 40 | sed 's/$/ fish swim in the lake/' >"$tree/my.txt"  # the last tenth, held out, starts with line 38
mkdir "$scratch/some"  # PATH without what own text does not need
IFS=: read -ra folders <<<"$PATH"
for ((i = ${#folders[@]} - 1; i >= 0; i--)); do ln -sf "${folders[i]}"/* "$scratch/some/" 2>/dev/null || true; done
rm -f "$scratch"/some/{apt-get,bible,gnuplot,mpirun,mpicxx,jq}
printf 'train_gpt2 dev/tokenize dev/generate:\n\tln -s %s/$(@F) $@\n' "$build" >"$tree/Makefile"
run() { (cd "$tree" && QUICKSTART_MINUTES=0.01 eval "$1") </dev/null >"$scratch/out" 2>&1; }
PATH=$scratch/some run scripts/quickstart.sh && wrong "a quickstart without its text"
grep -q "^error: the program bible, .* is missing, .* scripts/quickstart.sh my.txt$" "$scratch/out" ||
    wrong "a quickstart without its text says: $(cat "$scratch/out")"
mapfile -t commands < <(awk '/^## / { if (inside) exit; inside = /^## Start$/ }
    inside && /^    / { print; any = 1 } any && /^$/ { exit }' README.md | grep -v 'scripts/test\.sh ')
[ ${#commands[@]} = 4 ] || wrong "README's section Start has these commands: ${commands[*]}"
ended=()
for command in "${commands[@]}"; do
    path=$PATH
    [[ $command != *my.txt* ]] || path=$scratch/some
    PATH=$path run "$command" || wrong "README's command \"$command\": $(tail -n 5 "$scratch/out")"
    mapfile -t -O ${#ended[@]} ended < <(sed '1,/^next:/d' "$scratch/out")
done
[ ${#ended[@]} = 6 ] || wrong "two quickstarts end with these commands: ${ended[*]}"
[[ ${ended[4]} == *"-e runs/quickstart-2 --prompt '38 fish swim in'" ]] || wrong "own text's prompt: ${ended[4]}"
[ -e "$tree/data/my/my_val_000000.bin" ] || wrong "data of my.txt: $(ls "$tree/data")"
for command in "${ended[@]:3}"; do
    run "$command" || wrong "a quickstart ends with \"$command\": $(tail -n 5 "$scratch/out")"
done
[ -e "$tree/runs/quickstart-2/step_00000040" ] || wrong "a resume trains no longer: $(tail -n 5 "$scratch/out")"
echo "a quickstart takes the time that it prints, and the commands that follow it work"
