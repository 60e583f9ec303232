#!/usr/bin/env python3
# export_runs.py - exports runs from their logs to CSV or Parquet tables, TensorBoard event files or wandb
#
# Uses the libraries of TensorBoard and wandb to write their files. Sends nothing over the network, except with
# --to wandb --follow.
import csv
import errno
import os
import shutil
import sys
import threading
from datetime import datetime
from pathlib import Path
from time import sleep, time

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_log import as_text, is_count, number, open_runs  # noqa: E402
from tool_main import (Parser, ToolError, advice_after, code_after, fail, in_quotes, library,  # noqa: E402
                       one_of, tool_main, why_not)

SAYS = """Exports runs from their logs to CSV or Parquet tables, TensorBoard event files or wandb. Every number of a log
is exported once, at the number of completed steps: train/loss, val/loss, ..."""
EXAMPLES = """  dev/export_runs.py --to csv runs/a runs/b -o tables            tables/a.csv, tables/b.csv
  dev/export_runs.py --to tensorboard runs/a runs/b -o boards    then: tensorboard --logdir boards
  dev/export_runs.py --to wandb runs/a -o offline                then: wandb sync offline/wandb/offline-run-*
  dev/export_runs.py --to wandb --follow runs/a -o live          uploads while the run goes on"""

PROJECT = 'train_gpt2'
SECONDS_BETWEEN_READS = 5
# Events about the log, without measurements.
WITHOUT_NUMBERS = ('start', 'resume', 'end', 'sample')


def command_line():
    parser = Parser('dev/export_runs.py', SAYS, EXAMPLES)
    parser.add_argument('runs', nargs='+', metavar='RUN', help="a run's folder or its log.jsonl")
    parser.add_argument('--to', metavar='FORMAT', help='csv, parquet, tensorboard or wandb; packages that these '
                        'need are installed in build/python')
    parser.add_argument('--follow', action='store_true', help='write new steps to TensorBoard or wandb until the runs '
                        'end, or Ctrl-C. wandb then uploads, as WANDB_MODE says')
    parser.add_argument('-o', '--output', metavar='DIR', help='output folder, created if missing; keeps existing files')
    parser.add_argument('--project', default=PROJECT, metavar='NAME', help=f"wandb's project (default: {PROJECT})")
    return parser


def numbers_of(value, name):
    """(name, number) of each number in a value of the log: for "gpu" one for each reading."""
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


def wall_times(run):
    """{completed steps: seconds since 1970} of a step's last event."""
    times = {}
    for event in run.events:
        if event['event'] in WITHOUT_NUMBERS or not is_count(event.get('step')): continue
        try:
            times[event['step']] = datetime.strptime(event['time'], '%Y-%m-%dT%H:%M:%S%z').timestamp()
        except (KeyError, TypeError, ValueError):
            pass
    return times


class NewRows:
    """The rows of a run's log that are not written yet, while the run goes on.

    restart   set by read(): None, or the number of completed steps from which on a resumed run has replaced rows
    """

    def __init__(self, run):
        self.run, self.written, self.resumes, self.restart = run, {}, [], None

    def read(self, whole):
        """[(completed steps, {name: number})] of what the log has and no call returned. The last step, which may still
        get a validation, is left out unless `whole`."""
        rows, resumes = rows_of(self.run), [event['step'] for event in self.run.of('resume')]
        same = len(os.path.commonprefix([resumes, self.resumes]))
        first = min(resumes[same:], default=float('inf'))
        there = {steps for steps, _ in rows}
        self.resumes = resumes
        self.restart = min((steps for steps in self.written if steps > first or steps not in there), default=None)
        if self.restart is not None:
            self.written = {steps: names for steps, names in self.written.items() if steps < self.restart}
        new = []
        for steps, row in rows if whole else rows[:-1]:
            names = self.written.setdefault(steps, set())
            fresh = {name: value for name, value in row.items() if name not in names}
            names.update(fresh)
            if fresh: new.append((steps, fresh))
        return new


def write_all(runs, writers, follow):
    """Writes each run's rows with its writer; with `follow`, until all runs have ended."""
    sources = [NewRows(run) for run in runs]
    try:
        while True:
            ended = [not follow or run.end is not None for run in runs]
            for source, writer, whole in zip(sources, writers, ended):
                rows = source.read(whole)
                if source.restart is not None: writer.restart(source.restart)
                writer.write(rows)
            if all(ended): return
            sleep(SECONDS_BETWEEN_READS)
            for run in runs: run.read()
    finally:
        for writer in writers: writer.close()


def new_path(folder, run, ending=''):
    """The run's path in the folder. Throws ToolError if it exists."""
    path = folder / ((run.name.strip('/') or 'run') + ending)
    if os.path.lexists(path):
        fail(in_quotes(path), 'an existing path', 'a new one', 'it is kept; pass another folder with -o')
    return path


