"""A step of a large model on a GPU: transformer classifiers of 11, 42 and 184 million parameters
beside plain training.

    python benchmarks/speed/large.py [--texts 64] [--rounds 8] [--profile]

AdamW (fused), bfloat16 autocast, 64 texts of 128 tokens, loss parity of four groups. The small
models keep the GPU busy for a quarter to a half of the time, and launching is what is measured;
`--texts 512` keeps it busy. Times are wall times of several steps with the device waited for, in
alternating rounds; descent-ascent written by hand, which checks nothing, is timed beside them.
SSL-ALM with two mini-batches passes a second one through the model without a gradient; so does the
plain step that it is compared with. Memory is what a step needs at its peak beyond a plain step, in
vectors of the model's size (4 bytes a parameter). Without a GPU a small model runs, for the times
alone and without targets.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from measuring import Checks, Contestant, Rounds, alternate, machine, skip
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbound import (
    SSLALM,
    AdaptivePI,
    Algorithm,
    Constrained,
    DescentAscent,
    MiniBatch,
    constraints,
)

TOKENS, GROUPS = 128, 4
PLAIN, TWICE = "plain", "plain, and a second mini-batch forward"
HAND = "descent-ascent, by hand"
PI, DA, ALM, ALM2 = (
    "AdaptivePI",
    "descent-ascent",
    "SSL-ALM, one mini-batch",
    "SSL-ALM, two mini-batches",
)
COMPARED = {PI: PLAIN, DA: PLAIN, ALM: PLAIN, ALM2: TWICE}
VECTORS = {PI: 1.1, DA: 0.05, ALM: 1.1, ALM2: 1.1}
METHODS: dict[str, Algorithm[Any]] = {
    PI: AdaptivePI(),
    DA: DescentAscent(),
    ALM: SSLALM(samples=1),
    ALM2: SSLALM(),
}
Step = Callable[[], None]


class Size(NamedTuple):
    """A text classifier: BERT's small relatives, and DeBERTa's vocabulary on a base model."""

    words: int
    layers: int
    width: int
    steps: int  # in one round
    times: dict[str, float]  # the largest ratio to what it is compared with

    def model(self, device: str) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Classifier(self).to(device)


SIZES = (
    Size(30_522, 4, 256, 20, {PI: 1.15, DA: 1.05, ALM: 1.08, ALM2: 1.08}),
    Size(30_522, 8, 512, 20, {PI: 1.15, DA: 1.03, ALM: 1.06, ALM2: 1.06}),
    Size(128_000, 12, 768, 10, {PI: 1.15, DA: 1.02, ALM: 1.04, ALM2: 1.04}),
)
REDUCED = (Size(1_000, 2, 64, 2, {}),)


class Classifier(nn.Module):
    """Embeddings, a transformer encoder, and two classes from the mean of its outputs."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Parameter(0.02 * torch.randn(TOKENS, size.width))
        layer = nn.TransformerEncoderLayer(
            size.width,
            size.width // 64,
            4 * size.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.out = nn.Linear(size.width, 2)

    def forward(self, texts: Tensor) -> Tensor:
        logits: Tensor = self.out(self.encoder(self.words(texts) + self.places).mean(1))
        return logits


class Batches:
    """The same mini-batches for all, on the device."""

    def __init__(self, size: Size, device: str, texts: int, count: int = 8) -> None:
        generator = torch.Generator().manual_seed(0)
        self.device, self.turn = device, 0
        self.made = [
            [
                torch.randint(high, shape, generator=generator).to(device)
                for high, shape in (
                    (size.words, (texts, TOKENS)),
                    (2, (texts,)),
                    (GROUPS, (texts,)),
                )
            ]
            for _ in range(count)
        ]

    def losses(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Of the next mini-batch, and its groups."""
        self.turn += 1
        texts, labels, groups = self.made[self.turn % len(self.made)]
        with torch.autocast(self.device, torch.bfloat16):
            logits = model(texts)
        return cross_entropy(logits.float(), labels, reduction="none"), groups


def by_hand(
    device: str, bound: float = 0.02, eta: float = 0.1
) -> Callable[[Tensor, Tensor], Tensor]:
    """The same constraints written by hand: it does not wait for the device, and checks nothing."""
    y, ones = torch.zeros(2 * GROUPS, device=device), torch.ones(1, device=device)

    def lagrangian(losses: Tensor, groups: Tensor) -> Tensor:
        nonlocal y
        sums, counts = losses.new_zeros(2, GROUPS).unbind()
        counts = counts.index_add(0, groups, ones.expand(len(groups)))
        means = sums.index_add(0, groups, losses) / counts.clamp(min=1)
        gaps = means - means.mean()
        c = torch.cat([gaps, -gaps]) - bound
        total = losses.mean() + y @ c
        y = (y + eta * c.detach()).clamp(min=0)
        return total

    return lagrangian


def step_of(name: str, model: nn.Module, batches: Batches) -> Step:
    """A step of plain training, or of a method."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    method = METHODS.get(name)
    fair = method and Constrained(model, constraints.loss_parity(GROUPS, bound=0.02), method)
    lagrangian = by_hand(batches.device)

    def step() -> None:
        optimizer.zero_grad()
        further = []
        if name in (TWICE, ALM2):
            with torch.no_grad():
                further = [MiniBatch(*batches.losses(model))]
        losses, groups = batches.losses(model)
        if name == HAND:
            lagrangian(losses, groups).backward()
        elif fair is None:
            losses.mean().backward()
        else:
            fair.backward(losses, groups, extra_batches=further)
        optimizer.step()

    return step


def contestant(step: Step, steps: int, wait: Step) -> Contestant:
    def work() -> int:
        for _ in range(steps):
            step()
        wait()
        return steps

    return work


def ratio(found: Rounds, name: str, to: str) -> float:
    """Of wall times."""
    return statistics.median(
        a.wall / b.wall for a, b in zip(found.times[name], found.times[to], strict=True)
    )


def peak(name: str, size: Size, texts: int) -> float:
    """The memory that three steps need at their peak, in vectors of the model's size."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = size.model("cuda")
    step = step_of(name, model, Batches(size, "cuda", texts))
    for _ in range(3):
        step()
    return (torch.cuda.max_memory_allocated() - before) / (
        4 * sum(p.numel() for p in model.parameters())
    )


def measure(
    size: Size, device: str, texts: int, rounds: int, checks: Checks, profile: bool
) -> None:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    batches, steps = Batches(size, device, texts), {}
    for name in (PLAIN, TWICE, HAND, *METHODS):
        model = size.model(device)
        steps[name] = step_of(name, model, batches)
    where = f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters"
    found = alternate(
        {name: contestant(step, size.steps, wait) for name, step in steps.items()}, rounds, warm=12
    )
    print(where)
    for name, own in found.medians().items():
        print(f"  {name:<40} {own.wall / 1e3:7.2f} ms")
    print(
        f"  {HAND}: {ratio(found, HAND, PLAIN):.3g} times {PLAIN}; {DA}:"
        f" {ratio(found, DA, HAND):.3g} times {HAND}"
    )
    if profile and device == "cuda":
        profiled(steps[ALM])
    for name, to in COMPARED.items():
        if device == "cuda":
            checks.at_most(f"{name}, {where}, times {to}", ratio(found, name, to), size.times[name])
        else:
            print(f"  {name}: {ratio(found, name, to):.3g} times {to}")
    steps.clear()
    del model
    if device == "cuda":
        for name, to in COMPARED.items():
            extra = peak(name, size, texts) - peak(to, size, texts)
            checks.at_most(f"{name}, {where}, further vectors at the peak", extra, VECTORS[name])


def profiled(step: Step) -> None:
    """Where the time of three steps goes."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    print(
        profile.key_averages().table(
            sort_by="cuda_time_total", row_limit=20, max_name_column_width=60
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    checks = Checks()
    if not torch.cuda.is_available():
        skip("large models", "there is no NVIDIA GPU here; a small one in their place")
        print(machine())
        for size in REDUCED:
            measure(size, "cpu", 16, 2, checks, False)
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for size in SIZES:
        measure(size, "cuda", options.texts, options.rounds, checks, options.profile)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
