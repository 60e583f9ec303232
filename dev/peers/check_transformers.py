#!/usr/bin/env python3
# check_transformers.py - checks a checkpoint with Hugging Face's transformers
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tool_main import Parser, ToolError, fail, in_quotes, tool_main  # noqa: E402

SAYS = "Checks a checkpoint of train_gpt2 with Hugging Face's transformers."
EXAMPLES = """  check_transformers.py STEP_DIR --shard FILE --val-tokens 1048576 --seq-len 1024 [--expect-loss 3.2]

A shard is read in order: sequence s predicts tokens s * seq_len + 1 to (s + 1) * seq_len; the last sequence predicts
the rest of --val-tokens, as train_gpt2 --val-spread=off does. Exit code 1: the loss differs from --expect-loss by more
than --tolerance."""


def libraries():
    try:
        import numpy
        import torch
        import transformers
    except ImportError as error:
        fail(f"module {error.name}", "missing", "numpy, torch and transformers",
             "run it with a Python that has them (pip install torch transformers)", 1)
    transformers.utils.logging.disable_progress_bar()
    return numpy, torch, transformers


def open_model(args, torch, transformers):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(args.folder, output_loading_info=True,
                                                               dtype=torch.float32)
    faults = {kind: sorted(names) for kind, names in info.items() if names}
    if faults: fail(f"what loading {in_quotes(args.folder)} reports", faults, "all tensors and no other", exit_code=1)
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.folder}: {model.config.n_layer} layers, {model.config.n_embd} channels, "
          f"vocabulary {model.config.vocab_size}, {count} parameters")
    return model.eval()


def batches(targets, seq_len, size):
    """(first target, one past the last, targets per row): `size` rows at a time, a shorter last row on its own."""
    whole = targets // seq_len * seq_len
    for begin in range(0, whole, size * seq_len):
        yield begin, min(begin + size * seq_len, whole), seq_len
    if whole < targets:
        yield whole, targets, targets - whole


def shard_loss(args, model, numpy, torch):
    header = numpy.fromfile(args.shard, dtype="<i4", count=256)
    if header[:2].tolist() != [20240520, 1]:
        fail(f"the header of {in_quotes(args.shard)}", header[:2].tolist(), "[20240520, 1], of a token shard")
    tokens = numpy.memmap(args.shard, dtype="<u2", mode="r", offset=1024, shape=(int(header[2]),))
    seq_len = args.seq_len or model.config.n_positions
    if args.val_tokens < 1: fail("--val-tokens", args.val_tokens, "at least 1")
    targets = min(args.val_tokens, len(tokens) - 1)
    if targets < 1: fail(f"the number of tokens in {in_quotes(args.shard)}", len(tokens), "at least 2")
    total = 0.0
    for begin, end, row in batches(targets, seq_len, 4):
        chunk = torch.from_numpy(tokens[begin:end + 1].astype(numpy.int64))
        logits = model(chunk[:-1].view(-1, row)).logits
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), chunk[1:], reduction="sum").item()
    loss = total / targets
    print(f"loss {loss:.8f} over {targets} tokens" +
          (f", the whole shard; {args.val_tokens} were requested" if targets < args.val_tokens else ""))
    if args.expect_loss is not None:
        difference = abs(loss - args.expect_loss)
        print(f"expected {args.expect_loss:.8f}, difference {difference:.2e}, tolerance {args.tolerance:.0e}")
        return difference <= args.tolerance
    return True


def command_line():
    parser = Parser("check_transformers.py", SAYS, EXAMPLES)
    parser.add_argument("folder", nargs="?", metavar="STEP_DIR",
                        help="a folder step_XXXXXXXX, or any GPT-2 that transformers opens")
    parser.add_argument("--shard", metavar="FILE", help="token shard to compute the loss of")
    parser.add_argument("--val-tokens", type=int, default=1 << 20,
                        help="tokens of the shard to predict (default %(default)s)")
    parser.add_argument("--expect-loss", type=float, help="our loss over the same tokens")
    parser.add_argument("--seq-len", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    return parser


def run(args):
    if not args.folder or not args.shard: raise ToolError("pass STEP_DIR and --shard")
    for path in (args.folder, args.shard):
        if not os.path.exists(path): fail(in_quotes(path), "missing", "a file or folder")
    numpy, torch, transformers = libraries()
    with torch.no_grad():
        model = open_model(args, torch, transformers)
        good = shard_loss(args, model, numpy, torch)
    if not good: raise ToolError("DIFFERENT", 1)


if __name__ == "__main__": sys.exit(tool_main(command_line(), run))
