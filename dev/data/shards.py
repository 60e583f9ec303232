# shards.py - tokenizes documents with dev/tokenize and cuts the tokens of many files into shards
#
# The tokens of each file stay in partial/tokens/FILE/ until the shards contain them. A complete shard gets its name in
# partial/; when all are complete they move next to prepare.json, which records the tokens of each file. So finished
# work is never repeated, and an interrupted and resumed run writes the same bytes as an uninterrupted one.
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tool_main import ToolError, fail, in_quotes
from whole_file import ProgressLine, in_bytes, not_written, remove_hidden, sync_folder, whole_file

TOKENIZE = Path(__file__).resolve().parents[1] / 'tokenize'
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024  # llmc/data/shard.h
MOST_TOKENS = 2 ** 31 - 1
AT_ONCE = 1 << 20  # characters, or bytes


def header(*words):
    return struct.pack(f'<{len(words)}i', *words).ljust(HEADER_BYTES, b'\0')


def tokens_of_shard(path):
    """(tokens, vocabulary size, end-of-text id) from its header."""
    with open(path, 'rb') as file: magic, version, tokens, *vocabulary = struct.unpack('<5i', file.read(20))
    if (magic, version, path.stat().st_size) != (MAGIC, VERSION, HEADER_BYTES + 2 * tokens):
        fail(in_quotes(path), 'not a complete shard', 'a whole token shard', 'remove it', 1)
    return tokens, *vocabulary


def publish(hidden, folder, names):
    """Moves complete shards from `hidden` to `folder`. The first name, of the validation shard, is moved last: before
    that, no command that names both finds them."""
    for name in reversed(names):
        if (hidden / name).exists(): os.replace(hidden / name, folder / name)
    sync_folder(folder)


class Tokenizer:
    """Runs dev/tokenize with one of its tokenizers."""

    def __init__(self, name, merges=None, threads=None):
        self.name = name
        self.options = ['--tokenizer', name]
        if merges: self.options += ['--merges', merges]
        if threads: self.options += ['--threads', threads]

    def check(self):
        """Checks that dev/tokenize exists and finds its merges. Sets vocabulary and end_of_text."""
        if not TOKENIZE.exists(): fail(in_quotes(TOKENIZE), 'missing', 'the tokenizer', 'build it with make')
        with tempfile.TemporaryDirectory() as folder:
            self.run('a text', ['a'], Path(folder))
            _, self.vocabulary, self.end_of_text = tokens_of_shard(next(Path(folder).glob('*.bin')))

    def run(self, what, texts, folder):
        """Writes the tokens of the texts, each after an end-of-text token, to shards in the folder. Returns the number
        of texts."""
        command = [TOKENIZE, *self.options, '--format', 'jsonl', '--hold-out', '0', '--shard-tokens', str(MOST_TOKENS),
                   '--name', 'tokens', '-o', folder, '-']
        count = 0
        with tempfile.TemporaryFile() as errors, ProgressLine() as line, subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors) as program:
            try:
                size = fed = 0
                lines = []
                for text in texts:
                    count += 1
                    size += len(text)
                    lines.append(json.dumps({'text': text}, ensure_ascii=False))
                    if size < AT_ONCE: continue
                    self.send(program, lines)
                    fed += size
                    size, lines = 0, []
                    line.show(f'{what}: {count} documents, {in_bytes(fed)} of text')
                if lines: self.send(program, lines)
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

    @staticmethod
    def send(program, lines):
        program.stdin.write('\n'.join(lines).encode('utf-8', 'surrogatepass') + b'\n')


class DataFolder:
    """The folder of a data set, locked against other programs while the block runs."""

    def __init__(self, folder):
        self.folder = folder
        self.partial = folder / 'partial'
        self.downloads = folder / 'downloads'
        self.record = folder / 'prepare.json'
        self.lock = folder / '.prepare.lock'

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(self.descriptor), os.stat(self.lock))  # not a removed one
        except (BlockingIOError, FileNotFoundError):
            held = False
        except OSError:
            held = True  # a file system without locks
        if not held:
            os.close(self.descriptor)
            fail(in_quotes(self.folder), 'in use', 'a folder that no other dev/data/prepare uses', 'wait until it ends')
        remove_hidden(self.folder)
        if self.partial.is_dir():
            remove_hidden(self.partial)
            for path in self.partial.glob('tokenizing-*'): shutil.rmtree(path, ignore_errors=True)
        return self

    def __exit__(self, *_):
        for path in (self.partial / 'tokens', self.partial, self.downloads):
            with contextlib.suppress(OSError): path.rmdir()  # only if empty
        with contextlib.suppress(OSError): self.lock.unlink()
        os.close(self.descriptor)
        with contextlib.suppress(OSError): self.folder.rmdir()

    def read_record(self):
        """The record of an earlier run, {} if there is none."""
        if not self.record.exists(): return {}
        try:
            with open(self.record, encoding='utf-8') as file: record = json.load(file)
            names = [(file['name'], file['bytes'], file['sha256'], file['tokens']) for file in record['files']]
            if len(names) and record['set'] and record['tokenizer'] and record['shard_tokens']: return record
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return fail(in_quotes(self.record), 'not a record of dev/data/prepare', 'an unchanged file', 'remove the '
                    'folder, or pass another one with -o')

    def tokens_folder(self, name):
        """Folder of a file's tokens."""
        return self.partial / 'tokens' / name

    def write_record(self, record):
        with whole_file(self.record) as file: file.write(json.dumps(record, indent=1).encode() + b'\n')


