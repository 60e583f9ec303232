# prepare_support.py - runs dev/data/prepare in this process: a data set of text files, a server that interrupts
# downloads, and the expected shards
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

END = 256  # end of text, of the byte tokenizer
LINES = 'lines'  # a data set of text files with one document per line, split like FineWeb


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` {path: bytes}. Each response consumes one of `faults`: a status code, or the number of bytes after
    which it is interrupted. `requested` lists (path, Range)."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.faults, self.requested, self.supports_range = {}, [], [], True
        self.base = f'http://127.0.0.1:{self.server_port}'
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        part = self.headers.get('Range')
        server.requested.append((self.path, part))
        fault = server.faults.pop(0) if server.faults else None
        if isinstance(fault, str) or self.path not in server.files:
            self.send_error(int(fault or 404))
            return
        data = server.files[self.path]
        first = int(part[len('bytes='):-1]) if part and server.supports_range else 0
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
    """Skips the check of dev/tokenize and assumes the byte tokenizer."""
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
        """The error message of a run that must fail with one line."""
        got, _, err = self.run_set(*arguments, '-o', self.out)
        self.assertEqual(got, code, err)
        self.assertRegex(err, '^dev/data/prepare: error: [^\n]*\n$')
        return err.strip().removeprefix('dev/data/prepare: error: ')

    def texts(self, *counts, folder='texts'):
        """A folder with one file per count, of that many documents, and the list of all documents."""
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
        """Checks that the folder has exactly the expected shards of the documents' tokens."""
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
