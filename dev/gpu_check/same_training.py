#!/usr/bin/env python3
"""Compares train_gpt2 with PyTorch: losses and gradient norms of every step from the same weights on the same tokens,
in fp32 and in bf16, with every attention method and with fused and unfused matmul epilogues.

    same_training.py PROGRAM -i SHARDS --work FOLDER        # dev/gpu_check.sh numbers; python3 needs torch and numpy

Each run is compared with PyTorch's, and each further one in bf16 with the program's first. The last line is PASS, or
each run that differs has a line FAIL: with step, values and tolerance. Exit codes: 0 PASS, 1 FAIL, 2 wrong flags."""
import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from levers import changed  # noqa: E402

# Higher rates, or no warm-up, are unstable at first and amplify rounding errors. Tolerances: of the loss, in nats; of
# the gradient norm, relative, at the first step, where the weights are equal (a right build differs by 1.4e-5 in fp32
# and 4.6e-4 in bf16), and at later ones, where rounding errors accumulate: at most four times the largest difference
# from PyTorch that was measured with a right build (dev/results).
USUAL = {'steps': 40, 'lr': 2e-4, 'warmup': 10,
         'fp32': ('custom:l=4,h=6,c=384,t=256', 8, 256), 'bf16': ('custom:l=6,h=12,c=768,t=1024', 8, 1024),
         'tolerance': {'fp32': (1e-4, 5e-5, 2.8e-3), 'bf16': (0.01, 0.002, 0.008)}}
TINY = {'steps': 12, 'lr': 3e-3, 'warmup': 0, **dict.fromkeys(('fp32', 'bf16'), ('custom:l=1,h=1,c=64,t=64', 2, 64)),
        'tolerance': {'fp32': (5e-6, 5e-5, 1.5e-4), 'bf16': (0.009, 0.002, 0.012)}}
# Replacements in a file of autotuned algorithms, as levers.py makes them.
FORMS = {'fused': ((', residual', 'fused-residual'), (', gelu', 'fused-gelu'), ('_input.*, bias', 'fused-gelu-bias')),
         'cuDNN': ((', gelu', 'cudnn-gelu'),), 'bare': (('^cuBLASLt', 'bare'),)}


def ended(status, output):
    return f'ended with {status}: {(output.rstrip() or "no output").splitlines()[-1]}' if status else ''


def difference(ours, theirs, whose, tolerances, steps):
    """The largest differences of loss and norm, and a description of the first out of tolerance, or nothing."""
    worst, fault = [0.0, 0.0], ''
    for step, pairs in enumerate(zip(ours, theirs), 1):
        for i, (what, one, other) in enumerate(zip(('loss', 'gradient norm'), *pairs)):
            far = abs(one - other) / (other if i else 1)
            far = far if math.isfinite(far) else math.inf
            worst[i] = max(worst[i], far)
            most = tolerances[i + (i == 1 and step > 1)]
            if far > most and not fault:
                one = f'{one:.6f}' if math.isfinite(one) else 'not finite'
                fault = (f'step {step}: {what} {one}, {whose} {other:.6f}; differs by {far:.2g}'
                         f'{" of it" if i else ""}, tolerance {most:g}')
    if not fault and not len(ours) == len(theirs) == steps:
        fault = f'{len(ours)} steps, {whose} {len(theirs)}; expected {steps}'
    return worst, fault


