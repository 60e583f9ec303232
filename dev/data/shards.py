# shards.py - tokenizes documents with dev/tokenize, cuts the tokens into shards, and publishes complete shards
#
# Shards are written in partial/; when all are complete they move next to prepare.json, which records the options. Until
# the last one has moved, NAME.bin.partial-prepare marks each, and train_gpt2 refuses the set (llmc/data/shard_set.cpp).
import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tool_main import ToolError, cannot_write, fail, in_quotes

TOKENIZE = Path(__file__).resolve().parents[1] / 'tokenize'
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024  # llmc/data/shard.h
VOCABULARIES = {'gpt2': (50257, 50256), 'bytes': (257, 256)}  # number of ids, end of text
MOST_TOKENS = 2 ** 31 - 1
AT_ONCE = 1 << 20  # bytes
MARK = '.partial-prepare'


def header(*words):
    return struct.pack(f'<{len(words)}i', *words).ljust(HEADER_BYTES, b'\0')


def tokens_of_shard(path):
    """The number of tokens, from its header."""
    if not path.is_file(): fail(in_quotes(path), 'not a regular file', 'a whole token shard', 'remove it')
    with open(path, 'rb') as file: magic, version, tokens = struct.unpack('<3i', file.read(12).ljust(12))
    if (magic, version, path.stat().st_size) != (MAGIC, VERSION, HEADER_BYTES + 2 * tokens):
        fail(in_quotes(path), 'not a complete shard', 'a whole token shard', 'remove it and run this again', 1)
    return tokens


@contextlib.contextmanager
def new_file(place):
    """A file to write; an error says that it cannot be written."""
    try:
        with open(place, 'wb') as file: yield file
    except OSError as error:
        if error.filename and str(error.filename) != str(place): raise
        raise cannot_write(place, error) from None


