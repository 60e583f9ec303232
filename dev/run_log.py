# run_log.py - reads a run's log.jsonl, while it is written too: every step once, what is unknown as None
#
# The events are those of llmc/run/log/report.h. "resume" takes back what the log has from its step on.
import json
import math
import os
from pathlib import Path

from tool_main import ToolError, did_you_mean, fail, in_quotes, why_not

LOG_NAME = 'log.jsonl'
# Events of a number of steps made. That of a step counts itself; before version 2 of the log these did not:
WITH_STEPS = ('step', 'skip', 'stage', 'val', 'hellaswag', 'checkpoint', 'sample', 'resume')
FROM_0_IN_VERSION_1 = ('step', 'skip')
LARGEST = 1e100
MOST_STEPS = 2 ** 53
# What pictures need of a step. The noise scale of every module, most of a log, is not among it.
STEP_KEYS = ('event', 'step', 'loss', 'lr', 'grad_norm', 'ms', 'tokens', 'tokens_so_far', 'tokens_per_s', 'mfu',
             'noise_scale_tokens', 'noise_state', 'noise_relative_deviation', 'noise_at_least_tokens')


def number(value):
    """A number as it is, all else as None: also NaN, and what no run measures."""
    if isinstance(value, bool) or not isinstance(value, (int, float)): return None
    return value if abs(value) <= LARGEST else None


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_STEPS


class Run:
    """A run as its log tells it.

    log       Path of log.jsonl
    events    in the order of the log, each a dict with "event"; what a "resume" took back is not among them. "step" is
              the number of steps made when it was written, that of a step included, in logs of every version
    start     the last "start", {} if there is none; end: the last event where it is "end", else None
    resumes   steps made at which the run was resumed, each once, rising; none at 0
    """

    def __init__(self, given, keys=STEP_KEYS):
        """The run of a folder or of a log.jsonl; nothing is read yet. Throws ToolError where neither is there.

        keys: of a step only these are kept; None: all.
        """
        self.log = find_log(Path(given))
        self.keys = keys
        self.forget()

    def forget(self):
        self.events, self.resumes, self.start, self.end = [], [], {}, None
        self.offset = self.lines = self.file = 0

    def read(self):
        """Takes what the log has beyond what was read before: whole lines, so the one that is being written waits.

        Returns whether there was anything. Throws ToolError where a line is not an event.
        """
        try:
            with open(self.log, 'rb') as file:
                size, number_of_file = file.seek(0, 2), os.fstat(file.fileno()).st_ino
                if size < self.offset or number_of_file != self.file: self.forget()  # another file than before
                self.file = number_of_file
                file.seek(self.offset)
                data = file.read()
        except OSError as error:
            fail(in_quotes(self.log), 'not readable', 'the log.jsonl of a run', why_not(error))
        whole, _, rest = data.rpartition(b'\n')
        for line in whole.split(b'\n') if whole else []: self.take(line)
        if rest.strip() and is_object(rest):  # all of an event, but for the end of its line
            self.take(rest)
            self.lines -= 1
            rest = b''
        self.offset += len(data) - len(rest)
        return len(rest) < len(data)

    def take(self, line):
        self.lines += 1
        line = line.decode('utf-8', 'replace').strip()
        if not line: return
        where = f'{in_quotes(self.log)} line {self.lines}'
        try:
            event = json.loads(line, parse_constant=lambda name: None)
        except (ValueError, RecursionError):
            fail(where, 'not JSON', 'one object a line, as in the log.jsonl of a run')
        kind = event.get('event') if isinstance(event, dict) else None
        if not isinstance(kind, str): fail(where, in_quotes(line[:60]), 'an object that has an "event"')
        if kind in WITH_STEPS and not is_count(event.get('step')):
            fail(f'"step" in {where}', in_quotes(event.get('step')), 'a number of steps')
        if kind in FROM_0_IN_VERSION_1 and self.start and 'log_version' not in self.start: event['step'] += 1
        if kind == 'resume': self.take_back(event['step'])
        self.end = event if kind == 'end' else None
        if kind == 'start': self.start = event
        if kind == 'step' and self.keys is not None:
            event = {key: event[key] for key in self.keys if key in event}
        self.events.append(event)

    def take_back(self, step):
        def stays(event):
            if not is_count(event.get('step')): return event['event'] != 'end'
            return event['step'] <= step
        self.events = [event for event in self.events if stays(event)]
        self.resumes = [earlier for earlier in self.resumes if earlier < step] + ([step] if step > 0 else [])

    def of(self, kind):
        return [event for event in self.events if event['event'] == kind]

    def total_steps(self):
        return number(self.start.get('total_steps'))

    def tokens_per_step(self):
        return number(self.start.get('tokens_per_step'))

    def vocabulary(self):
        """How many token ids the model has, None where the log does not say."""
        model = self.start.get('model', '')
        if isinstance(model, dict): return model.get('vocabulary') if is_count(model.get('vocabulary')) else None
        words = str(model).replace(',', ' ').split()  # of version 1
        after = words[words.index('vocabulary') + 1:] if 'vocabulary' in words else []
        return int(after[0]) if after and after[0].isdigit() else None

    def seconds_at(self):
        """{steps made: seconds of steps, validation and waiting for checkpoints until then}, without pauses between a
        stop and a resume; {} where the log has no times."""
        steps = self.of('step')
        if steps and all(number(event.get('ms')) is None for event in steps): return {}
        seconds, at = 0.0, {}
        for event in self.events:
            if event['event'] == 'checkpoint': seconds += (number(event.get('waited_ms')) or 0) / 1e3
            if event['event'] not in ('step', 'val', 'hellaswag'): continue
            took = number(event.get('ms'))
            if event['event'] != 'step': at.setdefault(event['step'], seconds)
            seconds += (took or 0) / 1e3
            if event['event'] == 'step': at[event['step']] = seconds
        return at

    def tokens_at(self):
        """{steps made: tokens trained on until then}, {} where the log does not say."""
        at, steps = {}, self.of('step')
        for event in steps:
            so_far, tokens = number(event.get('tokens_so_far')), number(event.get('tokens'))
            if so_far is None: continue
            if tokens is not None: at.setdefault(event['step'] - 1, so_far - tokens)
            at[event['step']] = so_far
        if not steps: at[0] = 0
        return at


