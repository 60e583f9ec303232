#!/usr/bin/env python3
# plot_test.py - dev/plot: the curves of each panel, refused arguments, and the files that it writes
import importlib.util
import math
import os
import unittest

from run_support import ROOT, WithFolder, lines, main, program, resume, start, step, val
from run_log import open_runs

plot = program('plot')
if importlib.util.find_spec('matplotlib'):
    from matplotlib import rc_context
    from matplotlib.legend import Legend
    import run_plot


def noisy(number, state, scale, deviation, least):
    return step(number, 4.0, noise_scale_tokens=scale, noise_state=state, noise_relative_deviation=deviation,
                noise_at_least_tokens=least)


@unittest.skipUnless(importlib.util.find_spec('matplotlib'), 'no matplotlib')
class Plots(WithFolder):
    def drawn(self, *runs, **how):
        with rc_context(run_plot.STYLE): return run_plot.Plot(open_runs(runs), **how)

    def curves(self, made, panel='loss', faint=False):
        """The curves drawn in a panel: the faint ones, or means, validations and references."""
        return [[(float(x), None if math.isnan(y) else round(float(y), 9)) for x, y in zip(xs, ys)]
                for xs, ys in made.drawn[panel, faint]]

    def legends(self, made):
        """The texts above the losses, which name the runs if it is the first panel, then the line styles."""
        legends = [each for each in made.panels['loss'].get_children() if isinstance(each, Legend)]
        return [text.get_text() for legend in reversed(legends) for text in legend.get_texts()]

    def test_losses_of_each_step_their_mean_and_validation(self):
        run = self.log('a', start(), val(0, 9.0), step(0, 8.0), step(1, 6.0), val(2, 5.0), step(2, 7.0), val(3, 5.5))
        made = self.drawn(run, smooth=2)
        self.assertEqual(self.curves(made, faint=True), [[(1, 8.0), (2, 6.0), (3, 7.0)]])
        self.assertEqual(self.curves(made), [[(1, 8.0), (2, 7.0), (3, 6.5)], [(0, 9.0), (2, 5.0), (3, 5.5)]])
        self.assertEqual((list(made.panels), made.x_range), (['loss', 'lr', 'norm', 'speed'], (0, 3)))
        texts = self.legends(made)
        words = 'training 6.5000, validation 5.5000, best 5.0000 at 2 steps'
        self.assertEqual(texts, [f'a: {words}', 'training, mean of up to 3 steps', 'every step', 'validation'])
        self.assertEqual(made.summaries, [f'a: 3 steps, {words}'])
        self.assertEqual(self.curves(self.drawn(run, smooth=1), faint=True), [])

    def test_a_resumed_run_has_every_step_once_and_a_mark(self):
        run = self.log('a', step(0, 8.0), step(1, 7.0), step(2, 6.0), resume(1), step(1, 5.0), step(2, 4.0))
        made = self.drawn(run)
        self.assertEqual(self.curves(made, faint=True), [[(1, 8.0), (2, 5.0), (3, 4.0)]])
        for panel in made.panels.values(): self.assertIn([1, 1], [list(line.get_xdata()) for line in panel.lines])

    def test_tokens_and_times(self):
        run = self.log('a', val(0, 9.0), step(0, 8.0, ms=3.6e6), val(1, 7.0, ms=1.8e6), step(1, 6.0, ms=3.6e6))
        self.assertEqual(self.curves(self.drawn(run, axis='tokens'), faint=True), [[(64, 8.0), (128, 6.0)]])
        hours = self.drawn(run, axis='hours')
        self.assertEqual([round(x, 3) for x, _ in self.curves(hours, faint=True)[0]], [1.0, 2.5])
        short = self.drawn(self.log('b', step(0, 8.0), step(1, 6.0)), axis='hours')
        self.assertEqual([made.panels['loss'].get_xlabel() for made in (hours, short)],
                         ['hours of training and validation', 'seconds of training and validation'])
        self.assertEqual(short.x_range[1], 0.2)

    def test_validations_of_other_targets_start_again(self):
        other, best = 'validations: of other targets; ...', ['best 2.0000 at 2 steps', 'best 4.0000 at 4 steps']
        events = [start(), step(0, 6.0), val(1, 3.0), step(1, 6.0), val(2, 2.0), step(3, 6.0), val(4, 4.0), val(5, 4.5)]
        for resumes, again in (([[other]], 1), ([['--lr 1 -> 2', 'validation data: different shards']], 1),
                               ([[other], ['--lr 1 -> 2']], 0), ([['training data: different shards']], 0)):
            made = self.drawn(self.log('a', *events[:5], *(resume(2, *changes) for changes in resumes), *events[5:]))
            self.assertIn(best[again], made.summaries[0])
            self.assertEqual(self.curves(made)[1], [(1, 3.0), (2, 2.0), *again * [(2, None)], (4, 4.0), (5, 4.5)])

    def test_the_noise_scale_with_its_band_and_bound(self):
        run = self.log('a', start(), noisy(0, 'warming', 10.0, None, None), noisy(1, 'ok', 100.0, 0.25, 60.0),
                       noisy(2, 'weak', -5.0, 3.0, 40.0), noisy(3, 'invalid', None, None, None),
                       noisy(4, 'ok', 50.0, 1.5, 20.0))
        made = self.drawn(run)
        scale, bound, batch = self.curves(made, 'noise')
        self.assertEqual([y for _, y in scale], [10.0, 100.0, None, None, 50.0])
        self.assertEqual([y for _, y in bound], [None, None, 40.0, None, None])
        self.assertEqual(batch, [(k, 64) for k in range(1, 6)])

    def test_perplexity_and_bits_per_byte(self):
        run = self.log('a', start(), val(0, 8.0, bits_per_byte=4.0), step(0, 4.0), val(1, 6.0, bits_per_byte=1.5))
        bits = self.drawn(run, smooth=1, measure='bits-per-byte')
        self.assertEqual(self.curves(bits), [[(1, 1.0)], [(0, 4.0), (1, 1.5)]])
        self.assertEqual(self.curves(self.drawn(run, smooth=1, measure='perplexity'))[0], [(1, round(math.exp(4), 9))])
        other = self.log('b', start(), val(0, 8.0, bits_per_byte=None), step(0, 4.0))
        self.assertIn('--y is bits-per-byte; expected loss or perplexity; ',
                      self.refused(plot, other, '--y', 'bits-per-byte'))

    def test_published_results(self):
        run = self.log('a', start(), *(step(k, 8.0) for k in range(500)),
                       {'event': 'hellaswag', 'step': 1, 'acc_norm': 0.3})
        published = [ROOT / f'dev/references/{name}.jsonl' for name in ('gpt2-124M', 'llmc-124M')]
        made = self.drawn(run, references=open_runs(published), axis='tokens')
        level, curve = self.curves(made)[-2:]
        self.assertEqual(level[0], (524288, 3.424958))
        self.assertEqual(curve[:2], [(0, 11.0092), (250 * 524288, 6.1710)])
        self.assertEqual(self.curves(made, 'hellaswag')[1][0], (524288, 29.55))
        self.assertEqual(made.x_range, (0, 32000))
        code, _, err = self.run_tool(plot, run, '--reference', published[0])
        self.assertEqual((code, err), (0, 'note: losses of vocabularies of 257 and 50257 tokens are not comparable\n'))
        self.assertIn('does not have the hours', self.refused(plot, run, '--x', 'hours', '--reference', published[0]))

    def test_pictures(self):
        run = self.log("it's `a` \"b\" $c\\d\n%e", start(), val(0, 9.0), noisy(0, 'ok', 100.0, 0.2, 50.0),
                       step(1, None, mfu=0.4), resume(1), step(1, 7.0), val(2, 6.0))
        bytes_name = self.log('r\udcff', start(), step(0, 5.0))  # a folder whose name is not UTF-8
        self.assertEqual(self.run_tool(plot, bytes_name)[0], 0)
        one = self.log('one', step(0, 5.0))
        with (one / 'log.jsonl').open('a') as log: log.write(lines(step(1, 6.0))[:30])  # not yet complete
        code, out, err = self.run_tool(plot, run, one)
        self.assertEqual((code, err, out.endswith(f'wrote {run}/plot_with_one.png\n')), (0, '', True))
        self.assertTrue((run / 'plot_with_one.png').read_bytes().startswith(b'\x89PNG'))
        self.assertEqual(self.run_tool(plot, one, '-o', self.folder / 'x.svg')[0], 0)
        self.assertIn('<svg', (self.folder / 'x.svg').read_text())
        slide = ['--panels', 'loss,lr', '--no-steps', '--title', 'a slide', '-o', self.folder / 'x.pdf']
        self.assertEqual(self.run_tool(plot, one, *slide)[0], 0)
        self.assertTrue((self.folder / 'x.pdf').read_bytes().startswith(b'%PDF'))

    def test_wrong_arguments(self):
        run = self.log('run', step(0, 8.0))
        for words, said in ((['--smoth', '0.5'], '"--smoth" is not understood; did you mean --smooth?'),
                            (['--x', 'step'], '--x is "step"; expected steps, tokens or hours; did you mean steps?'),
                            (['--y', 'perplexty'], 'did you mean perplexity?'),
                            (['--smooth', '0'], '--smooth is "0"; expected a whole number from 1'),
                            (['-o'], 'expected one argument'),
                            (['-o', 'a.png', '--output=b.png'], '--output is given more than once'),
                            (['--x', 'steps', '--x', 'hours'], '--x is given more than once'),
                            (['-o', run / 'log.jsonl'], 'expected a name that ends in .png, .svg or .pdf'),
                            (['--panels', 'loss,nrm'], '--panels is "nrm"; expected loss, '),
                            (['--panels', 'lr,lr'], '--panels is "lr,lr"; expected each panel once'),
                            (['--panels', 'loss,mfu'], '"mfu"; expected loss, lr, norm or speed'),
                            (['--smooth', '1', '--no-steps'], '--no-steps is set together with --smooth 1; expected'),
                            (['--reference', 'x'], '"x" does not exist'), (['-q'], '"-q" is not understood')):
            self.assertIn(said, self.refused(plot, run, *words))
        (self.folder / 'folder.svg').mkdir()
        os.mkfifo(self.folder / 'pipe.png')
        for place, why in (('gone/x.png', 'no such file or directory; fix that and run this again'),
                           ('folder.svg', 'a regular file'), ('pipe.png', 'a regular file')):
            self.assertIn(why, self.refused(plot, run, '-o', self.folder / place))
        self.assertIn('arguments are required: RUN', self.refused(plot))
        self.assertIn('a log without a loss', self.refused(plot, self.log('new', start())))


if __name__ == '__main__': main()
