#!/usr/bin/env python3
# plot_measures_test.py - dev/plot: perplexity and bits per byte, how validations, medians and learning rates are drawn,
# and the colours of the legend
import math
import re

from run_support import WithFolder, main, program, start, step, val
from plotting.gnuplot import COLOURS, VALIDATION, script_of
from plotting.panels import make_picture
from plotting.scales import panel_range
from run_log import open_runs

plot = program('plot')


class Measures(WithFolder):
    def picture(self, *runs, **how):
        return make_picture(open_runs(runs), **how)

    def curves(self, picture, key='loss'):
        panel = next(panel for panel in picture.panels if panel.key == key)
        return {curve.kind: [(x, y if y is None else round(y, 9)) for x, y in zip(curve.xs, curve.ys)]
                for curve in panel.curves}

    def test_perplexity_is_that_of_the_mean_loss(self):
        run = self.log('a', start(), val(0, 2.0), step(0, 3.0), step(1, 1.0), step(2, None), val(3, 0.5))
        picture = self.picture(run, smooth=0.5, measure='perplexity')
        curves, loss = self.curves(picture), self.curves(self.picture(run, smooth=0.5))
        for kind in ('raw', 'mean', 'points'):
            self.assertEqual([(x, y if y is None else round(y, 6)) for x, y in curves[kind]],
                             [(x, y if y is None else round(math.exp(y), 6)) for x, y in loss[kind]])
        self.assertEqual(picture.panels[0].values[0].best, (3, math.exp(0.5)))
        self.assertIn("'a: perplexity'", script_of(picture, 'x.png'))
        huge = self.log('b', step(0, 5000.0), step(1, 1.0))
        self.assertEqual(self.curves(self.picture(huge, smooth=0, measure='perplexity'))['mean'][0], (1, None))
        level = next(c for c in self.picture(run, reference='124M', measure='perplexity').panels[0].curves
                     if c.kind == 'reference')
        self.assertAlmostEqual(level.ys[0], math.exp(3.424958))

    def test_bits_per_byte_of_training_use_the_bytes_of_validation(self):
        run = self.log('a', start(), val(0, 8.0, bits_per_byte=2.0), step(0, 4.0), val(1, 6.0, bits_per_byte=1.5))
        picture = self.picture(run, smooth=0, measure='bits-per-byte', reference='124M')
        self.assertEqual(self.curves(picture), {'mean': [(1, 1.0)], 'points': [(0, 2.0), (1, 1.5)]})
        self.assertIn('no bits per byte', ' '.join(picture.notes))
        other = self.log('b', start(), val(0, 8.0, bits_per_byte=None), step(0, 4.0))
        said = self.refused(plot, other, '--y', 'bits-per-byte')
        self.assertIn('--y is bits-per-byte; expected loss or perplexity; ', said)
        self.assertIn('--y is "perplexty"; expected loss, perplexity or bits-per-byte; did you mean perplexity?',
                      self.refused(plot, run, '--y', 'perplexty'))

    def test_validations_are_points_with_a_thin_dashed_line(self):
        run = self.log('a', start(), val(0, 9.0), step(0, 8.0), step(1, 6.0), val(2, 5.0))
        script = script_of(self.picture(run), 'picture.png')
        drawn = next(line for line in script.splitlines() if f"lc rgb '#{VALIDATION}' notitle" in line)
        self.assertIn('using ($1 > 0 ? $1 : NaN):2 with lines dt 2 lw 1 ', drawn)  # not from the untrained model's
        self.assertIn('using 1:2 with points pt 7', drawn)

    def test_the_gradient_norm_has_a_median(self):
        norms = [1.0, 1.0, 900.0, 1.0, 3.0, 3.0, None, 3.0]
        run = self.log('a', *(step(k, 8.0, grad_norm=norm) for k, norm in enumerate(norms)))
        picture = self.picture(run, smooth=0.5)  # a window of 3 steps
        self.assertEqual([y for _, y in self.curves(picture, 'norm')['mean']],
                         [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, None, 3.0])
        self.assertIn("'median of 3 steps'", script_of(picture, 'picture.png'))

    def test_learning_rates_of_several_runs_use_a_log_axis(self):
        runs = [self.log(name, *(step(k, 8.0, lr=rate * min(1, (k + 1) / 500) * (k < 999)) for k in range(1000)))
                for name, rate in (('a', 1e-4), ('b', 1e-2))]
        panel = next(panel for panel in self.picture(*runs).panels if panel.key == 'lr')
        low, high, log = panel_range(panel)
        self.assertTrue(log and 1e-7 < low < 2e-6 and 1e-2 < high < 2e-2, (low, high, log))  # 0 at the end is below
        alone = next(panel for panel in self.picture(runs[0]).panels if panel.key == 'lr')
        self.assertEqual((panel_range(alone)[0], panel_range(alone)[2]), (0, False))

    def test_the_legend_has_the_colours_of_the_lines(self):
        runs = [self.log(name, start(), step(0, 8.0), step(1, 6.0), val(2, 5.0)) for name in 'ab']
        script = script_of(self.picture(*runs), 'picture.png')
        samples = re.findall(r"set arrow from screen .* lc rgb '#([0-9a-f]{6})'", script)
        self.assertEqual(samples[:6], [COLOURS[0], COLOURS[1]] * 3)  # the runs, validation, training
        for name, colour in zip('ab', COLOURS): self.assertRegex(script, f"'{name}' at screen .*tc rgb '#{colour}'")
        alone = script_of(self.picture(runs[0]), 'picture.png')
        self.assertRegex(alone, f"'validation' at screen .*tc rgb '#{VALIDATION}'")


if __name__ == '__main__': main()
