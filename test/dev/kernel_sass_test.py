#!/usr/bin/env python3
# kernel_sass_test.py - dev/kernel_sass.py fails slow kernels and passes their fixed versions: artificial kernels in the
# format of cuobjdump, on an artificial machine. Needs neither nvcc nor a GPU.
import unittest

from run_support import main
from kernel_sass import analyze, verdict
from kernel_sass_rows import TABLE, H200, row
from sass import Kernel, functions, loads_in_flight, moved, seconds, seconds_per_iteration

# 1 SM, 1 GHz: 1 byte per clock from memory; a load takes 1000 clocks.
MACHINE = dict(H200, sms=1, clock=1e9, dram=1e9, dram_latency=1e-6, l2=4e9, l2_latency=3e-7)
BUSY = dict(MACHINE, dram=1e15, l2=1e15, dram_latency=0)  # a machine that is never memory-bound


def kernel(code, stall=None):
    """The kernel of these instructions; 'LABEL:' marks a branch target and =LABEL names it."""
    lines, labels, text = [l.strip() for l in code.strip().splitlines()], {}, ['\t\tFunction : made_up']
    address = 0
    for l in lines:
        if l.endswith(':'): labels[l[:-1]] = address
        else: address += 16
    address = 0
    for l in lines:
        if l.endswith(':'): continue
        for label, at in labels.items(): l = l.replace(f'={label}', f'0x{at:x}')
        text.append(f'        /*{address:04x}*/                   {l} ;          /* 0x0000000000000000 */')
        if stall: text.append(f'{"":60}/* 0x{stall << 41:016x} */')
        address += 16
    return Kernel('made_up', functions('\n'.join(text))['made_up'])


def analyzed(code, passes, bytes_moved, blocks=1, threads=512, registers=32, machine=MACHINE, stall=None, **more):
    return analyze(row('made up', 'made_up', bytes_moved, blocks, threads, passes, **more), kernel(code, stall),
                 registers, 0, machine)


SERIAL = '''
    MOV R2, RZ
    LOOP:
    LDG.E.128 R4, desc[UR4][R2.64]
    FADD R0, R0, R4
    LDG.E.128 R8, desc[UR4][R2.64+0x2000]
    FADD R0, R0, R8
    LDG.E.128 R12, desc[UR4][R2.64+0x4000]
    FADD R0, R0, R12
    LDG.E.128 R16, desc[UR4][R2.64+0x6000]
    FADD R0, R0, R16
    @P0 BRA =LOOP
    STG.E desc[UR4][R2.64], R0
    EXIT
'''
TOGETHER = '''
    MOV R2, RZ
    LOOP:
    LDG.E.128 R4, desc[UR4][R2.64]
    LDG.E.128 R8, desc[UR4][R2.64+0x2000]
    LDG.E.128 R12, desc[UR4][R2.64+0x4000]
    LDG.E.128 R16, desc[UR4][R2.64+0x6000]
    FADD R0, R0, R4
    FADD R0, R0, R8
    FADD R0, R0, R12
    FADD R0, R0, R16
    @P0 BRA =LOOP
    STG.E desc[UR4][R2.64], R0
    EXIT
'''
READ = [('r', 4, 0, 640, 'dram')]  # a thread reads 640 elements of 4 bytes
BYTES = 512 * 640 * 4