def progress(texts, what):
    """The texts, counted on a terminal if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return texts
    return tqdm(texts, what, unit=' documents', disable=None, leave=False)


class Tokenizer:
    """Runs dev/tokenize with one of its tokenizers."""

    def __init__(self, name, merges=None, threads=None):
        self.vocabulary, self.end_of_text = VOCABULARIES[name]
        self.options = ['--tokenizer', name]
        if merges: self.options += ['--merges', merges]
        if threads: self.options += ['--threads', threads]

    def check(self):
        """Checks that dev/tokenize exists and finds its merges."""
        if not TOKENIZE.exists(): fail(in_quotes(TOKENIZE), 'missing', 'the tokenizer', 'build it with make')
        with tempfile.TemporaryDirectory() as folder: self.run('a text', ['a'], folder)

    def tokens(self, what, texts, folder):
        """Yields the tokens of the texts, each after an end-of-text token, as blocks of bytes; `folder` is for
        temporary files."""
        # A folder of its own: a tokenizer that outlives a killed run does not write into that of the next one.
        with tempfile.TemporaryDirectory(dir=folder) as made:
            documents = self.run(what, texts, made)
            parts = sorted(Path(made).glob('*.bin'))
            print(f'{what}: {documents} documents, {sum(map(tokens_of_shard, parts))} tokens', flush=True)
            for part in parts:
                with open(part, 'rb') as file:
                    file.seek(HEADER_BYTES)
                    yield from iter(lambda: file.read(AT_ONCE), b'')

    def run(self, what, texts, folder):
        """Writes the tokens of the texts to shards in the folder. Returns the number of texts."""
        command = [TOKENIZE, *self.options, '--format', 'jsonl', '--hold-out', '0', '--shard-tokens', str(MOST_TOKENS),
                   '--name', 'tokens', '-o', folder, '-']
        count = 0
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
                command, bufsize=AT_ONCE, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors) as program:
            try:
                for count, text in enumerate(progress(texts, what), 1):
                    line = json.dumps({'text': text}, ensure_ascii=False) + '\n'
                    program.stdin.write(line.encode('utf-8', 'surrogatepass'))
            except BrokenPipeError:
                pass  # it has failed and reports why
            except BaseException:
                program.kill()  # otherwise it would treat the partial input as complete
                raise
            finally:
                with contextlib.suppress(BrokenPipeError): program.stdin.close()
            code = program.wait()
            errors.seek(0)
            last = errors.read().decode(errors='replace').strip().rpartition('\n')[2]
            why = last.replace('dev/tokenize: error: ', '')
            if code: raise ToolError(f'dev/tokenize, on {what}: {why or f"ended by signal {-code}"}', max(code, 1))
        return count

    def cut(self, blocks, names, folder):
        """Writes the tokens of the blocks to shards, `names`: (name, most tokens) of each. Takes no more blocks than
        the shards need. Returns the names of the shards."""
        made, rest = [], b''
        for name, most in names:
            rest = rest or next(blocks, b'')
            if not rest: break
            left = 2 * most
            with new_file(folder / name) as out:
                out.write(bytes(HEADER_BYTES))
                while rest:
                    out.write(rest[:left])
                    left, rest = left - len(rest[:left]), rest[left:]
                    if left == 0: break
                    rest = next(blocks, b'')
                tokens = most - left // 2
                out.seek(0)
                out.write(header(MAGIC, VERSION, tokens, self.vocabulary, self.end_of_text))
            print(f'{name}: {tokens} tokens', flush=True)
            made.append(name)
        return made


class DataFolder:
    """The folder of a data set, locked against other runs of the program while the block runs."""

    def __init__(self, folder):
        self.folder = folder
        self.partial = folder / 'partial'
        self.downloads = folder / 'downloads'
        self.record = folder / 'prepare.json'

    def __enter__(self):
        self.created = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.lock)
            fail(in_quotes(self.folder), 'in use', 'a folder that no other dev/data/prepare uses', 'wait until it ends')
        except OSError:
            pass  # a file system without locks
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.partial, ignore_errors=True)
        for path in (self.downloads, self.folder, *self.created):
            with contextlib.suppress(OSError): path.rmdir()  # only if empty
        os.close(self.lock)

    def written(self, options):
        """Names of the files that a complete run with the same options wrote, [] if there was none. Throws ToolError if
        the folder has files of other options, except for the number of shards."""
        there = sorted(path.name for path in self.folder.glob('*.bin'))
        if not self.record.exists():
            if not there: return []
            fail(f'{there[0]} in {in_quotes(self.folder)}', 'not written by this program', 'a folder without such '
                 'files', 'pass another one with -o')
        try:
            if not self.record.is_file(): raise ValueError  # such as a pipe, which would wait for its writer
            record = json.loads(self.record.read_text())
            for flag, key in (('SET', 'set'), ('--tokenizer', 'tokenizer'), ('--shard-tokens', 'shard_tokens')):
                if type(record[key]) is not type(options[key]): raise TypeError
                if record[key] != options[key]:
                    fail(flag, options[key], f'{in_quotes(record[key])[1:-1]}, as in {in_quotes(self.record)}',
                         'pass another folder with -o')
            files = record.get('files', [])
            if not isinstance(files, list) or not all(isinstance(name, str) for name in files): raise TypeError
            return files if record.get('shards') == options['shards'] and all(
                (self.folder / name).exists() for name in files) else []
        except (ValueError, KeyError, TypeError, RecursionError):
            return fail(in_quotes(self.record), 'not a record of dev/data/prepare', 'an unchanged file', 'remove the '
                        'folder, or pass another one with -o')

    def publish(self, options, names, folder=None):
        """Moves the files of these names from partial/, or `folder`, to their place, the first one, the validation
        shard, last. The marks stay until finish(), also after a run that is killed or fails."""
        record = self.partial / self.record.name
        with new_file(record) as file: file.write(json.dumps({**options, 'files': names}, indent=1).encode() + b'\n')
        os.replace(record, self.record)
        for name in names: (self.folder / (name + MARK)).touch()
        for name in reversed(names):
            if ((folder or self.partial) / name).exists():
                os.replace((folder or self.partial) / name, self.folder / name)

    def finish(self, names):
        """Removes all marks when the files of these names are there. If marks are left of a larger run that was killed,
        its other shards go first: some are missing."""
        marks = list(self.folder.glob('*' + MARK))
        if not all(mark.with_suffix('').exists() for mark in marks):
            series = {name.rpartition('_')[0] for name in names}
            for shard in self.folder.glob('*.bin'):
                if shard.name not in names and shard.name.rpartition('_')[0] in series: shard.unlink()
        for mark in marks: mark.unlink()
