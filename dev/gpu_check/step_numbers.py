"""step_numbers.py - losses and gradient norms of the steps of two runs, compared within tolerances"""
import math

# The largest tolerances, at any sizes: of the loss; of the norm at the first step, where the weights are still equal
# (a right build differs by 1.4e-5 in fp32, 4.6e-4 in bf16); of the norm at later steps, where rounding errors
# accumulate.
LIMITS = {"fp32": (1e-4, 5e-5, 5e-3), "bf16": (0.01, 0.002, 0.05)}


class Numbers:
    """Losses and gradient norms of a run, by step from 1; not finite for skipped steps. `ended`: the error that ended
    it."""

    def __init__(self, losses, norms, ended=""):
        self.losses, self.norms, self.ended = losses, norms, ended

    @classmethod
    def of_log(cls, events, ended):
        steps = {event["step"]: event for event in events if event["event"] in ("step", "skip")}

        def column(key):
            values = (steps[step].get(key) for step in sorted(steps))
            return [math.nan if value is None else value for value in values]
        return cls(column("loss"), column("grad_norm"), ended)


def difference(ours, theirs, whose, tolerances, steps):
    """The largest differences of loss and norm, and a description of the first out of tolerance, or nothing."""
    worst, fault = [0.0, 0.0], None
    for step, numbers in enumerate(zip(ours.losses, theirs.losses, ours.norms, theirs.norms), 1):
        for i, what in enumerate(("loss", "gradient norm")):
            one, other = numbers[2 * i:2 * i + 2]
            far = abs(one - other) / (other if i else 1)
            if not math.isfinite(far):
                far = math.inf
            worst[i] = max(worst[i], far)
            most = tolerances[i + (i == 1 and step > 1)]
            if far > most and not fault:
                one = f"{one:.6f}" if math.isfinite(one) else "not finite"
                fault = (f"step {step}: {what} {one}, {whose} {other:.6f}; differs by {far:.2g}"
                         f"{' of it' if i else ''}, tolerance {most:g}")
    if ours.ended:
        fault = (f"{fault}; " if fault else "") + ours.ended
    elif not fault and not len(ours.losses) == len(theirs.losses) == steps:
        fault = f"{len(ours.losses)} steps, {whose} {len(theirs.losses)}; expected {steps}"
    return worst, fault
