"""What a warm `Constrained.backward` runs through: Python calls, files, changes of file, and the
calls by function.

    python benchmarks/loop_calls.py [--functions]

Descent-ascent on losses of two groups, as in the README; SSL-ALM and a general method beside it.
Calls are those of functions of fairbound (torch's are not counted).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fairbound
from fairbound import SSLALM, Constrained, DescentAscent, constraints
from fairbound.algorithms import SQPAdam

HERE = str(Path(fairbound.__file__).parent)
METHODS = {
    "DescentAscent()": DescentAscent(),
    "SSLALM(samples=1)": SSLALM(samples=1),
    "SQPAdam()": SQPAdam(),
}


def traced(method: Any) -> list[tuple[str, str]]:
    """(file, function) of every call of one step, after five others."""
    model = nn.Linear(9, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=0.02), method)
    X, y, group = torch.randn(64, 9), torch.rand(64).round(), torch.arange(64) % 2
    calls: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HERE):
            calls.append((frame.f_code.co_filename[len(HERE) + 1 :], frame.f_code.co_qualname))

    for step in range(6):
        optimizer.zero_grad()
        losses = binary_cross_entropy_with_logits(model(X)[:, 0], y, reduction="none")
        sys.setprofile(profile if step == 5 else None)
        fair.backward(losses, group)
        sys.setprofile(None)
        optimizer.step()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--functions", action="store_true", help="list the functions of descent-ascent's step"
    )
    options = parser.parse_args()
    print(
        f"{'a warm backward()':<20} {'calls':>6} {'files':>6} {'changes of file':>16}"
        f" {'changes of folder':>18}"
    )
    for name, method in METHODS.items():
        calls = traced(method)
        files = [file for file, _ in calls]
        folders = [str(Path(file).parent) for file in files]
        changes, moves = (sum(a != b for a, b in pairwise(places)) for places in (files, folders))
        print(f"{name:<20} {len(calls):>6} {len(set(files)):>6} {changes:>16} {moves:>18}")
    if options.functions:
        for (file, function), count in Counter(traced(METHODS["DescentAscent()"])).most_common():
            print(f"{count:>4}  {file}: {function}")


if __name__ == "__main__":
    main()
