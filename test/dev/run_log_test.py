#!/usr/bin/env python3
# run_log_test.py - dev/run_log.py on logs that grow, were resumed, are damaged or have unknown values
import re

from run_support import ROOT, WithFolder, lines, main, resume, start, step, val
from run_log import Run, open_runs, shortest_names
from tool_main import ToolError


class Log(WithFolder):
    def run_of(self, *events):
        run = Run(self.log('run', *events))
        run.read()
        return run

    def steps(self, run):
        return [(event['step'] - 1, event['loss']) for event in run.of('step')]

    def test_a_resumed_log_has_every_step_once(self):
        run = self.run_of(start(), val(0, 9), step(0, 8), step(1, 7), val(2, 6.5), step(2, 6), step(3, 5), val(4, 4.5),
                          start(), resume(2), step(2, 60), val(3, 55), step(3, 50), val(4, 45))
        self.assertEqual(self.steps(run), [(0, 8), (1, 7), (2, 60), (3, 50)])
        self.assertEqual([(e['step'], e['loss']) for e in run.of('val')], [(0, 9), (2, 6.5), (3, 55), (4, 45)])
        self.assertEqual(run.resumes, [2])

    def test_the_end_belongs_to_the_last_start(self):
        end = {'event': 'end', 'steps': 1, 'reason': 'all steps completed', 'seconds': 1}
        self.assertEqual(self.run_of(start(), step(0, 8), end).end, end)
        self.assertIsNone(self.run_of(start(), step(0, 8), end, start(), resume(1)).end)

    def test_a_growing_log_is_read_by_whole_lines(self):
        path = self.log('run', start(), step(0, 8)) / 'log.jsonl'
        run = Run(path)
        self.assertTrue(run.read())
        self.assertFalse(run.read())
        line = lines(step(1, 7))
        with path.open('a') as file:
            for text, steps in ((line[:20], 1), (line[20:-1], 2), ('\n', 2), (lines(step(2, 6)), 3)):
                file.write(text)
                file.flush()
                run.read()
                self.assertEqual(len(run.of('step')), steps, text)
        path.write_text(lines(start(), step(0, 4)))  # truncated and rewritten
        run.read()
        self.assertEqual(self.steps(run), [(0, 4)])
        other = self.folder / 'other'
        other.write_text(lines(start(), step(0, 3)) + 1000 * '\n')
        other.replace(path)  # replaced by another file
        run.read()
        self.assertEqual(self.steps(run), [(0, 3)])

    def test_values_that_are_not_numbers_are_unknown(self):
        path = self.log('run') / 'log.jsonl'
        path.write_text(lines(start(), val(0, None)) + '{"event":"step","step":0,"loss":"x","tokens_so_far":null}\n'
                        '{"event":"step","step":1,"loss":1e999}\n{"event":"news"}\n\n')
        run = Run(path)
        run.read()
        self.assertEqual((len(run.of('step')), run.tokens_at(), run.seconds_at()), (2, {}, {}))

    def test_the_lines_that_a_resumed_run_refuses(self):
        """The same table as in test/llmc/run/log/report_test.cpp."""
        path = self.log('run') / 'log.jsonl'
        rows = [row for row in (ROOT / 'test/support/log_lines.txt').read_bytes().splitlines() if row[:1] in b'+-']
        self.assertGreater(len(rows), 40)
        for row in rows:
            path.write_bytes(re.sub(rb'<(\w\w)(?:[*](\d+))?>', lambda match: bytes.fromhex(match[1].decode()) *
                                    int(match[2] or 1), row[1:]) + b'\n')
            try:
                Run(path).read()
                accepted = True
            except ToolError:
                accepted = False
            self.assertEqual(accepted, row[:1] == b'+', row)

    def test_tokens_and_hours(self):
        checkpoint = {'event': 'checkpoint', 'step': 1, 'folder': 'x', 'waited_ms': 300}
        run = self.run_of(start(), val(0, 9), step(0, 8), checkpoint, step(1, 7), val(2, 6), step(2, 5))
        self.assertEqual(run.tokens_at(), {0: 0, 1: 64, 2: 128, 3: 192})
        at = {steps: round(seconds, 6) for steps, seconds in run.seconds_at().items()}
        self.assertEqual(at, {0: 0, 1: 0.15, 2: 0.55, 3: 0.7})
        branch = self.run_of(start(), resume(5), step(5, 3), val(6, 2))
        self.assertEqual((branch.tokens_at(), branch.resumes), ({5: 320, 6: 384}, [5]))

    def test_shortest_unique_names(self):
        for logs, names in ((['/r/a/log.jsonl', '/r/b/log.jsonl'], ['a', 'b']),
                            (['/r/x/a/log.jsonl', '/r/y/a/log.jsonl', '/r/y/b/log.jsonl'], ['x/a', 'y/a', 'b']),
                            (['/r/one.jsonl', '/r/two.jsonl'], ['one', 'two']), (['/log.jsonl'], ['/']),
                            (['/a/log.jsonl', '/a/a/log.jsonl'], ['/a', 'a/a'])):
            self.assertEqual(shortest_names(logs), names)

    def test_missing_runs(self):
        self.log('runs/mine', start())
        expected = "expected a run's folder or its log.jsonl"
        mine = f'{self.folder}/runs/mine'
        (self.folder / 'runs/loop').symlink_to('loop')
        for given, said in (('runs', f'a folder without log.jsonl; {expected}; it contains {mine}'),
                            ('runs/mne', f'does not exist; {expected}; did you mean {mine}?'),
                            ('runs/loop', 'a symbolic link to nothing'), ('runs/mine/step_1', 'did you mean')):
            if given.endswith('step_1'): (self.folder / given).mkdir()
            with self.assertRaises(ToolError) as refused: Run(self.folder / given)
            self.assertIn(said, str(refused.exception))

    def test_a_run_given_twice(self):
        run = self.log('a', start(), step(0, 1))
        with self.assertRaisesRegex(ToolError, 'the same run as'): open_runs([run, run / 'log.jsonl'])


if __name__ == '__main__': main()
