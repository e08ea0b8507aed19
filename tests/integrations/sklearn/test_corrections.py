"""Corrections of scores: their formulas, the rules that they give, and the multipliers that are found for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbound import constraints
from fairbound.constraints.constraint import Constraint
from fairbound.integrations.sklearn import corrections
from fairbound.integrations.sklearn.corrections import (
    Correction,
    Evaluated,
    Scores,
    evaluate,
    fit_correction,
    no_correction,
    standard_errors,
)

NAMES = ["A", "B", "C"]
Array = NDArray[np.float64]


@pytest.fixture
def short_dual_ascent() -> None:
    """Here it is as long as users have it."""


def tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def sigmoid(z: Any) -> Array:
    return 1 / (1 + np.exp(-np.asarray(z, dtype=float)))


def random_scores(n: int = 60, classes: int = 2, seed: int = 0, weighted: bool = False) -> Scores:
    """Three groups, all in each label."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal(n if classes == 2 else (n, classes))
    groups = np.arange(n) % 3
    labels = rng.integers(0, classes, n)
    weight = tensor(rng.lognormal(size=n)) if weighted else None
    return Scores(tensor(logits), (), torch.from_numpy(labels), {"group": torch.from_numpy(groups)}, weight)


def by_group(constraint: Constraint) -> Constraint:
    return replace(constraint, by="group")


# Formulas -------------------------------------------------------------------------------------------------------------


def test_rates_shift_logits() -> None:
    """z - log((1 + B) / (1 - B)), B = ratios @ M'mu, |B| at most .98."""
    rng = np.random.default_rng(1)
    parity = constraints.demographic_parity(NAMES, bound=0.1)
    mu, ratios, z = rng.random(6) * 0.2, rng.random((50, 3)) * 3, rng.standard_normal(50)
    M = np.array([[1, -1, 0], [-1, 1, 0], [1, 0, -1], [-1, 0, 1], [0, 1, -1], [0, -1, 1]])
    rows = {"A - B": M[0], "B - A": M[1], "A - C": M[2], "C - A": M[3], "B - C": M[4], "C - B": M[5]}
    a = sum(m * rows[name] for m, name in zip(mu, parity.names, strict=True))
    B = (ratios @ a).clip(-0.98, 0.98)
    found = Correction((parity,), tensor(mu)).apply(tensor(z), [tensor(ratios)])
    np.testing.assert_allclose(found, z - np.log((1 + B) / (1 - B)), rtol=1e-10)
    large = Correction((parity,), tensor(mu * 100)).apply(tensor(z), [tensor(ratios)])
    assert np.isfinite(large.numpy()).all()


def test_losses_scale_logits() -> None:
    """z min(1, sigma(W / kappa) / sigma(1 / kappa)), W = 1 + ratios @ M'mu."""
    rng = np.random.default_rng(2)
    level = constraints.bounded_group_loss(NAMES, bound=0.3)
    gaps = constraints.loss_parity(NAMES, bound=0.1)
    mu, ratios, z = rng.random(9) * np.repeat([0.1, 3.0], [3, 6]), rng.random((50, 3)) * 2, rng.standard_normal(50)
    net = mu[3::2] - mu[4::2]  # a - mean, mean - a
    W = 1 + ratios @ mu[:3] + ratios @ (net - net.sum() / 3)
    T = np.minimum(1, sigmoid(W / 0.25) / sigmoid(4.0))
    found = Correction((level, gaps), tensor(mu)).apply(tensor(z), [tensor(ratios)] * 2)
    np.testing.assert_allclose(found, T * z, rtol=1e-10)
    assert T.min() < 0.9


