# picture.py - the output file of dev/plot: drawn by gnuplot, marked as dev/plot's, written atomically; files that
# dev/plot did not write are never overwritten
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

from tool_main import fail, in_quotes, why_not

MARK = b'train_gpt2 dev/plot'
PNG = b'\x89PNG\r\n\x1a\n'
SVG_COMMENT = b'<!-- ' + MARK + b' -->\n'


def png_chunks(data):
    """(type, content) of each chunk of a PNG, up to the first incomplete one."""
    at = len(PNG)
    while data.startswith(PNG) and at + 12 <= len(data):
        size, = struct.unpack('>I', data[at:at + 4])
        yield data[at + 4:at + 8], data[at + 8:at + 8 + size]
        at += 12 + size


def marked(data):
    """The PNG or SVG with the mark inserted: a tEXt chunk after the header, or a comment after the first line."""
    if data.startswith(PNG):
        end = len(PNG) + 12 + 13  # after IHDR
        chunk = b'tEXtSoftware\0' + MARK
        return data[:end] + struct.pack('>I', len(chunk) - 4) + chunk + struct.pack('>I', zlib.crc32(chunk)) + \
            data[end:]
    first, _, rest = data.partition(b'\n')
    return first + b'\n' + SVG_COMMENT + rest


def is_ours(data):
    """Whether the bytes are a picture that marked() made."""
    if data.startswith(PNG):
        return any(kind == b'tEXt' and content == b'Software\0' + MARK for kind, content in png_chunks(data))
    return data.startswith(b'<') and data.partition(b'\n')[2].startswith(SVG_COMMENT)


def require_ours(path):
    """Throws ToolError unless the path is free or a picture of dev/plot."""
    if not os.path.lexists(path): return
    if not path.is_file():
        fail(in_quotes(path), 'a folder' if path.is_dir() else 'not a regular file', 'a file to write',
             'pass another name with -o')
    try:
        ours = is_ours(path.read_bytes())
    except OSError as error:
        fail(in_quotes(path), 'not readable', 'no file, or a picture of dev/plot', why_not(error))
    if not ours:
        fail(in_quotes(path), 'an existing file that dev/plot did not write', 'a new file or one that dev/plot wrote',
             'it is kept; delete it or pass another name with -o')


def draw(script, suffix):
    """Bytes of the picture that a script of gnuplot.py writes to "picture" + suffix. Throws ToolError on failure."""
    if not shutil.which('gnuplot'):
        fail('gnuplot', 'not found', 'gnuplot on PATH', 'install it (Debian, Ubuntu: apt-get install gnuplot-nox)', 1)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(['gnuplot'], input=script.encode(), cwd=folder, capture_output=True, check=False)
        picture = Path(folder) / ('picture' + suffix)
        data = picture.read_bytes() if picture.exists() else b''
    if done.returncode != 0 or not data:
        said = [line.strip() for line in done.stderr.decode(errors='replace').splitlines() if line.strip(' ^')]
        fail('gnuplot', f'unable to draw ({said[-1] if said else "no message"})', 'a picture',
             'gnuplot --version must be 5.2 or later, with the terminals pngcairo and svg', 1)
    return marked(data)


class Target:
    """The file to write. Throws ToolError, before anything is drawn, if it cannot or must not be written."""

    def __init__(self, path):
        self.path = Path(os.path.realpath(path))
        if Path(path).suffix not in ('.png', '.svg'):
            fail('-o', in_quotes(path), 'a name that ends in .png or .svg')
        require_ours(self.path)
        self.temporary = self.path.with_name(f'.{self.path.name[:60]}.{os.getpid()}')
        try:
            self.file = open(self.temporary, 'xb')
        except OSError as error:
            fail('-o', in_quotes(path), 'a place that can be written to', why_not(error))

    def write(self, data):
        with self.file: self.file.write(data)
        require_ours(self.path)  # again: it may have changed meanwhile
        os.replace(self.temporary, self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.temporary.unlink(missing_ok=True)