class Check:
    def __init__(self, args):
        self.args, self.recipe, self.failed = args, TINY if args.tiny else USUAL, False
        print(f'{"run":<34} {"against":<15} {"first loss":>10} {"last loss":>10} {"loss differs":>13} norm differs')

    def fail(self, name, why):
        """Printed at once: a time limit may end the check before the last run."""
        self.failed = True
        print(f'FAIL: {name}: {why}', flush=True)

    def flags(self, dtype, init, **other):
        model, batch, length = self.recipe[dtype]
        steps, lr, warmup = ({**self.recipe, **other}[key] for key in ('steps', 'lr', 'warmup'))
        return list(map(str, ['-i', self.args.train_data, '-e', init or model, '-b', batch, '-t', length, '-x', steps,
                              '-l', lr, '-u', min(warmup, steps), '--dtype', dtype]))

    def train(self, name, flags, *more):
        """The output folder, start event, (loss, norm) of every step, and the error that ended the run, if any."""
        out = self.args.work / re.sub(r'\W+', '_', name)
        shutil.rmtree(out, ignore_errors=True)
        fixed = ['-k', 'cosine', '-q', '0.1', '-c', '0.1', '--beta2', '0.95', '--shuffle=off', '-d', '0', '-v', '0']
        command = [self.args.program, *flags, *fixed, '--noise-scale', 'off', '-o', out, *more]
        with open(f'{out}.log', 'w+') as log:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
            log.seek(0)
            why = ended(status, log.read())
        if not (out / 'log.jsonl').exists(): raise RuntimeError(why or 'wrote no log')
        events = list(map(json.loads, (out / 'log.jsonl').open()))
        numbers = [[math.nan if event.get(key) is None else event[key] for key in ('loss', 'grad_norm')]
                   for event in events if event['event'] in ('step', 'skip')]
        return out, events[0], numbers, why

    def start_pytorch(self, dtype, init):
        """Returns a function that waits for its run, and returns (loss, norm) of every step."""
        log, peer = (self.args.expect or self.args.work) / f'pytorch_{dtype}.log', None
        if not self.args.expect:
            # With its own libraries: gpu_check.sh has added those of the packed program.
            own = {'LD_LIBRARY_PATH': os.environ.get('CALLERS_LD_LIBRARY_PATH', os.environ.get('LD_LIBRARY_PATH', ''))}
            script = Path(__file__).resolve().parents[1] / 'peers/peer_pytorch.py'
            command = [sys.executable, script, *self.flags(dtype, init), '--no-compile']
            with log.open('w') as file:
                peer = subprocess.Popen(command + ['--device', 'cpu'] * self.args.tiny, env={**os.environ, **own},
                                        stdin=subprocess.DEVNULL, stdout=file, stderr=file)

        def numbers():
            status = peer.wait() if peer else 0
            text = log.read_text()
            if status: raise RuntimeError('PyTorch ' + ended(status, text))
            print(f'    {re.search("^torch .*", text, re.M).group()}')
            return [list(map(float, pair)) for pair in re.findall(r'^step \d+ loss (\S+) norm (\S+)', text, re.M)]
        return numbers

    def compare(self, name, dtype, ours, whose, theirs, why=''):
        worst, fault = difference(ours, theirs, whose, self.recipe['tolerance'][dtype], self.recipe['steps'])
        first, last = (ours[0][0], ours[-1][0]) if ours else (math.nan, math.nan)
        print(f'{name:<34} {whose:<15} {first:>10.4f} {last:>10.4f} {worst[0]:>13.1e} {worst[1]:>12.2%}', flush=True)
        if fault or why: self.fail(name, '; '.join(filter(None, (fault, why))))
        return not fault

    def runs(self, dtype, init, pytorch):
        def run(name, *more):
            out, start, ours, why = self.train(name, self.flags(dtype, init), *more)
            for entry in out.glob('step_*'): shutil.rmtree(entry)
            taken = [choice['taken'].split()[0] for library, choices in start['choices']['taken'].items()
                     if library.startswith('cuBLASLt') for choice in choices.values()]
            forms = ', '.join(f'{taken.count(form)} {form}' for form in sorted(set(taken)))
            print(f'    {name}: attention: {start["attention"].split(",")[0]}; products: {forms or start["matmul"]}')
            return ours, why, start['version']['device']

        tune, choices = ['--tune=auto', '--tune-file'], self.args.work / 'choices.json'
        first, why, device = run(dtype, *(['--tune=off'] if dtype == 'fp32' else [*tune, choices]))
        theirs = pytorch()
        first_passes = self.compare(dtype, dtype, first, "PyTorch's", theirs, why)
        if dtype == 'fp32' or device != 'cuda': return  # a CPU has one attention and one form of each product
        variants = {f'bf16, --attention {method}': ['--attention', method, *tune, choices]
                    for method in ('flash', 'plain', 'cudnn')[:2 if self.args.tiny else 3]}
        for form, replacements in FORMS.items():
            text, file = choices.read_text(), self.args.work / f'{form}.json'
            for pattern, beginning in replacements: text, _ = changed(text, pattern, beginning)
            file.write_text(text)
            variants[f'bf16, {form} epilogues'] = [*tune, file]
        for name, more in variants.items():
            try:
                ours, why, _ = run(name, *more)
            except RuntimeError as failure:
                if ': this build has no cuDNN' not in str(failure): self.fail(name, failure)
                continue
            self.compare(name, dtype, ours, "PyTorch's", theirs, why)
            if first_passes: self.compare(name, dtype, ours, "the first run's", first)  # else its line says everything

    def all(self):
        starts = {}
        try:
            for dtype in ('fp32', 'bf16'):  # a step at a learning rate of 0 does not change the weights
                out, *_, why = self.train(f'initial {dtype}', self.flags(dtype, None, steps=1, lr=0), '--tune=off')
                if why: raise RuntimeError(why)
                init = out / 'step_00000001'
                starts[dtype] = init, self.start_pytorch(dtype, init)  # runs while this program does
        except RuntimeError as failure:
            self.fail('the initial model', failure)
        for dtype, (init, pytorch) in starts.items():
            try:
                self.runs(dtype, init, pytorch)
            except RuntimeError as failure:
                self.fail(dtype, failure)
            shutil.rmtree(init)
        if not self.failed: print('PASS')
        return self.failed


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('program', help='train_gpt2')
    parser.add_argument('-i', '--train-data', metavar='GLOB', required=True, help='token shards')
    parser.add_argument('--work', required=True, type=Path, metavar='FOLDER', help='for checkpoints and logs')
    parser.add_argument('--tiny', action='store_true', help='a model and steps for seconds on a CPU')
    parser.add_argument('--expect', type=Path, metavar='FOLDER', help="has PyTorch's logs, from --work of another call")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    sys.exit(Check(given).all())
