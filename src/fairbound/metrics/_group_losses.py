"""Group losses and their gaps: means of per-example losses, with intervals from per-group moments.

Moments are kept about each group's mean, so that large losses that differ little lose no digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from fairbound.metrics._counts import examples_in_groups, numbered_reference
from fairbound.metrics._intervals import (
    DRAWS,
    FEWEST,
    MANY_GROUPS,
    UNDEFINED,
    IntervalEstimate,
    around,
    check_level,
    draws_for,
    estimates,
    largest,
    percentile,
    quantiles,
    resampled_means,
    spread,
    student_draws,
)


@dataclass(frozen=True, eq=False)
class Losses:
    """Sums of weights and moments of a loss by group.

    >>> losses = Losses.of([1.0, 3.0, 5.0], [0, 0, 1], names=["A", "B", "C"])
    >>> losses.means()
    (2.0, 5.0, None)
    """

    names: tuple[str, ...]  # of the groups
    examples: Tensor  # (G,) int64
    weight: Tensor  # (G,) sum of w
    mean: Tensor  # (G,) weighted mean; 0 without examples
    squares: Tensor  # (G,) sum of w^2
    first: Tensor  # (G,) sum of w^2 (loss - mean)
    second: Tensor  # (G,) sum of w^2 (loss - mean)^2

    @staticmethod
    def of(losses: Any, groups: Any, *, weights: Any = None, names: Sequence[str] = ()) -> Losses:
        """Of some examples: per-example losses; groups numbered 0, 1, ... (-1: in no group)."""
        loss, g, w, names = examples_in_groups(losses, groups, weights, names, "losses")
        size = len(names)
        examples = torch.bincount(g, minlength=size)
        weight = torch.bincount(g, w, minlength=size)
        mean = torch.bincount(g, w * loss, minlength=size) / weight.where(
            weight > 0, torch.ones_like(weight)
        )
        off = loss - mean[g]
        w2 = w.square()
        sums = (
            torch.bincount(g, part, minlength=size) for part in (w2, w2 * off, w2 * off.square())
        )
        return Losses(names, examples, weight, mean, *sums)

    def means(self) -> tuple[float | None, ...]:
        """The mean loss of every group; None for a group without examples."""
        return tuple(
            m if w > 0 else None
            for m, w in zip(self.mean.tolist(), self.weight.tolist(), strict=True)
        )

    def errors(self) -> tuple[Tensor, Tensor]:
        """(G,) standard errors of the means, and their degrees of freedom: effective examples -
        1."""
        ones = torch.ones_like(self.weight)
        weight, squares = (
            part.where(self.weight > 0, ones) for part in (self.weight, self.squares)
        )
        effective = weight.square() / squares
        variance = self.second / weight.square() * effective / (effective - 1).clamp(min=1e-9)
        return variance.clamp(min=0).sqrt(), (effective - 1).clamp(min=0)

    def pooled(self, members: Sequence[int], name: str) -> Losses:
        """Several groups as one."""
        if not len(members):
            raise ValueError("no group to pool")
        at = torch.as_tensor(members, dtype=torch.long)
        chosen = Losses(
            tuple(self.names[i] for i in members),
            *(getattr(self, f.name)[at] for f in fields(self)[1:]),
        )
        weight = chosen.weight.sum(0, keepdim=True)
        mean = (chosen.weight * chosen.mean).sum(0, keepdim=True) / weight.where(
            weight > 0, torch.ones_like(weight)
        )
        shift = chosen.mean - mean
        first = chosen.first + shift * chosen.squares
        second = chosen.second + 2 * shift * chosen.first + shift.square() * chosen.squares
        sums = (part.sum(0, keepdim=True) for part in (chosen.squares, first, second))
        return Losses((name,), chosen.examples.sum(0, keepdim=True), weight, mean, *sums)


def from_mean(losses: Tensor) -> Tensor:
    """Largest distance of a group's loss from the unweighted mean of the groups': eq. (4) of the
    paper."""
    return (losses - losses.mean(-1, keepdim=True)).abs().amax(-1)


LOSS_GAPS = {  # name -> words
    "loss": "mean loss, over all groups",
    "loss_difference": "difference in mean loss: all others minus the reference group",
    "largest_loss_gap": "difference in mean loss: largest minus smallest",
    "largest_loss_gap_from_mean": (
        "largest distance of a group's mean loss from the mean over groups"
    ),
}


def group_loss_intervals(
    losses: Losses, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> list[IntervalEstimate]:
    """Every group's mean loss with its interval. One example gives a value without an interval."""
    check_level(level)
    error, freedom = losses.errors()
    if len(losses.names) > MANY_GROUPS:  # the quantiles that the draws approach
        t = torch.from_numpy(stdtrit(freedom.clamp(min=1.0).numpy(), (1 + level) / 2))
        low, high = losses.mean - t * error, losses.mean + t * error
    else:
        drawn = [quantiles(column, level) for column in _draw(losses, draws, seed).unbind(1)]
        low, high = torch.tensor(drawn, dtype=torch.float64).reshape(-1, 2).unbind(1)
        low, high = low.minimum(losses.mean), high.maximum(losses.mean)
    return estimates(losses.mean, (low, high), losses.weight > 0, freedom > 0)


