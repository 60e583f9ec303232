#!/usr/bin/env python3
# plot_test.py - dev/plot: the script for gnuplot, refused arguments, and that only files written by dev/plot are
# overwritten
import json
import os
import re
import shutil
import unittest
from random import Random
from unittest import mock

from run_support import WithFolder, lines, main, program, resume, start, step, val
from plotting.frame import lines_of
from plotting.gnuplot import COLOURS, LINE, PANEL_HEIGHT, data_block, layout_of, quoted, script_of
from plotting.panels import AXES, Curve, make_picture, thinned
from plotting.picture import is_ours, marked
from plotting.scales import apart, linear_ticks, log_ticks, loss_range, panel_range, tick_text
from run_log import open_runs
from tool_main import ToolError

plot = program('plot')
PICTURE = b'\x89PNG\r\n\x1a\n' + b'\0\0\0\rIHDR' + bytes(17) + b'\0\0\0\0IEND' + bytes(4)


def noisy(number, state, scale, deviation, least):
    return step(number, 4.0, noise_scale_tokens=scale, noise_state=state, noise_relative_deviation=deviation,
                noise_at_least_tokens=least)


class Data(WithFolder):
    def picture(self, *runs, **how):
        return make_picture(open_runs(runs), **how)

    def curves(self, picture, key):
        panel = next(panel for panel in picture.panels if panel.key == key)
        return {curve.kind: list(zip(curve.xs, curve.ys)) for curve in panel.curves}

    def test_losses_of_each_step_their_mean_and_validation(self):
        run = self.log('a', start(), val(0, 9.0), step(0, 8.0), step(1, 6.0), val(2, 5.0), step(2, 7.0), val(3, 5.5))
        picture = self.picture(run, smooth=0.5)
        curves = self.curves(picture, 'loss')
        self.assertEqual(curves['raw'], [(1, 8.0), (2, 6.0), (3, 7.0)])
        means = [(1, 8.0), (2, (0.25 * 8 + 0.5 * 6) / 0.75), (3, (0.125 * 8 + 0.25 * 6 + 0.5 * 7) / 0.875)]
        self.assertEqual([(x, round(y, 9)) for x, y in curves['mean']], [(x, round(y, 9)) for x, y in means])
        self.assertEqual(curves['points'], [(0, 9.0), (2, 5.0), (3, 5.5)])
        values = picture.panels[0].values[0]
        self.assertEqual((values.last, values.best), ((3, 5.5), (2, 5.0)))
        self.assertEqual([panel.key for panel in picture.panels], ['loss', 'lr', 'norm', 'speed'])
        self.assertEqual(picture.x_range, (0, 3))
        script = script_of(picture, 'picture.png')
        self.assertIn('$p0c0 << EOD\n1 8.0\n2 6.0\n3 7.0\nEOD\n', script)
        for text in ("'a: loss (nats per token)'", "'validation 5.5000'", "'best 5.0000 at 2'", "'training 6.8571'",
                     "'training, smoothed (0.5)'", "'learning rate'", "'gradient norm, before clipping'"):
            self.assertIn(text, script)
        self.assertNotIn('MFU', script)

    def test_without_smoothing_every_step_is_the_line(self):
        curves = self.curves(self.picture(self.log('a', step(0, 8.0), step(1, 6.0)), smooth=0), 'loss')
        self.assertEqual(curves, {'mean': [(1, 8.0), (2, 6.0)]})

    def test_unknown_values_leave_a_gap(self):
        run = self.log('a', step(0, 8.0), step(1, None, grad_norm=None), step(2, 6.0, mfu=0.5), val(3, None))
        picture = self.picture(run)
        self.assertEqual(self.curves(picture, 'loss')['raw'], [(1, 8.0), (2, None), (3, 6.0)])
        self.assertEqual(self.curves(picture, 'norm')['raw'], [(1, 2.0), (2, None), (3, 2.0)])
        self.assertEqual(self.curves(picture, 'mfu')['raw'], [(1, None), (2, None), (3, 50.0)])
        self.assertNotIn('points', self.curves(picture, 'loss'))
        self.assertIn('$p0c0 << EOD\n1 8.0\n\n3 6.0\nEOD', script_of(picture, 'picture.png'))

    def test_a_resumed_run_has_every_step_once_and_a_mark(self):
        run = self.log('a', step(0, 8.0), step(1, 7.0), step(2, 6.0), resume(1), step(1, 5.0), step(2, 4.0))
        picture = self.picture(run)
        self.assertEqual(self.curves(picture, 'loss')['raw'], [(1, 8.0), (2, 5.0), (3, 4.0)])
        self.assertEqual(picture.resumes, [(0, 1)])
        script = script_of(picture, 'picture.png')
        self.assertEqual(script.count('set arrow from 1, graph 0 to 1, graph 1'), len(picture.panels))
        self.assertIn("'resumed'", script)

    def test_an_incomplete_last_line_is_ignored(self):
        run = self.log('a', start(), step(0, 8.0), step(1, 7.0))
        with (run / 'log.jsonl').open('a') as log: log.write(lines(step(2, 6.0))[:30])
        self.assertEqual(self.curves(self.picture(run), 'loss')['raw'], [(1, 8.0), (2, 7.0)])

    def test_tokens_and_times(self):
        run = self.log('a', val(0, 9.0), step(0, 8.0, ms=3.6e6), val(1, 7.0, ms=1.8e6), step(1, 6.0, ms=3.6e6))
        tokens = self.picture(run, axis='tokens')
        self.assertEqual(self.curves(tokens, 'loss')['points'], [(0, 9.0), (64, 7.0)])
        self.assertEqual(self.curves(tokens, 'loss')['raw'], [(64, 8.0), (128, 6.0)])
        hours = self.picture(run, axis='hours')
        points = {kind: [(round(x, 6), y) for x, y in pairs] for kind, pairs in self.curves(hours, 'loss').items()}
        ms = 50 / 3.6e6  # duration of the first validation, in hours
        self.assertEqual(points['raw'], [(round(1 + ms, 6), 8.0), (round(2.5 + ms, 6), 6.0)])
        self.assertEqual(points['points'], [(0, 9.0), (round(1 + ms, 6), 7.0)])
        self.assertEqual(hours.unit, 'hours')
        short = self.log('b', step(0, 8.0), step(1, 6.0))
        self.assertEqual((self.picture(short, axis='hours').unit, self.picture(short, axis='hours').x_range[1]),
                         ('seconds', 0.2))

    def test_runs_are_overlaid_and_named(self):
        runs = [self.log(name, start(), step(0, loss), step(1, loss - 1), val(2, loss))
                for name, loss in (("x/a'b", 8.0), ('y/a_{b}', 6.0), ('y/`c', 7.0))]
        picture = self.picture(*runs)
        self.assertEqual(picture.names, ["a'b", 'a_{b}', '`c'])
        self.assertEqual([(c.kind, c.run) for c in picture.panels[0].curves],
                         [('raw', 0), ('raw', 1), ('raw', 2), ('mean', 0), ('mean', 1), ('mean', 2), ('points', 0),
                          ('points', 1), ('points', 2)])
        script = script_of(picture, 'picture.png')
        for text in ("'a''b'", "'a_{b}'", "'`c'"): self.assertIn(text, script)
        for line in script.splitlines():
            if line.startswith('set label'): self.assertEqual(line.count("'") % 2, 0, line)
        self.assertEqual(len({text for text in ('0072b2', 'd55e00', '009e73') if f"lc rgb '#{text}'" in script}), 3)

    def test_many_runs_have_one_end_label_each(self):
        runs = [self.log(f'r{k}', start(), step(0, 8.0), step(1, 7.0), val(2, 6 + k / 10)) for k in range(12)]
        picture = self.picture(*runs)
        script = script_of(picture, 'picture.png')
        self.assertIn("'r11 7.1000'", script)
        self.assertNotIn("'validation 7.1000'", script)
        self.assertGreater(max(row for *_, row in layout_of(picture).legend), 0)

    def test_the_noise_scale_with_its_band_and_bound(self):
        run = self.log('a', start(), noisy(0, 'warming', 10.0, None, None), noisy(1, 'ok', 100.0, 0.25, 60.0),
                       noisy(2, 'weak', -5.0, 3.0, 40.0), noisy(3, 'invalid', None, None, None),
                       noisy(4, 'ok', 50.0, 1.5, 20.0))
        picture = self.picture(run)
        curves = self.curves(picture, 'noise')
        self.assertEqual(curves['mean'], [(1, 10.0), (2, 100.0), (3, None), (4, None), (5, 50.0)])
        self.assertEqual(curves['bound'], [(1, None), (2, None), (3, 40.0), (4, None), (5, None)])
        self.assertEqual(curves['level'], [(1, 64), (5, 64)])
        band = next(c for p in picture.panels for c in p.curves if c.kind == 'band')
        self.assertEqual((band.ys, band.highs), ([None, 75.0, None, None, None], [None, 125.0, None, None, None]))
        self.assertIn('\n2 75.0 125.0\n', script_of(picture, 'picture.png'))

    def test_bands_are_transparent_and_below_all_lines(self):
        runs = [self.log(name, start(), *(noisy(k, 'ok', scale, 0.5, 60.0) for k in range(steps)))
                for name, scale, steps in (('a', 100.0, 3), ('b', 120.0, 5))]
        picture = self.picture(*runs)
        panel = next(panel for panel in picture.panels if panel.key == 'noise')
        self.assertEqual([(curve.kind, curve.run) for curve in panel.curves],
                         [('band', 0), ('band', 1), ('mean', 0), ('mean', 1), ('level', -1)])
        self.assertEqual(panel.curves[-1].xs, [1, 5])  # spans the longest run
        script = script_of(picture, 'picture.png')
        for colour in COLOURS[:2]:
            self.assertRegex(script, f"using 1:2:3 with filledcurves fs transparent solid [0-9.]+ noborder fc rgb "
                             f"'#{colour}'")

    def test_the_label_of_the_batch_stays_within_the_axes(self):
        for batch, scale in ((2048, 100.0), (16, 100.0), (64, 65.0), (64, 64.0), (64, 63.0)):
            run = self.log('a', start(tokens_per_step=batch), *(noisy(k, 'ok', scale + k % 2, 0.2, 60.0)
                                                               for k in range(8)))
            script = script_of(self.picture(run), 'picture.png')
            place, = re.findall(fr"set label 3 'batch {batch}' at graph [0-9.]+,(-?[0-9.]+) right", script)
            caption, = re.findall(r"set label 2 '±1 std. dev.' at graph [0-9.]+,([0-9.]+) right", script)
            half = LINE / 2 / (PANEL_HEIGHT - 74)  # half a line of text
            self.assertTrue(half <= float(place) <= 1 - half, (batch, scale, place))
            self.assertGreaterEqual(float(caption) - float(place), 2 * half)

    def test_hellaswag(self):
        run = self.log('a', step(0, 8.0), {'event': 'hellaswag', 'step': 1, 'acc': 0.28, 'acc_norm': 0.3})
        picture = self.picture(run, reference='124M')
        self.assertEqual(self.curves(picture, 'hellaswag')['points'], [(1, 30.0)])
        level = [(x, round(y, 9)) for x, y in self.curves(picture, 'hellaswag')['reference']]
        self.assertEqual(level, [(0, 29.55), (1, 29.55)])

    def test_published_results(self):
        other = self.log('a', start(model='vocabulary 257'), *(step(k, 8.0) for k in range(500)))
        picture = self.picture(other, reference='124M')
        level, curve = [c for c in picture.panels[0].curves if c.kind == 'reference']
        self.assertEqual((level.xs, level.ys), ([0, 500], [3.424958] * 2))
        self.assertEqual((curve.xs, curve.ys), ([0, 250, 500], [11.0092, 6.1710, 5.3743]))
        self.assertEqual(len(picture.notes), 2)  # one about the vocabulary, one about the tokens per step
        alike = self.log('b', start(model='vocabulary 50257', tokens_per_step=524288),
                         *(step(k, 8.0, tokens=524288, tokens_so_far=524288 * (k + 1)) for k in range(375)))
        picture = self.picture(alike, axis='tokens', reference='124M')
        level, curve = [c for c in picture.panels[0].curves if c.kind == 'reference']
        self.assertEqual(curve.xs, [0, 250 * 524288, 375 * 524288])
        self.assertAlmostEqual(curve.ys[2], (6.1710 + 5.3743) / 2)
        self.assertEqual(picture.notes, [])
        hours = self.picture(alike, axis='hours', reference='124M')
        self.assertEqual(len([c for c in hours.panels[0].curves if c.kind == 'reference']), 1)

    def test_long_curves_keep_their_extremes_and_their_gaps(self):
        ys = [float(k % 7) for k in range(20000)]
        ys[5000], ys[7000], ys[9000] = 99.0, None, -99.0
        raw = thinned(Curve('raw', 0, list(range(20000)), ys))
        self.assertLessEqual(len(raw.xs), 3100)
        for pair in ((5000, 99.0), (7000, None), (9000, -99.0)): self.assertIn(pair, list(zip(raw.xs, raw.ys)))
        mean = thinned(Curve('mean', 0, list(range(20000)), ys))
        self.assertEqual((mean.xs[-1], mean.ys[-1]), (19999, ys[-1]))
        self.assertIn((7000, None), list(zip(mean.xs, mean.ys)))
        band = Curve('band', 0, [1, 2], [3.0, None], [4.0, None])
        self.assertEqual(data_block('d', band), '$d << EOD\n1 3.0 4.0\n\nEOD')


