"""Readers: every form of the same table gives the same columns, and what cannot be read is refused
in a sentence."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbound.columns import Column, read_columns
from fairbound.columns import _files as table_files
from fairbound.data._readers import read_table, table_of

COLUMNS: dict[str, list[Any]] = {
    "age": [30, 41, 52, 63],
    "hours": [40.5, None, 20.0, 10.0],
    "job": ["nurse", "clerk", None, "smith, black"],
    "member": [True, False, True, True],
    "insured": [True, None, False, True],
    "empty": [None, None, None, None],
}
CSV = """age,hours,job,member,insured,empty
30,40.5,nurse,true,true,
41,,clerk,false,,
52,20.0,,true,false,
63,10.0,"smith, black",true,true,
"""


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal entries and kind; missing equals missing."""
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    return left.dtype.kind == right.dtype.kind and all(
        a == b or (a != a and b != b) for a, b in pairs
    )


def forms(folder: Path) -> dict[str, Any]:
    """The same table in every form that can be read."""
    files = {
        name: folder / name
        for name in ("a.csv", "semi.csv", "tab.tsv", "bom.csv", "a.csv.gz", "a.parquet")
    }
    files["a.csv"].write_text(CSV)
    files["semi.csv"].write_text(
        CSV.replace('"smith, black"', "smith# black").replace(",", ";").replace("#", ",")
    )
    files["tab.tsv"].write_text(
        CSV.replace('"smith, black"', "smith# black").replace(",", "\t").replace("#", ",")
    )
    files["bom.csv"].write_bytes(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode())
    files["a.csv.gz"].write_bytes(gzip.compress(CSV.encode()))
    pq.write_table(pa.table(COLUMNS), files["a.parquet"])
    frame = pd.DataFrame(COLUMNS, index=[7, 5, 3, 1])
    frame.to_parquet(folder / "pandas.parquet")  # with its index as a column
    frame.astype({"job": "category"}).to_parquet(folder / "dictionaries.parquet")
    return {
        **files,
        "index.parquet": folder / "pandas.parquet",
        "path as text": str(files["a.csv"]),
        "pandas": frame,
        "pandas, nullable": frame.convert_dtypes().astype({"job": "category"}),
        "polars": pl.DataFrame(COLUMNS),
        "polars, categories": (
            pl.DataFrame(COLUMNS).with_columns(pl.col("job").cast(pl.Categorical))
        ),
        "arrow": pa.table(COLUMNS),
        "arrow, dictionaries": (
            pa.table(COLUMNS).set_column(2, "job", pa.array(COLUMNS["job"]).dictionary_encode())
        ),
        "arrow arrays": {name: pa.array(values) for name, values in COLUMNS.items()},
        "dictionaries.parquet": folder / "dictionaries.parquet",
        "Series": dict(pd.DataFrame(COLUMNS).items()),
        "arrays": {name: np.array(values, dtype=object) for name, values in COLUMNS.items()},
        "lists": COLUMNS,
    }


def test_every_form_gives_the_same_columns(tmp_path: Path) -> None:
    expected = {
        "age": np.array([30, 41, 52, 63]),
        "hours": np.array([40.5, math.nan, 20.0, 10.0]),
        "job": np.array(["nurse", "clerk", None, "smith, black"], dtype=object),
        "member": np.array([True, False, True, True]),
        "insured": np.array([True, None, False, True], dtype=object),
        "empty": np.full(4, math.nan),
    }
    for form, source in forms(tmp_path).items():
        columns = read_columns(source)
        assert list(columns) == list(expected), form
        for name, column in columns.items():
            assert same(column, expected[name]), (form, name, column)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
            st.integers(-(2**53), 2**53),
            st.one_of(st.none(), st.text("abcXYZ ;,\"'\n|éß", min_size=1).map(lambda t: f"x{t}x")),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([",", ";", "\t", "|"]),
)
@settings(max_examples=60, deadline=None)
def test_a_written_csv_comes_back(
    tmp_path_factory: Any, rows: list[tuple[Any, ...]], sep: str
) -> None:
    columns = dict(
        zip(("number", "whole", "text"), map(list, zip(*rows, strict=True)), strict=True)
    )
    file = tmp_path_factory.getbasetemp() / "written.csv"
    pd.DataFrame(columns).to_csv(file, index=False, sep=sep)
    back = read_columns(file, sep=sep)
    assert same(back["number"].astype(float), np.array(columns["number"], dtype=float))
    assert back["whole"].tolist() == columns["whole"]
    if any(columns["text"]):
        assert back["text"].tolist() == columns["text"]


