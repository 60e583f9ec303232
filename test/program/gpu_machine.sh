#!/usr/bin/env bash
# gpu_machine.sh - dev/gpu_check.sh on a bare machine with a GPU, played by programs that only record their arguments:
# without xz, ssh, MPI and nvcc, with libcuda in the caller's LD_LIBRARY_PATH and python3's packages in two folders
#
# shellcheck disable=SC2016,SC2181
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=test/support/check.sh
. test/support/check.sh

# ---- the machine: a PATH with few tools, python3's packages, the sources, and packed programs

tree=$scratch/tree tools=$scratch/tools calls=$scratch/calls
mkdir -p "$tools" "$tree"/{build/packed,test/program} "$scratch"/{one,other}/nvidia "$scratch/other/nvidia/cu13/lib" \
    "$scratch/torch" "$scratch"/{bin,toolkit/{bin,compute-sanitizer}}
cp -r dev scripts "$tree/"
cp test/program/same_training_*.json "$tree/test/program/"
for tool in bash sh env cat cut cp head tail sort uniq sed awk grep ls mkdir mktemp mv rm tr wc date dirname basename \
    realpath readlink timeout tar gzip python3 uname nproc free find xargs cksum tee chmod id sleep; do
    ln -s "$(type -P $tool)" "$tools/$tool"
done
# tool FOLDER NAME: a program of the lines from standard input, which records its name, arguments and libraries
tool() {
    { printf '#!/bin/bash\necho "$(basename "$0") $* LIBRARIES=${LD_LIBRARY_PATH-}" >>%q\n' "$calls"; cat; } >"$1/$2"
    chmod +x "$1/$2"
}
tool "$tools" nvidia-smi <<<"case \$* in
    -L) echo GPU 0: none ;;
    *\ -l\ *) echo \$\$ >$scratch/client; exec sleep 60 ;;
esac"
tool "$tools" df <<<'echo Avail; cat "$(dirname "$0")/../room"'
echo 5000000 >"$scratch/room"
tool "$tools" ldd <<<'grep -v "^$" "$(dirname "$0")/../linked"'
tool "$tools" make <<<:
tool "$scratch/toolkit/bin" nvcc <<<:
tool "$scratch/toolkit/compute-sanitizer" compute-sanitizer <<<:
echo "with open('$calls', 'a') as calls: print('import torch', file=calls)" >"$scratch/torch/torch.py"
touch "$scratch/torch/numpy.py"
cat >"$tree/dev/peers/peer_pytorch.py" <<PYTHON
import os
with open('$calls', 'a') as calls:
    print('peer_pytorch.py', 'LIBRARIES=' + os.environ.get('LD_LIBRARY_PATH', ''), file=calls)
print('torch of this machine')
for step in range(40):
    print('step', step + 1, 'loss 5.0 norm 1.0')
PYTHON
printf '#!/bin/sh\necho of these sources\n' >"$tree/dev/gpu_check/sources.sh"

# Packed programs. train_gpt2 starts if it finds the library in the second folder of packages; its numbers are those of
# $scratch/norm with autotuning, and 1 without; --dry-run fails if there is a file $scratch/full; a run stops the check
# if there is $scratch/stops. No test matches the filter in $scratch/unmatched; a recording is the file
# $scratch/recorded.
packed=$scratch/packed
mkdir -p "$packed"/{scripts,dev/gpu_check,build/cuda,build/peers/llmc,build/deps/openmpi/bin}
cp scripts/help.sh "$packed/scripts/"
cp "$tree"/dev/gpu_check/{pack,text,sources}.sh "$packed/dev/gpu_check/"
tool "$packed/scripts" bundle_deps.sh <<<:
tool "$packed/scripts" get_gpt2_tokenizer.sh <<<:
echo "export LD_LIBRARY_PATH=/packed\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} PATH=\$deps/openmpi/bin:\$PATH" |
    cat <(echo 'deps=$(dirname "$(realpath "${BASH_SOURCE[0]}")")') - >"$packed/build/deps/env.sh"
echo 1.0000 >"$scratch/norm"
tool "$packed/build/deps/openmpi/bin" mpirun <<<"echo rsh_agent \$OMPI_MCA_plm_rsh_agent >>$calls"
for name in bench bench_matmul random_shard; do tool "$packed/build/cuda" $name <<<:; done
tool "$packed/build/peers/llmc" train_gpt2cu <<<'echo "total average iteration time: 101 ms"'
tool "$packed/build/cuda" tests <<<"[ ! -v TRAIN_GPT2_RECORD ] || exec cp $scratch/recorded \"\$TRAIN_GPT2_RECORD\"
[ \"\$1\" != --list-tests ] || grep -qxF -- \"\$2\" $scratch/unmatched || echo 7 matching test cases"
touch "$scratch"/{unmatched,recorded}
tool "$packed/build/cuda" train_gpt2 <<END
[[ :\$LD_LIBRARY_PATH: == *:$scratch/other/nvidia/cu13/lib:* ]] || { echo "libcudnn.so.9 is missing" >&2; exit 127; }
case "\$*" in
    --version) echo "train_gpt2 of a test"; exit ;;
    *--dry-run*) [ ! -e $scratch/full ]; exit ;;
