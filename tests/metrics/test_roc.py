"""ROC, AUC and calibration by group, beside scikit-learn's; bins of scores; intervals of AUC."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from fairbound.metrics._roc import (
    MAX_CURVE_POINTS,
    auc,
    auc_difference,
    auc_intervals,
    bin_edges,
    calibration_by_group,
    roc_curve,
)
from fairbound.metrics._scores import Scores


def examples(kind: str, rows: int = 900, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Scores (continuous, tied or deciles), labels, groups, weights."""
    rng = np.random.default_rng(seed)
    g, y = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    score = np.clip(rng.beta(2, 3, rows) + 0.15 * y + 0.05 * g, 0, 1)
    score = {
        "continuous": score,
        "tied": score.round(1),
        "deciles": np.ceil(10 * score).clip(1, 10),
    }[kind]
    return score, y, g, rng.uniform(0.5, 2, rows)


@pytest.mark.parametrize("kind", ["continuous", "tied", "deciles"])
@pytest.mark.parametrize("weighted", [False, True])
def test_auc_and_curves_are_those_of_scikit_learn(kind: str, weighted: bool) -> None:
    score, y, g, w = examples(kind)
    weights = w if weighted else None
    scores = Scores.of(score, g, y, weights=weights)
    found = auc(scores)
    for k in range(3):
        own = g == k
        sample = w[own] if weighted else None
        assert float(found.value[k]) == pytest.approx(
            roc_auc_score(y[own], score[own], sample_weight=sample), abs=1e-12
        )
        fpr, tpr, _ = sklearn_roc_curve(
            y[own], score[own], sample_weight=sample, drop_intermediate=False
        )
        curve = np.array(roc_curve(scores, k))
        assert len(curve) == min(len(fpr), MAX_CURVE_POINTS)
        at = np.linspace(0, len(fpr) - 1, len(curve)).round().astype(int)
        assert curve == pytest.approx(np.c_[fpr, tpr][at], abs=1e-12)


def test_calibration_is_that_of_scikit_learn() -> None:
    for kind in ("continuous", "tied"):
        score, y, g, _ = examples(kind)
        found = calibration_by_group(Scores.of(score, g, y))
        for k in range(3):
            share, mean = calibration_curve(y[g == k], score[g == k], n_bins=10)
            assert [one.rate.value for one in found[k]] == pytest.approx(share.tolist(), abs=1e-12)
            assert [one.score for one in found[k]] == pytest.approx(mean.tolist(), abs=1e-12)
            assert sum(one.examples for one in found[k]) == (g == k).sum()
            assert all(one.rate.low <= one.rate.value <= one.rate.high for one in found[k])


def test_whole_numbers_have_bins_of_their_own() -> None:
    score, y, g, w = examples("deciles")
    assert bin_edges(torch.tensor(score), 40).tolist() == [
        low + 0.5 for low in range(int(score.min()) - 1, 11)
    ]
    found = calibration_by_group(Scores.of(score, g, y, weights=w))
    for one in found[1]:
        own = (g == 1) & (score == one.score)
        assert one.examples == own.sum()
        assert one.rate.value == pytest.approx(np.average(y[own], weights=w[own]))
    # decisions, not a scale
    assert bin_edges(torch.tensor([0.0, 1.0, 1.0]), 4).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert len(bin_edges(torch.tensor([0.0, 1e6]), 40)) == 41


def test_groups_without_both_labels_and_with_few_examples() -> None:
    score, y, g = [0.1, 0.2, 0.9, 0.5, 0.6, 0.7, 0.8], [0, 0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 2, 2, 2]
    scores = Scores.of(score, g, y, names=["a", "b", "c", "d"])
    found = auc_intervals(auc(scores))
    assert [one.value for one in found] == [1.0, None, 1.0, None]
    assert found[0].low is None  # one positive: no interval
    assert roc_curve(scores, 1) == roc_curve(scores, 3) == ()
    assert auc_difference(scores, auc(scores))[0].value is None
    apart = auc_intervals(
        auc(Scores.of(np.arange(40), np.zeros(40, dtype=int), np.arange(40) >= 20))
    )[0]
    assert apart.value == apart.high == 1.0
    assert 0.7 < apart.low < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("distance", [0.0, 1.2, 2.5])
def test_intervals_of_auc_cover(distance: float) -> None:
    rng, truth, samples = np.random.default_rng(1), norm.cdf(distance / np.sqrt(2)), 1_000
    covered = gap = 0
    for seed in range(samples):
        y, g = rng.integers(0, 2, 240), np.repeat([0, 1], 120)
        scores = Scores.of(rng.normal(distance * y, 1), g, y)
        found = auc(scores)
        one = auc_intervals(found)[0]
        covered += one.low <= truth <= one.high
        gap += auc_difference(scores, found, draws=1_000, seed=seed)[0].low <= 0
    assert 0.925 * samples <= covered <= 0.975 * samples
    assert gap >= 0.925 * samples
