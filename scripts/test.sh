#!/usr/bin/env bash
# test.sh [kernels|host|ranks|run|cuda|all|changed [BASE]] - builds train_gpt2 and runs the tests that need no
# GPU; the last line prints "N passed, N failed"
#
# Without an argument: the tests that find most faults for their time, of every tier; about 10 minutes on two cores.
# `all`: every test, about half an hour. A tier: all tests of that tier:
#
#   kernels   results of the kernels: on the CPU, also with older instruction sets; with the GPU's launch geometry on
#             fibers, in two orders of threads, with a race check of every memory access, and under AddressSanitizer
#             and UndefinedBehaviorSanitizer
#   host      data, weights, options and models: on the CPU; models also with older instruction sets and with the GPU's
#             launch geometry; the rest also under the sanitizers; parsers under libFuzzer
#   ranks     several ranks, as threads, as processes and on two hosts; as threads under ThreadSanitizer
#   run       whole runs of the program, bf16 training compared with fp32, and the quickstart with 6 seconds of training
#   cuda      if nvcc is found: the CUDA build for sm_80 and sm_90a and checks of its machine code; with stand-ins for
#             NVIDIA's libraries, its host code and whole runs, with kernels on fibers
#
# `changed`: tests for files that differ from BASE, by default the commit that HEAD shares with origin/main, or else
# with main; uncommitted and untracked files count. By the compiler's .d files these are: C++ tests that include such a
# file, or directly the header of a .cpp or .cu that is one or includes one; also tests that name a changed script or
# program, and test/program/run_test.cpp. On the CPU, kernels also on fibers; no sanitizers, bf16 training or CUDA.
#
# Before the results: the slowest test cases, and the times of each build and part.
#
# Every test runs unless a tag excludes it; which parts run by default, and why: test/README.md. Programs are built in
# the background while tests run.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
tier=${1:-default}
most_words "$([ "$tier" = changed ] && echo 2 || echo 1)" "$@"
cd "$(dirname "$0")/.." || exit
unite="kernels llmc test" changed= tags=
case $tier in
    default | kernels | host | ranks | run | cuda | all) ;;
    changed)
        base=${2:-$(git rev-parse -q --verify origin/main || echo main)}
        base=$(git merge-base HEAD "$base" 2>&1) || refuse "BASE is \"${2:-main}\"; expected a commit: ${base##*: }"
        changed=$(git diff --name-only "$base"; git ls-files --others --exclude-standard) unite=
        ;;
    *) refuse "unknown tier \"$tier\"; expected kernels, host, ranks, run, cuda, all or changed" ;;
esac
[ "$tier" = changed ] || scripts/install_deps.sh tests || exit 1
# Downloads the merges only if they are missing. Without them the tests of GPT-2's token ids are skipped.
scripts/get_gpt2_tokenizer.sh >/dev/null 2>&1 || echo "note: GPT-2's merges are not available; their tests are skipped"
# is TIER...: whether the tests of one of these tiers run; all_of TIER...: whether all of its tests run, also those that
# are not in the default selection
all_of() { [ $tier = all ] || [[ " $* " == *" $tier "* || $tier = changed && $1 != cuda ]]; }
is() { [ $tier = default ] || all_of "$@"; }

