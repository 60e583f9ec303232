#!/usr/bin/env python3
# export_runs.py - exports runs from their logs to CSV tables, TensorBoard event files or wandb's offline folders
#
# Uses the libraries of TensorBoard and wandb to write their files. Sends nothing over the network.
import csv
import errno
import importlib
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_log import is_count, number, open_runs  # noqa: E402
from tool_main import Parser, ToolError, fail, in_quotes, one_of, tool_main, why_not  # noqa: E402

SAYS = """Exports runs from their logs to CSV tables, TensorBoard event files or wandb's offline folders. Every number
of a log is exported once, at the number of completed steps: train/loss, val/loss, ..."""
EXAMPLES = """  dev/export_runs.py --to csv runs/a runs/b -o tables            tables/a.csv, tables/b.csv
  dev/export_runs.py --to tensorboard runs/a runs/b -o boards    then: tensorboard --logdir boards
  dev/export_runs.py --to wandb runs/a -o offline                then: wandb sync offline/wandb/offline-run-*"""

PROJECT = 'train_gpt2'
# Events about the log, without measurements.
WITHOUT_NUMBERS = ('start', 'resume', 'end', 'sample')


def command_line():
    parser = Parser('dev/export_runs.py', SAYS, EXAMPLES)
    parser.add_argument('runs', nargs='*', metavar='RUN', help="a run's folder or its log.jsonl")
    parser.add_argument('--to', metavar='FORMAT', help='csv, tensorboard or wandb; the latter two need their packages')
    parser.add_argument('-o', '--output', metavar='DIR', help='output folder, created if missing; keeps existing files')
    parser.add_argument('--project', default=PROJECT, metavar='NAME', help=f"wandb's project (default: {PROJECT})")
    parser.add_argument('-h', '--help', action='store_true', help='print this help and exit')
    return parser


def numbers_of(value, name):
    """(name, number) of each number in a value of the log: "noise_scale_tokens_of" has a number per module."""
    if isinstance(value, dict):
        for key, inner in value.items(): yield from numbers_of(inner, f'{name}/{key}')
    elif number(value) is not None: yield name, value


def rows_of(run):
    """[(completed steps, {name: number})], rising; "train/seconds" is the x of dev/plot --x hours, in seconds."""
    rows, seconds = {}, run.seconds_at()
    for event in run.events:
        if event['event'] in WITHOUT_NUMBERS or not is_count(event.get('step')): continue
        prefix = 'train' if event['event'] == 'step' else event['event']
        fields = {key: value for key, value in event.items() if key not in ('event', 'step')}
        numbers = dict(numbers_of(fields, prefix))
        if numbers: rows.setdefault(event['step'], {}).update(numbers)
    for steps, row in rows.items():
        if steps in seconds: row['train/seconds'] = seconds[steps]
    return sorted(rows.items())


def library(module, package):
    """The imported module; throws ToolError with the command to install it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        return fail(f"Python's package {package}", f'not usable by {sys.executable} ({error})', 'it to be installed',
                    f'python3 -m pip install {package}, in a virtual environment')


def new_path(folder, run, ending=''):
    """The run's path in the folder. Throws ToolError if it exists."""
    path = folder / ((run.name.strip('/') or 'run') + ending)
    if os.path.lexists(path):
        fail(in_quotes(path), 'an existing path', 'a new one', 'it is kept; pass another folder with -o')
    return path


def to_csv(runs, folder, _):
    paths = [new_path(folder, run, '.csv') for run in runs]
    for run, path in zip(runs, paths):
        rows = rows_of(run)
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f'.{path.name}.partial')
        with partial.open('w', newline='', encoding='utf-8') as file:
            table = csv.writer(file)
            table.writerow(['step', *names])
            for steps, row in rows: table.writerow([steps, *(row.get(name, '') for name in names)])
        partial.rename(path)
        print(f'wrote {path}: {len(rows)} rows, {len(names)} numbers')


def to_tensorboard(runs, folder, _):
    writer = library('tensorboard.summary.writer.event_file_writer', 'tensorboard')
    event_pb2 = library('tensorboard.compat.proto.event_pb2', 'tensorboard')
    summary_pb2 = library('tensorboard.compat.proto.summary_pb2', 'tensorboard')
    paths = [new_path(folder, run) for run in runs]
    for run, path in zip(runs, paths):
        rows, seconds = rows_of(run), run.seconds_at()
        began = run.log.stat().st_mtime - max(seconds.values(), default=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f'.{path.name}.partial')
        if partial.exists(): shutil.rmtree(partial)
        file = writer.EventFileWriter(str(partial))
        for steps, row in rows:
            values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
            file.add_event(event_pb2.Event(wall_time=began + seconds.get(steps, 0), step=steps,
                                           summary=summary_pb2.Summary(value=values)))
        file.close()
        partial.rename(path)
        print(f'wrote {path}: {len(rows)} steps')
    print(f'view with: tensorboard --logdir {folder}')


def to_wandb(runs, folder, project):
    # Keeps wandb from collecting data about machine, code and packages: the log already has what the run needs.
    wandb = library('wandb', 'wandb')
    wanted = {'console': 'off', 'silent': True, 'disable_git': True, 'save_code': False, 'x_disable_stats': True,
              'x_disable_meta': True, 'x_save_requirements': False}
    known = getattr(wandb.Settings, 'model_fields', wanted)
    settings = wandb.Settings(**{name: value for name, value in wanted.items() if name in known})
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # wandb would silently use another folder
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    for run in runs:
        facts = {key: value for key, value in run.start.items() if key not in ('event', 'options', 'choices')}
        offline = wandb.init(mode='offline', dir=str(folder), project=project, name=run.name, reinit='finish_previous',
                             config={**run.start.get('options', {}), **facts}, settings=settings)
        path, rows = Path(offline.dir).parent, rows_of(run)
        for steps, row in rows: offline.log(row, step=steps)
        offline.finish()
        print(f'wrote {path}: {len(rows)} steps')
    wandb.teardown()
    print(f'upload with: wandb sync {folder}/wandb/offline-run-*')


FORMATS = {'csv': to_csv, 'tensorboard': to_tensorboard, 'wandb': to_wandb}


def run(options):
    if options.to is None: fail('--to', 'not given', 'csv, tensorboard or wandb')
    one_of('--to', options.to, list(FORMATS))
    if options.output is None: fail('-o', 'not given', 'the folder to write to')
    if not options.runs: fail('RUN', 'not given', "a run's folder or its log.jsonl")
    runs, folder = open_runs(options.runs, keys=None), Path(options.output)
    for one in runs:
        if not rows_of(one): fail(in_quotes(one.log), 'a log without numbers', 'a log with at least one step')
    try:
        FORMATS[options.to](runs, folder, options.project)
    except OSError as error:
        raise ToolError(f'-o is {in_quotes(folder)}; expected a folder that can be written to; {why_not(error)}', 1)


if __name__ == '__main__': sys.exit(tool_main(command_line(), run))
