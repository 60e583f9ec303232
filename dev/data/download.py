# download.py - downloads files over HTTP: resumes partial downloads and checks the published SHA-256
#
# A download grows as NAME.partial and gets its name once complete and checked. It resumes where it stopped, also in a
# later run of the program, if the server supports Range.
import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request

from tool_main import ToolError, fail, in_quotes
from whole_file import ProgressLine, in_bytes, not_written, sync_folder

TRIES = 4           # consecutive attempts without new bytes
TIMEOUT = 60        # seconds without a byte
AT_ONCE = 1 << 20   # bytes
MOST_LISTED = 1 << 24
NETWORK = (OSError, http.client.HTTPException)


class Interrupted(Exception):
    """A failed attempt that may succeed when repeated."""


def open_url(url, headers=()):
    """The response. Throws Interrupted for errors that may be temporary, ToolError for others."""
    request = urllib.request.Request(url, headers={'User-Agent': 'train_gpt2', **dict(headers)})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error: status = f'{error.code} ({error.reason})'
        if error.code in (408, 416, 429) or error.code >= 500: raise Interrupted(status) from None
        return fail(in_quotes(url), f'answered with {status}', 'a file', 'pass a mirror with --base, or a folder with '
                    'the files with --from', 1)
    except NETWORK as error:
        raise Interrupted(f'unreachable ({getattr(error, "reason", None) or error})') from None
    except ValueError as error:
        return fail('--base', f'not a URL ({error})', 'such as https://huggingface.co')


def with_retries(url, once, brought=lambda: 0):
    """Calls once() until it is not Interrupted. Throws ToolError after TRIES attempts in a row without progress."""
    most, tries = brought(), 0
    while True:
        try:
            return once()
        except Interrupted as error:
            tries = tries + 1 if brought() <= most else 1
            most = max(most, brought())
            if tries == TRIES:
                raise ToolError(f'{in_quotes(url)} is {error}, {TRIES} times in a row; expected a file; run this again '
                                'later, or pass a mirror with --base', 1) from None
            time.sleep(2 ** (tries - 1))


def read_json(url):
    def once():
        with open_url(url) as response:
            try:
                return response.read(MOST_LISTED)
            except NETWORK as error:
                raise Interrupted(f'interrupted ({error})') from None
    try:
        return json.loads(with_retries(url, once))
    except (ValueError, RecursionError):
        return fail(in_quotes(url), 'not JSON', 'a list of files', 'check --base', 1)


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def refuse(url, found, expected):
    fail(in_quotes(url), found, f'{expected}, as published', 'the download was removed: run this again, or pass '
         'another --base', 1)


def get_rest(url, partial, size, line):
    """Appends the missing bytes to `partial`; starts again from 0 if the server does not support Range."""
    have = size_of(partial)
    if have == size: return
    try:
        response = open_url(url, {'Range': f'bytes={have}-'} if have else {})
    except Interrupted as error:
        if str(error).startswith('416'): partial.unlink(missing_ok=True)  # more than the server has
        raise
    with response:
        resumes = response.status == 206
        if resumes and not response.headers.get('Content-Range', '').startswith(f'bytes {have}-'):
            partial.unlink(missing_ok=True)
            raise Interrupted('answered with another range than was requested')
        at = have if resumes else 0
        length = response.headers.get('Content-Length', '')
        end = at + int(length) if length.isdecimal() else size
        if size is not None and end != size:
            partial.unlink(missing_ok=True)
            refuse(url, f'{end} bytes long', size)
        try:
            with open(partial, 'ab' if resumes else 'wb') as file:
                while True:
                    try:
                        piece = response.read1(AT_ONCE)
                    except NETWORK as error:
                        raise Interrupted(f'interrupted after {in_bytes(at)} ({error})') from None
                    if not piece: break
                    file.write(piece)
                    at += len(piece)
                    if end is not None and at >= end: break
                    line.show(f'{partial.stem}: {in_bytes(at)}' + (f' of {in_bytes(end)}' if end else ''))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise not_written(partial, error) from None
        if at < (end or 0): raise Interrupted(f'interrupted after {in_bytes(at)}')


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while piece := file.read(AT_ONCE): digest.update(piece)
    return digest.hexdigest()


def fetch(url, place, size=None, sha256=None):
    """Downloads `url` to `place`, which must have the size and SHA-256 if set. Does nothing if `place` exists."""
    if place.exists(): return
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + '.partial')
    free, lacks = shutil.disk_usage(place.parent).free, (size or 0) - size_of(partial)
    if lacks > free:
        fail(f'the free space in {in_quotes(place.parent)}', in_bytes(free), f'{in_bytes(lacks)} for {place.name}',
             'free some space, or pass another folder with -o', 1)
    with ProgressLine() as line:
        with_retries(url, lambda: get_rest(url, partial, size, line), lambda: size_of(partial))
        line.show(f'{place.name}: checking its SHA-256')
        found = sha256_of(partial) if sha256 else None
    if found != sha256:
        partial.unlink()
        refuse(url, f'of SHA-256 {found}', sha256)
    os.replace(partial, place)
    sync_folder(place.parent)
