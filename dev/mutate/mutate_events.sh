#!/usr/bin/env bash
# mutate_events.sh [NAME... | --judge FILE] - mutation test of the host code's synchronization: removes, or moves to
# another stream, each call that orders the GPU's work, one place at a time, and reports the changes that no run detects
#
# It runs the CUDA build on the stand-ins for NVIDIA's libraries (make -f test/stand_in/Makefile). A run detects a
# change if its exit code, log or model differs from the unchanged run, on any of three schedules; freed host memory is
# overwritten. A place is the call path from main() to the library's function; once one path to a function of ours
# detects a change, its other paths are not tried. NAME: one of the runs below (default: all).
# build/mutate_events.txt gets a line for each place and change: noticed or unnoticed, and how. Exit status 1 if a
# change is unnoticed and not listed in may_pass(), if a listed one is noticed, or if no run reaches a listed place;
# --judge checks only this, for the FILE of earlier runs.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
cd "$(dirname "$0")/../.." || exit

# Changes that no run detects, and why the call stays.
may_pass() {
    local at_end="no work is pending when a run ends normally; on a CPU, or after an error, memory would be freed early"
    local function change
    for function in CommStream::~CommStream Alone::sync; do
        for change in skip other_stream; do echo "$change | cudaStreamSynchronize llmc::$function | $at_end"; done
    done
    echo "skip | cudaEventSynchronize llmc::CommStream::sync | $at_end"
    for change in skip other_stream; do
        echo "$change | cudaStreamSynchronize llmc::OptimizerStep::load | reading the state waits too, but a rank may" \
            "have no state to read"
    done
    echo "skip | cudaEventSynchronize llmc::StreamTimes::seconds | Timer::seconds waits for the event that is_done()" \
        "has just seen; callers without is_done() need it"
}
# check_changes FILE RUNS: checks the lines in FILE against may_pass(), by change, library function and the function of
# ours that calls it; RUNS: number of runs selected by name, 0: all
check_changes() {
    awk -F ' \\| ' -v runs="$2" '
        function wrong(what, place) { print what " | " place; ++count }
        NR == FNR { why[$1 " | " $2] = $3; next }
        {
            split($4, way, " <- ")
            place = $3 " | " way[1]
            all[place] = 1
            if ($1 == "noticed") noticed[place] = 1
        }
        END {
            for (place in all)
                if (place in noticed) { if (place in why) wrong("noticed, but listed", place) }
                else if (!(place in why)) { ++unnoticed; wrong("unnoticed", place) }
                else { ++unnoticed; print "unnoticed, as listed | " place " | " why[place] }
            if (runs == 0) for (place in why) if (!(place in all)) wrong("no such place, but listed", place)
            print length(all) " changes of functions, " unnoticed + 0 " unnoticed, " count + 0 " not as listed"
            exit count > 0
        }' <(may_pass) "$1"
}
if [ "${1:-}" = --judge ]; then check_changes "${2:?FILE}" 0; exit; fi

