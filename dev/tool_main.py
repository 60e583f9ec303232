# tool_main.py - options, help, errors and exit codes of the Python programs, the same as tool_main.h for those in C++
import argparse
import difflib
import errno
import glob
import importlib
import os
import re
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1] / 'build/python'
# What pip installs; of other packages the newest version. huggingface_hub from 1.21 on does not resume downloads of a
# killed run.
VERSIONS = {'matplotlib': '3.10.3', 'huggingface_hub': '0.36.0'}
sys.path.append(str(PACKAGES))


class ToolError(Exception):
    """What is wrong, the value found, what was expected and how to fix it, in one line. Only tool_main() prints it.

    exit_code: 2 for wrong arguments or input, 1 for failures while the program runs.
    """

    def __init__(self, message, exit_code=2):
        super().__init__(message)
        self.exit_code = exit_code


def in_quotes(text, most=300):
    """Text of a user or a file, escaped and shortened for a message of one line."""
    shown = ''.join(f'\\x{ord(c):02x}' if ord(c) < 32 or ord(c) == 127 else c for c in str(text)[:most])
    return '"' + shown.encode('utf-8', 'replace').decode() + ('..."' if len(str(text)) > most else '"')


def fail(what, value, expected, hint='', exit_code=2):
    """Throws ToolError: "WHAT is VALUE; expected EXPECTED; HINT"."""
    raise ToolError(f'{what} is {value}; expected {expected}' + (f'; {hint}' if hint else ''), exit_code)


def why_not(error):
    """The system's message of an OSError, without number and path."""
    return (error.strerror or str(error)).lower()


def advice_after(error):
    return {errno.ENOSPC: 'free disk space', errno.EDQUOT: 'remove files of yours, or raise your disk quota (quota),',
            errno.EFBIG: "raise this process' limit of the sizes of files (ulimit -f)"
            }.get(error.errno, 'fix that') + ' and run this again'


def code_after(error):
    """The exit code after an OSError: 2 for a name that cannot be opened, 1 for other faults, such as a full disk."""
    return 2 if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.EISDIR,
                                errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG) else 1


def cannot_write(place, error):
    """The ToolError for an OSError while writing."""
    return ToolError(f'{in_quotes(place)} cannot be written: {why_not(error)}; {advice_after(error)}',
                     code_after(error))


def library(module):
    """The imported module; if python3 has none, pip installs its package in build/python first."""
    def imported():
        try:
            return importlib.import_module(module)
        except ImportError:
            return None
    if found := imported(): return found
    package = module.partition('.')[0]
    if package in VERSIONS: package += '==' + VERSIONS[package]
    print(f'installing {package} in build/python', file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', '--no-input',
                           '--only-binary=:all:', '--target', PACKAGES, package], capture_output=True, text=True)
    importlib.invalidate_caches()
    why = ' '.join(done.stderr.split())[-200:]
    return imported() or fail(f"Python's package {package}", f'missing, and pip cannot install it ({why})',
                              'it to be installed', f'{sys.executable} -m pip install {package}', 1)


def did_you_mean(text, known):
    """"did you mean NAME?" if a known name is similar, else ""."""
    near = difflib.get_close_matches(text, known, 1)
    return f'did you mean {near[0]}?' if near else ''


def files_of_pattern(pattern):
    """The matching files in byte order; the part of the pattern that exists is taken literally, as in train_gpt2."""
    literal = len(pattern)
    while literal > 0 and not os.path.exists(pattern[:literal]): literal = pattern.rfind('/', 0, literal)
    literal = max(literal, 0)
    return sorted(glob.glob(glob.escape(pattern[:literal]) + pattern[literal:]), key=os.fsencode)


def one_of(flag, text, names):
    """The text if it is one of the names; throws ToolError otherwise."""
    if text in names: return text
    listed = ', '.join(names[:-1]) + ' or ' + names[-1] if len(names) > 1 else names[0]
    return fail(flag, in_quotes(text), listed, did_you_mean(text, names))