def test_rates_of_a_class_lower_its_probability_and_losses_scale_all_logits() -> None:
    rng = np.random.default_rng(3)
    parity = constraints.demographic_parity(["A", "B"], bound=0.1, outcome=2)
    gap = constraints.pairwise_loss_parity(["A", "B"], bound=0.1)
    mu, ratios, z = np.array([0.2, 0.0, 0.0, 0.9]), rng.random((40, 2)) * 2, rng.standard_normal((40, 3))
    B = 0.2 * (ratios[:, 0] - ratios[:, 1])
    W = 1 + 0.9 * (ratios[:, 1] - ratios[:, 0])
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    p[:, 2] -= B
    expected = np.log(p.clip(1e-3))
    expected *= np.minimum(1, sigmoid(W / 0.25) / sigmoid(4.0))[:, None]
    found = Correction((parity, gap), tensor(mu)).apply(tensor(z), [tensor(ratios)] * 2)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("classes", [2, 4])
def test_multipliers_of_zero_are_no_correction(classes: int) -> None:
    scores = random_scores(classes=classes)
    own = (constraints.loss_parity(NAMES, bound=0.1), constraints.bounded_group_loss(NAMES, bound=0.3))
    nothing = no_correction(own)
    assert nothing.multipliers.shape == (9,)
    ratios = [torch.rand(60, 3, dtype=torch.float64)] * 2
    assert torch.equal(nothing.apply(scores.logits, ratios), scores.logits)
    # and the formula, not only its shortcut, is continuous there
    nearly = Correction(own, torch.full((9,), 1e-12, dtype=torch.float64))
    torch.testing.assert_close(nearly.apply(scores.logits, ratios), scores.logits)


def test_a_rate_without_a_class_is_refused_for_several_classes() -> None:
    parity = constraints.demographic_parity(["A", "B"], bound=0.1)
    with pytest.raises(ValueError, match="one logit per example, and y has several classes; name one of them"):
        Correction((parity,), tensor([0.1, 0.0])).apply(tensor(np.zeros((5, 3))), [tensor(np.ones((5, 2)))])


@settings(max_examples=100, deadline=None)
@given(
    mu=st.lists(st.floats(0, 1e4), min_size=2, max_size=2),
    logits=st.lists(st.floats(-30, 30).filter(lambda z: abs(z) > 1e-9), min_size=3, max_size=3),
    ratio=st.floats(0, 20),
)
def test_flattening_changes_no_decision(mu: list[float], logits: list[float], ratio: float) -> None:
    """And makes no example more sure."""
    gap = Correction((constraints.pairwise_loss_parity(["A", "B"], bound=0.1),), tensor(mu))
    ratios = [tensor([[ratio, 1.0]] * 3)]
    found = gap.apply(tensor(logits), ratios)
    np.testing.assert_array_equal(found > 0, np.array(logits) > 0)
    assert (found.abs() <= tensor(logits).abs()).all()
    several = gap.apply(tensor([logits]), [tensor([[ratio, 1.0]])])
    assert several[0, int(np.argmax(logits))] == several.max()


def weighted_mean(values: Array, weight: Array | None) -> float:
    return float(np.average(values, weights=weight))


@pytest.mark.parametrize("weighted", [False, True])
def test_evaluated(weighted: bool) -> None:
    """Rates, losses, accuracy and loss against numpy."""
    scores = random_scores(weighted=weighted)
    own = (constraints.demographic_parity(NAMES, bound=0.1), constraints.bounded_group_loss(NAMES, bound=0.5))
    own = tuple(map(by_group, own))
    found = evaluate(no_correction(own), scores)
    z, y, g = scores.logits.numpy(), scores.labels.numpy(), scores.groups["group"].numpy()
    weight = None if scores.weight is None else scores.weight.numpy()
    losses = np.log1p(np.exp(-np.where(y == 1, z, -z)))

    def means(values: Array) -> list[float]:
        return [weighted_mean(values[g == k], None if weight is None else weight[g == k]) for k in range(3)]

    a, b, c = means((z > 0).astype(float))
    expected = [a - b, b - a, a - c, c - a, b - c, c - b]
    order = [own[0].names.index(name) for name in ("A - B", "B - A", "A - C", "C - A", "B - C", "C - B")]
    np.testing.assert_allclose(found.c[:6][order], np.array(expected) - 0.1, atol=1e-12)
    np.testing.assert_allclose(found.c[6:], np.array(means(losses)) - 0.5, atol=1e-12)
    assert found.accuracy == pytest.approx(weighted_mean((z > 0) == y, weight))
    assert found.loss == pytest.approx(weighted_mean(losses, weight))
    assert found.violation == pytest.approx(max(0.0, float(found.c.max())))
    assert found._replace(c=torch.tensor([torch.nan, -1.0])).violation == 0.0


