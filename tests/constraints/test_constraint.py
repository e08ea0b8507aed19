"""Constraints against their definitions, computed directly from rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairbound import Dataset, Problem
from fairbound.constraints.cells import Cells
from fairbound.constraints.constraint import FunctionConstraint, combine
from fairbound.constraints.contrasts import against_pooled, pairwise
from fairbound.constraints.notions import (
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_positive_parity,
    loss_parity,
    pairwise_loss_parity,
    true_positive_parity,
)
from fairbound.constraints.statistics import soft_positive

ROWS = 90
GENERATOR = np.random.default_rng(0)
GROUP = torch.tensor(np.arange(ROWS) % 3)
LABEL = torch.tensor(GENERATOR.integers(0, 2, ROWS)).double()
LOGIT = torch.tensor(GENERATOR.normal(size=ROWS))


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def measured(constraint) -> np.ndarray:
    """c over all rows for a model whose outputs are the fixed logits."""
    data = Dataset(LOGIT[:, None], LABEL)
    problem = Problem(lambda x, X: X[:, 0] * x[0], loss, constraint, data)
    return problem.measure(torch.ones(1, dtype=torch.float64), torch.arange(ROWS)).c[0].numpy()


def means(values: Tensor, *conditions: Tensor) -> list[float]:
    """The mean of the values over each group, under the conditions."""
    chosen = torch.ones(ROWS, dtype=torch.bool)
    for condition in conditions:
        chosen &= condition
    return [float(values[(g == GROUP) & chosen].mean()) for g in range(3)]


LOSS, SCORE = loss(LOGIT, LABEL), torch.sigmoid(LOGIT)
PAIRS = list(itertools.combinations(range(3), 2))


def test_loss_parity_is_eq_4() -> None:
    l = means(LOSS)  # noqa: E741
    expected = [sign * (v - np.mean(l)) - 0.05 for v in l for sign in (1, -1)]
    assert np.allclose(measured(loss_parity(GROUP, bound=0.05)), expected)


def test_loss_parity_against_the_pooled_mean() -> None:
    shares = [0.5, 0.3, 0.2]
    l = means(LOSS)  # noqa: E741
    expected = [sign * (v - np.dot(shares, l)) - 0.05 for v in l for sign in (1, -1)]
    assert np.allclose(measured(loss_parity(GROUP, bound=0.05, contrast=against_pooled(shares))), expected)


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        (pairwise_loss_parity(GROUP, bound=0.1), means(LOSS)),
        (loss_parity(GROUP, bound=0.1, contrast=pairwise), means(LOSS)),
        (equal_opportunity(GROUP, LABEL, bound=0.1), means(LOSS, LABEL == 1)),
        (demographic_parity(GROUP, bound=0.1), means(SCORE)),
        (true_positive_parity(GROUP, LABEL, bound=0.1), means(SCORE, LABEL == 1)),
        (false_positive_parity(GROUP, LABEL, bound=0.1), means(SCORE, LABEL == 0)),
    ],
)
def test_pairwise_notions(constraint, values: list[float]) -> None:
    expected = [sign * (values[i] - values[j]) - 0.1 for i, j in PAIRS for sign in (1, -1)]
    assert np.allclose(measured(constraint), expected)
    assert constraint.m == 6  # m (m - 1) pairs and signs, not m (m + 1)


@pytest.mark.parametrize("value", [None, soft_positive])
def test_equalized_odds_bounds_the_sum_of_both_gaps(value) -> None:
    per_row = LOSS if value is None else SCORE
    positive, negative = means(per_row, LABEL == 1), means(per_row, LABEL == 0)
    c = measured(equalized_odds(GROUP, LABEL, bound=0.2, value=value))
    for rows, (i, j) in zip(c.reshape(3, 4), PAIRS, strict=True):
        total = abs(positive[i] - positive[j]) + abs(negative[i] - negative[j])
        assert rows.max() == pytest.approx(total - 0.2)


def test_absolute_rows_are_the_larger_of_the_two_sides() -> None:
    from dataclasses import replace

    both = loss_parity(GROUP, bound=0.05)
    one = replace(both, contrast=both.contrast[::2], bound=both.bound[::2], names=both.names[::2], absolute=True)
    assert np.allclose(measured(one), measured(both).reshape(3, 2).max(1))
    statistics = torch.tensor([0.2, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    jacobian = one.linearized(statistics.detach())[1]
    expected = torch.autograd.functional.jacobian(lambda s: one.linearized(s)[0], statistics)
    assert torch.allclose(jacobian, expected)


def test_unit_arrays_of_the_reference() -> None:
    """metrics.md: scores (.2,.6,.9,.8), groups (0,0,1,1), labels (0,1,0,1): soft PR .4/.85, TPR .6/.8, FPR .2/.9."""
    group, label = torch.tensor([0, 0, 1, 1]), torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    logits = torch.logit(torch.tensor([0.2, 0.6, 0.9, 0.8], dtype=torch.float64))
    for constraint, gap in (
        (demographic_parity(group, bound=0.0), 0.45),
        (true_positive_parity(group, label, bound=0.0), 0.2),
        (false_positive_parity(group, label, bound=0.0), 0.7),
    ):
        problem = Problem(lambda x, X: X[:, 0] + x[0], loss, constraint, Dataset(logits[:, None], label))
        c = problem.measure(torch.zeros(1, dtype=torch.float64), torch.arange(4)).c[0]
        assert c.tolist() == pytest.approx([-gap, gap])


def test_together_keeps_each_part() -> None:
    other = (torch.arange(ROWS) < 40).long()
    norm = FunctionConstraint(
        Cells.by_group(GROUP), lambda x, outputs, labels: (x @ x - 2).reshape(1) + 0 * outputs[0].mean(), ("norm",)
    )
    parts = (pairwise_loss_parity(GROUP, bound=0.1), norm, demographic_parity(other, bound=0.2))
    combined = combine(*parts)
    assert combined.names == sum((part.names for part in parts), ())
    assert np.allclose(measured(combined), np.concatenate([measured(part) for part in parts]))
    assert not combined.averages
    assert combine(parts[0], parts[2]).averages


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.floats(0, 1))
def test_contrasts_see_differences_only(values: list[float], shift: float) -> None:
    """A constant added to every cell changes nothing, and rows come in opposite pairs."""
    groups = torch.arange(len(values))
    cells = torch.tensor(values, dtype=torch.float64)
    for build in (pairwise_loss_parity, loss_parity):
        constraint = build(groups, bound=0.3)
        c = constraint.linearized(cells)[0]
        assert torch.allclose(c, constraint.linearized(cells + shift)[0], atol=1e-12)
        assert torch.allclose(c[::2] + c[1::2], torch.tensor(-0.6, dtype=torch.float64))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: pairwise_loss_parity(torch.tensor([0, 0]), bound=0.1), "needs at least two cells"),
        (lambda: pairwise_loss_parity(torch.tensor([0.0, 1.0]), bound=0.1), "whole numbers"),
        (lambda: pairwise_loss_parity(torch.tensor([-1, 1]), bound=0.1), "numbered 0, 1"),
        (lambda: pairwise_loss_parity(torch.tensor([0, 1]), bound=-0.1), "bounds must be finite and >= 0"),
        (lambda: pairwise_loss_parity(torch.tensor([0, 1]), bound=float("nan")), "bounds must be finite"),
        (lambda: pairwise_loss_parity(torch.tensor([0, 2]), bound=0.1, names=["a", "b"]), "only 2 names"),
        (lambda: equal_opportunity(torch.tensor([0, 1]), torch.ones(3), bound=0.1), "labels"),
        (lambda: combine(), "at least one"),
        (lambda: against_pooled([100, 300]), "sum to 1"),
        (lambda: soft_positive(torch.zeros(4, 3), torch.zeros(4)), "one logit per row"),
    ],
)
def test_bad_constraints_are_sentences(build, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()
