"""Shares against numbers computed by hand, and what they must not depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbound.benchmark._page import Page
from fairbound.benchmark._stored_study import Card, EntryInfo
from fairbound.benchmark.board._findings import overall
from fairbound.benchmark.board._results import Board, Curves, InstanceName
from fairbound.benchmark.board._scoring import bootstrap, end_merit, merit, reached
from fairbound.benchmark.board._section import board_section
from fairbound.benchmark.problems import Reference
from fairbound.benchmark.problems._changes import CHANGES

# A tenth of the loss gap is 0.1, a tenth of the scale 0.002
REFERENCE = Reference(loss=1.0, start=2.0, scale=0.02, residual=None, exact=False, how="by hand")


# By hand ------------------------------------------------------------------------------------------


def test_merit_is_the_larger_of_loss_gap_and_violation_and_the_end_is_the_median_of_three() -> None:
    loss, violation = [[2.0, 1.05, 1.05, 0.9, 1.4]], [[0.0, 0.0, 0.004, 0.001, 0.0]]
    # max(1, 0), max(.05, 0), max(.05, .2), max(-.1, .05), max(.4, 0)
    np.testing.assert_allclose(
        merit(loss, violation, None, REFERENCE), [[1.0, 0.05, 0.2, 0.05, 0.4]]
    )
    assert end_merit(loss, violation, None, REFERENCE) == pytest.approx([0.2])  # of .2, .05 and .4
    exact = replace(REFERENCE, exact=True)
    # below the solution is infeasible
    np.testing.assert_allclose(merit(0.9, 0.001, None, exact), 0.1)
    np.testing.assert_allclose(merit([0.9, 5.0], [9.0, 9.0], [0.3, np.nan], exact), [0.3, np.inf])


def test_shares_are_means_over_problems_of_means_over_instances_and_seeds() -> None:
    found = board(
        {
            "A": {
                ("p", ""): [0.05, 0.2],
                ("q", ""): [0.09, 0.09],
                ("q", "rate / 3"): [0.29, 0.31],
                ("q", "c x 100"): [0.02, 0.02],
            }
        }
    )
    shares = found.shares
    assert shares["stated"].share == pytest.approx([(1 / 2 + 1) / 2])
    # at a third of the rate the target is 0.3
    assert shares["changed"].share == pytest.approx([(1 / 2 + 1) / 2])
    instances = [InstanceName("p"), InstanceName("q")]
    assert found.share("A", instances, 0.03) == 0.0
    assert found.share("A", instances, 0.3) == 1.0


def test_a_target_is_reached_where_three_points_hold_it() -> None:
    # .1 holds at point 1 alone, then from point 3 on; .01 at the last two, which nothing confirms
    merits = np.array([[0.05, 0.5, 0.05, 0.05, 0.01, 0.01]])
    found = reached(merits, np.arange(1, 7) / 6, np.array([0.1, 0.01]))
    np.testing.assert_allclose(found, [[0.5, np.inf]])
    assert np.isinf(reached(merits[:, :2], np.arange(2) / 2)).all()


# What shares must not depend on -------------------------------------------------------------------


def board(ends: Mapping[str, Mapping[tuple[str, str], Sequence[float]]], plain: str = "") -> Board:
    """From merits at the end, by method and instance, for every seed; `plain` is the method without
    constraints."""
    instances = [InstanceName(*one) for one in next(iter(ends.values()))]
    problems = list(dict.fromkeys(one.problem for one in instances))
    methods = [
        EntryInfo(
            name=name,
            method="SGD" if name == plain else "DescentAscent",
            settings="",
            summary="",
            rules="default",
        )
        for name in ends
    ]
    curves = {
        (name, one): runs(merits[one])
        for name, merits in ends.items()
        for one in instances
        if tuple(one) in merits
    }
    return Board(
        name="board",
        title="Made up",
        rules="default",
        seeds=2,
        short=False,
        methods=methods,
        curves=curves,
        problems=[
            card(name, [one.change for one in instances if one.problem == name])
            for name in problems
        ],
    )


def runs(merits: Sequence[float]) -> Curves:
    loss = np.array([[2.0, *[1 + one] * 3] for one in merits])
    none = np.zeros(loss.shape)
    return Curves(
        share=np.array([0.1, 0.7, 0.8, 1.0]), loss=loss, violation=none, mean_violation=none
    )


def card(name: str, changes: Sequence[str]) -> Card:
    return Card(
        name=name,
        title=name,
        family="test",
        n=2,
        m=1,
        kinds="",
        convex=True,
        noise="",
        examples=10,
        batch="",
        steps=100,
        origin="",
        license="",
        source="generated",
        reference=REFERENCE,
        changes=tuple(filter(None, changes)),
    )


def random_ends(seed: int, problems: int = 8) -> dict[tuple[str, str], list[float]]:
    random = np.random.default_rng(seed)
    instances = [
        (f"p{i}", change)
        for i in range(problems)
        for change in ("", *list(CHANGES)[1 : 1 + 2 * (i < 3)])
    ]
    return {one: random.uniform(0.02, 0.2, 2).tolist() for one in instances}


def figures(found: Board, names: Sequence[str]) -> Any:
    at = [found.names.index(name) for name in names]
    return [
        (
            shares.share[at],
            shares.interval[at],
            shares.difference[np.ix_(at, at)],
            shares.difference_interval[np.ix_(at, at)],
        )
        for shares in found.shares.values()
    ]


def test_another_method_moves_no_figure() -> None:
    ends = {"A": random_ends(1), "B": random_ends(2)}
    with_another = ends | {"C": {one: [0.5] * 5 for one in ends["A"]}}  # also with more runs
    for few, many in zip(
        figures(board(ends), "AB"), figures(board(with_another), "AB"), strict=True
    ):
        for a, b in zip(few, many, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_copy_shares_its_place_and_no_sentence_names_a_winner_of_a_tie() -> None:
    good, bad = (
        {(f"p{i}", ""): [0.05, 0.05] for i in range(8)},
        {(f"p{i}", ""): [0.9, 0.9] for i in range(8)},
    )
    found = board({"A": good, "B": good, "C": bad})
    shares = found.shares["stated"]
    assert shares.share.tolist() == [1.0, 1.0, 0.0]
    assert shares.apart.tolist() == [
        [False, False, True],
        [False, False, True],
        [True, True, False],
    ]
    assert shares.pairs == (2, 3)
    np.testing.assert_array_equal(shares.interval[0], shares.interval[1])
    assert (
        "the largest share solved is 1.00 [1.00, 1.00]; A and B cannot be told apart"
        in overall(found)[0]
    )
    assert "2 of 3 pairs" in overall(found)[0]
    alone = board({"A": good, "C": bad})
    assert overall(alone)[0].startswith("Of 8 problems as stated, A solves 1.00")


def test_an_instance_that_plain_training_solves_is_dropped_and_named() -> None:
    ends = {
        "SGD": {("p", ""): [0.05, 0.2], ("q", ""): [0.05, 0.05], ("q", "c x 100"): [0.5, 0.5]},
        "A": {("p", ""): [0.05, 0.05], ("q", ""): [0.5, 0.5], ("q", "c x 100"): [0.05, 0.05]},
    }
    found = board(ends, plain="SGD")
    assert found.dropped == [InstanceName("q")]  # q in both runs, p in one of two
    assert found.counted == [InstanceName("p"), InstanceName("q", "c x 100")]
    assert found.shares["stated"].share.tolist() == [0.5, 1.0]
    assert any(
        one.startswith("SGD without constraints solves q in most runs") for one in overall(found)
    )
    assert board(ends).dropped == []


def test_a_board_of_which_plain_training_solves_everything_says_so(tmp_path: Path) -> None:
    found = board({name: {("p", ""): [0.05, 0.05]} for name in ("SGD", "A")}, plain="SGD")
    section = board_section(found)
    assert section.finding.startswith(
        "SGD without constraints solves p in most runs: 1 instance, left out for every"
    )
    assert "Nothing is left to compare; tighten the bound." in section.finding
    assert "shares" not in section.exhibits
    assert all(table.to_text() for table in section.tables.values())
    assert Page([section]).write(tmp_path).exists()


def test_instances_on_which_all_are_equal_are_named() -> None:
    found = board(
        {"A": {("p", ""): [0.05], ("q", ""): [0.5]}, "B": {("p", ""): [0.9], ("q", ""): [0.6]}}
    )
    assert found.alike == [InstanceName("q")]
    assert found.unsolved == [InstanceName("q")]
    assert any("All methods are equal on 1 instance of 2" in one for one in overall(found))


def test_a_method_without_runs_solves_nothing() -> None:
    ends = {"A": {("p", ""): [0.05, 0.05], ("q", ""): [0.05, 0.05]}, "B": {("p", ""): [0.05, 0.05]}}
    assert board(ends).shares["stated"].share.tolist() == [1.0, 0.5]


# Intervals ----------------------------------------------------------------------------------------


def test_equal_methods_differ_by_chance_as_often_as_their_intervals_say() -> None:
    random, wrong, trials = np.random.default_rng(3), 0, 200
    for _ in range(trials):
        a, b = ([[random.integers(2, size=3).astype(float)] for _ in range(12)] for _ in range(2))
        wrong += int(bootstrap([a, b], 400).apart[0, 1])
    assert wrong <= 0.11 * trials  # 5 % are expected; more than 22 of 200 happen once in 10,000


def test_one_run_on_one_problem_has_no_interval() -> None:
    assert np.isnan(bootstrap([[[np.ones(1)]]]).interval).all()
    assert not np.isnan(bootstrap([[[np.array([1.0, 0.0])]]]).interval).any()


def test_instances_of_a_problem_are_redrawn_independently() -> None:
    """Drawn alike, these two would always have the mean of 0.5."""
    low, high = bootstrap([[[np.array([1.0, 0.0]), np.array([0.0, 1.0])]]]).interval[0]
    assert low < 0.5 < high
