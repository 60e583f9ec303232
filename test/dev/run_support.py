# run_support.py - writes logs, and runs the programs of dev/ in this process
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / 'dev'))
from tool_main import tool_main  # noqa: E402


def program(name):
    """A program of dev/ as a module, which finds the modules of its folder; its file may have no extension."""
    path = ROOT / 'dev' / name
    sys.path.insert(0, str(path.parent))
    loader = importlib.machinery.SourceFileLoader(name.replace('.py', ''), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def start(**fields):
    return {'event': 'start', 'log_version': 2, 'model': {'name': 'custom:l=1,h=1,c=8', 'vocabulary': 257},
            'total_steps': 10, 'tokens_per_step': 64, **fields}


def step(before, loss, **fields):
    """A step event after `before` completed steps."""
    return {'event': 'step', 'step': before + 1, 'loss': loss, 'lr': 1e-3, 'grad_norm': 2.0, 'tokens': 64,
            'tokens_so_far': 64 * (before + 1), 'ms': 100.0, 'tokens_per_s': 640.0, 'mfu': None,
            'noise_scale_tokens': None, 'noise_state': None, 'noise_relative_deviation': None,
            'noise_at_least_tokens': None, **fields}


def val(number, loss, **fields):
    return {'event': 'val', 'step': number, 'loss': loss, 'valid_tokens': 100, 'ms': 50.0, **fields}


def resume(number, *changes):
    return {'event': 'resume', 'step': number, 'folder': 'x', 'changes': changes}


def lines(*events):
    return ''.join(json.dumps(event) + '\n' for event in events)


def main():
    """Runs the tests, and prints `skipped: "TEST": REASON` for each skipped one, which scripts/test.sh counts. Exit
    code 77: all are skipped."""
    tests = unittest.main(exit=False)
    skipped = tests.result.skipped
    for test, reason in skipped:
        print(f'skipped: "{test.id()}": {reason}')
    if not tests.result.wasSuccessful(): sys.exit(1)
    if skipped and len(skipped) == tests.test.countTestCases(): sys.exit(77)


class WithFolder(unittest.TestCase):
    """A temporary folder for each test, and helpers to run programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def log(self, name, *events):
        """Writes a run's folder whose log has these events; returns the folder."""
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / name / 'log.jsonl').write_text(lines(*events))
        return self.folder / name

    def run_tool(self, module, *arguments):
        """(exit code, stdout, stderr)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = tool_main(module.command_line(), module.run, [str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    def refused(self, module, *arguments, code=2, silent=True):
        """The error message of a program that must fail with one line, and print nothing before if `silent`."""
        got, out, err = self.run_tool(module, *arguments)
        self.assertEqual((got, out if silent else ''), (code, ''), err)
        self.assertEqual(err.count('\n'), 1, err)
        name = module.command_line().prog
        self.assertTrue(err.startswith(f'{name}: error: '), err)
        return err.strip().removeprefix(f'{name}: error: ')
