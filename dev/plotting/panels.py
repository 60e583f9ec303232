# panels.py - the contents of a plot of runs: panels of curves as numbers, independent of drawing
import bisect
import math
from dataclasses import dataclass, field

from run_log import LARGEST, is_count, number, smoothed
from tool_main import fail, in_quotes

from plotting.references import REFERENCES, TOKENS_PER_STEP

# Curves with more points are reduced, to at most one point per column of the plot. A faint curve keeps the minimum and
# maximum of each segment, a mean its last value.
MOST_POINTS = 3000

AXES = ('steps', 'tokens', 'hours')
# Titles of the first panel.
MEASURES = {'loss': 'loss (nats per token)', 'perplexity': 'perplexity', 'bits-per-byte': 'bits per byte'}


@dataclass
class Curve:
    """kind: raw (faint), mean, points (validation), band, bound (a lower bound), level (a constant of a run),
    reference. xs: rising; ys: None is a gap; a band has its edges in ys and highs. run: its index, -1: none."""
    kind: str
    run: int
    xs: list
    ys: list
    highs: list = None
    name: str = ''


@dataclass
class Panel:
    """key: loss, lr, ...; note: about its lines; log: whether its axis should be logarithmic; from_zero: whether it
    starts at 0."""
    key: str
    title: str
    note: str = ''
    log: bool = False
    from_zero: bool = False
    curves: list = field(default_factory=list)
    values: list = field(default_factory=list)  # loss panel: one Values per run


@dataclass
class Values:
    """Last and best losses of a run, None if it has none. Validation: (x, loss); training: (x, smoothed loss)."""
    last: tuple = None
    best: tuple = None
    training: tuple = None


@dataclass
class Picture:
    axis: str    # one of AXES
    unit: str    # unit of the axis: "steps", "tokens", "hours", "minutes", "seconds"
    x_range: tuple
    names: list  # of runs
    panels: list
    resumes: list  # (run, x)
    smooth: float
    notes: list    # warnings, printed to the terminal


# key, title, key in the step event, factor, log, from_zero
OF_STEPS = (
    ('lr', 'learning rate', 'lr', 1, False, True),  # log for several runs
    ('norm', 'gradient norm, before clipping', 'grad_norm', 1, True, False),
    ('noise', 'noise scale (tokens)', 'noise_scale_tokens', 1, True, False),
    ('speed', 'tokens per second', 'tokens_per_s', 1, False, True),
    ('mfu', 'MFU (%)', 'mfu', 100, False, True),
)


def make_picture(runs, axis='steps', smooth=0.9, reference=None, measure='loss'):
    """The Picture of runs that were read. Throws ToolError if there is nothing to draw."""
    clocks = [clock_of(run, axis) for run in runs]
    unit, scale = unit_of(axis, clocks)
    clocks = [{steps: x * scale for steps, x in clock.items()} for clock in clocks]
    picture = Picture(axis, unit, None, [run.name for run in runs], [], [], smooth, [])
    picture.panels.append(loss_panel(runs, clocks, smooth, measure))
    picture.panels += [panel for panel in [hellaswag_panel(runs, clocks)] + [
        panel_of_steps(runs, clocks, smooth, *row) for row in OF_STEPS] if panel.curves]
    xs = [x for panel in picture.panels for curve in panel.curves for x in curve.xs]
    low, high = min(xs), max(xs)
    low = 0 if low < high / 2 or low == high else low  # a branched run starts at its resume
    picture.x_range = (low, high if high > low else low + 1)
    for i, (run, clock) in enumerate(zip(runs, clocks)):
        picture.resumes += [(i, clock[steps]) for steps in run.resumes if low < clock.get(steps, low) < high]
    if reference: add_reference(picture, runs, reference, measure)
    return picture


def clock_of(run, axis):
    """{completed steps: x}."""
    if axis == 'steps': return {e['step']: e['step'] for e in run.events if is_count(e.get('step'))}
    at = run.tokens_at() if axis == 'tokens' else run.seconds_at()
    if not at: fail('--x', axis, 'steps', f'{in_quotes(run.log)} does not have the {axis} of its steps')
    return at


def unit_of(axis, clocks):
    """The unit of the axis, and the factor from the clock's numbers to it."""
    if axis != 'hours': return axis, 1
    longest = max((x for clock in clocks for x in clock.values()), default=0)
    return ('hours', 1 / 3600) if longest >= 5400 else ('minutes', 1 / 60) if longest >= 90 else ('seconds', 1)


def points(events, clock, key, factor=1):
    """xs and ys of the events whose x is known; unknown values are None."""
    xs, ys = [], []
    for event in events:
        x, value = clock.get(event['step']), number(event.get(key))
        if x is None: continue
        xs.append(x)
        ys.append(None if value is None else value * factor)
    return xs, ys


