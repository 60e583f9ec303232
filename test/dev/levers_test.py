#!/usr/bin/env python3
# levers_test.py - dev/gpu_check: levers.py forces algorithms, and has a table of medians; kernel_times.py's table;
# same_training.py names what differs
import json
import math

from run_support import WithFolder, main, program, start, step

levers, kernel_times, same_training = map(program, (
    'gpu_check/levers.py', 'gpu_check/kernel_times.py', 'gpu_check/same_training.py'))


class Levers(WithFolder):
    def test_the_algorithms_of_a_lever_are_forced(self):
        def entries(*taken):
            a, b, c = ({'taken': each} for each in taken)
            return {'devices': {'H200': {'cuBLASLt': {', residual': a, '_input, bias': b},
                                         'attention with cuDNN': {'': c}}}}
        autotuned = 'fused-residual 0a', 'fused-gelu-bias 0b', 'cudnn 2+1, deterministic'
        for lever, side, want in (('residual in the epilogue', 0, ('bare', *autotuned[1:])),
                                  ('residual in the epilogue', 1, autotuned),
                                  ('bias gradient in the epilogue', 0, (*autotuned[:1], 'fused-gelu', autotuned[2])),
                                  ("cuDNN's plans", 0, (*autotuned[:2], 'cudnn 0+0, deterministic'))):
            pattern, *sides = levers.LEVERS[lever]
            changed, count = levers.changed(json.dumps(entries(*autotuned)), pattern, sides[side])
            self.assertEqual((json.loads(changed), count), (entries(*want), 1))

    def test_medians_leave_out_the_first_steps_of_each_block(self):
        def run(name, *ms): return self.log(name, start(), *(step(i, 5, ms=x, step_j=2 * x) for i, x in enumerate(ms)))
        blocks = {'x': ([run('a', 99, 10), run('b', 99, 12, 20)], [run('c', 1, 9)])}
        self.assertEqual(levers.table(blocks, 1)[2], '| x | 2 + 1 | 12.00 | 9.00 | -3.00 | 24.00 | 18.00 | -6.00 |')

    def test_times_of_kernels(self):
        # Two steps of 1 ms after a first; a copy runs among the kernels that end one, and nothing for 0.1 ms of each.
        activities = [(0, 500, '1,1,1', 'adamw')]
        for us in (500, 1500):
            activities += [(us + 100, us + 700, '8,1,1', 'void kernels::gelu<(int)3, float>(float const*)'),
                           (us + 700, us + 800, '1,1,1', 'adamw'), (us + 800, us + 900, '-', 'memory copy'),
                           (us + 900, us + 1000, '1,1,1', 'adamw')]
        lines = [f'{start}000\t{end}000\t{grid}\t{name}\n' for start, end, grid, name in activities]
        rows = list(kernel_times.table(lines, 1))
        self.assertEqual(rows[1:], [
            '| `gelu<(int)3, float>` | 8,1,1 | 1 | 600.0 | 0.600 | 66.7% |',
            '| `adamw` | 1,1,1 | 2 | 100.0 | 0.200 | 22.2% |',
            '| `memory copy` | - | 1 | 100.0 | 0.100 | 11.1% |',
            '\na whole step: 1.000 ms, of which nothing ran for 0.100 ms (10.0%)'])

    def test_the_first_step_that_differs_is_named(self):
        for ours, worst, said in (
                ([(5.0, 1.0), (4.509, 1.01)], [0.009, 0.01], ''),
                ([(5.0, 1.0), (4.55, 1.0)], [0.05, 0.0], 'step 2: loss 4.550000, x 4.500000; differs by 0.05, '
                 'tolerance 0.01'),
                ([(math.nan, 1.0), (4.6, 1.0)], [math.inf, 0.0], 'step 1: loss not finite, x 5.000000; differs by '
                 'inf, tolerance 0.01'),
                ([(5.0, 1.01), (4.5, 1.0)], [0.0, 0.01], 'step 1: gradient norm 1.010000, x 1.000000; differs by '
                 '0.01 of it, tolerance 0.002'),
                ([(5.0, 1.0)], [0.0, 0.0], '1 steps, x 2; expected 2')):
            far, fault = same_training.difference(ours, [(5.0, 1.0), (4.5, 1.0)], 'x', (0.01, 0.002, 0.02), 2)
            self.assertEqual(([round(each, 9) for each in far], fault), (worst, said))


if __name__ == '__main__':
    main()