esac
if [ -e $scratch/stops ]; then
    echo "before the signal"
    read -r _ _ _ check _ </proc/\$PPID/stat  # the parent of timeout
    kill -TERM "\$check"
    exec sleep 60
fi
norm=\$(cat $scratch/norm) steps=1 out=
[[ \$* != *--tune=off* ]] || norm=1.0000
while [ \$# -gt 0 ]; do
    case \$1 in -x) steps=\$2 ;; -o) out=\$2 ;; esac
    shift
done
[ -z "\$out" ] || { mkdir -p "\$out/step_1"; log=\$out/log.jsonl; echo >"\$out/step_1/config.json"; }
start='{"event": "start", "version": {"device": "cuda"}, "attention": "plain", "matmul": "a", "choices": {"taken": {}}}'
[ -z "\$out" ] || echo "\$start" >"\$log"
for ((i = 1; i <= steps; ++i)); do
    echo "step \$i/\$steps |  5.0000 6.00e-04 \$norm   101.2 1.00k   0:01"
    [ -z "\$out" ] || echo "{\"event\": \"step\", \"step\": \$i, \"loss\": 5.0, \"grad_norm\": \$norm}" >>"\$log"
done
END

# check EXIT-CODE WORDS [VARIABLE=VALUE...]: $scratch/out has what it prints, $calls what it calls
check() {
    local status
    : >"$calls"
    # shellcheck disable=SC2086
    (cd "$tree" && env -i HOME=/nonexistent PATH="$tools" CUDA_HOME="$scratch/toolkit" LD_LIBRARY_PATH=/driver \
        PYTHONPATH="$scratch/one:$scratch/other:$scratch/torch" "${@:3}" timeout 120 bash dev/gpu_check.sh $2) \
        >"$scratch/out" 2>&1
    status=$?
    [ $status -eq "$1" ] || { cat "$scratch/out"; fail "$2 ${*:3} ends with $status, not $1"; }
}
prints() { grep -qE -- "$1" "$scratch/out" || fail "$2: no line matches \"$1\""; }
calls() { grep -qE -- "$1" "$calls" || fail "$2: no call matches \"$1\""; }
kept() { says "$1" "$(tar -tzf "$tree/build/gpu_check/$1.tar.gz")" "$2"; }

# ---- programs that cannot be used, and a build for this machine's GPU

check 2 1
prints 'error: build/cuda has no packed programs; expected .*BUILD=1' "no programs"
mkdir "$tree/build/cuda"
echo "of other sources" >"$tree/build/cuda/gpu_check.sources"
check 2 1
prints 'error: .* built from other sources \(of other sources, not of these sources\)' "programs of other sources"
# pack.sh: without text no archive; its programs do not ask for a minor version of CUDA.
tool "$scratch/bin" bible <<<'echo "Genesis 1:1: In the beginning"'
pack() { PATH=$scratch/bin:$tools:$PATH "$packed/dev/gpu_check/pack.sh" "$tree/build/packed/gpu_check.tar.xz"; }
ends 1 "error: the text " pack
calls '^make .* BUILTINS= ' "pack.sh"
tool "$packed/build/cuda" tokenize <<<'while [ "$1" != -o ]; do shift; done; echo tokens >"$2/text.bin"'
ends 0 "KiB, of sources of these sources" pack
echo "	libcudnn.so.9 => not found" >"$scratch/linked"
check 2 1 PYTHONPATH="$scratch/one"
prints 'unpack\*\* pass' "an archive without xz"
prints 'error: .*libcudnn.so.9 => not found.*BUILD=1' "programs that do not start"
grep -q '^make .*DEVICE' "$calls" && fail "programs that do not start are built again without being asked"
check 0 machine PYTHONPATH="$scratch/one" BUILD=1
calls '^make .*DEVICE=cuda' "BUILD=1"
grep -q '^make .*CUDA_ARCHS' "$calls" && fail "a build for this machine is for other GPUs"

# ---- part 1

echo "	libnvrtc.so.13 => $scratch/other/nvidia/cu13/lib/libnvrtc.so.13 (0x00007f0000000000)" >"$scratch/linked"
echo stale >"$tree/build/gpu_check_choices.json"
check 0 1
prints 'train_gpt2 of a test' "libraries in the second folder of packages"
prints 'numbers\*\* pass.*PASS' "numbers"
prints '^not run: kernel_times_build \(no .*, tests_kernels, .*, tests_runs$' "what was not run"
[ "$(grep -c '^peer_pytorch.py LIBRARIES=/driver$' "$calls")" -eq 3 ] ||
    fail "PyTorch does not get the caller's libraries: $(grep ^peer "$calls" | xargs)"
