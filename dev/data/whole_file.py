# whole_file.py - a file that is there whole or not at all, and a line that shows how far something is
import contextlib
import os
import sys
import time

from tool_main import ToolError, in_quotes, why_not


def sync_folder(folder):
    """Brings the names in a folder to the disk; some file systems cannot, and do so a little later."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError): os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(place, error):
    """The ToolError of an OSError met while writing."""
    return ToolError(f'{in_quotes(place)} cannot be written: {why_not(error)}; mend that and run this again: what is '
                     'finished stays', 1)


@contextlib.contextmanager
def whole_file(place):
    """A file to write, with the name `place` when the block ends and never before; on an error nothing is left."""
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
    """What a whole_file() that was killed has left."""
    for path in folder.glob('.*.partial'): path.unlink()


def in_bytes(count):
    """"1.2 GB"."""
    for unit, size in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if count >= size: return f'{count / size:.3g} {unit}' if count < 999.5 * size else f'{count / size:.0f} {unit}'
    return f'{count} bytes'


class ProgressLine:
    """One line on a terminal that is written over, four times a second; nothing elsewhere."""

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
