"""Do the intervals cover the truth as often as they say? Synthetic samples, seeds fixed.

Nominal 95 %. Two-sided kinds (rates, signed differences, ratios, loss gaps, W1 away from 0) must
cover in 93 to 97 %, conservative kinds (absolute, largest, mean absolute gaps, true value 0
included) in at least 93 %. With 2,000 samples (`make test-slow`) the standard error of a coverage
of 95 % is .5 points: an interval that covers 95 % falls outside 93 to 97 with p < 1e-4; one that
covers 91 % passes with p < .001. The fast suite takes 40, and sees what is grossly wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fairbound.metrics._counts import NAMES, Counts
from fairbound.metrics._group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics._intervals import IntervalEstimate, beta_draws, percentile, spread
from fairbound.metrics._reference_gaps import reference_gaps
from fairbound.metrics._scores import Scores
from fairbound.metrics._wasserstein import largest_w1
from fairbound.metrics.fairness_metrics import METRICS, group_rates, metric_intervals, values

FEW, MANY = 40, 2_000
DRAWS = 500
many_samples = pytest.mark.parametrize("samples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def covers(found: IntervalEstimate, truth: float) -> bool:
    return bool(found.low - 1e-12 <= truth <= found.high + 1e-12)


def check(
    samples: int,
    sample: Callable[[int], dict[str, bool]],
    ends: Callable[[str], tuple[float, float]],
) -> None:
    """Every named interval covers in a share of the samples that lies between these ends."""
    hits: Counter[str] = Counter()
    for seed in range(samples):
        hits.update(sample(seed))
    for name in hits:
        low, high = ends(name) if samples == MANY else (0.8, 1.0)
        assert low <= hits[name] / samples <= high, (name, hits[name] / samples)


# sizes, base rates, true positive rates, false positive rates of the groups; every group x label
# has 50 rows and more
SCENARIOS = {
    "two groups apart": ([600, 300], [0.4, 0.3], [0.7, 0.6], [0.3, 0.2]),
    "two groups alike": ([600, 300], [0.4, 0.4], [0.7, 0.7], [0.3, 0.3]),
    "two small groups": ([140, 150], [0.5, 0.4], [0.7, 0.5], [0.2, 0.3]),
    "five groups apart": (
        [600, 300, 200, 300, 400],
        [0.4, 0.3, 0.5, 0.4, 0.35],
        [0.7, 0.6, 0.5, 0.65, 0.55],
        [0.3, 0.2, 0.15, 0.25, 0.3],
    ),
    "five groups alike": ([600, 300, 200, 300, 400], [0.4] * 5, [0.7] * 5, [0.3] * 5),
}


@many_samples
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rates_and_metrics(scenario: str, samples: int) -> None:
    sizes, base, tpr, fpr = SCENARIOS[scenario]
    many = 1e12
    cells = {
        str(g): (
            many * n * (1 - b) * f,
            many * n * (1 - b) * (1 - f),
            many * n * b * (1 - t),
            many * n * b * t,
        )
        for g, (n, b, t, f) in enumerate(zip(sizes, base, tpr, fpr, strict=True))
    }
    population = Counts.from_cells(cells)
    true_metrics = values(population, reference="0")
    true_rates = population.rates().values.tolist()
    rng = np.random.default_rng(len(scenario))
    group = np.repeat(np.arange(len(sizes)), sizes)
    b, t, f = (np.asarray(part)[group] for part in (base, tpr, fpr))

    def sample(seed: int) -> dict[str, bool]:
        y = rng.random(len(group)) < b
        p = rng.random(len(group)) < np.where(y, t, f)
        counts = Counts.of(y, p, group)
        found = metric_intervals(counts, "0", draws=DRAWS, seed=seed)
        hit = {
            name: covers(one, true_metrics[name])
            for name, one in found.items()
            if one.value is not None
        }
        for other, gaps in reference_gaps(counts, "0", draws=DRAWS, seed=seed).items():
            for rate, gap in gaps.items():
                true, base = (true_rates[NAMES.index(rate)][int(g)] for g in (other, "0"))
                hit[f"{rate} of {other} minus that of 0"] = covers(gap.difference, true - base)
                hit[f"{rate} of {other} over that of 0"] = covers(gap.ratio, true / base)
        rates = group_rates(counts)
        for i, name in enumerate(NAMES):
            hit |= {
                f"{name} of {g}": covers(one, true_rates[i][g]) for g, one in enumerate(rates[name])
            }
        return hit

    def ends(name: str) -> tuple[float, float]:
        return 0.93, (
            1.0
            if name in METRICS
            and METRICS[name].kind
            in (
                "gap",
                "largest",
                "ratio",
            )
            else 0.97
        )

    check(samples, sample, ends)


@many_samples
def test_weights(samples: int) -> None:
    """Lognormal survey weights, which leave about a third of the examples as effective ones."""
    rng = np.random.default_rng(5)
    sizes, rates = [900, 600], np.array([0.3, 0.15])
    group = np.repeat([0, 1], sizes)

    def sample(seed: int) -> dict[str, bool]:
        p = rng.random(len(group)) < rates[group]
        counts = Counts.of(
            np.zeros(len(group), dtype=int), p, group, weights=rng.lognormal(0, 1, len(group))
        )
        found = metric_intervals(counts, "0", draws=DRAWS, seed=seed)
        each = group_rates(counts)["positive_rate"]
        return {
            "gap": covers(found["demographic_parity_difference"], 0.15),
            "difference": covers(found["statistical_parity_difference"], -0.15),
            "ratio": covers(found["disparate_impact"], 0.5),
            "rate of 0": covers(each[0], 0.3),
            "rate of 1": covers(each[1], 0.15),
        }

    check(samples, sample, lambda name: (0.92, 0.98))  # effective examples are themselves estimated


def test_the_plain_bootstrap_would_fail() -> None:
    """What the conservative rules are for: percentiles of a resampled gap miss a true 0 nearly
    always."""
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(200):
        k = torch.tensor(rng.binomial(300, 0.3, 5), dtype=torch.float64)
        drawn = beta_draws(
            k, torch.full((5,), 300.0, dtype=torch.float64), 500, np.random.default_rng(seed)
        )
        hits += covers(percentile(float(spread(k / 300)), spread(drawn), 0.95), 0.0)
    assert hits < 10


@pytest.mark.parametrize("samples", [FEW // 4, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("groups", "size"), [(30, 60), (80, 40), (40, 12)])
def test_many_groups_alike(groups: int, size: int, samples: int) -> None:
    """Intersections: many groups, some tiny, that do not differ. 300 samples: 93 % would show 90 %
    or less with p < .03 for one of the six, 85 % pass with p < .01."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(groups), size)
    watched = (
        "independence_printed",
        "separation_printed",
        "sufficiency_printed",
        "demographic_parity_difference",
        "equalized_odds_difference",
        "accuracy_difference",
    )
    hits: Counter[str] = Counter()
    for seed in range(samples):
        y = rng.random(len(group)) < 0.4
        p = rng.random(len(group)) < np.where(y, 0.6, 0.3)
        found = metric_intervals(Counts.of(y, p, group), draws=DRAWS, seed=seed)
        hits.update({name: covers(found[name], 0.0) for name in watched})
    assert all(hits[name] / samples >= (0.9 if samples == 300 else 0.7) for name in watched), hits


