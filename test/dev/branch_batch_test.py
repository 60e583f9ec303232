#!/usr/bin/env python3
# branch_batch_test.py - dev/branch_batch: whole branches, a stopped one, what it refuses, the critical batch and kappa
#
#   test/dev/branch_batch_test.py [BUILD]     with the programs in BUILD (build/cpu)
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace

from run_support import ROOT, WithFolder, main, program

BUILD = ROOT / (sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith('-') else 'build/cpu')
TOOL = ROOT / 'dev/branch_batch'
os.environ['OMP_WAIT_POLICY'] = 'passive'
branch_batch = program('branch_batch')


def events(folder, kind):
    lines = (folder / 'log.jsonl').read_text().splitlines()
    return [event for event in map(json.loads, lines) if event['event'] == kind]


class Branches(WithFolder):
    @classmethod
    def setUpClass(cls):
        """A run whose step doubled to 128 tokens at its 5th one, with checkpoints after steps 10 and 20."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.made = Path(folder.name)
        texts = [ROOT / name for name in ('README.md', 'llmc/RUNS.md', 'scripts/README.md')]
        cls.ran([BUILD / 'tokenize', '-o', cls.made, '--name', 't', '--hold-out', '2', *texts])
        cls.train = [BUILD / 'train_gpt2', '-i', f'{cls.made}/t_train_*.bin', '-e', 'custom:l=1,h=2,c=32,t=32',
                     '-b', '1', '-t', '32', '--tune', 'off', '--threads', '1']
        cls.val = ['-j', f'{cls.made}/t_val_*.bin', '--val-tokens', '256']
        cls.ran([*cls.train, *cls.val, '--batch-schedule', '0:64,256:128', '-x', '20', '-n', '10', '--lr', '1e-2',
                 '-o', cls.made / 'run'])

    @staticmethod
    def ran(command):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode: raise AssertionError(f'{command}: {done.stdout}{done.stderr}')

    def setUp(self):
        super().setUp()
        self.checkpoint = self.made / 'run/step_00000010'
        self.common = ['--program', BUILD / 'train_gpt2']

    def rows(self, out):
        lines = (out / 'table.md').read_text().splitlines()
        return [line.strip('| ').split(' | ') for line in lines if line.startswith('| ') and 'tokens' not in line]

    def test_branches_of_the_same_tokens(self):
        out = self.folder / 'out'
        code, text, err = self.run_tool(branch_batch, self.checkpoint, '-o', out, *self.common)
        self.assertEqual((code, err), (0, ''))
        start, rows = events(self.made / 'run', 'step')[9], self.rows(out)
        self.assertEqual((start['tokens'], start['tokens_so_far']), (128, 1024))
        self.assertEqual([row[:3] for row in rows], [['0.5', '64', '16'], ['1', '128', '8'], ['2', '256', '4'],
                                                     ['4', '512', '2'], ['8', '1024', '1']])
        losses = []
        for name, size, updates, rate, loss, above, _ in rows:
            steps, (val,) = events(out / f'f_{name}', 'step'), events(out / f'f_{name}', 'val')
            self.assertEqual((len(steps), steps[-1]['tokens_so_far']), (int(updates), 2048))
            for step in steps:  # falls to 0 in the last half
                share = min(1, (2048 - step['tokens_so_far'] + int(size)) / 512)
                self.assertAlmostEqual(step['lr'] / start['lr'] / float(name) ** 0.5, share, 5)
            self.assertEqual((val['step'], val['valid_tokens']), (steps[-1]['step'], 256))
            self.assertEqual((rate, loss), (f"{steps[0]['lr']:.3g}", f"{val['loss']:.4f}"))
            losses.append(val['loss'])
        self.assertEqual([row[5] for row in rows], [f'{loss - min(losses):.4f}' for loss in losses])
        within = [int(row[1]) for row, loss in zip(rows, losses) if loss <= min(losses) + 0.005][-1]
        last = text.splitlines()[-3:]
        self.assertRegex(last[0], f'^critical batch: (at least |at most |){within} tokens')
        self.assertIn(f" {start['noise_scale_tokens']:.0f} tokens at step 10", last[1])
        self.assertIn(f"{within / start['noise_scale_tokens']:.3g}, critical batch / noise scale", last[2])
        self.assertTrue((out / 'plot.png').read_bytes().startswith(b'\x89PNG'))
        # f = 1 is the run, continued by hand.
        hand = self.folder / 'hand'
        self.ran([*self.train[:1], '-y', self.checkpoint, '-o', hand, '-d', '128', '--max-tokens', '2048', '-k',
                  'wsd', '--cooldown-fraction', '0.25', '-q', '0', '-u', '0', '--lr', repr(start['lr'] / 2 ** 0.5)])
        models = [(folder / 'step_00000018/model.safetensors').read_bytes() for folder in (hand, out / 'f_1')]
        self.assertEqual(models[0], models[1])
        # The same command again trains nothing; other arguments are refused.
        table = (out / 'table.md').read_bytes()
        code, text, _ = self.run_tool(branch_batch, self.checkpoint, '-o', out, *self.common)
        self.assertEqual((code, 'started' in text, (out / 'table.md').read_bytes()), (0, False, table))
        for other in (['--tokens', '2048'], ['--cooldown', '1'], ['--', '--lr', '1e-3']):
            self.assertIn('which has branches of other arguments: "', self.refused(
                branch_batch, self.checkpoint, '-o', out, *self.common, *other))
        # Other factors add branches of as many tokens.
        code, _, err = self.run_tool(branch_batch, self.checkpoint, '-o', out, '--factors', '1/4 2', *self.common)
        self.assertEqual((code, err), (0, ''))
        self.assertEqual([row[:3] for row in self.rows(out)], [['0.25', '32', '32'], *[row[:3] for row in rows]])

    def test_a_stopped_branch_resumes(self):
        arguments = ['--factors', '1 2', '--tokens', '256k', *self.common]
        whole, cut = self.folder / 'whole', self.folder / 'cut'
        command = [str(word) for word in (sys.executable, TOOL, self.checkpoint, '-o', cut, *arguments)]
        tool = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.addCleanup(tool.kill)
        log = cut / 'f_1/log.jsonl'
        while not (log.is_file() and b'"event":"step"' in log.read_bytes()):
            self.assertIsNone(tool.poll())
            time.sleep(0.01)
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertIn('expected a folder in which no branches are running', second.stderr)
        tool.send_signal(signal.SIGTERM)
        self.assertEqual((tool.wait(60), (cut / 'table.md').exists(), (cut / 'f_2').exists()), (130, False, False))
        for out in (cut, whole):
            self.assertEqual(self.run_tool(branch_batch, self.checkpoint, '-o', out, '--jobs', '1', *arguments)[0], 0)
        self.assertEqual([event['step'] > 10 for event in events(cut / 'f_1', 'resume')], [False, True])
        self.assertEqual([row[:6] for row in self.rows(cut)], [row[:6] for row in self.rows(whole)])

    def test_failed_branches_are_named(self):
        out = self.folder / 'out'
        code, text, err = self.run_tool(branch_batch, self.checkpoint, '-o', out, '--tokens', '25600', '--factors',
                                        '1 2', *self.common, '--', '--lr', '1000', '--weight-decay', '1000')
        self.assertEqual((code, text.count('failed'), err.count('\n')), (1, 0, 1), text + err)
        self.assertIn(f'2 of 2 branches failed; {out}/f_1.txt: ', err)

    def test_a_full_disk(self):
        full = 'cannot be written: no space left on device; free disk space and run this again'
        (self.folder / 'command').symlink_to('/dev/full')
        with self.assertRaisesRegex(branch_batch.ToolError, f'^"{self.folder}/command" {full}$'):
            branch_batch.claim(self.folder, 'x')
        out, program = self.folder / 'out', self.folder / 'program'
        arguments = [self.checkpoint, '-o', out, '--program', program, '--tokens', '512', '--factors', '1 2']
        for fails, last in (('exit 1', 'f_1.txt has no error message; check its disk space, and the memory'),
                            (f'ln -sf /dev/full {out}/table.md', full)):
            program.write_text(f'#!/bin/sh\ncase "$*" in *--dry-run) ;; *) {fails} ;; esac; '
                               f'exec {BUILD}/train_gpt2 "$@"\n')
            program.chmod(0o755)
            code, _, err = self.run_tool(branch_batch, *arguments)
            self.assertEqual((code, err.count('\n')), (1, 1), err)
            self.assertIn(last, err)

    def test_what_it_refuses(self):
        def refused(*words, checkpoint=self.checkpoint):
            said = self.refused(branch_batch, checkpoint, '-o', self.folder / 'out', *self.common, *words)
            self.assertFalse((self.folder / 'out').exists())
            return said
        for words, said in (
                (['--factors', '1 3/8'], '--factors is 3/8, 48 tokens per step; expected a multiple of --seq-len 32; '
                                         'leave it out, or use 1/4 or 1/2'),
                *((['--factors', f'1 {wrong} 2'], f'a factor of --factors is "{wrong}"; expected a positive number')
                  for wrong in ('x', '0', '1/0', '-1', '1e400')),
                (['--factors', '1 2 4/2'], 'a factor of --factors is "4/2", as large as "2"; expected different ones'),
                *((['--factors', few], f'--factors is "{few}"; expected two or more factors') for few in ('', '2')),
                *((['--', *warm], f'{warm[0]} is given after --; expected no warm-up, which has other learning rates '
                                  'in each branch; remove it')
                  for warm in (['-u', '11'], ['--warmup-steps', '11'], ['--warmup-tokens', '1500'])),
                (['--tokens', '1500'], '--tokens is 1500; expected a multiple of 1024, of all sizes of a step; the '
                                       'nearest: 1024 and 2048'),
                (['--tokens', 'x'], '--tokens is "x"; expected a whole number'),
                (['--cooldown', '1.5'], '--cooldown is "1.5"; expected a number from 0 to 1'),
                (['--', '--lr', 'x'], 'the dry run of f = 0.5, 64 tokens per step, fails: --lr is "x"'),
                (['--', '-i', '/none'], '64 tokens per step, fails: the number of training shards is 0; expected 1'),
                (['--', '--max-minutes', '1'], '--max-minutes is 1, given after --; expected 0, as branches are'),
                (['--', '--stop-after', '2', '-v', '1'], '--stop-after is 2, given after --; expected 0'),
                (['--', '-v', '0'], '--val-every is 0, given after --; expected a validation at the end'),
                (['--', '-j', '/none'], "the dry run has no validation data; expected shards of -j")):
            self.assertIn(said, refused(*words))
        self.assertIn('"/none" is not a checkpoint (manifest.json: no such file', refused(checkpoint='/none'))
        self.assertIn(f'use {self.made}/run/step_00000020', refused(checkpoint=self.made / 'run'))
        self.assertIn('--program is "/none"', self.refused(branch_batch, 'x', '-o', 'x', '--program', '/none'))
        copy = self.folder / 'run/step_00000010'
        shutil.copytree(self.made / 'run', copy.parent)
        log, state = copy.parent / 'log.jsonl', copy / 'trainer_state.json'
        lines = log.read_text()
        for text, said in (('', 'step 10 in '), ('{"eve\n', 'line 1 is not JSON'),
                           (lines.replace('"tokens":128', '"tokens":64'), 'is of another run'),
                           (lines.replace('"lr":0.00', '"lr":0.0000'), 'expected at least 1 % of the run')):
            log.write_text(text)
            self.assertIn(said, refused(checkpoint=copy))
        log.unlink()
        self.assertIn('a folder without log.jsonl', refused(checkpoint=copy))
        log.write_text(lines)
        whole = state.read_text()
        for text in (whole[:-9], '[]', whole.replace('"tokens": 128', '"tokens": "x"'),
                     whole.replace('"seq-len": 32', '"seq-len": 0')):
            state.write_text(text)
            self.assertIn('damaged or of another version', refused(checkpoint=copy))
        older = json.loads(whole)  # of a format in which all steps have one size
        older.pop('batches')
        older['run']['step_tokens'] = 128
        state.write_text(json.dumps(older))
        read = branch_batch.Checkpoint(copy)
        self.assertEqual((read.size, read.tokens), (128, 1280))
        (self.folder / 'full').mkdir()
        (self.folder / 'full/file').touch()
        self.assertIn('a new or empty folder', self.refused(branch_batch, self.checkpoint, '-o', self.folder / 'full',
                                                            *self.common))
        self.assertIn('-o is not given', self.refused(branch_batch, self.checkpoint))

    def test_runs_that_cannot_branch(self):
        for name, flags, said in (
                ('blind', ['-d', '128'], 'the run has no validation data'),
                ('onebit', ['-d', '128', '--optimizer', 'onebit-adam', *self.val], '128 tokens in every step with')):
            self.ran([*self.train, *flags, '-x', '4', '-o', self.folder / name])
            self.assertIn(said, self.refused(branch_batch, self.folder / name / 'step_00000004', '-o',
                                             self.folder / 'out', *self.common))

    def test_a_run_with_outer_steps_needs_as_many_ranks(self):
        self.ran([*self.train, *self.val, '-d', '128', '--outer-steps', '2', '-x', '4', '-o', self.folder / 'outer'])
        words = [self.folder / 'outer/step_00000004', '--factors', '1 2', '-o', self.folder / 'out', '--', '--lr',
                 '1e-3']
        two = self.folder / 'two_ranks'
        two.write_text('#!/bin/sh\necho "validation data: 1 shard"; echo "communication: 2 ranks over MPI"\n')
        two.chmod(0o755)
        self.assertIn('the number of ranks of --program is 2; expected 1, as in the run',
                      self.refused(branch_batch, '--program', two, *words))
        self.assertEqual(self.run_tool(branch_batch, *self.common, *words)[0], 0)


class Conclusions(unittest.TestCase):
    def concluded(self, losses, noise, bounded=False):
        branches = [SimpleNamespace(name=str(2 ** i), size=100 * 2 ** i, loss=loss, updates=1, rate=1, minutes=1)
                    for i, loss in enumerate(losses)]
        checkpoint = SimpleNamespace(folder='x', step=7, noise=noise, bounded=bounded)
        lines = branch_batch.report(branches, checkpoint, 800)[-3:]
        return [line.partition(',')[0] for line in lines]

    def test_critical_batch_noise_scale_and_kappa(self):
        known, least, inf = 'noise scale: 400 tokens at step 7', 'noise scale: at least 400 tokens at step 7', math.inf
        for losses, noise, bounded, critical, third, kappa in (
                ([2.0, 2.0049, 2.006, inf], 400, False, '200 tokens (f = 2)', known, '0.5'),
                ([2.0, 2.1, 2.0049, 2.1], 400, False, '400 tokens (f = 4)', known, '1'),
                ([2.0, 2.1, 2.1, 2.0], 400, False, 'at least 800 tokens (f = 8)', known, 'at least 2'),
                ([2.0, 2.1, 2.1, 2.1], 400, False, 'at most 100 tokens (f = 1)', known, 'at most 0.25'),
                ([2.1, 2.0, 2.1, 2.1], 400, True, '200 tokens (f = 2)', least, 'at most 0.5'),
                ([2.1, 2.1, 2.1, 2.0], 400, True, 'at least 800 tokens (f = 8)', least, 'not known'),
                ([2.1, 2.0, 2.1, 2.1], None, True, '200 tokens (f = 2)', 'noise scale: not known at step 7; a run of '
                 'two or more ranks or micro-batches per step logs it', 'not known')):
            self.assertEqual(self.concluded(losses, noise, bounded),
                             [f'critical batch: {critical}', third, f'kappa: {kappa}'])

    def test_flags_of_the_user_replace_the_default_ones(self):
        def flags(given, jobs=1):
            checkpoint = SimpleNamespace(tokens=300, rate=1, peak=1, validates=True, base_rate=lambda: 0.25)
            found = branch_batch.common_flags(checkpoint, 100, '0.4', given, jobs)
            self.assertEqual(found[len(found) - len(given):], given)
            return {flag.partition('=')[0]: flag.partition('=')[2] for flag in found[:len(found) - len(given)]}
        whole = flags([])
        self.assertEqual([whole[f'--{name}'] for name in ('max-tokens', 'lr', 'cooldown-fraction', 'lr-schedule',
                                                          'warmup-steps', 'warmup-tokens')],
                         ['400', '0.25', '0.1', 'wsd', '0', '0'])
        for given, gone in ((['-l', '1'], {'--lr'}), (['--lr=1', '-v=5'], {'--lr', '--val-every'}), (
                ['-k', 'linear'], {'--lr-schedule', '--cooldown-fraction', '--cooldown-shape', '--final-lr-fraction'})):
            self.assertEqual(whole.keys() - flags(given).keys(), gone)
        self.assertEqual(flags([], 1000)['--threads'], '1')
        self.assertNotIn('--threads', {**whole, **flags(['--threads', '2'], 2)})


if __name__ == '__main__': main()
