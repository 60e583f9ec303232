#!/usr/bin/env python3
# same_training_test.py - dev/gpu_check/same_training.py with a program that only writes a log: what passes, what each
# failure says, which numbers of PyTorch it refuses, the forms of products that it forces, and text that is not there
import json
import os
import shutil
import subprocess
import sys
import unittest

from run_support import ROOT, WithFolder, main, program

SCRIPT = os.path.join(ROOT, 'dev/gpu_check/same_training.py')
same_training = program('gpu_check/same_training.py')

# Reads from runs.json what the run with each of these flags, all of which it has, is to do; the last one counts.
PROGRAM = '''#!{python}
import json, os, sys
flags = sys.argv[1:]
out = flags[flags.index('-o') + 1]
does = {{}}
for run in json.load(open(os.path.join({folder!r}, 'runs.json'))):
    if set(run['flags']) <= set(flags):
        does.update(run)
if 'error' not in does or does.get('losses'):
    os.makedirs(os.path.join(out, 'step_00000001'))
    matmul = {{'cuBLASLt 13.1.0': {{'matmul forward bf16, bias, gelu': {{'taken': 'fused-gelu 00'}}}}}}
    with open(os.path.join(out, 'log.jsonl'), 'w') as log:
        for event in [{{'event': 'start', 'version': {{'device': does.get('device', 'cpu')}}, 'attention': 'plain',
                        'matmul': 'a library', 'choices': {{'taken': matmul}}}}] + [
                {{'event': 'step', 'step': i + 1, 'loss': loss, 'grad_norm': 1.0}}
                for i, loss in enumerate(does['losses'])]:
            print(json.dumps(event), file=log)
if does.get('tunes') and '--tune-file' in flags and not os.path.exists(flags[flags.index('--tune-file') + 1]):
    with open(flags[flags.index('--tune-file') + 1], 'w') as file:
        json.dump({{'devices': {{'a GPU': {{'cuBLASLt 13.1.0': {{'matmul forward bf16, bias, gelu':
                   {{'taken': 'fused-gelu 00', 'why': '', 'seconds': 2}}}}}}}}}}, file)
if 'error' in does:
    print(does['error'])
    sys.exit(does.get('status', 1))
'''
LOSSES = [5.0, 4.5, 4.0]
NUMBERS = {'losses': LOSSES, 'norms': [1.0] * 3, 'differs': [1.0, 1.0]}
SIZES = ['--steps', '3', '--fp32', 'd6 1 8', '--bf16', 'd6 1 8']


