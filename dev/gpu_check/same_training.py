#!/usr/bin/env python3
"""Compares train_gpt2 with PyTorch: losses and gradient norms of every step from the same weights on the same tokens,
in fp32 and in bf16, with every attention method and with fused and unfused matmul epilogues.

    same_training.py PROGRAM --work FOLDER       # on the King James Bible (text.sh), with python3's torch and numpy
    same_training.py PROGRAM -i SHARD --work FOLDER --expect FILE     # PyTorch's numbers from a file, without PyTorch

Each run is compared with PyTorch's, and each further one in bf16 with the program's first. The last line is PASS;
otherwise each run that differs has a line FAIL: with the step, both values and the tolerance. Exit codes: 0 PASS, 1
FAIL, 2 invalid command line, 77 there is no text."""
import argparse
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from tool_main import OnceParser, files_of_pattern  # noqa: E402

# The largest tolerances, at any sizes: of the loss; of the norm at the first step, where the weights are still equal
# (a right build differs by 1.4e-5 in fp32, 4.6e-4 in bf16); of the norm at later steps, where rounding errors
# accumulate.
LIMITS = {"fp32": (1e-4, 5e-5, 5e-3), "bf16": (0.01, 0.002, 0.05)}
# Tolerances are FACTOR times the largest difference from PyTorch that was measured with a right build: DIFFERS, at the
# default sizes, or what --record measured at others. Each is the |difference| of a step's loss, in nats, and the
# relative |difference| of its gradient norm. Measurements: dev/results.
FACTOR = 4
DIFFERS = {"fp32": (3.2e-5, 7e-4), "bf16": (7.9e-3, 2e-3)}
HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.path.join(os.path.dirname(HERE), "peers", "peer_pytorch.py")
TEXT = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "gpu_check_text")  # packed by pack.sh
METHODS = ("flash", "plain", "cudnn")


class Failure(Exception):
    """A run that ended without its numbers. The text gives the reason."""


class Numbers:
    """Losses and gradient norms of a run, by step from 1; not finite for skipped steps. `ended`: the error that ended
    it."""

    def __init__(self, losses, norms, ended=""):
        self.losses, self.norms, self.ended = losses, norms, ended

    @classmethod
    def of_log(cls, events, ended):
        steps = {event["step"]: event for event in events if event["event"] in ("step", "skip")}

        def column(key):
            values = (steps[step].get(key) for step in sorted(steps))
            return [math.nan if value is None else value for value in values]
        return cls(column("loss"), column("grad_norm"), ended)


def difference(ours, theirs, whose, tolerances, steps):
    """The largest differences of loss and norm, and a description of the first out of tolerance, or nothing."""
    worst, fault = [0.0, 0.0], None
    for step, numbers in enumerate(zip(ours.losses, theirs.losses, ours.norms, theirs.norms), 1):
        for i, what in enumerate(("loss", "gradient norm")):
            one, other = numbers[2 * i:2 * i + 2]
            far = abs(one - other) / (other if i else 1)
            if not math.isfinite(far):
                far = math.inf
            worst[i] = max(worst[i], far)
            most = tolerances[i + (i == 1 and step > 1)]
            if far > most and not fault:
                one = f"{one:.6f}" if math.isfinite(one) else "not finite"
                fault = (f"step {step}: {what} {one}, {whose} {other:.6f}; differs by {far:.2g}"
                         f"{' of it' if i else ''}, tolerance {most:g}")
    if ours.ended:
        fault = (f"{fault}; " if fault else "") + ours.ended
    elif not fault and not len(ours.losses) == len(theirs.losses) == steps:
        fault = f"{len(ours.losses)} steps, {whose} {len(theirs.losses)}; expected {steps}"
    return worst, fault


def last_line(text):
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")


def size(text):
    model, batch, length = text.split()
    return {"model": model, "batch": int(batch), "length": int(length)}


