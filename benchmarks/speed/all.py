"""All of `make speed`: every part in a process of its own, then what was met and what was missed.

python benchmarks/speed/all.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PARTS = ("loop", "stacked", "ghost", "shares", "scale", "gpu")


def main() -> int:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    lines: list[str] = []
    failed = []
    for part in PARTS:
        print(f"\n== {part}", flush=True)
        script = Path(__file__).with_name(f"{part}.py")
        work = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
        assert work.stdout is not None
        for line in work.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        if work.wait() not in (0, 1):
            failed.append(part)
    met, missed = ([line for line in lines if line.startswith(word)] for word in ("met", "MISSED"))
    print(f"\n{len(met)} met, {len(missed)} missed" + "".join(f"\n{line.rstrip()}" for line in missed))
    for part in failed:
        print(f"{part} ended with an error")
    return 1 if missed or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