@many_samples
@pytest.mark.parametrize("gap", [0.0, 0.15])
def test_losses(gap: float, samples: int) -> None:
    """Cross-entropies of confident scores: skewed, as real losses are."""
    rng = np.random.default_rng(1)
    sizes = [800, 400, 300]
    group = np.repeat(np.arange(3), sizes)
    shift = np.array([0.0, gap, gap / 2])
    means = 0.5 + shift
    rest = (means[1] * sizes[1] + means[2] * sizes[2]) / (sizes[1] + sizes[2])
    truth = {
        "loss": (means * sizes).sum() / sum(sizes),
        "loss_difference": rest - means[0],
        "largest_loss_gap": gap,
        "largest_loss_gap_from_mean": np.abs(means - means.mean()).max(),
    }

    def sample(seed: int) -> dict[str, bool]:
        losses = Losses.of(rng.gamma(1.0, 0.5, len(group)) + shift[group], group)
        found, _ = loss_gaps(losses, "0", draws=DRAWS, seed=seed)
        hit = {name: covers(one, truth[name]) for name, one in found.items()}
        each = group_loss_intervals(losses, draws=DRAWS, seed=seed)
        return hit | {f"loss of {g}": covers(one, means[g]) for g, one in enumerate(each)}

    check(samples, sample, lambda name: (0.93, 1.0 if name.startswith("largest") else 0.97))


@many_samples
@pytest.mark.parametrize("apart", [False, True])
def test_w1(apart: bool, samples: int) -> None:
    """Beta scores; the second group's are larger, so that W1 is the difference of the means, or
    alike."""
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1], [600, 400])
    a, b = (3.0, 2.0) if apart else (2.0, 3.0)
    truth = a / (a + b) - 2 / 5

    def sample(seed: int) -> dict[str, bool]:
        scores = np.concatenate([rng.beta(2, 3, 600), rng.beta(a, b, 400)])
        return {"w1": covers(largest_w1(Scores.of(scores, group), draws=200, seed=seed)[0], truth)}

    check(samples, sample, lambda name: (0.93, 0.97 if apart else 1.0))
