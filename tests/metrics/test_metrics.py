"""Metrics against published numbers, Fairlearn, hand-written numpy and scipy; batches, weights,
absent groups."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from fairlearn import metrics as fairlearn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import studentized_range

from fairbound.metrics._counts import NAMES, Counts
from fairbound.metrics._group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._scores import Scores
from fairbound.metrics._wasserstein import (
    _W1_GRID,
    W1_GRID,
    WD_BINS,
    _grid_edges,
    largest_w1,
    largest_wd,
    w1,
    wd,
)
from fairbound.metrics.fairness_metrics import METRICS, group_rates, metric_intervals, values

# FP, TN, FN, TP
COMPAS = {"African-American": (805, 990, 532, 1369), "Caucasian": (349, 1139, 461, 505)}


def some_rows(seed: int, rows: int = 4000, groups: int = 3) -> dict[str, np.ndarray]:
    """Rows whose rates differ between groups, with scores and weights."""
    rng = np.random.default_rng(seed)
    g = rng.integers(0, groups, rows)
    y = rng.random(rows) < 0.3 + 0.1 * g / groups
    score = np.clip(rng.beta(2, 3, rows) + 0.2 * y + 0.05 * g, 0, 1)
    return {
        "g": g,
        "y": y.astype(int),
        "p": (score >= 0.5).astype(int),
        "s": score,
        "w": rng.uniform(0.2, 3.0, rows),
    }


class TestPublished:
    def test_compas(self) -> None:
        found = values(Counts.from_cells(COMPAS), reference="Caucasian")
        expected = {
            "demographic_parity_difference": 0.240200,
            "demographic_parity_ratio": 0.591638,
            "independence_printed": 0.120100,
            "separation_printed": 0.102824,
            "sufficiency_printed": 0.024949,
            "independence_reported": 0.240200,
            "separation_reported": 0.411298,
            "sufficiency_reported": 0.099795,
            "equalized_odds_difference": 0.213925,
            "average_odds_difference": 0.205649,
            "equal_opportunity_difference": 0.197373,
        }
        assert {name: round(found[name], 6) for name in expected} == expected

    def test_propublica(self) -> None:
        counts = Counts.from_cells(COMPAS)
        assert counts.sizes().tolist() == [3696, 2454]
        assert np.round(counts.rate("false_positive_rate"), 4).tolist() == [0.4485, 0.2345]
        assert np.round(counts.rate("false_negative_rate"), 4).tolist() == [0.2799, 0.4772]

    def test_adult_and_german(self) -> None:
        adult = Counts.from_cells(
            {"F": (0, 16192 - 1769, 1769, 0), "M": (0, 32650 - 9918, 9918, 0)}
        )
        assert np.round(adult.rate("base_rate"), 6).tolist() == [0.109251, 0.303767]
        assert int(adult.sizes().sum()) == 48842
        german = Counts.from_cells({"> 25": (0, 220, 590, 0), "else": (0, 80, 110, 0)})
        assert np.round(german.rate("base_rate"), 6).tolist() == [0.728395, 0.578947]


class TestFairlearn:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("weighted", [False, True])
    def test_differences_and_ratios(self, seed: int, weighted: bool) -> None:
        rows = some_rows(seed, groups=2 + seed)
        w = rows["w"] if weighted else None
        found = values(Counts.of(rows["y"], rows["p"], rows["g"], weights=w))
        theirs = {"sensitive_features": rows["g"], "sample_weight": w}
        for notion, form in product(
            ("demographic_parity", "equalized_odds"), ("difference", "ratio")
        ):
            name = f"{notion}_{form}"
            value = getattr(fairlearn, name)(rows["y"], rows["p"], **theirs)
            assert found[name] == pytest.approx(value, abs=1e-12)
        mean = fairlearn.equalized_odds_difference(rows["y"], rows["p"], agg="mean", **theirs)
        assert found["equalized_odds_difference_mean"] == pytest.approx(mean, abs=1e-12)
        assert_rates_equal_fairlearn(rows["y"], rows["p"], rows["g"], w)

    def test_on_the_acs_data(self, acs_ok) -> None:
        """Oklahoma, nine race groups, with a prediction from schooling and hours."""
        y = acs_ok["PINCP_GT_50K"].astype(int)
        p = ((acs_ok["SCHL"] >= 20) & (acs_ok["WKHP"] >= 38)).astype(int)
        g = acs_ok["RAC1P"].astype(int) - 1
        w = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
        for weights in (None, w):
            assert_rates_equal_fairlearn(y, p, g, weights)
            found = values(Counts.of(y, p, g, weights=weights))
            for name in ("demographic_parity_difference", "equalized_odds_difference"):
                theirs = getattr(fairlearn, name)(y, p, sensitive_features=g, sample_weight=weights)
                assert found[name] == pytest.approx(theirs, abs=1e-12)


def assert_rates_equal_fairlearn(
    y: np.ndarray, p: np.ndarray, g: np.ndarray, w: np.ndarray | None
) -> None:
    ours = {
        "positive_rate": fairlearn.selection_rate,
        "true_positive_rate": fairlearn.true_positive_rate,
        "false_positive_rate": fairlearn.false_positive_rate,
        "true_negative_rate": fairlearn.true_negative_rate,
        "false_negative_rate": fairlearn.false_negative_rate,
    }
    params = None if w is None else {name: {"sample_weight": w} for name in ours}
    frame = fairlearn.MetricFrame(
        metrics=ours, y_true=y, y_pred=p, sensitive_features=g, sample_params=params
    )
    counts = Counts.of(y, p, g, weights=w)
    populated = [i for i, size in enumerate(counts.sizes().tolist()) if size]
    for name in ours:
        mine = [counts.rate(name)[i] for i in populated]
        # where a group has no such label we say undefined (None), Fairlearn says 0
        assert [0.0 if m is None else m for m in mine] == pytest.approx(
            frame.by_group[name].tolist(), abs=1e-12
        )
        assert counts.overall().rate(name)[0] == pytest.approx(frame.overall[name], abs=1e-12)


class TestBatches:
    @given(
        st.lists(st.integers(1, 300), min_size=1, max_size=6),
        st.booleans(),
        st.randoms(use_true_random=False),
    )
    @settings(max_examples=30, deadline=None)
    def test_batch_by_batch_equals_all_at_once(self, cuts, weighted, random) -> None:
        rows = some_rows(len(cuts), rows=sum(cuts) + 50, groups=4)
        w = rows["w"] if weighted else np.ones(len(rows["y"]))
        pieces = np.split(np.arange(len(w)), np.cumsum(cuts))
        random.shuffle(pieces)
        names = ["A", "B", "C", "D", "never seen"]

        def counts(i: np.ndarray) -> Counts:
            return Counts.of(rows["y"][i], rows["p"][i], rows["g"][i], weights=w[i], names=names)

        together, parts = (
            counts(np.arange(len(w))),
            sum((counts(i) for i in pieces[1:]), counts(pieces[0])),
        )
        mine, theirs = values(parts), values(together)
        assert all(mine[name] == pytest.approx(theirs[name], abs=1e-12) for name in METRICS)
        assert torch.equal(parts.examples, together.examples)
        assert torch.allclose(parts.squares, together.squares)

    def test_tables_are_matched_by_name(self) -> None:
        both = Counts.of([1], [1], [0], names=["B"]) + Counts.of(
            [1, 0], [0, 0], [0, 1], names=["A", "B"]
        )
        assert both.names == ("B", "A")
        assert both.sizes().tolist() == [2, 1]
        assert both.rate("true_positive_rate") == (1.0, 0.0)

    def test_absent_groups_change_nothing(self) -> None:
        rows = some_rows(3)
        plain = Counts.of(rows["y"], rows["p"], rows["g"], names=["0", "1", "2"])
        padded = Counts.of(rows["y"], rows["p"], rows["g"] * 2, names=["0", "x", "1", "y", "2"])
        assert values(plain) == values(padded)
        assert metric_intervals(plain, draws=500) == metric_intervals(padded, draws=500)
        assert padded.rate("accuracy")[1] is None
        assert group_rates(padded)["accuracy"][1] == IntervalEstimate(None)

    def test_rows_in_no_group_are_left_out(self) -> None:
        rows = some_rows(4)
        keep = rows["g"] > 0
        left = np.where(keep, rows["g"] - 1, -1)
        mine = Counts.of(rows["y"], rows["p"], left, weights=rows["w"])
        theirs = Counts.of(
            *(rows[c][keep] for c in "yp"), rows["g"][keep] - 1, weights=rows["w"][keep]
        )
        assert torch.equal(mine.examples, theirs.examples)
        assert torch.allclose(mine.weight, theirs.weight, rtol=1e-15)


class TestUndefined:
    def test_one_group_has_nothing_to_compare(self) -> None:
        found = values(Counts.of([0, 1, 1], [0, 1, 0], [0, 0, 0]))
        assert found["demographic_parity_difference"] is None
        assert found["inaccuracy"] == pytest.approx(1 / 3)

    def test_a_group_without_positives_has_no_true_positive_rate(self) -> None:
        found = values(Counts.of([0, 0, 1, 0, 1, 0], [1, 0, 1, 0, 0, 1], [0, 0, 1, 1, 2, 2]))
        # the reference group, the first, has no positives
        assert found["equal_opportunity_difference"] is None
        assert found["equalized_odds_difference"] == pytest.approx(1.0)

    def test_nobody_predicted_positive(self) -> None:
        found = metric_intervals(Counts.of([0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]), draws=500)
        assert found["demographic_parity_ratio"].value == 1.0
        assert found["disparate_impact"].value is None
        assert found["sufficiency_printed"].value is None

    def test_nothing_is_ever_nan(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(200):
            rows = int(rng.integers(1, 9))
            y, p, g = (rng.integers(0, k, rows) for k in (2, 2, 4))
            counts = Counts.of(y, p, g, names=list("ABCDE"))
            found = [
                *metric_intervals(counts, draws=50).values(),
                *(one for rate in group_rates(counts).values() for one in rate),
            ]
            found += [
                largest_w1(Scores.of(p + 0.1, g), draws=50)[0],
                largest_wd(Scores.of(p + 0.1, g), draws=50),
                *loss_gaps(Losses.of(p, g), draws=50)[0].values(),
            ]
            for measured in found:
                assert all(number is None or np.isfinite(number) for number in measured)
                if measured.low is not None:
                    assert measured.low <= measured.value <= measured.high


class TestLosses:
    def test_pooled_groups_equal_one_group(self) -> None:
        rows = some_rows(5, rows=400, groups=4)
        apart = Losses.of(1e6 + rows["s"], rows["g"], weights=rows["w"])
        apart = apart.collapsed([("all", range(4))])
        together = Losses.of(
            1e6 + rows["s"], np.zeros(len(rows["s"]), dtype=int), weights=rows["w"]
        )
        assert float(apart.mean) == pytest.approx(float(together.mean), abs=1e-8)
        assert torch.allclose(apart.errors()[0], together.errors()[0], rtol=1e-6)

    def test_against_numpy(self) -> None:
        rows = some_rows(5)
        losses = Losses.of(rows["s"], rows["g"])
        for g in range(3):
            mine = rows["s"][rows["g"] == g]
            assert losses.mean.tolist()[g] == pytest.approx(mine.mean(), abs=1e-12)
            assert float(losses.errors()[0][g]) == pytest.approx(
                mine.std(ddof=1) / np.sqrt(len(mine)), rel=1e-9
            )
        found, pair = loss_gaps(losses, reference="0")
        means = losses.mean.numpy()
        assert pair == (means.argmax(), means.argmin())
        assert found["largest_loss_gap"].value == pytest.approx(np.ptp(means))
        assert found["largest_loss_gap_from_mean"].value == pytest.approx(
            np.abs(means - means.mean()).max()
        )
        rest = rows["s"][rows["g"] > 0].mean()
        assert found["loss_difference"].value == pytest.approx(rest - means[0])
        assert found["loss"].value == pytest.approx(rows["s"].mean())

    def test_the_interval_of_a_mean_is_students(self) -> None:
        from scipy.stats import t

        values = np.random.default_rng(1).normal(size=12)
        (found,) = group_loss_intervals(Losses.of(values, np.zeros(12, dtype=int)), draws=200_000)
        half = t.ppf(0.975, 11) * values.std(ddof=1) / np.sqrt(12)
        assert (found.low, found.high) == pytest.approx(
            (values.mean() - half, values.mean() + half), abs=0.02
        )

    def test_whole_weights_are_means_of_repeated_rows(self) -> None:
        losses = Losses.of([1.0, 4.0], [0, 0], weights=[3, 1])
        assert losses.mean.tolist() == [1.75]

    def test_one_row_has_a_value_and_no_interval(self) -> None:
        assert group_loss_intervals(Losses.of([2.0], [0])) == [IntervalEstimate(2.0)]


class TestScores:
    @pytest.mark.parametrize("seed", range(3))
    def test_w1_is_the_area_between_the_distribution_functions(self, seed: int) -> None:
        rows = some_rows(seed)
        scores = Scores.of(rows["s"], rows["g"], weights=rows["w"])
        points = np.sort(rows["s"])
        functions = []
        for group in (0, 1):
            s, w = (rows[name][rows["g"] == group] for name in ("s", "w"))
            functions.append(np.array([w[s <= point].sum() for point in points]) / w.sum())
        area = (np.abs(functions[0] - functions[1])[:-1] * np.diff(points)).sum()
        assert w1(scores, 0, 1) == pytest.approx(area, abs=1e-12)
        largest = max(w1(scores, i, j) for i in range(3) for j in range(i))
        assert largest_w1(scores)[0].value == largest

    @pytest.mark.parametrize("rows", [300, 150 * W1_GRID])
    def test_the_grid_is_at_quantiles_of_the_scores(self, rows: int) -> None:
        """From different scores and how many have them; of very many examples, from every so
        many."""
        rng = np.random.default_rng(3)
        s = torch.from_numpy(rng.beta(2, 3, rows).round(3))
        every = (
            torch.linspace(0, rows - 1, min(rows, 100 * W1_GRID), dtype=torch.float64)
            .round()
            .long()
        )
        expected = torch.quantile(s.sort().values[every], _W1_GRID).unique()
        assert torch.equal(_grid_edges(Scores.of(s, rng.integers(0, 3, rows))), expected)

    def test_wd_is_the_squared_distance_of_the_histograms(self) -> None:
        """By the assignment of sorted atoms: every bin's share as 10,000ths of the mass."""
        rows = some_rows(2)
        a, b = rows["s"][rows["g"] == 0], rows["s"][rows["g"] == 1]
        heights, edges = np.histogram(a, WD_BINS)
        others, _ = np.histogram(b, edges)
        centers = (edges[:-1] + edges[1:]) / 2
        levels = (np.arange(100_000) + 0.5) / 100_000
        quantile = [
            centers[np.searchsorted(np.cumsum(h) / h.sum(), levels).clip(max=WD_BINS - 1)]
            for h in (heights, others)
        ]
        expected = np.square(quantile[0] - quantile[1]).mean()
        assert wd(Scores.of(rows["s"], rows["g"]), 0, 1) == pytest.approx(expected, rel=1e-3)

    def test_equal_scores(self) -> None:
        scores = Scores.of(np.full(80, 0.3), np.repeat([0, 1], 40))
        assert largest_w1(scores)[0] == IntervalEstimate(0.0, 0.0, 0.0)
        assert largest_wd(scores).value == 0.0


