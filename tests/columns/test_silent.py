"""What once passed in silence: two codes that became one group, numbers read a thousand times too
small. Each gets the right answer or a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import call

from fairbound import audit, audit_columns, verdict
from fairbound.columns import Coded, Column, group_numbers, read_columns
from fairbound.columns import _files as files
from fairbound.columns._groups import GroupEncoder, near_equal


def written(folder: Path, text: str | bytes, name: str = "some.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def groups_of(path: Path) -> tuple[str, ...]:
    """The names of the groups in the column g of a file."""
    return Coded.of("g", read_columns(path)["g"]).labels


@pytest.mark.parametrize(
    ("codes", "groups"),
    [
        (["1E2", "100", "250"], ("100", "1E2", "250")),
        (["1E2", "100", "x"], ("100", "1E2", "x")),
        (["01", "1", "2"], ("01", "1", "2")),
        (["true", "1", "0"], ("0", "1", "true")),
        (["1", "1.0", "2"], ("1", "1.0", "2")),
        (
            ["9007199254740992", "9007199254740993", ""],
            ("9007199254740992", "9007199254740993", "(missing)"),
        ),
        (["90071992547409920000", "90071992547409920001"], None),
    ],
)
def test_codes_that_are_one_number_are_two_groups(
    codes: list[str], groups: tuple[str, ...] | None, tmp_path: Path
) -> None:
    path = written(tmp_path, "g,y\n" + "".join(f"{code},1\n{code},0\n" for code in codes))
    assert groups_of(path) == (groups or tuple(codes))


def test_an_audit_tells_such_codes_apart(tmp_path: Path) -> None:
    """All of 1E2 are selected, none of 100: merged, their gap would nearly vanish."""
    rows = "1E2,1,1\n1E2,0,1\n" * 25 + "100,1,0\n100,0,0\n" * 25 + "250,1,1\n250,0,0\n" * 25
    columns = read_columns(written(tmp_path, "g,y,p\n" + rows))
    found = audit_columns(columns, label="y", prediction="p", groups="g", draws=50)
    assert found.metrics["demographic_parity_difference"].value == 1.0
    assert any("several ways" in note for note in columns.notes)


@pytest.mark.parametrize("make", [list, lambda v: pd.array(v, dtype="Int64"), pl.Series, pa.array])
def test_large_whole_numbers_stay_apart_where_one_is_missing(make: Any) -> None:
    column = Column.of(make([2**53, 2**53 + 1, None]), "id")
    assert column.kind == "number"
    assert Coded.of("id", column.values).labels == (str(2**53), str(2**53 + 1), "(missing)")


def test_names_of_large_numbers_differ() -> None:
    assert Coded.of("n", np.array([1234567.0, 1234568.0, np.nan])).labels[0] == "1234567"


@pytest.mark.parametrize(
    ("one", "other"),
    [("\u00e9", "e\u0301"), ("A", "A\u200b"), ("Asian", "asian"), ("A", " A"), ("A", "\uff21")],
)
def test_names_that_look_alike_are_named(one: str, other: str) -> None:
    assert near_equal([one, "x", other]) == [(one, other)]
    assert near_equal(["Asian", "Black"]) == []
    found = audit([1, 0, 1, 0], [one, one, other, other], predictions=[1, 0, 1, 1], draws=50)
    assert len(found.groups) == 2, "they stay two groups"
    assert any(ascii(other) in note for note in found.notes)
    with pytest.warns(UserWarning, match="alike"):
        GroupEncoder.fit([one, other], 2, "intersectional")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (["1,250", "999"], None),
        (["1.250", "999"], None),
        (["1,5", "999"], [1.5, 999]),
        (["0,250", "1,250"], [0.25, 1.25]),
        (["1.234,5", "2,5"], [1234.5, 2.5]),
        (["1.250", "0.999"], [1.25, 0.999]),
    ],
)
def test_numbers_between_semicolons(
    weights: list[str], expected: list[float] | None, tmp_path: Path
) -> None:
    path = written(tmp_path, "w;y\n" + "".join(f"{weight};1\n" for weight in weights))
    columns = read_columns(path)
    if expected is None:
        with pytest.raises(ValueError, match=r"1250 or 1.250.*`decimal='.'`"):
            columns["w"]
        mark = weights[0][1]
        as_decimals = read_columns(path, decimal=mark)["w"].tolist()
        as_thousands = read_columns(path, decimal=".,".replace(mark, ""))["w"].tolist()
        assert (as_decimals, as_thousands) == ([1.25, 999], [1250, 999])
    else:
        assert columns["w"].tolist() == expected
        assert bool(columns.notes) == any("," in weight for weight in weights), "noted"


def test_the_command_takes_the_mark(tmp_path: Path) -> None:
    rows = "1,250;a;1;1\n999;a;0;1\n1,125;b;1;0\n998;b;0;0\n"
    path = written(tmp_path, "w;g;y;p\n" + rows * 9)
    options = ["audit", path, "--label", "y", "--prediction", "p", "--group", "g", "--weight", "w"]
    assert "--decimal '.'" in call(*options, code=1)
    assert "weighted" in call(*options, "--decimal", ".")


def test_commas_of_thousands_are_noted(tmp_path: Path) -> None:
    columns = read_columns(written(tmp_path, 'w,y\n"1,234,567",1\n"12.5",0\n'))
    assert columns["w"].tolist() == [1234567, 12.5]
    assert "thousands" in columns.notes[0]
    with pytest.raises(ValueError, match="`decimal"):
        read_columns(written(tmp_path, 'w,y\n"1,250",1\n999,0\n'))["w"]


def test_a_parquet_file_that_would_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STREAMED_BYTES", 1 << 20)
    pq.write_table(pa.table({"g": pa.array(np.zeros(400_000, int))}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="unpacks to more than 1 MB"):
        read_columns(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\ng;y\na;1\nb;0\n",
        "SEP=,\r\ng,y\r\na,1\r\nb,0\r\n",
        "g;y\na;1\nb;0\n".encode("utf-16-le"),
        "g;y\na;1\nb;0\n".encode("utf-16-be"),
    ],
)
def test_files_of_spreadsheets(text: str | bytes, tmp_path: Path) -> None:
    columns = read_columns(written(tmp_path, text))
    assert (columns["g"].tolist(), columns["y"].tolist()) == (["a", "b"], [1, 0])


def test_a_fit_keeps_the_kind_of_a_column() -> None:
    encoder = GroupEncoder.fit(["1", "2"], 2, "intersectional")
    with pytest.raises(ValueError, match=r"text.*number"):
        encoder.transform([1, 2], 2)
    numbers = GroupEncoder.fit(np.array([1, 2]), 2, "intersectional")
    assert numbers.transform(np.array([2.0, 1.0]), 2)["group"].tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"number.*text"):
        numbers.transform(["1", "2"], 2)


def test_a_group_that_a_constraint_does_not_name_is_refused() -> None:
    from fairbound import constraints

    parity = constraints.demographic_parity(["a", "b"], bound=0.1)
    with pytest.raises(ValueError, match="'c' is none of a and b"):
        verdict(parity, ["a", "b", "c"], predictions=[1, 0, 1])
    assert group_numbers(["a", None], ["a", "b"])[0].tolist() == [0, -1]


def test_labels_without_an_evident_positive_value_are_refused_alike() -> None:
    from sklearn.linear_model import LogisticRegression

    from fairbound import FairPostprocessor

    rows = np.random.default_rng(0).normal(size=(200, 2))
    y, group = 1 + (rows[:, 0] > 0), np.arange(200) % 2
    with pytest.raises(ValueError, match=r"1 and 2.*`positive`"):
        audit_columns({"y": y, "p": y, "g": group}, label="y", prediction="p", groups="g")
    fair = FairPostprocessor(LogisticRegression(), constraint="demographic_parity", bound=0.2)
    with pytest.raises(ValueError, match="pos_label=2"):
        fair.fit(rows, y, sensitive_features=group)
