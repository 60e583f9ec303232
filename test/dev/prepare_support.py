# prepare_support.py - runs dev/data/prepare in this process: a data set of text files, a stand-in for Hugging Face's
# hub that interrupts downloads, and the expected shards
import array
import contextlib
import hashlib
import http.server
import importlib.util
import json
import os
import random
import signal
import struct
import threading
import time
import unittest
import urllib.parse
import warnings
from unittest import mock

from run_support import WithFolder, program

prepare = program('data/prepare')
import download  # noqa: E402
import shards  # noqa: E402
import sources  # noqa: E402

END = 256  # end of text, of the byte tokenizer
LINES = 'lines'  # a data set of text files with one document per line, split like FineWeb
DRIP = -1  # a byte at a time
needs_hub = unittest.skipUnless(importlib.util.find_spec('huggingface_hub'), 'no huggingface_hub')


class Hub(http.server.ThreadingHTTPServer):
    """Serves `files` {path: bytes}, and lists those of a folder with sizes and SHA-256. Each response to a GET
    of a file consumes one of `faults`: a status code, the number of bytes after which it is interrupted, or DRIP.
    `requested` lists the (name, Range) of each."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.faults, self.requested, self.listed = {}, [], [], {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def publish(self, repository, folder, files):
        """Serves {name: bytes} in a folder of a repository."""
        place = f'{repository}/resolve/main/{folder}'.rstrip('/')
        self.files.update({f'/datasets/{place}/{name}': data for name, data in files.items()})
        self.listed[f'/api/datasets/{repository}/tree/main/{folder}'.rstrip('/')] = [
            {'type': 'file', 'oid': '0', 'path': f'{folder}/{name}'.lstrip('/'), 'size': len(data), 'lfs': {
                'oid': hashlib.sha256(data).hexdigest(), 'size': len(data), 'pointerSize': 1}}
            for name, data in files.items()] + [{'type': 'file', 'oid': '1', 'size': 5, 'path': 'README.md'}]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def missing(self, status=404):
        self.send_response(status, 'no such file')
        self.send_header('X-Error-Code', 'EntryNotFound')
        self.send_header('Content-Length', '0')
        self.send_header('Retry-After', '86400')
        self.end_headers()

    def answer(self, data, first=0, most=None):
        with contextlib.suppress(OSError):  # the client has closed the connection
            self.send_response(206 if first else 200)
            self.send_header('Content-Length', str(len(data) - first))
            self.send_header('ETag', hashlib.sha256(data).hexdigest())
            self.send_header('X-Repo-Commit', 40 * '0')
            self.end_headers()
            if self.command == 'HEAD': return
            if most != DRIP: self.wfile.write(data[first:][:most])
            for byte in data[first:] if most == DRIP else ():
                self.wfile.write(bytes([byte]))
                time.sleep(0.02)

    def do_GET(self):
        server, path = self.server, urllib.parse.unquote(self.path.partition('?')[0])
        if path in server.listed: return self.answer(json.dumps(server.listed[path]).encode())
        if path not in server.files: return self.missing()
        if self.command == 'HEAD': return self.answer(server.files[path])
        part, fault = self.headers.get('Range'), server.faults.pop(0) if server.faults else None
        server.requested.append((path.rpartition('/')[2], part))
        if isinstance(fault, str): return self.missing(int(fault))
        return self.answer(server.files[path], int(part[len('bytes='):-1]) if part else 0, fault)

    do_HEAD = do_GET


hub = Hub()
BASE = f'http://127.0.0.1:{hub.server_port}'
os.environ.update(HF_ENDPOINT=BASE, HF_HUB_VERBOSITY='error')  # huggingface_hub reads them once


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


class Prepares(WithFolder):
    def setUp(self):
        super().setUp()
        self.out = self.folder / 'out'
        for kept in (hub.files, hub.faults, hub.requested, hub.listed): kept.clear()
        patched = mock.patch.dict(sources.SOURCES, {LINES: sources.Source(
            sources.Hub('a/lines', 'part'), r'[0-9]+\.txt', 'lines', lines_of, sources.first_shard_held_out)})
        patched.start()
        self.addCleanup(patched.stop)

    def run_tool(self, module, *arguments):
        before = signal.getsignal(signal.SIGPIPE)
        try:
            with warnings.catch_warnings():  # of the connection of a download that is ended
                warnings.simplefilter('ignore', ResourceWarning)
                return super().run_tool(module, *arguments)
        finally:
            signal.signal(signal.SIGPIPE, before)

    def made(self, *arguments, tokenizer='bytes'):
        code, out, err = self.run_tool(prepare, *arguments, '--tokenizer', tokenizer, '-o', self.out)
        self.assertEqual((code, err), (0, ''), out)
        return out

    def not_made(self, *arguments, code=2, tokenizer='bytes'):
        """The error message of a run that must fail with one line."""
        return self.refused(prepare, *arguments, '--tokenizer', tokenizer, '-o', self.out, code=code, silent=False)

    def texts(self, *counts):
        """A folder with one file per count, of that many documents, and the list of all documents."""
        folder, everything = self.folder / 'texts', []
        folder.mkdir(parents=True)
        for number, count in enumerate(counts):
            texts = documents(count, number)
            (folder / f'{number}.txt').write_text(''.join(text + '\n' for text in texts))
            everything += texts
        return folder, everything

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
