#!/usr/bin/env bash
# sweep.sh -o FOLDER [OPTIONS] --vary 'FLAG VALUE...' ... -- PROGRAM FLAGS... - trains a run for every combination of
# values and every seed, several at once, and prints their last validation losses as a table; the lowest ones of runs
# with --stop-after
#
#   dev/sweep.sh -o runs/lr --vary '--lr 3e-3 6e-3' --vary '--weight-decay 0.1 0.3' -- ./train_gpt2 -i ... -x 500
#   dev/sweep.sh -o runs/d --from runs/mine/step_00001000 --vary '-d 256 512 1024 2048' -- ./train_gpt2
#
#   -o FOLDER            every run has a folder in it, with its log and output; and table.md, plot.png
#   --vary 'FLAG V...'   values of a flag; several --vary: all combinations
#   --seeds '1 2 3'      seeds of each combination (default)
#   --jobs N             runs at once; default: one per core. Each gets --threads cores / N, unless that flag is given
#   --plotted N          combinations in the plot, the best ones (6): validation losses of the first seed
#   --from CHECKPOINT    every run is a branch of this checkpoint, with the options and the seed of its run
#
# Before any training, each combination is tried with --dry-run, so that a wrong flag or value ends the sweep at once.
# An interrupted program writes a checkpoint. So the same command finishes a sweep that was stopped: finished runs are
# skipped, also those that --max-minutes or --stop-after ended, others resumed. Other values and seeds add runs; other
# program flags need another folder. A run that fails, for example because its loss is no longer finite, counts as
# worst; its output is in FOLDER/RUN.txt. `spread` is the largest less the smallest loss over seeds, the scatter of
# seeds. Below the table, if there are several seeds: combinations whose loss is above the best by no more than the
# scatter of either, and the next value to try for a flag whose best value is its least or largest, and better than all
# others by more than that.
#
# With --from, all branches train for the same tokens: a fifth of those before the checkpoint, rounded up to a multiple
# of all values of -d, unless --max-tokens (of the whole run) is given. The learning rate begins as that of the
# checkpoint's step, times f^0.5 where -d is f times its size (--batch-lr-exponent), and falls linearly to 0 in the last
# half of a branch, as it does at the end of runs: at a constant rate a larger step looks better than it is, because it
# averages the noise that a decay removes. There is no warm-up, and one validation, at the end; samples, HellaSwag,
# --stop-after and --keep-best are off. Flags after -- and of --vary replace these, -k all of the schedule. Choose a
# checkpoint after the warm-up and before a cool-down, and 50 steps or more of the largest -d. Below the table is the
# critical batch: the largest -d whose loss is at most 0.005 above the best. Start it where the run was started: its
# paths may be relative. A run of 1-bit Adam, --pad-last or --overfit-batch has steps of one size; one with outer steps
# needs as many ranks.
#
# Exit status 1: a run failed; 2: wrong arguments, or another sweep is training in the folder;
# 130: interrupted.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../scripts/help.sh"
see="see $(basename "$0") --help"
several=--vary each_once "$@"
out='' from='' seeds=usual jobs=$(nproc) plotted=6 varied=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        -o | --from | --vary | --seeds | --jobs | --plotted) ;;
        *) refuse "unexpected argument \"$1\"; $see" ;;
    esac
    [ $# -ge 2 ] && [ "$2" != -- ] || refuse "$1 has no value; $see"
    case $1 in
        -o) out=$2 ;;
        --from) from=$2 ;;
        --vary)
            read -ra words <<<"$2"
            [ ${#words[@]} -ge 2 ] && [[ ${words[0]} = -* ]] ||
                refuse "--vary is \"$2\"; expected a flag and values; $see"
            [ "${words[0]}" != --seed ] || refuse "--vary is \"$2\"; expected --seeds for this flag; $see"
            varied+=("$2")
            ;;
        --seeds) seeds=$2 ;;
        --jobs) jobs=$2 ;;
        --plotted) plotted=$2 ;;
    esac
    shift 2