class Mutations(WithFolder):
    def test_any_values_are_drawn_or_refused(self):
        base = [start(), val(0, 9.0), *(noisy(k, 'ok', 10.0 * k, 0.1, 3.0) for k in range(6)), resume(3),
                *(step(k, 5.0, mfu=0.3) for k in range(3, 6)), val(6, 4.0),
                {'event': 'hellaswag', 'step': 6, 'acc_norm': 0.3},
                {'event': 'checkpoint', 'step': 6, 'waited_ms': 3.0},
                {'event': 'end', 'steps': 6, 'reason': 'x', 'seconds': 3.0}]
        odd = (None, -1, 0, 1, 1e300, -1e300, 1e-320, 2**70, 10**400, 'x', [], {}, True, -5.5, float('nan'), 'resume',
               'step', '\n\x1b')
        random, drawn = Random(1), 0
        for _ in range(200):
            events = json.loads(json.dumps(base))
            for _ in range(random.randint(1, 4)):
                event = random.choice(events)
                event[random.choice(list(event))] = random.choice(odd)
                events.insert(random.randrange(len(events)), dict(random.choice(events)))
            run = self.log('run', *events)
            try:
                runs = open_runs([run])
                lines_of(runs[0], 80, 24, 1.0)
                script_of(make_picture(runs, random.choice(AXES), random.choice((0, 0.9)), '124M'), 'picture.png')
                drawn += 1
            except ToolError as error:
                self.assertNotIn('\n', str(error))
        self.assertGreater(drawn, 50)


