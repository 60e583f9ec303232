#!/usr/bin/env python3
"""same_steps.py [--exact] LOG LOG - compares what two runs of train_gpt2 printed: losses and gradient norms of every
step, within bf16's largest tolerances of step_numbers.py, or exactly
same_steps.py --times LOG - checks that no step from the second on took a quarter more or less than their median

The last line is PASS or FAIL with the first step that differs. Exit codes: 0 PASS, 1 FAIL, 2 invalid command line."""
import re
import statistics
import sys

from step_numbers import LIMITS, Numbers, difference

STEP = re.compile(r"^step +\d+/\d+ +\| +(\S+) +\S+e[-+]\d+ +(\S+) +(\S+) ", re.M)


def columns(path):
    """Losses, gradient norms and milliseconds of all steps."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [list(map(float, column)) for column in zip(*STEP.findall(file.read()))] or [[], [], []]
    except OSError as error:
        sys.exit(f"FAIL: {path}: {error.strerror}")


def times(path):
    ms = columns(path)[2][1:]
    if len(ms) < 2:
        sys.exit(f"FAIL: {len(ms)} steps after the first; expected two or more")
    median = statistics.median(ms)
    for step, one in enumerate(ms, 2):
        if abs(one - median) > median / 4:
            sys.exit(f"FAIL: step {step}: {one:g} ms, the median {median:g} ms")
    print(f"{len(ms)} steps of {min(ms):g} to {max(ms):g} ms\nPASS")


def main():
    if len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    exact, logs = sys.argv[1:2] == ["--exact"], sys.argv[1:]
    if logs[:1] == ["--times"] and len(logs) == 2:
        times(logs[1])
        return
    if len(logs) != 2 + exact or "--times" in logs:
        print("error: expected two logs; see --help", file=sys.stderr)
        sys.exit(2)
    ours, theirs = (Numbers(*columns(log)[:2]) for log in logs[exact:])
    for step, row in enumerate(zip(ours.losses, theirs.losses, ours.norms, theirs.norms), 1):
        print(f"step {step}: losses {row[0]:g} and {row[1]:g}, norms {row[2]:g} and {row[3]:g}")
    tolerances = (0, 0, 0) if exact else LIMITS["bf16"]
    _, fault = difference(ours, theirs, "the other run's", tolerances, max(len(ours.losses), 1))
    print(f"FAIL: {fault}" if fault else "PASS")
    sys.exit(bool(fault))


if __name__ == "__main__":
    main()
