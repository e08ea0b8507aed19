"""What is chosen on out-of-fold data: margins, weights, the path of corrections, and what is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbound import constraints
from fairbound.integrations.sklearn.corrections import Evaluated, Scores, evaluate, no_correction, standard_errors
from fairbound.integrations.sklearn.cross_fitting import CrossFitted
from fairbound.integrations.sklearn.selection import (
    MARGIN_ERRORS,
    STRICTNESS,
    Candidate,
    ConstraintRows,
    correction_path,
    drop_worse,
    group_weights,
    margins,
    reweighted,
)

NAMES = ["A", "B"]
PARITY = replace(constraints.demographic_parity(NAMES, bound=0.1), by="group")
GAP = replace(constraints.pairwise_loss_parity(NAMES, bound=0.1), by="group")
LEVEL = replace(constraints.bounded_group_loss(NAMES, bound=0.5), by="group")
EQUAL = replace(constraints.minimum_rate(0.4, equality=True), by="group")


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def unequal_scores(n: int = 600) -> Scores:
    """More positive decisions in A, and a known probability of the group."""
    rng = np.random.default_rng(0)
    g = rng.integers(0, 2, n)
    x = rng.standard_normal(n) + 1.2 * (g == 0)
    y = (rng.random(n) < 1 / (1 + np.exp(-x))).astype(int)
    p_a = 1 / (1 + np.exp(-(1.2 * x - 0.72)))
    ratios = torch.from_numpy(np.stack([2 * p_a, 2 * (1 - p_a)], 1))
    return Scores(torch.from_numpy(x), (ratios,), torch.from_numpy(y), {"group": torch.from_numpy(g)}, None)


def test_rows_of_the_constraints() -> None:
    rows = ConstraintRows.of((PARITY, LEVEL, EQUAL))
    assert rows.difference.tolist() == [True, True, False, False, False]
    assert rows.equality.tolist() == [False, False, False, False, True]
    assert rows.loss.tolist() == [False, False, True, True, False]
    assert rows.bound.tolist() == [0.1, 0.1, 0.5, 0.5, -0.4]
    assert rows.correctable
    assert ConstraintRows.of((GAP,)).correctable
    assert not ConstraintRows.of((LEVEL,)).correctable


def test_margins_are_standard_errors_of_at_most_the_bound_and_none_for_equalities() -> None:
    scores = unequal_scores()
    tight = replace(PARITY, bound=double(0.01, 0.01))
    found = margins((PARITY, tight, LEVEL, EQUAL), scores)
    errors = MARGIN_ERRORS * standard_errors((PARITY, LEVEL), scores)
    assert 0.01 < errors[0] < 0.1
    torch.testing.assert_close(found, torch.cat([errors[:2], double(0.01, 0.01), errors[2:], double(0.0)]))


def test_the_path_goes_from_the_tightened_bound_to_no_difference() -> None:
    scores, margin = unequal_scores(), double(0.02, 0.02)
    path = correction_path((PARITY,), scores, margin)
    assert len(path) == len(STRICTNESS)
    gaps = [float(evaluate(one, scores).c[0]) + 0.1 for one in path]
    for strictness, gap in zip(STRICTNESS, gaps, strict=True):  # a decision in 300 is .003
        assert abs(gap) <= 0.1 - (0.02 + strictness * 0.08) + 0.006
    assert gaps[0] > 0.05  # not stricter than asked
    assert float(evaluate(no_correction((PARITY,)), scores).c[0]) > 0.2


def test_group_weights() -> None:
    """w_g = 1 + (M'mu)_g / share_g, between .1 and 10."""
    groups, labels = {"group": torch.tensor([0] * 6 + [1] * 2)}, torch.zeros(8, dtype=torch.int64)
    found = group_weights((GAP, LEVEL), double(0.0, 0.3, 0.2, 0.1), groups, labels)
    a, b = 1 + (-0.3 + 0.2) / 0.75, 1 + (0.3 + 0.1) / 0.25
    np.testing.assert_allclose(found, [a] * 6 + [b] * 2)
    capped = group_weights((GAP,), double(0.0, 5.0), groups, labels)
    assert capped.tolist() == [0.1] * 6 + [10.0] * 2
    odds = replace(constraints.equal_opportunity(NAMES, bound=0.1, of="loss"), by="group")
    labels = torch.tensor([1, 0, 0, 0, 0, 0, 1, 0])
    found = group_weights((odds,), double(0.05, 0.0), groups, labels)
    np.testing.assert_allclose(found, [1 + 0.05 * 8, 1, 1, 1, 1, 1, 1 - 0.05 * 8, 1])


# Worse candidates -----------------------------------------------------------------------------------------------------


def test_candidates_worse_in_violation_and_accuracy_than_the_unconstrained_are_dropped() -> None:
    scores = unequal_scores()
    wrong = scores._replace(logits=1.0 - 2 * scores.groups["group"].double())  # all of A, and none of B
    constant = scores._replace(logits=torch.ones(600, dtype=torch.float64))  # no gap, less accuracy
    made = {"wrong": wrong, "constant": constant, "unconstrained": scores}
    values = {name: evaluate(no_correction((PARITY,)), one) for name, one in made.items()}
    assert values["wrong"].violation > values["unconstrained"].violation
    assert values["wrong"].accuracy < values["unconstrained"].accuracy
    assert values["constant"].accuracy < values["unconstrained"].accuracy
    listed = [Candidate(name, numbered(0), no_correction((PARITY,)), value) for name, value in values.items()]
    assert [candidate.name for candidate in drop_worse(listed)] == ["constant", "unconstrained"]
    assert [candidate.name for candidate in drop_worse(listed[2:])] == ["unconstrained"]


# Weights of the groups ------------------------------------------------------------------------------------------------


def test_weights_are_for_bounds_on_losses_themselves() -> None:
    assert ConstraintRows.of((PARITY, GAP, LEVEL)).weighted.tolist() == [False] * 4 + [True] * 2


def numbered(k: int) -> Any:
    """A model that is known by its number."""
    return CrossFitted(None, torch.tensor([float(k)]))  # type: ignore[arg-type]


def test_the_best_of_the_reweighted_models_or_the_plain_one() -> None:
    values = {0: (0.2, 0.40), 1: (0.1, 0.41), 2: (0.0, 0.45), 3: (-0.05, 0.43), 4: (0.3, 0.3)}
    given: list[Tensor] = []

    def evaluated(one: CrossFitted) -> Evaluated:
        gap, loss = values[int(one.out_of_fold)]
        return Evaluated(double(gap, -0.3), 0.8, loss)

    def fit(mu: Tensor) -> Any:
        given.append(mu)
        return numbered(len(given))

    best = reweighted(torch.tensor([True, True]), numbered(0), double(0.0, 0.0), evaluated, fit)
    assert int(best.out_of_fold) == 3  # of those within the bound the smallest loss
    np.testing.assert_allclose([mu[0] for mu in given], [0.5, 0.75, 0.75, 0.625])  # mu + c / .4
    assert all(mu[1] == 0 for mu in given)
    given.clear()
    values.update(dict.fromkeys((1, 2, 3, 4), (0.25, 0.5)))
    assert int(reweighted(torch.tensor([True, True]), numbered(0), double(0.0, 0.0), evaluated, fit).out_of_fold) == 0
    np.testing.assert_allclose([mu[0] for mu in given], [0.5, 0.25, 0.125, 0.0625])  # shorter and shorter steps


def test_only_the_rows_that_weights_serve_move_their_multipliers() -> None:
    def evaluated(one: CrossFitted) -> Evaluated:
        return Evaluated(double(0.2, -0.4, 0.1, -0.3), 0.8, 0.4)

    given: list[Tensor] = []

    def fit(mu: Tensor) -> Any:
        given.append(mu)
        return numbered(1)

    reweighted(torch.tensor([False, False, True, True]), numbered(0), double(0, 0, 0.05, 0.05), evaluated, fit)
    np.testing.assert_allclose(given[0], [0, 0, 0.375, 0])
