# sass.py - parses cuobjdump's output for a kernel: instructions, control flow, loops, paths, and the time of one warp
#
# These definitions decide what kernel_sass.py counts:
#
#   loop    a natural loop: a back edge whose target dominates its source, and all blocks that reach the source without
#           passing the target.
#   pass    the loop that a row of kernel_sass_rows.py describes: among the loops that read (r), write (w) or read and
#           write (rw) global memory with the kernel's widest accesses of that kind, an innermost one; ties: the one
#           that moves the most bytes per iteration (nvcc unrolls a loop and keeps a plain copy for the remainder).
#   path    through an iteration: among all paths from the loop's head back to it those that move the most bytes, and
#           among these the one with the fewest instructions. So remainder and repair code does not count. An inner loop
#           that is not a pass counts once if it lies on that path. Outside of loops: the path with the fewest
#           instructions through the passes in order. A path into a subroutine (nvcc's slow path of division) counts
#           only if there is no other.
#   predicates  an instruction whose predicate may be false counts as executed: it uses its issue slot, and machine code
#           does not show whether it moves its bytes.
import heapq
import re
from functools import cached_property

LINE = re.compile(r'/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);')
WORD = re.compile(r'/\* 0x([0-9a-f]{16}) \*/\s*$')
REGISTER = re.compile(r'\b(R(?:\d+|Z))\b')
SUBROUTINE = 10000  # cost in instructions: effectively never chosen


