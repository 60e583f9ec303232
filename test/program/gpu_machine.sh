#!/usr/bin/env bash
# gpu_machine.sh - dev/gpu_check.sh on a bare machine with a GPU, played by programs that only record their arguments:
# without xz, MPI and nvcc, with libcuda in the caller's LD_LIBRARY_PATH and python3's packages in two folders
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
mkdir -p "$tools" "$tree"/{build,test/program} "$scratch"/{one,other}/nvidia "$scratch/other/nvidia/cu13/lib" \
    "$scratch/torch"
cp -r dev scripts "$tree/"
cp test/program/same_training_*.json "$tree/test/program/"
for tool in bash sh env cat cut head tail sort uniq sed awk grep ls mkdir mktemp mv rm cp tr wc date dirname basename \
    realpath readlink timeout tar gzip python3 uname nproc free find xargs cksum tee chmod id du diff cmp true false; do
    ln -s "$(command -v $tool)" "$tools/$tool"
done
# tool FOLDER NAME: a program of the lines from standard input, which records its name, arguments and libraries
tool() {
    { printf '#!/bin/bash\necho "$(basename "$0") $* LIBRARIES=${LD_LIBRARY_PATH-}" >>%q\n' "$calls"; cat; } >"$1/$2"
    chmod +x "$1/$2"
}
tool "$tools" nvidia-smi <<<'[ "$1" != -L ] || echo "GPU 0: none"'
tool "$tools" sleep <<<:
tool "$tools" df <<<'echo Avail; cat "$(dirname "$0")/../room"'
echo 99000000 >"$scratch/room"
tool "$tools" ldd <<<'grep -v "^$" "$(dirname "$0")/../linked"'
echo "	libnvrtc.so.13 => $scratch/other/nvidia/cu13/lib/libnvrtc.so.13 (0x00007f0000000000)" >"$scratch/linked"
touch "$scratch/torch/torch.py" "$scratch/torch/numpy.py"
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
# $scratch/norm with autotuning, and 1 without; --dry-run fails if there is a file $scratch/full.
packed=$scratch/packed
mkdir -p "$packed"/build/{cuda,gpu_check_text,deps/openmpi/bin,packed} "$tree/build/packed"
echo "of these sources" >"$packed/build/cuda/gpu_check.sources"
echo tokens >"$packed/build/gpu_check_text/text.bin"
echo "export LD_LIBRARY_PATH=/packed\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} PATH=\$PWD/build/deps/openmpi/bin:\$PATH" \
    >"$packed/build/deps/env.sh"
tool "$packed/build/deps/openmpi/bin" mpirun <<<:
for name in tests bench bench_matmul random_shard; do tool "$packed/build/cuda" $name <<<:; done
tool "$packed/build/cuda" train_gpt2 <<END
[[ :\$LD_LIBRARY_PATH: == *:$scratch/other/nvidia/cu13/lib:* ]] || { echo "libcudnn.so.9 is missing" >&2; exit 127; }
case "\$*" in
    --version) echo "train_gpt2 of a test"; exit ;;
    *--dry-run*) [ ! -e $scratch/full ]; exit ;;
esac
norm=\$(cat $scratch/norm) steps=1 out=
[[ \$* != *--tune=off* ]] || norm=1.0000
while [ \$# -gt 0 ]; do
    case \$1 in -x) steps=\$2 ;; -o) out=\$2 ;; esac
    shift
done
[ -z "\$out" ] || { mkdir -p "\$out/step_00000001"; log=\$out/log.jsonl; }
start='{"event": "start", "version": {"device": "cuda"}, "attention": "plain", "matmul": "a", "choices": {"taken": {}}}'
[ -z "\$out" ] || echo "\$start" >"\$log"
for ((i = 1; i <= steps; ++i)); do
    echo "step \$i/\$steps |  5.0000 6.00e-04 \$norm   101.2 1.00k   0:01"
    [ -z "\$out" ] || echo "{\"event\": \"step\", \"step\": \$i, \"loss\": 5.0, \"grad_norm\": \$norm}" >>"\$log"
done
END
tar -C "$packed" -cJf "$tree/build/packed/gpu_check.tar.xz" build/cuda build/gpu_check_text build/deps
echo 1.0000 >"$scratch/norm"