def test_a_space_after_the_comma_and_marks_of_missing_values(tmp_path: Path) -> None:
    file = tmp_path / "adult.csv"
    file.write_text("age, work, hours\n39, State-gov, 40\n50, ?, ?\n38, None, 20\n")
    as_is = read_columns(file)
    assert list(as_is) == ["age", "work", "hours"]
    assert as_is["work"].tolist() == ["State-gov", "?", "None"]
    told = read_columns(file, missing=["?"])
    # "None" is an answer unless said otherwise
    assert told["work"].tolist() == ["State-gov", None, "None"]
    assert same(told["hours"], np.array([40, math.nan, 20]))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("age\n30\n40\n", ["age"]),
        ("number\twhole\ttext\n\t-128\txcx\n", ["number", "whole", "text"]),  # one row says little
        ("genre,stars\nDrama|War,3\nDrama,4\nWar|Sport|Drama,5\n", ["genre", "stars"]),
        ('name;note\n"a";"x, y, z"\n"b";"p, q"\n', ["name", "note"]),
    ],
)
def test_separators_are_found(tmp_path: Path, text: str, names: list[str]) -> None:
    file = tmp_path / "some.csv"
    file.write_text(text)
    assert list(read_columns(file)) == names


def test_a_name_of_two_lines_in_the_header(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text('"hours\nworked",y\n40,0\n20,1\n')
    assert read_columns(tmp_path / "some.csv", only=["hours\nworked", "y"])["y"].tolist() == [0, 1]


def test_a_file_longer_than_its_head_with_text_late_in_a_column(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("code,note\n" + "1,plain\n" * 300_000 + 'V7,"two\nlines"\n')
    columns = read_columns(file)
    assert columns["code"][-1] == "V7"
    assert columns["code"][0] == "1"
    assert columns["note"][-1] == "two\nlines"


def test_types_of_a_streamed_file_are_those_of_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "long.csv"
    file.write_text("empty,whole,yes,text,rest\n" + ",1,true,a,x\n" * 2_000 + "7,1.5,maybe,b,x\n")
    whole = read_columns(file)
    monkeypatch.setattr(table_files, "STREAMED_BYTES", 1_000)
    monkeypatch.setattr(table_files, "BLOCK_BYTES", 4_000)
    streamed = read_columns(file, only=["empty", "whole", "yes", "text"])
    assert list(streamed) == ["empty", "whole", "yes", "text"]
    for name, column in streamed.items():
        assert same(column, whole[name]), name
    assert (streamed["empty"][-1], streamed["whole"][-1], streamed["yes"][0]) == (7, 1.5, "true")


def test_features_are_all_but_the_label_and_what_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "synthetic_people.csv"
    file.write_text("id,age,sex,y\n1,3,f,0\n2,4,m,1\n")
    table = read_table(file, label="y", drop="id")
    # only a loader says synthetic
    assert (table.source, table.synthetic) == ("synthetic_people.csv", False)
    assert table.features == ("age", "sex")
    assert table.columns["id"].tolist() == [1, 2]  # still there, e.g. as a protected attribute
    assert read_table(dict(table.columns), label="y", features=["sex"]).features == ("sex",)


def test_arrays_and_tensors() -> None:
    X, y, sex = [[1.0, 2.0], [3.0, 4.0]], [0, 1], [1, 0]
    for made in (
        table_of(X, y, groups=sex, names=["a", "b"]),
        table_of(np.array(X), np.array(y)[:, None], groups=np.array(sex), names=["a", "b"]),
        table_of(
            torch.tensor(X, requires_grad=True),
            torch.tensor(y),
            groups=torch.tensor(sex),
            names=["a", "b"],
        ),
        table_of(pl.DataFrame(X, schema=["a", "b"], orient="row"), y, groups={"group": sex}),
    ):
        assert made.features == ("a", "b")
        assert {name: column.tolist() for name, column in made.columns.items()} == {
            "a": [1, 3],
            "b": [2, 4],
            "group": [1, 0],
            "label": [0, 1],
        }
    assert table_of(np.zeros((2, 3)), y).features == ("x0", "x1", "x2")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2**70], np.array([1.0, 2.0**70])),
        ([pd.NA, 3], np.array([math.nan, 3])),
        (np.ma.masked_array([1, 2], [True, False]), np.array([math.nan, 2.0])),
        (torch.tensor([1.5, 2.5], dtype=torch.bfloat16), np.array([1.5, 2.5])),
        (
            np.array([np.False_, None, False], dtype=object),
            np.array([False, None, False], dtype=object),
        ),
        (pd.array([True, None], dtype="boolean"), np.array([True, None], dtype=object)),
    ],
)
def test_column_forms(values: Any, expected: np.ndarray) -> None:
    assert same(Column.of(values, "x").values, expected)