class Instruction:
    def __init__(self, address, predicate, opcode, operands):
        self.address, self.predicate, self.opcode, self.operands = address, predicate, opcode, operands
        self.stall = 1  # clocks until this warp may issue its next instruction
        self.name = opcode.split('.')[0]
        self.loads = self.name in ('LDG', 'LD')
        self.stores = self.name in ('STG', 'ST')
        widths = {'128': 16, '64': 8, 'U16': 2, 'S16': 2, 'U8': 1, 'S8': 1}
        parts = opcode.split('.')[1:]
        memory = self.name in ('LDG', 'LD', 'STG', 'ST', 'LDS', 'STS', 'LDL', 'STL')
        self.bytes = next((widths[p] for p in parts if p in widths), 4) if memory else 0
        first, _, rest = operands.partition(',')
        no_result = self.name in ('STG', 'ST', 'STS', 'STL', 'RED', 'BRA', 'BAR', 'EXIT', 'CALL', 'RET', 'BSSY',
                                  'BSYNC')
        self.sources = set(REGISTER.findall(operands if no_result else rest)) - {'RZ'}
        result = None if no_result else re.match(r'R(\d+)\b', first.strip())
        count = max(1, self.bytes // 4) if self.loads else 1
        self.results = {f'R{int(result[1]) + i}' for i in range(count)} if result else set()

    @property
    def target(self):
        found = re.findall(r'0x([0-9a-f]+)', self.operands)
        return int(found[-1], 16) if self.name == 'BRA' and found else None


def functions(text):
    """{name: [Instruction]} from cuobjdump's output."""
    result, name = {}, None
    for line in text.splitlines():
        if 'Function :' in line:
            name = line.split('Function :')[1].strip()
            result[name] = []
        elif name and (m := LINE.search(line)):
            result[name].append(Instruction(int(m[1], 16), m[2], m[3], m[4].strip()))
        elif name and result[name] and (m := WORD.search(line)):
            # the upper half of the same instruction; bits 105 to 108 hold the compiler's stall count
            result[name][-1].stall = max(1, int(m[1], 16) >> 41 & 15)
    return result


class Loop:
    def __init__(self, kernel, head, body, latches):
        self.kernel, self.head, self.body, self.latches = kernel, head, body, latches

    def _widest(self, kind):
        return max((i.bytes for b in self.body for i in self.kernel.blocks[b] if getattr(i, kind)), default=0)

    @cached_property
    def widest(self):
        return {'loads': self._widest('loads'), 'stores': self._widest('stores')}

    @cached_property
    def path(self):
        return self.kernel.richest_path(self)


def moved(path, kind, width=None):
    """Bytes moved by the accesses of this kind ('loads', 'stores') on a path; only those of `width`, if set."""
    return sum(i.bytes for i in path if getattr(i, kind) and width in (None, i.bytes))


class Kernel:
    def __init__(self, name, instructions):
        self.name, self.instructions = name, instructions
        self._divide()
        self._find_loops()

    def _divide(self):
        """Basic blocks by the address of their first instruction, and the edges between them."""
        ends = ('BRA', 'EXIT', 'RET', 'BRX', 'BRXU', 'JMP', 'KILL')
        known = {i.address for i in self.instructions}
        heads = {self.instructions[0].address}
        for i, following in zip(self.instructions, self.instructions[1:] + [None]):
            if i.name in ends and following: heads.add(following.address)
            if i.target in known: heads.add(i.target)
        self.blocks, self.next, block = {}, {}, None
        for i in self.instructions:
            if i.address in heads:
                block = i.address
                self.blocks[block] = []
            self.blocks[block].append(i)
        order = list(self.blocks)
        for at, block in enumerate(order):
            last = self.blocks[block][-1]
            to = {last.target} & known if last.target is not None else set()
            # `BRA P0, ...` has its condition in the operands
            conditional = last.predicate or re.match(r'!?U?P\d|DIV', last.operands) or '.DIV' in last.opcode
            if (last.name not in ends or conditional) and at + 1 < len(order): to.add(order[at + 1])
            self.next[block] = to
        self.entry = order[0]
        reached, waiting = set(), [self.entry]
        while waiting:
            block = waiting.pop()
            if block not in reached:
                reached.add(block)
                waiting += self.next[block]
        self.next = {b: self.next[b] & reached for b in order if b in reached}
        self.before = {b: {a for a in self.next if b in self.next[a]} for b in self.next}

    def _find_loops(self):
        loops = {}
        for latch in self.next:
            for head in self.next[latch]:
                if head > latch: continue
                body, waiting = {head}, [latch]
                while waiting:
                    block = waiting.pop()
                    if block not in body:
                        body.add(block)
                        waiting += self.before[block]
                if self.entry in body and head != self.entry: continue  # a second entry: not a natural loop
                known = loops.setdefault(head, (set(), set()))
                known[0].update(body)
                known[1].add(latch)
        self.loops = [Loop(self, head, body, latches) for head, (body, latches) in loops.items()]
        self.back_edges = {(latch, loop.head) for loop in self.loops for latch in loop.latches}

    def richest_path(self, loop):
        """The instructions of an iteration; of the whole kernel if `loop` is None."""
        head = loop.head if loop else self.entry
        body = loop.body if loop else set(self.next)
        best, stack = {}, [head]  # block -> ((bytes, -instructions), next block), for the rest of the path
        while stack:
            block = stack[-1]
            onward = [b for b in self.next[block] if b in body and (block, b) not in self.back_edges and b != head]
            pending = [b for b in onward if b not in best]
            if pending:
                if set(pending) & set(stack): raise ValueError(f'{self.name}: irreducible control flow')
                stack += pending[:1]
                continue
            stack.pop()
            code = self.blocks[block]
            ends = block in loop.latches if loop else code[-1].name == 'EXIT'
            ways = [(best[b][0], b) for b in onward if best[b]] + ([((0, 0), None)] if ends else [])
            cost = sum(SUBROUTINE if i.name == 'CALL' else 1 for i in code)
            if ways:
                (more, fewer), way = max(ways, key=lambda w: w[0])
                best[block] = ((more + moved(code, 'loads') + moved(code, 'stores'), fewer - cost), way)
            else: best[block] = None  # leads out of the loop
        path, block = [], head
        while block is not None:
            path += self.blocks[block]
            block = best[block][1]
        return path

    def pass_loop(self, kind):
        """The loop that is the pass of this kind, or None."""
        loads, stores = 'r' in kind, 'w' in kind
        of_kind = [l for l in self.loops if bool(l.widest['loads']) == loads and bool(l.widest['stores']) == stores]
        for each, wanted in (('loads', loads), ('stores', stores)):
            most = max((l.widest[each] for l in of_kind), default=0)
            if wanted: of_kind = [l for l in of_kind if l.widest[each] == most]
        inner = [l for l in of_kind if not any(m.body < l.body for m in of_kind)]
        return max(inner, key=lambda l: (moved(l.path, 'loads') + moved(l.path, 'stores'), -l.head), default=None)

    def _shortest(self, starts, is_end, within, closed):
        """Path with the fewest instructions from `starts` to a block with is_end, avoiding `closed`: (path, block)."""
        ways = [(0, n, b, ()) for n, b in enumerate(sorted(starts))]
        heapq.heapify(ways)
        done, number = set(), len(ways)
        while ways:
            cost, _, block, path = heapq.heappop(ways)
            if is_end(block): return [i for b in path for i in self.blocks[b]], block
            if block in done or block in closed: continue
            done.add(block)
            for b in self.next[block] & within:
                number += 1
                step = sum(SUBROUTINE if i.name == 'CALL' else 1 for i in self.blocks[block])
                heapq.heappush(ways, (cost + step, number, b, path + (block,)))
        raise ValueError(f'{self.name}: no path through its passes')

    def around(self, loops, outer=None):
        """Instructions outside `loops`, which are passed in this order: of an iteration of `outer`, or the kernel."""
        within = outer.body if outer else set(self.next)
        last = (lambda b: b in outer.latches) if outer else (lambda b: self.blocks[b][-1].name == 'EXIT')
        closed = set().union(*(l.body for l in loops)) if loops else set()
        starts, whole = {outer.head if outer else self.entry}, []
        for loop in loops:
            path, _ = self._shortest(starts, lambda b: b == loop.head, within, closed - {loop.head})
            whole += path
            starts = {n for b in loop.body for n in self.next[b] if n not in loop.body and n in within}
            if outer and loop.body & outer.latches: return whole
        path, block = self._shortest(starts, last, within, closed)
        return whole + path + self.blocks[block]


# Clocks until the result of a variable-latency instruction is available: assumed, not measured.
SLOW = {'LDS': 30, 'SHFL': 25, 'MUFU': 20, 'F2F': 20, 'F2I': 20, 'I2F': 20, 'BAR': 30}


def seconds(path, times, clock, latency):
    """Time of one warp alone for `times` repetitions of a path, if a load takes `latency` seconds.

    The warp issues an instruction once the stall count of the previous one has passed and its inputs have arrived. So
    loads issued together cost one latency; a chain of dependent loads costs one each.
    """
    now, arrives = 0.0, {}
    for i in path * times:
        for register in i.sources: now = max(now, arrives.pop(register, 0))
        for register in i.results: arrives.pop(register, None)
        delay = latency if i.loads else SLOW.get(i.name, 0) / clock
        if delay and i.results:
            for register in i.results: arrives[register] = now + delay
        elif i.name == 'BAR': now += delay
        now += i.stall / clock
    return now


def seconds_per_iteration(path, clock, latency):
    """The same for one iteration of a loop in steady state."""
    return (seconds(path, 6, clock, latency) - seconds(path, 2, clock, latency)) / 4


def loads_in_flight(path, repeated):
    """Loads of an iteration per wait of the warp: 1 in a chain of dependent loads."""
    endless = 1e9  # latency in clocks, so long that instructions take no time
    times = seconds_per_iteration(path, 1, endless) if repeated else seconds(path, 1, 1, endless)
    return sum(i.loads for i in path) / max(1, round(times / endless))
