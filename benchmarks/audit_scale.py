"""`fairbound audit` at scale: seconds, CPU seconds and peak memory of whole commands.

    OMP_NUM_THREADS= python benchmarks/audit_scale.py [small] [groups] [rows]

small:   3,000 rows, threads by default (one) beside all cores
groups:  10^6 rows in 10^5 groups, with scores and intervals (target: 60 s, 2 GB)
rows:    5 million rows with 6 unused columns, a CSV file that is streamed, with and without
intervals
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CASES = ("small", "groups", "rows")
COMMAND = [sys.executable, "-c", "from fairbound.cli import main; main()", "audit"]


def write(path: Path, rows: int, groups: int, unused: int = 0) -> None:
    """Rows of label, score, group and columns that no audit needs, in parts that fit into
    memory."""
    rng = np.random.default_rng(0)
    filler = ",".join(f"free text of column {i}" for i in range(unused))
    with path.open("w") as file:
        file.write(",".join(["y", "p", "g", *(f"u{i}" for i in range(unused))]) + "\n")
        for start in range(0, rows, 250_000):
            size = min(250_000, rows - start)
            y, g = rng.integers(0, 2, size), rng.integers(0, groups, size)
            p = np.clip(rng.beta(2, 3, size) + 0.2 * y, 0, 1).round(4)
            lines = zip(y.tolist(), p.tolist(), g.tolist(), strict=True)
            tail = "," + filler if unused else ""
            file.write("".join(f"{a},{b},group {c}{tail}\n" for a, b, c in lines))


def measure(path: Path, *options: str) -> str:
    """Wall seconds, CPU seconds and peak memory of one audit."""
    start = time.perf_counter()
    given = [str(path), "--label", "y", "--score", "p", "--group", "g", *options]
    process = subprocess.Popen([*COMMAND, *given], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    words = "failed" if process.returncode else f"{time.perf_counter() - start:6.1f} s"
    return f"{words}  {used.ru_utime + used.ru_stime:6.1f} CPU s  {used.ru_maxrss / 1e6:5.2f} GB"


def main(cases: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        for case in cases or CASES:
            if case == "small":
                write(path, 3_000, 20)
                runs = {"one thread": (), "all cores": ("--threads", str(os.cpu_count() or 1))}
            elif case == "groups":
                write(path, 1_000_000, 100_000)
                runs = {"with intervals": (), "without": ("--no-intervals",)}
            else:
                write(path, 5_000_000, 9, unused=6)
                runs = {"with intervals": (), "without": ("--no-intervals",)}
            for name, options in runs.items():
                print(
                    f"{case:7} {name:15} {path.stat().st_size / 1e6:6.0f} MB "
                    f" {measure(path, *options)}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
