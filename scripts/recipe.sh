# shellcheck shell=bash disable=SC2034,SC2154
# recipe.sh - for the scripts that reproduce a published run: prints its requirements, its estimated time and the
# published results, then starts the run. Sourced, not run
#
# Such a script sets
#   name        the folder in runs/
#   title       a description of model and data
#   model       -e
#   shards      prefixes of shards in data/, without _train_*.bin and _val_*.bin; the first with existing shards is used
#   get_shards  the command that makes the shards, without -o
#   flags       flags of train_gpt2, in addition to those of all recipes
#   published   lines: results, who published them, hardware, source; OUT in "dev/plot OUT" is replaced by -o
# and calls `recipe "$@"`. The user's flags come last, so they override the others.
# shellcheck source=scripts/launch.sh
. "$here/launch.sh"

note() { echo "note: $1" >&2; }
is_whole() { [[ $1 =~ ^[1-9][0-9]{0,14}$ ]]; }

# The flags of train_gpt2 with a short name, and those with a value, according to --help.
declare -A name_of has_value
while IFS='|' read -r letter flag takes; do
    [ -z "$letter" ] || name_of[$letter]=$flag
    [ -z "$takes" ] || has_value[$flag]=yes
done < <("$program" --help | sed -nE 's/^  (-([a-z]), |    )--([a-z0-9-]+)( [A-Z]+)?( .*)?$/\2|\3|\4/p')

# flag_of WORD [NEXT]: sets `key` to the long name of the flag, or to WORD if it is not a flag; `joined` to the value
# joined to it; and `takes` if NEXT is its value, also for switches: --shuffle false.
flag_of() {
    local answers=''
    takes='' joined='' key=$1
    [[ ! ${2:-} =~ ^(0|1|true|false|yes|no)$ ]] || answers=yes
    case $1 in
        --?*=*) key=${1#--} joined=${key#*=} key=${key%%=*} ;;
        --?*) key=${1#--} takes=${has_value[$key]:-$answers} ;;
        -[a-z]) key=${name_of[${1#-}]:-$1} takes=${has_value[$key]:-$answers} ;;
        -[a-z]=*) key=${name_of[${1:1:1}]:-${1%%=*}} joined=${1:3} ;;
        -[a-z]*) # -b16, not -af
            key=${name_of[${1:1:1}]:-$1} joined=${1:2}
            [ -n "${has_value[$key]:-}" ] || key=$1
            ;;
    esac
}

