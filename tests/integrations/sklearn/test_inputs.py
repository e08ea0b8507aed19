"""Constraints of a fit: notions over columns of groups, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fairbound import constraints
from fairbound.columns._groups import GroupEncoder
from fairbound.integrations.sklearn._inputs import (
    is_difference,
    make_constraints,
    refuse_empty_cells,
)

TWO = pd.DataFrame({"sex": ["f", "m", "f", "m"], "race": [1, 1, 2, 2]})


def columns(groups: Any = ("A", "B"), subgroups: str = "intersectional") -> Any:
    return GroupEncoder.fit(groups, len(groups), subgroups).columns


def test_a_ratio_takes_numbers_of_numpy() -> None:
    (made,) = make_constraints("demographic_parity_ratio", np.float32(0.8), columns(), None)  # type: ignore[arg-type]
    assert made.names == ("0.8 A - B", "0.8 B - A")


def test_several_notions_have_their_bounds_and_names() -> None:
    both = {"demographic_parity": 0.1, "bounded_group_loss": 0.5}
    for given, bound in ((both, 7.0), (list(both), [0.1, 0.5])):
        found = make_constraints(given, bound, columns(), None)
        assert [c.bound.tolist() for c in found] == [[0.1, 0.1], [0.5, 0.5]]
        assert found[0].names == ("demographic_parity: A - B", "demographic_parity: B - A")
        assert {c.by for c in found} == {"group"}
    (alone,) = make_constraints("demographic_parity", 0.1, columns(), None)
    assert alone.names == ("A - B", "B - A")


def test_every_notion_is_over_every_column() -> None:
    found = make_constraints("demographic_parity", 0.1, columns(TWO, "marginal"), None)
    assert [(c.by, c.names[0]) for c in found] == [("sex", "sex: f - m"), ("race", "race: 1 - 2")]
    names = [
        name
        for c in make_constraints(["loss_parity"] * 1, 0.1, columns(TWO, "both"), None)
        for name in c.names
    ]
    assert len(set(names)) == len(names)


def test_rates_of_several_classes_are_by_the_name_of_the_class() -> None:
    found = make_constraints(
        "demographic_parity", 0.1, columns(), {0: "class low", 2: "class high"}
    )
    assert [c.names[0] for c in found] == ["class low: A - B", "class high: A - B"]
    assert [c.statistic.reported.outcome for c in found] == [0, 2]  # type: ignore[union-attr]
    (recall,) = make_constraints("equal_opportunity", 0.1, columns(), {1: "class b"})
    assert {cell.label for cell in recall.cells.items} == {1}
    (losses,) = make_constraints(
        "pairwise_loss_parity", 0.1, columns(), {0: "class a", 1: "class b"}
    )
    assert losses.names == ("A - B", "B - A")
    with pytest.raises(ValueError, match=r"'equalized_odds'.*two classes"):
        make_constraints("equalized_odds", 0.1, columns(), {0: "class a"})


def test_constraints_of_users_and_functions() -> None:
    own = constraints.minimum_rate(0.8, groups=["B", "A"], group="B")
    (found,) = make_constraints(own, 0.1, columns(), None)
    assert [cell.group for cell in found.cells.items] == [1]  # by its name, not its place
    (made,) = make_constraints(
        lambda names, bound: constraints.loss_parity(names, bound=bound), 0.3, columns(), None
    )
    assert set(made.bound.tolist()) == {0.3}


@pytest.mark.parametrize(
    ("constraint", "bound", "sentence"),
    [
        (
            "demografic_parity",
            0.1,
            "no constraint 'demografic_parity'; did you mean demographic_parity",
        ),
        ("demographic_parity", -1, "bound must be a finite number >= 0, got -1"),
        ("demographic_parity", "0.1", "bound must be a finite number >= 0, got '0.1'"),
        ("demographic_parity", True, "bound must be a finite number >= 0, got True"),
        ("demographic_parity", float("nan"), "bound must be a finite number >= 0, got nan"),
        (
            "demographic_parity",
            5,
            "bound=5 allows every difference of rates, which is at most 1; give a share",
        ),
        (
            "demographic_parity_ratio",
            0.05,
            "which allows nearly every ratio, and at most 1, such as 0.8; got 0.05",
        ),
        (constraints.demographic_parity_ratio, 0.05, "which allows nearly every ratio"),
        ("pairwise_loss_parity", 5, "bound=5 allows every difference of losses in practice"),
        (
            ["demographic_parity", "loss_parity"],
            [0.1, 0.1, 0.1],
            "2 constraints need as many bounds",
        ),
        ([], 0.1, "0 constraints need as many bounds"),
        (
            constraints.pairwise_loss_parity(["x", "y"], bound=0.1),
            0.1,
            "about 'x', and the groups of the data are",
        ),
        (constraints.pairwise_loss_parity(3, bound=0.1), 0.1, "about 3 groups, and the data has 2"),
        (constraints.pairwise_loss_parity(["A", "B"], bound=0.1, by="race"), 0.1, "omit by="),
    ],
)
def test_constraints_that_do_not_fit(constraint: Any, bound: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_constraints(constraint, bound, columns(), None)


@pytest.mark.parametrize("notion", sorted(constraints.NOTIONS))
def test_one_group_is_a_sentence_for_every_notion_that_compares(notion: str) -> None:
    if notion == "bounded_group_loss":
        (alone,) = make_constraints(notion, 0.1, columns(["A", "A"]), None)
        assert alone.names == ("loss of A <= 0.1",)
        return
    with pytest.raises(ValueError, match=rf"one group.*'A'.*'{notion}'"):
        make_constraints(notion, 0.8, columns(["A", "A"]), None)


def test_a_function_that_returns_no_constraint() -> None:
    with pytest.raises(TypeError, match=r"return.*Constraint, got NoneType"):
        make_constraints(lambda names, bound: None, 0.1, columns(), None)


def test_differences_and_levels() -> None:
    assert is_difference(constraints.loss_parity(3, bound=0.1)).tolist() == [True] * 6
    assert is_difference(constraints.bounded_group_loss(2, bound=0.1)).tolist() == [False] * 2
    assert is_difference(constraints.equalized_odds(2, bound=0.1)).all()


def test_empty_cells_are_named() -> None:
    made = make_constraints("equal_opportunity", 0.1, columns(), None)
    with pytest.raises(ValueError, match=r"'B, y=1', .*merge groups"):
        refuse_empty_cells(made, {"group": torch.tensor([0, 0, 1])}, torch.tensor([1, 0, 0]))
    refuse_empty_cells(made, {"group": torch.tensor([0, 0, 1])}, torch.tensor([1, 0, 1]))