def is_known(ys):
    return any(y is not None for y in ys)


def bits_per_byte_of_nats(run):
    """The factor from a loss to bits per byte, which is that of the validation's texts also for training."""
    for event in reversed(run.of('val')):
        loss, bits = number(event.get('loss')), number(event.get('bits_per_byte'))
        if loss and bits is not None: return bits / loss
    return fail('--y', 'bits-per-byte', 'loss or perplexity',
                f'{in_quotes(run.log)} has no validation with "bits_per_byte"')


def measured(ys, measure, factor):
    """Losses in another measure; None if it is too large to draw."""
    def of(loss):
        if measure == 'perplexity': return math.exp(loss) if loss < math.log(LARGEST) else None
        return loss * factor
    return ys if measure == 'loss' else [None if loss is None else of(loss) for loss in ys]


def loss_panel(runs, clocks, smooth, measure='loss'):
    panel, means, validations = Panel('loss', MEASURES[measure]), [], []
    for i, (run, clock) in enumerate(zip(runs, clocks)):
        values, factor = Values(), bits_per_byte_of_nats(run) if measure == 'bits-per-byte' else 1
        xs, ys = points(run.of('step'), clock, 'loss')
        mean, ys = (measured(losses, measure, factor) for losses in (smoothed(ys, smooth), ys))
        if is_known(ys):
            if smooth > 0: panel.curves.append(thinned(Curve('raw', i, xs, ys)))
            means.append(thinned(Curve('mean', i, xs, mean)))
            values.training = last_of(xs, mean)
        xs, ys = points(run.of('val'), clock, 'loss')
        ys = measured(ys, measure, factor)
        if is_known(ys):
            validations.append(Curve('points', i, xs, ys))
            values.last = last_of(xs, ys)
            values.best = min(((x, y) for x, y in zip(xs, ys) if y is not None), key=lambda point: point[1])
        if values == Values():
            fail(in_quotes(run.log), 'a log without a loss', 'the log of a run with at least one step',
                 'there is nothing to draw')
        panel.values.append(values)
    panel.curves += means + validations
    return panel


def last_of(xs, ys):
    return next(((x, y) for x, y in zip(reversed(xs), reversed(ys)) if y is not None), None)


def hellaswag_panel(runs, clocks):
    panel = Panel('hellaswag', 'HellaSwag acc_norm (%)')
    for i, (run, clock) in enumerate(zip(runs, clocks)):
        xs, ys = points(run.of('hellaswag'), clock, 'acc_norm', 100)
        if is_known(ys): panel.curves.append(Curve('points', i, xs, ys))
    return panel


def panel_of_steps(runs, clocks, smooth, key, title, name, factor, log, from_zero):
    window = window_of(smooth)
    panel, above = Panel(key, title, '', log or (key == 'lr' and len(runs) > 1), from_zero), []
    if key == 'norm' and window > 1: panel.note = f'median of {window} steps'
    for i, (run, clock) in enumerate(zip(runs, clocks)):
        steps = run.of('step')
        xs, ys = points(steps, clock, name, factor)
        if not is_known(ys): continue
        if key == 'noise': panel.curves += noise_curves(i, run, clock)
        elif key == 'lr' or smooth == 0: above.append(thinned(Curve('mean', i, xs, ys)))
        else:
            panel.curves.append(thinned(Curve('raw', i, xs, ys)))
            # Rare norms far above the rest would raise a mean for many steps.
            line = medians(ys, window) if key == 'norm' else smoothed(ys, smooth)
            above.append(thinned(Curve('mean', i, xs, line)))
    panel.curves += above
    panel.curves.sort(key=lambda curve: curve.kind != 'band')  # below the lines of all runs
    batches = {run.tokens_per_step() for run in runs}
    if key == 'noise' and panel.curves and len(batches) == 1 and None not in batches:
        xs = [x for curve in panel.curves for x in curve.xs]
        ends = [min(xs), max(xs)]
        panel.curves.append(Curve('level', -1, ends, [batches.pop()] * 2, name='batch'))
    return panel


def window_of(smooth):
    """The number of steps whose plain mean varies as much as the exponential moving average."""
    return max(round((1 + smooth) / (1 - smooth)), 1)


