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

from fairbound.columns._vectors import (
    as_binary,
    as_numbers,
    as_vector,
    as_weights,
    group_names,
    same_length,
)

# A rate is a share of cells [label, prediction]: the cells that count, out of the cells in the
# denominator.
RATES: dict[str, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]] = {
    "base_rate": (((1, 0), (1, 1)), ((0, 0), (0, 1), (1, 0), (1, 1))),
    "positive_rate": (((0, 1), (1, 1)), ((0, 0), (0, 1), (1, 0), (1, 1))),
    "accuracy": (((0, 0), (1, 1)), ((0, 0), (0, 1), (1, 0), (1, 1))),
    "inaccuracy": (((0, 1), (1, 0)), ((0, 0), (0, 1), (1, 0), (1, 1))),
    "true_positive_rate": (((1, 1),), ((1, 0), (1, 1))),
    "false_negative_rate": (((1, 0),), ((1, 0), (1, 1))),
    "false_positive_rate": (((0, 1),), ((0, 0), (0, 1))),
    "true_negative_rate": (((0, 0),), ((0, 0), (0, 1))),
    "positive_predictive_value": (((1, 1),), ((0, 1), (1, 1))),
    "negative_predictive_value": (((0, 0),), ((0, 0), (1, 0))),
    "false_omission_rate": (((1, 0),), ((0, 0), (1, 0))),
}
WITHOUT_LABELS = ("positive_rate",)  # the rates that need no labels


def _masks(which: int) -> Tensor:
    """(rates, 4) which cells belong to each rate's numerator (0) or denominator (1)."""
    masks = torch.zeros(len(RATES), 2, 2, dtype=torch.float64)
    for i, cells in enumerate(RATES.values()):
        for label, prediction in cells[which]:
            masks[i, label, prediction] = 1.0
    return masks.flatten(1)


NUMERATORS, DENOMINATORS = _masks(0), _masks(1)
NAMES = tuple(RATES)


Blocks = Sequence[tuple[str, Sequence[int]]]  # name, numbers of the groups that it pools


def members_of(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The groups of all blocks, one after the other, and the number of the block of each."""
    members = [group for _, groups in blocks for group in groups]
    block = [i for i, (_, groups) in enumerate(blocks) for _ in groups]
    return torch.tensor(members, dtype=torch.long), torch.tensor(block, dtype=torch.long)


class Rates(NamedTuple):
    """Every rate of every group."""

    values: Tensor  # (rates, G) 0 where undefined
    defined: Tensor  # (rates, G) whether any example is in the denominator
    successes: Tensor  # (rates, G) in effective examples: weights make fewer of them
    trials: Tensor  # (rates, G)


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
        """The table of some examples. Labels and predictions are 0 or 1; groups are numbered 0, 1,
        ... (-1: in none) and `names` gives theirs, absent ones included."""
        y, p, g = (
            as_binary(labels, "labels"),
            as_binary(predictions, "predictions"),
            as_numbers(groups),
        )
        names = group_names(g, names)
        same_length(labels=y, predictions=p, groups=g)
        cell = (g * 4).add_(y, alpha=2).add_(p)
        inside = g >= 0 if g.numel() and int(g.min()) < 0 else None
        if inside is not None:
            cell = cell[inside]
        size, shape = 4 * len(names), (len(names), 2, 2)
        examples = torch.bincount(cell, minlength=size).reshape(shape).cpu()
        if weights is None:
            return Counts(tuple(names), examples.double(), examples.double(), examples)
        w = as_weights(weights)
        same_length(labels=y, weights=w)
        if inside is not None:
            w = w[inside]
        weight = torch.bincount(cell, w, minlength=size).reshape(shape).cpu()
        squares = torch.bincount(cell, w.square(), minlength=size).reshape(shape).cpu()
        return Counts(tuple(names), weight, squares, examples)

    @staticmethod
    def from_cells(cells: dict[str, tuple[float, float, float, float]]) -> Counts:
        """From published numbers: name -> (false positives, true negatives, false negatives, true
        positives)."""
        weight = torch.tensor(
            [[[tn, fp], [fn, tp]] for fp, tn, fn, tp in cells.values()], dtype=torch.float64
        )
        return Counts(tuple(cells), weight, weight, weight.long())

    def __add__(self, other: Counts) -> Counts:
        """Both together; groups are matched by name, and those that one lacks count as empty
        there."""
        names = tuple(dict.fromkeys((*self.names, *other.names)))
        mine, theirs = (
            counts.collapsed([(name, [place[name]] if name in place else []) for name in names])
            for counts in (self, other)
            for place in [{name: i for i, name in enumerate(counts.names)}]
        )
        return Counts(
            names,
            mine.weight + theirs.weight,
            mine.squares + theirs.squares,
            mine.examples + theirs.examples,
        )

    def only(self, groups: Sequence[int]) -> Counts:
        """Some of the groups, by number."""
        return self.collapsed([(self.names[g], [g]) for g in groups])

    def collapsed(self, blocks: Blocks) -> Counts:
        """Groups pooled into blocks: (name, numbers of the groups)."""
        members, block = members_of(blocks)
        parts = (self.weight, self.squares, self.examples)
        pooled = (
            part.new_zeros(len(blocks), 2, 2).index_add(0, block, part[members]) for part in parts
        )
        return Counts(tuple(name for name, _ in blocks), *pooled)

    def overall(self) -> Counts:
        """All groups pooled into one."""
        return self.collapsed([("overall", range(len(self.names)))])

    def rates(self) -> Rates:
        """All rates of all groups at once."""
        weight, squares = self.weight.flatten(1), self.squares.flatten(1)
        top, total = NUMERATORS @ weight.T, DENOMINATORS @ weight.T
        defined = total > 0
        value = torch.where(defined, top / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)
        in_top, in_all = NUMERATORS @ squares.T, DENOMINATORS @ squares.T
        trials = _effective(value, total, in_top, in_all - in_top)
        return Rates(value, defined, value * trials, trials)

    def rate(self, name: str) -> tuple[float | None, ...]:
        """One rate of every group; None where no example is in its denominator."""
        if name not in NAMES:
            raise ValueError(f"no rate is called {name!r}; there are {', '.join(NAMES)}")
        rates, at = self.rates(), NAMES.index(name)
        return tuple(
            v if ok else None
            for v, ok in zip(rates.values[at].tolist(), rates.defined[at].tolist(), strict=True)
        )

    def sizes(self) -> Tensor:
        """(G,) examples of every group."""
        return self.examples.sum((1, 2))


def _effective(rate: Tensor, total: Tensor, squares_in: Tensor, squares_out: Tensor) -> Tensor:
    """How many unweighted examples would give the rate the same variance: p (1-p) / Var, where
    Var = ((1-p)^2 sum_in w^2 + p^2 sum_out w^2) / (sum w)^2; but no more than Kish's (sum w)^2 /
    sum w^2, because Var is itself estimated, from few heavy examples, and too small where these
    happen to be on one side.
    """
    tiny = torch.finfo(total.dtype).tiny
    kish = total.square() / (squares_in + squares_out).clamp(min=tiny)
    spread = (1 - rate).square() * squares_in + rate.square() * squares_out
    inner = rate * (1 - rate) * total.square() / spread.clamp(min=tiny)
    return torch.where((rate > 0) & (rate < 1), torch.minimum(inner, kish), kish)


def numbered_reference(names: Sequence[str], reference: str) -> int:
    """The number of the reference group."""
    if reference not in names:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ValueError(f"the reference group {reference!r} is none of {shown}")
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
