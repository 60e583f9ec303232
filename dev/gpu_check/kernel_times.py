#!/usr/bin/env python3
"""kernel_times.py N - from kernel_times.cpp's lines, an average step without the first N: a row for each kernel and
launch grid (a kernel of a library serves several shapes under one name), the time from the end of one step to the end
of the next, and how much of it nothing ran; with N = 100 the card is as hot, and its clock as low, as in a long run

A step ends with the last of its AdamW kernels; copies of the next step's tokens may run among those."""
import re
import sys


def table(lines, left_out):
    activities = sorted((int(start), int(end), grid, name)
                        for start, end, grid, name in (line.rstrip('\n').split('\t') for line in lines))
    kernels = [(i, 'adamw' in activity[3]) for i, activity in enumerate(activities) if activity[2] != '-']
    ends = [i for (i, ends_step), (_, another) in zip(kernels, [*kernels[1:], (0, False)]) if ends_step and not another]
    steps = len(ends) - left_out
    first, last = ends[left_out - 1], ends[-1]
    rows, until, idle = {}, activities[first][1], 0
    for start, end, grid, name in activities[first + 1:last + 1]:
        times = rows.setdefault((name, grid), [])
        times.append(end - start)
        idle, until = idle + max(start - until, 0), max(until, end)
    busy, whole = sum(map(sum, rows.values())), activities[last][1] - activities[first][1]
    yield '| kernel | grid | launches | us each | ms | share |\n|---|---|---|---|---|---|'
    for (name, grid), times in sorted(rows.items(), key=lambda row: -sum(row[1])):
        short = re.sub(r'^void |kernels::|\(anonymous namespace\)::', '', name)
        short = re.match(r'.*?>(?=\()|[^(]*', short).group()[:90]
        yield (f'| `{short}` | {grid} | {len(times) / steps:.3g} | {sum(times) / len(times) / 1e3:.1f} | '
               f'{sum(times) / steps / 1e6:.3f} | {sum(times) / busy:.1%} |')
    yield (f'\na whole step: {whole / steps / 1e6:.3f} ms, of which nothing ran for {idle / steps / 1e6:.3f} ms '
           f'({idle / whole:.1%})')


if __name__ == '__main__':
    print(*table(sys.stdin, int(sys.argv[1])), sep='\n')
