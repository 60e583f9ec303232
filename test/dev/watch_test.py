#!/usr/bin/env python3
# watch_test.py - dev/watch: its frames, and its behaviour in a pseudo terminal that is resized and receives Ctrl-C
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from run_support import ROOT, WithFolder, lines, main, program, resume, start, step, val
from plotting.frame import in_ascii, lines_of
from run_log import Run

watch = program('watch')
END = {'event': 'end', 'steps': 4, 'reason': 'all steps completed', 'seconds': 65.0}


class Frames(WithFolder):
    def frame(self, *events, width=80, height=24, age=0.0):
        run = Run(self.log('mine', *events))
        run.name = 'mine'
        run.read()
        shown = lines_of(run, width, height, age)
        self.assertLessEqual(len(shown), height)
        for line in shown: self.assertLessEqual(len(line), width, line)
        return shown

    def test_numbers_and_progress(self):
        shown = self.frame(start(), val(0, 9.0), step(0, 8.0), step(1, 7.0, noise_state='weak',
                           noise_at_least_tokens=5000.0), val(2, 7.5), step(2, 6.0, mfu=0.25), step(3, 5.0, mfu=0.5))
        self.assertEqual(shown[0], 'mine | step 4 of 10 | 40.0 % | 0:01 left')
        self.assertEqual(shown[1], '█' * 32 + '░' * 48)
        self.assertEqual(shown[2], 'running')
        self.assertEqual(shown[4], 'loss 5.0000, smoothed 6.3687 | validation 7.5000 at 2, best 7.5000 at 2')
        self.assertEqual(shown[5], 'lr 1.00e-03 | norm 2.0000 | 640 tok/s | 100.0 ms per step | MFU 50.0 %')

    def test_a_run_whose_length_is_a_time(self):
        begins = {key: value for key, value in start(options={'max-minutes': 3}).items() if key != 'total_steps'}
        shown = self.frame(begins, step(0, 8.0, progress=0.2), step(1, 7.0, progress=0.25))
        self.assertEqual(shown[0], 'mine | step 2 | 25.0 % | 2:15 left')
        self.assertEqual(shown[1], '█' * 20 + '░' * 60)
        self.assertEqual(self.frame(begins)[0], 'mine | step 0')

    def test_the_time_left_counts_validations_between_steps(self):
        events = [start(total_steps=100)]
        for k in range(50): events += [step(k, 8.0, ms=1000.0)] + ([val(k + 1, 7.0, ms=10000.0)] if k % 10 == 9 else [])
        # 40 s of 50 steps are validations: those after steps 10, 20, 30 and 40
        self.assertTrue(self.frame(*events)[0].endswith('| 1:30 left'), self.frame(*events)[0])

    def test_ended_without_output_and_noise_bound(self):
        self.assertEqual(self.frame(start(), step(0, 8.0), END, age=61)[2],
                         'ended 1:01 ago: all steps completed, 1:05 in total')
        self.assertEqual(self.frame(start(), step(0, 8.0), resume(1), END)[2],
                         'ended 0:00 ago: all steps completed, 1:05 since the last resume')
        self.assertEqual(self.frame(start(), step(0, 8.0), age=75)[2],
                         'no output for 1:15: validating, waiting, or not running')
        slow = step(0, 8.0, ms=30000.0)
        self.assertEqual(self.frame(start(), slow, age=75)[2], 'running')
        weak = step(0, 8.0, noise_state='weak', noise_at_least_tokens=5000.0)
        self.assertIn('noise > 5k tokens', self.frame(start(), weak)[5])

    def test_the_curve_of_a_falling_loss_falls(self):
        events = [start()] + [step(k, 10.0 - k / 10) for k in range(60)] + [val(60, 4.1)]
        shown = self.frame(*events)
        rows = [line for line in shown if '│' in line or '┤' in line]
        self.assertGreaterEqual(len(rows), 12)
        highest = [next((k for k, row in enumerate(rows) if len(row) > column and row[column] != ' '), None)
                   for column in range(10, 79)]
        drawn = [row for row in highest if row is not None]
        self.assertEqual(drawn, sorted(drawn))
        self.assertGreater(drawn[-1] - drawn[0], 8)
        self.assertEqual(sum(row.count('●') for row in rows), 1)
        self.assertTrue(shown[-2].split()[0] == '0' and shown[-2].split()[-1] == '60', shown[-2])

    def test_any_size_and_any_log(self):
        logs = ([start()], [start(), val(0, 9.0)], [step(0, None)], [start(total_steps=0), step(0, 8.0), step(1, None)],
                [start(), step(0, 8.0, lr=None, ms=None, grad_norm=None, tokens_per_s=None)], [start(), resume(5)])
        for events in logs:
            for width, height in ((80, 24), (200, 60), (20, 10), (1, 1), (30, 5)):
                self.frame(*events, width=width, height=height)
        self.assertEqual(self.frame(start())[4], 'no loss yet')

    def test_ascii_terminals(self):
        for line in self.frame(start(), val(0, 9.0), *(step(k, 8.0 - k) for k in range(4))):
            self.assertTrue(in_ascii(line).isascii())
            self.assertEqual(len(in_ascii(line)), len(line))

    def test_once_and_wrong_arguments(self):
        run = self.log('mine', start(), step(0, 8.0))
        code, out, _ = self.run_tool(watch, run, '--once')
        self.assertEqual((code, '\x1b' in out, out.splitlines()[0][:19]), (0, False, 'mine | step 1 of 10'))
        self.assertIn('did you mean --once?', self.refused(watch, run, '--onze'))
        for value in ('yes', 'On', '1'): self.assertEqual(self.run_tool(watch, run, f'--once={value}')[0], 0)
        self.assertIn('stdout is not a terminal', self.refused(watch, run, '--once=no'))
        self.assertIn('--once is "maybe"; expected on, off, true, false, yes, no, 1 or 0, or the flag alone',
                      self.refused(watch, run, '--once=maybe'))
        self.assertIn('the number of runs is 0', self.refused(watch))
        self.assertIn('the number of runs is 2', self.refused(watch, run, run, '--once'))
        self.assertIn('stdout is not a terminal', self.refused(watch, run))
        self.assertIn('a folder without log.jsonl', self.refused(watch, self.folder, '--once'))
        empty = self.folder / 'empty'
        empty.mkdir()
        code, out, _ = self.run_tool(watch, empty, '--once')
        self.assertEqual((code, out), (0, f'waiting for {empty}/log.jsonl\n'))
        closed = subprocess.run([sys.executable, ROOT / 'dev' / 'watch', run, '--once'], stderr=subprocess.PIPE,
                                check=False, preexec_fn=lambda: os.close(1))
        self.assertEqual((closed.returncode, closed.stderr), (0, b''))


