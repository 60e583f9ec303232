#!/usr/bin/env python3
"""kernel_table.py FILE - a table of the kernels of a step: launches, time, share, and ncu's metrics of each.

FILE is the output of kernel_times.cpp (KERNEL_TIMES), or of ncu with --csv --page raw --print-units base. A row
is a kernel at one launch grid; averages over its launches weigh them equally.
"""
import csv
import math
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field

NAME_WIDTH = 90
TIME, BYTES = "gpu__time_duration.sum", "dram__bytes.sum"
PERCENTAGES = {"lts__t_sector_hit_rate.pct": "L2 hit",
               "sm__warps_active.avg.pct_of_peak_sustained_active": "warps active",
               "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue active"}
STALL = re.compile(r"issue_stalled_(\w+?)_per_issue_active\.ratio$")


@dataclass
class Row:
    ns: float = 0
    launches: float = 0
    bytes: float = 0
    metrics: dict = field(default_factory=lambda: defaultdict(float))  # sums over launches


def number(text):
    """0 for values that ncu could not measure, such as "n/a"."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def demangled(names):
    if not shutil.which("c++filt"):
        return names
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return out.split("\n")[:len(names)]


def short(name):
    """The name without this project's namespaces, return type and parameters."""
    name = re.sub(r"kernels::|\(anonymous namespace\)::|^void ", "", name)
    end = name.find(">(")
    return name[:end + 1] if end >= 0 else name.split("(")[0]


def read_ncu(lines):
    """Kernels whose time ncu could not measure are left out."""
    rows = defaultdict(Row)
    for record in csv.DictReader(lines[next(i for i, line in enumerate(lines) if line.startswith('"ID"')):]):
        if not record["ID"] or None in record.values() or not number(record[TIME]) > 0:
            continue  # the row of units, a truncated row, no time
        row = rows[short(record["Kernel Name"]), re.sub(r"[() ]", "", record["Grid Size"])]
        row.ns += number(record[TIME])
        row.bytes += number(record.get(BYTES, "0"))
        row.launches += 1
        for key, value in record.items():
            if key in PERCENTAGES or STALL.search(key or ""):
                row.metrics[key] += number(value)
    return rows, {}


def read_times(lines):
    fields = [line.rstrip("\n").split("\t") for line in lines]
    fields = [f for f in fields if len(f) == 5 and number(f[0]) >= 0 and number(f[1]) > 0]
    rows, whole = defaultdict(Row), {}
    for (ns, launches, grid, _, _), name in zip(fields, demangled([f[4] for f in fields])):
        if name in ("step", "idle"):
            whole[name] = float(ns)
            continue
        row = rows[short(name), grid]
        row.ns += float(ns)
        row.launches += float(launches)
    return rows, whole


def measured(row):
    """The cells of ncu's metrics."""
    metrics = {key: value / row.launches for key, value in row.metrics.items()}
    cells = [f"{row.bytes / row.ns:.0f}"]
    cells += [f"{metrics[key]:.0f} %" if key in metrics else "-" for key in PERCENTAGES]
    stalls = {STALL.search(key)[1]: value for key, value in metrics.items() if STALL.search(key)}
    worst = max(stalls, key=stalls.get, default="")
    return cells + [f"{worst} {stalls[worst]:.1f}" if worst else "-"]


def main():
    if len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    if len(sys.argv) != 2:
        sys.exit("error: expected one argument, the file; see --help")
    try:
        with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError as error:
        sys.exit(f"error: {sys.argv[1]}: {error.strerror}")
    is_ncu = any(line.startswith('"ID"') for line in lines)
    rows, whole = read_ncu(lines) if is_ncu else read_times(lines)
    if not rows:
        sys.exit(f"error: {sys.argv[1]} lists no kernel; expected what ncu or kernel_times wrote")
    total = sum(row.ns for row in rows.values())
    launches = sum(row.launches for row in rows.values())
    more = ["GB/s", *PERCENTAGES.values(), "main stall"] if is_ncu else []
    print("| kernel | grid | launches | us each | ms | share |" + "".join(f" {name} |" for name in more))
    print("|---" * (6 + len(more)) + "|")
    for (name, grid), row in sorted(rows.items(), key=lambda item: -item[1].ns):
        cells = [f"`{name[:NAME_WIDTH]}`", grid, f"{row.launches:g}", f"{row.ns / row.launches / 1e3:.1f}",
                 f"{row.ns / 1e6:.3f}", f"{100 * row.ns / total:.1f} %", *(measured(row) if is_ncu else [])]
        print("| " + " | ".join(cells) + " |")
    print(f"| all | - | {launches:g} | {total / launches / 1e3:.1f} | {total / 1e6:.3f} | 100 % |" + " - |" * len(more))
    if whole.get("step") and "idle" in whole:
        print(f"\na whole step: {whole['step'] / 1e6:.3f} ms, of which nothing ran for {whole['idle'] / 1e6:.3f} ms "
              f"({100 * whole['idle'] / whole['step']:.1f} %)")


if __name__ == "__main__":
    main()
