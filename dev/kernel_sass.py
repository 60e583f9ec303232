#!/usr/bin/env python3
# kernel_sass.py [BUILD] - models what bounds the memory-bound kernels of a CUDA build on an H200, from their machine
# code
#
# Disassembles the sm_90a code of the objects in BUILD (build/cuda) with cuobjdump, which must be on PATH, next to nvcc
# or in build/deps, and writes a Markdown table. How it reads loops: sass.py. Launches and machine, with the source of
# each number (measured, published or assumed): kernel_sass_rows.py. The time of a launch is the longest of
#
#   DRAM     bytes moved at the bandwidth of a copy
#   L2       all bytes that SMs read and write, at the L2's bandwidth
#   issue    instructions of all warps at 4 per clock and SM
#   a pipe   instructions of one kind at their published throughput; loads and stores at 128 bytes per clock
#   one warp  waves of resident blocks, each as long as one warp alone: the latency of what it waits for, and its own
#            instructions. This is Little's law: too few bytes in flight per SM, or too few warps
#
# It is a lower bound: it assumes that all of these overlap perfectly, and does not model bank conflicts, barriers,
# partial waves, or unexpected cache misses. So a kernel below the limit cannot be fast; one above it still has to be
# measured on a GPU.
#
# Exit codes: 0 every row reaches 85 % of a copy's bandwidth or its allowance, 1 a row does not or its kernel is
# missing, 2 no objects found, 77 no cuobjdump.
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
from sass import Kernel, functions, loads_in_flight, moved, seconds, seconds_per_iteration  # noqa: E402

LIMIT = 85  # percent of a copy's bandwidth


