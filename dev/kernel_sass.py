#!/usr/bin/env python3
# kernel_sass.py [BUILD] - a model of what bounds the memory-bound kernels of a CUDA build on an H200, from their
# machine code alone
#
# Reads the sm_90a code of the objects below BUILD (build/cuda) by cuobjdump, which is on PATH, beside nvcc or in
# build/deps, and writes a Markdown table. How it reads loops: sass.py. What it takes for a launch, and what of the
# machine is measured, published and assumed: kernel_sass_rows.py. The time of a launch is the longest of
#
#   DRAM     bytes moved at the bandwidth of a copy
#   L2       all bytes that multiprocessors read and write, at the second level's bandwidth
#   issue    instructions of all warps at 4 a clock and multiprocessor
#   a pipe   those of one kind at their published throughput; loads and stores at 128 bytes a clock
#   one warp  rounds of resident blocks, each as long as a warp would take alone: the latency of what it waits for, and
#            its own instructions. This is Little's law: too few bytes in flight a multiprocessor, or too few warps
#
# It is a lower bound: it overlaps all of them perfectly, and knows no bank conflicts, barriers, tails of blocks, or
# reads that miss a cache as they should not. So a kernel below the limit cannot be fast; one above it still has to show
# that it is, on a GPU.
#
# Exit codes: 0 every row reaches 85 % of a copy's bandwidth or its allowance, 1 one does not or is not found, 2 there
# is nothing to read, 77 there is no cuobjdump.
import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from kernel_sass_rows import H200, PIPES, TABLE  # noqa: E402
from sass import Kernel, functions, loads_in_flight, moved, seconds, seconds_an_iteration  # noqa: E402

LIMIT = 85  # percent of a copy's bandwidth


def tally(path, times, total):
    """Adds the instructions of a path, carried out `times` times by a warp, and the clocks that each pipe needs."""
    for i in path:
        total['instructions'] += times
        if i.name in ('LDG', 'LD', 'STG', 'ST', 'LDS', 'STS', 'LDL', 'STL'):
            total['loads and stores'] += times * max(1, i.bytes / 4)
            continue
        for pipe, throughput, pattern in PIPES:
            if re.match(pattern, i.opcode):
                total[pipe] += times * 32 / throughput
                break