def partial_path(path):
    """Where this process writes a new file or folder before it gets its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f'.{path.name}.partial-{os.getpid()}')


def to_tables(runs, folder, ending, write):
    """write(file, names of the numbers, rows) of each run. Only names that have a number are columns."""
    paths = [new_path(folder, run, ending) for run in runs]
    for run, path in zip(runs, paths):
        rows = rows_of(run)
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        partial = partial_path(path)
        write(partial, names, rows)
        partial.rename(path)
        print(f'wrote {path}: {len(rows)} rows, {len(names)} numbers')


def write_csv(path, names, rows):
    with path.open('w', newline='', encoding='utf-8') as file:
        table = csv.writer(file)
        table.writerow(['step', *names])
        for steps, row in rows: table.writerow([steps, *(row.get(name, '') for name in names)])


def to_csv(runs, folder, _):
    to_tables(runs, folder, '.csv', write_csv)


def to_parquet(runs, folder, _):
    arrow, parquet = library('pyarrow'), library('pyarrow.parquet')

    def write(path, names, rows):
        columns = {name: arrow.array([row.get(name) for _, row in rows], arrow.float64(), from_pandas=False)
                   for name in names}
        parquet.write_table(arrow.table({'step': arrow.array([steps for steps, _ in rows], arrow.int64()), **columns}),
                            path)
    to_tables(runs, folder, '.parquet', write)


class Board:
    """Writes a run as an event file of TensorBoard."""

    def __init__(self, run, folder):
        self.messages = library('tensorboard.compat.proto.event_pb2')
        self.summaries = library('tensorboard.compat.proto.summary_pb2')
        self.run, self.steps = run, 0
        self.file = library('tensorboard.summary.writer.event_file_writer').EventFileWriter(str(folder))

    def write(self, rows):
        times = wall_times(self.run)
        for steps, row in rows:
            values = [self.summaries.Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
            self.file.add_event(self.messages.Event(wall_time=times.get(steps, 0), step=steps,
                                                    summary=self.summaries.Summary(value=values)))
        self.steps += len(rows)
        self.file.flush()

    def restart(self, steps):
        """TensorBoard then discards what it has from `steps` on."""
        log = self.messages.SessionLog(status=self.messages.SessionLog.START)
        self.file.add_event(self.messages.Event(wall_time=time(), step=steps, session_log=log))

    def close(self):
        self.file.close()


def to_tensorboard(runs, folder, options):
    library('tensorboard')
    threading.excepthook = lambda _: None  # the error of a writer's thread is thrown again by close()
    paths = [new_path(folder, run) for run in runs]
    if options.follow: print(f'view with: tensorboard --logdir {folder}', flush=True)
    places = paths if options.follow else [partial_path(path) for path in paths]
    writers = [Board(run, place) for run, place in zip(runs, places)]
    write_all(runs, writers, options.follow)
    for writer, place, path in zip(writers, places, paths):
        if place != path: place.rename(path)
        print(f'wrote {path}: {writer.steps} steps')
    if not options.follow: print(f'view with: tensorboard --logdir {folder}')


class Upload:
    """Writes a run with wandb, which keeps the first numbers of a step."""

    def __init__(self, run, wandb, settings, folder, options):
        facts = {key: value for key, value in run.start.items() if key not in ('event', 'options', 'choices')}
        self.steps, self.last = 0, -1
        self.of_wandb = wandb.init(mode=None if options.follow else 'offline', dir=str(folder), project=options.project,
                                   name=as_text(run.name), reinit='create_new',
                                   config={**run.start.get('options', {}), **facts}, settings=settings)
        self.path = Path(self.of_wandb.dir).parent

    def write(self, rows):
        for steps, row in rows:
            if steps < self.last: continue
            self.of_wandb.log(row, step=steps)
            self.steps, self.last = self.steps + (steps > self.last), steps

    def restart(self, steps):
        pass

    def close(self):
        self.of_wandb.finish()


def to_wandb(runs, folder, options):
    # Keeps wandb from collecting data about machine, code and packages: the log already has what the run needs.
    wandb = library('wandb')
    wanted = {'console': 'off', 'silent': True, 'disable_git': True, 'save_code': False, 'x_disable_stats': True,
              'x_disable_meta': True, 'x_save_requirements': False}
    known = getattr(wandb.Settings, 'model_fields', wanted)
    settings = wandb.Settings(**{name: value for name, value in wanted.items() if name in known})
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # wandb would silently use another folder
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    writers = [Upload(run, wandb, settings, folder, options) for run in runs]
    write_all(runs, writers, options.follow)
    for writer in writers: print(f'wrote {writer.path}: {writer.steps} steps')
    wandb.teardown()
    if not options.follow: print(f'upload with: wandb sync {folder}/wandb/offline-run-*')


FORMATS = {'csv': to_csv, 'parquet': to_parquet, 'tensorboard': to_tensorboard, 'wandb': to_wandb}


def run(options):
    if options.to is None: fail('--to', 'not given', 'csv, parquet, tensorboard or wandb')
    one_of('--to', options.to, list(FORMATS))
    if options.follow and options.to not in ('tensorboard', 'wandb'):
        fail('--follow', f'set with --to {options.to}', '--to tensorboard or wandb', 'a table is made of a whole log')
    if options.output is None: fail('-o', 'not given', 'the folder to write to')
    runs, folder = open_runs(options.runs, keys=None), Path(options.output)
    for one in runs:
        if options.follow or rows_of(one): continue
        fail(in_quotes(one.log), 'a log without numbers', 'a log with at least one step')
    try:
        FORMATS[options.to](runs, folder, options)
    except OSError as error:
        raise ToolError(f'-o is {in_quotes(folder)}; expected a folder that can be written to; '
                        f'{why_not(error)}; {advice_after(error)}', code_after(error))
    finally:
        for parent in {(folder / one.name.strip('/')).parent for one in runs}:
            for left in parent.glob(f'.*.partial-{os.getpid()}'):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


if __name__ == '__main__': sys.exit(tool_main(command_line(), run))
