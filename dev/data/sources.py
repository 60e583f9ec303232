# sources.py - where data sets are published, what their documents are, and which documents are for validation
#
# dev/README.md has a table of them. For FineWeb and tiny Shakespeare, documents, order and validation set are the same
# as in llm.c's dev/data, and so are the tokens. llm.c's TinyStories is another file of the same repository.
#
# kjj0/fineweb10B-gpt2 has fineweb_val_000000.bin and fineweb_train_000001.bin to 000103.bin, by the script with which
# KellerJordan/modded-nanogpt downloads them (data/cached_fineweb10B.py): llm.c's format, with 0 for the vocabulary.
import re
from dataclasses import dataclass
from pathlib import Path

from download import MIRROR, Hub, Web
from tool_main import fail, in_quotes, library

GITHUB = 'https://raw.githubusercontent.com'
END_OF_STORY = b'<|endoftext|>'
LONGEST_STORY = 1 << 24


@dataclass(frozen=True)
class Stream:
    """Files whose tokens are concatenated and cut into shards of a split.

    first       number of the first shard
    val_tokens  tokens at the start that become a validation shard; 0: none
    """
    files: tuple
    split: str = 'train'
    first: int = 0
    val_tokens: int = 0


@dataclass(frozen=True)
class Source:
    site: object        # where its files are published: Hub or Web
    wanted: str         # pattern of the files' names
    prefix: str         # prefix of the shards' names
    texts: object       # texts(path): the documents of a file
    streams: object     # streams(names, tokens per shard): [Stream]
    needed: tuple = ()  # required files

    @property
    def is_parquet(self):
        return self.texts is parquet_texts


def parquet_texts(path, column='text'):
    arrow, parquet = library('pyarrow'), library('pyarrow.parquet')
    row = 0
    try:
        with parquet.ParquetFile(path) as table:
            if column not in table.schema_arrow.names:
                columns = ', '.join(in_quotes(name, 40) for name in table.schema_arrow.names[:20])
                fail(in_quotes(path), f'a table with columns {columns or "without names"}',
                     f'a table with a column {in_quotes(column)}')
            for batch in table.iter_batches(columns=[column], batch_size=1024):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if not isinstance(text, str):
                        fail(f'the text in row {row} of {in_quotes(path)}', 'null' if text is None else
                             str(text)[:80], 'a string')
                    yield text
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        detail = ' '.join(str(error).split())[:200]
        fail(in_quotes(path), f'not a complete Parquet table after row {row} ({detail})', 'a complete one',
             'download it again', 1)


def in_utf8(data, path, at):
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        return fail(f'byte {at + error.start} of {in_quotes(path)}', 'not UTF-8', 'text in UTF-8', exit_code=1)


def stories(path):
    rest, at = b'', 0
    with open(path, 'rb') as file:
        while True:
            more = file.read(1 << 20)
            *whole, rest = (rest + more).split(END_OF_STORY)
            for story in whole if more else [rest]:
                text = in_utf8(story, path, at).strip()
                at += len(story) + len(END_OF_STORY)
                if text: yield text
            if not more: return
            if len(rest) > LONGEST_STORY:
                fail(f'a story at byte {at} of {in_quotes(path)}', 'longer than 16 MiB', 'stories with '
                     '<|endoftext|> between them', exit_code=1)


def sections(path):
    parts = in_utf8(Path(path).read_bytes(), path, 0).split('\n\n')
    for part in parts[:-1]: yield part + '\n\n'
    yield parts[-1]


def first_shard_held_out(names, shard_tokens):
    return [Stream(tuple(names), first=1, val_tokens=shard_tokens)]


def fineweb(repository, prefix):
    return Source(Hub(repository, 'sample/10BT'), r'[0-9]{3}_[0-9]{5}\.parquet', prefix, parquet_texts,
                  first_shard_held_out)


SOURCES = {
    'fineweb': fineweb('HuggingFaceFW/fineweb', 'fineweb'),
    'fineweb-edu': fineweb('HuggingFaceFW/fineweb-edu', 'edu_fineweb'),
    'tinystories': Source(
        Hub('roneneldan/TinyStories'), r'TinyStories-(train|valid)\.txt', 'tinystories', stories,
        lambda names, shard_tokens: [Stream(('TinyStories-valid.txt',), 'val'), Stream(('TinyStories-train.txt',))],
        ('TinyStories-train.txt', 'TinyStories-valid.txt')),
    'tinyshakespeare': Source(
        Web(f'{GITHUB}/karpathy/char-rnn/master/data/tinyshakespeare',
            {'input.txt': '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed'}),
        r'input\.txt', 'tinyshakespeare', sections,
        lambda names, shard_tokens: [Stream(tuple(names), val_tokens=32768)], ('input.txt',)),
    'hellaswag': Source(
        Web(f'{GITHUB}/rowanz/hellaswag/master/data',
            {'hellaswag_val.jsonl': '0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588'}),
        r'hellaswag_val\.jsonl', 'hellaswag_val', None, None, ('hellaswag_val.jsonl',)),
}

# Sets that are also published as shards.
TOKENIZED = {
    'fineweb': Source(Hub('kjj0/fineweb10B-gpt2', ways=MIRROR), r'fineweb_(val|train)_[0-9]{6}\.bin', 'fineweb', None,
                      None, ('fineweb_val_000000.bin', 'fineweb_train_000001.bin')),
}


def files_of(source, folder):
    """{name: SHA-256} of the data set's files, sorted by name: published, or in a local folder, with None."""
    if folder is None: found = source.site.files(source.wanted)
    else:
        if not folder.is_dir(): fail('--from', f'{in_quotes(folder)}, not a folder', 'a folder with the files')
        wanted = r'(?i).+\.parquet' if source.is_parquet else source.wanted  # a user's own files may have any name
        found = {name: None for name in sorted(path.name for path in folder.iterdir() if path.is_file())
                 if re.fullmatch(wanted, name)}
    where = 'the published data set' if folder is None else in_quotes(folder)
    for name in source.needed:
        if name not in found: fail(f'{name} in {where}', 'missing', 'the files of the data set')
    if not found: fail(f'the number of files in {where}', 0, 'Parquet files')
    return found
