# download.py - lists and downloads the files of a data set, from Hugging Face's hub or from GitHub
#
# huggingface_hub resumes a partial file where it stopped, also in a later run. Every file must have the published
# SHA-256. A list, and a download that does not grow, end after a time, whatever the server sends or the library waits
# for.
import contextlib
import errno
import hashlib
import os
import re
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tool_main import ToolError, cannot_write, fail, in_quotes, library

TIMEOUT = 60  # seconds without a byte
TRIES = 4
# Seconds for a list or a small file, and for the next bytes of a large one: huggingface_hub writes 10 MB at a time.
LONGEST = 600
FROM = ', or pass a folder with the files with --from'
MIRROR = ', set HF_ENDPOINT to a mirror of huggingface.co'
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TooSlow(Exception):
    pass


@contextlib.contextmanager
def downloading(what, ways, growing=None):
    """Reports an error of the block, of whatever library, in one line with other ways. An error is also that it takes
    LONGEST seconds in which no file below the folder `growing` has grown, whatever it waits for."""
    def size():
        return growing and sum(path.stat().st_size for path in growing.rglob('*') if path.is_file())

    def check(*_):
        nonlocal last
        before, last = last, size()
        if last == before: raise TooSlow(f'it {"has not grown" if growing else "is not complete"} in {LONGEST} s')
    last, handler = size(), signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, LONGEST, LONGEST)
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL: raise cannot_write(what, error) from None
        why = ' '.join(str(error.__cause__ or error).split())[:500]
        raise ToolError(f'{in_quotes(what)} is not downloaded ({why}); run this again to resume{ways}', 1) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@dataclass(frozen=True)
class Hub:
    """A folder of a data set on huggingface.co, or on the mirror that HF_ENDPOINT names."""
    repository: str
    folder: str = ''
    ways: str = MIRROR + FROM  # if it is not reached

    @staticmethod
    def api():
        os.environ.setdefault('HF_HUB_DISABLE_XET', '1')  # resumes only downloads over HTTP
        return library('huggingface_hub').HfApi()

    def files(self, wanted):
        """{name: SHA-256} of the files whose names match."""
        api = self.api()
        with downloading(f'{self.repository}/{self.folder}', self.ways):
            listed = list(api.list_repo_tree(self.repository, self.folder or None, repo_type='dataset'))
            found = {Path(entry.path).name: entry.lfs.sha256 for entry in listed if getattr(entry, 'lfs', None)}
        return {name: found[name] for name in sorted(found) if re.fullmatch(wanted, name)}

    def download(self, name, folder):
        api, path = self.api(), f'{self.folder}/{name}'.lstrip('/')
        with downloading(f'{self.repository}/{path}', self.ways, folder):
            for tries in range(TRIES):  # a connection that breaks is an error, also of the library
                try:
                    return api.hf_hub_download(self.repository, path, repo_type='dataset', local_dir=folder)
                except Exception as error:
                    if tries == TRIES - 1 or isinstance(error, TooSlow): raise


@dataclass(frozen=True)
class Web:
    """Small files below a URL, {name: SHA-256}."""
    url: str
    known: dict
    folder: str = ''

    def files(self, _):
        return self.known

    def download(self, name, folder):
        url = f'{self.url}/{name}'
        with downloading(url, FROM), urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            (folder / name).write_bytes(response.read())


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for block in iter(lambda: file.read(1 << 20), b''): digest.update(block)
    return digest.hexdigest()


def fetch(site, name, sha256, folder):
    """The path of a file of the site below `folder`; downloads it if it is missing."""
    path = folder / site.folder / name
    if path.exists() and not path.is_file(): fail(in_quotes(path), 'not a regular file', 'a download', 'remove it')
    if not path.exists():
        print(f'downloading {name}', flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        site.download(name, folder)
    found = sha256_of(path)
    if found == sha256: return path
    path.unlink()
    return fail(f'the SHA-256 of {in_quotes(path)}', found, f'{sha256}, as published', 'the file was removed: run this '
                'again', 1)
