# shellcheck shell=bash disable=SC2034,SC2154
# plan.sh - for gpu_check.sh: the steps in their order, the parts and limits in seconds, and sizes. Sourced, not run
#
# The most valuable steps first, in case the machine is lost. Limits that are the same in a row of steps that run
# concurrently count once.
declare -A parts=(
    [1]="machine=10 numbers=105 data=5 batch=10 training=60 tuned_3=9 untuned_3=9 same_algorithms=2
        kernel_times_build=10 kernel_times=15 peer=75"
    [2]="data=5 tests_kernels=115 ranks_nccl=20 memcheck=100 memcheck_layer=100 memcheck_layer_fp32=100 racecheck=100"
    [3]="data=5 batch=10 tuned_3=40 accumulation=25 same_times=2 bench=30 kernel_counters=40
        first_algorithms=15 batch_16=12 batch_4=10 batch_1=10 larger=45 muon=20 llmc=25
        planted_build=10 planted_faults=20 synccheck=60 initcheck=60 ranks_mpi=15 ranks_nccl_2=20 same_losses=2
        tests_ranks=100 tests_host=100 tests_runs=100"
    [4]="data=5 batch=10 training=60 kernel_times_build=10 kernel_times=15 levers=330"
    [5]="data=5 batch=10 tests_kernels=115 d48_16=60 d48_32=60 d48_accumulated=60")

# needs NAME: the steps whose results the step uses
needs() {
    case $1 in
        machine | numbers | data | bench | tests_* | *_build | *check) ;;
        memcheck_layer* | batch | ranks_*) echo data ;;
        same_algorithms) echo tuned_3 untuned_3 ;;
        same_losses) echo ranks_mpi ranks_nccl_2 ;;
        same_times) echo accumulation ;;
        planted_faults) echo planted_build ;;
        kernel_times) echo batch kernel_times_build tuned_3 ;;  # no autotuning under a profiler
        kernel_counters | levers) echo batch tuned_3 ;;
        *) echo batch ;;
    esac
}

