"""The five tasks against the folktables package, and the files: found, read, refused."""

from __future__ import annotations

import gzip
import zipfile
from copy import copy
from pathlib import Path
from typing import Any

import folktables
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from census import DATA, needs_extract
from folktables.load_acs import load_acs

from fairbound.columns import _codebook as codebook
from fairbound.data import _acs as acs
from fairbound.data import _acs_files as acs_files
from fairbound.data import best, load
from fairbound.data._tasks import TASKS, apply

EDGY = {  # values on both sides of every threshold of the tasks
    "AGEP": [0, 15, 16, 17, 18, 19, 34, 35, 64, 65, 89, 90, 99],
    "PINCP": [-19998, 0, 100, 101, 30_000, 30_001, 50_000, 50_001, 4_209_995],
    "JWMNP": [1, 20, 21, 200],
    "PWGTP": [0, 1, 2, 9999],
    "WKHP": [0, 1, 40, 99],
}


def people(seed: int, rows: int = 400, state: int = 40) -> pd.DataFrame:
    """Rows in the form of the person file: every code and every blank of the code book, and the
    thresholds."""
    rng = np.random.default_rng(seed)
    frame = {"SERIALNO": [f"2018HU{i:07}" for i in range(rows)]}
    for name in codebook.variables():
        known = codebook.variable(name)
        values = EDGY.get(name) or [
            value for part in known.values for value in (part.low, part.high)
        ]
        column = rng.choice(np.array(values, dtype=float), rows)
        if known.blank is not None:
            column[rng.random(rows) < 0.2] = np.nan
        frame[name] = column if np.isnan(column).any() else column.astype(int)
    frame["ST"] = np.full(rows, state)
    return pd.DataFrame(frame)


def write(frame: pd.DataFrame, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: frame[name].astype("Int64") for name in frame.columns if name != "SERIALNO"}
    frame.assign(**whole).to_csv(path, index=False)
    return path


def oracle(name: str, fill: int) -> folktables.BasicProblem:
    """Folktables' task; -1 is what it means to fill with, and does not."""
    task = copy(getattr(folktables, f"ACS{name}"))
    if fill != 0:
        task._postprocess = lambda x: np.nan_to_num(x, nan=fill)
    return task


def features(table: Any) -> np.ndarray:
    return np.column_stack([table.columns[name] for name in table.features])


@pytest.mark.parametrize(("seed", "fill"), [(0, 0), (1, -1)])
@pytest.mark.parametrize("name", TASKS)
def test_equals_folktables(name: str, seed: int, fill: int) -> None:
    task, rows = oracle(name, fill), people(seed)
    X, y, group = task.df_to_numpy(rows)
    table = apply(name, rows, missing=fill)
    assert table.rows > 0
    assert table.features == tuple(task.features)
    np.testing.assert_array_equal(features(table), X)
    np.testing.assert_array_equal(table.columns[table.label], y)
    np.testing.assert_array_equal(table.columns["RAC1P"], group)
    assert 0 < table.columns[table.label].mean() < 1
    assert all(column.dtype.kind in "ib" for column in table.columns.values())


@pytest.mark.parametrize("name", TASKS)
def test_a_raw_file_equals_folktables_own_reading_of_it(name: str, tmp_path: Path) -> None:
    for seed, state in ((0, "OK"), (1, "VA")):
        write(
            people(seed, state=acs_files.STATES[state]),
            tmp_path / "2018" / "1-Year" / acs_files.raw_name(state, 2018),
        )
    X, y, _ = oracle(name, 0).df_to_numpy(load_acs(str(tmp_path), states=["OK", "VA"]))
    table = acs.load(["OK", "VA"], name, folder=tmp_path)
    np.testing.assert_array_equal(features(table), X)
    np.testing.assert_array_equal(table.columns[table.label], y)
    assert table.source == ("acs:OK+VA" if name == "Income" else f"acs:OK+VA:{name}:2018")
    assert set(np.unique(table.columns["ST"])) == {40, 51}
    assert "PWGTP" in table.columns


