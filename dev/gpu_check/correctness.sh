# shellcheck shell=bash disable=SC2154
# correctness.sh - part 2 of gpu_check.sh: all tests, ranks over MPI and NCCL, compute-sanitizer. Sourced, not run
correctness() {
    local kernels="[kernels]" rest="~[.]~[kernels]~[ranks]~[mpi]~[local]~[run]~[layout]~[bf16_training]"
    local runs="[run]~[ranks]~[mpi]" ranks="[ranks],[mpi],[local]"
    local small=(-e "$model" -d $((4 * length)) -x 4 -b 2)
    if $rehearse; then
        kernels="[gelu]" rest="[schedule],[shard],[model_config]" runs="*dry-run*,a run trains*"
        ranks="[local],integer gradients of processes*,an invalid option ends all ranks*"
    fi
    # Nothing is timed, and the programs share the cores: waiting threads that spin would delay the others.
    export OMP_WAIT_POLICY=passive
    data
    local no_mpi
    no_mpi=$(lacks "$(command -v mpirun)" mpirun)
    # Concurrently, because such a machine has many cores; the same for the sanitizer's tools below.
    start tests_ranks 165 "" "$bin/tests" "$ranks" --durations yes
    start tests_kernels 0 "" "$bin/tests" "$kernels" --durations yes
    start tests_host 0 "" "$bin/tests" "$rest" --durations yes
    start tests_runs 0 "" "$bin/tests" "$runs" --durations yes
    join
    step ranks_mpi 15 "$no_mpi" "${mpirun[@]}" -np 2 "${train[@]}" "${small[@]}" -z 1 --comm mpi
    step ranks_nccl 15 "$no_gpu" "${train[@]}" "${small[@]}" --comm nccl
    # NCCL does not let two ranks of one host share a GPU: each rank gets a host name of its own, and they communicate
    # over sockets. The sum of two numbers does not depend on their order, so the losses equal those over MPI.
    local no_two
    no_two=$(first "$no_mpi" "$no_hosts" "$no_gpu")
    step ranks_nccl_2 25 "$no_two" env NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/logs/nccl.%h" "${mpirun[@]}" -np 2 \
        dev/gpu_check/own_host.sh "${train[@]}" "${small[@]}" -z 1 --comm nccl
    step same_losses 0 "$no_two" dev/gpu_check/same_losses.sh "$work"/logs/ranks_{mpi,nccl_2}.log
    # In kernels of libraries racecheck and synccheck report false errors, because they do not support all of wgmma and
    # bulk copies. initcheck does not see the writes of kernels that it skips, so it gets cases that call no library.
    local ours=(--kernel-name kns=7kernels)
    local tiny="loss and gradients of a whole model equal fp64,bf16 follows fp64*,plain attention*,flash attention*"
    local alone="[embedding],[layernorm],[gelu],[bias_gradient],[classifier],[grad_norm],[adamw],[muon][one_order],"
    alone+="[sketch],[decode],[few_rows],[kernels][onebit]~[large],flash attention*"
    step planted_build 10 "$no_nvcc" "$nvcc" -arch=sm_80 -o "$work/planted_faults" \
        dev/gpu_check/planted_faults.cu
    step planted_faults 20 "$(first "$no_sanitizer" "$no_gpu")" dev/gpu_check/planted_faults.sh \
        "$work/planted_faults" "${sanitizer:-none}" "${ours[@]}"
    local why_not port=50000
    why_not=$(first "$no_sanitizer" "$no_gpu")
    # check NAME LIMIT TOOL [OPTIONS...] PROGRAM ARGUMENTS; each tool connects to its programs through its own ports
    check() {
        port=$((port + 100))
        start "$1" "$2" "$why_not" "$sanitizer" --error-exitcode 9 --port $port --launch-timeout 60 --tool "${@:3}"
    }
    # One layer makes the same library calls as twelve; with twelve, cuBLASLt under memcheck takes minutes.
    local one_layer=("${train[@]}" -e "custom:l=1,h=2,c=128,t=64" -t 64 -b 2 -x 2 --tune=off)
    check memcheck 100 memcheck --report-api-errors no "$bin/tests" "[kernels]~[matmul]" --durations yes
    check memcheck_layer 0 memcheck --report-api-errors no "${one_layer[@]}"
    check memcheck_layer_fp32 0 memcheck --report-api-errors no "${one_layer[@]}" --dtype fp32
    check racecheck 0 racecheck "${ours[@]}" "$bin/tests" "$tiny,$alone" --durations yes
    check synccheck 0 synccheck "${ours[@]}" "$bin/tests" "$tiny,$alone" --durations yes
    check initcheck 0 initcheck --check-api-memory-access no "$bin/tests" "$alone" --durations yes
    join
}
