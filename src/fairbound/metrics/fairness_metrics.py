"""Fairness metrics of predictions, each published definition under its own name, each with an
interval.

Everything here follows from the table of group x label x prediction (`Counts`). `METRICS` has the
definitions with their words and sources, docs/background/metrics.md their formulas.

Groups without examples are skipped, and so is a rate without examples in its mean or maximum. With
fewer than two groups a comparison is undefined (None). A new metric is one entry of METRICS:
audits, their JSON, their text and their page then have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound.metrics._counts import DENOMINATORS, NAMES, Counts
from fairbound.metrics._intervals import (
    DRAWS,
    MANY_GROUPS,
    UNDEFINED,
    IntervalEstimate,
    around,
    beta_draws,
    check_level,
    draws_for,
    estimates,
    largest_difference,
    percentile,
    rate_noise,
    resampled_rates,
    spread,
    wilson,
)

Form = Callable[[Sequence[Tensor]], Tensor]  # rates, each (..., G) -> (...)
# largest: of all differences; ratio: least over most
MetricKind = Literal["rate", "signed", "gap", "largest", "ratio"]
PR, TPR, FPR = "positive_rate", "true_positive_rate", "false_positive_rate"
PPV, FOR = "positive_predictive_value", "false_omission_rate"


@dataclass(frozen=True)
class Metric:
    """A definition: which rates it reads, what it makes of them, and by which rule its interval is
    found."""

    name: str
    rates: tuple[str, ...]  # that it compares, as in `counts.RATES`
    form: Form
    kind: MetricKind
    words: str
    source: str
    groups: Literal["all", "two", "reference", "overall"] = "all"
    most: float = 1.0  # that a gap can be

    @property
    def view(self) -> str:
        """Which table it reads."""
        return "all" if self.groups == "two" else self.groups


def mean_absolute(rates: Tensor) -> Tensor:
    """Mean distance from the unweighted mean."""
    return (rates - rates.mean(-1, keepdim=True)).abs().mean(-1)


def _sum(of: Callable[[Tensor], Tensor], factor: float = 1.0) -> Form:
    return lambda parts: factor * sum((of(part) for part in parts[1:]), of(parts[0]))


def _worst_difference(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([spread(part) for part in parts]).amax(0)


def _smallest_ratio(parts: Sequence[Tensor]) -> Tensor:
    """Smallest over largest rate; 1 where all are zero: no group is treated differently."""
    ratios = []
    for part in parts:
        most = part.amax(-1)
        least_over_most = part.amin(-1) / most.clamp(min=torch.finfo(most.dtype).tiny)
        ratios.append(torch.where(most > 0, least_over_most, 1.0))
    return torch.stack(ratios).amin(0)


def _others_minus_reference(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part[..., 0] - part[..., 1] for part in parts]).mean(0)


def _others_over_reference(parts: Sequence[Tensor]) -> Tensor:
    return parts[0][..., 0] / parts[0][..., 1]


PAPER_TABLE, REPORTED = "the paper, Table 2", "the paper's results"
_ALL = (
    Metric(
        "demographic_parity_difference",
        (PR,),
        _worst_difference,
        "largest",
        "difference in selection rate: largest minus smallest",
        "Fairlearn",
    ),
    Metric(
        "demographic_parity_ratio",
        (PR,),
        _smallest_ratio,
        "ratio",
        "ratio of selection rates: smallest over largest; 1 is parity",
        "Fairlearn",
    ),
    Metric(
        "equalized_odds_difference",
        (TPR, FPR),
        _worst_difference,
        "largest",
        "difference in true or in false positive rate, whichever is larger",
        "Fairlearn",
    ),
    Metric(
        "equalized_odds_ratio",
        (TPR, FPR),
        _smallest_ratio,
        "ratio",
        "ratio of true or of false positive rates, whichever is smaller; 1 is parity",
        "Fairlearn",
    ),
    Metric(
        "equalized_odds_difference_mean",
        (TPR, FPR),
        _sum(spread, 0.5),
        "gap",
        "differences in true and in false positive rate, averaged",
        "Fairlearn (mean)",
    ),
    Metric(
        "statistical_parity_difference",
        (PR,),
        _others_minus_reference,
        "signed",
        "difference in selection rate: all others minus the reference group",
        "AIF360",
        "reference",
    ),
    Metric(
        "disparate_impact",
        (PR,),
        _others_over_reference,
        "signed",
        "ratio of selection rates: all others over the reference group; 1 is parity",
        "AIF360",
        "reference",
    ),
    Metric(
        "equal_opportunity_difference",
        (TPR,),
        _others_minus_reference,
        "signed",
        "difference in true positive rate: all others minus the reference group",
        "AIF360",
        "reference",
    ),
    Metric(
        "average_odds_difference",
        (TPR, FPR),
        _others_minus_reference,
        "signed",
        "differences in true and in false positive rate, averaged: all others minus the reference"
        " group",
        "AIF360",
        "reference",
    ),
    Metric(
        "average_absolute_odds_difference",
        (TPR, FPR),
        _sum(spread, 0.5),
        "gap",
        "absolute differences in true and in false positive rate, averaged: all others against the"
        " reference group",
        "AIF360",
        "reference",
    ),
    Metric(
        "independence_printed",
        (PR,),
        _sum(mean_absolute),
        "gap",
        "mean distance of selection rates from their mean",
        PAPER_TABLE,
        most=0.5,
    ),
    Metric(
        "separation_printed",
        (TPR, FPR),
        _sum(mean_absolute, 0.5),
        "gap",
        "mean distance of true and of false positive rates from their means, averaged",
        PAPER_TABLE,
        most=0.5,
    ),
    Metric(
        "sufficiency_printed",
        (PPV, FOR),
        _sum(mean_absolute, 0.5),
        "gap",
        "mean distance of the share with label 1 from its mean, given either prediction, averaged",
        PAPER_TABLE,
        most=0.5,
    ),
    Metric(
        "independence_reported",
        (PR,),
        _sum(spread),
        "gap",
        "difference in selection rate between two groups",
        REPORTED,
        "two",
    ),
    Metric(
        "separation_reported",
        (TPR, FPR),
        _sum(spread),
        "gap",
        "difference in true plus difference in false positive rate, between two groups",
        REPORTED,
        "two",
        most=2.0,
    ),
    Metric(
        "sufficiency_reported",
        (PPV, FOR),
        _sum(spread),
        "gap",
        "difference in positive plus difference in negative predictive value, between two groups",
        REPORTED,
        "two",
        most=2.0,
    ),
    Metric(
        "accuracy_difference",
        ("accuracy",),
        _worst_difference,
        "largest",
        "difference in accuracy: largest minus smallest",
        "the paper",
    ),
    Metric(
        "inaccuracy",
        ("inaccuracy",),
        lambda parts: parts[0][..., 0],
        "rate",
        "share of wrong predictions, over all groups",
        "the paper",
        "overall",
    ),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def values(
    counts: Counts, reference: str | None = None, *, min_size: int = 0
) -> dict[str, float | None]:
    """Every metric, without intervals: name -> value, None where undefined.

    Args:
        counts: group x label x prediction.
        reference: name of the group that signed differences compare the others to; None: the
            largest one.
        min_size: examples; comparisons of single groups, differences and ratios alike, skip those
            with fewer. What pools the others, or all, counts everybody.

    >>> compas = Counts.from_cells(
    ...     {"African-American": (805, 990, 532, 1369), "Caucasian": (349, 1139, 461, 505)}
    ... )
    >>> metrics = values(compas, reference="Caucasian")
    >>> round(metrics["equalized_odds_difference"], 6), round(metrics["average_odds_difference"], 6)
    (0.213925, 0.205649)
    """
    views = _Views(counts, reference, min_size)
    return {name: _value(metric, views) for name, metric in METRICS.items()}


def metric_intervals(
    counts: Counts,
    reference: str | None = None,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
    min_size: int = 0,
) -> dict[str, IntervalEstimate]:
    """Every metric with its interval: name -> estimate. Gaps of very many groups have no interval.

    Args:
        counts: group x label x prediction.
        reference: name of the group that signed differences compare the others to; None: the
            largest one.
        level: of the intervals, between 0 and 1.
        draws: samples of the bootstrap; many groups get fewer.
        seed: of the bootstrap; the same seed gives the same digits.
        min_size: examples; comparisons of single groups, differences and ratios alike, skip those
            with fewer. What pools the others, or all, counts everybody.
    """
    check_level(level)
    views = _Views(counts, reference, min_size, draws, seed)
    return {name: _interval(metric, views, level) for name, metric in METRICS.items()}


class GroupPair(NamedTuple):
    """The two groups behind a gap: that with the highest value and that with the lowest."""

    of: str  # what is compared, e.g. a rate
    high: str  # name of the group
    high_value: float
    high_examples: int  # behind the value, e.g. those with label 1
    low: str
    low_value: float
    low_examples: int


def group_pair(
    compared: str, names: Sequence[str], values: Tensor, examples: Tensor, pair: Sequence[int]
) -> GroupPair:
    """The two groups behind a gap.

    Args:
        compared: what is compared, such as the name of a rate.
        names: of all groups.
        values: (G,) of what is compared.
        examples: (G,) behind the values.
        pair: numbers of the group with the highest value and of that with the lowest.
    """
    high, low = ((names[g], float(values[g]), int(examples[g])) for g in pair)
    return GroupPair(compared, *high, *low)


def group_pairs(counts: Counts, min_size: int = 0) -> dict[str, GroupPair]:
    """Which two groups each metric of largest differences or ratios compares, and how many examples
    they have.

    >>> compas = Counts.from_cells(
    ...     {"African-American": (805, 990, 532, 1369), "Caucasian": (349, 1139, 461, 505)}
    ... )
    >>> pair = group_pairs(compas)["equalized_odds_difference"]
    >>> pair.of, pair.high, pair.high_examples, pair.low_examples
    ('false_positive_rate', 'African-American', 1795, 1488)
    """
    views, pairs = _Views(counts, None, min_size), dict[str, GroupPair]()
    counts, rates = views.tables["all"], views.rates["all"]
    among = DENOMINATORS.long() @ counts.examples.flatten(1).T  # (rates, G)
    for metric in METRICS.values():
        parts = views.parts(metric)
        if metric.kind not in ("largest", "ratio") or parts is None:
            continue
        apart = torch.stack([metric.form([part]) for part in parts])
        worst = apart.argmin() if metric.kind == "ratio" else apart.argmax()
        name = metric.rates[int(worst)]
        rate = rates.named(name)
        high = int(rate.values.where(rate.defined, -1.0).argmax())
        low = int(rate.values.where(rate.defined, 2.0).argmin())
        examples = among[NAMES.index(name)]
        pairs[metric.name] = group_pair(name, counts.names, rate.values, examples, (high, low))
    return pairs


def group_rates(counts: Counts, *, level: float = 0.95) -> dict[str, list[IntervalEstimate]]:
    """Every rate of every group with its interval, by the name of the rate and in the order of the
    groups."""
    check_level(level)
    every, estimated = counts.rates(), {}
    for name in NAMES:
        rate = every.named(name)
        ends = wilson(rate.values, rate.trials, level)
        estimated[name] = estimates(rate.values, ends, rate.defined)
    return estimated


class _Views:
    """The tables that the metrics read (all groups; others and reference; overall), with their
    rates and draws."""

    def __init__(
        self,
        counts: Counts,
        reference: str | None,
        min_size: int = 0,
        draws: int = 0,
        seed: int = 0,
    ) -> None:
        at = counts.numbered(reference)
        others = [g for g in range(len(counts.names)) if g != at]
        self.tables = {
            "all": counts.only((counts.sizes() >= min_size).nonzero().flatten().tolist()),
            "reference": counts.collapsed([("others", others), (counts.names[at], [at])]),
            "overall": counts.overall(),
        }
        self.rates = {name: table.rates() for name, table in self.tables.items()}
        self.present = int((self.tables["all"].weight.sum((1, 2)) > 0).sum())
        # one number for all, since metrics combine rates
        self.draws = draws_for(self.present, draws)
        self.rng = np.random.default_rng(seed)
        self.drawn: dict[tuple[Any, ...], Any] = {}

    def parts(self, metric: Metric) -> list[Tensor] | None:
        """The rates that the metric reads, of the groups that have them; None where it is
        undefined."""
        chosen = [self.rates[metric.view].named(name) for name in metric.rates]
        fewest = 1 if metric.view == "overall" else 2
        if metric.groups == "two" and self.present != 2:
            return None
        if any(int(rate.defined.sum()) < fewest for rate in chosen):
            return None
        return [rate.values[rate.defined] for rate in chosen]

    def drawn_by(self, draw: Callable[..., Any], metric: Metric, **settings: bool) -> list[Any]:
        """What `draw` makes of each rate that the metric reads; metrics that read the same rate
        share it."""
        drawn = []
        for name in metric.rates:
            key = (draw, metric.view, name, *settings)
            if key not in self.drawn:
                rate = self.rates[metric.view].named(name)
                counted = rate.successes[rate.defined], rate.trials[rate.defined]
                self.drawn[key] = draw(*counted, self.draws, self.rng, **settings)
            drawn.append(self.drawn[key])
        return drawn


def _value(metric: Metric, views: _Views) -> float | None:
    parts = views.parts(metric)
    value = math.nan if parts is None else float(metric.form(parts))
    return value if math.isfinite(value) else None


def _interval(metric: Metric, views: _Views, level: float) -> IntervalEstimate:
    value, parts = _value(metric, views), views.parts(metric)
    if value is None or parts is None:
        return UNDEFINED
    if metric.kind == "rate":
        trials = views.rates[metric.view].named(metric.rates[0]).trials
        return IntervalEstimate(value, *(float(end) for end in wilson(parts[0], trials, level)))
    if metric.kind == "signed":
        return percentile(value, metric.form(views.drawn_by(beta_draws, metric)), level)
    if views.present > MANY_GROUPS:
        return IntervalEstimate(value)
    # -log(smallest / largest) is the largest difference of the logarithms
    if metric.kind == "ratio":
        least, most = largest_difference(views.drawn_by(resampled_rates, metric, log=True), level)
        return IntervalEstimate.within(value, (math.exp(-most), math.exp(-least)))
    if metric.kind == "largest":
        low, high = largest_difference(views.drawn_by(resampled_rates, metric), level)
    else:
        low, high = around(value, metric.form(views.drawn_by(rate_noise, metric)), level)
    return IntervalEstimate.within(value, (low, min(high, metric.most)))
