# frame.py - a run as lines of text: progress, last numbers and loss curve in braille characters
import math

from run_log import amount, duration, number

from plotting.panels import clock_of, loss_panel
from plotting.scales import fraction, linear_ticks, loss_range, tick_text

AXIS = 9  # columns of the y axis
# Dots of a braille character, by column and row from the top.
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
RECENT = 100  # steps used to estimate the time left


def lines_of(run, width, height, age, smooth=0.9):
    """At most `height` lines of at most `width` columns. `age`: seconds since the last write to the log."""
    steps = run.of('step')
    lines = [head(run, steps), bar(run, steps, width), state(run, steps, age), '']
    lines += [*fitted(losses(run, steps, smooth), width), *fitted(numbers(steps), width)]
    room = height - len(lines) - 3
    if room >= 4 and width >= AXIS + 20 and has_loss(run):
        lines += ['', *chart(run, width, room, smooth)]
    return [cropped(line, width) for line in lines[:height]]


def cropped(text, width):
    clean = ''.join(c if c.isprintable() else '?' for c in text)
    return clean if len(clean) <= width else clean[:max(width - 1, 0)] + '…'


def has_loss(run):
    return any(number(event.get('loss')) is not None for kind in ('step', 'val') for event in run.of(kind))


def progress(run, steps):
    """Completed steps, and total steps or None."""
    done = steps[-1]['step'] if steps else (run.resumes[-1] if run.resumes else 0)
    return done, run.total_steps()


def share_done(run, steps):
    """The part of the run that is completed, 0 to 1, by steps or by time; None if unknown."""
    done, total = progress(run, steps)
    if total: return done / total
    return number(steps[-1].get('progress')) if steps else None


def seconds_left(run, steps):
    """Estimate from the recent steps, including validations between them, or from the run's time; None if unknown."""
    done, total = progress(run, steps)
    if total is None and run.seconds_of_run() is not None and share_done(run, steps) is not None:
        return run.seconds_of_run() * (1 - share_done(run, steps))
    at = run.seconds_at()
    back = steps[-min(len(steps), RECENT)]['step'] - 1 if steps else done
    begin = at.get(back, 0 if back == 0 else None)
    if total is None or begin is None or done not in at or done <= back: return None
    return (at[done] - begin) / (done - back) * max(total - done, 0)


def head(run, steps):
    done, total = progress(run, steps)
    words = [run.name, f'step {done}' + (f' of {total}' if total is not None else '')]
    share = share_done(run, steps)
    if share is not None: words.append(f'{100 * share:.1f} %')
    left = seconds_left(run, steps) if run.end is None else None
    if left is not None: words.append(f'{duration(left)} left')
    return ' | '.join(words)