bin=build/stand-in/train_gpt2
[ -x $bin ] || refuse "no $bin; make -f test/stand_in/Makefile"
out=build/mutate_events.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without malloc's cache of small blocks, whose blocks are not overwritten.
export MALLOC_PERTURB_=85 GLIBC_TUNABLES=glibc.malloc.tcache_count=0
export STAND_IN_FREE=now STAND_IN_GPUS=4 XDG_CACHE_HOME=$work OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
build/cpu/tokenize -o "$work" --hold-out 2 README.md test/README.md >/dev/null || exit 2
base=(-i "$work/text_train_*.bin" -t 16 -b 1 -x 3 --tune=off)
validated=(-j "$work/text_val_*.bin" -v 2 --val-tokens 96 -s 2 --sample-tokens 2)
small=(-e "custom:l=1,h=2,c=32,t=16")
names=(alone unvalidated recompute nccl nccl_unequal mpi mpi_plain mpi_unvalidated resumed muon muon_mpi muon_resumed)
declare -A runs=(
    [alone]=""
    [unvalidated]="--checkpoint-every 1"
    [mpi_unvalidated]="2 --comm mpi -z 1"
    [recompute]="--recompute block --dtype bf16"
    [nccl]="2 --comm nccl -z 2"
    [nccl_unequal]="3 --comm nccl -z 1 -d 48"
    [mpi]="2 --comm mpi -z 2 --dtype bf16 --reduce-dtype bf16"
    [mpi_plain]="2 --comm mpi -z 0"
    [resumed]="2 --comm mpi -z 2 --dtype bf16 --resume auto"
    [muon]="2 --comm nccl -z 1 --optimizer muon"
    [muon_mpi]="2 --comm mpi -z 2 --dtype bf16 --reduce-dtype bf16 --optimizer muon"
    [muon_resumed]="2 --comm mpi -z 0 --optimizer muon --resume auto"
)
# start NAME FOLDER: runs it; prints nothing
start() {
    local ranks=1 flags
    read -ra flags <<<"${runs[$1]}"
    [[ ${flags[0]:-} =~ ^[0-9]+$ ]] && { ranks=${flags[0]}; flags=("${flags[@]:1}"); }
    local launcher=() more=("${validated[@]}")
    [[ $1 != *unvalidated ]] || more=(-v 0)
    [[ ${runs[$1]} = *"-d "* ]] || more+=(-d 64)
    [[ $1 != *resumed ]] || { mkdir -p "$2" && cp -r "$work/${1%resumed}begun/step_00000001" "$2"; }
    [ "$ranks" -gt 1 ] && launcher=(mpirun --bind-to none --oversubscribe -np "$ranks")
    timeout 60 "${launcher[@]}" $bin "${base[@]}" "${small[@]}" "${more[@]}" "${flags[@]}" -o "$2" \
        </dev/null >"$2.out" 2>&1
}
# Results of a run, without times.
result() {
    cat "$1"/step_00000003/*.safetensors | md5sum
    grep -ohE '"(loss|grad_norm|clip|noise_scale_tokens|text)":("[^"]*"|[^,}]*)' "$1"/log.jsonl | md5sum
}
# attempt NAME KEY CHANGE FUNCTION PLACE...
attempt() {
    local name=$1 key=$2 change=$3 schedule folder verdict=unnoticed why=
    shift 3
    for schedule in eager late random; do
        folder=$work/$name.$key.$change
        rm -rf "$folder"
        STAND_IN_MUTATE=$key:$change STAND_IN_SCHEDULE=$schedule start "$name" "$folder"
        local status=$?
        why=$(grep -ohE 'stand-in: .{0,60}|error: .{0,60}' "$folder.out" | head -n 1)
        if [ $status -ne 0 ]; then verdict=noticed why="$schedule: exit $status ${why//$'\n'/ }"; break; fi
        if [ "$(result "$folder")" != "$(cat "$work/$name.want")" ]; then
            verdict=noticed why="$schedule: other results"
            break
        fi
    done
    rm -rf "$folder" "$folder.out"
    echo "$verdict | $name | $change | $* | $why"
}

for begun in begun muon_begun; do
    runs[$begun]="${runs[${begun%begun}resumed]/--resume auto/--checkpoint-every 1}"
    start $begun "$work/$begun" || { cat "$work/$begun.out"; exit 1; }
done
: >"$out"
for name in "$@"; do
    [[ " ${names[*]} " == *" $name "* ]] || refuse "no run \"$name\"; expected: ${names[*]}"
done
for name in "${@:-${names[@]}}"; do
    STAND_IN_SITES=$work/$name.sites start "$name" "$work/$name" || { cat "$work/$name.out"; exit 1; }
    result "$work/$name" >"$work/$name.want"
    sort -u -k1,1 "$work/$name".sites.* >"$work/$name.all"
    while read -r key _ function place; do
        case $function in
            cudaEventRecord | cudaStreamWaitEvent) changes="skip other_stream" ;;
            cudaEventRecord\(timed\)) changes=skip ;;  # times are not part of the result
            cudaEventSynchronize) changes=skip ;;
            cudaStreamSynchronize) changes="skip other_stream" ;;
            *) changes=other_stream ;;
        esac
        for change in $changes; do
            # Skips other paths once one path detects the change.
            grep -qF "noticed | $change | $function ${place%% <- *} |" <(sed 's/^noticed | [a-z_]* |/noticed |/;
                s/ <- [^|]*|/ |/' <(grep '^noticed' "$out")) && continue
            while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
            attempt "$name" "$key" "$change" "$function" "$place" >>"$out" 2>/dev/null &
        done
    done <"$work/$name.all"
    wait
    echo "$name: $(wc -l <"$work/$name.all") places, $(grep -c "^noticed | $name |" "$out") changes noticed," \
        "$(grep -c "^unnoticed | $name |" "$out") not ($SECONDS s)"
done
sort -o "$out" "$out"
check_changes "$out" $#
