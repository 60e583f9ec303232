# kernel_sass_rows.py - input of kernel_sass.py: the machine, and the kernel launches of GPT-2 124M
#
# B = 64, T = 1024, C = 768, V = 50304, bf16: 65,536 rows, 124,475,904 parameters. A row of the table is one launch.
# Grid, block and elements follow from the kernel's launcher, bytes from `Traffic` in its contract.

ROWS, CHANNELS, PADDED, PARAMETERS = 64 * 1024, 768, 50304, 124475904

# An H200 SXM. Threads, registers, shared memory and blocks per SM: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability", 9.0.
H200 = dict(
    name='H200', sms=132, issues=4, clock=1.98e9, warps=64, blocks=32, registers=65536, shared=228 * 1024,
    dram=4.3e12,         # published measurement of a copy: bytes read and written
    # Assumed, not measured. Latencies are those under load, about twice those of an idle memory; the L2 bandwidth is 42
    # % of 64 bytes per clock and SM.
    dram_latency=600e-9, l2=7.0e12, l2_latency=250e-9,
)

# Results per SM and clock (32 lanes): CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions",
# compute capability 9.0; compare with its newest edition. The first pattern that matches an instruction's name and
# modifiers applies.
PIPES = [
    ('double precision', 64, r'D(ADD|MUL|FMA|SETP)\b'),
    ('conversion of 64 bits', 16, r'(F2F|F2I|I2F)\b.*64'),
    ('exp2, rcp, rsqrt', 16, r'MUFU\b'),
    ('conversion', 64, r'(F2F|F2I|I2F|F2FP|I2FP|FRND)\b'),
    ('float', 128, r'F(ADD|MUL|FMA|SWZADD)\b|HFMA2|HADD2|HMUL2'),
    ('integer multiply-add', 64, r'IMAD\b'),
    ('shuffle', 32, r'SHFL\b'),
    ('integer, logic, comparison', 64, r'(V?IADD3?|IADD3|VIADD|LOP3|SHF|PRMT|LEA|MOV|I?SETP|ISETP|FSETP|FMNMX|V?IMNMX|'
                                       r'VIADDMNMX|SEL|FSEL|PLOP3|IABS|POPC|FLO)\b'),
]


def row(name, kernel, contract, blocks, threads, passes, dram=None, l2=None, entries=1, dynamic=0, worst=None, why=''):
    """kernel: a pattern of its demangled name. contract: bytes that it must move. dram, l2: bytes that it does move, if
    not the contract's. passes: (kind, bytes read per element and bytes written per element by the widest accesses,
    elements per thread and entry, source of its loads). entries: how often a thread runs the passes. dynamic: bytes of
    dynamic shared memory. worst: least allowed percentage of a row below the limit; why: its reason."""
    return dict(name=name, kernel=kernel, contract=contract, blocks=blocks, threads=threads, passes=passes,
                dram=dram or contract, l2=l2 or dram or contract, entries=entries, dynamic=dynamic, worst=worst,
                why=why)


