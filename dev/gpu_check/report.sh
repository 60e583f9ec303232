# shellcheck shell=bash disable=SC2154
# report.sh - for gpu_check.sh: a step's text in the summary: `note NAME` prints its result in one line, `details NAME`
# further lines of its log. Sourced, not run

# The median step of a run, without the first three, which autotune and warm up caches.
median_step() {
    awk '/^step .* MFU / { mfu = 1 }
        /^step [0-9]/ && $5 ~ /e[-+]/ && ++n > 3 { print $7 " ms, " $8 " tok/s, MFU " (mfu ? $9 : "n/a") }' \
        "$1" 2>/dev/null | sort -n |
        awk '{ line[NR] = $0 } END { if (NR) print "median " line[int((NR + 1) / 2)] " of " NR " steps" }'
}
# Median energy, power and clock without the first 20 steps, by the log of the training step; of readings, if any.
median_energy() {
    local key
    for key in step_j mean_power_w sm_mhz; do
        sed -nE "s/.*\"$key\":([0-9.e+-]+).*/\1/p" "$memory/training/log.jsonl" 2>/dev/null | tail -n +21 | sort -g |
            awk -v key=$key '{ x[NR] = $0 } END { if (NR) printf ", %s %.1f", key, x[int((NR + 1) / 2)] }'
    done
}
note() {
    local log=$work/logs/$1.log
    grep '^error: no test case' "$log" && return
    case $1 in
        numbers | same_*) grep -E '^(PASS|FAIL)' "$log" | head -n 1 ;;
        training) echo "$(median_step "$log")$(median_energy)" ;;
        accumulation | first_algorithms | batch_[0-9]* | larger | d48_* | muon | ranks_*) median_step "$log" ;;
        kernel_times | kernel_counters)
            grep -E '^(\| all|a whole step)' "$log" | tail -n 1 | tr -d '|' ;;
        llmc) tail -n 1 "$log" ;;
        batch) echo "$(cat "$work/batch" 2>/dev/null || echo no) x $length tokens fit" ;;
        *check*) echo "$(grep -cE '^[0-9.]+ s: ' "$log") cases; $(grep -oE '(ERROR|RACECHECK) SUMMARY.*' "$log" |
            tail -n 1)" ;;
        tests_*)
            echo "$(grep -E '^(All tests passed|test cases:)' "$log" | tail -n 1)$(
                sed -nE 's/^skipped: ("[^"]*": )?/skipped: /p' "$log" | sort | uniq -c | sed 's/^ */; /' | tr -d '\n')"
            ;;
        *) grep -E '^(median |CUDA in |NOT FOUND)' "$log" | cut -c 1-300 | tail -n 1 ;;
    esac
}
details() {
    local log=$work/logs/$1.log
    case $1 in
        build*)
            grep -iE 'warning|error' "$log" | grep -v -- ' -Wall ' | head -n 20
            tail -n 2 "$log" | cut -c 1-150
            ;;
        tests_*) grep -E 'FAILED:|^[0-9.]+ s: ' "$log" | sort -rn | uniq | head -n 20; tail -n 4 "$log" ;;
        *check*) grep -A 4 -E '^=+ (Error|Warning|Invalid|Barrier|Race|Uninit)' "$log" | head -n 60; tail -n 4 "$log" ;;
        training | larger | ranks_*) grep -vE '^(step|\$) ' "$log" | head -n 60; grep -E '^step ' "$log" | tail -n 3 ;;
        accumulation | first_algorithms | batch_[0-9]* | d48_* | muon)
            grep -E '^(error|note|choices|autotun)' "$log" | head -n 20; grep -E '^step ' "$log" | tail -n 1 ;;
        kernel_times | kernel_counters | levers) grep -E '^(\||a whole step|error:)' "$log" ;;
        data | batch | machine | unpack | *tuned_3) ;;
        *) tail -n +2 "$log" | tail -n 150 ;;
    esac
}