def test_filled_fields_are_no_values_of_a_protected_attribute(tmp_path: Path) -> None:
    raw = people(0).replace({"WKHP": {0: 1}})  # 0 hours are no value of the census
    write(raw, tmp_path / "2018" / "1-Year" / "psam_p40.csv")

    def sizes(task: str, group: str, missing: int | None) -> dict[str, int]:
        found = acs.load(["OK"], task, folder=tmp_path, missing=missing).dataset(
            group, train=torch.arange(5)
        )
        count = torch.bincount(found.groups[group.partition("=")[0]]).tolist()
        return dict(zip(found.levels[group.partition("=")[0]], count, strict=True))

    kept = apply("Mobility", raw, missing=None).columns
    for group in ("WKHP", "JWMNP", "COW"):
        blank = int(np.isnan(kept[group]).sum())
        assert blank > 0
        assert list(sizes("Mobility", group, None).values())[-1] == blank
        assert blank in sizes("Mobility", group, 0).values()
        assert blank in sizes("Mobility", group, -1).values()
    assert list(sizes("Mobility", "JWMNP", -1))[:2] == ["< 1", "1 to < 10"]
    # the empty ones are not 1
    assert sizes("Mobility", "COW=1", 0) == sizes("Mobility", "COW=1", None)
    for group in ("POVPIP", "POVPIP=0"):  # 0 is a poverty ratio, and it occurs
        with pytest.raises(
            ValueError,
            match=r"0 is itself a value of POVPIP .* load the rows with another `missing`",
        ):
            sizes("TravelTime", group, 0)
    assert list(sizes("TravelTime", "POVPIP", None))[-1] == "(missing)"
    assert list(sizes("TravelTime", "POVPIP", -1))[:2] == ["< 0", "0 to < 100"]


def test_missing_codes_in_a_dictionary_column_are_filled(tmp_path: Path) -> None:
    task = TASKS["Income"]
    rows = {name: pa.array([1, 2]) for name in (*task.features, task.label)}
    coded = pa.table({**rows, "COW": pa.array([3, None]).dictionary_encode()})
    pq.write_table(coded, tmp_path / "acsincome_2018_OK.parquet")
    assert acs.load(["OK"], folder=tmp_path, missing=-1).columns["COW"].tolist() == [3, -1]


def test_the_name_of_a_file_loads_it(tmp_path: Path) -> None:
    rows = people(0)
    write(rows, tmp_path / "2018" / "1-Year" / "psam_p40.csv")
    write(rows, tmp_path / "2018" / "5-Year" / "psam_p40.csv")
    older = rows.assign(SERIALNO=rows["SERIALNO"].str.replace("2018HU", "2017HU"))
    write(older, tmp_path / "2017" / "1-Year" / "psam_p40.csv")
    write(rows, tmp_path / "psam_p51.csv")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "acsemployment_2019_OK.parquet")
    found = {found.source: found.path for found in acs_files.available(tmp_path)}
    assert {name: str(path.relative_to(tmp_path)) for name, path in found.items()} == {
        "acs:OK": "2018/1-Year/psam_p40.csv",
        "acs:OK:Income:2018:5-Year": "2018/5-Year/psam_p40.csv",
        "acs:OK:Income:2017": "2017/1-Year/psam_p40.csv",
        "acs:VA": "psam_p51.csv",
        "acs:OK:Employment:2019": "acsemployment_2019_OK.parquet",
    }
    for name in ("acs:OK", "acs:OK:Income:2018:5-Year", "acs:OK:Income:2017"):
        assert load(name, folder=tmp_path).source == name


@pytest.mark.parametrize(
    "convert", [dict, pl.from_pandas, pa.Table.from_pandas, pd.DataFrame.convert_dtypes]
)
def test_rows_come_in_any_form(convert: Any) -> None:
    rows = people(3)
    expected, got = apply("Mobility", rows), apply("Mobility", convert(rows))
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(got.columns[name], column)


def test_rows_that_do_not_fit_are_refused() -> None:
    rows = people(0)
    with pytest.raises(ValueError, match=r"of Income: MAR, RELP \(closest: RELSHIPP\)"):
        apply("Income", rows.drop(columns="MAR").rename(columns={"RELP": "RELSHIPP"}))
    with pytest.raises(ValueError, match=r"no task is called 'income'.*did you mean Income"):
        apply("income", rows)
    with pytest.raises(ValueError, match="COW must hold numbers, found 'private'"):
        apply("Income", rows.assign(COW="private"))
    with pytest.raises(ValueError, match="differ in length"):
        apply("Income", {**dict(rows), "COW": [1, 2]})


# ------------------------------------------------------------------------------ real rows


@needs_extract("OK")
def test_a_raw_file_and_an_extract_of_the_same_people_agree(tmp_path: Path) -> None:
    extract = acs.load(["OK"], folder=DATA)
    rows = pd.DataFrame({name: extract.columns[name] for name in (*extract.features, "ST")})
    write(
        rows.assign(PINCP=np.where(extract.columns[extract.label], 50_001, 50_000), PWGTP=1),
        tmp_path / "psam_p40.csv",
    )
    raw = acs.load(["OK"], folder=tmp_path)
    for name, column in extract.columns.items():
        np.testing.assert_array_equal(raw.columns[name], column)
        assert raw.columns[name].dtype == column.dtype


