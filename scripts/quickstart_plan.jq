# quickstart_plan.jq - from the log of a short run, computes the flags of a run that takes $minutes, including
# validations, samples and the checkpoint
#
#   jq -rs --argjson minutes 3 --argjson tokens 215408 -f scripts/quickstart_plan.jq LOG     tokens: in all shards of -j
#
# Prints two lines: the flags, and a summary for the user. The short run must validate, and sample and save once at its
# end. The number of steps fills 95 % of the time according to the mean step time, because delays of a few steps will
# occur later too. --max-minutes ends a slower run early enough for the work that may follow: a validation that has just
# begun, a step, the last validation, the samples and the checkpoint. If these take more than half of the time,
# --max-minutes is half of the time.
def clamp($least; $most): if . < $least then $least elif . > $most then $most else . end;
def rounded($digits): pow(10; $digits) as $unit | . * $unit | round / $unit;

map(select(.event == "step").ms) as $steps
| map(select(.event == "val")) as $vals
| (map(select(.event == "end").seconds) | last * 1000) as $run_ms
| ($minutes * 60000) as $all_ms

| ($steps[([10, ($steps | length) / 2 | floor] | min):] | add / length) as $step_ms  # without the first, slower steps
| ([$run_ms - ($steps | add) - ($vals | map(.ms) | add), 0] | max) as $end_ms        # samples and checkpoint

# A validation takes at most 1/40 of the time, and at most a minute. There are ten, and one before the first step; fewer
# if they would take more than a third of the time, because even the fewest tokens take long.
| ($vals | last | .ms / .valid_tokens) as $token_ms
| ([$all_ms / 40, 60000] | min / $token_ms | floor | clamp(1024; [$tokens, 1024] | max)) as $val_tokens
| ($val_tokens * $token_ms) as $val_ms
| ($all_ms / 3 / $val_ms - 1 | floor | clamp(1; 10)) as $points

| ([$all_ms - 2 * $val_ms - $step_ms - $end_ms, $all_ms / 2] | max) as $max_ms
| (($all_ms * 0.95 - ($points + 1) * $val_ms - $end_ms) / $step_ms | floor | clamp(20; 1e9)) as $count
| (($count + $points - 1) / $points | floor) as $every
| (if $count < 800 then $count / 4 | floor else 200 end) as $warmup
| "-x \($count) -u \($warmup) -v \($every) --val-tokens \($val_tokens) -s \($count)" +
    " --max-minutes \($max_ms / 60000 | rounded(5))",
  "\($step_ms | rounded(1)) ms per step: \($count) steps, \((($count + $every - 1) / $every | floor) + 1) validations" +
    " of \($val_ms / 1000 | rounded(1)) s, samples and a checkpoint take \($minutes)" +
    (if $minutes == 1 then " minute" else " minutes" end)
