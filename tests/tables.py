"""Random examples for the tests of constraints, as numpy arrays, and a model whose gradients can be
read off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fairbound import constraints
from fairbound.constraints import Constraint
from fairbound.constraints._contrasts import pairwise

EXAMPLES, GROUPS = 60, 3


class Table(NamedTuple):
    """One logit or one per class, a loss that has nothing to do with them, groups, labels,
    weights."""

    logit: np.ndarray  # (examples,)
    logits: np.ndarray  # (examples, 3)
    loss: np.ndarray  # (examples,)
    group: np.ndarray  # (examples,) 0, 1, 2, or -1
    label: np.ndarray  # (examples,) 0 or 1
    kind: np.ndarray  # (examples,) 0, 1 or 2: the label of several classes
    weight: np.ndarray  # (examples,)

    def mean(self, values: np.ndarray, chosen: np.ndarray, weighted: bool) -> float:
        """The mean over some examples, as the definition has it."""
        weight = self.weight if weighted else np.ones(len(values))
        return float((values * weight)[chosen].sum() / weight[chosen].sum())

    def by_group(
        self, values: np.ndarray, weighted: bool, inside: np.ndarray | None = None
    ) -> list[float]:
        """The mean of every group, within some examples."""
        inside = np.ones(EXAMPLES, bool) if inside is None else inside
        return [self.mean(values, (self.group == g) & inside, weighted) for g in range(GROUPS)]


def table(seed: int) -> Table:
    """No group is without examples of any label."""
    rng = np.random.default_rng(seed)
    group = rng.integers(-1, GROUPS, EXAMPLES)
    group[:6] = [0, 1, 2, 0, 1, 2]
    label, kind = rng.integers(0, 2, EXAMPLES), rng.integers(0, 3, EXAMPLES)
    label[:6], kind[:6] = [0, 0, 0, 1, 1, 1], [1, 1, 1, 2, 2, 2]
    logit, logits, losses = (
        rng.normal(size=EXAMPLES),
        rng.normal(size=(EXAMPLES, 3)),
        rng.exponential(size=EXAMPLES),
    )
    return Table(logit, logits, losses, group, label, kind, rng.random(EXAMPLES) + 0.1)


class Free(nn.Module):
    """A model whose parameters are its outputs and losses on the examples of a table: any gradient
    can be read off."""

    def __init__(self, t: Table, outputs: str = "logit") -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(getattr(t, outputs)))
        self.losses = nn.Parameter(torch.tensor(t.loss))


def two(bound: float) -> Constraint:
    """The losses of A and B differ by at most a bound."""
    return constraints.loss_parity(["A", "B"], bound=bound, contrast=pairwise)


def skewed(
    rng: np.random.Generator, *sizes: int, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Groups and exponential losses of mean 1; those of the last group shifted."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return groups, rng.exponential(size=len(groups)) + shift * (groups == len(sizes) - 1)
