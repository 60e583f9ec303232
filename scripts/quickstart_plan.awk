# quickstart_plan.awk - from the log of a short run, computes the flags of a run that takes `minutes`, including
# validations, samples and the checkpoint
#
#   awk -v minutes=3 -v tokens=215408 -f scripts/quickstart_plan.awk LOG     tokens: in all shards of -j
#
# Prints two lines: the flags, and a summary for the user. The short run must validate, and sample and save once at its
# end. The number of steps fills 95 % of the time according to the mean step time, because delays of a few steps will
# occur later too. --max-minutes ends a slower run early enough for the work that may follow: a validation that has just
# begun, a step, the last validation, the samples and the checkpoint. If these take more than half of the time,
# --max-minutes is half of the time.
function min(a, b) { return a < b ? a : b }
function max(a, b) { return a > b ? a : b }
function rounded(number, digits,   text) {
    text = sprintf("%." digits "f", number)
    sub(/\.?0+$/, "", text)
    return text
}
function number(name) {
    match($0, "\"" name "\":[-+.e0-9]+")
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
}

/"event":"step"/ { step[++steps] = number("ms") }
/"event":"val"/ { vals_ms += number("ms"); token_ms = number("ms") / number("valid_tokens") }
/"event":"end"/ { run_ms = 1000 * number("seconds") }

END {
    all_ms = minutes * 60000
    first = min(10, int(steps / 2))  # the first steps are slower
    for (i = 1; i <= steps; i++) steps_ms += step[i]
    for (i = first + 1; i <= steps; i++) step_ms += step[i] / (steps - first)
    end_ms = max(run_ms - steps_ms - vals_ms, 0)  # samples and checkpoint

    # There are ten validations, and one before the first step. All together take at most a tenth of the time, and each
    # at most a minute; there are fewer if even the fewest tokens take long.
    val_tokens = max(1024, min(tokens, int(min(all_ms / 110, 60000) / token_ms)))
    val_ms = val_tokens * token_ms
    points = max(1, min(10, int(all_ms / 10 / val_ms - 1)))

    max_ms = max(all_ms - 2 * val_ms - step_ms - end_ms, all_ms / 2)
    count = max(20, min(1e9, int((all_ms * 0.95 - (points + 1) * val_ms - end_ms) / step_ms)))
    every = int((count + points - 1) / points)
    warmup = count < 800 ? int(count / 4) : 200
    printf "-x %.0f -u %.0f -v %.0f --val-tokens %.0f -s %.0f --max-minutes %s\n", count, warmup, every, val_tokens,
        count, rounded(max_ms / 60000, 5)
    printf "%s ms per step: %.0f steps, %.0f validations of %s s, samples and a checkpoint take %s minute%s\n",
        rounded(step_ms, 1), count, int((count + every - 1) / every) + 1, rounded(val_ms / 1000, 1), minutes + 0,
        minutes == 1 ? "" : "s"
}
