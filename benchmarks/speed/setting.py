"""What all parts of `make speed` have in common: the 9-64-32-1 net, and as many examples as the
paper has."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import BatchSpec, Problem, Sampler, run
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Algorithm
from fairbound.data import Dataset, Split
from fairbound.training._functional import make_functional
from fairbound.training._runner import Run

EXAMPLES = 14_333  # Oklahoma's training examples
BOUND = 0.005


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(9, 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
            nn.Flatten(0),
        )


def example_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return bce(outputs, labels, reduction="none")


def examples(count: int = EXAMPLES, groups: int = 2, device: str = "cpu") -> Dataset:
    """Random examples: a step's time does not depend on what they say."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(count, 9, generator=generator)
    y = (torch.rand(count, generator=generator) < torch.sigmoid(X[:, 0])).float()
    data = Dataset(X, y, {"group": torch.randint(groups, (count,), generator=generator)})
    return data if device == "cpu" else data.to(device)


class Stack:
    """Stacked runs of a method on some data; every call goes on by at least `chunk` steps.

    Examples are drawn in blocks of many steps. A call does a whole number of blocks: otherwise some
    would draw nothing, and the median would be theirs or the others', not the mean of both.
    """

    def __init__(
        self,
        method: Algorithm[Any],
        runs: int,
        chunk: int,
        data: Dataset | None = None,
        take: BatchSpec = BatchSpec(objective=8, cell=8),  # noqa: B008  (frozen)
    ) -> None:
        data = examples() if data is None else data
        constraint = pairwise_loss_parity(len(data.groups["group"].unique()), bound=BOUND).bind(
            data.groups["group"]
        )
        forward, x0 = make_functional(network())
        problem = Problem(forward, example_losses, constraint, data)
        samplers = Sampler(Split.all_train(data.rows), constraint.cells, take, seed=0).seeded(
            *range(runs)
        )
        points = x0.expand(runs, -1).to(data.X.device)

        def started(every: int) -> Run:
            return run(problem, method, samplers, points, 10**9, every=every, compile=True)

        self.steps = in_blocks(chunk, started(chunk)._groups[0])
        self.run = started(self.steps)
        self.records: Iterator[Any] = iter(self.run)
        self.work = runs * self.steps

    def __call__(self) -> int:
        next(self.records)
        return self.work


def in_blocks(chunk: int, group: Any) -> int:
    """The least whole number of drawing blocks that has `chunk` steps; random sizes are drawn step
    by step."""
    return (
        chunk
        if group.tables is not None
        else ceil(chunk / group._block_size()) * int(group._block_size())
    )
