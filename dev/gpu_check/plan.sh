# shellcheck shell=bash disable=SC2034,SC2154
# plan.sh - for gpu_check.sh: the steps in their order, the parts and limits in seconds, and sizes. Sourced, not run
#
# The most valuable steps first, in case the machine is lost.
declare -A limits=() usual=() parts=(
    [1]="numbers=105 batch=15 training=60 kernel_times=25 peer=75"
    [2]="batch=15 tests_kernels=115 memcheck=100 races=100"
    [3]="batch=15 accumulation=25 bench=30 muon=20 llmc=25 ranks=40"
    [4]="batch=15 training=60 kernel_times=25 levers=330"
    [5]="batch=15 tests_kernels=115 d48_16=60 d48_32=60 d48_accumulated=60")
for step in ${parts[*]}; do usual[${step%=*}]=${step#*=}; done

# choose WORDS...: puts the parts and steps of the command line into `limits`, and the step batch where one needs it
choose() {
    local word name
    for word; do
        if [[ $word =~ ^[1-5]$ ]]; then
            for word in ${parts[$word]}; do limits[${word%=*}]=${word#*=}; done
        elif [[ $word =~ ^([a-z0-9_]+)(=([1-9][0-9]{0,3}))?$ ]] && [ -n "${usual[${word%=*}]-}" ]; then
            name=${BASH_REMATCH[1]}
            limits[$name]=${BASH_REMATCH[3]:-${usual[$name]}}
            [[ $name =~ ^(numbers|tests_kernels|races|bench)$ ]] || : "${limits[batch]:=${usual[batch]}}"
        else
            refuse "\"$word\" is no part or step; expected 1 to 5 or STEP[=SECONDS]; 1 2 3 4 5 --list prints all steps"
        fi
    done
    [ $# -gt 0 ] || refuse "there is no part; expected 1 to 5 or STEP[=SECONDS]; see gpu_check.sh --help"
}

# Sizes: GPT-2 124M on a GPU; sizes that take seconds on a CPU.
bin=build/cuda model=d12 length=1024 batches="64 32 16 8 4 2 1" accumulated=8 steps=200 hot=110 peer_steps=23
largest=d48 block=60 bench=(--seconds 0.1 --dtype bf16) kernels="[kernels]" on_cpu=()
if $rehearse; then
    bin=build/cpu model=custom:l=2,h=2,c=64,t=64 length=8 batches="16 8 4 2 1" accumulated=2 steps=8 hot=12 peer_steps=5
    largest=$model block=6 bench=(--seconds 0.001 gelu) kernels="[gelu]" on_cpu=(--device cpu)
fi
export OMP_WAIT_POLICY=passive  # programs share the cores
shard=$work/text.bin text=build/gpu_check_text
# The step batch autotunes and stores the results here, so that later runs do not.
choices=$work/results/choices.json
train=("$bin/train_gpt2" -i $shard -v 0 --tune-file $choices -t $length --dtype bf16 --shuffle=off -l 6e-4 -u 0)
# The operations and other cases that run only this project's kernels.
ours="[operations]~[matmul],[kernels]~[operations]~[matmul]~[muon]~[large]~[attention_choice]~[tuning]~[ptx]~[races]"

# shellcheck disable=SC2016
all_steps() {
    # Of PyTorch, every attention method, and fused and unfused epilogues, on real text. A rehearsal without PyTorch has
    # its numbers of a tiny model.
    local numbers=(dev/gpu_check/same_training.py $bin/train_gpt2 --work "$memory/numbers")
    if $rehearse; then
        [ -z "$no_torch" ] || numbers+=(--expect test/program/same_training)
        step numbers "" bash -c '"$1" --vocabulary 257 "$2" 5000 && "${@:3}" --tiny -i "$2"' - \
            $bin/random_shard $work/small.bin "${numbers[@]}"
    else
        step numbers "$(first "$no_torch" "$([ -e $text ] || echo "no $text, which gpu_check/pack.sh makes")")" \
            "${numbers[@]}" -i "$text/*.bin"
    fi

    # The tokens that training reads, the largest micro-batch whose memory plan fits, and autotuning.
    step batch "" bash -c '"$1" "$2" "$3" && for b in $4; do
            if "${@:6}" -b $b -x 1 --dry-run; then echo $b >"$5"; exec "${@:6}" -b $b -x 1; fi
        done; exit 1' - $bin/random_shard $shard $((${batches%% *} * length * (steps + 20) + 1)) "$batches" \
        $work/batch "${train[@]}" -e $model
    local batch tokens no_batch='' b
    batch=$(cat $work/batch 2>/dev/null) || { batch=1 no_batch="no batch fits"; }
    tokens=$((batch * length))
    local training=("${train[@]}" -e $model -b "$batch")
    # With -o, so that the log has power, clocks and throttle reasons.
    step training "$no_batch" "${training[@]}" -x $steps --log-gpu -o "$memory/training"
    local no_times times=$work/results/kernel_times
    no_times=$(first "$(lacks "$cupti_library" "CUPTI in the toolkit or in python3's packages")" "$no_batch" \
        "$(lacks "$(command -v "${CXX:-g++}")" "${CXX:-g++}")")
    step kernel_times "$no_times" env CUDA_INJECTION64_PATH=$times.so KERNEL_TIMES=$memory/activities bash -c '
        "${CXX:-g++}" -std=c++20 -O1 -shared -fPIC -I"$2/include" -I"$3/include" -o "$CUDA_INJECTION64_PATH" \
            dev/gpu_check/kernel_times.cpp "$4" -Wl,-rpath,"$(dirname "$4")" && "${@:5}" &&
            { [ ! -e "$KERNEL_TIMES" ] || c++filt <"$KERNEL_TIMES" | dev/gpu_check/kernel_times.py "$1"; }' - \
        $((hot - 10)) "$cupti" "$toolkit" "$cupti_library" "${training[@]}" -x $hot
    # It ends before its limit and prints the median of the steps until then: torch.compile may take most of the time.
    local peer=(env LD_LIBRARY_PATH="$CALLERS_LD_LIBRARY_PATH" PYTHONUNBUFFERED=1
        python3 dev/peers/peer_pytorch.py -e $model -i $shard -b "$batch" -t $length -x $peer_steps --dtype bf16)
    if $rehearse; then peer+=(--no-compile "${on_cpu[@]}"); fi
    step peer "$(first "$no_torch" "$no_batch")" "${peer[@]}" \
        --max-minutes "$(awk "BEGIN { print ($deadline + ${limits[peer]-0} - $SECONDS - 20) / 60 }")"

    local tests=("$bin/tests" -w NoTests --durations yes)
    step tests_kernels "" env TRAIN_GPT2_RECORD=$work/results/confirmed.tsv "${tests[@]}" "$kernels"
    # In kernels of libraries racecheck and synccheck report false errors, because they do not support all of wgmma and
    # bulk copies. initcheck does not see the writes of kernels that it skips, so it gets cases that call no library.
    # One layer makes the same library calls as twelve; with twelve, cuBLASLt under memcheck takes minutes.
    # The commands run concurrently, because such a machine has many cores; each connects through its own ports.
    local together=(bash -fc 'failed=0; for command; do $command & done
        for job in $(jobs -p); do wait $job || failed=1; done; exit $failed' -)
    local check="${sanitizer:-none} --error-exitcode 9 --launch-timeout 60 --tool" only="--kernel-name kns=7kernels"
    local memcheck="$check memcheck --report-api-errors no --port"
    local layer="${train[*]} -e custom:l=1,h=2,c=128,t=64 -t 64 -b 2 -x 2 --tune=off"
    step memcheck "$(first "$no_sanitizer" "$no_batch")" "${together[@]}" \
        "$memcheck 50100 ${tests[*]} [kernels]~[matmul]~[large]" "$memcheck 50200 ${layer/-t $length /}" \
        "$memcheck 50300 ${layer/-t $length --dtype bf16/--dtype fp32}"
    step races "$no_sanitizer" "${together[@]}" "$check racecheck --port 50400 $only ${tests[*]} $ours" \
        "$check synccheck --port 50500 $only ${tests[*]} $ours" \
        "$check initcheck --port 50600 --check-api-memory-access no ${tests[*]} $ours"

    step accumulation "$no_batch" "${training[@]}" -d $((accumulated * tokens)) -x 10
    step bench "" $bin/bench "${bench[@]}"
    step muon "$no_batch" "${training[@]/6e-4/1e-2}" -x 20 --optimizer muon
    # As dev/README.md builds it; without recomputation, samples and HellaSwag. It validates on one batch before the
    # first and after the last step.
    local llmc=${LLMC:-build/peers/llmc/train_gpt2cu} no_llmc no_ranks
    no_llmc=$(first "$no_gpu" "$([ -x "$llmc" ] || echo "no $llmc")" "$no_batch")
    step llmc "$no_llmc" "$llmc" -i $shard -j $shard -e d12 -b "$batch" -t $length -d $tokens -x 20 -l 6e-4 -c 0.1 \
        -r 0 -v 1000 -m 1 -s 0 -h 0
    # NCCL does not let two ranks of one host share a GPU: each rank gets a host name of its own, and they communicate
    # over sockets. The sum of two numbers does not depend on their order, so the model equals that over MPI.
    no_ranks=$(first "$(lacks "$(command -v mpirun)" mpirun)" \
        "$($rehearse || unshare --uts true 2>&1 || echo "unshare --uts is not permitted")")
    step ranks "$no_ranks" bash -c '
        ranks="mpirun --bind-to none --oversubscribe -np 2"
        $ranks "${@:3}" --comm mpi -o "$2/mpi" || exit
        ! "$1" || exit 0
        $ranks unshare --uts bash -c "echo host\$OMPI_COMM_WORLD_RANK >/proc/sys/kernel/hostname && exec \"\$@\"" - \
            "${@:3}" --comm nccl -o "$2/nccl" && cmp "$2"/{mpi,nccl}/step_00000004/model.safetensors && echo PASS' - \
        $rehearse "$memory" "${train[@]}" -e $model -d $((4 * length)) -x 4 -b 2 -z 1 --deterministic

    local other
    other=$(found "build/cudnn/lib/libcudnn.so.9" "${packages[@]/%//lib/libcudnn.so.9}")
    step levers "$no_batch" env OTHER_CUDNN="${other:+${other%/*}:${LD_LIBRARY_PATH-}}" dev/gpu_check/levers.py \
        "$memory/levers" $choices $((deadline + ${limits[levers]-0} - SECONDS - 30)) $block "${training[@]}"
    for b in 16 32; do step d48_$b "$no_batch" "${train[@]}" -e $largest -b $b -x 20; done
    step d48_accumulated "$no_batch" "${train[@]}" -e $largest -b 16 -d $((64 * length)) -x 8
}