def parse(words=None):
    parser = OnceParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("program", help="train_gpt2")
    add("-i", "--train-data", metavar="GLOB", help="token shards (default: those of text.sh)")
    add("--work", required=True, metavar="FOLDER", help="for checkpoints and logs; created, and left with the logs")
    add("--steps", type=int, default=40)
    # Higher rates, or no warm-up, are unstable at first and amplify rounding errors: dev/results.
    add("--lr", type=float, default=2e-4, help="peak learning rate (default %(default)s)")
    add("--warmup", type=int, default=10, help="steps of warm-up (default %(default)s)")
    add("--fp32", type=size, default="custom:l=4,h=6,c=384,t=256 8 256", metavar="'MODEL BATCH LENGTH'")
    add("--bf16", type=size, default="custom:l=6,h=12,c=768,t=1024 8 1024", metavar="'MODEL BATCH LENGTH'")
    add("--attention", nargs="*", default=METHODS, choices=METHODS, help="methods to test, if the build has them")
    add("--device", help="PyTorch's device (default: PyTorch's default)")
    add("--expect", metavar="FILE", help="PyTorch's numbers, recorded by --record with the same sizes and tokens")
    add("--record", metavar="FILE", help="write PyTorch's numbers for --expect")
    args = parser.parse_args(words)
    if not os.access(args.program, os.X_OK):
        parser.error(f'the program is "{args.program}"; expected an executable train_gpt2')
    if args.expect:
        with open(args.expect, encoding="utf-8") as file:
            args.recorded = json.load(file)
    os.makedirs(args.work, exist_ok=True)
    default = parser.parse_args([args.program, "--work", args.work])
    args.tolerance = {}
    for dtype in LIMITS:
        differs = None
        if args.expect:
            differs = args.recorded[dtype]["differs"]
        elif recipe(args, dtype) == recipe(default, dtype):
            differs = DIFFERS[dtype]
        args.tolerance[dtype] = tolerance(dtype, differs)
    if not args.train_data:
        made = subprocess.run([os.path.join(HERE, "text.sh"), os.path.dirname(args.program), TEXT], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if made.returncode:
            print(last_line(made.stdout))
            sys.exit(77)
        args.train_data = os.path.join(TEXT, "*.bin")
    return args


def tolerance(dtype, differs):
    """Of loss, first norm and later norms, where a right build's loss and norm differ by this much; None: unknown."""
    loss, norm = (FACTOR * far for far in differs or (math.inf, math.inf))
    return tuple(map(min, LIMITS[dtype], (loss, norm, norm)))


def recipe(args, dtype):
    """The settings that determine the numbers, besides the tokens."""
    return {**getattr(args, dtype), "steps": args.steps, "lr": args.lr, "warmup": args.warmup}


def flags(args, dtype, init, steps, lr):
    sizes = getattr(args, dtype)
    return ["-i", args.train_data, "-e", init, "-b", str(sizes["batch"]), "-t", str(sizes["length"]), "-x", str(steps),
            "-l", str(lr), "-u", str(min(args.warmup, steps)), "--dtype", dtype]


def run_program(args, name, dtype, init, steps, lr, *more):
    """Runs train_gpt2. Returns its output folder, the events of its log, and its error, if any."""
    out = os.path.join(args.work, re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"))
    shutil.rmtree(out, ignore_errors=True)
    command = [args.program, *flags(args, dtype, init, steps, lr), "-v", "0", "--noise-scale", "off", "-o", out, *more]
    with open(f"{out}.log", "w+") as log:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
        log.seek(0)
        ended = f"the program ended with {result.returncode}: {last_line(log.read())}" if result.returncode else ""
    try:
        with open(os.path.join(out, "log.jsonl")) as file:
            return out, [json.loads(line) for line in file], ended
    except FileNotFoundError:
        raise Failure(ended or "the program wrote no log") from None


def initial_models(args):
    """By dtype, a checkpoint folder with the initial weights: a step at a learning rate of 0 does not change them."""
    folders = {}
    for dtype in LIMITS:
        model = getattr(args, dtype)["model"]
        if model not in folders:
            out, _, ended = run_program(args, f"initial {dtype}", "fp32", model, 1, 0, "--tune=off")
            if ended:
                raise Failure(ended)
            folders[model] = os.path.join(out, "step_00000001")
    return {dtype: folders[getattr(args, dtype)["model"]] for dtype in LIMITS}


def variant(args, name, dtype, init, *more):
    out, events, ended = run_program(args, name, dtype, init, args.steps, args.lr, *more)
    for entry in os.listdir(out):
        if entry.startswith("step_"):
            shutil.rmtree(os.path.join(out, entry))
    return Numbers.of_log(events, ended), events[0]


class Peer:
    """PyTorch's run, started by the constructor."""

    def __init__(self, args, dtype, init):
        command = [sys.executable, PEER, *flags(args, dtype, init, args.steps, args.lr), "--no-compile"]
        if args.device:
            command += ["--device", args.device]
        self.log = os.path.join(args.work, f"pytorch_{dtype}.log")
        # With its own libraries: gpu_check.sh has added those of the packed program.
        libraries = os.environ.get("CALLERS_LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)

    def wait(self):
        status = self.process.wait()
        with open(self.log) as file:
            text = file.read()
        if status:
            raise Failure(f"peer_pytorch.py ended with {status}: {last_line(text)}")
        self.torch = re.search(r"^torch .*", text, re.M).group()
        steps = re.findall(r"^step \d+ loss (\S+) norm (\S+)", text, re.M)
        return Numbers([float(loss) for loss, _ in steps], [float(norm) for _, norm in steps])


def expected(args, dtype):
    """Reads recorded numbers; refuses those of other tokens or sizes."""
    recorded = args.recorded
    for what, here in (("tokens", fingerprint(args)), (dtype, recipe(args, dtype))):
        there = recorded[what] if what == "tokens" else {key: recorded[what].get(key) for key in here}
        if there != here:
            sys.exit(f"same_training.py: {args.expect} is of {what} {there}; expected {here}; record it again")
    return Numbers(recorded[dtype]["losses"], recorded[dtype]["norms"])


def fingerprint(args):
    digest = hashlib.sha256()
    for path in files_of_pattern(args.train_data):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


class Report:
    def __init__(self, args):
        self.args, self.faults = args, []
        self.differs = {dtype: [0.0, 0.0] for dtype in LIMITS}  # the largest differences so far
        print(f"{'run':<34} {'against':<15} {'first loss':>10} {'last loss':>10} {'loss differs':>13} "
              f"{'norm differs':>13}")

    def compare(self, name, dtype, ours, whose, theirs):
        worst, fault = difference(ours, theirs, whose, self.args.tolerance[dtype], self.args.steps)
        self.differs[dtype] = list(map(max, self.differs[dtype], worst))
        first, last = (ours.losses[0], ours.losses[-1]) if ours.losses else (math.nan, math.nan)
        print(f"{name:<34} {whose:<15} {first:>10.4f} {last:>10.4f} {worst[0]:>13.1e} {worst[1]:>12.2%} "
              f"{'FAIL' if fault else ''}".rstrip(), flush=True)
        if fault:
            self.add(f"{name}: {fault}")
        return not fault

    def failed(self, name, why):
        print(f"{name:<34} {why}")
        self.add(f"{name}: {why}")

    def add(self, fault):
        """Printed at once: a time limit may end the check before the last run."""
        self.faults.append(fault)
        print(f"FAIL: {fault}", flush=True)


# ---- forms of matrix products: the operations that the library fuses

def bare(_problem):
    return "bare"


def fused(problem):
    """The form with the most fused operations of kernels/matmul/product.cpp for a bf16 product."""
    if ", gelu" in problem:
        return "fused-gelu-bias" if "backward_input" in problem and ", bias" in problem else "fused-gelu"
    return "fused-residual" if ", residual" in problem else "bare"


def force(tune_file, to, form_of):
    """Copies a --tune-file with other forms of cuBLASLt's products. Returns whether there are any."""
    with open(tune_file) as file:
        choices = json.load(file)
    found = False
    for libraries in choices["devices"].values():
        for library, products in libraries.items():
            if library.startswith("cuBLASLt"):
                found = found or bool(products)
                for problem, choice in products.items():
                    choice["taken"] = form_of(problem)
    with open(to, "w") as file:
        json.dump(choices, file)
    return found


def forms_taken(start):
    """'5 fused-gelu, 7 bare': counts the forms of products in a run's start event."""
    taken = [choice["taken"].split()[0] for library, choices in start["choices"]["taken"].items()
             if library.startswith("cuBLASLt") for choice in choices.values()]
    return ", ".join(f"{taken.count(form)} {form}" for form in sorted(set(taken)))


# ---- the runs

def compare_fp32(args, report, init, peer):
    name = "fp32"
    ours, _ = variant(args, name, "fp32", init, "--tune=off")
    report.compare(name, "fp32", ours, "PyTorch's", peer())


def compare_bf16(args, report, init, peer):
    tune_file = os.path.join(args.work, "choices.json")
    name = "bf16"
    first, start = variant(args, name, "bf16", init, "--tune=auto", "--tune-file", tune_file)
    print(f"    {name}: attention: {start['attention'].split(',')[0]}; {start['matmul'].split(' (')[0]} "
          f"{forms_taken(start)}")
    theirs = peer()
    first_passes = report.compare(name, "bf16", first, "PyTorch's", theirs)
    if start["version"]["device"] != "cuda":
        print("    a CPU has one attention and one form of each product: no variants")
        return

    def compare(name, *more, forms=None):
        try:
            ours, begun = variant(args, name, "bf16", init, *more)
        except Failure as failure:
            if ": this build has no cuDNN" in str(failure):
                return print(f"    {name}: skipped: this build has no cuDNN")
            return report.failed(name, str(failure))
        if forms:
            print(f"    {name}: {forms_taken(begun)}")
        report.compare(name, "bf16", ours, "PyTorch's", theirs)
        if first_passes:  # otherwise its own line says everything
            report.compare(name, "bf16", ours, "the first run's", first)

    for method in args.attention:
        compare(f"bf16, --attention {method}", "--attention", method, "--tune=auto", "--tune-file", tune_file)
    for forms, form_of in (("fused", fused), ("bare", bare)):
        file = os.path.join(args.work, f"{forms}.json")
        if os.path.exists(tune_file) and force(tune_file, file, form_of):
            compare(f"bf16, {forms} epilogues", "--tune=auto", "--tune-file", file, forms=forms)


def main():
    args = parse()
    report = Report(args)
    recorded = {"tokens": fingerprint(args)}
    peers = {}
    try:
        inits = initial_models(args)
        if not args.expect:  # both run while this program does
            peers = {dtype: Peer(args, dtype, init) for dtype, init in inits.items()}
        for dtype, compare in (("fp32", compare_fp32), ("bf16", compare_bf16)):
            def peer(dtype=dtype):
                if args.expect:
                    return expected(args, dtype)
                numbers = peers[dtype].wait()
                print(f"    {peers[dtype].torch}")
                recorded[dtype] = {**recipe(args, dtype), "torch": peers[dtype].torch, "losses": numbers.losses,
                                   "norms": numbers.norms}
                return numbers
            try:
                compare(args, report, inits[dtype], peer)
            except Failure as failure:
                report.failed(dtype, str(failure))
    except Failure as failure:
        report.failed("the initial model", str(failure))
    finally:
        for peer in peers.values():
            peer.process.kill()
            peer.process.wait()
        for dtype in LIMITS:
            shutil.rmtree(os.path.join(args.work, f"initial_{dtype}"), ignore_errors=True)
    if args.record and not report.faults:
        for dtype, differs in report.differs.items():
            recorded[dtype]["differs"] = differs
        with open(args.record, "w") as file:
            # Each list is one line.
            file.write(re.sub(r"\[[^]]*\]", lambda numbers: json.dumps(json.loads(numbers[0])),
                              json.dumps(recorded, indent=1)) + "\n")
    if not report.faults:
        print("PASS")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