def loss_gaps(
    losses: Losses,
    reference: str | None = None,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, IntervalEstimate]:
    """The numbers of LOSS_GAPS. A gap over groups skips those with fewer than FEWEST examples:
    losses are skewed, and the spread of so few is uncertain."""
    check_level(level)
    present = (losses.weight > 0).nonzero().flatten().tolist()
    if not present:
        return dict.fromkeys(LOSS_GAPS, UNDEFINED)
    largest_group = int((losses.examples * (losses.weight > 0)).argmax())
    at = largest_group if reference is None else numbered_reference(losses.names, reference)
    others = [g for g in present if g != at]
    overall = losses.pooled(present, "overall")
    gaps = {"loss": group_loss_intervals(overall, level=level, draws=draws, seed=seed)[0]}
    signed = at in present and bool(others)
    gaps["loss_difference"] = (
        _signed(losses, others, at, level, draws, seed) if signed else UNDEFINED
    )
    usable = (losses.examples >= FEWEST) & (losses.weight > 0)
    if int(usable.sum()) < 2:
        return {**gaps, "largest_loss_gap": UNDEFINED, "largest_loss_gap_from_mean": UNDEFINED}
    (error, freedom), mean = losses.errors(), losses.mean[usable]
    resampling = (
        mean,
        error[usable],
        freedom[usable],
        draws_for(len(mean), draws),
        np.random.default_rng(seed),
    )
    ends = largest([resampled_means(*resampling)], level)
    gaps["largest_loss_gap"] = IntervalEstimate.within(float(spread(mean)), ends)
    value = float(from_mean(mean))
    gaps["largest_loss_gap_from_mean"] = IntervalEstimate.within(
        value, around(value, from_mean(student_draws(*resampling) - mean), level)
    )
    return gaps


def _signed(
    losses: Losses, others: Sequence[int], at: int, level: float, draws: int, seed: int
) -> IntervalEstimate:
    sides = losses.pooled(others, "others"), losses.pooled([at], "reference")
    columns = (torch.cat([getattr(side, f.name) for side in sides]) for f in fields(losses)[1:])
    pair = Losses(("others", "reference"), *columns)
    value = float(pair.mean[0] - pair.mean[1])
    if bool((pair.errors()[1] <= 0).any()):
        return IntervalEstimate(value)
    drawn = _draw(pair, draws, seed)
    return percentile(value, drawn[:, 0] - drawn[:, 1], level)


def _draw(losses: Losses, draws: int, seed: int) -> Tensor:
    error, freedom = losses.errors()
    rng = np.random.default_rng(seed)
    return student_draws(losses.mean, error, freedom, draws_for(len(losses.names), draws), rng)