class Model(unittest.TestCase):
    # 32 threads with 16 bytes each have 512 bytes in flight; the machine needs 1000.
    def test_a_chain_of_loads_and_uses_waits_for_each(self):
        few = dict(threads=32, bytes_moved=BYTES // 16)
        serial, together = (analyzed(code, READ, **few) for code in (SERIAL, TOGETHER))
        self.assertEqual([serial['passes'][0]['at_once'], together['passes'][0]['at_once']], [1, 4])
        self.assertEqual(serial['binds'], 'one warp')
        self.assertFalse(verdict(serial)[0])
        self.assertEqual(together['binds'], 'DRAM')
        self.assertTrue(verdict(together)[0])
        # 40 iterations of 4 latencies of a microsecond, and a few instructions
        self.assertAlmostEqual(serial['times']['one warp'] * 1e6, 160, delta=3)
        self.assertAlmostEqual(together['times']['one warp'] * 1e6, 40, delta=3)
        self.assertAlmostEqual(serial['times']['DRAM'] * 1e6, BYTES / 16 / 1e3)

    def test_many_warps_hide_a_chain(self):
        self.assertTrue(verdict(analyzed(SERIAL, READ, BYTES))[0])

    def test_registers_limit_resident_blocks_and_bytes_in_flight(self):
        many = dict(blocks=64, threads=32, bytes_moved=4 * BYTES, machine=dict(MACHINE, dram=8e9, l2=1e12))
        light, heavy = analyzed(SERIAL, READ, registers=32, **many), analyzed(SERIAL, READ, registers=255, **many)
        self.assertEqual([light['warps'], heavy['warps']], [32, 8])
        self.assertEqual([light['binds'], heavy['binds']], ['DRAM', 'one warp'])

    def test_a_load_for_the_next_iteration_is_in_flight_during_this_one(self):
        ahead = kernel('''
            LDG.E R4, desc[UR4][R2.64]
            LOOP:
            LDG.E R5, desc[UR4][R2.64+0x80]
            FADD R0, R0, R4
            LDG.E R4, desc[UR4][R2.64+0x100]
            FADD R0, R0, R5
            @P0 BRA =LOOP
            EXIT''')
        self.assertEqual(loads_in_flight(ahead.pass_loop('r').path, True), 2)
        # only the second iteration waits for the first one's load
        behind = kernel('LOOP:\nFADD R0, R0, R4\nLDG.E R4, desc[UR4][R2.64]\n@P0 BRA =LOOP\nEXIT')
        self.assertAlmostEqual(seconds_per_iteration(behind.pass_loop('r').path, 1e9, 1e-6) * 1e6, 1, delta=0.01)

    def test_instructions_bound_a_kernel_that_computes_too_much(self):
        slow = TOGETHER.replace('FADD R0, R0, R4', '\n'.join(['FFMA R0, R0, R1, R0'] * 90))
        result = analyzed(slow, READ, BYTES, machine=BUSY)
        self.assertEqual(result['binds'], 'issue')
        # 40 iterations of 98 instructions of 16 warps at 4 per clock
        self.assertAlmostEqual(result['times']['issue'] * 1e6, 40 * 98 * 16 / 4 / 1e3, delta=0.1)
        self.assertAlmostEqual(result['passes'][0]['instructions'], 98 / 16)

    def test_a_narrow_pipe_binds_before_the_issue_slots(self):
        slow = TOGETHER.replace('FADD R0, R0, R4', '\n'.join(['MUFU.EX2 R1, R4'] * 24))
        result = analyzed(slow, READ, BYTES, machine=BUSY)
        self.assertEqual(result['binds'], 'exp2, rcp, rsqrt')
        self.assertAlmostEqual(result['times'][result['binds']] * 1e6, 40 * 24 * 16 * 2 / 1e3, delta=0.1)

    def test_spills_are_counted(self):
        self.assertEqual(analyzed(SERIAL, READ, BYTES)['spills'], 0)
        spilt = SERIAL.replace('FADD R0, R0, R8', 'STL [R1], R8\nFADD R0, R0, R8\nLDL R8, [R1]')
        self.assertEqual(analyzed(spilt, READ, BYTES)['spills'], 2)

    def test_stall_counts_are_read(self):
        path = kernel('FADD R0, R0, R1\nFADD R0, R0, R1\nEXIT', stall=5).instructions
        self.assertAlmostEqual(seconds(path, 1, 1e9, 1e-6) * 1e9, 15)

    def test_the_table_must_fit_the_machine_code(self):
        for wrong in ([('rw', 4, 4, 640, 'dram')], [('w', 0, 4, 640, 'dram')]):  # the kernel has no such loop
            with self.assertRaisesRegex(ValueError, 'no loop'): analyzed(SERIAL, wrong, BYTES)
        both = SERIAL.replace('@P0 BRA', 'STG.E.64 desc[UR4][R2.64], R0\n@P0 BRA')
        with self.assertRaisesRegex(ValueError, 'elements'): analyzed(both, [('rw', 4, 4, 640, 'dram')], BYTES)
        self.assertTrue(analyzed(both, [('rw', 4, 0.5, 640, 'dram')], BYTES))
        with self.assertRaisesRegex(ValueError, 'more resources than'):
            analyzed(SERIAL, READ, BYTES, threads=1024, registers=128)

    def test_an_allowance_must_not_get_worse(self):
        few = dict(threads=32, bytes_moved=BYTES // 16)
        percent = analyzed(SERIAL, READ, **few)['percent']
        self.assertTrue(30 < percent < 60)
        self.assertTrue(verdict(analyzed(SERIAL, READ, worst=percent - 1, why='made up', **few))[0])
        self.assertFalse(verdict(analyzed(SERIAL, READ, worst=percent + 1, why='made up', **few))[0])


class Paths(unittest.TestCase):
    def test_a_remainder_loop_is_not_the_pass(self):
        code = kernel('''
            @P1 BRA =MAIN
            LEFT:
            LDG.E.128 R4, desc[UR4][R2.64]
            FADD R0, R0, R4
            @P0 BRA =LEFT
            MAIN:
            LDG.E.128 R4, desc[UR4][R2.64]
            LDG.E.128 R8, desc[UR4][R2.64+0x2000]
            FADD R0, R4, R8
            @P0 BRA =MAIN
            STG.E desc[UR4][R2.64], R0
            EXIT''')
        self.assertEqual(moved(code.pass_loop('r').path, 'loads'), 32)
        self.assertEqual(len(code.around([code.pass_loop('r')])), 3)  # avoids the other loop

    def test_repair_code_does_not_count_but_memory_accesses_do(self):
        code = kernel('''
            LOOP:
            @P1 BRA =SKIP
            LDG.E.128 R4, desc[UR4][R2.64]
            @P2 BRA =USUAL
            MOV R4, R5
            MOV R5, R6
            USUAL:
            FADD R0, R0, R4
            SKIP:
            @P3 BRA =DIVIDE
            MUFU.RCP R0, R0
            FFMA R0, R0, R1, R0
            BRA =ON
            DIVIDE:
            CALL.REL.NOINC 0x4000
            ON:
            @P0 BRA =LOOP
            EXIT''')
        path = code.pass_loop('r').path
        self.assertEqual([i.name for i in path],
                         ['BRA', 'LDG', 'BRA', 'FADD', 'BRA', 'MUFU', 'FFMA', 'BRA', 'BRA'])

    def test_an_inner_search_is_not_the_pass_and_a_loop_around_passes_counts_by_entries(self):
        search = kernel('''
            ROW:
            MOV R1, RZ
            FIND:
            LDG.E.64 R4, desc[UR4][R2.64]
            @P1 BRA =FIND
            LDG.E.128 R8, desc[UR4][R2.64]
            @P0 BRA =ROW
            EXIT''')
        self.assertEqual(moved(search.pass_loop('r').path, 'loads'), 24)
        both = kernel('''
            ROW:
            LDG.E.128 R12, desc[UR4][R2.64]
            PACK:
            LDG.E.128 R4, desc[UR4][R2.64]
            @P1 BRA =PACK
            @P0 BRA =ROW
            EXIT''')
        self.assertEqual(moved(both.pass_loop('r').path, 'loads'), 16)  # the inner one of two similar loops
        rows = '''
            ROW:
            MOV R1, RZ
            MOV R0, RZ
            PACK:
            LDG.E.128 R4, desc[UR4][R2.64]
            FADD R0, R0, R4
            @P1 BRA =PACK
            STG.E desc[UR4][R2.64], R0
            @P0 BRA =ROW
            EXIT'''
        one, ten = (analyzed(rows, [('r', 4, 0, 64, 'dram')], BYTES, entries=n, machine=BUSY) for n in (1, 10))
        # 16 iterations of 3 instructions; 5 around them for a row (4 without EXIT)
        self.assertAlmostEqual(one['times']['issue'] * 1e9, (16 * 3 + 5) * 4)
        self.assertAlmostEqual(ten['times']['issue'] * 1e9, (10 * 16 * 3 + 10 * 4 + 1) * 4)

    def test_a_kernel_without_a_loop_is_one_pass(self):
        result = analyzed('''
            @P0 EXIT
            LDG.E.128 R4, desc[UR4][R2.64]
            STG.E.128 desc[UR4][R2.64], R4
            EXIT''', [('', 4, 4, 4, 'dram')], 512 * 32)
        self.assertAlmostEqual(result['passes'][0]['instructions'], 1)
        self.assertAlmostEqual(result['times']['issue'] * 1e9, 16)

    def test_the_table_names_each_kernel_once(self):
        self.assertEqual(len({r['name'] for r in TABLE}), len(TABLE))
        for r in TABLE: self.assertTrue(r['worst'] is None or r['why'], f"{r['name']}: an allowance without a reason")


if __name__ == '__main__':
    main()