@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors(weighted: bool) -> None:
    """Of a difference of weighted means: the root of sum (w (v - mean) / W)^2 over both cells."""
    scores = random_scores(weighted=weighted)
    opportunity = by_group(constraints.equal_opportunity(NAMES, bound=0.1))
    level = by_group(constraints.bounded_group_loss(NAMES, bound=0.5))
    found = standard_errors((opportunity, level), scores)
    z, y, g = scores.logits.numpy(), scores.labels.numpy(), scores.groups["group"].numpy()
    weight = np.ones(len(z)) if scores.weight is None else scores.weight.numpy()

    def variance(values: Array, cell: NDArray[np.bool_]) -> float:
        w = weight[cell] / weight[cell].sum()
        return float(((w * (values[cell] - w @ values[cell])) ** 2).sum())

    rates = dict(zip("ABC", (variance((z > 0).astype(float), (g == k) & (y == 1)) for k in range(3)), strict=True))
    pairs = [(name.split(",")[0], name.split(" - ")[1].split(",")[0]) for name in opportunity.names]
    np.testing.assert_allclose(found[:6], [np.sqrt(rates[a] + rates[b]) for a, b in pairs], rtol=1e-10)
    losses = np.log1p(np.exp(-np.where(y == 1, z, -z)))
    np.testing.assert_allclose(found[6:], [np.sqrt(variance(losses, g == k)) for k in range(3)], rtol=1e-10)


