#!/usr/bin/env python3
# check_transformers.py - checks a checkpoint with Hugging Face's transformers
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tool_main import Parser, ToolError, fail, in_quotes, tool_main  # noqa: E402

SAYS = "Checks a checkpoint of train_gpt2 with Hugging Face's transformers."
EXAMPLES = """    check_transformers.py STEP_DIR --tokens 1,2,3                   logits and loss of one sequence
    check_transformers.py MODEL.bin --tokens 1,2,3                  the same for a model in llm.c's format
    check_transformers.py STEP_DIR --token-ids IDS --logits LOGITS  compare with our logits; exit 1 above --tolerance
    check_transformers.py STEP_DIR --shard FILE --val-tokens 1048576 --seq-len 1024 [--expect-loss 3.2]
    check_transformers.py STEP_DIR --hellaswag FILE --seq-len 1024 [--expect-acc 0.2859 --expect-acc-norm 0.2955]

IDS is raw int32, LOGITS raw float32 (rows x vocabulary), both little-endian, rows in sequences of --seq-len (default:
one sequence). A shard is read in order: sequence s predicts tokens s * seq_len + 1 to (s + 1) * seq_len; the last
sequence predicts the rest of --val-tokens, as train_gpt2 --val-spread=off does."""


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


def expect_header(path, magic, versions, numpy):
    """The 256 words at the beginning of a file in one of llm.c's formats."""
    header = numpy.fromfile(path, dtype="<i4", count=256)
    if len(header) < 256 or header[0] != magic or header[1] not in versions:
        fail(f"the header of {in_quotes(path)}", header[:2].tolist(), f"{magic}, then one of {versions}")
    return header


def read_llmc(path, numpy, torch, transformers):
    """Reads a model in llm.c's format (llmc/weights/llmc_file.h), independently of our reader."""
    header = expect_header(path, 20240326, (3, 5), numpy)
    positions, vocabulary, layers, heads, channels, padded = header[2:8].tolist()
    if header[1] == 3:
        data = numpy.fromfile(path, dtype="<f4", offset=1024)
    else:  # the upper halves of fp32
        data = (numpy.fromfile(path, dtype="<u2", offset=1024).astype("<u4") << 16).view("<f4")
    data = torch.from_numpy(data)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, n_head=heads, n_embd=channels, n_positions=positions, vocab_size=vocabulary))
    body, blocks = model.transformer, model.transformer.h
    used = 0

    def fill(parameter, rows=None):
        nonlocal used
        matrix = parameter.dim() == 2 and rows is None  # (in, out) in transformers, (out, in) in llm.c
        shape = tuple(parameter.shape[::-1]) if matrix else (rows or len(parameter), *parameter.shape[1:])
        count = int(numpy.prod(shape))
        values = data[used:used + count].view(shape)
        parameter.data.copy_(values.T if matrix else values[:len(parameter)])
        used += count

    fill(body.wte.weight, padded)
    fill(body.wpe.weight, positions)
    for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
        for kind in ("weight", "bias"):
            for block in blocks:
                fill(getattr(block.get_submodule(part), kind))
    fill(body.ln_f.weight)
    fill(body.ln_f.bias)
    if used != len(data): fail(f"the number of values in {in_quotes(path)}", len(data), used)
    return model


def open_model(args, numpy, torch, transformers):
    if args.folder.endswith(".bin"):
        model = read_llmc(args.folder, numpy, torch, transformers)
    else:
        model = from_pretrained(args, torch, transformers)
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.folder}: {model.config.n_layer} layers, {model.config.n_embd} channels, "
          f"vocabulary {model.config.vocab_size}, {count} parameters")
    return model.to(torch.float64 if args.float64 else torch.float32).eval()


def from_pretrained(args, torch, transformers):
    model, info = transformers.GPT2LMHeadModel.from_pretrained(args.folder, output_loading_info=True,
                                                               dtype=torch.float32)
    faults = {kind: sorted(names) for kind, names in info.items() if names}
    if faults: fail(f"what loading {in_quotes(args.folder)} reports", faults, "all tensors and no other", exit_code=1)
    return model


