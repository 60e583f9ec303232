#!/usr/bin/env python3
# same_training_test.py - dev/gpu_check/same_training.py with a program that only writes a log: what passes, and what
# each failure says
import json
import subprocess
import sys

from run_support import ROOT, WithFolder, main

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
        for event in [{{'event': 'start', 'version': {{'device': does.get('device', 'cpu')}}, 'attention': 'plain',
                        'matmul': 'a library', 'choices': {{'taken': {{}}}}}}] + [
                {{'event': 'step', 'step': i + 1, 'loss': loss, 'grad_norm': 1.0}}
                for i, loss in enumerate(does['losses'])]:
            print(json.dumps(event), file=log)
tuned = flags[flags.index('--tune-file') + 1] if '--tune-file' in flags else '/'
if not os.path.exists(tuned):
    choice = {{'taken': 'fused-gelu 0a'}}
    with open(tuned, 'w') as file:
        json.dump({{'devices': {{'a GPU': {{'cuBLASLt': {{'bf16 1 2 3, gelu': choice}}}}}}}}, file)
if 'error' in does:
    print(does['error'])
    sys.exit(does.get('status', 1))
'''
LOSSES = [5.0, 4.5] + [4.0] * 10


class SameTraining(WithFolder):
    def ran(self, *runs, norms=(1.0,)):
        """The exit code and output where runs do this and PyTorch's gradient norms begin with these."""
        (self.folder / 'runs.json').write_text(json.dumps([{'flags': [], 'losses': LOSSES}, *runs]))
        norms = [*norms, *[1.0] * (len(LOSSES) - len(norms))]
        for dtype in ('fp32', 'bf16'):
            (self.folder / f'pytorch_{dtype}.log').write_text('torch 2.11\n' + ''.join(
                f'step {i} loss {loss} norm {norm}\n' for i, (loss, norm) in enumerate(zip(LOSSES, norms), 1)))
        trains = self.folder / 'train_gpt2'
        trains.write_text(PROGRAM.format(python=sys.executable, folder=str(self.folder)))
        trains.chmod(0o700)
        result = subprocess.run([sys.executable, ROOT / 'dev/gpu_check/same_training.py', trains, '-i', 'x', '--tiny',
                                 '--work', self.folder / 'work', '--expect', self.folder], capture_output=True,
                                text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def fails(self, lines, *runs, **recorded):
        code, output = self.ran(*runs, **recorded)
        self.assertEqual(code, 1, output)
        self.assertEqual([line for line in output.splitlines() if line.startswith('FAIL')], lines)

    def test_what_differs_is_named(self):
        self.fails(["FAIL: fp32: step 2: loss 4.500500, PyTorch's 4.500000; differs by 0.0005, tolerance 5e-06"],
                   {'flags': [], 'losses': [5.0, 4.5005, *LOSSES[2:]]})  # bf16's tolerance is larger
        self.fails(["FAIL: bf16: step 2: loss not finite, PyTorch's 4.500000; differs by inf, tolerance 0.009"],
                   {'flags': ['bf16', '12'], 'losses': [5.0, None, *LOSSES[2:]]})
        for norms, step, far, tolerances in (([1.01], 1, '0.0099', ('5e-05', '0.002')),
                                             ([1.0, 1.02], 2, '0.02', ('0.00015', '0.012'))):
            self.fails([f"FAIL: {dtype}: step {step}: gradient norm 1.000000, PyTorch's {norms[-1]:f}; "
                        f'differs by {far} of it, tolerance {tolerance}'
                        for dtype, tolerance in zip(('fp32', 'bf16'), tolerances)], norms=norms)
        self.fails([f"FAIL: {dtype}: 2 steps, PyTorch's 12; expected 12" for dtype in ('fp32', 'bf16')],
                   {'flags': ['12'], 'losses': LOSSES[:2]})

    def test_variants_on_a_gpu(self):
        gpu = {'flags': [], 'losses': LOSSES, 'device': 'cuda'}
        code, output = self.ran(gpu)
        self.assertEqual((code, output.count("the first run's")), (0, 4), output)
        self.assertEqual(output.splitlines()[-1], 'PASS')
        files = [json.loads((self.folder / f'work/{form}.json').read_text()) for form in ('fused', 'bare')]
        self.assertEqual([file['devices']['a GPU']['cuBLASLt']['bf16 1 2 3, gelu']['taken'] for file in files],
                         ['fused-gelu 0a', 'bare'])
        self.fails([f'FAIL: bf16, --attention plain: step 1: loss 5.100000, {whose} 5.000000; differs by 0.1, '
                    'tolerance 0.009' for whose in ("PyTorch's", "the first run's")], gpu,
                   {'flags': ['plain'], 'losses': [5.1, *LOSSES[1:]]})
        self.fails(['FAIL: bf16, --attention flash: ended with 1: no such method'], gpu,
                   {'flags': ['flash'], 'error': 'no such method', 'losses': []})

    def test_runs_that_end(self):
        self.fails(['FAIL: bf16: ended with 3: out of memory'],
                   {'flags': ['bf16', '12'], 'error': 'out of memory', 'status': 3, 'losses': []})
        self.fails(["FAIL: fp32: step 1: loss 6.000000, PyTorch's 5.000000; differs by 1, tolerance 5e-06; "
                    'ended with 1: diverged'],
                   {'flags': ['fp32', '12'], 'error': 'diverged', 'losses': [6.0]})
        self.fails(['FAIL: the initial model: ended with 1: no shards'],
                   {'flags': [], 'error': 'no shards', 'losses': []})


if __name__ == '__main__':
    main()
