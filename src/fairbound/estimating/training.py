"""Candidates for a fitted model: methods, rows and inputs that differ in what moves the multipliers.

*Training rows*: descent-ascent, its multipliers moved by the rows that train. It meets a bound there, and may meet it
by fitting those rows alone. *Own rows*: the multipliers are moved by rows that the model never trains on, and the
gradient of the constraints is taken on noisy copies of the training rows, which cannot be memorised. A small group can
be equalised by raising its loss without limit, so the multipliers are capped; where it happens all the same, the
choice on selection rows sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.algorithms import SGD, DescentAscent
from fairbound.core import Algorithm
from fairbound.data.dataset import Dataset, Split
from fairbound.estimating.parts import Parts
from fairbound.estimating.people import People
from fairbound.fairness.cells import Cells
from fairbound.fairness.constraints import CellConstraint
from fairbound.fairness.limits import Limit
from fairbound.modules import ModuleForward
from fairbound.problem import Problem
from fairbound.runner import Run, run
from fairbound.sampling import Sampler, Take
from fairbound.schedules import Linear

COPIES = 4  # noisy copies of every training row
NOISE = 0.5  # their noise, in standard deviations of a column
OWN_BATCH = 256  # rows of each cell a step, where rows of their own move the multipliers: their noise moves the gap
CAP = 1.0  # on the multipliers then


@dataclass(frozen=True)
class Plan:
    """How to train."""

    steps: int
    batch: int
    rate: float
    seed: int
    compile: bool | None


@dataclass(frozen=True, eq=False)
class Candidate:
    """A run to be chosen from."""

    mode: str
    method: Algorithm[Any]
    sampler: Sampler


def row_loss(classes: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy of every row, from one logit or one for each class."""
    if classes <= 2:
        return lambda outputs, labels: nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return lambda outputs, labels: nn.functional.cross_entropy(outputs, labels.long(), reduction="none")


def weighted(people: People, limit: Limit | None, groups: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """Labels and the loss of a row; with weights, labels carry two more columns: its weight overall and in its cell."""
    loss = row_loss(people.classes)
    if people.weight is None:
        return people.y, loss
    within = people.weight.clone()
    if limit is not None:
        for member in limit.on(groups, people.y).cells.members:
            within[member] = people.weight[member] / people.weight[member].mean()
    labels = torch.stack([people.y.float(), people.weight, within], 1)
    return labels, lambda outputs, labels: loss(outputs, labels[:, 0]) * labels[:, 1]


def constraint_of(limit: Limit, people: People, groups: Tensor, labels: Tensor) -> CellConstraint:
    """The limit over rows; weighted means within cells where rows have weights."""
    found = limit.on(groups, labels if labels.ndim == 1 else labels[:, 0])
    if people.weight is None:
        return found
    plain = limit.value or row_loss(people.classes)
    return replace(found, value=lambda outputs, labels: plain(outputs, labels[:, 0]) * labels[:, 2])


class Training:
    """Data, problem and candidates of one fit."""

    def __init__(
        self, people: People, parts: Parts, limit: Limit | None, forward: ModuleForward, mode: str, plan: Plan
    ) -> None:
        self.plan, self.parts, self.people = plan, parts, people
        own = limit is not None and parts.kept_aside and mode != "training rows"
        X, labels, groups = people.X, people.y, people.groups
        labels, loss = weighted(people, limit, groups)
        noisy = torch.zeros(0, dtype=torch.long)
        if own:
            copied = parts.train.repeat(COPIES)
            generator = torch.Generator().manual_seed(plan.seed)
            noise = NOISE * torch.randn(len(copied), X.shape[1], generator=generator)
            noisy = torch.arange(len(X), len(X) + len(copied))
            X = torch.cat([X, X[copied] + noise])
            labels, groups = (torch.cat([column, column[copied]]) for column in (labels, groups))
        constraint = None if limit is None else constraint_of(limit, people, groups, labels)
        self.problem = Problem(forward, loss, constraint, Dataset(X, labels, {"group": groups}))
        self.modes = self._modes(mode, own)
        self._noisy = noisy

    def _modes(self, mode: str, own: bool) -> list[str]:
        if self.problem.constraint is None:
            return ["no limit"]
        if mode == "own rows" and not own:
            raise ValueError(
                "mode='own rows' needs rows kept aside, and the smallest group has too few for that; merge it, "
                "or use mode='training rows'"
            )
        return [name for name, asked in (("training rows", mode != "own rows"), ("own rows", own)) if asked]

    def candidate(self, mode: str, method: Algorithm[Any] | None) -> Candidate:
        """The run of a mode; `method` instead of ours."""
        tau = Linear(self.plan.rate, self.plan.steps)
        if mode == "no limit":
            return Candidate(mode, method or SGD(tau=tau), self._sampler(Split(self.parts.primal)))
        if mode == "training rows":
            chosen = method or DescentAscent(tau=tau, eta=self.plan.rate / 10, y_max=10.0)
            return Candidate(mode, chosen, self._sampler(Split(self.parts.primal)))
        split = Split(self.parts.train, self.parts.multipliers, self._noisy)
        chosen = DescentAscent(tau=tau, eta=self.plan.rate / 10, y_max=CAP, second=True)
        return Candidate(mode, chosen, self._own_sampler(split))

    def _cells(self) -> Cells | None:
        return None if self.problem.constraint is None else self.problem.constraint.cells

    def _most(self, split: Split, pool: str, wanted: int) -> int:
        """As many rows of each cell as wanted, or as the smallest cell has."""
        cells = self._cells()
        if cells is None:
            return wanted
        inside = cells.within(split.pool(pool), self.problem.data.rows)
        return max(1, min([wanted, *(len(member) for member in inside.members)]))

    def _sampler(self, split: Split) -> Sampler:
        rows = min(self.plan.batch, len(split.train))
        return Sampler(split, self._cells(), Take(rows, self._most(split, "train", self.plan.batch)), self.plan.seed)

    def _own_sampler(self, split: Split) -> Sampler:
        rows = min(self.plan.batch, len(split.train))
        pools = ("selection", "multipliers")  # the noisy copies stand where a split has its selection rows
        takes = [Take(rows, self._most(split, pool, OWN_BATCH), pool) for pool in pools]
        return Sampler(split, self._cells(), takes, self.plan.seed)

    def run(self, candidate: Candidate, x0: Tensor, records: int) -> Run:
        """Its run, with so many records."""
        return run(
            self.problem,
            candidate.method,
            candidate.sampler,
            x0,
            self.plan.steps,
            every=max(1, self.plan.steps // records),
            compile=self.plan.compile,
        )