# Waiting threads sleep. With other programs on the same cores, spinning threads make the thousands of small launches of
# these tests, and the steps of the quickstart, ten times slower.
export OMP_WAIT_POLICY=passive
jobs=$(nproc)
logs=$(mktemp -d)
mkdir "$logs/builds" "$logs/results" "$logs/tests"
# timed NAME COMMAND...: appends its times; must not run in a pipeline. TIMEFORMAT applies to this shell alone.
timed() {
    local TIMEFORMAT=$1$'\t%1R\t%1U\t%1S' status=0
    shift
    { time "$@" 2>&3; } 3>&2 2>>"$logs/parts" || status=$?
    return $status
}
builder=
cleanup() {
    [ -z "$builder" ] || kill -- "-$builder" 2>/dev/null
    rm -rf "$logs"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# ---- builds: sequentially in the background, at a lower priority than the tests

# One translation unit per folder, including the tests, for builds that are made once; `changed` compiles every file
# separately: after an edit tasks.cpp takes 3 s of processor time instead of 30, layernorm.cu 5 s instead of 25.
builds=()
# build NAME MAKE-ARGUMENTS...: a build that tests refer to as NEEDS
build() { [[ $tier = changed && $1 != @(cpu|fibers) ]] || builds+=("$(printf '%q ' "$@")"); }
# shellcheck disable=SC2120
build_all() {
    local line name began
    for line in "${builds[@]}"; do
        eval "set -- $line"
        name=$1 began=$SECONDS
        shift
        if timed "build of $name" nice make -j"$jobs" UNITE="$unite" "$@" >"$logs/builds/$name.log" 2>&1; then
            echo "built $name ($((SECONDS - began)) s)"
            touch "$logs/builds/$name.done"
        else
            echo "FAILED: build of $name ($((SECONDS - began)) s)"
            tail -n 40 "$logs/builds/$name.log"
            touch "$logs/builds/$name.failed"
        fi
    done
}
# await NAME: waits for the build; returns whether it succeeded
await() {
    until [ -e "$logs/builds/$1.done" ] || [ -e "$logs/builds/$1.failed" ]; do sleep 0.2; done
    [ -e "$logs/builds/$1.done" ]
}

# ---- tests: three at a time, because most use one core, and those with several processes mostly wait

number=0
# start KIND NEEDS NAME COMMAND...: starts when NEEDS is built and fewer than three tests run
start() {
    local kind=$1 needs=$2
    shift 2
    number=$((number + 1))
    if ! await "$needs"; then
        echo "0 1 0" >"$logs/results/$number"
        echo "FAILED: $1: $needs was not built"
        return
    fi
    while [ "$(jobs -rp | grep -cvx "$builder")" -ge 3 ]; do wait -n; done
    "$kind" "$number" "$@" &
}
# NEEDS NAME COMMAND...: a test that is one command; exit code 77: the test cannot run here
one() {
    if [ $tier != changed ] || { is_built "$1" && names_changed "${@:3}"; }; then start run_one "$@"; fi
}
# NEEDS NAME PROGRAM... TESTS: a Catch2 program; every test case counts as one test
cases() {
    [ $tier = changed ] || { start run_cases "$@"; return; }
    local tag all=${*: -1} tests=
    for tag in $tags; do tests+=${tests:+,}$tag${all//,/,$tag}; done
    [ -n "$tests" ] && is_built "$1" && await "$1" || return
    "${@:3:$#-3}" "$tests" -# --list-tests | grep -q '^0 matching' || start run_cases "${@:1:$#-1}" "$tests" -#
}
is_built() { [[ " ${builds[*]}" = *" $1 "* ]]; }  # BUILD, in this run

# skips NAME OUTPUT: prints each reason of the lines `skipped: "TEST": REASON` once, with their number
skips() {
    sed -nE 's/^skipped: ("[^"]*": )?//p' "$2" | sort | uniq -c | while read -r count reason; do
        echo "skipped: $1: $reason ($count)"
    done
}

run_one() {
    local number=$1 name=$2 began=$SECONDS status=0
    local out=$logs/tests/$number
    shift 2
    timed "$name" "$@" >"$out" 2>&1 || status=$?
    local took=$((SECONDS - began))
    if [ $status -eq 0 ]; then
        echo "1 0 $(grep -c '^skipped: ' "$out")" >"$logs/results/$number"
        {
            skips "$name" "$out"
            echo "ok: $name ($took s)"
            grep -E '^(validation loss|[0-9.]+ ms per step)' "$out" | sed 's/^/    /'
        } | cat
    elif [ $status -eq 77 ]; then
        echo "0 0 1" >"$logs/results/$number"
        echo "skipped: $name: $(tail -n 1 "$out" | sed -E 's/^skipped: ("[^"]*": )?//')"
    else
        echo "0 1 0" >"$logs/results/$number"
        { tail -n 60 "$out"; echo "FAILED: $name ($took s)"; } | cat
    fi
}

run_cases() {
    local number=$1 name=$2 began=$SECONDS status=0 passed failed=0 skipped summary all=0
    local out=$logs/tests/$number
    shift 2
    timed "$name" "$@" --durations yes >"$out" 2>&1 || status=$?
    grep -aE '^[0-9.]+ s: ' "$out" | sed "s|\$| ($name)|" >>"$logs/times"
    skipped=$(grep -ac '^skipped: ' "$out")  # Catch2 2 counts them as passed
    summary=$(grep -aE '^(All tests passed|test cases:)' "$out" | tail -n 1)
    if [[ $summary =~ in\ ([0-9]+)\ test\ case ]]; then
        all=${BASH_REMATCH[1]}
    elif [[ $summary =~ test\ cases:\ *([0-9]+) ]]; then
        all=${BASH_REMATCH[1]}
        [[ $summary =~ ([0-9]+)\ failed ]] && failed=${BASH_REMATCH[1]}
        [ $status -ne 4 ] || [ "$all" -ne "$skipped" ] || status=0  # of Catch2 3: all cases were skipped
    fi
    passed=$((all > 0 ? all - failed - skipped : 0))
    {
        skips "$name" "$out"
        if [ $status -ne 0 ] || [ -z "$summary" ]; then
            grep -avE '^[0-9.]+ s: ' "$out" | tail -n 80
            [ "$failed" -gt 0 ] || failed=1  # a crash, or no matching test
        fi
        [ "$skipped" -eq 0 ] || summary+=", $skipped skipped"
        echo "$name: ${summary:-no summary, exit status $status} ($((SECONDS - began)) s)"
    } >"$out.report"
    echo "$passed $failed $skipped" >"$logs/results/$number"
    cat "$out.report"
}

# ---- changed: what a changed file can break

# touches REGEX: whether the beginning of a changed path matches; true for all tiers but `changed`
touches() { [ $tier != changed ] || grep -qE "^($1)" <<<"$changed"; }
# users FILES REGEX: the sources in the folders of REGEX whose objects depend on one of the files
users() {
    find build/{host,cpu,fibers} -name '*.d' 2>/dev/null | grep -E "^build/[a-z]+/($2)/" | xargs -r awk -v files="$1" '
        BEGIN { split(files, list); for (i in list) is[list[i]] }
        { for (i = 1; i <= NF; ++i) if ($i in is) { print FILENAME; nextfile } }' | sed -E 's|^build/[a-z]*/||; s|.d$||'
}
# The names by which tests call the changed scripts and programs.
names() {
    sed -nE 's,^dev/(.*/)?([a-z_]+)\.cpp$,"\2",p; s,^(.*/)?([a-z_]+)\.py$,\2,p
        s,^(.*/)?([^/]+\.(sh|sbatch|mk|json)|Makefile)$,\2,p' <<<"$changed"
}
# names_changed COMMAND...: its script names a changed file; every script names itself
names_changed() { grep -qswF -f <(names) "$(printf '%s\n' "$@" | grep -m 1 -E '\.(sh|py)$')"; }
# The tags of the test cases: of operations and of folders of kernels these are their names, of others their files. The
# header of NAME.cpp or NAME_suffix.cpp is NAME.h.
tags_of_changed() {
    local file files
    files=$( (echo "$changed" && users "$changed" "kernels|llmc|test/support") |
        sed -nE 's/\.(cpp|cu)$//; T; h; s/$/.h/p; g; s/_[a-z]+$/.h/p' | sort -u | while read -r file; do
            grep -rlF "#include \"$file\"" test || echo "$file"
        done; echo "$changed")
    {
        echo "$files"
        users "$files" test
        grep -lwF -f <(names) test/program/*_test.cpp
        ! touches '(kernels|llmc)/|train_gpt2\.cu' || echo test/program/run_test.cpp
    } | while read -r file; do
        case $file in
            test/operations/*) sed -nE 's/.*\.tag = "(\[[a-z_]+\]).*/\1/p' "$file" ;;
            *_test.c*) file=${file##*/} && echo "[#${file%.*}]" ;;
            kernels/*/*) file=${file#*/} && echo "[${file%%/*}]" ;;
        esac
    done | sort -u
}

# ---- builds and tests of each tier

nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null)
[ -n "$nvcc" ] && has_nvcc=yes || has_nvcc=
cuda=build/cuda stand_in=build/stand-in asan=build/fibers-address-undefined
# The benchmarks and other tools of dev/ take 40 s of processor time: only some tests of each tier start them.
tools=()
[ $tier = default ] || { touches '(dev|scripts|test/program)/|Makefile' && tools=(tools); }
build cpu DEVICE=cpu all "${tools[@]}" tests
is kernels || all_of host && touches '(test/)?(kernels|operations)/' &&
    build fibers DEVICE=fibers build/fibers/tests ${has_nvcc:+build/fibers/train_gpt2}
if [ -n "$has_nvcc" ] && all_of cuda; then
    all_of kernels host || build fibers DEVICE=fibers build/fibers/train_gpt2
    build cuda -f test/stand_in/Makefile  # the CUDA build, and its programs on the stand-ins
elif [ -n "$has_nvcc" ] && is cuda; then
    # A kernel for 90a takes twice the time, because of its PTX; cuDNN's frontend takes longer than all kernels for 80.
    build cuda DEVICE=cuda CUDA_ARCHS=80 CUDNN_FRONTEND= $cuda/train_gpt2
fi
all_of kernels && build fibers-thread DEVICE=fibers SANITIZE=thread TESTS=test/kernels build/fibers-thread/tests
all_of ranks && build cpu-thread DEVICE=cpu SANITIZE=thread build/cpu-thread/rank_tests
# Only the folders that the tests below need: no whole programs, models, or ranks as processes.
checked="test/kernels $(echo test/llmc/{base,comm,data,run,text,weights})"
all_of kernels host && build sanitizers DEVICE=fibers SANITIZE=address,undefined TESTS="$checked" $asan/tests
all_of host && build fuzz -f test/fuzz/Makefile  # one file: leaves a core for the last tests
set -m  # its own process group, so that one signal ends all of it
build_all &
builder=$!
set +m
if [ $tier = changed ] && await cpu; then
    tags=$(tags_of_changed)
    echo "selected test cases: ${tags:-none}" | paste -sd ' '
fi

# Three programs at a time, because ranks mostly wait for each other.
other_ranks="[mpi]~[run],[ranks]~[mpi],[local]~[mpi]"
resumed="[mpi][run][resume],[mpi][run][onebit],[mpi][run][batch_schedule],[mpi][run][timed]"
ended="[mpi][run]~[resume]~[onebit]~[batch_schedule]~[timed]"
host="~[.]~[kernels]~[ranks]~[mpi]~[local]~[run]"
# oneDNN reads the variable once, so each instruction set runs in its own process.
caps="AVX2 AVX512_CORE AVX512_CORE_BF16"

# The longest tests first: they mostly wait, so tests that compute run concurrently.
is ranks && cases cpu "ranks" build/cpu/tests "$other_ranks"
is ranks && cases cpu "whole runs of several ranks: resumed, 1-bit Adam, schedules" build/cpu/tests "$resumed"
is ranks && cases cpu "whole runs of several ranks: signals and errors" build/cpu/tests "$ended"
is run && one cpu "quickstart" env QUICKSTART_MINUTES=0.1 DEVICE=cpu scripts/quickstart.sh
is run && cases cpu "whole runs" build/cpu/tests "[run]~[ranks]~[mpi]"
is kernels && cases cpu "kernels on the CPU" build/cpu/tests "[kernels]"
is host && cases cpu "host code" build/cpu/tests "$host"
is ranks && one cpu "ranks on two hosts" test/program/two_hosts.sh build/cpu/train_gpt2
is run && one cpu "a full disk" test/program/small_disk.sh build/cpu/train_gpt2
is host && one cpu "no compiler flag names a system folder; make selects the machine's GPUs" test/program/make_flags.sh
all_of host && one cpu "every program prints --help and refuses unknown arguments" test/program/help.sh
is host && one cpu "skipped tests are counted, with their reasons" test/program/skips.sh
is host && one cpu "dev/run_log.py reads logs correctly" python3 test/dev/run_log_test.py
is host && one cpu "dev/data/prepare: documents of each data set" python3 test/dev/prepare_sets_test.py
is host && one cpu "every filter of gpu_check.sh matches test cases" test/program/gpu_filters.sh build/cpu/tests
all_of host && one cpu "gpu_check.sh: arguments, chosen steps, rehearsed steps" test/program/gpu_check.sh
is host && one cpu "gpu_check: forced algorithms, medians, differences" python3 test/dev/levers_test.py
all_of host && one cpu "install_deps.sh reports libraries that are too old" test/program/install_deps.sh
all_of host && one cpu "clang-tidy reports no warnings in llmc/base" sh -c \
    'command -v clang-tidy >/dev/null || { echo "clang-tidy is missing"; exit 77; }; make -s tidy DEVICE=cpu'
is host && one cpu "dev/tokenize: a BPE has Hugging Face's merges and ids" python3 test/dev/tokenize_test.py
all_of host && one cpu "dev/plot: curves of runs, pictures" python3 test/dev/plot_test.py
all_of host && one cpu "dev/export_runs.py: every number of a log" python3 test/dev/export_runs_test.py
all_of host && one cpu "dev/data/prepare: tokens of the shards, killed runs, and interrupted downloads" \
    python3 test/dev/prepare_test.py
all_of host && one cpu "the quickstart takes the predicted time; README's commands to start with work" \
    test/program/quickstart.sh
for most in $caps; do
    cap=(env "ONEDNN_MAX_CPU_ISA=$most" build/cpu/tests)
    all_of kernels && cases cpu "matrix products with instructions up to $most" "${cap[@]}" "[matmul]"
    all_of host && cases cpu "models with instructions up to $most" "${cap[@]}" "[model]"
done
all_of run && one cpu "configs: plans, 20 steps of each, finetuning" test/program/configs.sh
all_of run && one cpu "sweeps: combinations, branches, interrupted and failed runs" test/program/sweep.sh

# Without matrix products: they call a library, which is the same in these builds. One thread runs the blocks, because
# several of these programs run at a time.
export OMP_NUM_THREADS=1
is kernels && cases fibers "kernels with the GPU's launch geometry, on fibers" build/fibers/tests \
    "[kernels]~[matmul]"
all_of host && cases fibers "models with the GPU's launch geometry, on fibers" build/fibers/tests \
    "[model]"
all_of kernels && cases fibers "kernels with the GPU's launch geometry, on fibers, mixed threads" \
    env SIMT_ORDER=mix build/fibers/tests "[kernels]~[matmul]~[one_order]~[large]"
all_of kernels && cases fibers-thread "races between kernel threads" build/fibers-thread/tests \
    "[kernels]~[matmul]~[large]~[races]"
unset OMP_NUM_THREADS

if is cuda && [ -n "$has_nvcc" ]; then
    one cuda "the CUDA build compiles and links" test -x $cuda/train_gpt2
    one cuda "a CUDA build reports a missing GPU" test/program/no_gpu.sh $cuda/train_gpt2
    one cuda "no kernel spills registers" dev/bench/kernel_resources.sh $cuda
elif is cuda; then
    one cpu "the CUDA build" sh -c 'echo "nvcc is missing"; exit 77'
fi
if all_of cuda && [ -n "$has_nvcc" ]; then
    one cuda "every filter of gpu_check.sh matches cases of a CUDA build" test/program/gpu_filters.sh $stand_in/tests
    cases cuda "the CUDA build on stand-ins: whole runs" $stand_in/tests "[stand_in]"
    cases cuda "the CUDA build on stand-ins: products, memory, streams, tuning" $stand_in/tests \
        "[kernels]~[operations]~[large]~[host_time],[operations][matmul]~[large]"
    # shellcheck disable=SC2016
    one cuda "the CUDA build on stand-ins: training matches PyTorch" sh -c '
        build/cpu/random_shard --vocabulary 257 "$1/shard.bin" 5000 && dev/gpu_check/same_training.py \
            build/stand-in/train_gpt2 -i "$1/shard.bin" --work "$1/same_training" --tiny \
            --expect test/program/same_training' - "$logs"
fi

all_of ranks && cases cpu-thread "races between ranks as threads" build/cpu-thread/rank_tests "~[.]~[mpi]~[large]"
all_of kernels && cases sanitizers "AddressSanitizer, UndefinedBehaviorSanitizer: kernels" $asan/tests \
    "[kernels]~[matmul]~[large]"
# Excluded: tests that call oneDNN, which is not instrumented, and tests of the reference implementation.
all_of host && cases sanitizers "AddressSanitizer, UndefinedBehaviorSanitizer: host code" $asan/tests \
    "$host~[model]~[decoder]~[generation]~[reference]~[statistics]~[large],[communicator]~[mpi]~[large]"
all_of host && one fuzz "fuzz tests of the parsers" test/fuzz/run.sh 2

wait

# ---- times and results

sort -rn "$logs/times" 2>/dev/null | head -n 10
awk -F '\t' '
    { wall[$1] += $2; used[$1] += $3 + $4; all += $3 + $4 }
    END {
        print "  wall s  processor s  share"
        fflush()
        for (name in used) {
            share = 100 * used[name] / (all ? all : 1)
            printf "%8.1f %12.1f %5.1f %%  %s\n", wall[name], used[name], share, name | "sort -k 2 -rn"
        }
    }' "$logs/parts"
echo "total time: $SECONDS s"
read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' \
    < <(cat "$logs"/results/* 2>/dev/null))
[ "$skipped" -gt 0 ] && skipped=", $skipped skipped" || skipped=
echo "$passed passed, $failed failed$skipped"
[ "$failed" -eq 0 ]
