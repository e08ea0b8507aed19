"""Rates of every group against those of a reference group, error rates or selection rates:
differences and ratios, each with its interval.

Both intervals are the middle of draws of what the two true rates may be (`intervals.percentile`).
They hold for one comparison alone; of many groups some differ by chance. `beyond_chance` therefore
counts all comparisons of a rate, by Bonferroni: with the normal tail of the draws, since so small a
tail has few draws in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr

from fairbound.metrics._counts import Counts
from fairbound.metrics._intervals import (
    DRAWS,
    UNDEFINED,
    IntervalEstimate,
    beta_draws,
    check_level,
    estimates,
    quantiles,
)

# who is flagged wrongly, who is missed wrongly
ERROR_RATES = ("false_positive_rate", "false_negative_rate")
MAX_REFERENCE_GAPS = 1_000  # groups, the largest


class ReferenceGap(NamedTuple):
    """How a group's rate compares with that of the reference group."""

    difference: IntervalEstimate  # rate of the group minus that of the reference group
    ratio: IntervalEstimate  # one over the other; undefined where the reference group's rate is 0
    beyond_chance: bool  # whether the difference is beyond chance, with all groups counted


NOT_COMPARED = ReferenceGap(UNDEFINED, UNDEFINED, False)


def reference_gaps(
    counts: Counts,
    reference: str,
    compared_rates: Sequence[str] = ERROR_RATES,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
    min_size: int = 0,
) -> dict[str, dict[str, ReferenceGap]]:
    """Name of the group -> rate -> its gap, for the groups of at least `min_size` examples that
    have the rate.

    Args:
        counts: group x label x prediction.
        reference: name of the group that the others are compared with.
        compared_rates: the rates that are compared.
        level: of the intervals, each for one comparison alone.
        draws: of what the two true rates may be; many groups get fewer.
        seed: of the draws.
        min_size: examples of a group that is compared.

    >>> compas = Counts.from_cells(
    ...     {"African-American": (805, 990, 532, 1369), "Caucasian": (349, 1139, 461, 505)}
    ... )
    >>> gap = reference_gaps(compas, "Caucasian")["African-American"]["false_positive_rate"]
    >>> print(gap.difference, gap.ratio, gap.beyond_chance)
    0.2139 [0.1824, 0.2456] 1.9121 [1.7265, 2.1257] True
    """
    check_level(level)
    at, sizes = counts.names.index(reference), counts.sizes()
    largest = counts.largest(MAX_REFERENCE_GAPS)
    compared = [g for g in largest if g != at and sizes[g] >= max(min_size, 1)]
    gaps: dict[str, dict[str, ReferenceGap]] = {counts.names[g]: {} for g in compared}
    rates, rng = counts.rates(), np.random.default_rng(seed)
    for name in compared_rates:
        rate = rates.named(name)
        groups = [g for g in compared if rate.defined[g]]
        if not groups or not rate.defined[at]:
            continue
        value, base = rate.values[groups], rate.values[at]
        both = torch.tensor([*groups, at])
        drawn = beta_draws(rate.successes[both], rate.trials[both], draws, rng)
        difference, ratio = drawn[:, :-1] - drawn[:, -1:], drawn[:, :-1] / drawn[:, -1:]
        tail = 2 * ndtr(-(difference.mean(0).abs() / difference.std(0)).numpy()) * len(groups)
        defined = torch.ones(len(groups), dtype=torch.bool)
        pairs = zip(
            estimates(value - base, quantiles(difference, level), defined),
            estimates(value / base, quantiles(ratio, level), defined & (base > 0)),
            tail <= 1 - level,
            groups,
            strict=True,
        )
        for gap, over, is_clear, g in pairs:
            is_beyond = bool(is_clear) and gap.excludes_zero
            gaps[counts.names[g]][name] = ReferenceGap(gap, over, is_beyond)
    return gaps
