#!/usr/bin/env python3
# export_runs_test.py - dev/export_runs.py: every number of a log is in the CSV table; rows while a run goes
# on, which TensorBoard and wandb get
import csv
import os
from unittest import mock

from run_support import WithFolder, lines, main, program, resume, start, step, val

export_runs = program('export_runs.py')
MODULES = {'h.0.attn': 12.5, 'wte': None}
GPU = {'power_w': 612.5, 'sm_mhz': None, 'throttle_reasons': ['sw_power_cap']}
EVENTS = [start(options={'lr': 0.003, 'init': 'd12'}), val(0, 5.581058820534963),
          step(0, 5.25, noise_scale_tokens=28.884251800730134, noise_scale_tokens_of=MODULES, stage='warm-up'),
          step(1, None), {'event': 'checkpoint', 'step': 2, 'folder': 'x', 'waited_ms': 7.5}, step(2, 99.0), resume(2),
          step(2, 4.125, mfu=0.375, gpu=GPU), {'event': 'skip', 'step': 3, 'reason': 'outlier', 'skipped_steps': 1},
          {'event': 'sample', 'step': 3, 'text': 'a'}, val(3, 4.5, losses={'web_*.bin': 4.25, 'wiki_*.bin': None}),
          {'event': 'outer', 'step': 3, 'round': 1, 'loss': 4.25, 'cosine': None},
          {'event': 'hellaswag', 'step': 3, 'acc': 0.25, 'acc_norm': 0.2955},
          {'event': 'end', 'steps': 3, 'reason': 'all steps completed', 'seconds': 1}]
# The numbers of EVENTS, written out.
EXPECTED = {
    0: {'val/loss': 5.581058820534963, 'val/valid_tokens': 100, 'val/ms': 50.0, 'train/seconds': 0.0},
    1: {'train/loss': 5.25, 'train/noise_scale_tokens': 28.884251800730134, 'train/tokens_so_far': 64,
        'train/noise_scale_tokens_of/h.0.attn': 12.5, 'train/seconds': 0.15},
    2: {'train/tokens_so_far': 128, 'checkpoint/waited_ms': 7.5, 'train/seconds': 0.25},
    3: {'train/loss': 4.125, 'train/mfu': 0.375, 'train/gpu/power_w': 612.5, 'train/tokens_so_far': 192,
        'skip/skipped_steps': 1, 'val/loss': 4.5, 'val/losses/web_*.bin': 4.25, 'val/valid_tokens': 100, 'val/ms': 50.0,
        'outer/round': 1, 'outer/loss': 4.25, 'hellaswag/acc': 0.25, 'hellaswag/acc_norm': 0.2955,
        'train/seconds': 0.3575},
}
for _steps in (1, 2, 3):
    EXPECTED[_steps].update({'train/lr': 1e-3, 'train/grad_norm': 2.0, 'train/tokens': 64, 'train/ms': 100.0,
                             'train/tokens_per_s': 640.0})


class Exports(WithFolder):
    def setUp(self):
        super().setUp()
        self.run_folder = self.log('runs/mine', *EVENTS)

    def test_a_table_has_every_number(self):
        other = self.log('runs/other', step(0, 1.0))
        code, out, _ = self.run_tool(export_runs, '--to', 'csv', self.run_folder, other, '-o', self.folder / 'new/dir')
        self.assertEqual((code, sorted(p.name for p in (self.folder / 'new/dir').iterdir())),
                         (0, ['mine.csv', 'other.csv']))
        self.assertIn('mine.csv: 4 rows', out)
        with (self.folder / 'new/dir/mine.csv').open() as file: rows = list(csv.DictReader(file))
        self.assertFalse([name for name in rows[0] if not any(row[name] for row in rows)])  # no empty column
        got = {int(row['step']): {name: float(text) for name, text in row.items() if text and name != 'step'}
               for row in rows}
        self.assertEqual(sorted(got), sorted(EXPECTED))
        for steps, row in EXPECTED.items():
            self.assertEqual(sorted(got[steps]), sorted(row), steps)
            for name, value in row.items():
                self.assertAlmostEqual(got[steps][name], value, delta=1e-12 * abs(value), msg=f'{steps} {name}')

    def test_steps_that_are_written_while_a_run_goes_on(self):
        run, = export_runs.open_runs([self.log('live', start(), val(0, 9.0), step(0, 8.0), step(1, 7.0))], keys=None)
        rows = export_runs.NewRows(run)

        def more(*events, whole=False):
            with run.log.open('a') as log: log.write(lines(*events))
            run.read()
            return [(steps, sorted(name for name in row if name in ('train/loss', 'val/loss')))
                    for steps, row in rows.read(whole)]
        self.assertEqual(more(), [(0, ['val/loss']), (1, ['train/loss'])])  # the last step may get a validation
        self.assertEqual(more(val(2, 6.0)), [])
        self.assertEqual(more(step(2, 6.5)), [(2, ['train/loss', 'val/loss'])])
        late = {'event': 'checkpoint', 'step': 1, 'folder': 'x', 'waited_ms': 7.5}
        self.assertEqual((more(late), rows.restart), ([(1, [])], None))
        self.assertEqual(more(resume(1), step(1, 7.0)), [])
        self.assertEqual(rows.restart, 2)
        self.assertEqual(more(step(2, 6.5)), [(2, ['train/loss'])])
        self.assertIsNone(rows.restart)
        self.assertEqual(more(whole=True), [(3, ['train/loss'])])
        self.assertEqual(more(whole=True), [])

    def test_the_wall_time_is_that_of_the_events(self):
        run, = export_runs.open_runs([self.log('timed', start(time='2026-01-02T03:04:00Z'), step(0, 8.0,
                                      time='2026-01-02T03:04:05Z'), step(1, 7.0, time='2026-01-02T04:04:05Z'),
                                      val(2, 7.0, time='2026-01-02T04:04:09Z'))], keys=None)
        self.assertEqual(export_runs.wall_times(run), {1: 1767323045.0, 2: 1767326649.0})

    def test_wrong_arguments(self):
        run, out = self.run_folder, self.folder / 'out'
        for words, said in (((run, '-o', out), '--to is not given; expected csv, parquet, tensorboard or wandb'),
                            (('--to', 'tensorbord', run, '-o', out), 'did you mean tensorboard?'),
                            (('--to', 'csv', '--follow', run, '-o', out), '--follow is set with --to csv; expected'),
                            (('--to', 'csv', run), '-o is not given'),
                            (('--to', 'csv', '-o', out), 'arguments are required: RUN'),
                            (('--too', 'csv', run), 'did you mean --to?'),
                            (('--to', 'csv', self.log('new', start()), '-o', out), 'a log without numbers')):
            self.assertIn(said, self.refused(export_runs, *words))
        (self.folder / 'file').write_text('')
        os.mkfifo(self.folder / 'pipe')
        for place, why in (('file/x', 'not a directory'), ('file', 'file exists'), ('pipe', 'file exists')):
            self.assertIn(f'expected a folder that can be written to; {why}; ',
                          self.refused(export_runs, '--to', 'csv', run, '-o', self.folder / place))
        with mock.patch.dict('sys.modules', {'tensorboard': None, 'wandb': None}), \
                mock.patch.dict(os.environ, PIP_NO_INDEX='1'):
            for package in ('tensorboard', 'wandb'):
                code, _, err = self.run_tool(export_runs, '--to', package, run, '-o', out)
                self.assertEqual(code, 1)
                self.assertIn(f'-m pip install {package}\n', err)
        self.assertFalse(out.exists())


if __name__ == '__main__': main()
