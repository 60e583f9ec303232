# shellcheck shell=bash disable=SC2154
# speed.sh - part 1 of gpu_check.sh: correct numbers first, then the training speed of GPT-2 124M. Sourced, not run
speed() {
    numbers
    step tests_attention 25 "" "$bin/tests" "[attention]~[large]" --durations yes
    data || return
    # One micro-batch per step, then several; with -o, so that the log has power, clocks and throttle reasons.
    start training 100 "" "${train[@]}" -e "$model" -b "$batch" -x "$steps" --log-gpu -o "$work/runs/training"
    # To compare with the plan in training's log, which estimates the memory of libraries. Few samples, because each may
    # delay a step; the median excludes those steps. Not while algorithms are autotuned, in buffers of its own.
    # shellcheck disable=SC2016
    start memory_in_use 0 "$no_gpu" bash -c 'sleep 30; for i in {1..5}; do
        nvidia-smi --query-gpu=memory.used --format=csv,noheader; sleep 4; done | sort -n | tail -n 1'
    join
    # `numbers` checks algorithms for 8192 rows; a wrong one for this micro-batch would repeat its results, too.
    step tuned_3 10 "" "${train[@]}" -e "$model" -b "$batch" -x 3
    step untuned_3 10 "" "${train[@]}" -e "$model" -b "$batch" -x 3 --tune=off
    step same_algorithms 0 "" dev/gpu_check/same_algorithms.py "$work"/logs/{tuned_3,untuned_3}.log
    step accumulation 30 "" "${train[@]}" -e "$model" -b "$batch" -d $((accumulated * tokens)) -x 10
    kernel_times_library
    kernel_times kernel_times 25 -e "$model" -b "$batch"
    # It ends before its limit and prints the median of the steps until then: torch.compile may take most of the time.
    local peer=(env LD_LIBRARY_PATH="$CALLERS_LD_LIBRARY_PATH" PYTHONUNBUFFERED=1
        python3 dev/peers/peer_pytorch.py -e "$model" -i "$shard" -b "$batch" -t "$length" -x "$peer_steps" \
            --dtype bf16)
    if $rehearse; then peer+=(--no-compile --device cpu); fi
    minutes_within() { awk "BEGIN { print ($deadline + $1 - $SECONDS - 20) / 60 }"; }
    step peer 70 "$no_torch" "${peer[@]}" --max-minutes "$(minutes_within 70)"
    step bench_matmul 25 "" "$bin/bench_matmul" --rows "$tokens" --dtype bf16 --seconds 0.3 --tune-file "$choices"
    step bench 30 "" "$bin/bench" "${bench[@]}"
    # Only this project's kernels, selected by the suffix of their names: filters on nested NVTX ranges are not
    # documented. Two layers have the shapes of twelve. Clocks and caches are not controlled. Last, because ncu runs one
    # kernel at a time and writes nothing before its end.
    local counters=$work/results/kernel_counters.csv percent=avg.pct_of_peak_sustained_active
    step kernel_counters 60 "$(first "$no_ncu" "$no_gpu")" "${table[@]}" "$counters" "$ncu" --csv --page raw \
        --print-units base --log-file "$counters" --clock-control none --cache-control none \
        --kernel-name "regex:_kernel$" \
        --section WarpStateStats --metrics "gpu__time_duration.sum,dram__bytes.sum,lts__t_sector_hit_rate.pct,\
sm__warps_active.$percent,smsp__issue_active.$percent" \
        "${train[@]}" -e "$layer" -b "$batch" -x 1
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
    step numbers 105 "" "${command[@]}"
}