@pytest.mark.parametrize(("notion", "factor"), [("demographic_parity", 1.0), ("pairwise_loss_parity", 4.0)])
def test_the_first_step_of_the_dual_ascent(notion: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """mu = max(0, factor (c + margin) / row sums of |M diag(E r^2) M'|), from 0."""
    tried: list[Array] = []

    def noted(correction: Correction, scores: Scores) -> Evaluated:
        tried.append(correction.multipliers.numpy().copy())
        return evaluate(correction, scores)

    monkeypatch.setattr(corrections, "evaluate", noted)
    scores = discrete(group_at_prediction=False).scores(notion)
    own = (by_group(constraints.NOTIONS[notion](["A", "B"], bound=0.01)),)
    c = evaluate(no_correction(own), scores).c.numpy()
    ratio, margin = scores.ratios[0].numpy(), np.array([0.004, 0.002])
    M = np.array([[1.0, -1.0], [-1.0, 1.0]])
    curvature = np.abs(M @ np.diag((ratio**2).mean(0)) @ M.T).sum(1)
    expected = np.maximum(0, factor * (c + margin) / curvature)
    assert expected.max() > 0
    fit_correction(own, scores, tensor(margin))
    assert len(tried) > 2
    np.testing.assert_allclose(tried[:2], [np.zeros(2), expected], rtol=1e-10)


# A population that is known -------------------------------------------------------------------------------------------


class Discrete:
    """Every x with its numbers of examples by group and label: probabilities are known, and all rules can be tried."""

    def __init__(self, counts: NDArray[np.int64], group_at_prediction: bool) -> None:
        self.counts, self.group_at_prediction = counts, group_at_prediction  # (values of x, groups, labels)
        table = [(x, g, y) for x, g, y in np.ndindex(*counts.shape) for _ in range(counts[x, g, y])]
        self.x, self.g, self.y = np.array(table).T

    def inputs(self) -> NDArray[np.int64]:
        """What a rule may use: x, or x and the group."""
        return 2 * self.x + self.g if self.group_at_prediction else self.x

    def scores(self, notion: str) -> Scores:
        """The true probabilities of label and cells."""
        positive, total = self.counts[:, :, 1], self.counts.sum(2)
        n = total.sum()
        p = positive.sum(1) / total.sum(1)
        cell = positive if notion == "equal_opportunity" else total  # (values of x, groups)
        if self.group_at_prediction:
            of_x = np.eye(2)[self.g] * (p[self.x][:, None] if notion == "equal_opportunity" else 1)
        else:
            of_x = (cell / total.sum(1, keepdims=True))[self.x]
        ratios = of_x / (cell.sum(0) / n)
        groups = {"group": torch.from_numpy(self.g)}
        return Scores(tensor(np.log(p / (1 - p))[self.x]), (tensor(ratios),), torch.from_numpy(self.y), groups, None)

    def rules(self, notion: str) -> tuple[Array, Array]:
        """The signed gap A - B and the accuracy of every rule."""
        inputs = self.inputs()
        k = int(inputs.max()) + 1
        rules = np.array(list(product([0, 1], repeat=k)))  # (2^k, k)

        def rate(cell: NDArray[np.bool_]) -> Array:
            return np.asarray(rules @ np.bincount(inputs[cell], minlength=k) / cell.sum())

        label = self.y == 1 if notion == "equal_opportunity" else np.ones(len(self.y), dtype=bool)
        gap = rate((self.g == 0) & label) - rate((self.g == 1) & label)
        share = (self.y == 1).mean()
        return gap, rate(self.y == 1) * share + (1 - rate(self.y == 0)) * (1 - share)


def discrete(group_at_prediction: bool) -> Discrete:
    """A is in the values of x with many positive labels.

    Without the group at prediction labels of B are also rarer at the same x; with it they depend on x only.
    """
    rng = np.random.default_rng(5)
    values = 5 if group_at_prediction else 10
    p = np.linspace(0.12, 0.9, values)[rng.permutation(values)]
    of_a = 0.15 + 0.7 * p + 0.1 * rng.random(values)
    size = rng.integers(80, 200, values)
    counts = np.empty((values, 2, 2))
    for group, (share, rarer) in enumerate([(of_a, 1.0), (1 - of_a, 1.0 if group_at_prediction else 0.85)]):
        counts[:, group, 1] = size * share * p * rarer
        counts[:, group, 0] = size * share - counts[:, group, 1]
    return Discrete(counts.round().astype(np.int64), group_at_prediction)


known_population = pytest.mark.parametrize("notion", ["demographic_parity", "equal_opportunity"])
both_informations = pytest.mark.parametrize("group_at_prediction", [False, True])


@known_population
@both_informations
def test_for_all_multipliers_no_rule_is_better(notion: str, group_at_prediction: bool) -> None:
    """Bias scores, and thresholds by group: of all rules with a gap as small, the corrected one is most accurate."""
    population = discrete(group_at_prediction)
    gaps, accuracies = population.rules(notion)
    scores = population.scores(notion)
    parity = by_group(constraints.NOTIONS[notion](["A", "B"], bound=0.0))
    seen = set()
    for mu in np.linspace(0, 0.8, 81):
        found = evaluate(Correction((parity,), tensor([mu, 0.0])), scores)
        gap = float(found.c[0])
        best = accuracies[gaps <= gap + 1e-9].max()
        assert found.accuracy == pytest.approx(best, abs=1e-3 if group_at_prediction else 1e-9)
        seen.add(round(gap, 9))
    assert len(seen) >= 4


@known_population
@both_informations
def test_the_best_rule_within_a_bound_is_found(notion: str, group_at_prediction: bool) -> None:
    """The bound is that of a rule on the front, so that no randomized rule would be better."""
    population = discrete(group_at_prediction)
    gaps, accuracies = population.rules(notion)
    scores = population.scores(notion)
    path = [
        evaluate(Correction((by_group(constraints.NOTIONS[notion](["A", "B"], bound=0.0)),), tensor([mu, 0.0])), scores)
        for mu in np.linspace(0, 0.8, 201)
    ]
    fronts = sorted({round(float(found.c[0]), 9) for found in path if found.c[0] > 0})[:-1]
    assert fronts
    for gap in fronts:
        own = (by_group(constraints.NOTIONS[notion](["A", "B"], bound=gap + 0.0004)),)
        found = evaluate(fit_correction(own, scores, torch.zeros(2, dtype=torch.float64)), scores)
        assert found.violation == 0
        best = accuracies[np.abs(gaps) <= gap + 0.0004].max()
        assert found.accuracy == pytest.approx(best, abs=1e-3 if group_at_prediction else 1e-9)


def test_a_loss_gap_is_closed_by_flattening_alone() -> None:
    """The multipliers that are found bring the gap to the tightened bound, at a smaller loss than one temperature."""
    rng = np.random.default_rng(0)
    g = (rng.random(4000) < 0.3).astype(int)
    x = rng.standard_normal(4000) + np.where(g == 1, 0.0, 2.0)
    y = (rng.random(4000) < sigmoid(2 * x)).astype(int)
    p_b = 0.3 * np.exp(-(x**2) / 2) / (0.3 * np.exp(-(x**2) / 2) + 0.7 * np.exp(-((x - 2) ** 2) / 2))
    ratios = tensor(np.stack([(1 - p_b) / 0.7, p_b / 0.3], 1))
    scores = Scores(tensor(2 * x), (ratios,), torch.from_numpy(y), {"group": torch.from_numpy(g)}, None)
    own = (by_group(constraints.pairwise_loss_parity(["A", "B"], bound=0.05)),)
    before = evaluate(no_correction(own), scores)
    correction = fit_correction(own, scores, tensor([0.01, 0.01]))
    after = evaluate(correction, scores)
    assert before.violation > 0.1
    assert float(after.c.max()) <= -0.01 + 5e-4 + 1e-9  # keys are rounded to a thousandth
    assert float(after.c.max()) > -0.02  # and not far inside
    assert after.accuracy == before.accuracy
    tempered = [evaluate(no_correction(own), scores._replace(logits=t * scores.logits)) for t in np.linspace(0, 1, 101)]
    assert after.loss < min(one.loss for one in tempered if one.violation == 0)


def test_an_equality_is_met_from_both_sides() -> None:
    scores = discrete(group_at_prediction=False).scores("demographic_parity")
    for rate in (0.3, 0.7):
        own = (by_group(constraints.minimum_rate(rate, equality=True)),)
        ratios = torch.ones(len(scores.labels), 1, dtype=torch.float64)
        scores = scores._replace(ratios=(ratios,))
        found = evaluate(fit_correction(own, scores, torch.zeros(1, dtype=torch.float64)), scores)
        assert abs(float(found.c[0])) < 0.12  # as near as ten values of x allow


def test_a_bound_that_holds_is_left_alone() -> None:
    scores = discrete(group_at_prediction=False).scores("demographic_parity")
    own = (by_group(constraints.demographic_parity(["A", "B"], bound=0.9)),)
    assert not fit_correction(own, scores, torch.zeros(2, dtype=torch.float64)).multipliers.any()


def test_a_start_is_continued() -> None:
    scores = discrete(group_at_prediction=False).scores("demographic_parity")
    own = (by_group(constraints.demographic_parity(["A", "B"], bound=0.1)),)
    first = fit_correction(own, scores, torch.zeros(2, dtype=torch.float64))
    again = fit_correction(own, scores, torch.zeros(2, dtype=torch.float64), first)
    assert evaluate(again, scores).accuracy >= evaluate(first, scores).accuracy
    assert evaluate(again, scores).violation <= evaluate(first, scores).violation + 5e-4
