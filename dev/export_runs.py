#!/usr/bin/env python3
# export_runs.py - runs from their logs into TensorBoard's event files, wandb's offline folders, or tables
#
# TensorBoard and wandb are written by their own libraries. Nothing is sent anywhere.
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

SAYS = """Writes runs from their logs as others read them: a table, TensorBoard's event files, wandb's offline folders.
Every number that a log has is there once, at the number of steps that the run had made: train/loss, val/loss, ..."""
EXAMPLES = """  dev/export_runs.py --to csv runs/a runs/b -o tables            tables/a.csv, tables/b.csv
  dev/export_runs.py --to tensorboard runs/a runs/b -o boards    then: tensorboard --logdir boards
  dev/export_runs.py --to wandb runs/a -o offline                then: wandb sync offline/wandb/offline-run-*"""

PROJECT = 'train_gpt2'
# Events that say what a log is, not how the run went.
WITHOUT_NUMBERS = ('start', 'resume', 'end', 'sample')


def command_line():
    parser = Parser('dev/export_runs.py', SAYS, EXAMPLES)
    parser.add_argument('runs', nargs='*', metavar='RUN', help="a run's folder, or its log.jsonl")
    parser.add_argument('--to', metavar='FORMAT', help='csv, tensorboard (needs its package) or wandb (its package)')
    parser.add_argument('-o', '--output', metavar='DIR', help='a folder, made where it is missing; what is in it stays')
    parser.add_argument('--project', default=PROJECT, metavar='NAME', help=f"wandb's project; {PROJECT} by default")
    parser.add_argument('-h', '--help', action='store_true', help='print this and stop')
    return parser


def numbers_of(value, name):
    """(name, number) of all that a value of the log holds: "noise_scale_tokens_of" has a number for each module."""
    if isinstance(value, dict):
        for key, inner in value.items(): yield from numbers_of(inner, f'{name}/{key}')
    elif number(value) is not None: yield name, value


def rows_of(run):
    """[(steps made, {name: number})], rising; "train/seconds" is the time until then, as dev/plot --x hours has it."""
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
    """The module; ToolError saying what to install where its package is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        return fail(f"Python's package {package}", f'not usable by {sys.executable} ({error})', 'it to be installed',
                    f'python3 -m pip install {package}, in an environment of your own')


def place_of(folder, run, ending=''):
    """Where the run goes in the folder. Throws ToolError where something is there."""
    place = folder / ((run.name.strip('/') or 'run') + ending)
    if os.path.lexists(place):
        fail(in_quotes(place), 'there already', 'a place where nothing is', 'it is kept; name another folder by -o')
    return place


def to_csv(runs, folder, _):
    places = [place_of(folder, run, '.csv') for run in runs]
    for run, place in zip(runs, places):
        rows = rows_of(run)
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f'.{place.name}.partial')
        with partial.open('w', newline='', encoding='utf-8') as file:
            table = csv.writer(file)
            table.writerow(['step', *names])
            for steps, row in rows: table.writerow([steps, *(row.get(name, '') for name in names)])
        partial.rename(place)
        print(f'wrote {place}: {len(rows)} rows, {len(names)} numbers')


def to_tensorboard(runs, folder, _):
    writer = library('tensorboard.summary.writer.event_file_writer', 'tensorboard')
    event_pb2 = library('tensorboard.compat.proto.event_pb2', 'tensorboard')
    summary_pb2 = library('tensorboard.compat.proto.summary_pb2', 'tensorboard')
    places = [place_of(folder, run) for run in runs]
    for run, place in zip(runs, places):
        rows, seconds = rows_of(run), run.seconds_at()
        began = run.log.stat().st_mtime - max(seconds.values(), default=0)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f'.{place.name}.partial')
        if partial.exists(): shutil.rmtree(partial)
        file = writer.EventFileWriter(str(partial))
        for steps, row in rows:
            values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
            file.add_event(event_pb2.Event(wall_time=began + seconds.get(steps, 0), step=steps,
                                           summary=summary_pb2.Summary(value=values)))
        file.close()
        partial.rename(place)
        print(f'wrote {place}: {len(rows)} steps')
    print(f'to see them: tensorboard --logdir {folder}')


def to_wandb(runs, folder, project):
    # What wandb would find out about machine, code and packages is not sent along: the log has what made the run.
    wandb = library('wandb', 'wandb')
    wanted = {'console': 'off', 'silent': True, 'disable_git': True, 'save_code': False, 'x_disable_stats': True,
              'x_disable_meta': True, 'x_save_requirements': False}
    known = getattr(wandb.Settings, 'model_fields', wanted)
    settings = wandb.Settings(**{name: value for name, value in wanted.items() if name in known})
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # wandb would go elsewhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    for run in runs:
        facts = {key: value for key, value in run.start.items() if key not in ('event', 'options', 'choices')}
        offline = wandb.init(mode='offline', dir=str(folder), project=project, name=run.name, reinit='finish_previous',
                             config={**run.start.get('options', {}), **facts}, settings=settings)
        place, rows = Path(offline.dir).parent, rows_of(run)
        for steps, row in rows: offline.log(row, step=steps)
        offline.finish()
        print(f'wrote {place}: {len(rows)} steps')
    wandb.teardown()
    print(f'to send them: wandb sync {folder}/wandb/offline-run-*')


FORMATS = {'csv': to_csv, 'tensorboard': to_tensorboard, 'wandb': to_wandb}


def run(options):
    if options.to is None: fail('--to', 'not given', 'csv, tensorboard or wandb')
    one_of('--to', options.to, list(FORMATS))
    if options.output is None: fail('-o', 'not given', 'the folder to write to')
    if not options.runs: fail('RUN', 'not given', "a run's folder or its log.jsonl")
    runs, folder = open_runs(options.runs, keys=None), Path(options.output)
    for one in runs:
        if not rows_of(one): fail(in_quotes(one.log), 'a log without numbers', 'one of a run that has made a step')
    try:
        FORMATS[options.to](runs, folder, options.project)
    except OSError as error:
        raise ToolError(f'-o is {in_quotes(folder)}; expected a folder that can be written to; {why_not(error)}', 1)


if __name__ == '__main__': sys.exit(tool_main(command_line(), run))