def resident_blocks(machine, threads, registers, shared):
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256  # granted in units of 256
    return min(machine['blocks'], machine['warps'] // warps, machine['registers'] // (per_warp * warps),
               machine['shared'] // (shared + 1024))  # the system takes 1 KiB a block


def judge(row, kernel, registers, shared, machine=H200):
    """What the model says of one row of the table; ValueError where table and machine code disagree."""
    counts, loops, facts, warp, clock = Counter(), [], [], 0.0, machine['clock']
    blocks_an_sm = -(-row['blocks'] // machine['sms'])
    resident = min(resident_blocks(machine, row['threads'], registers, shared + row['dynamic']), blocks_an_sm)
    if resident == 0: raise ValueError('a block needs more than a multiprocessor has')
    warps = resident * -(-row['threads'] // 32)
    for kind, read, write, elements, origin in row['passes']:
        loop = kernel.pass_loop(kind) if kind else None
        if kind and not loop: raise ValueError(f'no loop that is a pass "{kind}"')
        path = loop.path if loop else kernel.richest_path(None)
        widest = [max((i.bytes for i in path if getattr(i, k)), default=0) for k in ('loads', 'stores')]
        steps = {moved(path, k, w) / size for k, w, size in zip(('loads', 'stores'), widest, (read, write)) if size}
        if len(steps) != 1: raise ValueError(f'pass "{kind}" moves {sorted(steps)} elements an iteration by its bytes')
        step = steps.pop()
        iterations = elements / step if loop else 1
        delay = machine[f'{origin}_latency']
        took = seconds_an_iteration(path, clock, delay) if loop else seconds(path, 1, clock, delay)
        warp += row['entries'] * iterations * took
        tally(path, row['entries'] * iterations, counts)
        if loop: loops.append(loop)
        at_once = loads_in_flight(path, bool(loop))
        facts.append(dict(instructions=len(path) / step, width=widest[0], at_once=at_once,
                          in_flight=warps * 32 * at_once * moved(path, 'loads') / max(1, sum(i.loads for i in path))))
    if loops:
        around = kernel.around(loops)
        tally(around, 1, counts)
        warp += seconds(around, 1, clock, machine['dram_latency'])
    if loops and row['entries'] > 1:
        outer = min((l for l in kernel.loops if all(o.body < l.body for o in loops)), key=lambda l: len(l.body),
                    default=None)
        if not outer: raise ValueError('no loop around its passes, which a thread enters more than once')
        between = kernel.around(loops, outer)
        tally(between, row['entries'] - 1, counts)
        warp += (row['entries'] - 1) * seconds(between, 1, clock, machine['dram_latency'])

    sm_warps = blocks_an_sm * -(-row['threads'] // 32)
    rounds = blocks_an_sm / resident
    times = {'DRAM': row['dram'] / machine['dram'], 'L2': row['l2'] / machine['l2'],
             'issue': sm_warps * counts.pop('instructions') / machine['issues'] / machine['clock'],
             'one warp': (-(-blocks_an_sm // resident) if rounds <= 4 else rounds) * warp}
    pipe = max(counts, key=counts.get)
    times[pipe] = sm_warps * counts[pipe] / machine['clock']
    binds = max(times, key=times.get)
    return dict(row=row, times=times, pipe=pipe, binds=binds, passes=facts, warps=warps, registers=registers,
                shared=shared + row['dynamic'],
                spills=sum(i.name in ('LDL', 'STL') for i in kernel.instructions),
                percent=100 * row['contract'] / machine['dram'] / times[binds])


def verdict(result):
    """(passes, what the table says)"""
    worst = result['row']['worst']
    if result['percent'] >= LIMIT: return True, 'pass'
    if worst is not None and result['percent'] >= worst: return True, f'allowed: {worst} % at least'
    return False, '**fail**'


def line(result):
    row, times, passes = result['row'], result['times'], result['passes']
    each = lambda form: ', '.join(form(p) for p in passes)
    us = lambda seconds: f'{seconds * 1e6:.0f}'
    return ' | '.join([
        f"| {row['name']}", f"{row['blocks']} x {row['threads']}", f"{result['registers']}", f"{result['shared']}",
        f"{result['spills']}", f"{result['warps']}", each(lambda p: f"{p['width']}"),
        each(lambda p: f"{p['at_once']:.1f}"),
        each(lambda p: f"{p['in_flight'] / 1024:.0f}"), each(lambda p: f"{p['instructions']:.1f}"),
        f"{row['dram'] / 1e6:.0f}", us(times['DRAM']), us(times['L2']), us(times['issue']),
        f"{us(times[result['pipe']])} ({result['pipe']})", us(times['one warp']), result['binds'],
        us(times[result['binds']]), f"{result['percent']:.0f}", f"{verdict(result)[1]} |"])


HEAD = ['kernel', 'blocks x threads', 'registers', 'shared, bytes', 'spills', 'warps an SM', 'bytes a load',
        'loads in flight', 'KiB in flight an SM', 'instructions an element', 'MB', 'DRAM, us', 'L2, us', 'issue, us',
        'busiest pipe, us', 'one warp, us', 'binds', 'at least, us', '% of a copy', 'verdict']


def find_cuobjdump():
    """Its path. It calls nvdisasm, which lies beside it or on PATH."""
    nvcc = shutil.which('nvcc') or Path(os.environ.get('CUDA_HOME', '/usr/local/cuda')) / 'bin' / 'nvcc'
    folders = [Path(nvcc).parent, Path(__file__).resolve().parent.parent / 'build' / 'deps' / 'bin']
    os.environ['PATH'] += ''.join(f'{os.pathsep}{folder}' for folder in folders)
    return shutil.which('cuobjdump') if shutil.which('nvdisasm') else None


def read_object(cuobjdump, path, patterns):
    """{demangled name: (instructions, registers, bytes of static shared memory)} of kernels that a pattern finds."""
    run = lambda *options: subprocess.run([cuobjdump, *options, '-arch', 'sm_90a', str(path)], check=True, text=True,
                                          stdout=subprocess.PIPE).stdout
    uses = re.findall(r'Function (\S+):\s+REG:(\d+).*?SHARED:(\d+)', run('-res-usage'))
    names = subprocess.run(['c++filt'], input='\n'.join(name for name, _, _ in uses), text=True, check=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    wanted = {mangled: (name, int(registers), int(shared)) for (mangled, registers, shared), name in zip(uses, names)
              if any(re.search(pattern, name) for pattern in patterns)}
    if not wanted: return {}
    code = functions(run('-sass'))  # of all: with -fun it takes longer
    system = 1024  # bytes of each block's shared memory, which are counted with the kernel's own where it has any
    return {name: (code[mangled], registers, max(0, shared - system))
            for mangled, (name, registers, shared) in wanted.items()}


def main():
    parser = argparse.ArgumentParser(description='a model of what bounds the memory-bound kernels on an H200')
    parser.add_argument('build', nargs='?', default='build/cuda')
    build = parser.parse_args().build
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        print('there is no cuobjdump with nvdisasm; scripts/install_deps.sh gets both where nvcc is', file=sys.stderr)
        return 77
    objects = sorted(Path(build, 'kernels').rglob('*.cu.o'))
    if not objects:
        print(f'error: {build}/kernels has no .cu.o file; expected those of a CUDA build: make DEVICE=cuda',
              file=sys.stderr)
        return 2
    code = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        patterns = [row['kernel'] for row in TABLE]
        for kernels in pool.map(lambda path: read_object(cuobjdump, path, patterns), objects): code.update(kernels)

    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    failed, notes = 0, []
    for row in TABLE:
        found = [name for name in code if re.search(row['kernel'], name)]
        try:
            if len(found) != 1: raise ValueError(f"{len(found)} kernels match \"{row['kernel']}\"")
            instructions, registers, shared = code[found[0]]
            result = judge(row, Kernel(found[0], instructions), registers, shared)
        except ValueError as problem:
            failed += 1
            notes.append(f"{row['name']}: {problem}; kernel_sass_rows.py has to say what this kernel does now")
            continue
        failed += not verdict(result)[0]
        print(line(result))
        if row['worst'] is not None: notes.append(f"{row['name']}: {row['why']}")
    print()
    for note in notes: print(f'- {note}')
    need = H200['dram'] * H200['dram_latency'] / H200['sms'] / 1024
    print(f'\n{len(TABLE)} rows, {failed} below {LIMIT} % and their allowance, or not read; an SM needs {need:.0f} KiB'
          ' in flight')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
