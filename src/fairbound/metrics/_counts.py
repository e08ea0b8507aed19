"""One table of group x label x prediction, from which every count-based metric follows.

Examples may come batch by batch, weighted, with groups that some or all batches lack: tables add
up, and a group without examples is a row of zeros, whose rates are undefined (masked), never NaN
and never another group's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound._utils.sentences import did_you_mean
from fairbound.columns._vectors import (
    as_binary,
    as_numbers,
    as_vector,
    as_weights,
    group_names,
    same_length,
)

CountCell = tuple[int, int]  # label, prediction
TN, FP, FN, TP = CELLS = ((0, 0), (0, 1), (1, 0), (1, 1))
# A rate is a share of cells: the cells that count, out of the cells in the denominator.
RATES: dict[str, tuple[tuple[CountCell, ...], tuple[CountCell, ...]]] = {
    "base_rate": ((FN, TP), CELLS),
    "positive_rate": ((FP, TP), CELLS),
    "accuracy": ((TN, TP), CELLS),
    "inaccuracy": ((FP, FN), CELLS),
    "true_positive_rate": ((TP,), (FN, TP)),
    "false_negative_rate": ((FN,), (FN, TP)),
    "false_positive_rate": ((FP,), (TN, FP)),
    "true_negative_rate": ((TN,), (TN, FP)),
    "positive_predictive_value": ((TP,), (FP, TP)),
    "negative_predictive_value": ((TN,), (TN, FN)),
    "false_omission_rate": ((FN,), (TN, FN)),
}
NAMES = tuple(RATES)
WITHOUT_LABELS = ("positive_rate",)  # the rates that need no labels
# (rates, 4) which cells belong to the numerator and to the denominator of each rate
NUMERATORS, DENOMINATORS = (
    torch.tensor([[cell in rate[part] for cell in CELLS] for rate in RATES.values()]).double()
    for part in (0, 1)
)

Blocks = Sequence[tuple[str, Sequence[int]]]  # name, numbers of the groups that it pools


def members_of(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The groups of all blocks, one after the other, and the number of the block of each."""
    members = [group for _, groups in blocks for group in groups]
    block = [i for i, (_, groups) in enumerate(blocks) for _ in groups]
    return torch.tensor(members, dtype=torch.long), torch.tensor(block, dtype=torch.long)


class Rates(NamedTuple):
    """Every rate of every group, (rates, G) each."""

    values: Tensor  # (rates, G) 0 where undefined
    defined: Tensor  # (rates, G) whether any example is in the denominator
    successes: Tensor  # (rates, G) in effective examples: weights make fewer of them
    trials: Tensor  # (rates, G)

    def named(self, name: str) -> Rates:
        """One of the rates, (G,) each."""
        if name not in NAMES:
            raise ValueError(f"no rate is called {name!r}; there are {', '.join(NAMES)}")
        return Rates(*(part[NAMES.index(name)] for part in self))