# check PART [VARIABLE=VALUE...]: its exit code; $scratch/out has what it prints, $calls what it calls
check() {
    local part=$1
    shift
    : >"$calls"
    (cd "$tree" && env -i HOME="$scratch" PATH="$tools" CUDA_HOME="$scratch/none" LD_LIBRARY_PATH=/driver \
        PYTHONPATH="$scratch/one:$scratch/other:$scratch/torch" "$@" timeout 120 bash dev/gpu_check.sh "$part") \
        >"$scratch/out" 2>&1
}
prints() { grep -qE -- "$1" "$scratch/out" || fail "$2: no line matches \"$1\""; }
calls() { grep -qE -- "$1" "$calls" || fail "$2: no call matches \"$1\""; }

# ---- programs that cannot be used

echo "	libcudnn.so.9 => not found" >"$scratch/linked"
check 1 PYTHONPATH="$scratch/one"
[ $? -eq 2 ] || fail "programs that do not start do not end the check with 2"
prints 'unpack\*\* pass' "an archive without xz"
prints 'error: .*libcudnn.so.9 => not found.*BUILD=1' "programs that do not start"
grep -q "build\*\* started" "$scratch/out" && fail "programs that do not start are built again without being asked"

# ---- part 1

echo "	libnvrtc.so.13 => $scratch/other/nvidia/cu13/lib/libnvrtc.so.13 (0x00007f0000000000)" >"$scratch/linked"
check 1
[ $? -eq 0 ] || { cat "$scratch/out"; fail "part 1 of programs that all pass fails"; }
prints 'train_gpt2 of a test' "libraries in the second folder of packages"
prints 'numbers\*\* pass.*PASS' "numbers"
[ "$(grep -c '^peer_pytorch.py LIBRARIES=/driver$' "$calls")" -eq 3 ] ||
    fail "PyTorch does not get the caller's libraries: $(grep ^peer "$calls" | xargs)"
calls '^train_gpt2 .*-o /dev/shm/.*/fp32 ' "checkpoints of numbers in memory"
[ ! -e "$(grep -oE -m 1 '/dev/shm/gpu_check[^/ ]*' "$calls")" ] || fail "a folder is left in /dev/shm"
[ "$(grep -E '^(sleep|nvidia-smi .*used)' "$calls" | head -n 2 | sed 's/ LIB.*//' | xargs)" = \
    "sleep 30 nvidia-smi --query-gpu=memory.used --format=csv,noheader" ] || fail "memory is sampled during autotuning"
calls '^bench_matmul .*--rows 65536 .*--tune-file .*/choices.json' "algorithms of training in bench_matmul"
prints 'same_algorithms\*\* pass' "autotuned algorithms"
[ "$(grep -E '^\| [a-z_]+ \|' "$scratch/out" | tail -n 1 | cut -d ' ' -f 2)" = packages ] ||
    fail "the last step does not list the packages"

echo 1.0600 >"$scratch/norm"
check 1
prints 'same_algorithms\*\* \*\*fail\*\*.*FAIL: .*step 1: gradient norm 1.06' "wrong autotuned algorithms"
echo 1.0000 >"$scratch/norm"

touch "$scratch/full"
check 1
prints 'batch\*\* \*\*fail\*\*' "no batch that fits"
grep -qE '\*\*(training|accumulation|bench)\*\*' "$scratch/out" && fail "speed is measured although no batch fits"
prints 'packages\*\*' "no batch that fits"
rm "$scratch/full"

echo 64000 >"$scratch/room"
check 1 PYTHONPATH="$scratch/one:$scratch/other"
calls "^train_gpt2 .*-o $tree/build/gpu_check_work/.*/fp32 " "checkpoints without room in memory"
calls '^train_gpt2 .*-e .*/numbers/initial_fp32/step_00000001 .* -x 12 ' "recorded numbers without PyTorch"
prints 'numbers\*\* \*\*fail\*\*' "recorded numbers of other tokens"

# ---- MPI in the archive, unpacked by part 2

rm -rf "$tree"/build/{cuda,deps,gpu_check_text}
check 2
calls '^mpirun ' "the archive's MPI"
[ $failed = 0 ] && echo "all checks passed"
exit $failed
