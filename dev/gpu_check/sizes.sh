# shellcheck shell=bash disable=SC2154
# sizes.sh - part 3 of gpu_check.sh: other batches and models, what autotuning gains, and traces. Sourced, not run
sizes() {
    data || return
    # The same step with the library's first algorithms, and with the autotuned ones.
    step first_algorithms 25 "" "${train[@]}" -e "$model" -b "$batch" -x 20 --tune=off
    step autotuned 60 "" "${train[@]}" -e "$model" -b "$batch" -x 20
    # A second autotuning, in a separate file, to compare its results with the first.
    step autotuned_again 50 "" "${train[@]}" -e "$model" -b "$batch" -x 20 --tune=again \
        --tune-file "$work/results/choices_again.json"
    kernel_times_library
    kernel_times trace_accumulation 25 -e "$model" -b "$batch" -d $((accumulated * tokens))
    local b
    for b in $batches; do
        if $list || [ "$b" -lt "$batch" ]; then step "batch_$b" 30 "" "${train[@]}" -e "$model" -b "$b" -x 20; fi
    done
    # Half the micro-batch, for twice the layers and a third more channels.
    local half=$(((batch + 1) / 2))
    step larger 60 "" "${train[@]}" -e "$larger" -b $half -x 20 --log-gpu -o "$work/runs/larger"
    kernel_times larger_times 30 -e "$larger" -b $half
}
