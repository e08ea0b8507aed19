"""Coverage, continued (tests/metrics/test_coverage.py says how): many groups, losses, W1. For another worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from covering import DRAWS, SAMPLES, covers, shares

from fairbound.metrics.counts import Counts
from fairbound.metrics.fairness_metrics import intervals
from fairbound.metrics.group_losses import Losses, group_losses, loss_gaps
from fairbound.metrics.wasserstein import Scores, largest_w1


@pytest.mark.parametrize(("groups", "rows"), [(30, 60), (80, 40), (40, 12)])
def test_many_groups_alike(groups: int, rows: int) -> None:
    """Intersections: many groups, some tiny, that do not differ. 300 samples: 93 % would show 90 % or less with p < .03
    for one of the six, 85 % pass with p < .01."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(groups), rows)
    watched = ("independence_printed", "separation_printed", "sufficiency_printed", "demographic_parity_difference",
               "equalized_odds_difference", "accuracy_difference")  # fmt: skip
    hits: Counter[str] = Counter()
    for seed in range(300):
        y = rng.random(len(group)) < 0.4
        p = rng.random(len(group)) < np.where(y, 0.6, 0.3)
        found = intervals(Counts.of(y, p, group), draws=DRAWS, seed=seed)
        hits.update({name: covers(found[name], 0.0) for name in watched})
    assert all(hits[name] / 300 >= 0.9 for name in watched), hits


@pytest.mark.parametrize("gap", [0.0, 0.15])
def test_losses(gap: float) -> None:
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

    def samples() -> Iterable[dict[str, bool]]:
        for seed in range(SAMPLES):
            losses = Losses.of(rng.gamma(1.0, 0.5, len(group)) + shift[group], group)
            found = loss_gaps(losses, "0", draws=DRAWS, seed=seed)
            hit = {name: covers(one, truth[name]) for name, one in found.items()}
            each = group_losses(losses, draws=DRAWS, seed=seed)
            yield hit | {f"loss of {g}": covers(one, means[g]) for g, one in enumerate(each)}

    for name, share in shares(samples()).items():
        assert 0.93 <= share <= (1.0 if name.startswith("largest") else 0.97), (name, share)


@pytest.mark.parametrize("apart", [False, True])
def test_w1(apart: bool) -> None:
    """Beta scores; the second group's are larger, so that W1 is the difference of the means, or alike."""
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1], [600, 400])
    a, b = (3.0, 2.0) if apart else (2.0, 3.0)
    truth = a / (a + b) - 2 / 5

    def samples() -> Iterable[dict[str, bool]]:
        for seed in range(SAMPLES):
            scores = np.concatenate([rng.beta(2, 3, 600), rng.beta(a, b, 400)])
            found = largest_w1(Scores.of(scores, group), draws=200, seed=seed)
            yield {"w1": covers(found, truth)}

    share = shares(samples())["w1"]
    assert 0.93 <= share <= (0.97 if apart else 1.0), share
