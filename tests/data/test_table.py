"""From a table to a Dataset: labels, groups, one-hot text, and missing values that only training
rows fill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from census import extract, needs_extract
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbound import Dataset
from fairbound.columns._attributes import Against, Banded, Coded, Intersection
from fairbound.columns._labels import binary, binary_like
from fairbound.data._encoders import MOST_LEVELS, Encoder
from fairbound.data._readers import read_table, table_of
from fairbound.data._splits import random_split
from fairbound.data._table import Table

SEX = Coded("sex", (1, 2), ("man", "woman"))
GAP = [1.0, None, 3.0, 4.0, 5.0, 6.0]
PEOPLE: dict[str, list[Any]] = {
    "sex": [1, 2, 2, 1, 2, 1],
    "age": [30, 41, 52, 63, 20, 35],
    "hours": [40.0, 20.0, 30.0, 10.0, 50.0, 60.0],
    "job": ["nurse", "clerk", None, "nurse", "smith", "clerk"],
    "rich": ["<=50K", ">50K", ">50K", "<=50K", "<=50K", ">50K"],
}


def people(**changes: Any) -> Table:
    return read_table(PEOPLE | changes, label="rich", positive=">50K")


def equal(left: Dataset, right: Dataset) -> bool:
    return (
        torch.equal(left.X, right.X)
        and torch.equal(left.y, right.y)
        and all(
            torch.equal(left.groups[name], right.groups[name])
            for name in (*left.groups, *right.groups)
        )
        and (tuple(left.names), left.levels) == (tuple(right.names), right.levels)
    )


# Datasets -----------------------------------------------------------------------------------------


def test_a_dataset_by_hand() -> None:
    data = people().dataset(SEX)
    assert data.names == ("age", "hours", "job=clerk", "job=nurse", "job=smith", "job=(missing)")
    assert data.X.tolist() == [
        [30, 40, 0, 1, 0, 0],
        [41, 20, 1, 0, 0, 0],
        [52, 30, 0, 0, 0, 1],
        [63, 10, 0, 1, 0, 0],
        [20, 50, 0, 0, 1, 0],
        [35, 60, 1, 0, 0, 0],
    ]
    assert data.y.tolist() == [0, 1, 1, 0, 0, 1]
    assert data.groups["sex"].tolist() == [0, 1, 1, 0, 1, 0]
    assert data.levels == {"sex": ("man", "woman")}
    assert data.X.dtype == data.y.dtype == torch.float32
    assert data.source == "a dict of columns"
    assert people().dataset(SEX, keep_group=True).names[0] == "sex"
    assert people().dataset(SEX, categorical=["age"], dtype=torch.float64).X.shape == (6, 6 + 1 + 4)
    assert data.to(dtype=torch.float64).levels == data.levels


def test_pandas_polars_numpy_and_torch_give_the_same_dataset() -> None:
    columns = {name: PEOPLE[name] for name in ("sex", "age", "hours")}
    columns["rich"] = label = [int(value == ">50K") for value in PEOPLE["rich"]]
    X = np.array([PEOPLE["age"], PEOPLE["hours"]]).T
    groups, names = {"sex": PEOPLE["sex"]}, ["age", "hours"]
    tensors = {name: torch.tensor(values) for name, values in columns.items()}
    made = [
        read_table(source, label="rich", features=names)
        for source in (columns, pd.DataFrame(columns), pl.DataFrame(columns), tensors)
    ]
    for frame in (pd.DataFrame(PEOPLE), pl.DataFrame(PEOPLE)):
        made.append(read_table(frame, label="rich", features=names, positive=">50K"))
    for convert in (np.array, torch.tensor):
        made.append(table_of(convert(X), convert(label), groups=groups, names=names))
    datasets = [table.dataset(SEX) for table in made]
    assert datasets[0].X.tolist() == X.tolist()
    assert all(equal(data, datasets[0]) for data in datasets[1:])


def test_intersections_and_groups_that_are_left_out() -> None:
    table, both = people(), (SEX, Banded("age", (40,)))
    data = table.dataset(both)
    assert data.levels == {"sex x age": ("man, < 40", "man, >= 40", "woman, < 40", "woman, >= 40")}
    assert data.groups["sex x age"].tolist() == [0, 3, 3, 1, 2, 0]
    assert "age" not in data.names
    assert equal(data, table.dataset(Intersection(both)))

    data = table.dataset(both, min_size=2, small="drop")
    assert data.levels == {"sex x age": ("man, < 40", "woman, >= 40")}
    assert data.y.tolist() == [0, 1, 1, 1]
    assert data.X[:, data.names.index("hours")].tolist() == [40, 20, 30, 60]
    assert data.source == "a dict of columns; 2 of 6 rows dropped, in groups of fewer than 2"
    assert torch.equal(table.groups(both, min_size=2, small="drop"), data.groups["sex x age"])
    assert table.dataset(both, min_size=2).levels["sex x age"][-1] == "(other)"


@needs_extract("OK")
def test_census_codes_stay_numbers() -> None:
    frame = pd.read_parquet(extract("OK"))
    data = read_table(extract("OK"), label="PINCP_GT_50K", drop=["ST"]).dataset(
        Against("RAC1P", 1, ("white", "non-white"))
    )
    assert data.names == ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX")
    assert data.X.dtype == torch.float32
    assert np.array_equal(data.X.numpy(), frame[list(data.names)].to_numpy(dtype=np.float32))
    assert torch.bincount(data.groups["RAC1P"]).tolist() == [13350, 4567]
    white = data.groups["RAC1P"] == 0
    assert round(float(data.y[white].mean()), 5) == 0.30794
    assert round(float(data.y[~white].mean()), 5) == 0.20758


# Missing values -----------------------------------------------------------------------------------


def test_missing_numbers_are_filled_with_the_training_mean_and_marked() -> None:
    table = people(
        hours=[40.0, None, 30.0, None, 50.0, 1e9], insured=[True, None, False, True, True, False]
    )
    data = table.dataset(SEX, train=torch.tensor([0, 1, 2, 4]))
    assert data.names[:5] == ("age", "hours", "hours is missing", "job=clerk", "job=nurse")
    assert data.X[:, 1].tolist() == [40, 40, 30, 40, 50, 1e9]  # 40 = (40 + 30 + 50) / 3
    assert data.X[:, 2].tolist() == [0, 1, 0, 1, 0, 0]
    assert data.names[-2:] == ("insured", "insured is missing")
    torch.testing.assert_close(data.X[:, -2], torch.tensor([1, 2 / 3, 0, 1, 1, 0]))


def test_rows_to_learn_from_are_numbered_as_in_the_dataset() -> None:
    """The first row is in no group: training row 0 of the Dataset is row 1 of the table."""
    table = people(sex=[3, 2, 2, 1, 2, 1], hours=[7.0, 20.0, None, 10.0, 50.0, 60.0])
    sexes = Coded("sex", (1, 2, 3), ("man", "woman", "unknown"))
    data = table.dataset(sexes, train=torch.tensor([0, 1]), min_size=2, small="drop")
    assert data.X[:, 1].tolist() == [20, 20, 10, 50, 60]


def test_what_only_held_out_rows_have_is_not_learned() -> None:
    table = people(age=[30, 41, None, 63, 20, 35])
    data = table.dataset(SEX, train=torch.tensor([0, 1, 3]))
    # no mark of age, no smith, no missing job
    assert data.names == ("age", "hours", "job=clerk", "job=nurse")
    assert data.X[2].tolist() == [pytest.approx((30 + 41 + 63) / 3), 30, 0, 0]
    assert data.X[4].tolist() == [20, 50, 0, 0]


@given(st.integers(0, 2**31), st.floats(-1e6, 1e6))
@settings(max_examples=30, deadline=None)
def test_nothing_of_a_held_out_row_reaches_a_training_row(seed: int, change: float) -> None:
    generator = np.random.default_rng(seed)
    hours = np.where(generator.random(40) < 0.3, np.nan, generator.normal(size=40))
    columns = {"sex": np.arange(40) % 2, "hours": hours, "rich": generator.integers(0, 2, 40)}
    columns["rich"][:2] = 0, 1
    table = Table(columns, "rich", ("hours",), "made up")
    sex = Coded("sex", (0, 1), ("a", "b"))
    split = random_split(table.groups(sex), seed=seed)
    if np.isnan(hours[split.train]).all():
        return
    moved = hours.copy()
    moved[split.test] = np.where(np.isnan(moved[split.test]), change, np.nan)
    before = table.dataset(sex, train=split.train)
    after = replace(table, columns=columns | {"hours": moved}).dataset(sex, train=split.train)
    assert before.names == after.names
    assert torch.equal(before.X[split.train], after.X[split.train])


def test_complete_rows() -> None:
    table = people(hours=[40.0, None, 30.0, 10.0, 50.0, 60.0])
    assert table.complete().columns["age"].tolist() == [30, 63, 20, 35]
    assert table.complete("hours").rows == 5
    assert table.complete("hours").source.endswith("1 of 6 rows dropped, with missing values")
    assert table.complete("sex") is table
    assert table.complete("hours").dataset(SEX).rows == 5


# Labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "positive", "expected"),
    [
        ([True, False], None, [1, 0]),
        ([0, 1], None, [0, 1]),
        ([-1, 1], None, [0, 1]),
        (["No", "yes"], None, [0, 1]),
        (["TRUE", "false"], None, [1, 0]),
        (["1", "0"], None, [1, 0]),
        (["neg", "pos"], None, [0, 1]),
        (["<=50K", ">50K"], ">50K", [0, 1]),
        ([1, 2], 1, [1, 0]),
        ([1.0, 2.0], "2", [0, 1]),  # as typed on a command line
        ([0, 1], 0, [1, 0]),
        (["yes", "no"], "No", [0, 1]),
        ([True, False], "false", [0, 1]),
        ([True, False], "0", [0, 1]),
        (["True", "False"], False, [0, 1]),
        ([1, 0], "1.0", [1, 0]),
        (["1", "1.0"], "1.0", [0, 1]),  # alike in meaning, but the text says which
    ],
)
def test_labels_of_two_values(values: list[Any], positive: Any, expected: list[int]) -> None:
    made = binary(np.array(values), "rich", positive)
    assert made.dtype == np.int64
    assert made.tolist() == expected


@pytest.mark.parametrize(
    ("values", "positive", "sentence"),
    [
        (
            ["<=50K", ">50K"],
            None,
            r"'<=50K' and '>50K'; .*`positive`",
        ),
        ([1, 2], None, "holds 1 and 2; .*`positive`"),
        (
            [0, 1, 2, 3, 4, 5, 6],
            None,
            r"not binary: 7 .*\(0, 1, 2, 3, 4 and 2 more\)",
        ),
        ([1, 1, 1], None, r"not binary: 1 different values \(1\) in 3 rows"),
        (
            ["<=50K", ">50K"],
            "50K",
            "no row of the column 'rich' is '50K'; it holds '<=50K' and '>50K'",
        ),
        (["1", "1.0"], None, "`positive`"),
        (
            np.array(["a", None, "b"], dtype=object),
            "a",
            r"column 'rich' is missing in 1 of 3 rows \(first: row 3",
        ),
        (
            [0.0, 1.0, np.nan, np.nan],
            None,
            r"column 'rich' is missing in 2 of 4 rows \(first: row 4, .*drop",
        ),
    ],
)
def test_labels_that_are_refused(values: list[Any], positive: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        binary(np.array(values), "rich", positive)


@pytest.mark.parametrize(
    ("predictions", "label", "positive", "expected"),
    [
        ([2, 1], [1, 2], 2, [1, 0]),
        ([1, 1], [1, 2], 2, [0, 0]),  # all alike, and a value of the label
        ([0, 1], [0, 1], 0, [1, 0]),
        (["0", "1"], [0, 1], "0", [1, 0]),
        ([True, False], ["no", "yes"], None, [1, 0]),
        ([1, -1], [0, 1], None, [1, 0]),
        ([0, 0], [-1, 1], None, [0, 0]),
        (["yes", "No", "NO"], ["Yes", "no"], None, [1, 0, 0]),
        (["true", "false"], [0, 1], None, [1, 0]),
        ([1.0, 0.0], ["<=50K", ">50K"], ">50K", [1, 0]),
        (["<=50K"], ["<=50K", ">50K"], "<=50K", [1]),
    ],
)
def test_predictions_in_the_terms_of_the_label(
    predictions: list[Any], label: list[Any], positive: Any, expected: list[int]
) -> None:
    assert (
        binary_like(np.array(predictions), "guess", np.array(label), "rich", positive).tolist()
        == expected
    )


@pytest.mark.parametrize(
    ("predictions", "label", "positive", "sentence"),
    [
        (
            [0, 1],
            [1, 2],
            2,
            r"'guess' holds 0 and 1, but the label 'rich' holds 1 \(0\) and 2 \(1\)",
        ),
        ([0, 1], ["yes", "no"], "no", "it is not evident which is which"),
        ([0.2, 0.7, 0.9], [0, 1], None, "`score`"),
        ([0.0, np.nan], [0, 1], None, "'guess' is missing in 1 of 2 rows"),
        ([0, 1], [1, 2], None, "'rich' holds 1 and 2"),
    ],
)
def test_predictions_that_are_refused(
    predictions: list[Any], label: list[Any], positive: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        binary_like(np.array(predictions), "guess", np.array(label), "rich", positive)


# What is refused ----------------------------------------------------------------------------------

MANY = [f"street {i}" for i in range(MOST_LEVELS + 1)]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: people(hours=GAP).dataset(SEX),
            "hours is missing in some rows, .* train=split.train",
        ),
        (
            lambda: people(hours=[None] * 6).dataset(SEX, train=torch.arange(3)),
            "'hours' is missing in all 3 training",
        ),
        (lambda: people(hours=[1.0, np.inf] * 3).dataset(SEX), r"infinite in 3 of 6 .*row 3"),
        (lambda: people(hours=[*"12?456"]).dataset(SEX), r"text such as '\?' in 1 of 6 rows"),
        (lambda: people(hours=["1,5", *"23456"]).dataset(SEX), "numbers written as text"),
        (
            lambda: people(job=np.arange(6).astype("M8[D]")).dataset(SEX),
            "'job' holds dates or times",
        ),
        (lambda: table_of(np.zeros((2, 1)), [0, 1]).dataset(SEX), "there is no column 'sex'"),
        (
            lambda: people().dataset(Coded.of("rich", people().columns["rich"])),
            "'rich' is the label",
        ),
        (lambda: people().dataset([1]), "a protected attribute is named, or a Coded.* got 1"),
        (
            lambda: people().dataset(SEX, min_size=7),
            "none of the 2 groups has 7 rows; lower",
        ),
        (
            lambda: people().dataset(SEX, min_size=4, small="drop"),
            "none of the 2 groups has 4 rows",
        ),
        (lambda: people().dataset(SEX, categorical=["jobs"]), "there is no column 'jobs'"),
        (lambda: people().dataset(SEX, train=torch.tensor([6])), "but the rows are 0 to 5"),
        (lambda: people().dataset(SEX, train=torch.ones(6).bool()), "must hold row numbers"),
        (lambda: people().dataset(SEX, train=torch.arange(0)), "train is empty"),
        (
            lambda: read_table({"sex": [1, 2], "y": [0, 1]}, label="y").dataset(SEX),
            "no feature is left beside",
        ),
        (
            lambda: Encoder.fit({"home": np.array(MANY)}, ["home"]),
            "'home' holds 201 different values .* at most 200",
        ),
        (lambda: people(hours=[None] * 6).complete(), "every row .* has a missing value"),
        (lambda: Table({"y": np.array([0, 1])}, "y", ("a",), "x"), "there is no column 'a'"),
        (
            lambda: Table({"y": np.array([0]), "a": np.zeros(2)}, "y", ("a",), "x"),
            "'a' has 2 rows but the label",
        ),
        (
            lambda: Table({"y": np.array([1, "a"], object)}, "y", (), "x"),
            "mixes numbers and text: 'a'",
        ),
        (
            lambda: Dataset(torch.zeros(2, 1), torch.zeros(2), levels={"sex": ("a",)}),
            "levels are given for 'sex'",
        ),
        (
            lambda: replace(people().dataset(SEX), levels={"sex": ("man",)}),
            "goes up to 1 but has 1 level names",
        ),
    ],
)
def test_refusals_are_sentences(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_what_may_look_refused_but_is_not() -> None:
    assert Encoder.fit({"home": np.array(MANY[:-1])}, ["home"]).transform(
        {"home": np.array(MANY)}
    ).shape == (201, 200)
    codes = {"code": np.array(["1", "2", "V7"], dtype=object)}
    assert Encoder.fit(codes, ["code"], categorical=["code"]).names == (
        "code=1",
        "code=2",
        "code=V7",
    )
    assert people(job=["4-5", "<4", ">5", "4-5", "<4", "1"]).dataset(SEX).X.shape == (6, 2 + 4)
