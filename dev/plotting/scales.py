# scales.py - axis ranges, ticks, tick labels and label positions of a panel
import math

from run_log import amount

SMALLEST = 1e-100  # on a logarithmic axis
BEGINNING = 0.05  # share of the x axis; losses there do not set the y range
LOSSES = ('mean', 'points', 'raw')


def linear_ticks(low, high, most):
    """At most `most` evenly spaced round numbers from low to high, and their spacing."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    while (high - low) / step > most:
        leading = round(step / 10 ** math.floor(math.log10(step) + 1e-9))
        step *= 2.5 if leading == 2 else 2
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)], step


def log_ticks(low, high, most=6):
    """Round numbers from low to high for a logarithmic axis: powers of ten, with 2 and 5, or more if it is short."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    best = []
    for mantissas in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        ticks = [m * 10.0 ** p for p in powers for m in mantissas if low <= m * 10.0 ** p <= high]
        if best and len(ticks) > most: break
        best = ticks
    while len(best) > most: best = best[::2]
    return best if len(best) > 1 else linear_ticks(low, high, most)[0]


def tick_text(value, step=None):
    """Text of a tick, with as many digits as distinguish it from ticks `step` away."""
    if value == 0 or abs(value) < step / 1e6 if step else value == 0: return '0'
    if abs(value) >= 10000 or abs(value) < 0.001:
        return amount(float(f'{value:.10g}'), 6) if abs(value) >= 1 else short_exponent(f'{value:.3g}')
    return f'{value:.10g}'


def short_exponent(text):
    """"3e-04" or "0.0003" as "3e-4"."""
    mantissa, exponent = f'{float(text):.2e}'.split('e')
    return f'{float(mantissa):g}e{int(exponent)}'


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def known(curves, kinds, begin=-math.inf):
    """Values that are not None, from curves of these kinds, at x >= `begin`."""
    return [y for curve in curves if curve.kind in kinds for x, y in zip(curve.xs, curve.ys)
            if y is not None and x >= begin]


def end_of_beginning(x_range):
    return x_range[0] + BEGINNING * (x_range[1] - x_range[0])


def loss_range(panel, x_range):
    """(low, high, the highest value that is cut off or None). Cuts off a beginning far above the rest and rare peaks
    of single steps. No value is below `low`."""
    begin = end_of_beginning(x_range)
    firm = ('mean', 'points')
    levels = known(panel.curves, ('reference',), begin)
    body = known(panel.curves, firm, begin) or known(panel.curves, firm)
    raw = known(panel.curves, ('raw',), begin)
    low = min(known(panel.curves, LOSSES) + levels)
    high = max(body + levels + ([quantile(raw, 0.995)] if raw else []))
    top = max(known(panel.curves, LOSSES) + levels)
    if top - low <= 1.4 * (high - low): high = top
    low, high = with_margin(low, high)
    return low, high, top if top > high else None


def cut_text(panel, x_range, top):
    """Note about the losses that are cut off; `top` is the highest of them."""
    at_peak = top in known(panel.curves, LOSSES, end_of_beginning(x_range))
    return f'peaks, up to {top:.2f}, are cut off' if at_peak else f'the beginning, up to {top:.2f}, is cut off'


def with_margin(low, high, share=0.04):
    """The range with a margin on both sides, and a nonempty range if both ends are equal."""
    margin = share * (high - low) or 0.1 * abs(high) or 1
    return low - margin, high + margin


def panel_range(panel):
    """(low, high, whether the axis is logarithmic) of a panel other than the loss."""
    values = [y for curve in panel.curves for y in curve.ys if y is not None]
    firm = known(panel.curves, ('mean', 'points', 'level', 'bound', 'reference')) or values
    raw = known(panel.curves, ('raw',))
    low, high = min(firm), max(firm)
    if panel.key == 'lr' and panel.log:  # several runs: two decades below the lowest peak, as many schedules end at 0
        peaks = [max(y for y in curve.ys if y is not None) for curve in panel.curves]
        low = max([min(peaks) / 100] + [min(y for y in firm if y > 0)] if min(peaks) > 0 else [low])
    if raw: low, high = min(low, quantile(raw, 0.005)), max(high, quantile(raw, 0.995))
    if panel.log and low > SMALLEST and high / low > 4:
        return low / (high / low) ** 0.05, high * (high / low) ** 0.05, True
    if panel.from_zero and low >= 0: return 0, high * 1.08 or 1, False
    return (*with_margin(low, high), False)


def fraction(value, low, high, log=False):
    """Position of a value on the axis: 0 at its lower end, 1 at its upper."""
    if log: value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def apart(wanted, sizes):
    """Centres of labels of these sizes on an axis from 0 to 1: as close as possible to `wanted`, in the same order,
    without overlap."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed, edge = {}, 0.0
    for i in order:
        placed[i] = max(wanted[i], edge + sizes[i] / 2)
        edge = placed[i] + sizes[i] / 2
    edge = 1.0
    for i in reversed(order):
        placed[i] = min(placed[i], edge - sizes[i] / 2)
        edge = placed[i] - sizes[i] / 2
    return [placed[i] for i in range(len(wanted))]