def dictionary(*values: Any) -> pa.DictionaryArray:
    return pa.array(values).dictionary_encode()


def test_a_missing_value_of_a_dictionary_is_missing(tmp_path: Path) -> None:
    """Not its last level, as numpy has it."""
    answers = pa.table({"x": [1, 2, 3], "y": dictionary("no", "yes", None), "g": list("aba")})
    pq.write_table(answers, tmp_path / "answers.parquet")
    chunked = {name: answers.column(name) for name in answers.column_names}
    frame = answers.to_pandas(types_mapper=pd.ArrowDtype)
    for source in (
        tmp_path / "answers.parquet",
        answers,
        chunked,
        frame,
        {"y": dictionary("no", "yes", None)},
    ):
        assert read_columns(source)["y"].tolist() == ["no", "yes", None]
    codes = pa.array([0, None, 127], pa.uint8())  # as many levels as fit into a small type
    names = pa.DictionaryArray.from_arrays(codes, [str(i) for i in range(128)])
    assert read_columns({"y": names})["y"].tolist() == ["0", None, "127"]
    assert read_columns({"y": names.cast(pa.dictionary(pa.int8(), pa.string()))})["y"].tolist() == [
        "0",
        None,
        "127",
    ]
    with pytest.raises(ValueError, match="'y' is missing in 1 of 3 rows"):
        read_table(tmp_path / "answers.parquet", label="y").dataset("g")


def test_an_odd_column_stops_only_those_who_use_it(tmp_path: Path) -> None:
    file = tmp_path / "lists.parquet"
    table = {"odd": [[1], [2, 3]], "x": [1, 2], "g": ["a", "b"], "y": [0, 1]}
    pq.write_table(pa.table(table), file)
    columns = read_columns(file)
    assert list(columns) == ["x", "g", "y"]
    table = read_table(file, label="y", features=["x"])
    assert table.dataset("g").rows == 2
    assert read_table(file, label="y", drop=["odd"]).features == ("x", "g")
    for use in (
        lambda: "odd" in columns,
        lambda: columns["odd"],
        lambda: table.dataset("odd"),
        lambda: read_table(file, label="odd"),
        lambda: read_table(file, label="y", features=["odd"]),
    ):
        with pytest.raises(
            ValueError,
            match=(r"column 'odd' holds .* in 2 of 2 rows .*, which is neither a number nor text"),
        ):
            use()
    with pytest.raises(
        ValueError, match=r"neither a number nor text; convert it, or drop it: drop=\['odd'\]"
    ):
        read_table(file, label="y")


