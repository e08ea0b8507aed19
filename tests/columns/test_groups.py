"""Columns of sensitive features as numbered groups."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fairbound.columns import Coded, Intersection, group_numbers
from fairbound.columns._groups import GroupEncoder

TWO = pd.DataFrame({"sex": ["f", "m", "f", "m"], "race": [1, 1, 2, 2]})


@pytest.mark.parametrize(
    ("subgroups", "names"),
    [
        ("intersectional", {"sex x race": ("f, 1", "f, 2", "m, 1", "m, 2")}),
        ("marginal", {"sex": ("f", "m"), "race": ("1", "2")}),
        (
            "both",
            {"sex": ("f", "m"), "race": ("1", "2"), "sex x race": ("f, 1", "f, 2", "m, 1", "m, 2")},
        ),
    ],
)
def test_several_columns(subgroups: str, names: dict[str, tuple[str, ...]]) -> None:
    encoder = GroupEncoder.fit(TWO, 4, subgroups)
    assert {name: column.names for name, column in encoder.columns.items()} == names
    codes = encoder.transform(TWO, 4)
    expected = {"sex": [0, 1, 0, 1], "race": [0, 0, 1, 1], "sex x race": [0, 2, 1, 3]}
    assert {name: found.tolist() for name, found in codes.items()} == {
        name: expected[name] for name in names
    }


@pytest.mark.parametrize("subgroups", ["intersectional", "marginal", "both"])
@pytest.mark.parametrize(
    "kind", [np.array, list, pd.Series, pl.Series, lambda x: pd.DataFrame({"sex": x})]
)
def test_one_column_of_any_kind(kind: Any, subgroups: str) -> None:
    encoder = GroupEncoder.fit(kind(["b", "a", "b"]), 3, subgroups)
    assert encoder.columns["group"].names == ("a", "b")
    assert encoder.transform(kind(["a", "b"]), 2)["group"].tolist() == [0, 1]


def test_numbers_are_groups_too() -> None:
    encoder = GroupEncoder.fit(np.array([2, 10, 2]), 3, "marginal")
    assert encoder.columns["group"].names == ("10", "2")
    assert encoder.transform([2, 10], 2)["group"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "entries",
    [
        ["a", float("nan"), "b"],
        pd.Series(["a", None, "b"], dtype="string"),
        [["a", 1], ["b", None], ["a", 2]],
    ],
)
def test_missing_groups_raise(entries: Any) -> None:
    with pytest.raises(ValueError, match="missing entries"):
        GroupEncoder.fit(entries, 3, "intersectional")


def test_intersections_with_commas_are_kept_apart() -> None:
    given = [["a, b", "c"], ["a", "b, c"], ["a", "d"]]
    encoder = GroupEncoder.fit(given, 3, "intersectional")
    assert (
        len(set(encoder.transform(given, 3)["0 x 1"].tolist()))
        == len(set(encoder.columns["0 x 1"].names))
        == 3
    )


def test_a_column_of_numbers_is_no_column_of_groups() -> None:
    with pytest.raises(
        ValueError, match="900 different entries for 900 examples; bin it into a few groups"
    ):
        GroupEncoder.fit(np.linspace(0, 1, 900), 900, "intersectional")
    assert (
        len(GroupEncoder.fit(np.arange(900) % 30, 900, "intersectional").columns["group"].names)
        == 30
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["A", "C"], "'C'.*A, B"),
        (["A"], "one entry, or one row of entries, for each of the 2 rows of X"),
        ([["A", "x"], ["B", "x"]], "has 2 columns, and fit was given 1"),
        ([[["A"]], [["B"]]], "one entry, or one row of entries"),
    ],
)
def test_groups_that_do_not_fit(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GroupEncoder.fit(["A", "B"], 2, "intersectional").transform(given, 2)


@pytest.mark.parametrize("kind", ["text", "numbers", "text with missing"])
def test_no_python_call_per_row(kind: str) -> None:
    def calls(rows: int) -> int:
        names = np.array(["a", "b", None if "missing" in kind else "c"], dtype=object)
        column = (np.arange(3) if kind == "numbers" else names)[np.arange(rows) % 3]
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(count)
        try:
            group_numbers(column)
            Intersection((Coded.of("g", column),)).group({"g": column})
        finally:
            sys.setprofile(None)
        return counted

    assert calls(30_000) == calls(300)
