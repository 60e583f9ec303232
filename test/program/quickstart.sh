#!/usr/bin/env bash
# quickstart.sh - tests the duration of a quickstart; runs the commands of README's section Start, as they stand
#
#   test/program/quickstart.sh [BUILD]     with the programs in BUILD (build/cpu)
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
set -e
build=$PWD/${1:-build/cpu}

# ---- README's commands, in their order, in a tree without programs, and those that a quickstart ends with
tree=$work/tree
mkdir -p "$tree/dev" "$tree/build"
cp -r scripts "$tree"
cp dev/{plot,run_plot.py,run_log.py,tool_main.py} "$tree/dev"
ln -s "$PWD"/{kernels,llmc} "$tree"
for folder in deps python; do [ ! -e build/$folder ] || ln -s "$PWD/build/$folder" "$tree/build"; done
seq 3000 | sed 's/$/ fish swim in the lake/' >"$tree/my.txt"
mkdir "$work/some"  # PATH without what own text does not need
IFS=: read -ra folders <<<"$PATH"
for ((i = ${#folders[@]} - 1; i >= 0; i--)); do ln -sf "${folders[i]}"/* "$work/some/" 2>/dev/null || true; done
rm -f "$work"/some/{apt-get,bible,python3,mpirun,mpicxx,jq}
printf 'train_gpt2 dev/tokenize dev/generate:\n\tln -s %s/$(@F) $@\n' "$build" >"$tree/Makefile"
run() { (cd "$tree" && QUICKSTART_MINUTES=0.03 eval "$1") </dev/null >"$work/out" 2>&1; }
PATH=$work/some run scripts/quickstart.sh && wrong "a quickstart without its text"
grep -q "^error: the program bible, .* is missing, .* scripts/quickstart.sh my.txt$" "$work/out" ||
    wrong "a quickstart without its text says: $(cat "$work/out")"
mapfile -t commands < <(awk '/^## / { if (inside) exit; inside = /^## Start$/ }
    inside && /^    / { print; any = 1 } any && /^$/ { exit }' README.md | grep -v 'scripts/test\.sh ')
[ ${#commands[@]} = 4 ] || wrong "README's section Start has these commands: ${commands[*]}"
own="PATH=$work/some"  # and a language whose numbers have a comma
if localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" 2>/dev/null; then
    ln -s /usr/lib/locale/C.* "$work"
    own+=" LOCPATH=$work LC_ALL=de_DE.UTF-8"
else
    echo "skipped: a quickstart in German: no localedef, or no source of de_DE"
fi
ended=()
for command in "${commands[@]}"; do
    environment=
    [[ $command != *my.txt* ]] || environment=$own
    run "$environment $command" || wrong "README's command \"$command\": $(tail -n 5 "$work/out")"
    [ -z "$environment" ] || grep -qE '^validation loss: [0-9]\.[0-9]{4} nats' "$work/out" ||
        wrong "own text: $(grep '^validation loss' "$work/out")"
    mapfile -t -O ${#ended[@]} ended < <(sed '1,/^next:/d' "$work/out")
done
[ ${#ended[@]} = 6 ] || wrong "two quickstarts end with these commands: ${ended[*]}"
[[ ${ended[4]} == *"-e runs/quickstart-2 --prompt '3000 fish swim in'" ]] || wrong "own text's prompt: ${ended[4]}"
[ -e "$tree/data/my/my_val_000000.bin" ] || wrong "data of my.txt: $(ls "$tree/data")"
# ---- lines of JSON; a run that does not start
seq 40 | sed 's/.*/{"text": "& fish"}/' >"$tree/lines.JSON"
run "scripts/quickstart.sh lines.JSON" || wrong "lines of JSON: $(tail -n 5 "$work/out")"
grep -q "^training: *36 documents" "$work/out" || wrong "lines of JSON: $(grep ^training: "$work/out")"
tool refuses <<<$'#!/bin/sh\nexit 2'
run "ln -sf $work/bin/refuses train_gpt2; scripts/quickstart.sh my.txt" && wrong "a refused run passes"
[ ! -e "$tree/runs/quickstart-4" ] || wrong "a run that does not start leaves runs/quickstart-4"
ln -sf "$build/train_gpt2" "$tree/train_gpt2"
# Twice 1.8 s, and what follows.
jq -es '
    map(select(.event == "end").seconds) as $ran
    | ($ran | length) == 2 and ($ran | min) > 1.5 and ($ran | max) < 15
      and (map(select(.event == "step")) | .[-1].lr == 0 and .[-1].progress == 1)
' "$tree/runs/quickstart/log.jsonl" "$tree/runs/quickstart-2/log.jsonl" >/dev/null ||
    wrong "duration: $(tail -n 3 "$tree"/runs/quickstart*/log.jsonl)"
for command in "${ended[@]:3}"; do
    run "$command" || wrong "a quickstart ends with \"$command\": $(tail -n 5 "$work/out")"
done
[ "$(jq -s 'map(select(.event == "end")) | length' "$tree/runs/quickstart-2/log.jsonl")" = 2 ] ||
    wrong "a resume trains no longer: $(tail -n 5 "$work/out")"
echo "a quickstart takes the time that it prints, and the commands that follow it work"