class TestIntervals:
    def test_same_seed_same_digits_and_the_level_matters(self) -> None:
        rows = some_rows(0)
        counts = Counts.of(rows["y"], rows["p"], rows["g"])
        assert metric_intervals(counts, seed=3) == metric_intervals(counts, seed=3)
        narrow, wide = (
            metric_intervals(counts, level=level)["equalized_odds_difference"]
            for level in (0.5, 0.99)
        )
        assert narrow.low > wide.low
        assert narrow.high < wide.high

    def test_weights_that_are_all_equal_change_nothing(self) -> None:
        rows = some_rows(1)
        plain = Counts.of(rows["y"], rows["p"], rows["g"])
        scaled = Counts.of(rows["y"], rows["p"], rows["g"], weights=np.full(len(rows["y"]), 7.5))
        for a, b in zip(plain.rates(), scaled.rates(), strict=True):
            assert torch.allclose(a.double(), b.double(), rtol=1e-9)

    def test_the_largest_of_three_differences_has_tukeys_range(self) -> None:
        """At 95 %, and no wider: three rates of many examples."""
        cells = {name: (k, 2000 - k, 0, 0) for name, k in (("A", 600), ("B", 800), ("C", 1000))}
        found = metric_intervals(Counts.from_cells(cells))["demographic_parity_difference"]
        half = studentized_range.ppf(0.95, 3, np.inf) * np.sqrt((0.3 * 0.7 + 0.5 * 0.5) / 2000 / 2)
        assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), abs=0.04 * half)

    def test_a_rate_of_0_reaches_down_to_0_and_up_from_it(self) -> None:
        found = group_rates(Counts.of([0] * 50, [0] * 50, [0] * 50))["false_positive_rate"][0]
        assert (found.value, found.low) == (0.0, 0.0)
        assert found.high == pytest.approx(1.96**2 / (50 + 1.96**2), abs=1e-4)  # Wilson's

    def test_a_tiny_group_does_not_hide_a_difference_of_large_ones(self) -> None:
        cells = {"A": (300, 700, 0, 0), "B": (500, 500, 0, 0), "tiny": (1, 1, 0, 0)}
        found = metric_intervals(Counts.from_cells(cells))["demographic_parity_difference"]
        assert 0.1 < found.low < 0.2


