# run_log.py - reads a run's log.jsonl, also while the run writes it: each step once, unknown values as None
#
# llmc/run/log/report.h defines the events. A "resume" event discards the events of later steps before it.
import json
import os
from pathlib import Path

from tool_main import ToolError, did_you_mean, fail, in_quotes, why_not

LOG_NAME = 'log.jsonl'
# Events whose "step" is a number of completed steps.
WITH_STEPS = ('step', 'skip', 'stage', 'val', 'hellaswag', 'checkpoint', 'sample', 'resume', 'warning', 'outer',
              'outer_skip')
OTHER_TARGETS = ('validation data:', 'validations: of other targets')  # beginnings of changes at a resume
LARGEST = 1e100
MOST_STEPS = 2 ** 53
MOST_LEVELS = 100  # of nested JSON, as in llmc/base/json_text.h
# Fields of a step that plots use.
STEP_KEYS = ('event', 'step', 'loss', 'lr', 'grad_norm', 'ms', 'tokens', 'tokens_so_far', 'tokens_per_s', 'mfu',
             'progress', 'noise_scale_tokens', 'noise_state', 'noise_relative_deviation', 'noise_at_least_tokens')


def number(value):
    """The value if it is a finite number below LARGEST, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)): return None
    return value if abs(value) <= LARGEST else None


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_STEPS


def refuse(name):
    raise ValueError(name)


def levels(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + levels(each) for each in inner), default=0)


def parsed(line):
    """The JSON value of a line that train_gpt2 reads, too: no NaN, no lone surrogate. Throws ValueError otherwise."""
    value = json.loads(line.decode('utf-8-sig'), parse_constant=refuse)
    if b'\\u' in line: json.dumps(value, ensure_ascii=False).encode()
    if line.count(b'[') + line.count(b'{') > MOST_LEVELS and levels(value) > MOST_LEVELS: refuse('levels')
    return value


class Run:
    """A run as recorded in its log.

    log       Path of log.jsonl
    events    in the order of the log, each a dict with "event"; without those that a "resume" discarded. "step" is the
              number of completed steps, including the event's own step
    start     the last "start" event, {} if none; end: the last event if it is "end", else None
    resumes   numbers of completed steps at which the run was resumed: unique, rising, without 0
    """

    def __init__(self, given, keys=STEP_KEYS):
        """Opens a run's folder or log.jsonl without reading it. Throws ToolError if there is no log.

        keys: fields of step events to keep; None: all.
        """
        self.log = find_log(Path(given))
        self.keys = keys
        self.forget()

    def forget(self):
        self.events, self.resumes, self.start, self.end = [], [], {}, None
        self.offset = self.lines = self.file = 0

    def read(self):
        """Reads the lines added since the last call; a line without its newline waits unless it is complete JSON.

        Returns whether anything was read. Throws ToolError if a line is not an event.
        """
        try:
            with open(self.log, 'rb') as file:
                size, number_of_file = file.seek(0, 2), os.fstat(file.fileno()).st_ino
                if size < self.offset or number_of_file != self.file: self.forget()  # the file was replaced
                self.file = number_of_file
                file.seek(self.offset)
                data = file.read()
        except OSError as error:
            fail(in_quotes(self.log), 'not readable', 'the log.jsonl of a run', why_not(error))
        whole, _, rest = data.rpartition(b'\n')
        for line in whole.split(b'\n') if whole else []: self.take(line)
        if rest.strip() and is_object(rest):  # a complete event, only its newline is missing
            self.take(rest)
            self.lines -= 1
            rest = b''
        self.offset += len(data) - len(rest)
        return len(rest) < len(data)

    def take(self, line):
        self.lines += 1
        if not line.strip(b' \t\r'): return
        where = f'{in_quotes(self.log)} line {self.lines}'
        try:
            event = parsed(line)
        except (ValueError, RecursionError):
            fail(where, 'not JSON', 'one JSON object per line, as in the log.jsonl of a run')
        kind = event.get('event') if isinstance(event, dict) else None
        if not isinstance(kind, str):
            fail(where, in_quotes(line.decode('utf-8-sig')[:60]), 'an object with an "event"')
        if kind in WITH_STEPS and not is_count(event.get('step')):
            fail(f'"step" in {where}', in_quotes(event.get('step')), 'a number of steps')
        if kind == 'resume': self.discard_after(event['step'])
        self.end = event if kind == 'end' else None
        if kind == 'start':
            if 'log_version' not in event:
                fail(f'"log_version" in {where}', 'missing', 'a log of version 2 or later',
                     'use the tools of train_gpt2 0.2.0, the last that reads version 1')
            self.start = event
        if kind == 'step' and self.keys is not None:
            event = {key: event[key] for key in self.keys if key in event}
        self.events.append(event)

    def discard_after(self, step):
        def stays(event):
            if not is_count(event.get('step')): return event['event'] != 'end'
            return event['step'] <= step
        self.events = [event for event in self.events if stays(event)]
        self.resumes = [earlier for earlier in self.resumes if earlier < step] + ([step] if step > 0 else [])

    def of(self, kind):
        return [event for event in self.events if event['event'] == kind]

    def validations(self):
        """The "val" events, with ('losses', pattern): loss of each set. "targets" counts the resumes with other
        validation targets, each of which is an event without a loss."""
        found, targets = [], 0
        last = {event['step']: event for event in self.of('resume')}  # that counts, of several from a checkpoint
        for event in self.events:
            changes = event.get('changes') if event['event'] == 'resume' and event is last[event['step']] else None
            if isinstance(changes, list) and any(str(change).startswith(OTHER_TARGETS) for change in changes):
                targets, event = targets + 1, {'event': 'val', 'step': event['step']}
            if event['event'] == 'val':
                sets = event['losses'].items() if isinstance(event.get('losses'), dict) else ()
                found.append({**event, **{('losses', name): loss for name, loss in sets}, 'targets': targets})
        return found

    def vocabulary(self):
        """Number of token ids of the model, None if the log does not have it."""
        model = self.start.get('model')
        return model.get('vocabulary') if isinstance(model, dict) and is_count(model.get('vocabulary')) else None

    def steps_at(self):
        return {event['step']: event['step'] for event in self.events if is_count(event.get('step'))}

    def seconds_at(self):
        """{completed steps: seconds of steps, validation and waiting for checkpoints until then}, without the time
        between a stop and a resume; {} if the log has no times."""
        if all(number(event.get('ms')) is None for event in self.of('step') or self.of('val')): return {}
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
        """{completed steps: tokens trained on until then}, {} if the log does not have them."""
        at, steps = {}, self.of('step')
        for event in steps:
            so_far, tokens = number(event.get('tokens_so_far')), number(event.get('tokens'))
            if so_far is None: continue
            if tokens is not None: at.setdefault(event['step'] - 1, so_far - tokens)
            at[event['step']] = so_far
        if not steps: at = {step: step * (number(self.start.get('tokens_per_step')) or 0) for step in self.steps_at()}
        return at


def is_object(text):
    try:
        return isinstance(parsed(text), dict)
    except (ValueError, RecursionError):
        return False


def find_log(given):
    """Path of the log of a run's folder, or of the log itself. Throws ToolError that names similar runs."""
    quoted = in_quotes(given)
    expected = "a run's folder or its log.jsonl"
    if given.is_dir():
        if (given / LOG_NAME).is_file(): return given / LOG_NAME
        below = sorted(path.parent.name for path in given.glob('*/' + LOG_NAME))
        if below: hint = 'it contains ' + ', '.join(str(given / name) for name in below[:4]) + \
                         (f' and {len(below) - 4} more' if len(below) > 4 else '')
        elif (given.parent / LOG_NAME).is_file(): hint = f'did you mean {given.parent}?'
        else: hint = 'a run writes one if -o is set'
        return fail(quoted, 'a folder without log.jsonl', expected, hint)
    if given.is_file(): return given
    if given.exists(): return fail(quoted, 'not a regular file', expected)
    if given.is_symlink(): return fail(quoted, 'a symbolic link to nothing', expected)
    try:
        siblings = [path.name for path in given.parent.iterdir()]
    except OSError:
        siblings = []
    near = did_you_mean(given.name, siblings)
    if near: near = near.replace('mean ', f'mean {given.parent}/' if str(given.parent) != '.' else 'mean ')
    raise ToolError(f'{quoted} does not exist; expected {expected}' + (f'; {near}' if near else ''))


def open_runs(given, keys=STEP_KEYS):
    """Opens and reads the runs; names each by the shortest suffix of its folder that is unique. Throws ToolError."""
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
    """For each log path the shortest suffix of its folder (with the file's stem if not log.jsonl) that no other path
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


def as_text(name):
    """The name of a folder for what takes only UTF-8: other bytes are replaced."""
    return os.fsencode(name).decode('utf-8', 'replace')


def amount(value, digits=3):
    """"22.2k", "1.5M", "10B": a number with a suffix if it is 1000 or more."""
    for size, suffix in ((1e12, 'T'), (1e9, 'B'), (1e6, 'M'), (1e3, 'k')):
        if abs(value) >= size * 0.9995: return f'{value / size:.{digits}g}{suffix}'
    return f'{value:.{digits}g}'