def sequences(ids, seq_len, limit, source):
    seq_len = seq_len or len(ids)
    if seq_len < 1 or len(ids) % seq_len or seq_len > limit:
        fail(source, f"{len(ids)} ids in sequences of {seq_len}", f"whole sequences of at most {limit}",
             "change --seq-len")
    return ids.reshape(-1, seq_len)


def batches(targets, seq_len, size):
    """(first target, one past the last, targets per row): `size` rows at a time, a shorter last row on its own."""
    whole = targets // seq_len * seq_len
    for begin in range(0, whole, size * seq_len):
        yield begin, min(begin + size * seq_len, whole), seq_len
    if whole < targets:
        yield whole, targets, targets - whole


def shard_loss(args, model, numpy, torch):
    header = expect_header(args.shard, 20240520, (1,), numpy)
    tokens = numpy.memmap(args.shard, dtype="<u2", mode="r", offset=1024, shape=(int(header[2]),))
    seq_len = args.seq_len or model.config.n_positions
    if args.val_tokens < 1: fail("--val-tokens", args.val_tokens, "at least 1")
    targets = min(args.val_tokens, len(tokens) - 1)
    if targets < 1: fail(f"the number of tokens in {in_quotes(args.shard)}", len(tokens), "at least 2")
    total = 0.0
    for begin, end, row in batches(targets, seq_len, args.batch):
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


def hellaswag(args, model, numpy, torch):
    """acc and acc_norm of a file in llm.c's format, scored independently of our code, one example at a time."""
    header = expect_header(args.hellaswag, 20240522, (1,), numpy)
    words = numpy.fromfile(args.hellaswag, dtype="<u2", offset=1024).astype(numpy.int64)
    most = args.seq_len or model.config.n_positions
    at, right, right_norm = 0, 0, 0
    for i in range(int(header[2])):
        parts, label = [], int(words[at + 3]) if at + 5 < len(words) else 0
        at += 5
        for _ in range(5):  # the context and four endings
            parts.append(words[at + 1:at + 1 + int(words[at])] if at < len(words) else words[:0])
            at += 1 + len(parts[-1])
        if at > len(words) or not all(map(len, parts)) or max(map(len, parts[1:])) > most:
            fail(f"example {i} of {in_quotes(args.hellaswag)}", "truncated or too long",
                 f"a whole file with endings of at most {most} tokens")
        sums, means = [], []
        for ending in parts[1:]:
            tokens = torch.from_numpy(numpy.concatenate([parts[0], ending]))[-(most + 1):]
            logits = model(tokens[None, :-1]).logits[0].double()
            nats = torch.nn.functional.cross_entropy(logits[-len(ending):], tokens[-len(ending):], reduction="none")
            # Rounded to fp32, whose sums in fp64 are exact: equal endings stay equal. Ties: the first ending.
            sums.append(nats.float().double().sum().item())
            means.append(sums[-1] / len(ending))
        finite = all(map(math.isfinite, sums))
        right += finite and sums.index(min(sums)) == label
        right_norm += finite and means.index(min(means)) == label
    if at != len(words): fail(f"the number of words after the last example of {args.hellaswag}", len(words) - at, 0)
    count, good = int(header[2]), True
    for name, found, expected in (("acc", right / count, args.expect_acc),
                                  ("acc_norm", right_norm / count, args.expect_acc_norm)):
        against = f", expected {expected:.6f}" if expected is not None else ""
        print(f"{name} {found:.6f} over {count} examples{against}")
        good = good and (expected is None or abs(found - expected) < 0.5 / count)
    return good


