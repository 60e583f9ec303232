# gnuplot.py - the gnuplot script that draws a plot of runs
#
# Text from a user or a log is written as data or in single quotes, where gnuplot has no escapes, commands or variables.
from dataclasses import dataclass

from plotting.scales import (apart, cut_text, fraction, linear_ticks, log_ticks, loss_range, panel_range,
                             short_exponent, tick_text)

# In pixels; a page shows 1200 pixels at about 850. LOSS_HEIGHT: without title, legend and axis.
WIDTH, LOSS_HEIGHT, PANEL_HEIGHT = 1200, 400, 244
FONT, TITLE, LINE, GAP, LETTER, SAMPLE = 17, 19, 23, 6, 9.6, 42
LEFT, RIGHT, MIDDLE, EDGE = 86, 226, 96, 44  # margins: left, right of the loss, between two columns, right of them
# Okabe and Ito: distinguishable with colour blindness.
COLOURS = ('0072b2', 'd55e00', '009e73', 'cc79a7', 'e69f00', '56b4e9', '000000')
VALIDATION = COLOURS[1]  # for a single run; with several, a run's own colour
GREY, GRID, DARK = '767676', 'e4e4e4', '404040'


def colour_of(run):
    return COLOURS[run % len(COLOURS)] if run >= 0 else GREY


def faint(colour, share=0.68):
    """The colour, mixed with white by `share`."""
    parts = [int(colour[k:k + 2], 16) for k in (0, 2, 4)]
    return ''.join(f'{round(part + (255 - part) * share):02x}' for part in parts)


