# run_plot.py - the figure that dev/plot draws: runs overlaid, a panel for each measurement; unknown values leave a gap
import math
import re
import textwrap
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from matplotlib.transforms import ScaledTranslation

from run_log import amount, as_text, number
from tool_main import fail, in_quotes, one_of

AXES = ('steps', 'tokens', 'hours')
MEASURES = {'loss': 'loss (nats per token)', 'perplexity': 'perplexity', 'bits-per-byte': 'bits per byte'}
# Okabe and Ito without black, and Tol's indigo: distinguishable with colour blindness. A colour names a run, and a line
# style or marker what is drawn. The colours of more runs are darker, then lighter.
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#332288', '#7a5230')
SET_MARKERS = 's^Dv<>PX*pd8'  # of the sets of --val-data
GREY, DARK = '#767676', '#404040'
STYLE = {'font.size': 10, 'text.parse_math': False, 'axes.grid': True, 'grid.color': '#e4e4e4', 'axes.edgecolor': GREY,
         'axes.spines.top': False, 'axes.spines.right': False, 'axes.titlelocation': 'left', 'axes.titlesize': 11,
         'axes.titleweight': 'bold', 'legend.frameon': False, 'legend.fontsize': 9.5, 'lines.linewidth': 1.6,
         'pdf.fonttype': 42}
# Title, event, its field, factor, and the y axis: from 0, or logarithmic if values differ by more than a factor of 4.
PANELS = {
    'loss': ('', 'step', 'loss', 1, ''),  # its title is the measure
    'hellaswag': ('HellaSwag acc_norm (%)', 'hellaswag', 'acc_norm', 100, 'from 0'),
    'lr': ('learning rate', 'step', 'lr', 1, 'from 0'),  # logarithmic for several runs
    'norm': ('gradient norm, before clipping', 'step', 'grad_norm', 1, 'log'),
    'cosine': ("cosine between the workers' changes (1: equal)", 'outer', 'cosine', 1, 'from 0'),
    'noise': ('noise scale (tokens)', 'step', 'noise_scale_tokens', 1, 'log'),
    'speed': ('tokens per second', 'step', 'tokens_per_s', 1, 'from 0'),
    'mfu': ('MFU (%)', 'step', 'mfu', 100, 'from 0'),
}


def clocks_of(runs, axis):
    """The unit of the x axis, and each run's {completed steps: x}."""
    clocks, unit, scale = [], axis, 1
    for run in runs:
        clocks.append({'steps': run.steps_at, 'tokens': run.tokens_at, 'hours': run.seconds_at}[axis]())
        if not clocks[-1] and axis != 'steps':
            fail('--x', axis, 'steps', f'{in_quotes(run.log)} does not have the {axis} of its steps')
    if axis == 'hours':
        longest = max(x for clock in clocks for x in clock.values())
        unit, scale = ('hours', 3600) if longest >= 5400 else ('minutes', 60) if longest >= 90 else ('seconds', 1)
    return unit, [{steps: x / scale for steps, x in clock.items()} for clock in clocks]


def points(run, clock, kind, *keys):
    """xs of a run's events whose x is known, and the numbers of each key."""
    events = [event for event in (run.validations() if kind == 'val' else run.of(kind)) if event['step'] in clock]
    rows = [(clock[event['step']], *(number(event.get(key)) for key in keys)) for event in events]
    return np.array(rows, float).reshape(len(rows), 1 + len(keys)).T