def check_logits(args, model, numpy, torch):
    if args.tokens:
        ids, source = numpy.array([int(text) for text in args.tokens.split(",")]), "--tokens"
    else:
        ids, source = numpy.fromfile(args.token_ids, dtype="<i4"), args.token_ids
    vocabulary = model.config.vocab_size
    if len(ids) == 0 or ids.min() < 0 or ids.max() >= vocabulary:
        fail(source, f"{len(ids)} ids", f"at least one, all from 0 to {vocabulary - 1}")
    batch = torch.from_numpy(sequences(ids, args.seq_len, model.config.n_positions, source).astype(numpy.int64))
    theirs = model(batch).logits
    if batch.shape[1] > 1:
        loss = torch.nn.functional.cross_entropy(theirs[:, :-1].flatten(0, 1).double(), batch[:, 1:].flatten())
        print(f"loss {loss.item():.8f} of predicting each next token")
    theirs = theirs.flatten(0, 1).double().numpy()
    print(f"logits {theirs.shape}: mean {theirs.mean():.6f}, largest {abs(theirs).max():.6f}, "
          f"last row starts {theirs[-1, :4].round(5).tolist()}")
    if not args.logits:
        return True
    ours = numpy.fromfile(args.logits, dtype="<f4").astype(numpy.float64)
    if ours.size != theirs.size:
        fail(f"the number of values in {in_quotes(args.logits)}", ours.size,
             f"{theirs.shape[0]} rows x {vocabulary} = {theirs.size}")
    difference = abs(ours.reshape(theirs.shape) - theirs)
    row, column = numpy.unravel_index(difference.argmax(), difference.shape)
    print(f"largest difference {difference.max():.3e} at row {row}, id {column}; mean {difference.mean():.3e}; "
          f"tolerance {args.tolerance:.0e}")
    return bool(difference.max() <= args.tolerance)  # false for NaN too


def command_line():
    parser = Parser("check_transformers.py", SAYS, EXAMPLES)
    parser.add_argument("folder", nargs="?", metavar="STEP_DIR",
                        help="a folder step_XXXXXXXX, any GPT-2 that transformers opens, or a model .bin of llm.c")
    parser.add_argument("--tokens", help="ids separated by commas")
    parser.add_argument("--token-ids", metavar="FILE", help="raw int32 ids")
    parser.add_argument("--logits", metavar="FILE", help="our logits of the same ids, raw float32")
    parser.add_argument("--shard", metavar="FILE", help="token shard to compute the loss of")
    parser.add_argument("--val-tokens", type=int, default=1 << 20,
                        help="tokens of the shard to predict (default %(default)s)")
    parser.add_argument("--expect-loss", type=float, help="our loss over the same tokens")
    parser.add_argument("--hellaswag", metavar="FILE", help="HellaSwag examples to score the model on")
    parser.add_argument("--expect-acc", type=float, help="HellaSwag acc of train_gpt2 (summed loss of an ending)")
    parser.add_argument("--expect-acc-norm", type=float, help="HellaSwag acc_norm of train_gpt2 (mean loss per token)")
    parser.add_argument("--seq-len", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4, help="sequences at a time (default %(default)s)")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--float64", action="store_true", help="compute in fp64")
    parser.add_argument("-h", "--help", action="store_true", help="print this help and exit")
    return parser


def run(args):
    if not args.folder or sum(map(bool, (args.tokens, args.token_ids, args.shard, args.hellaswag))) != 1:
        raise ToolError("pass STEP_DIR and one of --tokens, --token-ids, --shard and --hellaswag")
    if args.logits and args.shard: fail("--logits", "set with --shard", "--tokens or --token-ids")
    for path in filter(None, (args.folder, args.token_ids, args.logits, args.shard, args.hellaswag)):
        if not os.path.exists(path): fail(in_quotes(path), "missing", "a file or folder")
    numpy, torch, transformers = libraries()
    with torch.no_grad():
        model = open_model(args, numpy, torch, transformers)
        check = shard_loss if args.shard else hellaswag if args.hellaswag else check_logits
        good = check(args, model, numpy, torch)
    if not good: raise ToolError("DIFFERENT", 1)


if __name__ == "__main__": sys.exit(tool_main(command_line(), run))