class Cutter:
    """Writes the shards of a data set.

    record    contents of prepare.json; its "files" lists the files of the data set
    path_of   path_of(file of the record): its path on this machine; downloads it if necessary
    texts     texts(path): its documents
    """

    def __init__(self, data, record, tokenizer, path_of, texts, prefix):
        self.data, self.record, self.tokenizer, self.prefix = data, record, tokenizer, prefix
        self.path_of, self.texts = path_of, texts
        self.files = {file['name']: file for file in record['files']}

    def cut(self, streams, most):
        """Writes all shards, or the first `most`, and moves them to their final folder. Returns [(name, tokens)]."""
        made = []
        for stream in streams:
            position = 0
            for name, size in self.names(stream):
                if len(made) == most: break
                size = min(size, self.tokens_before(stream, position + size) - position)
                if size == 0: break
                if not self.exists(name, size): self.write(stream, position, size, name)
                made.append((name, size))
                position += size
                self.forget_tokens(stream, position)
        if len(made) != most and not any('_train_' in name for name, _ in made):
            tokens = sum(tokens for _, tokens in made)
            fail('the number of tokens', tokens, 'more than the validation shard takes',
                 'pass a lower --shard-tokens, and another folder with -o')
        publish(self.data.partial, self.data.folder, [name for name, _ in made])
        shutil.rmtree(self.data.partial, ignore_errors=True)
        return made

    def names(self, stream):
        """(name, most tokens) of each shard, without end."""
        if stream.val_tokens: yield f'{self.prefix}_val_000000.bin', stream.val_tokens
        for number in itertools.count(stream.first):
            yield f'{self.prefix}_{stream.split}_{number:06}.bin', self.record['shard_tokens']

    def tokens_before(self, stream, most):
        """Number of tokens in the stream, at most `most`; tokenizes only as many files as this needs."""
        total = 0
        for name in stream.files:
            if self.files[name]['tokens'] is None: self.tokenize(name)
            total += self.files[name]['tokens']
            if total >= most: return most
        return total

    def exists(self, name, tokens):
        size = HEADER_BYTES + 2 * tokens
        return any(path.exists() and path.stat().st_size == size
                   for path in (self.data.folder / name, self.data.partial / name))

    def tokenize(self, name):
        folder, file = self.data.tokens_folder(name), self.files[name]
        if not folder.is_dir():
            path = self.path_of(file)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix='tokenizing-', dir=self.data.partial) as made:
                # This process renames the folder: a tokenizer that outlives it would mark partial output as
                # complete.
                documents = self.tokenizer.run(name, self.texts(path), Path(made) / 'whole')
                try:
                    (Path(made) / 'whole' / 'documents').write_text(str(documents))
                    os.replace(Path(made) / 'whole', folder)
                except OSError as error:
                    raise not_written(folder, error) from None
            sync_folder(folder.parent)
        tokens = sum(tokens_of_shard(path)[0] for path in folder.glob('*.bin'))
        if file['tokens'] not in (None, tokens):
            fail(f'the number of tokens of {name}', tokens, f'{file["tokens"]}, the same as before', 'remove '
                 f'{in_quotes(self.data.folder)} and run this again', 1)
        if file['tokens'] == tokens: return
        file['tokens'], file['documents'] = tokens, int((folder / 'documents').read_text())
        self.data.write_record(self.record)
        print(f'{name}: {file["documents"]} documents, {tokens} tokens', flush=True)

    def forget_tokens(self, stream, position):
        """Removes the tokens of files that end at or before `position`."""
        end = 0
        for name in stream.files:
            if self.files[name]['tokens'] is None: return
            end += self.files[name]['tokens']
            if end <= position and self.data.tokens_folder(name).is_dir():
                shutil.rmtree(self.data.tokens_folder(name))

    def write(self, stream, position, tokens, name):
        self.data.partial.mkdir(exist_ok=True)
        with whole_file(self.data.partial / name) as out:
            out.write(header(MAGIC, VERSION, tokens, self.tokenizer.vocabulary, self.tokenizer.end_of_text))
            begin = 0  # start of a file, in tokens of the stream
            for file in stream.files:
                end = begin + (self.files[file]['tokens'] or 0)
                if begin < position + tokens and position < end:
                    self.tokenize(file)
                    self.copy(file, max(position - begin, 0), min(position + tokens, end) - begin, out)
                begin = end
        print(f'{name}: {tokens} tokens', flush=True)

    def copy(self, name, first, end, out):
        """Copies tokens [first, end) of a file."""
        begin = 0  # start of a part, in tokens of the file
        for path in sorted(self.data.tokens_folder(name).glob('*.bin')):
            count = tokens_of_shard(path)[0]
            left = 2 * (min(end - begin, count) - max(first - begin, 0))
            if left > 0:
                with open(path, 'rb') as part:
                    part.seek(HEADER_BYTES + 2 * max(first - begin, 0))
                    while left > 0:
                        data = part.read(min(left, AT_ONCE))
                        out.write(data)
                        left -= len(data)
            begin += count