# value LONG WORD...: prints the value of the last flag with this long name; fails if there is none
value() {
    local wanted=$1 found='' key takes joined
    shift
    while [ $# -gt 0 ]; do
        flag_of "$@"
        shift
        if [ -n "$takes" ] && [ $# -gt 0 ]; then
            joined=$1
            shift
        fi
        [ "$key" != "$wanted" ] || found=x$joined
    done
    [ -n "$found" ] && echo "${found#x}"
}

# take_dry_run WORD...: sets `words` to these words without --dry-run, and `dry` according to the last --dry-run. Keeps
# invalid values of --dry-run, so that the program reports them.
take_dry_run() {
    local key takes joined count
    words=() dry=''
    while [ $# -gt 0 ]; do
        flag_of "$@"
        count=1
        [ -z "$takes" ] || [ $# = 1 ] || count=2
        case "$key:${*:1:count}" in
            dry-run:--dry-run | dry-run:--dry-run[=\ ]true | dry-run:--dry-run[=\ ]1) dry=yes ;;
            dry-run:--dry-run[=\ ]false | dry-run:--dry-run[=\ ]0) dry='' ;;
            *) words+=("${@:1:count}") ;;
        esac
        shift $count
    done
}

# commas NUMBER: 18,865 of 18865
commas() { sed -E ':again; s/([0-9])([0-9]{3})(,|$)/\1,\2\3/; t again' <<<"$1"; }

# amount TOKENS: in billions if at least one billion
amount() {
    if [ "$1" -lt 1000000000 ]; then commas "$1"; else awk -v n="$1" 'BEGIN { printf "%.4g billion", n / 1e9 }'; fi
}

plural() { [ "$1" = 1 ] || echo s; }

# quote WORD: sets `quoted` to WORD, quoted for a shell if necessary
quote() {
    quoted=$1
    [[ $1 =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || quoted=${1@Q}
}

# escaped PATH: PATH with the special characters of file name patterns escaped
# shellcheck disable=SC2001 # the replacement contains the match
escaped() { sed 's/[][*?{}\\]/\\&/g' <<<"$1"; }

# print_command WORD...: the command with the flags in `all`, in lines that can be pasted into a shell. Of a repeated
# flag it prints the last, which is the one that the program uses.
print_command() {
    local word quoted key takes='' joined line='   ' i
    local -A last
    local keys=() parts=() start_words=()
    for i in "${!all[@]}"; do
        quote "${all[i]}"
        if [ -n "$takes" ]; then
            parts[-1]+=" $quoted" takes=''
            continue
        fi
        flag_of "${all[@]:i:2}"
        keys+=("$key") parts+=("$quoted") last[$key]=${#keys[@]}
    done
    for i in "${!keys[@]}"; do [ "${last[${keys[i]}]}" = $((i + 1)) ] || unset "parts[i]"; done
    for word; do
        quote "$word"
        start_words+=("$quoted")
    done
    for word in "${start_words[@]}" "${parts[@]}"; do
        if [ $((${#line} + ${#word})) -gt 97 ] && [ -n "${line// /}" ]; then
            echo "$line \\"
            line='       '
        fi
        line+=" $word"
    done
    echo "$line"
}

# The number of ranks: RANKS, the slots of HOSTFILE, or one per GPU.
count_ranks() {
    if [ -n "${RANKS:-}" ]; then
        echo "$RANKS"
    elif [ -n "${HOSTFILE:-}" ]; then
        awk '!/^[[:space:]]*(#|$)/ { ranks += match($0, /slots=[0-9]+/) ? substr($0, RSTART + 6, RLENGTH - 6) : 1 }
             END { print ranks + 0 }' "$HOSTFILE" 2>/dev/null || echo 1 # run_two_nodes.sh reports its errors
    elif [ "$device" = cuda ] && [ "$gpus" -gt 1 ]; then
        echo "$gpus"
    else
        echo 1
    fi
}

# choose_start: sets `start`, the command that starts the program; `device`, `gpus` and `ranks`.
choose_start() {
    gpus=$(count_gpus)
    device=cpu
    [[ $("$program" --version | tr -s '[:space:]' ' ') != *"device cuda"* ]] || device=cuda
    [ "$device" = cuda ] || [ "$gpus" = 0 ] ||
        note "PROGRAM is a CPU build, but there are $gpus GPUs; make DEVICE=cuda builds for GPUs"
    ranks=$(count_ranks)
    start=("$program")
    if [ -n "${HOSTFILE:-}" ]; then
        start=(env "HOSTFILE=$HOSTFILE" "RANKS=$ranks" "PROGRAM=$program" "$here/run_two_nodes.sh")
    elif [ "$ranks" != 1 ]; then
        start=(env "RANKS=$ranks" "PROGRAM=$program" "$here/run_one_node.sh")
    fi
}

# require_shards PATTERN WORD FLAG: refuses a pattern that no shard matches
require_shards() {
    compgen -G "$1" >/dev/null || refuse "no $2 shards match \"$1\"; expected tokens of GPT-2's vocabulary; run" \
        "$get_shards -o $data/${shards%/*}, or pass others with $3"
}

# Sets `plan` to the output of train_gpt2 --dry-run, and `facts` to the same without commas in numbers.
# The user's flags come last, so that the program reports a missing value at the end as the user wrote it.
# If only the recipe's -b is too large for this machine, uses a smaller one: an update has the same number of tokens.
make_plan() {
    local error fits batch
    while ! plan=$("${start[@]}" --dry-run "${all[@]}" 2>&1); do
        error=$(grep -m 1 '^error: ' <<<"$plan") || error="error: train_gpt2 --dry-run failed: $(tail -n 1 <<<"$plan")"
        if [ -n "$own_batch" ] || ! [[ $error =~ "the largest that fits is "([0-9]+) ]]; then
            echo "$error" >&2
            exit 2
        fi
        fits=${BASH_REMATCH[1]} batch=1
        while [ $((2 * batch)) -le "$fits" ]; do batch=$((2 * batch)); done
        note "-b $batch instead of $(value micro-batch "${all[@]}"), to fit in memory; an update has the same tokens"
        own_batch=$batch
        all+=(-b "$batch")
    done
    facts=$(sed -E ':again; s/([0-9]),([0-9]{3})([^0-9]|$)/\1\2\3/; t again' <<<"$plan")
}

# Sets `ms`, the milliseconds of a step, `timed_tokens`, its tokens, and `timed`, a description: from the log of a run
# to resume, otherwise from three steps of one micro-batch (on a CPU, of one sequence). Fails if neither is possible.
measure() {
    local log=$out/log.jsonl said sequences=$batch word few=() leave_out=''
    if [ -s "$log" ] && command -v jq >/dev/null; then
        read -r made ms timed_tokens < <(tail -n 400 "$log" | jq -rRs '
            [split("\n")[] | fromjson? | objects | select(.event == "step")] | select(length > 2) |
            [last.tokens_so_far / last.tokens, (map(.ms) | sort | .[length / 2 | floor]), last.tokens] | @tsv') &&
            timed="the median of its last steps" && return
    fi
    made=0
    [ "${MEASURE:-yes}" = yes ] && [[ $plan != *"note: continuing because of --ignore-memory-plan"* ]] || return 1
    [ "$device" = cuda ] || sequences=1
    for word in "${all[@]}"; do # without HellaSwag, which is slow
        case $word in
            --hellaswag=* | --hellaswag-every=*) ;;
            --hellaswag | --hellaswag-every) leave_out=yes ;;
            *) [ -n "$leave_out" ] || few+=("$word") && leave_out='' ;;
        esac
    done
    note "timing three steps of $(commas $((sequences * length * ranks))) tokens; MEASURE=no skips this"
    said=$("${start[@]}" "${few[@]}" -b "$sequences" -d 0 -x 3 -u 0 -v 0 -s 0 -n 0 -y never --output-dir= 2>&1) &&
        ms=$(awk '/^step +3\/3 / && $5 ~ /e[-+]/ { print $7 + 0 }' <<<"$said") && [ -n "$ms" ] || return 1
    timed_tokens=$((sequences * length * ranks)) timed="three steps of $(commas "$timed_tokens") tokens"
}

# Prints the plan and the time estimate as a table.
print_plan() {
    local step parameters tokens passes memory='' available='' ms timed_tokens timed made=0 left rate takes keep quoted
    [[ $facts =~ "training: "([0-9]+)\ steps?\ of\ ([0-9]+)\ token ]] ||
        refuse "train_gpt2 --dry-run prints no number of steps"
    steps=${BASH_REMATCH[1]} step=${BASH_REMATCH[2]}
    [[ $facts =~ ([0-9]+)" parameters (" ]] && parameters=${BASH_REMATCH[1]}
    [[ $facts =~ "training data: "[^,]*", "([0-9]+)" token" ]] && tokens=${BASH_REMATCH[1]}
    [[ $facts =~ "  total "\ *([0-9.]+\ [A-Za-z]+) ]] && memory=${BASH_REMATCH[1]}
    [[ $facts =~ "  available "\ *([0-9.]+\ [A-Za-z]+) ]] && available=${BASH_REMATCH[1]}
    keep=$(value keep-checkpoints "${all[@]}") || keep=0
    echo "$title"
    quote "$out"
    published=${published//dev\/plot OUT/"${root}dev/plot $quoted"}
    sed '1s/^/  published    /;2,$s/^/               /' <<<"$published"
    passes=$(awk -v made=$((steps * step)) -v tokens="$tokens" 'BEGIN {
        passes = made / tokens
        print passes < 0.01 ? "less than 0.01" : sprintf(passes < 10 ? "%.2f" : "%.0f", passes) }')
    echo "  training     $(commas "$steps") step$(plural "$steps") of $(commas "$step") tokens, in total" \
        "$(amount $((steps * step))): $passes passes over the $(amount "$tokens") in the shards"
    echo "  ranks        $ranks, on $([ "$device" = cuda ] && echo GPUs || echo 'this CPU: no GPU is used')"
    echo "  memory       $memory per rank${available:+, of $available available}"
    awk -v n="$parameters" -v keep="$keep" -v out="$out" 'BEGIN {
        kilobytes = 12 * n / 1e3
        size = kilobytes < 1e3 ? kilobytes " kB" : sprintf(kilobytes < 1e6 ? "%.3g MB" : "%.3g GB",
            kilobytes / (kilobytes < 1e6 ? 1e3 : 1e6))
        printf "  checkpoints  in %s, %s each, %s\n", out, size,
            (keep > 1 ? "the newest " keep " are kept" : keep == 1 ? "the newest is kept" : "all are kept") }'
    if measure; then
        left=$((steps - made))
        read -r rate takes < <(awk -v ms="$ms" -v timed="$timed_tokens" -v step="$step" -v left="$left" 'BEGIN {
            printf "%.0f ", timed / ms * 1000
            hours = left * step / timed * ms / 3.6e6
            if (hours < 1) printf "%.1f minutes\n", 60 * hours
            else if (hours < 72) printf "%.1f hours\n", hours
            else printf "%.0f hours, %.0f days,\n", hours, hours / 24 }')
        echo "  time         $takes for $(commas "$left") step$(plural "$left"), without validation:" \
            "$(commas "$rate") tokens/s, from $timed"
    else
        echo "  time         not measured"
    fi
    echo "  command"
    print_command "${start[@]}"
}

recipe() {
    local word place pattern dry own_batch gpus device ranks batch length tokens steps warmup out plan facts
    local vocabulary root data every all start words chosen=()
    for word; do
        case $word in -h | --help) exec "$0" --help ;; esac
    done
    take_dry_run "$@"
    set -- "${words[@]}"
    root=$(realpath --relative-to=. "$here/..")/
    [ "$root" != ./ ] || root=
    data=${DATA:-${root}data}
    for place in $shards; do
        compgen -G "$(escaped "$data/$place")_train_*.bin" >/dev/null && shards=$place && break
    done
    shards=${shards%% *} pattern=$(escaped "$data/${shards%% *}")
    all=(-i "${pattern}_train_*.bin" -j "${pattern}_val_*.bin" -e "$model" -o "${root}runs/$name" -y auto
        --dtype bf16 --shuffle -z 1 -c 0.1 -v 250 "${flags[@]}")
    own_batch=$(value micro-batch "$@") || own_batch=
    pattern=$(value train-data "${all[@]}" "$@")
    require_shards "$pattern" training -i
    require_shards "$(value val-data "${all[@]}" "$@")" validation -j
    # HellaSwag's file has GPT-2's ids; so do shards with vocabulary 50257, or 0 as in llm.c's shards, in their header.
    every=$(value hellaswag-every "$@") || every=$(value val-every "${all[@]}" "$@")
    if is_whole "$every" && [ -e "$data/hellaswag/hellaswag_val.bin" ] &&
        [[ $(od -A n -t d4 -j 12 -N 4 "$(compgen -G "$pattern" | head -n 1)") =~ ^\ *(0|50257)$ ]]; then
        all+=(--hellaswag "$data/hellaswag/hellaswag_val.bin" --hellaswag-every "$every")
    fi
    all+=("$@")
    out=$(value output-dir "${all[@]}")
    choose_start

    length=$(value seq-len "${all[@]}")
    tokens=$(value total-batch-tokens "${all[@]}")
    batch=$(value micro-batch "${all[@]}")
    if [ -z "$own_batch" ] && is_whole "$batch" && is_whole "$length" && is_whole "$tokens"; then
        while [ $((batch % 2)) = 0 ] && [ $((tokens % (batch * length * ranks))) != 0 ]; do batch=$((batch / 2)); done
        [ "$batch" = "$(value micro-batch "${all[@]}")" ] || chosen+=(-b "$batch")
    fi
    steps=$(value max-steps "${all[@]}")
    warmup=$(value warmup-steps "${all[@]}")
    if ! value warmup-steps "$@" >/dev/null && is_whole "$steps" && [ "$steps" -lt "$warmup" ]; then
        note "-u $((steps / 10)) instead of $warmup: a warm-up that fits in $steps steps"
        chosen+=(-u $((steps / 10)))
    fi
    all=("${all[@]:0:${#all[@]}-$#}" "${chosen[@]}" "$@")

    make_plan
    batch=$(value micro-batch "${all[@]}")
    [[ $facts =~ "training data: "[^$'\n']*", vocabulary "([0-9]+) ]] && vocabulary=${BASH_REMATCH[1]}
    [ "$(value init "${all[@]}")" != "$model" ] || [ "$vocabulary" = 50257 ] ||
        refuse "the shards have a vocabulary of $vocabulary; expected GPT-2's 50257; run $get_shards" \
            "-o $data/${shards%/*}, or pass another model with -e"
    [ -z "$dry" ] || echo "$plan"
    print_plan
    [ -z "$dry" ] || exit 0
    exec "${start[@]}" "${all[@]}"
}