# choose WORDS...: puts the parts and steps of the command line into `limits`, and what they need
choose() {
    local word name names pending=()
    names=$(mode=names all_steps)
    declare -A usual=()
    for word in ${parts[1]} ${parts[2]} ${parts[3]} ${parts[4]} ${parts[5]}; do usual[${word%=*}]=${word#*=}; done
    for word; do
        if [[ $word =~ ^[1-5]$ ]]; then
            for name in ${parts[$word]}; do limits[${name%=*}]=${name#*=}; done
        elif [[ $word =~ ^([a-z0-9_]+)(=([1-9][0-9]{0,3}))?$ ]] && grep -qx "${word%=*}" <<<"$names"; then
            limits[${word%=*}]=${BASH_REMATCH[3]:-${usual[${word%=*}]}}
            pending+=("${word%=*}")
        else
            refuse "\"$word\" is no part or step; expected 1 to 5 or STEP[=SECONDS]; 1 2 3 4 5 --list prints all steps"
        fi
    done
    [ $# -gt 0 ] || refuse "there is no part; expected 1 to 5 or STEP[=SECONDS]; see gpu_check.sh --help"
    while [ ${#pending[@]} -gt 0 ]; do
        for name in $(needs "${pending[0]}"); do
            limits[$name]=${limits[$name]-${usual[$name]}}
            pending+=("$name")
        done
        pending=("${pending[@]:1}")
    done
    name_of_call=steps
    [[ $* != [1-5] ]] || name_of_call=part$1
}

# ---- sizes: GPT-2 124M on a GPU; sizes that take seconds on a CPU

bin=build/cuda model=d12 length=1024 batches="64 32 16 8 4 2 1" accumulated=8 steps=200 hot=110 peer_steps=23
layer=custom:l=2,h=12,c=768,t=1024 larger=d24 largest=d48 block=60
bench=(--seconds 0.1 --dtype bf16)
kernels="[kernels]" others="~[.]~[kernels]~[ranks]~[mpi]~[local]~[run]~[layout]~[bf16_training]"
runs="[run]~[ranks]~[mpi]" ranks="[ranks],[mpi],[local]"
if $rehearse; then
    bin=build/cpu model=custom:l=2,h=2,c=64,t=64 length=8 batches="16 8 4 2 1" accumulated=2 steps=8 hot=12 peer_steps=5
    layer=$model larger=custom:l=3,h=2,c=64,t=64 largest=$layer block=6
    bench=(--seconds 0.001 gelu)
    kernels="[gelu]" others="[schedule],[shard],[model_config]" runs="[data_order][run]" ranks="[local]"
    export OMP_WAIT_POLICY=passive  # other programs use the same cores
fi
shard=$work/text.bin
# The first run autotunes and stores the results here, so that profiled runs do not autotune, nor a later call.
choices=$PWD/build/gpu_check_choices.json
plain=("$bin/train_gpt2" -i "$shard" -v 0 --tune-file "$choices")
train=("${plain[@]}" -t "$length" --dtype bf16)
# The operations and other cases that run only this project's kernels.
ours="[operations]~[matmul],[kernels]~[operations]~[matmul]~[muon]~[large]~[attention_choice]"
ours+="~[tuning]~[ptx]~[races]"

# cases NAME WHY-NOT FILTER [COMMAND...]: starts the tests that the filter selects, as arguments of COMMAND
cases() { start "$1" "$2" dev/gpu_check/cases.sh "$3" "${@:4}" "$bin/tests"; }
# A kernel table of a file that the command writes.
# shellcheck disable=SC2016
table=(bash -c '"${@:2}" && dev/gpu_check/kernel_table.py "$1"' -)

# ---- part 1

# shellcheck disable=SC2016
all_steps() {
    step machine "" timeout -k 2 20 bash -c '
        uname -a; nproc; free -g; df -h . /tmp /dev/shm; grep -m 1 "model name" /proc/cpuinfo; ulimit -a
        grep . /sys/class/net/*/operstate; ldd "$1/train_gpt2"; "$1/train_gpt2" --version
        env | grep -E "^(HOME|PATH|LD_|CUDA|NVIDIA|NCCL|OMP)"; nvidia-smi topo -m; nvidia-smi -q
        true' - "$bin"
    numbers

    # The tokens that training reads, and the largest micro-batch whose memory plan fits: `batch`, of `tokens` tokens.
    step data "" "$bin/random_shard" "$shard" $((${batches%% *} * length * (steps + 20) + 1))
    step batch "" bash -c 'for b in $1; do "${@:3}" -b $b --dry-run && echo $b >"$2" && exit; done; exit 1' - \
        "$batches" "$work/batch" "${train[@]}" -e "$model" -x 1
    local batch tokens no_batch=''
    batch=$(cat "$work/batch" 2>/dev/null) || { batch=1 no_batch="no batch fits"; }
    tokens=$((batch * length))
    # With -o, so that the log has power, clocks and throttle reasons.
    step training "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x "$steps" --log-gpu -o "$memory/training"
    # `numbers` checks algorithms for 8192 rows; a wrong one for this micro-batch would repeat its results, too.
    step tuned_3 "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x 3
    step untuned_3 "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x 3 --tune=off
    step same_algorithms "$no_batch" dev/gpu_check/same_steps.py "$work"/logs/{tuned_3,untuned_3}.log
    step kernel_times_build "$no_cupti" "${CXX:-g++}" -std=c++20 -O1 -shared -fPIC -I"${cupti-}/include" \
        -I"$toolkit/include" -o "$work/kernel_times.so" dev/gpu_check/kernel_times.cpp "$cupti_library" \
        -Wl,-rpath,"$(dirname "$cupti_library")"
    step kernel_times "$(first "$no_cupti" "$no_gpu" "$no_batch")" env \
        CUDA_INJECTION64_PATH="$work/kernel_times.so" KERNEL_TIMES="$work/results/kernel_times.tsv" \
        KERNEL_STEPS_LEFT_OUT="$((hot - 10))" \
        KERNEL_TRACE="$work/results/kernel_times.trace.tsv" "${table[@]}" "$work/results/kernel_times.tsv" \
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
    # A step is timed at its end on the device, although the host enqueues far ahead.
    step same_times "$(first "$no_gpu" "$no_batch")" dev/gpu_check/same_steps.py --times "$work/logs/accumulation.log"
    step bench "" "$bin/bench" "${bench[@]}"
    # Only this project's kernels, selected by the suffix of their names: filters on nested NVTX ranges are not
    # documented. Two layers have the shapes of twelve. Clocks and caches are not controlled. ncu runs one kernel at a
    # time and writes nothing before its end.
    local counters=$work/results/kernel_counters.csv percent=avg.pct_of_peak_sustained_active
    step kernel_counters "$(first "$no_ncu" "$no_batch")" "${table[@]}" "$counters" "$ncu" --csv --page raw \
        --print-units base --log-file "$counters" --clock-control none --cache-control none \
        --kernel-name "regex:_kernel$" \
        --section WarpStateStats --metrics "gpu__time_duration.sum,dram__bytes.sum,lts__t_sector_hit_rate.pct,\
sm__warps_active.$percent,smsp__issue_active.$percent" \
        "${train[@]}" -e "$layer" -b "$batch" -x 1
    # The same step with the library's first algorithms; other batches and models; llm.c, as dev/README.md builds it.
    step first_algorithms "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x 20 --tune=off
    local b other
    for b in 16 4 1; do
        step batch_$b "$([ "$b" -lt "$batch" ] || echo "$batch fit")" "${train[@]}" -e "$model" -b $b -x 20
    done
    # Half the micro-batch, for twice the layers and a third more channels.
    step larger "$no_batch" "${train[@]}" -e "$larger" -b $(((batch + 1) / 2)) -x 20
    step muon "$no_batch" "${train[@]}" -e "$model" -b "$batch" -x 20 --optimizer muon --lr 1e-2
    # Without recomputation, samples and HellaSwag; it validates on one batch before the first and after the last step.
    local llmc=${LLMC:-build/peers/llmc/train_gpt2cu}
    step llmc "$(first "$no_gpu" "$([ -x "$llmc" ] || echo "no $llmc")" "$no_batch")" "$llmc" -i "$shard" -j "$shard" \
        -e d12 -b "$batch" -t "$length" -d "$tokens" -x 20 -l 6e-4 -c 0.1 -r 0 -v 1000 -m 1 -s 0 -h 0

    step planted_build "$no_nvcc" "${nvcc:-none}" -arch=sm_80 -o "$work/planted_faults" dev/gpu_check/planted_faults.cu
    step planted_faults "$(first "$no_nvcc" "$no_sanitizer")" dev/gpu_check/planted_faults.sh "$work/planted_faults" \
        "${sanitizer:-none}" "${only_ours[@]}"
    cases synccheck "$no_sanitizer" "$ours" "${checks[@]}" --tool synccheck --port 50500 "${only_ours[@]}"
    cases initcheck "$no_sanitizer" "$ours" "${checks[@]}" --tool initcheck --port 50600 --check-api-memory-access no
    join
    local no_mpi no_two
    no_mpi=$(lacks "$(command -v mpirun)" mpirun)
    no_two=$(first "$no_mpi" "$no_hosts" "$no_gpu")
    step ranks_mpi "$no_mpi" "${mpirun[@]}" -np 2 "${train[@]}" "${small[@]}" -z 1 --deterministic --comm mpi
    # NCCL does not let two ranks of one host share a GPU: each rank gets a host name of its own, and they communicate
    # over sockets. The sum of two numbers does not depend on their order, so the losses equal those over MPI.
    step ranks_nccl_2 "$no_two" env NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/logs/nccl.%h" "${mpirun[@]}" -np 2 \
        dev/gpu_check/own_host.sh "${train[@]}" "${small[@]}" -z 1 --deterministic --comm nccl
    step same_losses "$no_two" dev/gpu_check/same_steps.py --exact "$work"/logs/ranks_{mpi,nccl_2}.log
    cases tests_ranks "" "$ranks"
    cases tests_host "" "$others"
    cases tests_runs "" "$runs"
    join
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