done
[ -n "$out" ] || refuse "-o is not given; expected the folder of the sweep; $see"
[ ${#varied[@]} -gt 0 ] || refuse "--vary is not given; expected a flag and its values; $see"
[ $# -ge 2 ] || refuse "expected -- and the program with its flags, after the options; $see"
[ -z "$from" ] || [ "$seeds" = usual ] || refuse "--seeds is \"$seeds\"; expected none with --from: branches have the" \
    "run's seed; $see"
[ "$seeds" != usual ] || seeds='1 2 3'
[ -n "${seeds// /}" ] || refuse "--seeds is \"$seeds\"; expected numbers; $see"
# shellcheck disable=SC2086
whole_numbers "$jobs" "$plotted" $seeds
shift
command -v "$1" >/dev/null || refuse "\"$1\" is not a program; $see"
if [ -n "$from" ]; then
    # The run's seed, and the flags of every branch.
    said=$(python3 - "$(dirname "$(realpath "$0")")" "$from" "${varied[@]}" -- "$@" 2>&1 <<'PYTHON'
import math, json, sys
from pathlib import Path
end = sys.argv.index("--")
dev, folder, *varied = sys.argv[1:end]
words = sys.argv[end + 1:] + [flag.split()[0] for flag in varied]
given = {word.partition("=")[0] if word.startswith("--") else word[:2] for word in words}  # -l3e-4 is -l
sys.path.insert(0, dev)
from run_log import Run
from tool_main import ToolError, fail, in_quotes, whole_number
try:
    try:
        state = json.loads(Path(folder, "trainer_state.json").read_text())
        step, options, first_size = state["step"], state["run"]["options"], state["batches"][0]["tokens"]
        size = [batch["tokens"] for batch in state["batches"] if batch["step"] < max(step, 1)][-1]
        peak, exponent, seed = float(options["lr"]), float(options["batch-lr-exponent"]), int(options["seed"])
    except (OSError, LookupError, TypeError, ValueError):
        fail("--from", in_quotes(folder), "a checkpoint of this version, such as runs/mine/step_00001000")
    log = Run(Path(folder).resolve().parent)
    log.read()
    last = ([event for event in log.of("step") if event["step"] == step] or [None])[-1]
    if not (last and last.get("lr") and last["tokens"] == size):
        fail(f"step {step} in {in_quotes(log.log)}", "missing or of another run", "that of the checkpoint")
    sizes = [whole_number("-d", word, 1) for flag, *words in map(str.split, varied)
             if flag in ("-d", "--total-batch-tokens") for word in words] or [size]
    before, unit = last["tokens_so_far"], math.lcm(*sizes)
    total = before + unit * -(-before // (5 * unit))
    for flag, value in zip(sys.argv[end + 1:], sys.argv[end + 2:] + [""]):
        if flag.partition("=")[0] == "--max-tokens":
            total = whole_number("--max-tokens", flag.partition("=")[2] or value, before + 1, 2 ** 53)
    lengths = given & {"-x", "--max-steps", "--epochs", "--max-minutes"}
    if lengths:
        fail(lengths.pop(), "given with --from", "--max-tokens: all branches train for the same tokens")
    if not options["val-data"] and not given & {"-j", "--val-data"}:
        fail("--from", "a run without validation data", "-j after --")
    if last["lr"] < 0.01 * peak and not given & {"-l", "--lr"}:
        fail(f"the learning rate of step {step}", f"{last['lr']:g}", f"1 % or more of the run's --lr {peak:g}",
             "use an earlier checkpoint, or give --lr after --")
    share = 0.5 * (total - before) / total  # of the whole run
    schedule = f"--lr-schedule/-k=wsd --cooldown-fraction={share!r} --cooldown-shape=linear --final-lr-fraction/-q=0"
    flags = f"--max-tokens={total} --lr/-l={last['lr'] / (size / first_size) ** exponent!r} " + (
        "" if given & {"-k", "--lr-schedule"} else schedule) + " --warmup-steps/-u=0 --warmup-tokens=0 " \
        "--val-every/-v=1000000000 --sample-every/-s=0 --hellaswag= --max-minutes=0 --stop-after=0 --keep-best=off " \
        "--keep-checkpoints=1 --noise-scale=off"
    print(seed)
    for flag in flags.split():
        names, _, value = flag.partition("=")
        if not given & set(names.split("/")): print(f"{names.partition('/')[0]}={value}")
except ToolError as error: sys.exit(str(error))
PYTHON
    ) || refuse "$said"
    mapfile -t branch <<<"$said"
    [[ $said == *--lr-schedule=* ]] ||
        echo "note: with -k branches have the schedule of these flags, and no decay of their own in their last half" >&2
    from=$(realpath "$from") seeds=${branch[0]}
    set -- "$@" "${branch[@]:1}"
fi
threads=()
[[ " $* " = *" --threads"[\ =]* ]] || threads=(--threads $(($(nproc) > jobs ? $(nproc) / jobs : 1)))

# Combinations as lines of flags, such as "--lr 3e-3 --weight-decay 0.1".
combinations=('')
for one in "${varied[@]}"; do
    read -ra words <<<"$one"
    longer=()
    [[ " ${combinations[0]} " != *" ${words[0]} "* ]] || refuse "${words[0]} is in two --vary; expected one; $see"
    for before in "${combinations[@]}"; do
        for value in "${words[@]:1}"; do longer+=("${before:+$before }${words[0]} $value"); done
    done
    combinations=("${longer[@]}")
done
# name_of FLAGS...: each on a line as "lr=3e-3,weight-decay=0.1"
name_of() { printf '%s\n' "$@" | sed -E 's/(^| )-+/,/g; s/^,//; s/ /=/g; s|/|_|g'; }
# shellcheck disable=SC2086
twice=$(printf '%s\n' $seeds "${combinations[@]}" | sort | uniq -d)
twice=${twice:-$(name_of "${combinations[@]}" | sort | uniq -d)}
[ -z "$twice" ] || refuse "\"${twice%%$'\n'*}\" is given twice; $see"
ended='^(all steps completed|out of time|no lower validation loss)'  # reasons of a finished run
# What a run resumes: its own checkpoint, or that of --from.
origin() { if [ -z "$from" ] || compgen -G "$out/$1/step_*" >/dev/null; then echo auto; else echo "$from"; fi; }
finished() { [ -e "$1/log.jsonl" ] && [[ $(jq -rs 'last | .reason // ""' "$1/log.jsonl") =~ $ended ]]; }

[ -e "$out" ] || trap 'rmdir "$out" 2>/dev/null || true' EXIT  # if nothing starts
make_folder -o "$out"
# Its runs hold the lock, too, also if this script is killed.
exec {lock}<"$out"
flock -n "$lock" || [ $? != 1 ] ||
    refuse "-o is \"$out\", in which another sweep is training; expected another folder, or wait until it ends"
command=$(printf ' %q' ${from:+--from "$from"} "$@")
command=${command:1} before=$(cat "$out/command" 2>/dev/null || true)
of_length() { sed -nE 's/.*--max-tokens=([0-9]+).*/\1/p' <<<"$1"; }
of_any_length() { sed -E 's/--(max-tokens|cooldown-fraction)=\S+//g' <<<"$1"; }
[ -z "$from" ] || [ "$before" = "$command" ] || [ "$(of_any_length "$before")" != "$(of_any_length "$command")" ] ||
    refuse "-o is \"$out\", whose branches end at $(of_length "$before") tokens, and these at" \
        "$(of_length "$command"), a multiple of all values of -d; expected another folder, or values of -d that keep it"
[ -z "$before" ] || [ "$before" = "$command" ] ||
    refuse "-o is \"$out\", which has runs of other flags: $before; expected another folder"
read -r first _ <<<"$seeds"
for flags in "${combinations[@]}"; do
    run=$(name_of "$flags"),seed=$first
    ! finished "$out/$run" || continue
    resumed=$(origin "$run") folder=$out/$run
    [ "$resumed" = auto ] || folder=$out/.new  # of a branch that has saved nothing, and starts again
    # shellcheck disable=SC2086
    said=$("$@" "${threads[@]}" $flags --seed "$first" -o "$folder" -y "$resumed" --dry-run 2>&1 </dev/null) ||
        refuse "the dry run of $run fails: ${said##*error: }"
    [[ $said == *"validation data: "* ]] || refuse "no validation data; expected -j among the program's flags"
    [[ ! "$said " =~ --val-every=0[[:space:]] ]] ||
        refuse "-v is 0 in $run, which then has no validation loss; expected -v above 0"
done
{ echo "$command" >"$out/command"; } 2>/dev/null || refuse "-o is \"$out\"; expected a folder that can be written to"
pids=() stopped=0
stop() {
    stopped=130
    kill -TERM "${pids[@]}" 2>/dev/null || true  # they save; background jobs ignore SIGINT
}
trap stop INT TERM
running() { set -- $(jobs -rp) && echo $#; }  # without another program, which a signal would end, too
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
for seed in $seeds; do
    for flags in "${combinations[@]}"; do
        run=$(name_of "$flags"),seed=$seed
        ! finished "$out/$run" || continue
        while [ $stopped = 0 ] && [ "$(running)" -ge "$jobs" ]; do wait -n || true; done
        [ $stopped = 0 ] || break 2
        resumed=$(origin "$run")
        [ "$resumed" = auto ] || rm -rf "${out:?}/$run"  # a branch that has saved nothing starts again
        # shellcheck disable=SC2086
        setsid "$@" "${threads[@]}" $flags --seed "$seed" -o "$out/$run" -y "$resumed" >"$out/$run.txt" 2>&1 \
            </dev/null &
        pids+=($!)
        echo "started: $run"
    done
done
while [ "$(running)" -gt 0 ]; do wait -n || true; done
[ $stopped = 0 ] || exit $stopped

python3 - "$(dirname "$(realpath "$0")")/plot" "$out" "$ended" "$from" "$seeds" "$plotted" \
    "${combinations[@]}" <<'PYTHON'
import json, math, re, subprocess, sys
from pathlib import Path
plot, out, ended, branches, seeds, plotted, *combinations = sys.argv[1:]
def events_of(log):
    try:
        return [json.loads(line) for line in log.open()] or [{}]
    except (OSError, ValueError):  # not started, or killed
        return [{}]
def beyond(best, values):
    """The value to try next, if the best one is the least or largest of several positive numbers."""
    whole = all(map(str.isdigit, values))
    try: best, values = float(best), sorted(map(float, values))
    except ValueError: return None
    if len(values) < 2 or best <= 0 or values[0] < best < values[-1]: return None
    near = values[1] if best == values[0] else values[-2]
    after = best * min(10, max(0.1, best / near if near > 0 else 2))
    if best < 1 <= after: after = 1 - (1 - best) ** 2 / (1 - near)  # such as Adam's betas
    after = round(after) if whole else float(f"{after:.3g}")
    return after if after not in (0, best) else None
rows, best_of = [], {}  # best_of: losses by tokens per step
for flags in combinations:
    name = re.sub(r"(^| )-+", ",", flags)[1:].replace(" ", "=").replace("/", "_")
    losses, seconds = [], 0
    for seed in seeds.split():
        events = events_of(Path(out, f"{name},seed={seed}", "log.jsonl"))
        finished = re.match(ended, str(events[-1].get("reason")))
        found = [event["loss"] for event in events if event.get("event") == "val"]
        found = [math.inf if loss is None else loss for loss in found]
        best = any(event["options"]["stop-after"] for event in events if event.get("event") == "start")
        losses.append((min(found) if best else found[-1]) if finished and found else math.inf)
        size = [event["tokens"] for event in events if event.get("event") == "step" and branches][-1:]
        for tokens in size: best_of[tokens] = min(best_of.get(tokens, math.inf), losses[-1])
        seconds += sum(event["seconds"] for event in events if finished and event["event"] == "end")
    spread = max(losses) - min(losses) if len(losses) > 1 else math.nan
    rows.append((sum(losses) / len(losses), spread, seconds / 60 / len(losses), losses, name, flags.split()))
rows.sort(key=lambda row: row[0])
shown = lambda loss: f"{loss:.4f}" if loss < math.inf else "failed"
table = f"| flags | validation loss | spread | minutes | seeds {seeds} |\n|---|---|---|---|---|\n"
for mean, spread, minutes, losses, name, _ in rows:
    table += f"| `{name}` | {shown(mean)} | {f'{spread:.4f}' if spread < math.inf else '-'} | {minutes:.2f} | " \
        f"{', '.join(map(shown, losses))} |\n"
least, scatter, *_, best = rows[0]
if len(seeds.split()) == 1:
    table += "\nOne seed: the scatter of seeds is not known, and may explain the differences. " + (
        "Branch runs of other seeds, too.\n" if branches else "Add --seeds.\n")
    if len(best_of) > 1 and least < math.inf:
        critical = max(tokens for tokens, loss in best_of.items() if loss <= least + 0.005)
        edge = {max(best_of): "at least ", min(best_of): "at most "}.get(critical, "")
        table += f"\nCritical batch: {edge}{critical} tokens per step, the largest within 0.005 of the best loss.\n"
elif least < math.inf:
    near = [row for row in rows[1:] if row[0] - least <= max(scatter, row[1]) < math.inf]
    if near: table += f"\nWithin the scatter of seeds of the best: {', '.join(f'`{row[-2]}`' for row in near)}.\n"
    def alike(flags, i):
        """Whether the best differs from a near combination only in flag i: from chance, as far as is known."""
        return flags[:i + 1] == best[:i + 1] and flags[i + 2:] == best[i + 2:]
    edges = [(flag, beyond(value, {row[-1][i + 1] for row in rows})) for i, (flag, value) in
             enumerate(zip(best, best[1:])) if i % 2 == 0 and not any(alike(row[-1], i) for row in near)]
    tries = [f"`{flag} {value}`" for flag, value in edges if value is not None]
    if tries: table += f"\nBest at the edge of the range: try {', '.join(tries)}.\n"
print(table, end="", flush=True)
try:
    Path(out, "table.md").write_text(table)
except OSError as error:
    sys.exit(f"error: {out}/table.md cannot be written: {error.strerror}")
best = [f"{out}/{name},seed={seeds.split()[0]}" for mean, *_, name, _ in rows[:int(plotted)] if mean < math.inf]
draw = [plot, *best, "--x", "tokens", "-o", f"{out}/plot.png"]
if best and subprocess.run(draw, stdout=subprocess.DEVNULL).returncode:
    print(f"note: no {out}/plot.png", file=sys.stderr)
failed = [f"{out}/{name},seed={seed}.txt" for *_, losses, name, _ in rows
          for seed, loss in zip(seeds.split(), losses) if loss == math.inf]
if failed:
    output = Path(failed[0])
    said = re.findall("^error: (.*)", output.read_text(errors="replace"), re.M) if output.is_file() else []
    sys.exit(f"error: {len(failed)} of {len(rows) * len(seeds.split())} runs failed; {failed[0]}" +
             (f": {said[-1]}" if said else ""))
PYTHON
