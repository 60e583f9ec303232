# quickstart_plan.jq - from the log of a short run to the flags of one that fills $minutes, validations, samples and
# checkpoint included
#
#   jq -rs --argjson minutes 3 --argjson tokens 215408 -f scripts/quickstart_plan.jq LOG     tokens: of all shards of -j
#
# Two lines: the flags, and what they amount to, for who reads along. The short run validated, and drew the samples and
# saved once, at its end. Steps are chosen to fill 95 % of the time by their mean: what holds up a few of them will hold
# up later ones, too. --max-minutes ends what is slower than that early enough for what may come after it: a validation
# that has just begun and a step, the last validation, the samples and the checkpoint. Where these take more than half
# of the time, a half is trained.
def clamp($least; $most): if . < $least then $least elif . > $most then $most else . end;
def rounded($digits): pow(10; $digits) as $unit | . * $unit | round / $unit;

map(select(.event == "step").ms) as $steps
| map(select(.event == "val")) as $vals
| (map(select(.event == "end").seconds) | last * 1000) as $run_ms
| ($minutes * 60000) as $all_ms

| ($steps[([10, ($steps | length) / 2 | floor] | min):] | add / length) as $step_ms  # the first ones prepare things
| ([$run_ms - ($steps | add) - ($vals | map(.ms) | add), 0] | max) as $end_ms        # samples and checkpoint

# One validation takes a fortieth of the time at most, and a minute: there are ten, and one before the first step, or as
# many as take a third of the time where even few tokens take long.
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
  "\($step_ms | rounded(1)) ms a step: \($count) steps, \((($count + $every - 1) / $every | floor) + 1) validations" +
    " of \($val_ms / 1000 | rounded(1)) s, samples and a checkpoint fill \($minutes)" +
    (if $minutes == 1 then " minute" else " minutes" end)
