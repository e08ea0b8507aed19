"""What is chosen on out-of-fold data: margins, weights, the path of corrections, and what is
dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbound import constraints
from fairbound.integrations.sklearn._corrections import (
    CellMeans,
    ConstraintRows,
    Correction,
    Evaluated,
    ScoredExamples,
    evaluate,
    no_correction,
)
from fairbound.integrations.sklearn._cross_fitting import CrossFitted
from fairbound.integrations.sklearn._selection import (
    MARGIN_ERRORS,
    STRICTNESS,
    Candidate,
    Margins,
    choose,
    correction_path,
    drop_worse,
    group_weights,
    is_constant,
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


def unequal_scores(n: int = 600) -> ScoredExamples:
    """More positive decisions in A, and a known probability of the group."""
    rng = np.random.default_rng(0)
    g = rng.integers(0, 2, n)
    x = rng.standard_normal(n) + 1.2 * (g == 0)
    y = (rng.random(n) < 1 / (1 + np.exp(-x))).astype(int)
    p_a = 1 / (1 + np.exp(-(1.2 * x - 0.72)))
    ratios = torch.from_numpy(np.stack([2 * p_a, 2 * (1 - p_a)], 1))
    return ScoredExamples(
        torch.from_numpy(x), (ratios,), torch.from_numpy(y), {"group": torch.from_numpy(g)}, None
    )


def test_rows_of_the_constraints() -> None:
    rows = ConstraintRows.of((PARITY, LEVEL, EQUAL))
    assert rows.difference.tolist() == [True, True, False, False, False]
    assert rows.equality.tolist() == [False, False, False, False, True]
    assert rows.loss.tolist() == [False, False, True, True, False]


def value(correction: Correction, scores: ScoredExamples) -> Evaluated:
    return evaluate(correction, CellMeans(correction.constraints, scores))


def test_the_room_of_a_ratio_is_the_difference_that_it_allows() -> None:
    scores = unequal_scores()
    rate = float((scores.logits > 0).double().mean())
    ratio = constraints.demographic_parity_ratio(["A", "B"], bound=0.8, by="group")
    room = CellMeans((PARITY, ratio, GAP), scores).room
    torch.testing.assert_close(
        room, torch.cat([PARITY.bound, double(0.2 * rate, 0.2 * rate), GAP.bound])
    )
    assert (margins(CellMeans((ratio,), scores)).every <= 0.2 * rate + 1e-12).all()


def test_margins_are_standard_errors_of_at_most_the_bound_and_none_for_equalities() -> None:
    scores = unequal_scores()
    tight = replace(PARITY, bound=double(0.01, 0.01))
    margin = margins(CellMeans((PARITY, tight, LEVEL, EQUAL), scores))
    errors = MARGIN_ERRORS * CellMeans((PARITY, LEVEL), scores).standard_errors()
    assert 0.01 < errors[0] < 0.1
    torch.testing.assert_close(
        margin.every, torch.cat([errors[:2], double(0.0, 0.0), errors[2:], double(0.0)])
    )
    # two standard errors of 300 people are within .1, and not within .05
    torch.testing.assert_close(
        margin.known, torch.cat([errors[:2], double(0.0, 0.0), errors[2:], double(0.0)])
    )
    assert margin.small == ("A", "B")  # of the second
    large = unequal_scores(4000)
    wide = margins(CellMeans((replace(PARITY, bound=double(0.05, 0.05)),), large))
    torch.testing.assert_close(wide.every, wide.known)
    assert (wide.every > 0).all()
    assert not wide.small


def test_margins_of_a_small_cell_beside_a_large_one() -> None:
    """Of 150 people a margin that may be left out; of 30 and of two small groups none."""
    rng = np.random.default_rng(0)
    g = np.repeat([0, 1, 2, 3], [3000, 150, 140, 30])
    z = rng.standard_normal(len(g))
    scores = ScoredExamples(
        torch.from_numpy(z),
        (),
        torch.zeros(len(g), dtype=torch.int64),
        {"group": torch.from_numpy(g)},
        None,
    )
    parity = replace(constraints.demographic_parity(["A", "B", "C", "D"], bound=0.05), by="group")
    margin = margins(CellMeans((parity,), scores))
    every = dict(zip(parity.names, margin.every.tolist(), strict=True))
    assert every["A - B"] > 0.03
    assert every["B - A"] > 0.03
    assert every["B - C"] == every["A - D"] == 0
    assert not margin.known.any()
    assert margin.small == ("B", "C", "D")


def test_the_path_goes_from_the_tightened_bound_to_no_difference() -> None:
    scores, margin = unequal_scores(), double(0.02, 0.02)
    path = correction_path(CellMeans((PARITY,), scores), Margins(margin, margin, ()), lowest=0.0)
    assert [name for name, _ in path] == [
        f"corrected, strictness {strictness:g}" for strictness in STRICTNESS
    ]
    gaps = [float(value(correction, scores).c[0]) + 0.1 for _, correction in path]
    for strictness, gap in zip(STRICTNESS, gaps, strict=True):  # a decision in 300 is .003
        assert abs(gap) <= 0.1 - (0.02 + strictness * 0.08) + 0.006
    assert gaps[0] > 0.05  # not stricter than asked
    assert float(value(no_correction((PARITY,)), scores).c[0]) > 0.2


def test_where_the_bound_costs_too_much_the_path_goes_up_to_what_it_may_cost() -> None:
    scores, margin = unequal_scores(), double(0.02, 0.02)
    means = CellMeans((PARITY,), scores)
    plain, strict = (
        value(c, scores)
        for c in (
            no_correction((PARITY,)),
            correction_path(means, Margins(margin, margin, ()), 0.0)[0][1],
        )
    )
    lowest = (plain.accuracy + strict.accuracy) / 2
    path = correction_path(means, Margins(margin, margin, ()), lowest)
    looser = [value(correction, scores) for name, correction in path if "looseness" in name]
    affordable = [found for found in looser if found.accuracy >= lowest]
    assert affordable
    assert strict.violation < min(found.violation for found in affordable) < plain.violation - 0.02
    assert any(found.accuracy < lowest for found in looser)  # and no farther


def test_margins_of_small_cells_are_for_nothing_or_not_at_all() -> None:
    """A third group whose margin costs accuracy: the path starts without it."""
    scores = unequal_scores()
    means = CellMeans((PARITY,), scores)
    cautious, known = double(0.1, 0.1), double(0.0, 0.0)
    starts = [
        correction_path(means, Margins(every, known, ()), 0.0)[0][1] for every in (cautious, known)
    ]
    gaps = [float(value(start, scores).c[0]) for start in starts]
    assert gaps[0] == gaps[1] > -0.03  # no difference at all would cost more than .2 points


# The choice ---------------------------------------------------------------------------------------


def candidate(name: str, violation: float, accuracy: float, positive: float = 0.4) -> Candidate:
    shares = double(1 - positive, positive)
    return Candidate(
        name,
        numbered(0),
        no_correction((PARITY,)),
        Evaluated(double(violation, -0.1), accuracy, 0.5, shares),
    )


def test_the_most_accurate_within_the_stated_bounds_is_chosen() -> None:
    strict, loose, plain = (
        candidate("strict", -0.1, 0.7),
        candidate("loose", 0.0, 0.75),
        candidate("plain", 0.2, 0.8),
    )
    assert choose([strict, loose, plain]).name == "loose"
    # ties: the less corrected
    assert choose([strict, loose._replace(value=strict.value), plain]).name == "loose"
    assert choose(
        [strict, candidate("more accurate, by chance", -0.05, 0.76), loose, plain]
    ).name.startswith("more")
    assert choose([plain]).name == "plain"


def test_where_none_is_within_them_a_violation_has_its_price() -> None:
    nobody, fair, plain = (
        candidate("dear", 0.01, 0.4),
        candidate("fair", 0.03, 0.78),
        candidate("plain", 0.2, 0.8),
    )
    assert choose([nobody, fair, plain]).name == "fair"
    assert choose([nobody, plain]).name == "plain"


def test_a_constant_rule_is_one_that_hardly_decides_for_a_class_any_more() -> None:
    plain = candidate("plain", 0.2, 0.8).value
    for positive, differences, levels in (
        (0.03, True, True),
        (0.05, False, False),
        (0.95, True, False),
    ):
        decided = candidate("", 0.0, 0.6, positive).value
        assert is_constant(decided, plain, (PARITY,)) is differences
        assert is_constant(decided, plain, (PARITY, EQUAL)) is levels  # a minimum may ask for .95


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


# Worse candidates ---------------------------------------------------------------------------------


def test_candidates_worse_in_violation_and_accuracy_than_the_unconstrained_are_dropped() -> None:
    scores = unequal_scores()
    # all of A, and none of B
    wrong = scores._replace(logits=1.0 - 2 * scores.groups["group"].double())
    constant = scores._replace(logits=torch.ones(600, dtype=torch.float64))  # no gap, less accuracy
    made = {"wrong": wrong, "constant": constant, "unconstrained": scores}
    values = {name: value(no_correction((PARITY,)), one) for name, one in made.items()}
    assert values["wrong"].violation > values["unconstrained"].violation
    assert values["wrong"].accuracy < values["unconstrained"].accuracy
    assert values["constant"].accuracy < values["unconstrained"].accuracy
    listed = [
        Candidate(name, numbered(0), no_correction((PARITY,)), found)
        for name, found in values.items()
    ]
    assert [candidate.name for candidate in drop_worse(listed)] == ["constant", "unconstrained"]
    assert [candidate.name for candidate in drop_worse(listed[2:])] == ["unconstrained"]


# Weights of the groups ----------------------------------------------------------------------------


def numbered(k: int) -> Any:
    """A model that is known by its number."""
    return CrossFitted(None, torch.tensor([float(k)]))  # type: ignore[arg-type]


def test_the_best_of_the_reweighted_models_or_the_plain_one() -> None:
    values = {0: (0.2, 0.40), 1: (0.1, 0.41), 2: (0.0, 0.45), 3: (-0.05, 0.43), 4: (0.3, 0.3)}
    given: list[Tensor] = []

    def evaluated(one: CrossFitted) -> Evaluated:
        gap, loss = values[int(one.out_of_fold)]
        return Evaluated(double(gap, -0.3), 0.8, loss, double(0.5, 0.5))

    def fit(mu: Tensor) -> Any:
        given.append(mu)
        return numbered(len(given))

    best = reweighted(torch.tensor([True, True]), numbered(0), double(0.0, 0.0), evaluated, fit)
    assert int(best.out_of_fold) == 3  # of those within the bound the smallest loss
    np.testing.assert_allclose([mu[0] for mu in given], [0.5, 0.75, 0.75, 0.625])  # mu + c / .4
    assert all(mu[1] == 0 for mu in given)
    given.clear()
    values.update(dict.fromkeys((1, 2, 3, 4), (0.25, 0.5)))
    assert (
        int(
            reweighted(
                torch.tensor([True, True]), numbered(0), double(0.0, 0.0), evaluated, fit
            ).out_of_fold
        )
        == 0
    )
    # shorter and shorter steps
    np.testing.assert_allclose([mu[0] for mu in given], [0.5, 0.25, 0.125, 0.0625])


def test_only_the_rows_that_weights_serve_move_their_multipliers() -> None:
    def evaluated(one: CrossFitted) -> Evaluated:
        return Evaluated(double(0.2, -0.4, 0.1, -0.3), 0.8, 0.4, double(0.5, 0.5))

    given: list[Tensor] = []

    def fit(mu: Tensor) -> Any:
        given.append(mu)
        return numbered(1)

    reweighted(
        torch.tensor([False, False, True, True]),
        numbered(0),
        double(0, 0, 0.05, 0.05),
        evaluated,
        fit,
    )
    np.testing.assert_allclose(given[0], [0, 0, 0.375, 0])
