# prepare_support.py - dev/data/prepare run in this process: a set of text files, a server that breaks off, and what the
# shards should be
import array
import http.server
import random
import signal
import struct
import threading
from unittest import mock

from run_support import WithFolder, program

prepare = program('data/prepare')
import shards  # noqa: E402
import sources  # noqa: E402

END = 256  # of text, in bytes
LINES = 'lines'  # a set cut as FineWeb is, of text files with a document a line


class Server(http.server.ThreadingHTTPServer):
    """Gives `files` {path: bytes}. Each answer uses up one of `faults`: a status code, or after how many bytes it
    breaks off. `asked` has (path, Range)."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.faults, self.asked, self.knows_range = {}, [], [], True
        self.base = f'http://127.0.0.1:{self.server_port}'
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        part = self.headers.get('Range')
        server.asked.append((self.path, part))
        fault = server.faults.pop(0) if server.faults else None
        if isinstance(fault, str) or self.path not in server.files:
            self.send_error(int(fault or 404))
            return
        data = server.files[self.path]
        first = int(part[len('bytes='):-1]) if part and server.knows_range else 0
        if first >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first: self.send_header('Content-Range', f'bytes {first}-{len(data) - 1}/{len(data)}')
        self.send_header('Content-Length', str(len(data) - first))
        self.end_headers()
        self.wfile.write(data[first:] if fault is None else data[first:first + fault])


def lines_of(path):
    with open(path, encoding='utf-8') as file:
        for line in file: yield line.rstrip('\n')


def ids_of(path):
    """(the first 5 words of the header, the ids) of a shard."""
    data = path.read_bytes()
    ids = array.array('H', data[1024:])
    return struct.unpack('<5i', data[:20]), list(ids)


def stream_of(documents):
    return [token for text in documents for token in (END, *text.encode())]


def documents(count, seed):
    maker = random.Random(seed)
    return [''.join(maker.choices('abcdefgh äß\t"\\{', k=maker.randint(0, 60))) for _ in range(count)]


def without_check():
    """The tokenizer of bytes is taken to be there."""
    return mock.patch.object(shards.Tokenizer, 'check', autospec=True,
                             side_effect=lambda it: vars(it).update(vocabulary=257, end_of_text=END))


class Prepares(WithFolder):
    def setUp(self):
        super().setUp()
        self.out = self.folder / 'out'
        patched = mock.patch.dict(sources.SOURCES, {LINES: sources.Source(
            'http://127.0.0.1:1', 'files', r'[0-9]+\.txt', lines_of, sources.first_shard_held_out, 'lines', 'list')})
        patched.start()
        self.addCleanup(patched.stop)
        self.slept = []
        waits = mock.patch('download.time.sleep', self.slept.append)
        waits.start()
        self.addCleanup(waits.stop)

    def run_set(self, *arguments, tokenizer='bytes'):
        before = signal.getsignal(signal.SIGPIPE)
        try:
            return self.run_tool(prepare, *arguments, '--tokenizer', tokenizer)
        finally:
            signal.signal(signal.SIGPIPE, before)

    def made(self, *arguments, **options):
        code, out, err = self.run_set(*arguments, '-o', self.out, **options)
        self.assertEqual((code, err), (0, ''), out)
        return out

    def not_made(self, *arguments, code=2):
        """The one line of the error."""
        got, _, err = self.run_set(*arguments, '-o', self.out)
        self.assertEqual(got, code, err)
        self.assertRegex(err, '^dev/data/prepare: error: [^\n]*\n$')
        return err.strip().removeprefix('dev/data/prepare: error: ')

    def texts(self, *counts, folder='texts'):
        """A folder with files of so many documents each, and all the documents."""
        folder, everything = self.folder / folder, []
        folder.mkdir(parents=True)
        for number, count in enumerate(counts):
            texts = documents(count, number)
            (folder / f'{number}.txt').write_text(''.join(text + '\n' for text in texts))
            everything += texts
        return folder, everything

    def server(self):
        server = Server()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def check_shards(self, prefix, everything, size, first=1, val_tokens=None):
        """That the folder has the documents' tokens, cut as they should be, and nothing else."""
        stream, names = stream_of(everything), []
        cuts = [(f'{prefix}_val_000000.bin', val_tokens or size)]
        cuts += [(f'{prefix}_train_{number:06}.bin', size) for number in range(first, first + len(stream) // size + 1)]
        for name, most in cuts:
            expected, stream = stream[:most], stream[most:]
            if not expected: break
            words, ids = ids_of(self.out / name)
            self.assertEqual(words, (20240520, 1, len(expected), 257, END), name)
            self.assertTrue(ids == expected, name)
            names.append(name)
        self.assertEqual(sorted(path.name for path in self.out.iterdir() if path.name != 'downloads'),
                         sorted([*names, 'prepare.json']))
        return names
