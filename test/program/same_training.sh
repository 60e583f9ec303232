#!/usr/bin/env bash
# same_training.sh cpu|stand-in [--record PYTHON] - dev/gpu_check/same_training.py passes with a correct build of the
# program, and fails and names the run with planted faults: on a CPU in kernels and in attention, in the CUDA build on
# stand-ins in the layout of an epilogue's output
#
# A fault is a changed line in a copy of a source, compiled and linked as make does. PyTorch's numbers are recorded in
# same_training_BUILD.json, so this needs no PyTorch; --record makes that file with a Python that has it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wrong() {
    [ ! -e "$scratch/out" ] || cat "$scratch/out"
    echo "wrong: $1"
    exit 1
}
export OMP_WAIT_POLICY=passive
case ${1:-} in
    cpu) device=cpu program=build/cpu/train_gpt2 from=() layers=2 ;;
    stand-in) device=cuda program=build/stand-in/train_gpt2 from=(-f test/stand_in/Makefile) layers=1 ;;
    *) echo "error: the build is \"${1:-}\"; expected cpu or stand-in" >&2; exit 2 ;;
esac
build/cpu/random_shard --vocabulary 257 "$scratch/shard.bin" 5000 || exit 1
size="custom:l=$layers,h=1,c=64,t=64 2 64" recorded=test/program/same_training_$1.json
numbers=(--expect "$recorded") python=python3
[ "${2:-}" != --record ] || numbers=(--record "$recorded" --device cpu) python=$3

# train PROGRAM [OPTIONS...]: the exit code of same_training.py; its output goes to $scratch/out
train() {
    "$python" dev/gpu_check/same_training.py "$1" -i "$scratch/shard.bin" --work "$scratch/work" --steps 12 --lr 3e-3 \
        --warmup 0 --fp32 "$size" --bf16 "$size" "${@:2}" >"$scratch/out" 2>&1
}
# cuDNN's stand-in computes nothing.
train $program "${numbers[@]}" --attention flash plain || wrong "a right build does not pass"
[ "$(tail -n 1 "$scratch/out")" = PASS ] || wrong "a right build has no PASS"
[ "${2:-}" != --record ] || { cat "$scratch/out"; exit 0; }
cat "$scratch/out"

# fault NAME SOURCE CHANGED-FILE SED RUN...: with this change in SOURCE or one of its headers, the check fails and says
# that these runs differ from PyTorch's
faults=0
fault() {
    local name=$1 source=$2 changed=$3 original=$3 change=$4 copy=$scratch/$((++faults)) compile link run
    shift 4
    echo "---- $name"
    local unit=$source object=build/host/$source.o
    # make compiles the kernels of the CPU build as one file, which includes them all.
    if [[ $source == *.cu ]]; then unit=build/cpu/kernels/united.cu object=build/cpu/kernels/united.cu.o; fi
    compile=$(make -n -W "$source" DEVICE=$device UNITE="kernels llmc test" "$object" | grep -F -- " -c $unit ")
    link=$(make -n "${from[@]}" -W "$object" DEVICE=$device UNITE="kernels llmc test" $program |
        grep -F -- " -o $program ")
    # The compiler searches the folder of the including file first.
    mkdir -p "$copy/$(dirname "$changed")"
    cp "$source" "$copy/"
    [ "$unit" = "$source" ] || sed "s|\"$source\"|\"$copy/$(basename "$source")\"|" "$unit" >"$copy/$(basename "$unit")"
    [ "$changed" != "$source" ] || changed=$(basename "$source")
    sed "$change" "$original" >"$copy/$changed"
    ! cmp -s "$original" "$copy/$changed" || wrong "$name: the change changes nothing in $original"
    compile=${compile//" -c $unit "/" -c $copy/$(basename "$unit") "}
    compile=${compile//" -o $object"/" -o $copy/object.o"}
    link=${link//" $object "/" $copy/object.o "}
    link=${link//" -o $program "/" -o $copy/train_gpt2 "}
    (eval "$compile" && eval "$link") >"$scratch/out" 2>&1 || wrong "$name: it does not compile"
    train "$copy/train_gpt2" "${numbers[@]}" --attention &&
        wrong "$name was not found"
    cat "$scratch/out"
    for run in "$@"; do
        grep -qE -- "^FAIL: $run: step [0-9]+: .*, PyTorch's [0-9.]+; differs by .*, tolerance" "$scratch/out" ||
            wrong "$name: no line says that \"$run\" differs"
    done
}

if [ $device = cpu ]; then
    gelu=kernels/gelu.cu attention=kernels/attention/attention_cpu.cpp
    fault "GELU's slope" $gelu $gelu '/return g + x \* g/s/(1.0f - g)/1.0f/' fp32 bf16
    fault "the cubic coefficient of GELU's slope" $gelu $gelu '/1.0f + 3.0f \* kCubic/s/3.0f/2.9f/' fp32
    fault "a causal mask off by one" $attention $attention '/^IntVector attends/s/>= key/>= key - 1/' fp32 bf16
else
    fault "the leading dimension of what GELU was applied to" kernels/matmul/matmul_cublaslt.cpp \
        kernels/matmul/cublaslt_plan.h '/Product::forward ? out : in)/s/: in)/: in + 8)/' bf16 "bf16, fused epilogues"
    grep -q "^FAIL: bf16, bare" "$scratch/out" && wrong "a product that fuses nothing differs"
fi
echo "all checks passed"
