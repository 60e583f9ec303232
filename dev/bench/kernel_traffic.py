#!/usr/bin/env python3
# kernel_traffic.py [FLAG...] - counts the memory accesses of each kernel of a training step, by executing its PTX on a
# machine without a GPU
#
# Runs build/stand-in/train_gpt2 (make -f test/stand_in/Makefile) with FLAGS: data, and -x N for N steps. Default:
# one step of 128 tokens at GPT-2 124M's width, in half a minute. Prints a table: warp instructions; bytes of global
# memory that lanes load and store, and their ratio to the 32-byte sectors that their warps touch (above 1: lanes read
# the same bytes); shared-memory wavefronts, divided by the ideal number (1: no bank conflict). Below each kernel it
# lists the source lines whose excess sectors or wavefronts are 3 % or more of the kernel's. These are counts, not
# times; ptxas may still merge accesses.
import os
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

Counts = namedtuple('Counts', 'launches blocks instructions accesses global_bytes sectors shared_passes bank_passes')
LEAST_SHARE = 0.03


def read(path):
    """[(kernel, Counts, [(source line, Counts)])] of the file that STAND_IN_TRAFFIC names"""
    kernels = []
    for line in Path(path).read_text().splitlines():
        name, *fields = line.split('\t')
        counts = Counts(*(int(field or 0) for field in fields))
        if line.startswith('  '): kernels[-1][2].append((name.strip(), counts))
        else: kernels.append((name.replace('kernels::', '').replace('(anonymous namespace)::', ''), counts, []))
    return sorted(kernels, key=lambda kernel: kernel[0])


def table(kernels):
    yield '| kernel | launches | blocks | warp instructions | global bytes | of sectors | bank passes |'
    yield '|---|---|---|---|---|---|---|'
    ratio = lambda part, whole: f'{part / whole:.2f}' if whole else '-'
    for name, all, places in kernels:
        yield (f'| `{name}` | {all.launches} | {all.blocks} | {all.instructions} | {all.global_bytes} | '
               f'{ratio(all.global_bytes, 32 * all.sectors)} | {ratio(all.bank_passes, all.shared_passes)} |')
        for place, here in places:
            if here.sectors - here.global_bytes / 32 >= LEAST_SHARE * max(all.sectors, 1):
                yield f'| . {place} | | | | {here.global_bytes} | {ratio(here.global_bytes, 32 * here.sectors)} | |'
            if here.bank_passes - here.shared_passes >= LEAST_SHARE * max(all.bank_passes, 1):
                yield f'| . {place} | | | | | | {ratio(here.bank_passes, here.shared_passes)} |'


def main(flags):
    if '-h' in flags or '--help' in flags:
        lines = Path(__file__).read_text().splitlines()[1:]
        print('\n'.join(line[2:] for line in lines[:next(i for i, line in enumerate(lines) if line[:1] != '#')]))
        return 0
    program = Path(__file__).parents[2] / 'build/stand-in/train_gpt2'
    if not program.exists():
        print(f'error: no {program}; make -f test/stand_in/Makefile', file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        if not flags:
            shard = f'{folder}/random.bin'
            subprocess.run([program.parent.parent / 'cpu/random_shard', shard, '1000'], check=True,
                           stdout=subprocess.DEVNULL)
            flags = ['-i', shard, '-v', '0', '-e', 'custom:l=1,h=12,c=768,t=128', '-b', '1', '-t', '128', '-d', '128',
                     '--dtype', 'bf16', '-x', '1']
        counts = f'{folder}/counts'
        run = subprocess.run([program, '--tune', 'off', *flags], env=os.environ | {'STAND_IN_TRAFFIC': counts},
                             stdout=subprocess.DEVNULL)
        if run.returncode: return run.returncode
        if not Path(counts).exists():
            print('error: no kernel ran; expected flags of a training run', file=sys.stderr)
            return 2
        print('\n'.join(table(read(counts))))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
