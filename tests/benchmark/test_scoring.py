"""Scores against numbers computed by hand, and what a ranking must not depend on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fairbound.benchmark.board.results import Curves
from fairbound.benchmark.board.scoring import (
    LAST,
    areas,
    bootstrap,
    hits,
    known_hits,
    met,
    speed,
)
from fairbound.benchmark.problems import Reference

# Targets: loss at most 1 + (.3, .1, .03, .01), violation at most (.02, .006, .002, .0006)
REFERENCE = Reference(loss=1.0, start=2.0, scale=0.02, residual=None, exact=False, how="by hand")


def curves(epochs: Any, loss: Any, violation: Any, **further: Any) -> Curves:
    loss, violation = np.atleast_2d(np.asarray(loss, float)), np.atleast_2d(np.asarray(violation, float))
    return Curves(epochs=np.asarray(epochs, float), loss=loss, violation=violation, mean_violation=violation, **further)


def score(one: Curves, last: float = LAST) -> float:
    return float(areas(hits(one, REFERENCE), last).mean())


# Computed by hand -----------------------------------------------------------------------------------------------------


def test_all_targets_at_ten_epochs_score_one_half() -> None:
    one = curves([1, 10, 50, 100], [2, 1, 1, 1], [1, 0, 0, 0])
    assert (hits(one, REFERENCE) == 10.0).all()
    assert score(one) == pytest.approx(0.5)


def test_loss_within_one_tenth_and_a_violation_of_a_quarter_of_the_scale() -> None:
    # Loss 1.08 meets .3 and .1; violation .005 meets 1 and .3: four of 16 targets, at 10^.5 epochs: area .75 each
    one = curves([1, 10**0.5, 10, 100], [1.5, 1.08, 1.08, 1.08], [0.0, 0.005, 0.005, 0.005])
    expected = np.full((4, 4), math.inf)
    expected[:2, :2] = 10**0.5
    np.testing.assert_allclose(hits(one, REFERENCE)[0], expected)
    assert score(one) == pytest.approx(4 * 0.75 / 16)


def test_a_lucky_point_and_the_last_two_count_for_nothing() -> None:
    # Feasible at point 1 alone, then from point 3 on for good; loss meets every target throughout
    violation = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    one = curves([1, 2, 4, 10, 20, 100], [1.0] * 6, violation)
    assert (hits(one, REFERENCE) == 10.0).all()
    shorter = curves([1, 2, 4, 10, 20], [1.0] * 5, violation[:5])  # point 3 has one successor
    assert np.isinf(hits(shorter, REFERENCE)).all()
    assert score(shorter) == 0.0
    assert np.isinf(hits(curves([1, 2], [1, 1], [0, 0]), REFERENCE)).all()


def test_not_a_number_is_a_miss() -> None:
    one = curves([1, 10, 50, 60, 100], [[1, math.nan, 1, 1, 1], [1, 1, 1, math.nan, math.inf]], np.zeros((2, 5)))
    found = hits(one, REFERENCE)
    assert (found[0] == 50.0).all()
    assert (found[1] == 1.0).all()  # reached before it diverged
    nothing = curves([1, 10, 100], [[math.nan] * 3], [[math.nan] * 3])
    assert score(nothing) == 0.0


def test_known_answers_by_distance_or_by_loss_and_violation() -> None:
    near = curves([1, 10, 50, 100], [9, 9, 9, 9], [9, 9, 9, 9], distance=np.array([[1.0, 0.05, 0.05, 0.05]]))
    np.testing.assert_allclose(known_hits(near, REFERENCE), [[10, 10, math.inf, math.inf]])
    # No unique x*: a loss below the solution's is as wrong as one above
    below = curves([1, 10, 50, 100], [0.75] * 4, [0.001] * 4)
    np.testing.assert_allclose(known_hits(below, REFERENCE), [[1, math.inf, math.inf, math.inf]])
    infeasible = curves([1, 10, 50, 100], [1.0] * 4, [0.0019] * 4)  # .095 of the scale
    np.testing.assert_allclose(known_hits(infeasible, REFERENCE), [[1, 1, math.inf, math.inf]])


def test_ends_of_runs_meet_a_share_of_targets() -> None:
    found = met(np.array([1.0, 1.2, math.nan]), np.array([0.0, 0.01, 0.0]), REFERENCE)
    np.testing.assert_allclose(found.mean((1, 2)), [1.0, 1 / 16, 0.0])


def test_a_start_below_the_reference_has_targets_above_it() -> None:
    lower = Reference(loss=1.0, start=0.0, scale=0.02, residual=None, exact=False, how="by hand")
    assert (hits(curves([1, 10, 100], [1.0] * 3, [0.0] * 3), lower) == 1.0).all()


def test_secondary_figures() -> None:
    epochs = {
        "fast": [np.array([2.0, 4.0, 8.0]), np.array([math.inf, 10.0, 10.0])],
        "DescentAscent": [np.array([8.0, 8.0, 8.0]), np.array([math.inf, math.inf, 10.0])],
        "absent": [np.empty(0), np.empty(0)],
    }
    found = speed(epochs, [100.0, 100.0])
    assert found["fast"].epochs == 10.0  # of 4 and 10, the upper
    assert found["fast"].reached == pytest.approx((1 + 2 / 3) / 2)
    assert found["fast"].speed_up == pytest.approx(math.sqrt(8 / 4 * 100 / 10))
    assert found["DescentAscent"].speed_up == 1.0
    assert (found["absent"].epochs, found["absent"].reached) == (math.inf, 0.0)
    assert math.isnan(speed({"fast": epochs["fast"]}, [100.0, 100.0])["fast"].speed_up)


# A longer budget ------------------------------------------------------------------------------------------------------


def test_five_percent_more_epochs_move_a_score_by_at_most_one_hundredth() -> None:
    random = np.random.default_rng(0)
    most = math.log(1.05) / math.log(100)
    found = np.exp(random.uniform(-1, math.log(105), (200, 16)))
    found[random.random(found.shape) < 0.2] = math.inf
    before = areas(np.where(found > LAST, math.inf, found)).mean(1)  # what comes after the end is not seen
    assert np.abs(areas(found, 1.05 * LAST).mean(1) - before).max() <= most  # the budget's end moves
    assert np.abs(areas(1.05 * found).mean(1) - areas(found).mean(1)).max() <= most  # every hit moves


# Rankings -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs() -> list[list[Any]]:
    """Three methods, six problems, five seeds: the first is better in every seed, the others are alike."""
    random = np.random.default_rng(1)
    level, noise = random.uniform(0.3, 0.5, 6), random.uniform(0, 0.05, (3, 6, 5))
    return [[level[p] + noise[m, p] + (0.2 if m == 0 else 0.0) for p in range(6)] for m in range(3)]


def test_better_in_every_seed_is_first(runs: list[list[Any]]) -> None:
    found = bootstrap(runs)
    assert found.rank.tolist() == [1, 2, 2]
    assert found.first.tolist() == [1.0, 0.0, 0.0]
    assert found.order[0] == 0
    assert found.rank_range.tolist()[0] == [1, 1]
    np.testing.assert_allclose(found.score, [np.mean([one.mean() for one in method]) for method in runs])
    assert (found.interval[:, 0] < found.score).all()
    assert (found.score < found.interval[:, 1]).all()
    assert found.difference_interval[0, 1, 0] > 0.0
    np.testing.assert_allclose(found.difference_interval[0, 1], -found.difference_interval[1, 0][::-1])


def test_another_method_moves_no_score_or_interval(runs: list[list[Any]]) -> None:
    before = bootstrap(runs)
    random = np.random.default_rng(2)
    added = [random.random(5), random.random(7), *[np.empty(0)] * 4]  # more runs on one problem, none on others
    after = bootstrap([*runs, added])
    np.testing.assert_array_equal(after.score[:3], before.score)
    np.testing.assert_array_equal(after.interval[:3], before.interval)
    np.testing.assert_array_equal(after.difference_interval[:3, :3], before.difference_interval)


def test_a_copy_under_another_name_shares_the_rank(runs: list[list[Any]]) -> None:
    found = bootstrap([*runs, runs[0], runs[2]])
    assert found.rank.tolist() == [1, 3, 3, 1, 3]
    assert found.first[[0, 3]].tolist() == [0.5, 0.5]
    assert (found.difference_interval[0, 3] == 0.0).all()


def test_no_runs_count_as_zero(runs: list[list[Any]]) -> None:
    partial = [runs[0][0], *[np.empty(0)] * 5]
    found = bootstrap([runs[0], partial])
    assert found.score[1] == pytest.approx(runs[0][0].mean() / 6)
    assert found.rank.tolist() == [1, 2]


def test_one_problem_is_a_bootstrap_over_seeds_alone() -> None:
    same = [[np.full(5, 0.7)], [np.full(5, 0.6)]]
    found = bootstrap(same)
    np.testing.assert_allclose(found.interval, [[0.7, 0.7], [0.6, 0.6]])
    assert found.rank.tolist() == [1, 2]
    assert found.rank_range.tolist() == [[1, 1], [2, 2]]
    single = bootstrap([[np.array([0.7])], [np.array([0.6])]])  # one run says nothing
    assert np.isnan(single.interval).all()
    assert single.rank.tolist() == [1, 1]
    assert single.first.tolist() == [1.0, 0.0]


def test_interval_of_few_seeds_is_as_wide_as_students() -> None:
    values = np.array([0.40, 0.44, 0.47, 0.42, 0.50])
    half = 2.776 * values.std(ddof=1) / math.sqrt(5)  # t of 4 degrees of freedom
    low, high = bootstrap([[values]]).interval[0]
    assert (high - low) / 2 == pytest.approx(half, rel=0.06)
    assert bootstrap([[values], [np.empty(0)]]).rank.tolist() == [1, 2]


def test_equal_methods_are_rarely_told_apart() -> None:
    random = np.random.default_rng(3)
    apart = [bootstrap([[random.random(5)], [random.random(5)]]).rank.max() > 1 for _ in range(400)]
    assert np.mean(apart) < 0.1  # .05 is wanted, .06 expected, with a standard error of .012; .16 without widening
