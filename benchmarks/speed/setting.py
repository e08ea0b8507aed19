"""What all parts of `make speed` have in common: the 9-64-32-1 net and people of the size of the paper's experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from measuring import Contestant
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import Problem, Sampler, Take, run
from fairbound.core import Algorithm
from fairbound.data import Dataset, Split
from fairbound.fairness import accuracy_equality
from fairbound.modules import functional

ROWS = 14_333  # Oklahoma's training rows
BOUND = 0.005


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))


def row_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return bce(outputs, labels, reduction="none")


def people(rows: int = ROWS, groups: int = 2, device: str = "cpu") -> Dataset:
    """Random rows: a step's time does not depend on what they say."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(rows, 9, generator=generator)
    y = (torch.rand(rows, generator=generator) < torch.sigmoid(X[:, 0])).float()
    data = Dataset(X, y, {"group": torch.randint(groups, (rows,), generator=generator)})
    return data if device == "cpu" else data.to(device)


class Stack:
    """Stacked runs of a method on some people; every call goes on by `chunk` steps."""

    def __init__(
        self,
        method: Algorithm[Any],
        runs: int,
        chunk: int,
        data: Dataset | None = None,
        take: Take = Take(objective=8, cell=8),  # noqa: B008  (frozen)
    ) -> None:
        data = people() if data is None else data
        self.data = data
        constraint = accuracy_equality(data.groups["group"], bound=BOUND)
        forward, x0 = functional(network())
        self.problem = Problem(forward, row_losses, constraint, data)
        takes: Take | Sequence[Take] = take
        sampler = Sampler(Split.all_train(data.rows), constraint.cells, takes, seed=0)
        points = x0.expand(runs, -1).to(data.X.device)
        self.run = run(self.problem, method, sampler.seeded(*range(runs)), points, 10**9, every=chunk, compile=True)
        self.records: Iterator[Any] = iter(self.run)
        self.work = runs * chunk

    def __call__(self) -> int:
        next(self.records)
        return self.work


def of_stack(method: Algorithm[Any], runs: int, chunk: int, **more: Any) -> Contestant:
    return Stack(method, runs, chunk, **more)
