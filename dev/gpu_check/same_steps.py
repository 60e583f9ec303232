#!/usr/bin/env python3
"""same_steps.py [--exact] LOG LOG - compares what two runs of train_gpt2 printed: losses and gradient norms of every
step, within bf16's largest tolerances of step_numbers.py, or exactly

The last line is PASS or FAIL with the first step that differs. Exit codes: 0 PASS, 1 FAIL, 2 invalid command line."""
import re
import sys

from step_numbers import LIMITS, Numbers, difference

STEP = re.compile(r"^step +\d+/\d+ +\| +(\S+) +\S+e[-+]\d+ +(\S+) ", re.M)


def numbers(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            rows = STEP.findall(file.read())
        return Numbers([float(loss) for loss, _ in rows], [float(norm) for _, norm in rows])
    except OSError as error:
        sys.exit(f"FAIL: {path}: {error.strerror}")


def main():
    if len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    exact, logs = sys.argv[1:2] == ["--exact"], sys.argv[1:]
    if len(logs) != 2 + exact:
        print("error: expected two logs; see --help", file=sys.stderr)
        sys.exit(2)
    ours, theirs = map(numbers, logs[exact:])
    for step, row in enumerate(zip(ours.losses, theirs.losses, ours.norms, theirs.norms), 1):
        print(f"step {step}: losses {row[0]:g} and {row[1]:g}, norms {row[2]:g} and {row[3]:g}")
    tolerances = (0, 0, 0) if exact else LIMITS["bf16"]
    _, fault = difference(ours, theirs, "the other run's", tolerances, max(len(ours.losses), 1))
    print(f"FAIL: {fault}" if fault else "PASS")
    sys.exit(bool(fault))


if __name__ == "__main__":
    main()