def smoothed(ys, steps, of):
    """At each known value, the mean or median (`of`) of the known ones in a window around it; --help has its size."""
    side = min(steps // 2, max(1, len(ys) // 10))
    padded = np.pad(ys, (side, side + 1), constant_values=math.nan)
    result = of(np.lib.stride_tricks.sliding_window_view(padded, 2 * side + 1), axis=1)[:len(ys)]
    for k in range(min(side, len(ys))): result[k] = of(ys[:2 * k + 1])
    return np.where(np.isnan(ys), ys, result)


def measured(run, ys, measure):
    """Losses in another measure."""
    if measure == 'loss': return ys
    if measure == 'perplexity': return np.exp(ys)
    for event in reversed(run.of('val')):  # the validation's bytes per token also for training
        loss, bits = number(event.get('loss')), number(event.get('bits_per_byte'))
        if loss and bits is not None: return ys * (bits / loss)
    return fail('--y', 'bits-per-byte', 'loss or perplexity',
                f'{in_quotes(run.log)} has no validation with "bits_per_byte"')


def colour_of(i):
    """The colour of run i."""
    base, turn = COLOURS[i % len(COLOURS)], i // len(COLOURS) % 3
    return base if turn == 0 else tuple(0.5 * part + 0.5 * (turn == 2) for part in to_rgb(base))


def title_of(runs):
    """Model, data and date, of those that all runs have in common, otherwise the names of the runs."""
    facts = []
    for run in runs:
        model, options, time = (run.start.get(key) for key in ('model', 'options', 'time'))
        data = options.get('train-data') if isinstance(options, dict) else None
        names = [re.sub(r'_(train|\*).*', '', Path(each).name) for each in (data if isinstance(data, list) else [data])
                 if isinstance(each, str)]
        facts.append((model.get('name') if isinstance(model, dict) else None, ' + '.join(names), str(time or '')[:10]))
    common = [str(each[0]) for each in zip(*facts) if each[0] and len(set(each)) == 1]
    return ', '.join(common or [run.name for run in runs])


def wrapped(text, most):
    """The text in lines of at most so many characters, which fit on the figure."""
    return textwrap.fill(as_text(text), most, break_long_words=True)


class Plot:
    """The figure of runs; summaries: a line for each; references: runs in grey that do not extend the x axis.

    panels  names of PANELS, the first one large; None: all that the runs have
    steps   whether to draw the values of every step, and not only their means
    title   None: title_of(runs)
    """

    def __init__(self, runs, axis='steps', smooth=20, references=(), measure='loss', panels=None, steps=True,
                 title=None):
        self.smooth, self.window, self.measure, self.several = smooth, smooth // 2 * 2 + 1, measure, len(runs) > 1
        self.every_step = steps
        self.summaries, self.labels, self.kinds, self.drawn = [], {}, {}, defaultdict(list)
        self.unit, clocks = clocks_of([*runs, *references], axis)
        sets = dict.fromkeys(key for run in (*runs, *references) for event in run.validations() for key in event if
                             isinstance(key, tuple) and measure != 'bits-per-byte')  # their bytes are unknown
        ends = [Path(name).name for _, name in sets]
        self.sets = {key: key[1] if ends.count(end) > 1 else end for key, end in zip(sets, ends)}
        there = ['loss'] + [key for key, (_, kind, field, *_) in PANELS.items() if key != 'loss' and any(
            np.isfinite(points(run, clock, kind, field)[1]).any() for run, clock in zip(runs, clocks))]
        first, *keys = [one_of('--panels', key, there) for key in panels or there]
        rows = [[first, first], *map(list, zip(keys[::2], keys[1::2] + keys[-1:]))]  # an odd one is as wide as two
        self.figure = Figure(figsize=(12, 3.1 + 2.4 * len(rows)), layout='constrained')
        self.panels = self.figure.subplot_mosaic(rows, height_ratios=[2] + (len(rows) - 1) * [1])
        self.panels[first].set_xlabel(self.unit + ' of training and validation' * (axis == 'hours'))
        for i, (run, clock) in enumerate(zip(runs, clocks)): self.draw(run, clock, {'color': colour_of(i)})
        xs = np.concatenate([xs for lines in self.drawn.values() for xs, _ in lines])
        low, high = xs.min(), xs.max()
        low = 0 if low < high / 2 or low == high else low  # a branched run starts at its resume
        self.x_range = low, high if high > low else low + 1
        for run, clock in zip(references, clocks[len(runs):]): self.draw(run, clock, {'color': DARK})
        for key, panel in self.panels.items():
            panel.set_xlim(*self.x_range)
            self.set_y_range(panel, key)
            for which in (panel.xaxis, panel.yaxis):
                which.set_major_formatter(lambda value, _: amount(float(f'{value:.10g}'), 4))
            panel.yaxis.set_minor_formatter(lambda value, _: '')
        if 'loss' in self.panels: self.panels['loss'].set_title(MEASURES[measure])
        self.add_legends(self.panels[first], wrapped(title_of(runs) if title is None else title, 100))

    def add_legends(self, first, title):
        """The title and the runs above the first panel, its title on the y axis; above the losses the line styles."""
        first.set_ylabel(first.get_title('left'))
        first.set_title('')
        panel, above = self.panels.get('loss', first), 0
        if kinds := {kind: line for kind, line in self.kinds.items() if line}:
            above = self.add_legend(panel, kinds, 0)
            panel.set_title(panel.get_title('left'), pad=6 + 72 * above)
        self.add_legend(first, self.labels, above * (panel is first) + 0.25 * bool(first.get_title('right')))
        self.figure.set_figheight(self.figure.get_figheight() + 0.2 * title.count('\n'))
        self.figure.suptitle(title, x=0.01, ha='left', weight='bold', size=13)

    def add_legend(self, panel, lines, above):
        """A legend `above` inches above a panel, for which the figure becomes higher; returns its height in inches."""
        characters = 75 * len(panel.get_subplotspec().colspan)
        labels = [wrapped(label, characters - 15) for label in lines]
        columns = max(1, min(4, characters // max(len(line) + 8 for label in labels for line in label.split('\n'))))
        place = panel.transAxes + ScaledTranslation(0, above, self.figure.dpi_scale_trans)
        legend = Legend(panel, lines.values(), labels, loc='lower left', ncol=columns, borderaxespad=0.2,
                        bbox_to_anchor=(0, 1), bbox_transform=place)
        for line in legend.get_lines() if self.several and lines is not self.labels else (): line.set_color(DARK)
        panel.add_artist(legend).set_clip_on(False)  # part of the layout
        height = legend.get_window_extent().height / self.figure.dpi
        self.figure.set_figheight(self.figure.get_figheight() + height)
        return height

    def line(self, key, xs, ys, style, faint=False, **more):
        """Draws a line if the panel is shown."""
        few = {'marker': 'o', 'markersize': 3} if np.isfinite(ys).sum() < 40 else {}
        width = {'alpha': 0.32, 'linewidth': 0.8} if faint else {'zorder': 3}
        self.drawn[key, faint].append((xs, ys))
        return key in self.panels and self.panels[key].plot(xs, ys, **{**style, **few, **width, **more})[0]

    def draw(self, run, clock, style):
        """Draws a run in all panels."""
        for key in self.panels.keys() - {'loss'}: self.draw_panel(key, run, clock, style)
        words = []
        xs, ys = points(run, clock, 'step', 'loss')
        mean, ys = (measured(run, losses, self.measure) for losses in (smoothed(ys, self.smooth, np.nanmean), ys))
        if np.isfinite(ys).any():
            kind = f'training, mean of up to {self.window} steps' if self.smooth > 1 else 'training'
            self.kinds[kind] = self.line('loss', xs, mean, style)
            if self.smooth > 1 and self.every_step: self.kinds['every step'] = self.line('loss', xs, ys, style, True)
            words.append(f'training {mean[np.isfinite(mean)][-1]:.4f}')
        xs, ys = points(run, clock, 'outer', 'loss')
        if np.isfinite(ys).any():
            colour = COLOURS[2] if style['color'] == COLOURS[0] and not self.several else style['color']
            self.kinds['mean of workers at outer steps'] = self.line(
                'loss', xs, measured(run, ys, self.measure), {'color': colour, 'linestyle': ''}, True, alpha=0.6,
                marker='o', markersize=3)
        xs, ys, bits, targets = points(run, clock, 'val', 'loss', 'bits_per_byte', 'targets')
        ys = bits if self.measure == 'bits-per-byte' else measured(run, ys, self.measure)
        known = np.flatnonzero(np.isfinite(ys))
        if len(known):
            colour = COLOURS[1] if style['color'] == COLOURS[0] and not self.several else style['color']
            best = min((k for k in known[::-1] if targets[k] == targets[known[-1]]), key=lambda k: ys[k])
            dots = {'color': colour, 'marker': 'o', 'linestyle': '', 'zorder': 4}
            # Nothing was measured between validations, and most of the loss falls before the second one.
            dashes = {'linestyle': '--', 'linewidth': 0.9}
            self.line('loss', xs, ys, dots, markersize=4)
            if panel := self.panels.get('loss'):
                self.kinds['validation'] = Line2D([], [], markersize=4, **{**dots, **dashes})
                panel.plot(xs[best], ys[best], markersize=9, fillstyle='none', **dots)
                panel.plot(xs[xs > 0], ys[xs > 0], color=colour, zorder=4, **dashes)
            words.append(f'validation {ys[known[-1]]:.4f}, best {ys[best]:.4f} at {amount(xs[best])} {self.unit}')
            for i, (key, name) in enumerate(self.sets.items()):
                xs, ys = points(run, clock, 'val', key)
                if np.isfinite(ys).any():
                    self.kinds[f'validation of {name}'] = self.line(
                        'loss', xs, measured(run, ys, self.measure), {'color': colour}, markersize=3.5, linewidth=0.7,
                        marker=SET_MARKERS[i % len(SET_MARKERS)])
        if not words: fail(in_quotes(run.log), 'a log without a loss', 'the log of a run with at least one step')
        self.summaries.append(f'{run.name}: ' + ', '.join([f'{len(run.of("step"))} steps', *words]))
        label = ' ' * run.name.startswith('_') + f'{as_text(run.name)}: ' + ', '.join(words)  # "_" would hide it
        self.labels[label] = Line2D([], [], linewidth=3, **style)
        skipped = [event['step'] for event in run.of('outer_skip')]
        for kind, marks, line in (('resumed', run.resumes, ':'), ('outer step skipped', skipped, '-.')):
            for x in (clock[steps] for steps in marks if steps in clock):
                for panel in self.panels.values():
                    self.kinds[kind] = panel.axvline(x, linestyle=line, linewidth=1.2, color=style['color'])

    def draw_panel(self, key, run, clock, style):
        title, kind, field, factor, _ = PANELS[key]
        xs, ys = points(run, clock, kind, field)
        if key == 'noise': self.draw_noise(run, clock, style)
        elif key in ('hellaswag', 'lr', 'cosine') or self.smooth == 1: self.line(key, xs, ys * factor, style)
        else:
            if key == 'norm': title += f': median of up to {self.window} steps'  # a peak raises a mean
            if self.every_step: self.line(key, xs, ys * factor, style, True)
            of = np.nanmedian if key == 'norm' else np.nanmean
            self.line(key, xs, smoothed(ys, self.smooth, of) * factor, style)
        self.panels[key].set_title(title)

    def draw_noise(self, run, clock, style):
        """The noise scale, one standard deviation around it, and only the lower bound where the estimate is weak."""
        xs, scale, deviation, least = points(run, clock, 'step', 'noise_scale_tokens', 'noise_relative_deviation',
                                             'noise_at_least_tokens')
        weak = np.array([e.get('noise_state') == 'weak' for e in run.of('step') if e['step'] in clock], bool)
        scale = np.where(~weak & (scale > 0), scale, math.nan)
        deviation = np.where(deviation < 1, deviation, math.nan)
        panel, batch = self.panels['noise'], points(run, clock, 'step', 'tokens')[1]
        panel.fill_between(xs, scale * (1 - deviation), scale * (1 + deviation), color=style['color'], alpha=0.25,
                           linewidth=0)
        self.line('noise', xs, scale, style)
        self.line('noise', xs, np.where(weak & (least > 0), least, math.nan), style, linestyle=':')
        self.line('noise', xs, batch, style, linestyle='--', linewidth=1, marker='')
        panel.set_title('band: ±1 std. dev.; dotted: at least; dashed: batch', loc='right', color=GREY, size=9,
                        weight='normal')

    def known(self, key, faint):
        """All xs and ys of the lines drawn in a panel."""
        xs, ys = (np.concatenate([[], *parts]) for parts in list(zip(*self.drawn[key, faint])) or [[], []])
        inside = np.isfinite(ys) & (xs >= self.x_range[0]) & (xs <= self.x_range[1])
        return xs[inside], ys[inside]

    def set_y_range(self, panel, key):
        """Cuts off rare peaks of single steps, and of losses a beginning far above the rest."""
        (xs, ys), (raw_xs, raw), scale = self.known(key, False), self.known(key, True), PANELS.get(key, [''])[-1]
        if not len(ys): return
        begin = min(xs.max(), self.x_range[0] + (0.05 * np.ptp(self.x_range) if key == 'loss' else 0))
        most = np.concatenate((ys[xs >= begin], np.quantile([*raw[raw_xs >= begin], *ys[-1:]], (0.005, 0.995))))
        low, high, top = min(most.min(), ys.min()), most.max(), max(ys.max(), raw.max(initial=-math.inf))
        if top - low <= 1.4 * (high - low): high = top
        if key == 'lr' and self.several and high > 0:  # many schedules end at 0
            scale, peaks = 'log', [np.nanmax(each, initial=0) for _, each in self.drawn[key, False] if len(each)]
            low = max(min(peaks) / 100, ys[ys > 0].min())
        if scale == 'from 0': low = min(low, 0)
        if scale == 'log' and low > 1e-99 and high / low > 4:
            panel.set_yscale('log')
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1, 3)))
            panel.set_ylim(low / (high / low) ** 0.05, high * (high / low) ** 0.05)
        else:
            margin = 0.04 * (high - low) or 0.1 * abs(high) or 1
            panel.set_ylim(low - margin * (low != 0), high + margin)
        if top > panel.get_ylim()[1]:
            panel.text(0.995, 0.98, f'up to {amount(top, 4)}, cut off', transform=panel.transAxes, color=GREY,
                       ha='right', va='top')