class SameTraining(WithFolder):
    def setUp(self):
        super().setUp()
        self.program = self.script('train_gpt2', PROGRAM.format(python=sys.executable, folder=str(self.folder)))
        self.shard = self.write('shard.bin', 'tokens')

    def path_of(self, name):
        return str(self.folder / name)

    def write(self, name, content):
        """Text, or what is written as JSON. Returns the path."""
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return self.path_of(name)

    def script(self, name, text):
        self.write(name, text)
        (self.folder / name).chmod(0o700)
        return self.path_of(name)

    @staticmethod
    def ran(*words, **options):
        return subprocess.run(words, capture_output=True, text=True, check=False, **options)

    def run_with(self, *runs, **recorded):
        """The exit code and output where runs do this. The first says what all do."""
        self.write('runs.json', [{'flags': [], 'losses': LOSSES}, *runs])
        expect = self.write('expect.json', {'tokens': '', 'fp32': NUMBERS, 'bf16': NUMBERS})
        arguments = [self.program, '-i', self.shard, '--work', self.path_of('work'), *SIZES, '--expect', expect]
        args = same_training.parse(arguments)
        expect = {'tokens': same_training.fingerprint(args)}
        for dtype in ('fp32', 'bf16'):
            expect[dtype] = {**same_training.recipe(args, dtype), **NUMBERS, **recorded}
        self.write('expect.json', expect)
        result = self.ran(sys.executable, SCRIPT, *arguments)
        return result.returncode, result.stdout + result.stderr

    def fails(self, lines, *runs, **recorded):
        code, output = self.run_with(*runs, **recorded)
        self.assertEqual(code, 1, output)
        self.assertEqual([line for line in output.splitlines() if line.startswith('FAIL')], lines)

    def test_invalid_arguments_end_with_2_and_one_line(self):
        good = {'--work': self.path_of('work'), '-i': self.shard,
                '--expect': self.write('good.json', {'tokens': '', 'fp32': NUMBERS, 'bf16': NUMBERS})}
        for program, wrong, message in (
                (self.path_of('none'), {}, 'the program is "'),
                (self.shard, {}, 'the program is "'),
                (self.program, {'--steps': '0'}, '--steps is 0; expected 1 or more'),
                (self.program, {'--lr': 'nan'}, '--lr is nan; expected a positive number'),
                (self.program, {'--work': '/proc/none'}, '--work is "/proc/none"; expected a folder'),
                (self.program, {'--expect': self.path_of('none')}, 'expected a file that --record wrote'),
                (self.program, {'--expect': self.shard}, 'expected a file that --record wrote'),
                (self.program, {'--expect': self.write('empty.json', {})}, 'expected a file that --record wrote'),
                (self.program, {'--expect': self.write('list.json', [1])}, 'expected a file that --record wrote'),
                (self.program, {'--expect': self.write('half.json', {'tokens': '', 'fp32': {}, 'bf16': {}})},
                 'expected a file that --record wrote'),
                (self.program, {'--expect': None, '--python': '/none'}, 'expected a Python with torch and numpy'),
                (self.program, {'--expect': None, '--python': '/bin/false'}, 'expected a Python with torch and numpy'),
                (self.program, {'--expect': None, '--record': '/none/x'}, 'expected a file in a writable folder')):
            words = [word for flag, value in {**good, **wrong}.items() if value for word in (flag, value)]
            result = self.ran(sys.executable, SCRIPT, program, *words)
            errors = [line for line in result.stderr.splitlines() if 'error: ' in line]
            self.assertEqual((result.returncode, len(errors), result.stdout), (2, 1, ''), result.stderr)
            self.assertIn(message, errors[0])

    def test_what_is_the_same_passes(self):
        code, output = self.run_with()
        self.assertEqual((code, output.splitlines()[-1]), (0, 'PASS'), output)
        # within bf16's tolerance, not within that of fp32
        code, output = self.run_with({'flags': ['bf16'], 'losses': [5.005, 4.5, 4.0]})
        self.assertEqual(code, 0, output)

    def test_what_differs_is_named(self):
        self.fails(["FAIL: fp32: step 2: loss 4.500500, PyTorch's 4.500000; differs by 0.0005, tolerance 0.0001"],
                   {'flags': ['fp32'], 'losses': [5.0, 4.5005, 4.0]})
        self.fails(["FAIL: bf16: step 3: loss not finite, PyTorch's 4.000000; differs by inf, tolerance 0.01"],
                   {'flags': ['bf16'], 'losses': [5.0, 4.5, None]})
        self.fails([f"FAIL: {dtype}: step 1: gradient norm 1.000000, PyTorch's 1.010000; differs by 0.0099 of it, "
                    f'tolerance {tolerance}' for dtype, tolerance in (('fp32', '5e-05'), ('bf16', '0.002'))],
                   norms=[1.01, 1.0, 1.0])
        self.fails([f"FAIL: {dtype}: 2 steps, PyTorch's 3; expected 3" for dtype in ('fp32', 'bf16')],
                   {'flags': ['-x', '3'], 'losses': LOSSES[:2]})

    def test_tolerances_follow_from_what_a_right_build_differs_by(self):
        # Four times as much, at the first step, too; never more than the largest tolerance.
        self.fails(["FAIL: fp32: step 2: loss 4.500050, PyTorch's 4.500000; differs by 5e-05, tolerance 4e-05"],
                   {'flags': ['fp32'], 'losses': [5.0, 4.50005, 4.0]}, differs=[1e-5, 1.0])
        self.fails([f"FAIL: {dtype}: step 1: gradient norm 1.000000, PyTorch's 1.000030; differs by 3e-05 of it, "
                    'tolerance 4e-06' for dtype in ('fp32', 'bf16')],
                   norms=[1.00003, 1.0, 1.0], differs=[1.0, 1e-6])
        self.fails([f"FAIL: {dtype}: step 3: gradient norm 1.000000, PyTorch's 1.000300; differs by 0.0003 of it, "
                    'tolerance 0.0001' for dtype in ('fp32', 'bf16')],
                   norms=[1.0, 1.0, 1.0003], differs=[1.0, 2.5e-5])
        for dtype, limits in same_training.LIMITS.items():
            self.assertEqual(same_training.tolerance(dtype, None), limits)
            self.assertEqual(same_training.tolerance(dtype, [1.0, 1.0]), limits)

    def test_tolerances_of_the_default_sizes(self):
        python = self.peer([])
        def of(*flags):
            return same_training.parse([self.program, '-i', self.shard, '--work', self.path_of('work'), '--python',
                                        python, *flags]).tolerance
        self.assertEqual(of(), {'fp32': (1e-4, 5e-5, 2.8e-3), 'bf16': (0.01, 0.002, 0.008)})
        # A higher learning rate amplifies rounding errors.
        self.assertEqual(of('--lr', '1e-3'), same_training.LIMITS)
        self.assertEqual(of('--bf16', 'd6 1 8'), {'fp32': (1e-4, 5e-5, 2.8e-3), 'bf16': same_training.LIMITS['bf16']})

    def peer(self, losses):
        """A Python that prints these losses where it is to train, with a norm of 1."""
        steps = '\n'.join(f'step {i} loss {loss} norm 1.0' for i, loss in enumerate(losses, 1))
        return self.script('python', f"#!/bin/sh\n[ \"$1\" = -c ] || echo 'torch 2\n{steps}'\n")

    def test_recording_measures_what_the_build_differs_by(self):
        self.write('runs.json', [{'flags': [], 'losses': LOSSES}])
        arguments = [sys.executable, SCRIPT, self.program, '-i', self.shard, '--work', self.path_of('work'), *SIZES]
        for flags in (['--record', self.path_of('recorded.json'), '--python', self.peer([5.0, 4.50005, 4.0])],
                      ['--expect', self.path_of('recorded.json')]):
            result = self.ran(*arguments, *flags)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        recorded = json.loads((self.folder / 'recorded.json').read_text())
        for dtype in ('fp32', 'bf16'):
            self.assertAlmostEqual(recorded[dtype]['differs'][0], 5e-5)
            self.assertEqual(recorded[dtype]['differs'][1], 0.0)

    def test_a_difference_is_printed_before_the_next_run(self):
        _, output = self.run_with({'flags': ['fp32', '-x', '3'], 'losses': [6.0, 4.5, 4.0]})
        lines = output.splitlines()
        self.assertTrue(lines[2].startswith('FAIL: fp32: step 1'), output)
        self.assertIn('bf16: attention', lines[3], output)

    def test_runs_that_end(self):
        self.fails(['FAIL: bf16: the program ended with 3: out of memory'],
                   {'flags': ['bf16'], 'error': 'out of memory', 'status': 3, 'losses': []})
        self.fails(["FAIL: fp32: step 1: loss 6.000000, PyTorch's 5.000000; differs by 1, tolerance 0.0001; "
                    'the program ended with 1: diverged'],
                   {'flags': ['fp32', '-x', '3'], 'error': 'diverged', 'losses': [6.0]})
        self.fails(['FAIL: the initial model: the program ended with 1: no shards'],
                   {'flags': [], 'error': 'no shards'})

    def test_variants_of_a_gpu(self):
        gpu = {'flags': [], 'device': 'cuda', 'tunes': True}
        code, output = self.run_with(gpu, {'flags': ['cudnn'], 'error': 'error: --attention is "cudnn"; expected auto, '
                                           'flash or plain: this build has no cuDNN; build ...', 'losses': []})
        self.assertEqual(code, 0, output)
        self.assertIn('bf16, --attention cudnn: skipped: this build has no cuDNN', output)
        for forms, taken in (('fused', 'fused-gelu'), ('bare', 'bare')):
            choices = json.loads((self.folder / f'work/{forms}.json').read_text())
            choice, = choices['devices']['a GPU']['cuBLASLt 13.1.0'].values()
            self.assertEqual(choice['taken'], taken)
        self.fails(["FAIL: bf16, --attention flash: step 1: loss 5.020000, PyTorch's 5.000000; differs by 0.02, "
                    "tolerance 0.01", "FAIL: bf16, --attention flash: step 1: loss 5.020000, the first run's 5.000000; "
                    "differs by 0.02, tolerance 0.01"], gpu, {'flags': ['flash'], 'losses': [5.02, 4.5, 4.0]})
        bare = self.path_of('work/bare.json')
        code, output = self.run_with(gpu, {'flags': [bare], 'losses': [5.0, 4.5, 4.02]})
        self.assertEqual(code, 1, output)
        self.assertIn("FAIL: bf16, bare epilogues: step 3: loss 4.020000, PyTorch's 4.000000;", output)

    def test_numbers_of_other_runs_are_refused(self):
        code, output = self.run_with(lr=5e-4)
        self.assertEqual(code, 1, output)
        self.assertIn('expect.json is of fp32', output)
        self.assertNotIn('PASS', output)

    def test_forms(self):
        for problem, form in (('matmul forward bf16, rows 8, bias', 'bare'),
                              ('matmul forward bf16, rows 8, bias, gelu', 'fused-gelu'),
                              ('matmul backward_input bf16, rows 8, gelu', 'fused-gelu'),
                              ('matmul backward_weight bf16, rows 8, bias, added', 'fused-bias'),
                              ('matmul backward_weight bf16, rows 8, added', 'bare')):
            self.assertEqual(same_training.fused(problem), form)
            self.assertEqual(same_training.bare(problem), 'bare')

    def test_text(self):
        script = os.path.join(ROOT, 'dev/gpu_check/text.sh')
        tools = self.folder / 'tools'  # all but `bible`
        tools.mkdir()
        for name in ('bash', 'dirname', 'realpath'): (tools / name).symlink_to(shutil.which(name))
        def text(folder):
            result = self.ran(script, '.', folder, env={'PATH': str(tools)})
            return result.returncode, result.stdout
        self.assertEqual(text(self.path_of('none')),
                         (77, 'there is no text: the package bible-kjv is not installed\n'))
        self.assertEqual(text(str(self.folder)), (0, ''))  # which has a shard


if __name__ == '__main__':
    main()