def medians(ys, window):
    """The median of the known values among the last `window` at each known one."""
    ordered, result = [], []
    for k, y in enumerate(ys):
        if k >= window and ys[k - window] is not None:
            del ordered[bisect.bisect_left(ordered, ys[k - window])]
        if y is not None: bisect.insort(ordered, y)
        result.append(None if y is None else (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)
    return result


def noise_curves(i, run, clock):
    """The noise scale, one standard deviation around it, and only the lower bound where the estimate is weak."""
    steps = run.of('step')
    xs, scale = points(steps, clock, 'noise_scale_tokens')
    _, deviation = points(steps, clock, 'noise_relative_deviation')
    _, least = points(steps, clock, 'noise_at_least_tokens')
    states = [event.get('noise_state') for event in steps if clock.get(event['step']) is not None]
    weak = [state == 'weak' for state in states]
    line = [None if w or y is None or y <= 0 else y for y, w in zip(scale, weak)]
    known = [y is not None and d is not None and d < 1 for y, d in zip(line, deviation)]
    curves = []
    if any(known):
        low = [y * (1 - d) if k else None for y, d, k in zip(line, deviation, known)]
        high = [y * (1 + d) if k else None for y, d, k in zip(line, deviation, known)]
        curves.append(thinned(Curve('band', i, xs, low, high)))
    bound = [y if w and y is not None and y > 0 else None for y, w in zip(least, weak)]
    if is_known(bound): curves.append(thinned(Curve('bound', i, xs, bound)))
    if is_known(line): curves.append(thinned(Curve('mean', i, xs, line)))
    return curves


def thinned(curve, most=MOST_POINTS):
    """The curve with at most about `most` points; gaps stay gaps."""
    size = -(-2 * len(curve.xs) // most)
    if size <= 2: return curve
    xs, ys, highs = [], [], []
    for begin in range(0, len(curve.xs), size):
        segment = range(begin, min(begin + size, len(curve.xs)))
        known = [k for k in segment if curve.ys[k] is not None]
        if curve.kind == 'raw' and known:
            keep = sorted({min(known, key=curve.ys.__getitem__), max(known, key=curve.ys.__getitem__)})
        else:
            keep = known[-1:]
        gap = next((k for k in segment if curve.ys[k] is None), None)
        for k in sorted(set(keep) | ({gap} - {None})):
            xs.append(curve.xs[k])
            ys.append(curve.ys[k])
            if curve.highs: highs.append(curve.highs[k])
    return Curve(curve.kind, curve.run, xs, ys, highs or None, curve.name)


def add_reference(picture, runs, name, measure='loss'):
    reference = REFERENCES[name]
    low, high = picture.x_range
    others = {run.vocabulary() for run in runs} - {None, reference['vocabulary']}
    if others:
        picture.notes.append(f'--reference {name} has losses in nats per token of a vocabulary of '
                             f'{reference["vocabulary"]}, not {min(others)}: they are not comparable with these runs')
    losses = measure != 'bits-per-byte'
    if not losses: picture.notes.append(f'--reference {name} has no bits per byte; only HellaSwag is drawn')
    for panel in picture.panels:
        factor = 100 if panel.key == 'hellaswag' else 1
        for label, value, source in reference['levels'].get(panel.key, ()):
            if panel.key == 'loss' and not losses: continue
            if panel.key == 'loss': value, = measured([value], measure, 1)
            panel.curves.append(Curve('reference', -1, [low, high], [value * factor] * 2, name=f'{label}, {source}'))
    if not losses: return
    curve = reference['curve']
    if picture.axis == 'hours':
        picture.notes.append(f'the curve of {curve["name"]} has no hours; only levels are drawn')
        return
    batches = {run.tokens_per_step() for run in runs} - {None, TOKENS_PER_STEP}
    if picture.axis == 'steps' and batches:
        picture.notes.append(f'steps of {curve["name"]} have {TOKENS_PER_STEP} tokens, not {min(batches)}; '
                             'use --x tokens to compare the curves')
    scale = TOKENS_PER_STEP if picture.axis == 'tokens' else 1
    xs, ys = within([(steps * scale, loss) for steps, loss in curve['loss']], low, high)
    ys = measured(ys, measure, 1)
    if len(xs) > 1:
        picture.panels[0].curves.append(
            Curve('reference', -1, xs, ys, name=f'{curve["name"]}, {curve["source"]}'))


def within(pairs, low, high):
    """The part of a polyline from low to high, with interpolated ends."""
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]

    def at(x):
        k = min(max(bisect.bisect_right(xs, x), 1), len(xs) - 1)
        return ys[k - 1] + (ys[k] - ys[k - 1]) * (x - xs[k - 1]) / (xs[k] - xs[k - 1])
    inside = [(x, y) for x, y in pairs if low < x < high]
    ends = [x for x in (low, high) if xs[0] <= x <= xs[-1]]
    cut = sorted(inside + [(x, at(x)) for x in ends])
    return [x for x, _ in cut], [y for _, y in cut]