def test_decimal_commas_between_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "european.csv"
    file.write_text("share;when;n\n0,127;1,5 h;3\n-12;2 h;4\n;;5\n")
    columns = read_columns(file)
    assert same(columns["share"], np.array([0.127, -12, math.nan]))
    assert columns["when"].tolist() == ["1,5 h", "2 h", None]
    file.write_text('share,n\n"0,127",3\n')  # no thousands begin with a zero
    assert read_columns(file)["share"].tolist() == [0.127]


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "bad.csv is empty"),
        (b"\n \n", "bad.csv is empty"),
        (b"a,y\n", "bad.csv has no rows"),
        (b"a,a,y\n1,2,3\n", "bad.csv has the column 'a' more than once"),
        (
            b"a,y\n1,2\n3\n",
            (
                "bad.csv cannot be read as a table: line 3 has 1 field, but the header names 2"
                " columns: '3'"
            ),
        ),
        (
            b'a,y\n"x\nz",2\n\n3,4,5\n',
            "line 5 has 3 fields, but the header names 2 columns: '3,4,5'",
        ),
        (b"PK\x03\x04rest", "zip archive or an Excel file"),
        (b"\xd0\xcf\x11\xe0\xa1rest", "zip archive or an Excel file"),
        (
            gzip.compress(b"a,y\n" + b"1,2\n" * 999, mtime=0)[:30],
            "bad.csv is damaged or incomplete",
        ),
    ],
)
def test_bad_files_are_sentences(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_table(file, label="y")


@pytest.mark.parametrize(
    ("encoding", "name", "note"),
    [
        ("utf-8", "Zoë, “quoted”", None),
        ("utf-16", "Zoë", None),
        ("latin-1", "Zoë", "is not UTF-8 text and was read as latin-1; `encoding` names another"),
        ("cp1252", "Zoë, 5 €", "was read as cp1252"),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_encodings_are_found(
    tmp_path: Path,
    encoding: str,
    name: str,
    note: str | None,
    gzipped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_BYTES", 9)  # which ends within characters
    file, text = (
        tmp_path / "people.csv",
        f'näme,y\n"{name}",1\n' + "Ann,0\n" * 40_000 + f'"{name}",1\n',
    )
    file.write_bytes(gzip.compress(text.encode(encoding)) if gzipped else text.encode(encoding))
    for found in (read_columns(file), read_columns(file, encoding=encoding)):
        assert found["näme"][[0, -1]].tolist() == [name, name]
    notes = read_columns(file).notes
    assert (note is None and notes == []) or (note is not None and note in notes[0])


def test_the_language_of_another_alphabet_is_recognized(tmp_path: Path) -> None:
    file, names = tmp_path / "people.csv", ["Иван", "Анна", "Сергей"]
    jobs = ["учитель средней школы", "врач городской больницы", "водитель автобуса"]
    lines = [f"{name},{job},1\n" for name, job in zip(names, jobs, strict=True)]
    file.write_bytes(("имя,профессия,y\n" + "".join(lines)).encode("cp1251"))
    columns = read_columns(file)
    assert columns["имя"].tolist() == names
    assert columns.notes == [
        "people.csv is not UTF-8 text and was read as cp1251; `encoding` names another"
    ]


@pytest.mark.parametrize(
    "text", ["5 €", "7°C", "£5", "“so”", "àéèùç,âêîôû", "Peña de Córdoba, año de Núñez, Málaga"]
)
def test_a_little_text_is_western(tmp_path: Path, text: str) -> None:
    """charset-normalizer alone would answer big5, utf-16 or cp1250 (Peńa)."""
    file = tmp_path / "prices.csv"
    file.write_bytes(f'x,y\n"{text}",1\nnone,0\n'.encode("cp1252"))
    assert read_columns(file)["x"].tolist() == [text, "none"]
    file.write_bytes(b"x,y\nZo\x81\x93,1\n")  # cp1252 has no 0x81
    assert read_columns(file)["x"].tolist() == ["Zo\x81\x93"]


def test_wrong_encodings_are_sentences(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes("name,y\nZoë,1\n".encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"people.csv is not utf-8 text; name its encoding, such as latin-1"
    ):
        read_columns(file, encoding="utf-8")
    with pytest.raises(
        ValueError, match="no encoding is called 'latin-99'; usual ones are utf-8, latin-1"
    ):
        read_columns(file, encoding="latin-99")


def test_columns_that_are_there_twice(tmp_path: Path) -> None:
    file = tmp_path / "twice.csv"
    file.write_text("a,y,a,b,b\n1,0,1,x,x\n,1,,y,z\n")
    for source in (
        file,
        pd.read_csv(file, header=None, skiprows=1, names=list("pqrst")).set_axis(
            list("ayabb"), axis=1
        ),
    ):
        found = read_columns(source)
        assert list(found) == ["a", "y"]  # the same values twice are one column
        assert found["y"].tolist() == [0, 1]
        with pytest.raises(
            ValueError,
            match=(
                r"column 'b' more than once, with different values, such as y and z, in 1 of 2 rows"
                r" \(first: row 3"
            ),
        ):
            found["b"]
        assert read_table(source, label="y", drop=["b"]).features == ("a",)


def test_a_truncated_parquet_file_is_named_and_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "people.parquet"
    pq.write_table(pa.table(COLUMNS), file)
    whole = file.read_bytes()
    for length in (0, 3, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"people.parquet is (damaged or incomplete|empty)"):
            read_columns(file)


def test_a_file_that_is_not_there_names_its_neighbors(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(CSV)
    with pytest.raises(
        FileNotFoundError, match=r"there is no file .*poeple.csv; did you mean people.csv\?"
    ):
        read_columns(tmp_path / "poeple.csv")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*incomes.parquet$"):
        read_columns(tmp_path / "incomes.parquet")
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere is not there"):
        read_columns(tmp_path / "nowhere" / "people.csv")
    with pytest.raises(ValueError, match="is a folder"):
        read_columns(tmp_path)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: read_table(COLUMNS, label="agee"), r"no column 'agee'; did you mean age\?"),
        (
            lambda: read_table(COLUMNS, label="age", features=["hour"]),
            r"no column 'hour'; did you mean hours\?",
        ),
        (
            lambda: read_table(COLUMNS, label="age", features=["age"]),
            "label 'age' is also a feature",
        ),
        (lambda: read_table({"y": [1]}, label="y"), "no feature is left"),
        (
            lambda: read_table({"": [0], "a": [1], "y": [1]}, label="y"),
            r"a column has no name .* drop=\[''\]",
        ),
        (lambda: read_columns({"a": [1, 2], "b": [1]}), "differ in length: 'b' has 1 rows, 'a' 2"),
        (
            lambda: read_columns({"a": [1, "x", 2]}),
            r"'a' mixes numbers and text: 'x' in 1 of 3 rows \(first: row 3",
        ),
        (lambda: read_columns({"a": np.zeros((2, 2))}), r"shape \(2, 2\)"),
        (
            lambda: read_columns(pd.DataFrame([[1, 2]], columns=["a", "a"])),
            "pandas DataFrame has the column 'a' more",
        ),
        (lambda: read_columns(pl.LazyFrame({"a": [1]})), "is lazy; collect"),
        (lambda: read_columns([1, 2]), "cannot read a builtins list; give the path"),
        (
            lambda: table_of({"a": [1, 2], "b": [[1], [2]]}, [0, 1]),
            r"column 'b' holds \[1\] .* drop it from X",
        ),
        (lambda: table_of(np.zeros((3, 1)), [0, 1]), "has 3 rows but the label 'label' has 2"),
        (
            lambda: table_of(np.zeros((3, 1)), [0, 1, 1], groups={"label": [0, 0, 0]}),
            "names more than one column",
        ),
    ],
)
def test_refusals_are_sentences(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
