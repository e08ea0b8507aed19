"""Group losses and their gaps: means of per-example losses, with intervals from per-group moments.

Moments are kept about each group's mean, so that large losses that differ little lose no digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from fairbound.metrics._counts import (
    Blocks,
    examples_in_groups,
    members_of,
    numbered_reference,
)
from fairbound.metrics._intervals import (
    DRAWS,
    FEWEST,
    MANY_GROUPS,
    UNDEFINED,
    IntervalEstimate,
    around,
    check_level,
    estimates,
    largest_of_means,
    percentile,
    quantiles,
    student_draws,
)


class Losses(NamedTuple):
    """Sums of weights and moments of a loss by group.

    >>> losses = Losses.of([1.0, 3.0, 5.0], [0, 0, 1], names=["A", "B", "C"])
    >>> losses.mean.tolist(), losses.examples.tolist()
    ([2.0, 5.0, 0.0], [2, 1, 0])
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
        """The table of some examples.

        Args:
            losses: (n,) the finite loss of each example.
            groups: (n,) the group 0, 1, ... of each example; -1: in no group, skipped.
            weights: (n,) not negative; None: 1.
            names: of the groups 0, 1, ..., absent ones included; empty: their numbers.
        """
        loss, g, w, names = examples_in_groups(losses, groups, weights, names, "losses")
        zero = torch.zeros(1, dtype=loss.dtype)
        return _pooled(names, g, torch.ones_like(w), w, loss, w.square(), zero, zero)

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

    def collapsed(self, blocks: Blocks) -> Losses:
        """Groups pooled into blocks: (name, numbers of the groups)."""
        members, block = members_of(blocks)
        parts = (part[members] for part in self[1:])
        return _pooled(tuple(name for name, _ in blocks), block, *parts)


def _pooled(
    names: tuple[str, ...],
    block: Tensor,
    examples: Tensor,
    weight: Tensor,
    mean: Tensor,
    squares: Tensor,
    first: Tensor,
    second: Tensor,
) -> Losses:
    """The moments of blocks from those of their parts, which are about means of their own."""

    def sums(part: Tensor) -> Tensor:
        return torch.bincount(block, part, minlength=len(names))

    total = sums(weight)
    center = sums(weight * mean) / total.where(total > 0, torch.ones_like(total))
    shift = mean - center[block]
    return Losses(
        names,
        sums(examples).long(),
        total,
        center,
        sums(squares),
        sums(first + shift * squares),
        sums(second + 2 * shift * first + shift.square() * squares),
    )


def from_mean(losses: Tensor) -> Tensor:
    """Largest distance of a group's loss from the unweighted mean of the groups': eq. (4) of the
    paper."""
    return (losses - losses.mean(-1, keepdim=True)).abs().amax(-1)


_CROSS_ENTROPY = "cross-entropy of the scores"
LOSS_GAPS = {  # name -> words, source
    "loss": ("mean loss, over all groups", _CROSS_ENTROPY),
    "loss_difference": (
        "difference in mean loss: all others minus the reference group",
        _CROSS_ENTROPY,
    ),
    "largest_loss_gap": ("difference in mean loss: largest minus smallest", _CROSS_ENTROPY),
    "largest_loss_gap_from_mean": (
        "largest distance of a group's mean loss from the mean over groups",
        "the paper, eq. (4)",
    ),
}


def group_loss_intervals(
    losses: Losses, *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> list[IntervalEstimate]:
    """Every group's mean loss with its interval. One example gives a value without an interval.

    Args:
        losses: the moments of all groups.
        level: of the intervals, each for one group alone.
        draws: of what the means may be; many groups get fewer.
        seed: of the draws.
    """
    check_level(level)
    error, freedom = losses.errors()
    if len(losses.names) > MANY_GROUPS:  # the quantiles that the draws approach
        t = torch.from_numpy(stdtrit(freedom.clamp(min=1.0).numpy(), (1 + level) / 2))
        ends = losses.mean - t * error, losses.mean + t * error
    else:
        ends = quantiles(
            student_draws(losses.mean, error, freedom, draws, np.random.default_rng(seed)), level
        )
    return estimates(losses.mean, ends, losses.weight > 0, freedom > 0)


def loss_gaps(
    losses: Losses,
    reference: str | None = None,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[dict[str, IntervalEstimate], tuple[int, int] | None]:
    """The numbers of LOSS_GAPS, and the two groups with the largest and the smallest mean loss.

    A gap over groups skips those with fewer than FEWEST examples: losses are skewed, and the spread
    of so few is uncertain.

    Args:
        losses: the moments of all groups.
        reference: name of the group that all others are compared with; None: the largest one.
        level: of the intervals.
        draws: of what the means may be; many groups get fewer.
        seed: of the draws.
    """
    check_level(level)
    gaps = dict.fromkeys(LOSS_GAPS, UNDEFINED)
    present = (losses.weight > 0).nonzero().flatten().tolist()
    if not present:
        return gaps, None
    sizes = losses.examples * (losses.weight > 0)
    at = numbered_reference(losses.names, reference, sizes)
    others = [g for g in present if g != at]
    overall = losses.collapsed([("overall", present)])
    gaps["loss"] = group_loss_intervals(overall, level=level, draws=draws, seed=seed)[0]
    if at in present and others:
        pair = losses.collapsed([("others", others), ("reference", [at])])
        value, (error, freedom) = float(pair.mean[0] - pair.mean[1]), pair.errors()
        gaps["loss_difference"] = IntervalEstimate(value)
        if bool((freedom > 0).all()):
            drawn = student_draws(pair.mean, error, freedom, draws, np.random.default_rng(seed))
            gaps["loss_difference"] = percentile(value, drawn[:, 0] - drawn[:, 1], level)
    usable = (sizes >= FEWEST).nonzero().flatten()
    if len(usable) < 2:
        return gaps, None
    mean, error, freedom = (part[usable] for part in (losses.mean, *losses.errors()))
    rng = np.random.default_rng(seed)
    gap, high, low = largest_of_means(mean, error, freedom, draws, rng, level)
    value, off = float(from_mean(mean)), student_draws(mean, error, freedom, draws, rng) - mean
    gaps["largest_loss_gap"] = gap
    gaps["largest_loss_gap_from_mean"] = IntervalEstimate.within(
        value, around(value, from_mean(off), level)
    )
    return gaps, (int(usable[high]), int(usable[low]))
