#!/usr/bin/env python3
# export_runs_test.py - dev/export_runs.py: every number of a log is in the CSV table and, if the packages are
# installed, in what TensorBoard's and wandb's own libraries read back
import contextlib
import csv
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import unittest
from unittest import mock

from run_support import ROOT, WithFolder, full_disk, lines, main, program, resume, start, step, val

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


def has(package):
    return importlib.util.find_spec(package) is not None


def wandb_records(path):
    """Records of a .wandb file, decoded with wandb's messages: 7 bytes, then LevelDB's log in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record
    data, at, record = path.read_bytes(), 7, b''
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, size, kind = struct.unpack('<IHB', data[at:at + 7])  # checksum; 1 whole, 2 first, 3 middle, 4 last
        record += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b''


class Exports(WithFolder):
    def setUp(self):
        super().setUp()
        self.run_folder = self.log('runs/mine', *EVENTS)

    def check(self, got, places=None):
        """places: None compares exactly, otherwise rounded to fp32."""
        self.assertEqual(sorted(got), sorted(EXPECTED))
        for steps, row in EXPECTED.items():
            self.assertEqual(sorted(got[steps]), sorted(row), steps)
            for name, value in row.items():
                exact = value if places is None else struct.unpack('f', struct.pack('f', value))[0]
                self.assertAlmostEqual(got[steps][name], exact, delta=1e-12 * abs(exact), msg=f'{steps} {name}')

    def test_a_table_has_every_number(self):
        other = self.log('runs/other', step(0, 1.0))
        code, out, _ = self.run_tool(export_runs, '--to', 'csv', self.run_folder, other, '-o', self.folder / 'new/dir')
        self.assertEqual((code, sorted(p.name for p in (self.folder / 'new/dir').iterdir())),
                         (0, ['mine.csv', 'other.csv']))
        self.assertIn('mine.csv: 4 rows', out)
        with (self.folder / 'new/dir/mine.csv').open() as file: rows = list(csv.DictReader(file))
        self.assertFalse([name for name in rows[0] if not any(row[name] for row in rows)])  # no empty column
        self.check({int(row['step']): {name: float(text) for name, text in row.items() if text and name != 'step'}
                    for row in rows})

    @unittest.skipUnless(has('pyarrow'), 'no pyarrow')
    def test_pyarrow_reads_a_table_back(self):
        import pyarrow.parquet
        code, out, _ = self.run_tool(export_runs, '--to', 'parquet', self.run_folder, '-o', self.folder / 'tables')
        self.assertEqual((code, out), (0, f'wrote {self.folder}/tables/mine.parquet: 4 rows, 22 numbers\n'))
        table = pyarrow.parquet.read_table(self.folder / 'tables/mine.parquet')
        self.assertEqual({str(table.schema.field(name).type) for name in table.schema.names if name != 'step'},
                         {'double'})
        self.assertFalse([name for name in table.schema.names if table[name].null_count == len(table)])
        self.check({row.pop('step'): {name: value for name, value in row.items() if value is not None}
                    for row in table.to_pylist()})

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

    def test_nothing_is_overwritten(self):
        (self.folder / 'mine.csv').write_text('mine')
        said = self.refused(export_runs, '--to', 'csv', self.run_folder, '-o', self.folder)
        self.assertIn('is an existing path', said)
        self.assertEqual((self.folder / 'mine.csv').read_text(), 'mine')

    def test_a_full_disk(self):
        for to in ('csv', *filter(has, ('tensorboard',))):
            with full_disk(50):
                said = self.refused(export_runs, '--to', to, self.run_folder, '-o', self.folder / to, code=1)
            self.assertIn('file too large; raise this process', said)
            self.assertEqual(list((self.folder / to).iterdir()), [])

    def test_two_at_once(self):
        run, write = self.log('a', start(), step(0, 8.0)), export_runs.write_csv
        command = [sys.executable, str(ROOT / 'dev/export_runs.py'), '--to', 'csv', str(run), '-o', str(self.folder)]

        def write_twice(path, names, rows):
            write(path, names, rows)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with mock.patch.object(export_runs, 'write_csv', write_twice):
            code, _, err = self.run_tool(export_runs, *command[2:])
        self.assertEqual((code, err, (self.folder / 'a.csv').is_file()), (0, '', True))

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

    @unittest.skipUnless(has('tensorboard'), 'no tensorboard')
    def test_tensorboard_reads_it_back(self):
        with contextlib.redirect_stderr(io.StringIO()):
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        code, _, _ = self.run_tool(export_runs, '--to', 'tensorboard', self.run_folder, '-o', self.folder / 'boards')
        self.assertEqual(code, 0)
        events = EventAccumulator(str(self.folder / 'boards/mine'), size_guidance={'scalars': 0}).Reload()
        got = {}
        for name in events.Tags()['scalars']:
            for point in events.Scalars(name): got.setdefault(point.step, {})[name] = point.value
        self.check(got, places='fp32')
        said = self.refused(export_runs, '--to', 'tensorboard', self.run_folder, '-o', self.folder / 'boards')
        self.assertIn('is an existing path', said)

    @unittest.skipUnless(has('tensorboard'), 'no tensorboard')
    def test_tensorboard_follows_a_run(self):
        with contextlib.redirect_stderr(io.StringIO()):
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        board, seen = EventAccumulator(str(self.folder / 'live/mine'), size_guidance={'scalars': 0}), []
        later = [[step(3, 5.0), step(4, 4.5)], [resume(3), step(3, 3.0), step(4, 2.0)], [EVENTS[-1]]]
        (self.run_folder / 'log.jsonl').write_text(lines(*EVENTS[:-1]))

        def wait(_):
            seen.append([(point.step, point.value) for point in board.Reload().Scalars('train/loss')])
            with (self.run_folder / 'log.jsonl').open('a') as log: log.write(lines(*later.pop(0)))
        with mock.patch.object(export_runs, 'sleep', wait):
            code, out, _ = self.run_tool(export_runs, '--to', 'tensorboard', '--follow', self.run_folder, '-o',
                                         self.folder / 'live')
        self.assertEqual((code, later), (0, []), out)
        self.assertEqual(seen, [[(1, 5.25)], [(1, 5.25), (3, 4.125), (4, 5.0)], [(1, 5.25), (3, 4.125), (4, 3.0)]])
        self.assertEqual([(point.step, point.value) for point in board.Reload().Scalars('train/loss')],
                         [(1, 5.25), (3, 4.125), (4, 3.0), (5, 2.0)])

    @unittest.skipUnless(has('wandb'), 'no wandb')
    def test_wandb_reads_it_back(self):
        for words in ((), ('--follow',)):
            with self.subTest(words): self.check_wandb(*words)

    def check_wandb(self, *words):
        def wait(_):
            (self.run_folder / 'log.jsonl').write_text(lines(*EVENTS))
            followed.append(True)
        followed, out = [], self.folder / f'offline{len(words)}'
        if words: (self.run_folder / 'log.jsonl').write_text(lines(*EVENTS[:4]))
        environment = {'HOME': str(self.folder), **({'WANDB_MODE': 'offline'} if words else {})}
        with mock.patch.dict(os.environ, environment), mock.patch.object(export_runs, 'sleep', wait):
            code, _, err = self.run_tool(export_runs, '--to', 'wandb', *words, self.run_folder, '-o', out)
        self.assertEqual((code, err), (0, ''))
        files = list((out / 'wandb').glob('offline-run-*/*.wandb'))
        self.assertEqual(len(files), 1)
        got, config = {}, {}
        for record in wandb_records(files[0]):
            kind = record.WhichOneof('record_type')
            if kind == 'run':
                self.assertEqual((record.run.display_name, record.run.project), ('mine', 'train_gpt2'))
                config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
            if kind != 'history': continue
            items = {item.key or '.'.join(item.nested_key): json.loads(item.value_json)
                     for item in record.history.item}
            got[int(items['_step'])] = {name: value for name, value in items.items() if not name.startswith('_')}
        self.check(got)
        self.assertTrue(followed or '--follow' not in words)
        self.assertEqual((config['lr'], config['init'], config['tokens_per_step']), (0.003, 'd12', 64))


if __name__ == '__main__': main()