def tally(path, times, total):
    """Adds the instructions of a path that a warp executes `times` times, and the clocks that each pipe needs."""
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
    per_warp = -(-max(registers, 1) * 32 // 256) * 256  # allocated in units of 256
    return min(machine['blocks'], machine['warps'] // warps, machine['registers'] // (per_warp * warps),
               machine['shared'] // (shared + 1024))  # the system reserves 1 KiB per block


def analyze(row, kernel, registers, shared, machine=H200):
    """The model's result for one row of the table; throws ValueError if table and machine code disagree."""
    counts, loops, facts, warp, clock = Counter(), [], [], 0.0, machine['clock']
    blocks_per_sm = -(-row['blocks'] // machine['sms'])
    resident = min(resident_blocks(machine, row['threads'], registers, shared + row['dynamic']), blocks_per_sm)
    if resident == 0: raise ValueError('a block needs more resources than an SM has')
    warps = resident * -(-row['threads'] // 32)
    for kind, read, write, elements, origin in row['passes']:
        loop = kernel.pass_loop(kind) if kind else None
        if kind and not loop: raise ValueError(f'no loop that is a pass "{kind}"')
        path = loop.path if loop else kernel.richest_path(None)
        widest = [max((i.bytes for i in path if getattr(i, k)), default=0) for k in ('loads', 'stores')]
        steps = {moved(path, k, w) / size for k, w, size in zip(('loads', 'stores'), widest, (read, write)) if size}
        if len(steps) != 1: raise ValueError(f'pass "{kind}" moves {sorted(steps)} elements per iteration')
        step = steps.pop()
        iterations = elements / step if loop else 1
        delay = machine[f'{origin}_latency']
        took = seconds_per_iteration(path, clock, delay) if loop else seconds(path, 1, clock, delay)
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
        if not outer: raise ValueError('no loop around its passes, although a thread enters them more than once')
        between = kernel.around(loops, outer)
        tally(between, row['entries'] - 1, counts)
        warp += (row['entries'] - 1) * seconds(between, 1, clock, machine['dram_latency'])

    sm_warps = blocks_per_sm * -(-row['threads'] // 32)
    rounds = blocks_per_sm / resident
    times = {'DRAM': row['dram'] / machine['dram'], 'L2': row['l2'] / machine['l2'],
             'issue': sm_warps * counts.pop('instructions') / machine['issues'] / machine['clock'],
             'one warp': (-(-blocks_per_sm // resident) if rounds <= 4 else rounds) * warp}
    pipe = max(counts, key=counts.get)
    times[pipe] = sm_warps * counts[pipe] / machine['clock']
    binds = max(times, key=times.get)
    return dict(row=row, times=times, pipe=pipe, binds=binds, passes=facts, warps=warps, registers=registers,
                shared=shared + row['dynamic'],
                spills=sum(i.name in ('LDL', 'STL') for i in kernel.instructions),
                percent=100 * row['contract'] / machine['dram'] / times[binds])


def verdict(result):
    """(passes, text of the table's last column)"""
    worst = result['row']['worst']
    if result['percent'] >= LIMIT: return True, 'pass'
    if worst is not None and result['percent'] >= worst: return True, f'allowed: at least {worst} %'
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


HEAD = ['kernel', 'blocks x threads', 'registers', 'shared, bytes', 'spills', 'warps per SM', 'bytes per load',
        'loads in flight', 'KiB in flight per SM', 'instructions per element', 'MB', 'DRAM, us', 'L2, us', 'issue, us',
        'busiest pipe, us', 'one warp, us', 'bound by', 'lower bound, us', '% of a copy', 'verdict']


def find_cuobjdump():
    """Path of cuobjdump, or None. It needs nvdisasm, next to it or on PATH."""
    nvcc = shutil.which('nvcc') or Path(os.environ.get('CUDA_HOME', '/usr/local/cuda')) / 'bin' / 'nvcc'
    folders = [Path(nvcc).parent, Path(__file__).resolve().parent.parent / 'build' / 'deps' / 'bin']
    os.environ['PATH'] += ''.join(f'{os.pathsep}{folder}' for folder in folders)
    return shutil.which('cuobjdump') if shutil.which('nvdisasm') else None


def read_object(cuobjdump, path, patterns):
    """{demangled name: (instructions, registers, bytes of static shared memory)} of kernels that match a pattern."""
    run = lambda *options: subprocess.run([cuobjdump, *options, '-arch', 'sm_90a', str(path)], check=True, text=True,
                                          stdout=subprocess.PIPE).stdout
    uses = re.findall(r'Function (\S+):\s+REG:(\d+).*?SHARED:(\d+)', run('-res-usage'))
    names = subprocess.run(['c++filt'], input='\n'.join(name for name, _, _ in uses), text=True, check=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    wanted = {mangled: (name, int(registers), int(shared)) for (mangled, registers, shared), name in zip(uses, names)
              if any(re.search(pattern, name) for pattern in patterns)}
    if not wanted: return {}
    code = functions(run('-sass'))  # all functions: -fun takes longer
    system = 1024  # reserved bytes per block, included in the reported size of kernels with shared memory
    return {name: (code[mangled], registers, max(0, shared - system))
            for mangled, (name, registers, shared) in wanted.items()}


def main():
    parser = argparse.ArgumentParser(description='Models from the machine code of a CUDA build what limits its '
                                                 'memory-bound kernels on an H200, and writes a Markdown table.')
    parser.add_argument('build', nargs='?', default='build/cuda', help='build folder (default: %(default)s)')
    build = parser.parse_args().build
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        print('no cuobjdump with nvdisasm; scripts/install_deps.sh installs both with nvcc', file=sys.stderr)
        return 77
    objects = sorted(Path(build, 'kernels').rglob('*.cu.o'))
    if not objects:
        print(f'error: {build}/kernels has no .cu.o file; expected a CUDA build: make DEVICE=cuda',
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
            result = analyze(row, Kernel(found[0], instructions), registers, shared)
        except ValueError as problem:
            failed += 1
            notes.append(f"{row['name']}: {problem}; update its row in kernel_sass_rows.py")
            continue
        failed += not verdict(result)[0]
        print(line(result))
        if row['worst'] is not None: notes.append(f"{row['name']}: {row['why']}")
    print()
    for note in notes: print(f'- {note}')
    need = H200['dram'] * H200['dram_latency'] / H200['sms'] / 1024
    print(f'\n{len(TABLE)} rows, {failed} failed: below {LIMIT} % and their allowance, or not readable; an SM needs '
          f'{need:.0f} KiB in flight')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
