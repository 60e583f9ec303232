#!/usr/bin/env python3
"""The same training run in PyTorch, the reference for train_gpt2's speed and loss.

Model, initial deviations, optimizer groups, schedule and order of the data are those of train_gpt2; the kernels are
PyTorch's (torch.compile, scaled_dot_product_attention, fused AdamW). With --init set to a checkpoint folder both start
from the same weights.

    peer_pytorch.py -e d12 -i 'data/train_*.bin' -b 4 -t 1024 -d 32768 -x 100 --dtype bf16
"""
import argparse
import contextlib
import json
import math
import os
import resource
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from tool_main import OnceParser, files_of_pattern  # noqa: E402

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as missing:
    sys.exit(f"peer_pytorch.py: module {missing.name} is missing; expected numpy and torch; "
             "run it with a Python that has them (pip install torch numpy)")

BY_DEPTH = {6: (384, 6), 12: (768, 12), 24: (1024, 16), 36: (1280, 20), 48: (1600, 25), 60: (1920, 30),
            72: (2880, 30), 84: (3456, 36)}


def stop(message):
    sys.exit(f"peer_pytorch.py: {message}")


class Attention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(channels, 3 * channels)
        self.c_proj = nn.Linear(channels, channels)

    def forward(self, x):
        batch, length, channels = x.shape
        q, k, v = self.c_attn(x).view(batch, length, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(out.transpose(1, 2).reshape(batch, length, channels))


class MLP(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.c_fc = nn.Linear(channels, 4 * channels)
        self.c_proj = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(channels), Attention(channels, heads)
        self.ln_2, self.mlp = nn.LayerNorm(channels), MLP(channels)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """Returns the mean loss. The head is the token table; the softmax runs over the real vocabulary."""

    def __init__(self, layers, heads, channels, positions, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.wte = nn.Embedding((vocabulary + 127) // 128 * 128, channels)
        self.wpe = nn.Embedding(positions, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.wte.weight[vocabulary:] = 0

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)[..., :self.vocabulary]
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def load_weights(model, folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    data = np.memmap(os.path.join(folder, "model.safetensors"), dtype=np.uint8, mode="r", offset=8 + length)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, entry in header.items():
            key = name.removeprefix("transformer.")
            if key not in parameters:
                continue
            if entry["dtype"] != "F32":
                stop(f"{folder}: tensor {name}: the dtype is {entry['dtype']}; expected F32")
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[begin:end].tobytes(), dtype="<f4").reshape(entry["shape"])
            value = torch.from_numpy(array.copy())
            parameter = parameters.pop(key)
            if value.dim() == 2 and key.startswith("h."):
                value = value.t()
            parameter[:value.shape[0]] = value
    if parameters:
        stop(f"{folder}: tensors {sorted(parameters)[:3]} are missing; expected a whole GPT-2")


def make_model(text, vocabulary):
    """A size by name or a checkpoint folder. Returns the model."""
    if os.path.isdir(text):
        with open(os.path.join(text, "config.json")) as file:
            config = json.load(file)
        model = GPT2(config["n_layer"], config["n_head"], config["n_embd"], config["n_positions"], config["vocab_size"])
        load_weights(model, text)
        return model
    if text.startswith("custom:"):
        try:
            pairs = (pair.split("=") for pair in text.removeprefix("custom:").split(","))
            sizes = {key: int(value) for key, value in pairs}
            return GPT2(sizes["l"], sizes["h"], sizes["c"], sizes.get("t", 1024), sizes.get("v", vocabulary))
        except (KeyError, ValueError):
            stop(f"--init is {text}; expected custom:l=4,h=4,c=128[,t=1024][,v=257]")
    if text[:1] == "d" and text[1:].isdigit() and int(text[1:]) in BY_DEPTH:
        channels, heads = BY_DEPTH[int(text[1:])]
        return GPT2(int(text[1:]), heads, channels, 1024, vocabulary)
    stop(f"--init is {text}; expected one of {', '.join(f'd{depth}' for depth in BY_DEPTH)}, custom:... "
         "or a checkpoint folder")


class Shards:
    """Token shards in byte order of their names."""

    def __init__(self, pattern):
        self.tokens, self.vocabulary = [], 50257
        for path in files_of_pattern(pattern):
            header = np.fromfile(path, dtype="<i4", count=256)
            if len(header) < 256 or header[0] != 20240520 or header[1] != 1:
                stop(f"{path}: the header is {header[:2].tolist()}; expected [20240520, 1]; name token shards only")
            self.tokens.append(np.memmap(path, dtype="<u2", mode="r", offset=1024, shape=(int(header[2]),)))
            self.vocabulary = int(header[3]) or 50257
        if not self.tokens:
            stop(f"{pattern}: no file; expected token shards")

    def batches(self, rows, length):
        """Yields micro-batches in order, endlessly. Skips the rest of a shard that is shorter than a micro-batch."""
        size = rows * length
        if all(len(tokens) <= size for tokens in self.tokens):
            stop(f"--micro-batch {rows} x --seq-len {length}: no shard holds {size + 1} tokens; "
                 "expected a smaller batch")
        while True:
            for tokens in self.tokens:
                for first in range(0, len(tokens) - size, size):
                    chunk = torch.from_numpy(tokens[first:first + size + 1].astype(np.int64))
                    yield chunk[:-1].view(rows, length), chunk[1:].view(rows, length)


def learning_rate(step, args):
    if step < args.warmup_steps:
        return args.lr * (step + 1) / args.warmup_steps
    least = args.lr / 10
    progress = (step - args.warmup_steps) / (args.max_steps - args.warmup_steps)
    return least + 0.5 * (1 + math.cos(math.pi * progress)) * (args.lr - least)


def parse():
    parser = OnceParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-e", "--init", default="d12")
    add("-i", "--train-data", required=True)
    add("-b", "--micro-batch", type=int, default=4)
    add("-t", "--seq-len", type=int, default=1024)
    add("-d", "--total-batch-tokens", type=int, default=0, help="tokens per update (default: one micro-batch)")
    add("-x", "--max-steps", type=int, default=20)
    add("--max-minutes", type=float, default=math.inf)
    add("-l", "--lr", type=float, default=6e-4)
    add("-u", "--warmup-steps", type=int, default=0)
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast, fp32 master weights")
    add("--threads", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seed", type=int, default=1337)
    add("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    micro = args.micro_batch * args.seq_len
    args.total_batch_tokens = args.total_batch_tokens or micro
    if micro < 1 or args.total_batch_tokens % micro:
        parser.error(f"-d is {args.total_batch_tokens}; expected a multiple of micro-batch * seq-len = {micro}")
    if args.warmup_steps > args.max_steps:
        parser.error(f"--warmup-steps is {args.warmup_steps}; expected at most --max-steps {args.max_steps}")
    return args


def main():
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    shards = Shards(args.train_data)
    model = make_model(args.init, shards.vocabulary)
    if args.seq_len > model.wpe.num_embeddings:
        stop(f"--seq-len is {args.seq_len}; expected at most the model's {model.wpe.num_embeddings}")
    model.to(args.device)
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    cudnn = f", cuDNN {torch.backends.cudnn.version()}" if torch.backends.cudnn.is_available() else ""
    print(f"torch {torch.__version__}{cudnn}, {args.device}, {torch.get_num_threads()} threads, "
          f"compile {args.compile}, dtype {args.dtype}, {args.total_batch_tokens} tokens a step")

    run = torch.compile(model) if args.compile else model
    device_type = torch.device(args.device).type
    mixed = args.dtype == "bf16"
    precision = (lambda: torch.autocast(device_type, torch.bfloat16)) if mixed else contextlib.nullcontext
    data = shards.batches(args.micro_batch, args.seq_len)
    micro_batches = args.total_batch_tokens // (args.micro_batch * args.seq_len)
    start, times = time.perf_counter(), []
    for step in range(args.max_steps):
        if time.perf_counter() - start > 60 * args.max_minutes:
            break
        begun, loss_sum = time.perf_counter(), 0.0
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        for _ in range(micro_batches):
            tokens, targets = (part.to(args.device) for part in next(data))
            with precision():
                loss = run(tokens, targets)
            (loss / micro_batches).backward()
            loss_sum += loss.detach()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = float(loss_sum) / micro_batches  # waits for the device
        if device_type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begun))
        print(f"step {step} loss {value:.6f} norm {float(norm):.6f} lr {optimizer.param_groups[0]['lr']:.4e} "
              f"ms {times[-1]:.1f} tokens/s {args.total_batch_tokens / times[-1] * 1000:.0f}", flush=True)

    if timed := times[3:]:  # without compilation and warm-up
        median = statistics.median(timed)
        print(f"median {median:.1f} ms of {len(timed)} steps, {args.total_batch_tokens / median * 1000:.0f} tokens/s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB resident"
          + (f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB on the device" if device_type == "cuda" else ""))


if __name__ == "__main__":
    main()