calls '^import torch' "PyTorch's files are read"
calls '^train_gpt2 .*-o /dev/shm/.*/fp32 ' "checkpoints of numbers in memory"
calls '^train_gpt2 .*-o /dev/shm/.*/training ' "the checkpoint of training in memory"
[ ! -e "$(grep -oE -m 1 '/dev/shm/gpu_check[^/ ]*' "$calls")" ] || fail "a folder is left in /dev/shm"
timeout 10 tail --pid="$(cat "$scratch/client")" -f /dev/null || fail "nvidia-smi still runs"
prints 'same_algorithms\*\* pass' "autotuned algorithms"
[ ! -e "$tree/build/gpu_check_choices.json" ] || fail "training does not autotune"
for file in training/log.jsonl numbers/fp32/log.jsonl numbers/fp32.log numbers/pytorch_bf16.log gpu.csv; do
    kept part1/results results/$file
done
tar -tzf "$tree/build/gpu_check/part1/results.tar.gz" | grep step_ && fail "a checkpoint is kept"
kept part1/logs logs/training.log
for line in '\*\*training\*\* started' '\| training \| pass \| [0-9]+ s \| median 101.2 ms' \
    '  results/training/log.jsonl: [0-9]+ KiB' 'part1/results.tar.gz: [0-9]+ KiB' \
    ' 9 steps, 0 failed, .* limits without a build: 300 s'; do prints "$line" "the summary"; done

echo 1.0600 >"$scratch/norm"
echo kept >"$tree/build/gpu_check_choices.json"
check 1 "numbers same_algorithms"
prints 'numbers\*\* \*\*fail\*\*.*FAIL: bf16' "wrong numbers"
prints 'same_algorithms\*\* \*\*fail\*\*.*FAIL: .*step 1: gradient norm 1.06' "wrong autotuned algorithms"
kept steps/results results/numbers/pytorch_fp32.log
kept steps/results results/gpu_check_choices.json
grep -q '^      FAIL: bf16' "$tree/build/gpu_check/steps/summary.md" || fail "the summary lacks what is wrong"
echo 1.0000 >"$scratch/norm"

touch "$scratch/full"
check 1 "training bench"
prints 'batch\*\* \*\*fail\*\*' "no batch that fits"
prints 'training\*\* skipped: no batch fits' "no batch that fits"
prints 'bench\*\* pass' "no batch that fits"
rm "$scratch/full"

touch "$scratch/stops"
check 143 training
prints 'training\*\* stopped by signal 15' "a stopped check"
says "a stopped check" "$(tar -xzOf "$tree/build/gpu_check/steps/logs.tar.gz" logs/training.log)" "before the signal"
rm "$scratch/stops"

echo 4000000 >"$scratch/room"
check 1 numbers PYTHONPATH="$scratch/one:$scratch/other"
calls "^train_gpt2 .*-o $tree/build/gpu_check_work/.*/fp32 " "checkpoints without room in memory"
calls '^train_gpt2 .*-e .*/numbers/initial_fp32/step_00000001 .* -x 12 ' "recorded numbers without PyTorch"
prints 'numbers\*\* \*\*fail\*\*' "recorded numbers of other tokens"

# ---- parts 2 and 3; MPI comes from the archive

rm -rf "$tree"/build/{cuda,deps,gpu_check_text}
check 0 2
calls '^compute-sanitizer .*memcheck .*build/cuda/tests \[kernels\].* --durations' "a sanitizer outside bin"
calls '^compute-sanitizer .*racecheck .*build/cuda/tests \[operations\]' "racecheck"
grep -qE '^(train_gpt2 .*-b 64|peer)' "$calls" && fail "part 2 measures speed"
head -c $((17 << 20)) /dev/urandom >"$scratch/recorded"
check 1 tests_kernels
prints 'too large' "an archive that cannot be fetched"
echo "[operations]~[matmul]" >"$scratch/unmatched"
check 1 racecheck
prints 'error: no test case matches "\[operations\]~\[matmul\]"' "a filter that no test matches"
check 0 "ranks_mpi tuned_3 bench_matmul llmc"
calls '^mpirun ' "the archive's MPI"
calls '^rsh_agent false' "mpirun without ssh"
calls '^bench_matmul .*--rows 65536 .*--tune-file .*choices.json' "algorithms of training in bench_matmul"
calls '^train_gpt2cu .*-b 64 -t 1024 -d 65536 ' "llm.c"
prints 'llmc\*\* pass, .*: total average iteration time: 101 ms' "llm.c"
check 0 ranks_mpi OMPI_MCA_plm_rsh_agent=mine
calls '^rsh_agent mine' "the caller's agent"
[ $failed = 0 ] && echo "all checks passed"
exit $failed