def ceil(a, b): return -(-a // b)


def elementwise(name, kernel, elements, tile, read, write, moved, threads=256, **more):
    return row(name, kernel, elements * moved, ceil(elements, tile), threads,
               [('rw', read, write, tile / threads, 'dram')], **more)


ACTIVATION = ROWS * CHANNELS
SMS = H200['sms']
TOKENS = 16384  # distinct tokens in a micro-batch, assumed: 4 rows each

TABLE = [
    # The second pass finds its row in the L2 cache (classifier.h): three passes over L2, two over DRAM.
    row('classifier', r'classifier_kernel<kernels::bf16, 1024', 2 * 2 * ROWS * PADDED, ROWS, 1024,
        [('r', 2, 0, PADDED / 1024, 'dram'), ('rw', 2, 2, PADDED / 1024, 'l2')], l2=3 * 2 * ROWS * PADDED),
    # A warp holds a row in registers: one pass over all its rows. Weight and bias are read from the L1 cache for every
    # row. The reduction at the end of a block is not counted.
    row('layernorm forward', r'layernorm_forward_kernel<kernels::LayerNormForward<kernels::bf16>.*bf16, 3, false>',
        4 * ACTIVATION, 3 * SMS, 256, [('rw', 6, 2, 24 * ceil(ROWS, 3 * SMS * 8), 'dram')]),
    row('residual + layernorm forward',
        r'layernorm_forward_kernel<kernels::ResidualLayerNormForward<kernels::bf16>.*bf16, 3, false>', 8 * ACTIVATION,
        3 * SMS, 256, [('rw', 8, 4, 24 * ceil(ROWS, 3 * SMS * 8), 'dram')]),
    row('layernorm backward', r'layernorm_backward_kernel<kernels::bf16.*bf16, 3, false>', 8 * ACTIVATION, 3 * SMS,
        128, [('rw', 8, 2, 24 * ceil(ROWS, 3 * SMS * 4), 'dram')], dynamic=3 * 4 * 32 * 24 * 4),
    elementwise('gelu forward', r'gelu_forward_kernel<kernels::bf16', 4 * ACTIVATION, 8192, 2, 2, 4),
    elementwise('gelu backward', r'gelu_backward_kernel<kernels::bf16', 4 * ACTIVATION, 8192, 4, 2, 6),
    # Of the qkv projection: 128 chunks of 512 rows, 9 slices of 32 packs; eight teams share a chunk's rows.
    row('bias gradient', r'column_sums_kernel<.*<32, 8, 16>, kernels::bf16', 2 * ROWS * 3 * CHANNELS, 128 * 9, 256,
        [('r', 2, 0, 512 // 8 * 8, 'dram')]),
    row('embedding forward', r'embedding_forward_kernel<kernels::bf16', 4 * ACTIVATION, ROWS // 8, 256,
        [('rw', 4, 2, 24, 'dram')], l2=6 * ACTIVATION),
    row('embedding backward, tokens', r'token_gradient_kernel<.*<32, 4, 16>, kernels::bf16',
        2 * ACTIVATION + 8 * TOKENS * CHANNELS, TOKENS * 3, 128, [('r', 2, 0, 8, 'dram')]),
    row('embedding backward, positions', r'position_gradient_kernel<.*<32, 4, 16>, kernels::bf16',
        2 * ACTIVATION + 4 * 1024 * CHANNELS, 1024 * 3, 128, [('r', 2, 0, 64 // 4 * 8, 'dram')]),
    row('gradient copy, fp32 to bf16', r'gradient_copy_kernel<kernels::bf16, float', 6 * PARAMETERS,
        ceil(PARAMETERS, 1024), 256, [('', 4, 2, 4, 'dram')]),
    row('gradient copy, bf16 added to fp32', r'gradient_copy_kernel<float, kernels::bf16', 10 * PARAMETERS,
        ceil(PARAMETERS, 1024), 256, [('', 4, 4, 4, 'dram')]),
    # A shard of 8 ranks: each thread adds 8 contributions to each of 4 packs.
    row('sum of 8 ranks', r'sum_ranks_kernel<kernels::bf16', 9 * 2 * PARAMETERS // 8, ceil(PARAMETERS // 8, 8192), 256,
        [('r', 2, 0, 8 * 8, 'dram')], entries=4),
    # 32 runs of 238 rows of 16,381 buckets
    row('sketch', r'sketch_runs_kernel', 4 * PARAMETERS, 64 * 32, 256, [('r', 4, 0, 238, 'dram')]),
    row('squared norms', r'squared_norms_kernel<.*0>', 4 * PARAMETERS, ceil(PARAMETERS, 16384), 256,
        [('r', 4, 0, 64, 'dram')]),
    row('squared norms and bf16', r'squared_norms_kernel<.*1>', 6 * PARAMETERS, ceil(PARAMETERS, 16384), 256,
        [('rw', 4, 2, 64, 'dram')]),
    elementwise('adamw', r'adamw_kernel<kernels::bf16, false, false', PARAMETERS, 4096, 16, 12, 30),
    elementwise('adamw, rounded stochastically', r'adamw_kernel<kernels::bf16, true, false', PARAMETERS,
                4096, 16, 12, 30),
    # Text generation. The head for one token: a warp computes two outputs, whose weights are one pass of six packs per
    # lane.
    row('few rows', r'few_rows_kernel<.*<kernels::bf16, 1, 32, 16>', 2 * PADDED * CHANNELS, PADDED // 8, 128,
        [('r', 3, 0, 2 * CHANNELS // 32, 'dram')], l2=3 * PADDED * CHANNELS),
    # 64 sequences of 1024 positions, one block per head: 32 warp-wide steps of eight keys and as many values.
    row('decode attention', r'decode_attention_kernel<.*<kernels::bf16, 8, 1, 16', 4 * ACTIVATION, 64 * 12, 128,
        [('r', 2, 0, 2 * 1024 * 64 // 128, 'dram')]),
]