class Scales(WithFolder):
    def test_ticks(self):
        self.assertEqual(linear_ticks(0, 1000, 8)[0], [0, 200, 400, 600, 800, 1000])
        self.assertEqual([tick_text(x, 0.1) for x in linear_ticks(1.05, 1.42, 5)[0]], ['1.1', '1.2', '1.3', '1.4'])
        self.assertEqual(log_ticks(0.29, 29), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
        self.assertEqual(log_ticks(1, 1e6), [1, 10, 100, 1e3, 1e4, 1e5, 1e6][::2])
        self.assertGreater(len(log_ticks(2.0, 9.0)), 3)
        self.assertEqual([tick_text(x) for x in (0, 500, 9000, 20000, 1.5e6, 1e10, 0.001, 3e-4)],
                         ['0', '500', '9000', '20k', '1.5M', '10B', '0.001', '3e-4'])

    def test_a_beginning_far_above_the_rest_is_cut_off(self):
        run = self.log('a', *(step(k, 11.0 if k < 3 else 4.0 - k / 100) for k in range(100)))
        panel = make_picture(open_runs([run]), smooth=0).panels[0]
        low, high, cut = loss_range(panel, (0, 100))
        self.assertTrue(2.9 < low < 3.01 and 3.9 < high < 4.1 and cut == 11.0, (low, high, cut))
        flat = self.log('b', *(step(k, 4.0) for k in range(5)))
        low, high, cut = loss_range(make_picture(open_runs([flat])).panels[0], (0, 5))
        self.assertTrue(low < 4.0 < high and cut is None)

    def test_a_cut_off_peak_is_not_reported_as_the_beginning(self):
        for at, said in ((3, "'the beginning, up to 90.00, is cut off'"), (600, "'peaks, up to 90.00, are cut off'")):
            run = self.log('a', *(step(k, {at: 90.0, 800: 20.0}.get(k, 4.0 - k / 1000)) for k in range(1000)))
            self.assertIn(said, script_of(make_picture(open_runs([run]), smooth=0.5), 'picture.png'))

    def test_the_lowest_loss_of_each_run_is_within_the_axis(self):
        def run(name, steps, dip):
            return self.log(name, *(step(k, 0.5 if k == dip else 8.0 - k / 100) for k in range(steps)))
        runs = [run('a', 300, None), run('b', 200, 90), run('c', 250, 3)]
        for several in ([runs[1]], [runs[2]], runs[:2]):
            panel = make_picture(open_runs(several)).panels[0]
            self.assertLess(loss_range(panel, (0, 300))[0], 0.5)

    def test_norms_of_a_wide_range_use_a_log_axis(self):
        norms = [self.log(name, *(step(k, 8.0, grad_norm=norm * (k + 1)) for k in range(10)))
                 for name, norm in (('a', 1.0), ('b', 0.0))]
        for run, log in zip(norms, (True, False)):
            panel = make_picture(open_runs([run])).panels[2]
            self.assertEqual((panel.key, panel_range(panel)[2]), ('norm', log))

    def test_labels_do_not_overlap(self):
        places = apart([0.5, 0.5, 0.52], [0.1, 0.1, 0.1])
        self.assertEqual([round(p, 9) for p in places], [0.5, 0.6, 0.7])
        self.assertEqual([round(p, 9) for p in apart([0.99, 0.0], [0.2, 0.1])], [0.9, 0.05])


class Files(WithFolder):
    def setUp(self):
        super().setUp()
        self.run_folder = self.log('run', start(), val(0, 9.0), step(0, 8.0), step(1, 7.0), val(2, 6.0))

    def fake_gnuplot(self, body):
        """PATH with a fake gnuplot that stores its input in "script" and then runs `body`."""
        bin_folder = self.folder / 'bin'
        bin_folder.mkdir(exist_ok=True)
        (self.folder / 'picture').write_bytes(PICTURE)
        (bin_folder / 'gnuplot').write_text(f'#!/bin/sh\n/bin/cat >{self.folder}/script\n{body}\n')
        (bin_folder / 'gnuplot').chmod(0o755)
        return mock.patch.dict(os.environ, PATH=str(bin_folder))

    def draws(self):
        return self.fake_gnuplot(f'/bin/cp {self.folder}/picture picture.png')

    def test_a_picture_is_marked_and_can_be_redrawn(self):
        with self.draws():
            for _ in range(2):
                code, out, err = self.run_tool(plot, self.run_folder)
                self.assertEqual((code, err), (0, ''))
                self.assertEqual(out, f'run: 2 steps, training 7.4737, validation 6.0000, best 6.0000\n'
                                 f'wrote {self.run_folder}/plot.png\n')
        picture = self.run_folder / 'plot.png'
        self.assertTrue(is_ours(picture.read_bytes()))
        self.assertFalse(is_ours(PICTURE))
        self.assertEqual(sorted(p.name for p in self.run_folder.iterdir()), ['log.jsonl', 'plot.png'])
        self.assertEqual(picture.stat().st_mode & 0o777, 0o666 & ~current_umask())
        self.assertIn('$p0c0 << EOD\n1 8.0\n2 7.0\nEOD', (self.folder / 'script').read_text())

    def test_other_files_are_not_overwritten(self):
        victims = {'photo.png': PICTURE, 'text.svg': b'<?xml version="1.0"?>\n<svg/>\n', 'empty.png': b'',
                   'log.png': (self.run_folder / 'log.jsonl').read_bytes()}
        with self.draws():
            for name, content in victims.items():
                path = self.folder / name
                path.write_bytes(content)
                said = self.refused(plot, self.run_folder, '-o', path)
                self.assertIn('is an existing file that dev/plot did not write; expected a new file', said)
                self.assertEqual(path.read_bytes(), content)
                link = self.folder / ('link' + path.suffix)
                link.symlink_to(path)
                self.assertIn('dev/plot did not write', self.refused(plot, self.run_folder, '-o', link))
                link.unlink()
                self.assertEqual(path.read_bytes(), content)
        self.assertFalse((self.folder / 'script').exists())  # refused before gnuplot starts

    def test_a_link_to_a_picture_of_dev_plot_stays_a_link(self):
        target, link = self.folder / 'target.png', self.folder / 'link.png'
        target.write_bytes(marked(PICTURE))
        link.symlink_to(target)
        target.write_bytes(marked(PICTURE[:-1]))
        with self.draws(): self.assertEqual(self.run_tool(plot, self.run_folder, '-o', link)[0], 0)
        self.assertTrue(link.is_symlink())
        self.assertEqual(target.read_bytes(), marked(PICTURE))

    def test_a_file_created_while_gnuplot_runs_is_kept(self):
        path = self.folder / 'new.png'
        with self.fake_gnuplot(f'/bin/cp {self.folder}/picture picture.png; echo mine >{path}'):
            self.assertIn('dev/plot did not write', self.refused(plot, self.run_folder, '-o', path))
        self.assertEqual(path.read_text(), 'mine\n')

    def test_two_logs_do_not_overwrite_one_another(self):
        other = self.log('other', start(), step(0, 3.0))
        before = (other / 'log.jsonl').read_bytes()
        with self.draws():
            code, out, _ = self.run_tool(plot, self.run_folder / 'log.jsonl', other / 'log.jsonl')
            self.assertIn('expected a name that ends in .png or .svg',
                          self.refused(plot, self.run_folder, '-o', other / 'log.jsonl'))
        self.assertEqual((code, out.splitlines()[-1]), (0, f'wrote {self.run_folder}/plot_with_other.png'))
        self.assertEqual((other / 'log.jsonl').read_bytes(), before)

    def test_outputs_that_cannot_be_written(self):
        (self.folder / 'folder.png').mkdir()
        os.mkfifo(self.folder / 'pipe.png')
        with self.draws():
            for name, said in (('gone/x.png', 'expected a place that can be written to; no such file or directory'),
                               ('run/log.jsonl/x.png', 'expected a place that can be written to; not a directory'),
                               ('folder.png', 'is a folder'), ('pipe.png', 'is not a regular file')):
                self.assertIn(said, self.refused(plot, self.run_folder, '-o', self.folder / name))
            self.assertIn('.png or .svg', self.refused(plot, self.run_folder, '-o', '-'))
            self.assertIn('"x.png" is a picture', self.refused(plot, self.run_folder, 'x.png'))

    def test_gnuplot_fails_or_is_missing(self):
        with self.fake_gnuplot('echo "line 1: unknown terminal" >&2; exit 1'):
            self.assertIn('unknown terminal', self.refused(plot, self.run_folder, code=1))
        with self.fake_gnuplot('exit 0'): self.assertIn('unable to draw', self.refused(plot, self.run_folder, code=1))
        with mock.patch.dict(os.environ, PATH=str(self.folder / 'empty')):
            self.assertIn('apt-get install gnuplot', self.refused(plot, self.run_folder, code=1))
        self.assertEqual([p.name for p in self.run_folder.iterdir()], ['log.jsonl'])

    def test_wrong_arguments(self):
        for words, said in ((['--smoth', '0.5'], '"--smoth" is not understood; did you mean --smooth?'),
                            (['--x', 'step'], '--x is "step"; expected steps, tokens or hours; did you mean steps?'),
                            (['--smooth', '1'], '--smooth is "1"; expected a number from 0 to below 1'),
                            (['--smooth', 'nan'], '--smooth is "nan"'), (['-o'], 'expected one argument'),
                            (['--reference', '125M'], 'did you mean 124M?'), (['-q'], '"-q" is not understood')):
            self.assertIn(said, self.refused(plot, self.run_folder, *words))
        self.assertIn('RUN is not given', self.refused(plot))
        self.assertIn('a log without a loss', self.refused(plot, self.log('new', start())))
        code, out, _ = self.run_tool(plot, '--help')
        self.assertEqual((code, out.index('dev/plot runs/mine') < out.index('--smooth')), (0, True))

    @unittest.skipUnless(shutil.which('gnuplot'), 'no gnuplot')
    def test_gnuplot_draws_without_messages(self):
        run = self.log("it's `a` \"b\" $c\\d\n%e", start(), val(0, 9.0), noisy(0, 'ok', 100.0, 0.2, 50.0),
                       noisy(1, 'weak', 1.0, 2.0, 50.0), step(2, None, mfu=0.4), resume(2), step(2, 7.0), val(3, 6.0),
                       step(3, 6.5), val(4, 6.1))
        one = self.log('one', step(0, 5.0))
        for name, runs in (('a.png', [run]), ('b.svg', [run, one, self.run_folder])):
            code, _, err = self.run_tool(plot, *runs, '--reference', '124M', '-o', self.folder / name)
            self.assertEqual(code, 0, err)
            data = (self.folder / name).read_bytes()
            self.assertTrue(is_ours(data))
            self.assertGreater(len(data), 10000)
        script = script_of(make_picture(open_runs([run, one])), 'picture.png')
        self.assertIn(quoted("it's `a` \"b\" $c\\d?%e"), script)


def current_umask():
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


if __name__ == '__main__': main()
