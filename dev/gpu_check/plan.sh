# shellcheck shell=bash disable=SC2034,SC2154
# plan.sh - for gpu_check.sh: the steps in their order, the parts and limits in seconds, and sizes. Sourced, not run
#
# The most valuable steps first, in case the machine is lost. Limits that are the same in a row of steps that run
# concurrently count once.
declare -A parts=(
    [1]="machine=10 numbers=105 data=5 batch=10 training=60 kernel_times_build=10 kernel_times=15 peer=75"
    [2]="data=5 tests_kernels=115 ranks_nccl=20 memcheck=100 memcheck_layer=100 memcheck_layer_fp32=100 racecheck=100"
    [3]="data=5 batch=10 accumulation=25 bench=30 muon=20 llmc=25 synccheck=60 initcheck=60
        ranks_mpi=15 ranks_nccl_2=20 same_losses=2"
    [4]="data=5 batch=10 training=60 kernel_times_build=10 kernel_times=15 levers=330"
    [5]="data=5 batch=10 tests_kernels=115 d48_16=60 d48_32=60 d48_accumulated=60")

# needs NAME: the steps whose results the step uses
needs() {
    case $1 in
        machine | numbers | data | bench | tests_* | *_build | *check) ;;
        memcheck_layer* | batch | ranks_*) echo data ;;
        same_losses) echo ranks_mpi ranks_nccl_2 ;;
        kernel_times) echo kernel_times_build training ;;  # no autotuning under a profiler
        levers) echo training ;;
        *) echo batch ;;
    esac
}

