# run_curves.py - the numbers of a run that dev/plot draws; unknown ones are NaN, which leave a gap
import math

import numpy as np

from run_log import LARGEST, is_count, number
from tool_main import fail, in_quotes

AXES = ('steps', 'tokens', 'hours')
# Titles of the first panel.
MEASURES = {'loss': 'loss (nats per token)', 'perplexity': 'perplexity', 'bits-per-byte': 'bits per byte'}


def clock_of(run, axis):
    """{completed steps: x}; of hours in seconds."""
    if axis == 'steps': return {e['step']: e['step'] for e in run.events if is_count(e.get('step'))}
    at = run.tokens_at() if axis == 'tokens' else run.seconds_at()
    if not at: fail('--x', axis, 'steps', f'{in_quotes(run.log)} does not have the {axis} of its steps')
    return at


def clocks_of(runs, axis):
    """The unit of the x axis, and each run's {completed steps: x}."""
    clocks, unit, scale = [clock_of(run, axis) for run in runs], axis, 1
    if axis == 'hours':
        longest = max((x for clock in clocks for x in clock.values()), default=0)
        unit, scale = ('hours', 3600) if longest >= 5400 else ('minutes', 60) if longest >= 90 else ('seconds', 1)
    return unit, [{steps: x / scale for steps, x in clock.items()} for clock in clocks]


def points(run, clock, kind, key, factor=1):
    """xs and ys of a run's events whose x is known."""
    pairs = [(clock[event['step']], number(event.get(key))) for event in run.of(kind) if event['step'] in clock]
    return (np.array([x for x, _ in pairs], float),
            np.array([math.nan if y is None else y * factor for _, y in pairs], float))


def smoothed(ys, factor):
    """The exponential mean up to each known value: m = factor * m + (1 - factor) * y, divided by its weights' sum."""
    mean, weight, means = 0.0, 0.0, []
    for y in ys:
        if y == y: mean, weight = factor * mean + (1 - factor) * y, factor * weight + (1 - factor)
        means.append(mean / weight if y == y else math.nan)
    return np.array(means)


def window_of(smooth):
    """The number of steps whose plain mean varies as much as the exponential moving average."""
    return max(round((1 + smooth) / (1 - smooth)), 1)


def medians(ys, window):
    """The median of the known values among the last `window` at each known one."""
    return np.array([np.nanmedian(ys[max(k + 1 - window, 0):k + 1]) if y == y else y for k, y in enumerate(ys)])


def measured(run, ys, measure):
    """Losses in another measure; NaN if too large to draw."""
    if measure == 'perplexity': return np.exp(np.where(ys < math.log(LARGEST), ys, math.nan))
    if measure == 'loss': return ys
    for event in reversed(run.of('val')):  # the validation's bytes per token also for training
        loss, bits = number(event.get('loss')), number(event.get('bits_per_byte'))
        if loss and bits is not None: return ys * (bits / loss)
    return fail('--y', 'bits-per-byte', 'loss or perplexity',
                f'{in_quotes(run.log)} has no validation with "bits_per_byte"')


def noise_of(run, clock):
    """xs, the noise scale, its relative standard deviation, and the lower bound where the estimate is weak."""
    xs, scale = points(run, clock, 'step', 'noise_scale_tokens')
    deviation = points(run, clock, 'step', 'noise_relative_deviation')[1]
    least = points(run, clock, 'step', 'noise_at_least_tokens')[1]
    weak = np.array([event.get('noise_state') == 'weak' for event in run.of('step') if event['step'] in clock], bool)
    scale = np.where(~weak & (scale > 0), scale, math.nan)
    return xs, scale, np.where(deviation < 1, deviation, math.nan), np.where(weak & (least > 0), least, math.nan)