def bar(run, steps, width):
    share = share_done(run, steps)
    if share is None: return ''
    eighths = round(min(share, 1) * width * 8)
    partial = '' if eighths % 8 == 0 else '▏▎▍▌▋▊▉'[eighths % 8 - 1]
    return ('█' * (eighths // 8) + partial).ljust(width, '░')


def state(run, steps, age):
    if run.end is not None:
        took = number(run.end.get('seconds'))
        since = ' since the last resume' if run.resumes else ' in total'
        return f'ended {duration(age)} ago: {run.end.get("reason", "no reason given")}' + (
            f', {duration(took)}{since}' if took is not None else '')
    recent = [number(event.get('ms')) or 0 for event in steps[-RECENT:]]
    if age <= max(10, 5e-3 * max(recent, default=0)): return 'running'
    return f'no output for {duration(age)}: validating, waiting, or not running'


def losses(run, steps, smooth):
    if not has_loss(run): return ['no loss yet']
    words, values = [], loss_panel([run], [clock_of(run, 'steps')], smooth).values[0]
    if values.training:
        last = number(steps[-1].get('loss'))
        words.append(f'loss {"n/a" if last is None else f"{last:.4f}"}, smoothed {values.training[1]:.4f}')
    if values.last:
        words.append(f'validation {values.last[1]:.4f} at {values.last[0]}, best {values.best[1]:.4f} at '
                     f'{values.best[0]}')
    return words


def numbers(steps):
    if not steps: return []
    last = steps[-1]

    def text(key, form, factor=1.0):
        value = number(last.get(key))
        return 'n/a' if value is None else form(value * factor)
    noise = text('noise_scale_tokens', amount)
    if last.get('noise_state') == 'weak': noise = '> ' + text('noise_at_least_tokens', amount)
    words = [f'lr {text("lr", "{:.2e}".format)}', f'norm {text("grad_norm", "{:.4f}".format)}',
             f'{text("tokens_per_s", amount)} tok/s', f'{text("ms", "{:.1f}".format)} ms per step']
    # Most machines and runs have no noise scale and no MFU.
    if not noise.endswith('n/a'): words.append(f'noise {noise} tokens')
    if number(last.get('mfu')) is not None: words.append(f'MFU {text("mfu", "{:.1f} %".format, 100)}')
    return words


def fitted(words, width):
    """The words joined by " | ", wrapped into lines of `width`."""
    lines = []
    for word in words:
        if lines and len(lines[-1]) + 3 + len(word) <= width: lines[-1] += ' | ' + word
        else: lines.append(word)
    return lines


def chart(run, width, rows, smooth):
    """`rows` lines of curve, then two: the axis of steps and the legend."""
    clock = clock_of(run, 'steps')
    panel = loss_panel([run], [clock], smooth)
    panel.curves = [curve for curve in panel.curves if curve.kind != 'raw']
    xs = [x for curve in panel.curves for x in curve.xs]
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    x_low = 0 if x_low <= x_high / 2 else x_low
    low, high, _ = loss_range(panel, (x_low, x_high))
    columns = width - AXIS
    cells = [[0] * columns for _ in range(rows)]
    marks = {}
    for curve in panel.curves:
        before = None
        for x, y in zip(curve.xs, curve.ys):
            if y is None or y > high:
                before = None
                continue
            at = ((x - x_low) / (x_high - x_low) * (2 * columns - 1), (1 - fraction(y, low, high)) * (4 * rows - 1))
            if curve.kind == 'points': marks[round(at[1]) // 4, round(at[0]) // 2] = '●'
            else: draw_line(cells, before or at, at)
            before = at
    texts = {round((1 - fraction(y, low, high)) * (4 * rows - 1)) // 4: tick_text(y, 1)
             for y in linear_ticks(low, high, max(2, rows // 3))[0]}
    lines = []
    for row, line in enumerate(cells):
        drawn = ''.join(marks.get((row, k)) or (chr(0x2800 + dots) if dots else ' ') for k, dots in enumerate(line))
        lines.append(f'{texts.get(row, "")[:AXIS - 2]:>{AXIS - 2}} ' + ('┤' if row in texts else '│') + drawn.rstrip())
    lines.append(x_axis(x_low, x_high, columns))
    shown = [f'line: training, smoothed ({smooth:g})'] * any(c.kind == 'mean' for c in panel.curves)
    shown += ['●: validation'] * bool(marks)
    return lines + [' ' * AXIS + 'loss by step; ' + ', '.join(shown)]


def draw_line(cells, begin, end):
    count = max(1, math.ceil(max(abs(end[0] - begin[0]), abs(end[1] - begin[1]))))
    for k in range(count + 1):
        x = round(begin[0] + (end[0] - begin[0]) * k / count)
        y = round(begin[1] + (end[1] - begin[1]) * k / count)
        cells[y // 4][x // 2] |= DOTS[x % 2][y % 4]


def x_axis(low, high, columns):
    line = [' '] * (AXIS + columns)
    for x in linear_ticks(low, high, max(2, columns // 14))[0]:
        if x != round(x): continue
        text = tick_text(x)
        at = AXIS + round((x - low) / (high - low) * (columns - 1)) - len(text) // 2
        at = max(0, min(at, len(line) - len(text)))
        if all(c == ' ' for c in line[max(at - 1, 0):at + len(text) + 1]): line[at:at + len(text)] = text
    return ''.join(line).rstrip()


def in_ascii(line):
    """For terminals that show only ASCII."""
    table = {'█': '#', '░': '.', '│': '|', '┤': '+', '●': 'o', '…': '~'}
    return ''.join(table.get(c) or (c if ord(c) < 128 else '*') for c in line)