# choose WORDS...: puts the parts and steps of the command line into `limits`, and what they need
choose() {
    local word
    declare -A usual=()
    for word in ${parts[1]} ${parts[2]} ${parts[3]} ${parts[4]} ${parts[5]}; do usual[${word%=*}]=${word#*=}; done
    add() {
        local name
        limits[$1]=$2
        for name in $(needs "$1"); do add "$name" "${limits[$name]-${usual[$name]}}"; done
    }
    for word; do
        if [[ $word =~ ^[1-5]$ ]]; then
            for word in ${parts[$word]}; do limits[${word%=*}]=${word#*=}; done
        elif [[ $word =~ ^([a-z0-9_]+)(=([1-9][0-9]{0,3}))?$ ]] && [ -n "${usual[${word%=*}]-}" ]; then
            add "${word%=*}" "${BASH_REMATCH[3]:-${usual[${word%=*}]}}"
        else
            refuse "\"$word\" is no part or step; expected 1 to 5 or STEP[=SECONDS]; 1 2 3 4 5 --list prints all steps"
        fi
    done
    [ $# -gt 0 ] || refuse "there is no part; expected 1 to 5 or STEP[=SECONDS]; see gpu_check.sh --help"
    name_of_call=steps
    [[ $* != [1-5] ]] || name_of_call=part$1
}

# ---- sizes: GPT-2 124M on a GPU; sizes that take seconds on a CPU

bin=build/cuda model=d12 length=1024 batches="64 32 16 8 4 2 1" accumulated=8 steps=200 hot=110 peer_steps=23
largest=d48 block=60 bench=(--seconds 0.1 --dtype bf16) kernels="[kernels]"
if $rehearse; then
    bin=build/cpu model=custom:l=2,h=2,c=64,t=64 length=8 batches="16 8 4 2 1" accumulated=2 steps=8 hot=12 peer_steps=5
    largest=$model block=6 bench=(--seconds 0.001 gelu) kernels="[gelu]"
    export OMP_WAIT_POLICY=passive  # other programs use the same cores
fi
shard=$work/text.bin
# The first run autotunes and stores the results here, so that later runs do not.
choices=$work/choices.json
plain=("$bin/train_gpt2" -i "$shard" -v 0 --tune-file "$choices")
train=("${plain[@]}" -t "$length" --dtype bf16)
# The operations and other cases that run only this project's kernels.
ours="[operations]~[matmul],[kernels]~[operations]~[matmul]~[muon]~[large]~[attention_choice]"
ours+="~[tuning]~[ptx]~[races]"

# cases NAME WHY-NOT FILTER [COMMAND...]: starts the tests that the filter selects, as arguments of COMMAND. Programs
# share the cores: waiting threads that spin would delay the others.
cases() {
    filter=$3
    start "$1" "$2" env OMP_WAIT_POLICY=passive "${@:4}" "$bin/tests" "$3" -w NoTests --durations yes
    filter=''
}

# shellcheck disable=SC2016
all_steps() {
    # ---- part 1

    step machine "" timeout -k 2 20 bash -c '
        uname -a; nproc; free -g; df -h . /tmp /dev/shm; grep -m 1 "model name" /proc/cpuinfo; ulimit -a
        ldd "$1/train_gpt2"; "$1/train_gpt2" --version; nvidia-smi topo -m; nvidia-smi -q
        env | grep -E "^(HOME|PATH|LD_|CUDA|NVIDIA|NCCL|OMP)"' - "$bin"
    numbers

    # The tokens that training reads, and the largest micro-batch whose memory plan fits: `batch`, of `tokens` tokens.
    step data "" "$bin/random_shard" "$shard" $((${batches%% *} * length * (steps + 20) + 1))
    step batch "" bash -c 'for b in $1; do "${@:3}" -b $b --dry-run && echo $b >"$2" && exit; done; exit 1' - \
        "$batches" "$work/batch" "${train[@]}" -e "$model" -x 1
    local batch tokens no_batch='' b
    batch=$(cat "$work/batch" 2>/dev/null) || { batch=1 no_batch="no batch fits"; }
    tokens=$((batch * length))
    # With -o, so that the log has power, clocks and throttle reasons.
    step training "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x "$steps" --log-gpu -o "$memory/training"
    step kernel_times_build "$no_cupti" "${CXX:-g++}" -std=c++20 -O1 -shared -fPIC -I"${cupti-}/include" \
        -I"$toolkit/include" -o "$work/kernel_times.so" dev/gpu_check/kernel_times.cpp "$cupti_library" \
        -Wl,-rpath,"$(dirname "$cupti_library")"
    local times=$work/results/kernel_times.md
    step kernel_times "$(first "$no_cupti" "$no_gpu" "$no_batch")" env CUDA_INJECTION64_PATH="$work/kernel_times.so" \
        KERNEL_TIMES="$times" KERNEL_STEPS_LEFT_OUT="$((hot - 10))" bash -c '"${@:2}" && cat "$1"' - "$times" \
        "${train[@]}" -e "$model" -b "$batch" -x "$hot"
    # It ends before its limit and prints the median of the steps until then: torch.compile may take most of the time.
    local peer=(env LD_LIBRARY_PATH="$CALLERS_LD_LIBRARY_PATH" PYTHONUNBUFFERED=1
        python3 dev/peers/peer_pytorch.py -e "$model" -i "$shard" -b "$batch" -t "$length" -x "$peer_steps" \
            --dtype bf16)
    if $rehearse; then peer+=(--no-compile --device cpu); fi
    step peer "$(first "$no_torch" "$no_batch")" "${peer[@]}" \
        --max-minutes "$(awk "BEGIN { print ($deadline + ${limits[peer]-0} - $SECONDS - 20) / 60 }")"

    # ---- part 2

    cases tests_kernels "" "$kernels" env TRAIN_GPT2_RECORD="$work/results/confirmed.tsv"
    join
    local small=(-e "$model" -d $((4 * length)) -x 4 -b 2)
    step ranks_nccl "$no_gpu" "${train[@]}" "${small[@]}" --comm nccl
    # In kernels of libraries racecheck and synccheck report false errors, because they do not support all of wgmma and
    # bulk copies. initcheck does not see the writes of kernels that it skips, so it gets cases that call no library.
    # Each tool connects to its programs through its own ports.
    local checks=("${sanitizer:-none}" --error-exitcode 9 --launch-timeout 60) only_ours=(--kernel-name kns=7kernels)
    local memcheck=("${checks[@]}" --tool memcheck --report-api-errors no)
    # One layer makes the same library calls as twelve; with twelve, cuBLASLt under memcheck takes minutes.
    local one_layer=("${plain[@]}" -e "custom:l=1,h=2,c=128,t=64" -t 64 -b 2 -x 2 --tune=off)
    # Concurrently, because such a machine has many cores.
    cases memcheck "$no_sanitizer" "[kernels]~[matmul]~[large]" "${memcheck[@]}" --port 50100
    start memcheck_layer "$no_sanitizer" "${memcheck[@]}" --port 50200 "${one_layer[@]}" --dtype bf16
    start memcheck_layer_fp32 "$no_sanitizer" "${memcheck[@]}" --port 50300 "${one_layer[@]}" --dtype fp32
    cases racecheck "$no_sanitizer" "$ours" "${checks[@]}" --tool racecheck --port 50400 "${only_ours[@]}"
    join

    # ---- part 3

    step accumulation "$no_batch" "${train[@]}" -e "$model" -b "$batch" -d $((accumulated * tokens)) -x 10
    step bench "" "$bin/bench" "${bench[@]}"
    step muon "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x 20 --optimizer muon --lr 1e-2
    # As dev/README.md builds it; without recomputation, samples and HellaSwag. It validates on one batch before the
    # first and after the last step.
    local llmc=${LLMC:-build/peers/llmc/train_gpt2cu}
    step llmc "$(first "$no_gpu" "$([ -x "$llmc" ] || echo "no $llmc")" "$no_batch")" "$llmc" -i "$shard" -j "$shard" \
        -e d12 -b "$batch" -t "$length" -d "$tokens" -x 20 -l 6e-4 -c 0.1 -r 0 -v 1000 -m 1 -s 0 -h 0
    cases synccheck "$no_sanitizer" "$ours" "${checks[@]}" --tool synccheck --port 50500 "${only_ours[@]}"
    cases initcheck "$no_sanitizer" "$ours" "${checks[@]}" --tool initcheck --port 50600 --check-api-memory-access no
    join
    local mpirun=(mpirun --bind-to none --oversubscribe -np 2) no_mpi no_two
    no_mpi=$(lacks "$(command -v mpirun)" mpirun)
    no_two=$(first "$no_mpi" "$no_hosts" "$no_gpu")
    step ranks_mpi "$no_mpi" "${mpirun[@]}" "${train[@]}" "${small[@]}" -z 1 --deterministic --comm mpi
    # NCCL does not let two ranks of one host share a GPU: each rank gets a host name of its own, and they communicate
    # over sockets. The sum of two numbers does not depend on their order, so the losses equal those over MPI.
    step ranks_nccl_2 "$no_two" env NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/logs/nccl.%h" "${mpirun[@]}" \
        unshare --uts bash -c 'echo "host$OMPI_COMM_WORLD_RANK" >/proc/sys/kernel/hostname && exec "$@"' - \
        "${train[@]}" "${small[@]}" -z 1 --deterministic --comm nccl
    step same_losses "$no_two" bash -c '
        numbers() { sed -nE "s/^step +([0-9]+).*\| +(\S+) +\S+e[-+]\S+ +(\S+) .*/\1 \2 \3/p" "$1"; }
        [ -n "$(numbers "$1")" ] && diff <(numbers "$1") <(numbers "$2") && echo PASS || { echo FAIL; exit 1; }' - \
        "$work"/logs/ranks_{mpi,nccl_2}.log

    # ---- parts 4 and 5

    local other
    other=$(found "build/cudnn/lib/libcudnn.so.9" "${packages[@]/%//lib/libcudnn.so.9}")
    step levers "$no_batch" env OTHER_CUDNN="${other:+${other%/*}:${LD_LIBRARY_PATH-}}" dev/gpu_check/levers.py \
        "$memory/levers" "$choices" $((deadline + ${limits[levers]-0} - SECONDS - 30)) $block \
        "${train[@]}" -e "$model" -b "$batch"
    for b in 16 32; do step d48_$b "$no_batch" "${train[@]}" -e "$largest" -b $b -x 20; done
    step d48_accumulated "$no_batch" "${train[@]}" -e "$largest" -b 16 -d $((64 * length)) -x 8
}

# Losses and gradient norms of 40 steps on real text, from one checkpoint: of PyTorch, of every attention method, and of
# fused and unfused epilogues. Without PyTorch of a tiny model, against its numbers that the tests recorded on a CPU.
numbers() {
    local command=(dev/gpu_check/same_training.py "$bin/train_gpt2" --work "$memory/numbers") build=stand-in layers=1
    if [ -n "$no_torch" ]; then
        if $rehearse; then build=cpu layers=2; fi
        local size="custom:l=$layers,h=1,c=64,t=64 2 64"  # as in test/program/same_training.sh
        # shellcheck disable=SC2016
        command=(bash -c '"$1" --vocabulary 257 "$2" 5000 && "${@:3}"' - "$bin/random_shard" "$work/small.bin"
            "${command[@]}" -i "$work/small.bin" --steps 12 --lr 3e-3 --warmup 0 --fp32 "$size" --bf16 "$size"
            --expect "test/program/same_training_$build.json")
    elif $rehearse; then
        local size="custom:l=2,h=2,c=64,t=64 2 32"
        command+=(--steps 8 --fp32 "$size" --bf16 "$size" --device cpu)
    fi
    step numbers "" "${command[@]}"
}
