"""Story 1 on a GPU: a step of the default method beside plain training on the same two
mini-batches, and its memory.

    PYTHONPATH=src python benchmarks/stories/gpu.py [--rounds 5]

Language models of 40 and 150 million parameters, 16 general and 16 new texts of 256 words, AdamW
(fused), bfloat16. Times are wall times of 50 steps, one probe among them, in alternating rounds
after 200 steps. Without a GPU a small model runs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from language import LanguageModel, text_losses
from story import generator, seeded

sys.path.append(str(Path(__file__).parents[1] / "speed"))
from measuring import Checks, alternate

from fairbound import Constrained, DescentAscent, constraints

TEXTS = 16
SIZES = {"40 million": (16_000, 8, 512, 256, 8), "150 million": (16_000, 9, 1024, 256, 16)}
SMALL = {"small": (500, 1, 32, 16, 2)}
PLAIN, OURS, ASCENT = "plain training", "ours", "DescentAscent"
Step = Callable[[], None]


def step_of(name: str, size: tuple[int, ...], device: str) -> Step:
    with seeded(0):
        model = LanguageModel(*size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")
    texts = torch.randint(size[0], (8, 2 * TEXTS, size[3]), generator=generator(0)).to(device)
    # 0 for a general text, -1 for a new one
    groups = (torch.arange(2 * TEXTS, device=device) < TEXTS).long() - 1
    method = {PLAIN: None, OURS: None, ASCENT: DescentAscent()}[name]
    fair = Constrained(model, constraints.bounded_group_loss(["general text"], bound=9.0), method)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            losses = text_losses(model, texts[turn % 8])
        if name == PLAIN:
            (losses[:TEXTS].mean() + losses[TEXTS:].mean()).backward()
        else:
            fair.backward(losses, groups, objective=groups < 0)
        optimizer.step()

    return step


def peak(name: str, size: tuple[int, ...]) -> float:
    """GiB that the first steps need at their peak, a probe among them."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = step_of(name, size, "cuda")
    for _ in range(3):
        step()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    device, checks = "cuda" if torch.cuda.is_available() else "cpu", Checks()
    print(
        torch.cuda.get_device_name() if device == "cuda" else "no GPU here: a small model",
        torch.__version__,
    )
    for label, size in (SIZES if device == "cuda" else SMALL).items():
        count = sum(p.numel() for p in LanguageModel(*size).parameters())
        steps = {name: step_of(name, size, device) for name in (PLAIN, OURS, ASCENT)}

        def work(step: Step) -> int:
            for _ in range(50):
                step()
            if device == "cuda":
                torch.cuda.synchronize()
            return 50

        contestants = {
            name: lambda step=step, work=work: work(step) for name, step in steps.items()
        }
        times = alternate(contestants, rounds, warm=4)
        print(f"{label}: {count / 1e6:.1f} million parameters")
        for name, median in times.medians().items():
            own, plain = times.times[name], times.times[PLAIN]
            ratio = statistics.median(a.wall / b.wall for a, b in zip(own, plain, strict=True))
            print(f"  {name:16} {median.wall / 1e3:7.2f} ms a step")
            if name != PLAIN:
                checks.at_most(f"{name}, {label}, times {PLAIN}", ratio, 1.05)
        steps.clear()
        contestants.clear()
        if device == "cuda":
            for name in (PLAIN, OURS, ASCENT):
                print(f"  {name:16} {peak(name, size):7.2f} GiB at the peak")
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
