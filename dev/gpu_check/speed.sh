# shellcheck shell=bash disable=SC2154
# speed.sh - part 1 of gpu_check.sh: correct numbers first, then the training speed of GPT-2 124M. Sourced, not run
speed() {
    numbers
    step tests_attention 25 "" "$bin/tests" "[attention_methods],[attention_choice]" --durations yes
    data
    # One micro-batch per step, then several; with -o, so that the log has power, clocks and throttle reasons.
    start training 100 "" "${train[@]}" -e "$model" -b "$batch" -x "$steps" --log-gpu -o "$work/runs/training"
    # To compare with the plan in training's log, which estimates the memory of libraries. Few samples, because each may
    # delay a step; the median excludes those steps.
    # shellcheck disable=SC2016
    start memory_in_use 0 "$no_gpu" bash -c 'for i in {1..5}; do
        sleep 4; nvidia-smi --query-gpu=memory.used --format=csv,noheader; done | sort -n | tail -n 1'
    join
    step accumulation 30 "" "${train[@]}" -e "$model" -b "$batch" -d $((accumulated * tokens)) -x 10
    kernel_times_library
    kernel_times kernel_times 25 -e "$model" -b "$batch"
    # It ends before its limit and prints the median of the steps until then: torch.compile may take most of the time.
    # It uses the libraries that were installed with it.
    local peer=(env -u LD_LIBRARY_PATH PYTHONUNBUFFERED=1 python3 dev/peer_pytorch.py -e "$model" -i "$shard"
        -b "$batch" -t "$length" -x "$peer_steps" --dtype bf16)
    if $rehearse; then peer+=(--no-compile --device cpu); fi
    minutes_within() { awk "BEGIN { print ($deadline + $1 - $SECONDS - 20) / 60 }"; }
    step peer 75 "$no_torch" "${peer[@]}" --max-minutes "$(minutes_within 75)"
    step bench_matmul 35 "" "$bin/bench_matmul" --rows "$rows" --dtype bf16 --seconds 0.3
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
# fused and unfused epilogues.
numbers() {
    local small=()
    if $rehearse; then
        small=(--steps 8 --fp32 "custom:l=2,h=2,c=64,t=64 2 32" --bf16 "custom:l=2,h=2,c=64,t=64 2 32" --device cpu)
    fi
    step numbers 105 "$no_torch" dev/gpu_check/same_training.py "$bin/train_gpt2" --work "$work/numbers" "${small[@]}"
}