class TestScale:
    @pytest.mark.parametrize("groups", [150, pytest.param(1000, marks=pytest.mark.slow)])
    def test_many_groups_with_gaps(self, groups: int) -> None:
        """Many of them without a label or a prediction of one sort: no crash."""
        rng, size = np.random.default_rng(0), 12 * groups
        g = rng.integers(0, groups, size)
        y, p, s = rng.random(size) < 0.1, rng.random(size) < 0.2, rng.random(size)
        found = metric_intervals(Counts.of(y, p, g))
        assert found["equalized_odds_difference"].low <= found["equalized_odds_difference"].value
        few = Scores.of(np.tile(s, 3), np.tile(g % (3 * groups // 10), 3))
        assert largest_w1(few)[0].value > 0

    def test_w1_of_many_groups_holds_that_of_the_farthest_pair(self) -> None:
        rng = np.random.default_rng(0)
        g = np.repeat(np.arange(25), 200)
        scores = Scores.of(rng.random(5000) + 0.3 * (g == 7), g)
        found = largest_w1(scores)[0]
        exact = max(w1(scores, i, j) for i in range(25) for j in range(i))
        assert found.value == pytest.approx(exact, rel=1e-9)
        assert 0 < found.low < 0.3 < found.high

    def test_a_far_group_does_not_spoil_the_grid(self) -> None:
        rng = np.random.default_rng(0)
        values = np.concatenate([rng.random(400), np.full(5, 1e4)])
        found = largest_w1(Scores.of(values, np.repeat([0, 1, 2], [200, 200, 5])))[0]
        assert found.high - found.low > 0.02


class TestWeights:
    def test_a_group_whose_weights_are_0_is_absent(self) -> None:
        rows = some_rows(0)
        w = np.where(rows["g"] == 0, 0.0, 1.0)
        here = rows["g"] > 0
        with_it = Counts.of(rows["y"], rows["p"], rows["g"], weights=w)
        without = Counts.of(rows["y"][here], rows["p"][here], rows["g"][here] - 1, names=["1", "2"])
        assert values(with_it) == pytest.approx(values(without), abs=1e-12)
        losses, _ = loss_gaps(Losses.of(rows["s"], rows["g"], weights=w))
        expected, _ = loss_gaps(Losses.of(rows["s"][here], rows["g"][here] - 1, names=["1", "2"]))
        assert {k: m.value for k, m in losses.items()} == pytest.approx(
            {k: m.value for k, m in expected.items()}
        )


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([0, 2], [0, 1], [0, 1]), "labels must be 0 or 1, found 2"),
            (([0, 1], [0.3, 1], [0, 1]), "predictions must be 0 or 1, found 0.3"),
            (([0, 1], [0, 1, 1], [0, 1]), "lengths differ: labels 2, predictions 3, groups 2"),
            (([0, 1], [0, 1], [0.0, 1.0]), "groups must be numbered"),
            (([0, 1], [0, 1], [0, -2]), "found -2"),
            (([0, float("nan")], [0, 1], [0, 1]), "labels must be 0 or 1, found nan"),
            (([[0, 1]], [0, 1], [0, 1]), "one number per example"),
        ],
    )
    def test_counts(self, arguments, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Counts.of(*arguments)

    def test_weights_names_reference_level(self) -> None:
        with pytest.raises(ValueError, match="finite and not negative"):
            Counts.of([0, 1], [0, 1], [0, 1], weights=[1, -1])
        with pytest.raises(ValueError, match="only 1 names"):
            Counts.of([0, 1], [0, 1], [0, 1], names=["A"])
        with pytest.raises(ValueError, match="'C'; there are A and B"):
            values(Counts.of([0, 1], [0, 1], [0, 1], names=["A", "B"]), reference="C")
        with pytest.raises(ValueError, match="got 95"):
            metric_intervals(Counts.of([0, 1], [0, 1], [0, 1]), level=95)
        with pytest.raises(ValueError, match="NaN"):
            Losses.of([float("nan")], [0])
        with pytest.raises(ValueError, match="NaN"):
            Scores.of([float("nan")], [0])
        with pytest.raises(ValueError, match=r"Intersection\.group"):
            Counts.of([0, 1], [0, 1], [0, 2**40])
        with pytest.raises(ValueError, match="got 95"):
            loss_gaps(Losses.of([1.0], [0]), level=95)
        with pytest.raises(ValueError, match="no rate is called 'tpr'"):
            Counts.of([0, 1], [0, 1], [0, 1]).rate("tpr")


def test_few_heavy_examples_count_by_kish() -> None:
    """One success of weight 8 and two failures of weight 1: p (1 - p) / Var would be 4.2 examples,
    Kish says 1.5."""
    counts = Counts.of([0, 0, 0], [1, 0, 0], [0, 0, 0], weights=[8.0, 1.0, 1.0], names=["A"])
    rates = counts.rates()
    at = NAMES.index("positive_rate")
    assert float(rates.values[at, 0]) == pytest.approx(0.8)
    assert float(rates.trials[at, 0]) == pytest.approx(100 / 66)
