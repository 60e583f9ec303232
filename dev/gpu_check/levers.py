#!/usr/bin/env python3
"""levers.py FOLDER CHOICES SECONDS STEPS COMMAND... - trains in blocks of STEPS, alternating each lever off and on,
starts none after SECONDS, and prints medians of ms and J per step without the first third of each block

CHOICES: the --tune-file of COMMAND. OTHER_CUDNN in the environment: LD_LIBRARY_PATH of another cuDNN."""
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from run_log import Run  # noqa: E402

# Pattern of "library: problem", and the beginnings of `taken` off and on: '' leaves what was autotuned, a form alone is
# the library's first algorithm of it. Without a pattern: flags, or variables of the environment.
LEVERS = {
    "cuDNN's plans": ('with cuDNN', 'cudnn 0+0', ''),
    'nondeterministic attention': ('', '--deterministic', ''),
    'residual in the epilogue': (', residual', 'bare', 'fused-residual'),
    'GELU in the epilogue': (', gelu', 'bare', 'fused-gelu'),
    'GELU by cuDNN': (', gelu', 'fused-gelu', 'cudnn-gelu'),
    'bias gradient in the epilogue': ('_input.*, bias', 'fused-gelu', 'fused-gelu-bias'),
}
if other := os.environ.get('OTHER_CUDNN'): LEVERS['other cuDNN'] = ('', '', f'LD_LIBRARY_PATH={other}')


def changed(choices, pattern, beginning):
    """CHOICES, whose `taken` begins with these words where the pattern matches, as JSON, and the number of matches."""
    choices = json.loads(choices)
    entries = [entry for libraries in choices['devices'].values() for library, problems in libraries.items()
               for problem, entry in problems.items() if pattern and re.search(pattern, f'{library}: {problem}')]
    for entry in entries:
        if beginning and not re.match(re.escape(beginning) + '([ ,]|$)', entry['taken']):
            entry['taken'] = re.sub('^[^,]*', beginning, entry['taken'])
    return json.dumps(choices), len(entries)


def table(blocks, left_out):
    """Rows for {lever: (folders of runs off, on)}."""
    rows = ['| lever | blocks | ms off | on | difference | J off | on | difference |', '|' + '---|' * 8]
    for lever, sides in blocks.items():
        runs = [[Run(folder, keys=None) for folder in folders] for folders in sides]
        steps = [[step for run in side if run.read() for step in run.of('step')[left_out:]] for side in runs]
        row = f'| {lever} | {len(sides[0])} + {len(sides[1])} |'
        for key in ('ms', 'step_j'):
            known = [[step[key] for step in side if step.get(key) is not None] for side in steps]
            off, on = (statistics.median(values) if values else math.nan for values in known)
            row += f' {off:.2f} | {on:.2f} | {on - off:+.2f} |'
        rows.append(row)
    return rows


def main():
    if len(sys.argv) < 6: sys.exit(__doc__)
    folder, choices, seconds, steps = Path(sys.argv[1]), Path(sys.argv[2]).read_text(), *sys.argv[3:5]
    end, blocks, failed = time.monotonic() + float(seconds), {}, 0
    folder.mkdir(parents=True)
    for number, (lever, (pattern, *sides)) in enumerate([*LEVERS.items()] * 2):
        if pattern and not changed(choices, pattern, '')[1]: continue
        for side, word in enumerate(sides):
            if time.monotonic() > end: continue
            run, file = folder / f'{number}-{side}', folder / f'{lever}-{side}.json'
            if not file.exists(): file.write_text(changed(choices, pattern, word)[0])
            command = [file if a == sys.argv[2] else a for a in sys.argv[5:]] + ['-x', steps, '--log-gpu', '-o', run]
            if word and not pattern: command = [*command, word] if word.startswith('-') else ['env', word, *command]
            if subprocess.run(command).returncode: failed += 1
            else: blocks.setdefault(lever, ([], []))[side].append(run)
            for checkpoint in run.glob('step_*'): shutil.rmtree(checkpoint)
    print('\n'.join(table(blocks, int(steps) // 3)))
    sys.exit(failed > 0)


if __name__ == '__main__':
    main()