def take_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell sets SIG_IGN for "&" jobs, such as this test


class Terminal(WithFolder):
    """dev/watch on a pseudo terminal."""

    def open(self, run, width=80, height=24, command=None):
        self.master, self.slave = pty.openpty()
        self.addCleanup(os.close, self.master)
        self.addCleanup(os.close, self.slave)
        self.resize(width, height)
        self.before = termios.tcgetattr(self.slave)
        self.out = b''
        self.program = subprocess.Popen(
            command or [sys.executable, ROOT / 'dev' / 'watch', run], stdin=self.slave, stdout=self.slave,
            stderr=self.slave if command else subprocess.PIPE,
            env={**os.environ, 'PYTHONUTF8': '1'}, start_new_session=True,
            preexec_fn=take_terminal)
        self.addCleanup(self.program.wait)
        self.addCleanup(self.program.kill)
        if not command: self.addCleanup(self.program.stderr.close)

    def resize(self, width, height):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack('HHHH', height, width, 0, 0))

    def await_text(self, text, seconds=20):
        """Waits for the text; removes and returns the output before it, and removes the text."""
        end = time.monotonic() + seconds
        while text.encode() not in self.out:
            self.assertLess(time.monotonic(), end, f'{text!r} is not in {self.out[-2000:]!r}')
            if select.select([self.master], [], [], 0.1)[0]: self.out += os.read(self.master, 65536)
        before, _, self.out = self.out.partition(text.encode())
        return before.decode()

    def assert_restored(self, code):
        self.await_text('\x1b[?25h\x1b[?1049l')
        self.assertEqual(self.program.wait(20), code)
        if self.program.stderr: self.assertEqual(self.program.stderr.read(), b'')
        self.assertEqual(termios.tcgetattr(self.slave), self.before)

    def test_it_follows_the_log_and_the_size_and_exits_on_ctrl_c(self):
        run = self.folder / 'not_there_yet'
        self.open(run)
        self.await_text('\x1b[?1049h\x1b[?25l')
        self.await_text('waiting for ')
        run.mkdir()
        with (run / 'log.jsonl').open('w') as log:
            log.write(lines(start(), step(0, 8.0)))
            log.flush()
            self.await_text('step 1 of 10')
            log.write(lines(*(step(k, 8.0 - k) for k in range(1, 5))))
            log.flush()
            self.await_text('step 5 of 10')
        self.resize(40, 10)
        self.await_text('\x1b[K' + '█' * 20 + '░' * 20 + '\r\n')
        self.await_text('step 5 of 10')
        self.assertIsNone(self.program.poll())
        os.write(self.master, b'\x03')
        self.assert_restored(0)

    def test_it_stops_continues_and_is_terminated(self):
        run = self.log('mine', start(), step(0, 8.0), END)
        shell = f'"{sys.executable}" "{ROOT}/dev/watch" "{run}"; stty -a | grep -c " echo "; fg >/dev/null'
        self.open(run, command=['bash', '-mc', shell])
        self.await_text('all steps completed')
        os.write(self.master, b'\x1a')  # Ctrl-Z
        self.await_text('\x1b[?25h\x1b[?1049l')
        self.await_text('1\r\n')  # echo is on again
        self.await_text('\x1b[?1049h\x1b[?25l')
        self.await_text('all steps completed')
        os.killpg(os.tcgetpgrp(self.master), signal.SIGTERM)
        self.assert_restored(128 + signal.SIGTERM)

    def test_in_the_background_it_reads_no_keys_and_exits_on_sigterm(self):
        run = self.log('mine', start(), step(0, 8.0), END)
        # timeout starts a new process group, which is not the terminal's foreground group.
        inner = f'echo timeout=$PPID.; exec "{sys.executable}" "{ROOT}/dev/watch" "{run}"'
        self.open(run, command=['bash', '-c', f"timeout 60 sh -c '{inner}'; echo ended $?"])
        self.await_text('timeout=')
        pid = int(self.await_text('.'))
        self.addCleanup(lambda: self.program.poll() is None and os.killpg(pid, signal.SIGKILL))
        self.await_text('all steps completed')
        self.assertEqual(termios.tcgetattr(self.slave), self.before)
        os.write(self.master, b'q\n')  # the foreground process reads it
        self.await_text('\x1b[H\x1b[Kmine | step 1')  # drawn again
        os.kill(pid, signal.SIGTERM)
        self.await_text('\x1b[?25h\x1b[?1049l')
        self.await_text(f'ended {128 + signal.SIGTERM}')
        self.assertEqual(self.program.wait(20), 0)
        self.assertEqual(termios.tcgetattr(self.slave), self.before)

    def test_q_exits_and_an_error_is_printed_after_the_screen_is_restored(self):
        run = self.log('mine', start(), step(0, 8.0))
        self.open(run)
        self.await_text('step 1 of 10')
        os.write(self.master, b'q')
        self.assert_restored(0)
        self.open(run)
        self.await_text('step 1 of 10')
        with (run / 'log.jsonl').open('a') as log: log.write('{"event\n')
        self.await_text('\x1b[?25h\x1b[?1049l')
        self.assertEqual(self.program.wait(20), 2)
        self.assertRegex(self.program.stderr.read().decode(),
                         re.compile(r'^dev/watch: error: "[^"]*" line 3 is not JSON; expected [^\n]*\n$'))


if __name__ == '__main__': main()
