# whole_file.py - atomic file writes, and a progress line
import contextlib
import os
import sys
import time

from tool_main import ToolError, in_quotes, why_not


def sync_folder(folder):
    """Flushes a folder's entries to disk; errors are ignored, since some file systems do not support it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError): os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(place, error):
    """The ToolError for an OSError while writing."""
    return ToolError(f'{in_quotes(place)} cannot be written: {why_not(error)}; fix that and run this again: finished '
                     'files are kept', 1)


@contextlib.contextmanager
def whole_file(place):
    """A file to write that gets the name `place` only when the block ends; after an error nothing is left."""
    hidden = place.with_name(f'.{place.name}.{os.getpid()}.partial')
    try:
        with open(hidden, 'wb') as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, place)
    except BaseException as error:
        hidden.unlink(missing_ok=True)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename) == str(hidden)):
            raise not_written(place, error) from None
        raise
    sync_folder(place.parent)


def remove_hidden(folder):
    """Removes the partial files of an interrupted whole_file()."""
    for path in folder.glob('.*.partial'): path.unlink()


def in_bytes(count):
    """"1.2 GB"."""
    for unit, size in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if count >= size: return f'{count / size:.3g} {unit}' if count < 999.5 * size else f'{count / size:.0f} {unit}'
    return f'{count} bytes'


class ProgressLine:
    """A status line on a terminal, updated four times a second; prints nothing elsewhere."""

    def __init__(self):
        self.shown = sys.stderr is not None and sys.stderr.isatty()
        self.last = 0.0

    def show(self, text):
        if not self.shown or time.monotonic() - self.last < 0.25: return
        self.last = time.monotonic()
        print('\r\x1b[K' + text, end='', file=sys.stderr, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.shown: print('\r\x1b[K', end='', file=sys.stderr, flush=True)