@dataclass(frozen=True, eq=False)
class Counts:
    """Sums of weights, of squared weights and of examples by group, label and prediction.

    >>> counts = Counts.of([0, 1, 1], [0, 1, 0], [0, 0, 1], names=["A", "B", "C"])
    >>> counts.examples.sum((1, 2)).tolist()
    [2, 1, 0]
    >>> (counts + Counts.of([1], [1], [2], names=["A", "B", "C"])).rate("accuracy")
    (1.0, 0.0, 1.0)
    >>> counts.rate("accuracy")  # no example of C was seen
    (1.0, 0.0, None)
    """

    names: tuple[str, ...]  # of the groups
    weight: Tensor  # (G, 2, 2) float64, [group, label, prediction]
    squares: Tensor  # (G, 2, 2) float64, sums of squared weights: what is needed for intervals
    examples: Tensor  # (G, 2, 2) int64

    @staticmethod
    def of(
        labels: Any,
        predictions: Any,
        groups: Any,
        *,
        weights: Any = None,
        names: Sequence[str] = (),
    ) -> Counts:
        """The table of some examples.

        Args:
            labels: (n,) 0 or 1.
            predictions: (n,) 0 or 1.
            groups: (n,) the group 0, 1, ... of each example; -1: in no group, skipped.
            weights: (n,) not negative; None: 1.
            names: of the groups 0, 1, ..., absent ones included; empty: their numbers.
        """
        y, p = as_binary(labels, "labels"), as_binary(predictions, "predictions")
        g = as_numbers(groups)
        names = group_names(g, names)
        same_length(labels=y, predictions=p, groups=g)
        cell = (g * 4).add_(y, alpha=2).add_(p)
        inside = g >= 0 if g.numel() and int(g.min()) < 0 else slice(None)
        cell = cell[inside]

        def sums(part: Tensor | None) -> Tensor:
            table = torch.bincount(cell, part, minlength=4 * len(names))
            return table.reshape(len(names), 2, 2).cpu()

        examples = sums(None)
        if weights is None:
            return Counts(tuple(names), examples.double(), examples.double(), examples)
        w = as_weights(weights)
        same_length(labels=y, weights=w)
        w = w[inside]
        return Counts(tuple(names), sums(w), sums(w.square()), examples)

    @staticmethod
    def from_cells(cells: dict[str, tuple[float, float, float, float]]) -> Counts:
        """The table of published numbers: name -> (false positives, true negatives, false
        negatives, true positives)."""
        weight = torch.tensor(
            [[[tn, fp], [fn, tp]] for fp, tn, fn, tp in cells.values()], dtype=torch.float64
        )
        return Counts(tuple(cells), weight, weight, weight.long())

    def __add__(self, other: Counts) -> Counts:
        """Both together; groups are matched by name, and those that one lacks count as empty
        there."""
        listed, members = (*self.names, *other.names), dict[str, list[int]]()
        for i, name in enumerate(listed):
            members.setdefault(name, []).append(i)
        pairs = zip(self._parts, other._parts, strict=True)
        return Counts(listed, *map(torch.cat, pairs)).collapsed([*members.items()])

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.squares, self.examples

    def only(self, groups: Sequence[int]) -> Counts:
        """Some of the groups, by number."""
        return self.collapsed([(self.names[g], [g]) for g in groups])

    def collapsed(self, blocks: Blocks) -> Counts:
        """Groups pooled into blocks: (name, numbers of the groups)."""
        members, block = members_of(blocks)
        pooled = (
            part.new_zeros(len(blocks), 2, 2).index_add(0, block, part[members])
            for part in self._parts
        )
        return Counts(tuple(name for name, _ in blocks), *pooled)

    def overall(self) -> Counts:
        """All groups pooled into one."""
        return self.collapsed([("overall", range(len(self.names)))])

    def rates(self) -> Rates:
        """All rates of all groups at once."""
        weight, squares = self.weight.flatten(1), self.squares.flatten(1)
        in_top, in_all = NUMERATORS @ squares.T, DENOMINATORS @ squares.T
        return rates_of(NUMERATORS @ weight.T, DENOMINATORS @ weight.T, in_top, in_all - in_top)

    def rate(self, name: str) -> tuple[float | None, ...]:
        """One rate of every group; None where no example is in its denominator."""
        rate = self.rates().named(name)
        known = zip(rate.values.tolist(), rate.defined.tolist(), strict=True)
        return tuple(value if defined else None for value, defined in known)

    def sizes(self) -> Tensor:
        """(G,) examples of every group."""
        return self.examples.sum((1, 2))

    def largest(self, most: int) -> list[int]:
        """The numbers of the groups with the most examples, the largest first."""
        return self.sizes().argsort(descending=True, stable=True)[:most].tolist()

    def numbered(self, reference: str | None) -> int:
        """The number of the reference group; None: the largest one that has weight."""
        sizes = self.sizes() * (self.weight.sum((1, 2)) > 0)
        return numbered_reference(self.names, reference, sizes)


def rates_of(top: Tensor, total: Tensor, squares_in: Tensor, squares_out: Tensor) -> Rates:
    """Rates from the sums of weights in the numerator and in the denominator, and the sums of
    squared weights in the numerator and out of it.

    Trials are how many unweighted examples would give the rate the same variance: p (1-p) / Var,
    where Var = ((1-p)^2 sum_in w^2 + p^2 sum_out w^2) / (sum w)^2; but no more than Kish's
    (sum w)^2 / sum w^2, because Var is itself estimated, from few heavy examples, and too small
    where these happen to be on one side.
    """
    tiny = torch.finfo(total.dtype).tiny
    defined = total > 0
    rate = torch.where(defined, top / total.clamp(min=tiny), 0.0)
    kish = total.square() / (squares_in + squares_out).clamp(min=tiny)
    variance = (1 - rate).square() * squares_in + rate.square() * squares_out
    trials = rate * (1 - rate) * total.square() / variance.clamp(min=tiny)
    trials = torch.where((rate > 0) & (rate < 1), torch.minimum(trials, kish), kish)
    return Rates(rate, defined, rate * trials, trials)


def numbered_reference(names: Sequence[str], reference: str | None, sizes: Tensor) -> int:
    """The number of the reference group; None: the one with the largest of the sizes (G,), the
    first of equals."""
    if not names:
        raise ValueError("there are no groups, so there is nothing to compare")
    if reference is None:
        return int(sizes.argmax())
    if reference not in names:
        raise ValueError(f"no group is called {reference!r}; {did_you_mean(reference, names)}")
    return names.index(reference)


def examples_in_groups(
    values: Any, groups: Any, weights: Any, names: Sequence[str], what: str
) -> tuple[Tensor, Tensor, Tensor, tuple[str, ...]]:
    """Finite numbers of the examples that are in a group, in float64 on the CPU, with groups,
    weights and names."""
    numbers, g = as_vector(values).double().cpu(), as_numbers(groups).cpu()
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{int((~torch.isfinite(numbers)).sum())} {what} are NaN or infinite")
    w = torch.ones_like(numbers) if weights is None else as_weights(weights).cpu()
    same_length(**{what: numbers}, groups=g, weights=w)
    inside, listed = g >= 0, tuple(group_names(g, names))
    if bool(inside.all()):  # without copies
        return numbers, g, w, listed
    return numbers[inside], g[inside], w[inside], listed