def dashes(run):
    """Dash styles that distinguish runs of the same colour."""
    return ('', ' dt 2', ' dt 4', ' dt 5')[run // len(COLOURS) % 4] if run >= 0 else ''


def quoted(text):
    clean = ''.join(c if c.isprintable() else '?' for c in str(text))
    return "'" + clean.encode('utf-8', 'replace').decode().replace("'", "''") + "'"


def shortened(text, most):
    return text if len(text) <= most else text[:most // 2] + '…' + text[len(text) - most + most // 2 + 1:]


@dataclass
class Layout:
    """Positions in pixels from the top: loss curves, first row of the panels below, end."""
    legend: list  # entries of key_entries(), each with x and row
    top: float
    bottom: float
    below: float
    height: float


def layout_of(picture):
    legend, x, row = [], LEFT, 0
    for entry in key_entries(picture, picture.panels[0]):
        width = SAMPLE + len(entry[1]) * LETTER + 28
        if x > LEFT and x + width > WIDTH - EDGE: x, row = LEFT, row + 1
        legend.append((*entry, x, row))
        x += width
    top = 44 + (row + 1) * LINE + 12
    bottom = top + max(LOSS_HEIGHT, (len(picture.names) + 2) * LINE)
    rows = -(-len(picture.panels[1:]) // 2)
    return Layout(legend, top, bottom, bottom + 66, bottom + 66 + rows * PANEL_HEIGHT)


def data_block(name, curve):
    """The points of a curve as a gnuplot data block; an empty line is a gap."""
    lines = [f'${name} << EOD']
    for k, (x, y) in enumerate(zip(curve.xs, curve.ys)):
        if y is None: lines.append('')
        elif curve.highs: lines.append(f'{x!r} {y!r} {curve.highs[k]!r}')
        else: lines.append(f'{x!r} {y!r}')
    return '\n'.join(lines + ['EOD'])


def reference_style(curve):
    return 'lw 1.5' + (' dt 2' if len(set(curve.ys)) == 1 else '')


def dot(size, kind=7):
    """A point style; the factor `point` makes it the same size in .svg and .png."""
    return f'pt {kind} ps {size:g}*point'


def plot_words(name, curve, several):
    colour, few = colour_of(curve.run), sum(y is not None for y in curve.ys) < 40
    if curve.kind == 'points' and not several: colour = VALIDATION
    line = f'{"linespoints " + dot(0.5) if few else "lines"}{dashes(curve.run)}'
    style = {
        'raw': f"using 1:2 with {line} lw 1 lc rgb '#{faint(colour)}'",
        'mean': f"using 1:2 with {line} lw 2 lc rgb '#{colour}'",
        # Nothing was measured between validations, and most of the loss falls before the second one.
        'points': f"using ($1 > 0 ? $1 : NaN):2 with lines dt 2 lw 1 lc rgb '#{colour}' notitle, ${name} using 1:2 "
                  f"with points {dot(1.1 if few else 0.7)} lc rgb '#{colour}'",
        'band': f"using 1:2:3 with filledcurves fs transparent solid 0.25 noborder fc rgb '#{colour}'",
        'bound': f"using 1:2 with lines lw 2 dt 3 lc rgb '#{colour}'",
        'level': f"using 1:2 with lines lw 2 dt 2 lc rgb '#{GREY}'",
        'reference': f"using 1:2 with lines {reference_style(curve)} lc rgb '#{DARK}'",
    }[curve.kind]
    return f'${name} {style} notitle'


def ticks_words(axis, ticks):
    return f'set {axis}tics (' + ', '.join(f'{quoted(text)} {value!r}' for value, text in ticks) + ')'


def frame(picture, height, box, y_range, log, y_ticks, x_title):
    """Commands that set a panel's position in pixels (left, right, top, bottom), axes and grid."""
    left, right, top, bottom = box
    x_low, x_high = picture.x_range
    xs, step = linear_ticks(x_low, x_high, max(3, (right - left) // 110))
    if picture.axis != 'hours' and step < 1: xs = [x for x in xs if x == round(x)]
    return [
        'unset label', 'unset arrow', 'unset logscale',
        f'set lmargin at screen {left / WIDTH:.6f}', f'set rmargin at screen {right / WIDTH:.6f}',
        f'set tmargin at screen {1 - top / height:.6f}', f'set bmargin at screen {1 - bottom / height:.6f}',
        f'set xrange [{x_low!r}:{x_high!r}]', f'set yrange [{y_range[0]!r}:{y_range[1]!r}]',
        *(['set logscale y'] if log else []),
        ticks_words('x', [(x, tick_text(x)) for x in xs]), ticks_words('y', y_ticks),
        f'set xlabel {quoted(x_title)} offset 0,0.4 tc rgb \'#{DARK}\'' if x_title else 'unset xlabel',
    ]


def label(number, text, x, y, place, colour=DARK, font='plain', system='graph'):
    """font: plain, bold or title."""
    return (f"set label {number} {quoted(text)} at {system} {x:.5f},{y:.5f} {place} noenhanced "
            f"font {font} tc rgb '#{colour}' front")


def y_ticks_of(low, high, log, most):
    if log: return [(value, tick_text(value)) for value in log_ticks(low, high, most)]
    ticks, step = linear_ticks(low, high, most)
    texts = [tick_text(value, step) for value in ticks]
    if any('e' in text for text in texts):  # the same notation for the whole axis
        texts = [short_exponent(f'{value:.3g}') if abs(value) > step / 1e6 else '0' for value in ticks]
    return list(zip(ticks, texts))


def end_labels(picture, panel, low, high, room):
    """Labels right of the loss: (y from 0 to 1, lines as (text, font, colour)), with as much detail as fits."""
    for detail in (3, 2, 1):
        labels = [label for i, values in enumerate(panel.values)
                  for label in labels_of_run(picture, i, values, detail)]
        labels += [([(f'{curve.name.split(",")[0]}: {curve.ys[-1]:.4f}', 'plain', DARK)], curve.ys[-1])
                   for curve in panel.curves if curve.kind == 'reference']
        if sum(len(lines) * LINE + GAP for lines, _ in labels) <= room: break
    return [(fraction(place, low, high), lines) for lines, place in labels]


def labels_of_run(picture, i, values, detail):
    """Labels as (lines, the value that they label); with a single run each loss has its own label.

    detail: 3 all; 2 without best and training; 1 a single line.
    """
    several, colour = len(picture.names) > 1, colour_of(i)
    place = (values.last or values.training)[1]
    if detail == 1: return [([(f'{shortened(picture.names[i], 14)} {place:.4f}', 'plain', colour)], place)]
    validation, training = [], []
    if values.last:
        shade = colour if several else VALIDATION
        validation.append((f'validation {place:.4f}', 'plain' if several else 'bold', shade))
        if values.best[1] < place and detail == 3:
            unit = {'hours': ' h', 'minutes': ' min', 'seconds': ' s'}.get(picture.unit, '')
            x = tick_text(float(f'{values.best[0]:.3g}'))
            validation.append((f'best {values.best[1]:.4f} at {x}{unit}', 'plain', shade))
    if values.training and (detail == 3 or not values.last):
        training.append((f'training {values.training[1]:.4f}', 'plain', colour))
    if several: return [([(shortened(picture.names[i], 20), 'bold', colour)] + validation + training, place)]
    return [(lines, point[1]) for lines, point in ((validation, values.last), (training, values.training)) if lines]


def key_entries(picture, panel):
    """The legend: (style of the sample line, text, whether it has points, colours of the line's parts)."""
    entries, kinds = [], {curve.kind for curve in panel.curves}
    several = len(picture.names) > 1
    plain = list(dict.fromkeys(colour_of(i) for i in range(min(len(picture.names), 3))))
    if several:
        entries += [(f'lw 4{dashes(i)}', shortened(name, 60), False, [colour_of(i)])
                    for i, name in enumerate(picture.names)]
    if 'points' in kinds: entries.append(('lw 1 dt 2', 'validation', True, plain if several else [VALIDATION]))
    if 'mean' in kinds:
        title = f'training, smoothed ({picture.smooth:g})' if picture.smooth > 0 else 'training'
        entries.append(('lw 2', title, False, plain))
    if 'raw' in kinds: entries.append(('lw 1', 'every step', False, [faint(colour) for colour in plain]))
    if picture.resumes: entries.append(('lw 1.5 dt 3', 'resumed', False, [DARK]))
    entries += [(reference_style(curve), curve.name, False, [DARK]) for curve in panel.curves
                if curve.kind == 'reference']
    return entries


def legend_words(layout):
    lines = []
    for number, (style, text, point, colours, x, row) in enumerate(layout.legend, 100):
        y = 1 - (44 + (row + 0.5) * LINE) / layout.height
        part = (SAMPLE - 8) / len(colours)
        for k, colour in enumerate(colours):
            ends = [f'screen {place / WIDTH:.5f},{y:.5f}' for place in (x + k * part, x + (k + 1) * part)]
            lines.append(f"set arrow from {ends[0]} to {ends[1]} nohead {style} lc rgb '#{colour}'")
            if point:
                lines.append(f"set label {number + 100 * (k + 1)} '' at screen {(x + (k + 0.5) * part) / WIDTH:.5f},"
                             f"{y:.5f} point {dot(1.1)} lc rgb '#{colour}' front")
        shade = colours[0] if len(colours) == 1 and text != 'every step' else DARK
        lines.append(label(number, text, (x + SAMPLE) / WIDTH, y, 'left', shade, system='screen'))
    return lines


def resume_arrows(picture):
    return [f"set arrow from {x!r}, graph 0 to {x!r}, graph 1 nohead lw 1.5 dt 3 "
            f"lc rgb '#{colour_of(run) if len(picture.names) > 1 else DARK}'" for run, x in picture.resumes]


def loss_words(picture, layout, names):
    panel = picture.panels[0]
    low, high, cut = loss_range(panel, picture.x_range)
    top, bottom, right = layout.top, layout.bottom, WIDTH - RIGHT
    pixel = 1 / (bottom - top)
    lines = frame(picture, layout.height, (LEFT, right, top, bottom), (low, high), False,
                  y_ticks_of(low, high, False, 8), x_title(picture))
    title = panel.title if len(picture.names) > 1 else f'{shortened(picture.names[0], 60)}: {panel.title}'
    lines.append(label(1, title, LEFT / WIDTH, 1 - 22 / layout.height, 'left', '000000', 'title', 'screen'))
    if cut is not None:
        lines.append(label(2, cut_text(panel, picture.x_range, cut), (WIDTH - EDGE) / WIDTH,
                           1 - 22 / layout.height, 'right', GREY, system='screen'))
    lines += legend_words(layout) + resume_arrows(picture)
    ends = end_labels(picture, panel, low, high, bottom - top)
    sizes = [(len(texts) * LINE + GAP) * pixel for _, texts in ends]
    number = 10
    for y, size, (_, texts) in zip(apart([end[0] for end in ends], sizes), sizes, ends):
        for k, (text, font, colour) in enumerate(texts):
            at = y + size / 2 - ((k + 0.5) * LINE + GAP / 2) * pixel
            lines.append(label(number, text, 1 + 12 / (right - LEFT), at, 'left', colour, font))
            number += 1
    curves = [plot_words(name, curve, len(picture.names) > 1) for name, curve in zip(names, panel.curves)]
    for i, values in enumerate(panel.values):
        if not values.best or values.best[1] >= values.last[1]: continue
        colour = colour_of(i) if len(picture.names) > 1 else VALIDATION
        curves.append(f"'+' using ({values.best[0]!r}):({values.best[1]!r}) every ::::0 with points {dot(2.4, 6)} "
                      f"lw 2 lc rgb '#{colour}' notitle")
    return lines + ['plot ' + ', \\\n    '.join(curves)]


def x_title(picture):
    return picture.unit if picture.axis != 'hours' else f'{picture.unit} of training and validation'


def panel_words(picture, layout, index, names):
    """Panel `index`; 1 is the first panel below the loss, two per row."""
    panel = picture.panels[index]
    row, column = divmod(index - 1, 2)
    half = (WIDTH - LEFT - MIDDLE - EDGE) / 2
    left = LEFT + column * (half + MIDDLE)
    alone = column == 0 and index == len(picture.panels) - 1
    right = WIDTH - EDGE if alone else left + half
    top = layout.below + row * PANEL_HEIGHT + 30
    bottom = top + PANEL_HEIGHT - 74
    low, high, log = panel_range(panel)
    lines = frame(picture, layout.height, (left, right, top, bottom), (low, high), log,
                  y_ticks_of(low, high, log, 5), '')
    lines.append(label(1, panel.title, 0, 1 + 17 / (bottom - top), 'left', '000000', 'bold'))
    lines += resume_arrows(picture)
    kinds, notes = {curve.kind for curve in panel.curves}, [panel.note] if panel.note else []
    if 'band' in kinds: notes.append('±1 std. dev.')
    if 'bound' in kinds: notes.append('dotted: at least')
    if notes: lines.append(label(2, ', '.join(notes), 1, 1 + 17 / (bottom - top), 'right', GREY))
    for curve in panel.curves:
        if curve.kind != 'level': continue
        place = fraction(curve.ys[0], low, high, log)
        end = next((y for other in panel.curves if other.kind == 'mean' for y in reversed(other.ys) if y), low)
        side = 12 / (bottom - top) * (1 if end < curve.ys[0] else -1)  # away from the end of the curve
        if not abs(side) <= place + side <= 1 - abs(side): side = -side  # stay below the caption
        lines.append(label(3, f'{curve.name} {tick_text(curve.ys[0])}', 0.99, place + side, 'right', GREY))
    curves = [plot_words(name, curve, len(picture.names) > 1) for name, curve in zip(names, panel.curves)]
    return lines + ['plot ' + ', \\\n    '.join(curves)]


def script_of(picture, output):
    """The whole script. `output`: a file name in gnuplot's working folder, ending in .png or .svg."""
    layout = layout_of(picture)
    svg = output.endswith('.svg')
    family, point = ('sans-serif', 1) if svg else ('sans', 0.75)  # pngcairo uses points
    lines = [f"{name} = '{family}{weight},{size * point:g}'" for name, weight, size in
             (('plain', '', FONT), ('bold', ' Bold', FONT), ('title', ' Bold', TITLE))]
    lines += [f'point = {0.65 if svg else 1}', 'set encoding utf8',
              f"set terminal {'svg dynamic' if svg else 'pngcairo'} size {WIDTH},{layout.height:g} "
              "font plain background '#ffffff' noenhanced", f'set output {quoted(output)}', 'set samples 2']
    blocks = []
    for p, panel in enumerate(picture.panels):
        names = [f'p{p}c{c}' for c in range(len(panel.curves))]
        blocks.append(names)
        lines += [data_block(name, curve) for name, curve in zip(names, panel.curves)]
    lines += [f"set border 3 lw 1 lc rgb '#{GREY}'", f"set grid lt 1 lw 1 lc rgb '#{GRID}'",
              f"set tics nomirror out scale 0.5 tc rgb '#{DARK}'", 'set multiplot', 'unset key',
              *loss_words(picture, layout, blocks[0])]
    for p in range(1, len(picture.panels)): lines += panel_words(picture, layout, p, blocks[p])
    return '\n'.join(lines + ['unset multiplot', 'unset output', ''])