def whole_number(flag, text, least, most=2 ** 31 - 1):
    """The number, "100000000", "1e8" or "100M"; throws ToolError if it is not from `least` to `most`."""
    form = re.fullmatch(r'([0-9.]{1,12}(?:e[0-9]{1,2})?)([kmbg]?)', text, re.IGNORECASE)
    try:
        number = Fraction(form[1]) * 1000 ** ' kmb'.index(form[2].lower().replace('g', 'b') or ' ')
        if number.denominator == 1 and least <= number <= most: return int(number)
    except (TypeError, ValueError):  # no number
        pass
    return fail(flag, in_quotes(text), f'a whole number from {least} to {most}')


def once(action):
    """The argparse action, refused if its flag was given before."""
    class Once(action):
        def __call__(self, parser, namespace, values, option_string=None):
            if option_string and getattr(self, 'given_to', None) is namespace:
                parser.error(f'{option_string} is given more than once; expected it once; remove the others')
            if option_string: self.given_to = namespace
            super().__call__(parser, namespace, values, option_string)
    return Once


class OnceParser(argparse.ArgumentParser):
    """Refuses flags that are given twice, where argparse takes the last one; those of action='append' collect all."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        for name, action in ((None, argparse._StoreAction), ('store_true', argparse._StoreTrueAction),
                             ('store_false', argparse._StoreFalseAction)):
            self.register('action', name, once(action))


class Parser(OnceParser):
    """Options of a tool; --help prints the examples first. Unknown arguments are errors."""

    def __init__(self, name, says, examples):
        super().__init__(prog=name, add_help=False, allow_abbrev=False,
                         formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 26, 110))
        self.says, self.examples = says, examples

    def format_help(self):
        options = super().format_help().split('\n\n', 1)  # usage, then the lists of options
        return f'{self.says}\n\n{self.examples.rstrip()}\n\n{options[0]}\n\n{options[1]}'

    def error(self, message):
        raise ToolError(f'{message}; see {self.prog} --help')

    def switches_alone(self, arguments):
        """The arguments, with --switch=on as --switch and without --switch=off."""
        kept = []
        for argument in arguments:
            flag, equals, value = argument.partition('=')
            action = self._option_string_actions.get(flag)
            if not equals or action is None or action.nargs != 0: kept.append(argument)
            elif value.lower() in ('on', 'true', 'yes', '1'): kept.append(flag)
            elif value.lower() not in ('off', 'false', 'no', '0'):
                fail(flag, in_quotes(value), 'on, off, true, false, yes, no, 1 or 0, or the flag alone')
            elif [word.partition('=')[0] for word in arguments].count(flag) > 1:
                fail(flag, 'given more than once', 'it once', 'remove the others')
        return kept

    def read(self, arguments):
        """The parsed options. Throws ToolError for unknown arguments. None: --help was printed."""
        self.add_argument('-h', '--help', action='store_true', help='print this help and exit')
        if '-h' in arguments or '--help' in arguments:
            print(self.format_help(), end='')
            return None
        options, others = self.parse_known_intermixed_args(self.switches_alone(arguments))
        if others:
            name = others[0].split('=', 1)[0]
            near = did_you_mean(name, [flag for flag in self._option_string_actions if flag.startswith('--')])
            raise ToolError(f'the argument {in_quotes(others[0])} is not understood; '
                            f'{near + " " if near else ""}see {self.prog} --help')
        return options


def tool_main(parser, run, arguments=None):
    """Calls run(options) and returns the exit code. Prints errors to stderr after the tool's name."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of a pipe may exit early, like head
    if sys.stdout is None: sys.stdout = open(os.devnull, 'w', encoding='utf-8')  # the parent process closed it
    for stream in (sys.stdout, sys.stderr):  # names that are not UTF-8 are printed as they are
        if hasattr(stream, 'reconfigure'): stream.reconfigure(errors='surrogateescape')
    try:
        options = parser.read(sys.argv[1:] if arguments is None else arguments)
        if options is not None: run(options)
        return 0
    except ToolError as error:
        print(f'{parser.prog}: error: {error}', file=sys.stderr)
        return error.exit_code
    except OSError as error:
        name = in_quotes(error.filename) + ': ' if error.filename else ''
        print(f'{parser.prog}: error: {name}{why_not(error)}; {advice_after(error)}', file=sys.stderr)
        return code_after(error)
    except KeyboardInterrupt:
        return 130
