#!/usr/bin/env python3
# same_training_test.py - dev/gpu_check/same_training.py with a program that only writes a log: what passes, what each
# failure says, which numbers of PyTorch it refuses
import json
import os
import subprocess
import sys
import unittest

from run_support import ROOT, WithFolder, main, program

SCRIPT = os.path.join(ROOT, 'dev/gpu_check/same_training.py')
same_training = program('gpu_check/same_training.py')

# Does what runs.json says of the runs whose flags it has; the last one counts.
PROGRAM = '''#!{python}
import json, os, sys
flags, does = sys.argv[1:], {{}}
out = flags[flags.index('-o') + 1]
for run in json.load(open({folder!r} + '/runs.json')):
    if set(run['flags']) <= set(flags): does.update(run)
if 'error' not in does or does['losses']:
    os.makedirs(out + '/step_00000001')
    with open(out + '/log.jsonl', 'w') as log:
        for event in [{{'event': 'start', 'version': {{'device': 'cpu'}}, 'attention': 'plain',
                        'matmul': 'a library', 'choices': {{'taken': {{}}}}}}] + [
                {{'event': 'step', 'step': i + 1, 'loss': loss, 'grad_norm': 1.0}}
                for i, loss in enumerate(does['losses'])]:
            print(json.dumps(event), file=log)
if 'error' in does:
    print(does['error'])
    sys.exit(does.get('status', 1))
'''
LOSSES = [5.0, 4.5, 4.0]
NUMBERS = {'losses': LOSSES, 'norms': [1.0] * 3, 'differs': [1.0, 1.0]}
BOTH = ('fp32', 'bf16')


class SameTraining(WithFolder):
    def setUp(self):
        super().setUp()
        self.program = self.write('train_gpt2', PROGRAM.format(python=sys.executable, folder=str(self.folder)))
        self.shard = self.write('shard.bin', 'tokens')
        self.arguments = [self.program, '-i', self.shard, '--work', str(self.folder / 'work'), '--steps', '3',
                          '--fp32', 'd6 1 8', '--bf16', 'd6 1 8']

    def write(self, name, content):
        """Text, or what is written as JSON, as a program. Returns the path."""
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        (self.folder / name).chmod(0o700)
        return str(self.folder / name)

    def ran(self, *words):
        """The exit code and output; without words with expect.json. Flags among the words replace those of setUp."""
        program, *flags = self.arguments
        others = [word for flag in zip(flags[::2], flags[1::2]) if flag[0] not in words for word in flag]
        result = subprocess.run([sys.executable, SCRIPT, program, *others, *words], capture_output=True, text=True,
                                check=False)
        return result.returncode, result.stdout + result.stderr

    def run_with(self, *runs, **recorded):
        """The exit code and output where runs do this and the recorded numbers are those."""
        self.write('runs.json', [{'flags': [], 'losses': LOSSES}, *runs])
        expect = ['--expect', self.write('expect.json', {'tokens': '', **dict.fromkeys(BOTH, NUMBERS)})]
        args = same_training.parse(self.arguments + expect)
        self.write('expect.json', {'tokens': same_training.fingerprint(args), **{
            dtype: {**same_training.recipe(args, dtype), **NUMBERS, **recorded} for dtype in BOTH}})
        return self.ran(*expect)

    def fails(self, lines, *runs, **recorded):
        code, output = self.run_with(*runs, **recorded)
        self.assertEqual(code, 1, output)
        self.assertEqual([line for line in output.splitlines() if line.startswith('FAIL')], lines)

    def test_what_differs_is_named(self):
        self.fails(["FAIL: fp32: step 2: loss 4.500500, PyTorch's 4.500000; differs by 0.0005, tolerance 0.0001"],
                   {'flags': [], 'losses': [5.0, 4.5005, 4.0]})  # bf16's tolerance is larger
        self.fails(["FAIL: bf16: step 3: loss not finite, PyTorch's 4.000000; differs by inf, tolerance 0.01"],
                   {'flags': ['bf16'], 'losses': [5.0, 4.5, None]})
        self.fails([f"FAIL: {dtype}: step 1: gradient norm 1.000000, PyTorch's 1.010000; differs by 0.0099 of it, "
                    f'tolerance {tolerance}' for dtype, tolerance in (('fp32', '5e-05'), ('bf16', '0.002'))],
                   norms=[1.01, 1.0, 1.0])
        self.fails([f"FAIL: {dtype}: 2 steps, PyTorch's 3; expected 3" for dtype in BOTH],
                   {'flags': ['-x', '3'], 'losses': LOSSES[:2]})
        code, output = self.run_with(lr=5e-4)
        self.assertEqual((code, 'expect.json is of fp32' in output, 'PASS' in output), (1, True, False), output)

    def test_tolerances(self):
        # Four times what a right build differs by, at the first step, too; never more than the largest tolerance.
        for differs, want in ((None, same_training.LIMITS['fp32']), ([1.0, 1.0], same_training.LIMITS['fp32']),
                              ([1e-5, 1e-5], (4e-5, 4e-5, 4e-5))):
            self.assertEqual(same_training.tolerance('fp32', differs), want)
        self.fails([f"FAIL: {dtype}: step 3: gradient norm 1.000000, PyTorch's 1.000300; differs by 0.0003 of it, "
                    'tolerance 0.0001' for dtype in BOTH], norms=[1.0, 1.0, 1.0003], differs=[1.0, 2.5e-5])
        def of(*flags):  # those of the default sizes; a higher learning rate amplifies rounding errors
            return same_training.parse([*self.arguments[:5], *flags]).tolerance
        self.assertEqual(of(), {'fp32': (1e-4, 5e-5, 2.8e-3), 'bf16': (0.01, 0.002, 0.008)})
        self.assertEqual(of('--lr', '1e-3'), same_training.LIMITS)

    def test_runs_that_end(self):
        self.fails(['FAIL: bf16: the program ended with 3: out of memory'],
                   {'flags': ['bf16'], 'error': 'out of memory', 'status': 3, 'losses': []})
        self.fails(["FAIL: fp32: step 1: loss 6.000000, PyTorch's 5.000000; differs by 1, tolerance 0.0001; "
                    'the program ended with 1: diverged'],
                   {'flags': ['fp32', '-x', '3'], 'error': 'diverged', 'losses': [6.0]})
        self.fails(['FAIL: the initial model: the program ended with 1: no shards'],
                   {'flags': [], 'error': 'no shards', 'losses': []})


if __name__ == '__main__':
    main()