@needs_extract("OK")
def test_states_together_are_states_after_one_another() -> None:
    both = acs.load(["VA", "OK"], folder=DATA)
    assert both.rows == 46_144 + 17_917
    assert both.columns["ST"][[0, 46_143, 46_144, -1]].tolist() == [51, 51, 40, 40]
    with pytest.raises(ValueError, match="OK and 42states both hold rows of OK"):
        acs.load(["OK", "42states"], folder=DATA)


# -------------------------------------------------------------------------- finding files


def plain(path: Path) -> None:
    write(people(0), path)


def gzipped(path: Path) -> None:
    source = write(people(0), path.with_name("source"))
    path.write_bytes(gzip.compress(source.read_bytes()))


def marked(path: Path) -> None:
    """Begins with a byte order mark; so does the name of its first column."""
    write(people(0)[["AGEP", *people(0).columns.drop("AGEP")]], path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def zipped(path: Path) -> None:
    source = write(people(0), path.with_name("source"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ACS2018_PUMS_README.pdf", b"%PDF")
        archive.write(source, "psam_p40.csv")


@pytest.mark.parametrize(
    ("directory", "name", "make"),
    [
        (".", "psam_p40.csv", plain),
        (".", "psam_p40.csv", marked),
        ("2018/1-Year", "psam_p40.csv.gz", gzipped),
        ("2018/1-Year", "csv_pok.zip", zipped),
        ("acs", "psam_p40.zip", zipped),
        (".", "psam_p40.csv.zip", zipped),
    ],
)
def test_every_name_in_every_place_is_found(
    name: str, make: Any, directory: str, tmp_path: Path
) -> None:
    (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    make(tmp_path / directory / name)
    table = acs.load(["OK"], "Employment", folder=tmp_path)
    np.testing.assert_array_equal(features(table), features(apply("Employment", people(0))))
    assert [found.path.name for found in acs_files.available(tmp_path)] == [name]


def test_the_layout_s_year_decides(tmp_path: Path) -> None:
    write(people(0).assign(SERIALNO="2018HU0000001"), tmp_path / "2018" / "1-Year" / "psam_p40.csv")
    write(people(1).assign(SERIALNO="2017000000001"), tmp_path / "2017" / "1-Year" / "psam_p40.csv")
    write(people(2).assign(SERIALNO="0000001"), tmp_path / "2016" / "1-Year" / "ss16pok.csv")
    for seed, year in enumerate((2018, 2017, 2016)):
        table = acs.load(["OK"], year=year, folder=tmp_path)
        np.testing.assert_array_equal(features(table), features(apply("Income", people(seed))))
    with pytest.raises(FileNotFoundError, match="OK for Income, 2018 5-Year"):
        acs.load(["OK"], horizon="5-Year", folder=tmp_path)


def test_a_misplaced_file_is_noticed(tmp_path: Path) -> None:
    write(people(0), tmp_path / "psam_p40.csv")
    with pytest.raises(ValueError, match=r"psam_p40.csv is of 2018 .*not of 2021 1-Year"):
        acs.load(["OK"], year=2021, folder=tmp_path)
    assert acs.load(["OK"], year=2021, horizon="5-Year", folder=tmp_path).rows > 0
    write(people(0), tmp_path / "psam_p51.csv")
    with pytest.raises(ValueError, match=r"should hold VA \(ST 51\) only, it has ST 40"):
        acs.load(["VA"], folder=tmp_path)


def test_folders_are_looked_in_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, cache = tmp_path / "named", tmp_path / "cache"
    for place in (named, cache / "fairbound", tmp_path / "shared" / "data", tmp_path / "here"):
        place.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FAIRBOUND_DATA", str(named))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    looked = [place for place in acs_files.folders() if place.is_relative_to(tmp_path.resolve())]
    # not in shared/data, which nobody named
    assert looked == [path.resolve() for path in (named, cache / "fairbound")]
    assert acs_files.download_folder() == named
    assert acs_files.folders(tmp_path) == (tmp_path,)
    assert acs_files.folders(tmp_path / "absent") == ()
    monkeypatch.delenv("FAIRBOUND_DATA")
    assert acs_files.download_folder() == cache / "fairbound"
    # else synthetic data would stand in for it
    monkeypatch.setenv("FAIRBOUND_DATA", str(tmp_path / "absent"))
    with pytest.raises(
        FileNotFoundError, match=r"FAIRBOUND_DATA is '.*absent', which is not a folder .* unset it"
    ):
        best("OK")
    assert acs_files.download_folder() == tmp_path / "absent"  # which a download makes


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    for states, sentence in (([], "at least one state"), (["OK", "ok"], "OK is asked for twice")):
        with pytest.raises(ValueError, match=sentence):
            acs.load(states, folder=tmp_path)
    with pytest.raises(ValueError, match="2014 or later"):
        acs.load(["OK"], year=1999, folder=tmp_path)


def test_nothing_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        acs.load(["OK"], folder=tmp_path)
    said = str(error.value)
    for part in ("psam_p40.csv", str(tmp_path), "fetch OK` (2018, 1-Year)", "synthetic:OK"):
        assert part in said
    assert "only" not in said
    for states, task in ((["CA"], "Income"), (["OK"], "Mobility")):  # no synthetic census has these
        with pytest.raises(FileNotFoundError, match=r"with folktables or by hand$"):
            acs.load(states, task, folder=tmp_path)
    pq.write_table(pa.table({"AGEP": [1]}), tmp_path / "acsincome_2018_OK.parquet")
    with pytest.raises(
        FileNotFoundError, match=r"there is only .*acsincome_2018_OK.parquet \(Income, 2018\)"
    ):
        acs.load(["OK"], "Mobility", folder=tmp_path)


# ----------------------------------------------------------------------- files gone wrong


@pytest.mark.parametrize(
    ("name", "make"),
    [("psam_p40.csv", plain), ("psam_p40.csv.gz", gzipped), ("csv_pok.zip", zipped)],
)
def test_a_truncated_raw_file_is_refused(name: str, make: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    make(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=rf"{name} (breaks off|cannot be read)"):
        acs.load(["OK"], folder=tmp_path)


def test_a_truncated_or_foreign_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "acsincome_2018_OK.parquet"
    table = apply("Income", people(0))
    columns = {name: column for name, column in table.columns.items() if name != "MAR"}
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ValueError, match=r"acsincome_2018_OK.parquet lacks columns of Income: MAR"):
        acs.load(["OK"], folder=tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"acsincome_2018_OK.parquet is damaged or incomplete"):
        acs.load(["OK"], folder=tmp_path)


def other_state(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("psam_p51.csv", "SERIALNO\n")


@pytest.mark.parametrize(
    ("name", "make", "sentence"),
    [
        (
            "psam_p40.csv",
            lambda path: write(
                people(0).drop(columns="COW").rename(columns={"SCHL": "SCHG"}), path
            ),
            r"psam_p40.csv lacks columns of Income: COW.*, SCHL \(closest: SCHG",
        ),
        (
            "psam_p40.csv",
            lambda path: path.write_text("<!DOCTYPE html>\n<p>403 Forbidden\n"),
            "is not a PUMS person file: it begins with '<!DOCTYPE html>'",
        ),
        (
            "psam_p40.csv",
            lambda path: people(0).assign(COW="private").to_csv(path, index=False),
            r"psam_p40.csv cannot be read.*private",
        ),
        ("csv_pok.zip", other_state, r"no person file of OK in .*csv_pok.zip, only psam_p51.csv"),
    ],
)
def test_a_file_of_something_else_is_refused(
    name: str, make: Any, sentence: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        acs.load(["OK"], folder=tmp_path)


def test_an_extract_of_several_states_may_lack_one(tmp_path: Path) -> None:
    for task in ("TravelTime", "Income"):
        table = apply(task, people(0))
        pq.write_table(
            pa.table(dict(table.columns)), tmp_path / f"acs{task.lower()}_2018_some.parquet"
        )
        np.testing.assert_array_equal(
            features(acs.load(["OK"], task, folder=tmp_path)), features(table)
        )
    with pytest.raises(
        ValueError, match=r"some.parquet has no rows of CA; get them with `fairbound data fetch CA`"
    ):
        acs.load(["CA"], folder=tmp_path)


@pytest.mark.parametrize("name", ["Income", "TravelTime"])
def test_files_from_2019_on_are_translated(name: str, tmp_path: Path) -> None:
    old = people(0)
    old = old[old["RELP"] != 11].assign(SERIALNO="2023HU0000001")  # roomers have no newer code
    new = old.copy()
    for column in ("RELP", "JWTR"):
        newer, codes = acs.NEWER[column]
        back = {code: now for now, code in reversed(codes.items())}
        new[newer] = new.pop(column).map(back)
    write(new.rename(columns={"ST": "STATE"}), tmp_path / "psam_p40.csv")
    table = acs.load(["OK"], name, year=2023, folder=tmp_path)
    expected = apply(name, old)
    for column in expected.columns:
        np.testing.assert_array_equal(table.columns[column], expected.columns[column])
    write(new.assign(RELSHIPP=99), tmp_path / "psam_p40.csv")
    with pytest.raises(ValueError, match="RELSHIPP = 99"):
        acs.load(["OK"], name, year=2023, folder=tmp_path)