def is_object(text):
    try:
        return isinstance(json.loads(text.decode('utf-8', 'replace')), dict)
    except (ValueError, RecursionError):
        return False


def find_log(given):
    """Path of the log of a run's folder, or the log itself. Throws ToolError, naming runs that are near."""
    quoted = in_quotes(given)
    expected = "a run's folder or its log.jsonl"
    if given.is_dir():
        if (given / LOG_NAME).is_file(): return given / LOG_NAME
        below = sorted(path.parent.name for path in given.glob('*/' + LOG_NAME))
        if below: mend = 'in it are ' + ', '.join(str(given / name) for name in below[:4]) + \
                         (f' and {len(below) - 4} more' if len(below) > 4 else '')
        elif (given.parent / LOG_NAME).is_file(): mend = f'did you mean {given.parent}?'
        else: mend = 'a run leaves one where it is given -o'
        return fail(quoted, 'a folder without log.jsonl', expected, mend)
    if given.is_file(): return given
    if given.exists(): return fail(quoted, 'no regular file', expected)
    try:
        beside = [path.name for path in given.parent.iterdir()]
    except OSError:
        beside = []
    near = did_you_mean(given.name, beside)
    if near: near = near.replace('mean ', f'mean {given.parent}/' if str(given.parent) != '.' else 'mean ')
    raise ToolError(f'{quoted} is not there; expected {expected}' + (f'; {near}' if near else ''))


def open_runs(given, keys=STEP_KEYS):
    """The runs given, read, each with a name: the shortest ends of their folders that differ. Throws ToolError."""
    runs = [Run(text, keys) for text in given]
    seen = {}
    for text, run in zip(given, runs):
        if run.log.resolve() in seen:
            fail(in_quotes(text), f'the same run as {in_quotes(seen[run.log.resolve()])}', 'each run once')
        seen[run.log.resolve()] = text
    for run, name in zip(runs, shortest_names([run.log for run in runs])): run.name = name
    for run in runs: run.read()
    return runs


def shortest_names(logs):
    """For each path of a log the shortest end of its folder (of the file too where it is not log.jsonl) that no other
    has."""
    parts = []
    for log in logs:
        log = Path(log).absolute()
        parts.append(log.parent.parts if log.name == LOG_NAME else log.with_suffix('').parts)
    names = []
    for mine in parts:
        others = [other for other in parts if other is not mine]
        size = 1
        while size < len(mine) and any(other[-size:] == mine[-size:] for other in others): size += 1
        names.append('/'.join(part.strip('/') for part in mine[-size:]) or '/')
    return names


def smoothed(values, factor):
    """The exponential mean of the values until each: m = factor * m + (1 - factor) * v, over the sum of its weights.

    0 <= factor < 1. What is None stays None and does not enter.
    """
    mean, weight, means = 0.0, 0.0, []
    for value in values:
        if value is None:
            means.append(None)
            continue
        mean = factor * mean + (1 - factor) * value
        weight = factor * weight + (1 - factor)
        means.append(mean / weight)
    return means


def duration(seconds):
    """"4:05", "1:02:03", "2d 03:10": what clock_text() of llmc/run/log/throughput.h makes of it."""
    whole = math.floor(seconds)
    minutes, seconds = divmod(whole + (seconds - whole >= 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days: return f'{days}d {hours:02}:{minutes:02}'
    return f'{hours}:{minutes:02}:{seconds:02}' if hours else f'{minutes}:{seconds:02}'


def amount(value, digits=3):
    """"22.2k", "1.5M", "10B": a number with a suffix from a thousand on."""
    for size, suffix in ((1e12, 'T'), (1e9, 'B'), (1e6, 'M'), (1e3, 'k')):
        if abs(value) >= size * 0.9995: return f'{value / size:.{digits}g}{suffix}'
    return f'{value:.{digits}g}'
