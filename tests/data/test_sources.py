"""Data and attributes by name."""

from __future__ import annotations

import numpy as np
import pytest

from fairbound.columns import parse_attribute, parse_attributes
from fairbound.data import Table, load, random_split
from fairbound.data import _sources as sources


def test_synthetic_data() -> None:
    synthetic = load("synthetic:VA")
    assert (synthetic.rows, synthetic.source, synthetic.synthetic) == (46_144, "synthetic:VA", True)
    assert load("Synthetic:va").source == "synthetic:VA"
    assert (
        load("synthetic:OK", seed=1).columns["AGEP"].tolist()
        != load("synthetic:OK").columns["AGEP"].tolist()
    )


def test_a_file_of_the_users_own_is_data_like_any_other(tmp_path) -> None:
    """Named with its label, it becomes tensors, a split and an audit; nothing is registered
    anywhere."""
    rng = np.random.default_rng(0)
    lines = (
        f"{rng.integers(18, 90)},{rng.choice(['f', 'm'])},{rng.choice(['paid', 'late'])}"
        for _ in range(200)
    )
    (tmp_path / "my.csv").write_text("age,sex,loan\n" + "\n".join(lines))
    table = load(str(tmp_path / "my.csv"), label="loan", positive="paid")
    data = table.dataset("sex", train=random_split(table.groups("sex"), seed=0).train)
    assert (data.names, data.levels, data.source) == (("age",), {"sex": ("f", "m")}, "my.csv")
    assert data.y.mean() == (table.columns["loan"] == "paid").mean()


def test_a_new_kind_of_source_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def coin(rest: str, *, seed: int, **unused: object) -> Table:
        y = np.random.default_rng(seed).integers(0, 2, int(rest))
        return Table({"x": np.arange(int(rest)), "y": y}, "y", ("x",), f"coin:{rest}")

    monkeypatch.setitem(sources.SOURCES, "coin", coin)
    assert load("coin:30", seed=1).rows == 30
    with pytest.raises(ValueError, match="coin:30 is not a file: it has its own label"):
        load("coin:30", label="y")


def test_real_data_by_name(acs_ok) -> None:
    table = load("acs:OK")
    assert table.source == "acs:OK"
    assert np.array_equal(table.columns["AGEP"], acs_ok["AGEP"])
    assert load("acs:OK:Income:2018").rows == table.rows
    assert sources.best("OK") == sources.best("ok") == "acs:OK"
    assert load("ACS:ok").source == "acs:OK"


def test_without_real_data_the_synthetic_census_is_best(monkeypatch) -> None:
    monkeypatch.setattr("fairbound.data._acs_files.available", lambda folder=None: ())
    assert sources.best("OK") == sources.best("ok") == "synthetic:OK"
    with pytest.raises(FileNotFoundError, match=r"no file of TX for Income, 2018 .*fetch TX`"):
        sources.best("tx")


def test_a_named_folder_is_never_replaced_by_the_synthetic_census(tmp_path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        with pytest.raises(FileNotFoundError, match=f"in {place}; get it with .*fetch OK`"):
            sources.best("OK", place)


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (
            "syntetic:VA",
            {},
            "called acs:STATE.* or synthetic:STATE",
        ),
        (__file__, {}, "a file, so the column .* `label`"),
        ("synthetic:OK", {"label": "y"}, "is census data"),
        ("synthetic:ca", {}, "no synthetic census of 'ca'; there are OK, VA; .* acs:CA"),
        (
            "synthetic:OK:Mobility",
            {},
            "has the task Income only, not Mobility; for real data use acs:OK:Mobility",
        ),
        ("synthetic:OK:Income:2018", {}, "synthetic data are named synthetic:STATE"),
        ("acs:", {}, "acs:STATES"),
        ("acs:OK:Income:2018:1-Year:more", {}, "acs:STATES"),
        ("acs:OK:Income:2018:more", {}, "the horizon is 1-Year or 5-Year, got 'more'"),
        ("acs:OK:Income:now", {}, "2014 or later, got 'now'"),
        ("acs:OK:Incom", {}, "did you mean Income"),
        ("acs:OKK", {}, "no state is abbreviated 'OKK'"),
    ],
)
def test_names_that_say_nothing(source: str, arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(source, **arguments)


COLUMNS = {
    "AGE": np.arange(90),
    "race": np.array(["w", "b"] * 45),
    "a:b": np.arange(90) % 2,
    "MAR": np.arange(90) % 5 + 1,
}


class TestAttributes:
    def test_three_forms(self) -> None:
        bands, one, levels = parse_attributes("AGE:25:65, race=w ,race", COLUMNS)[:3]
        assert bands.size == 3
        assert one.labels == ("race=w", "not race=w")
        assert levels.labels == ("b", "w")

    def test_a_column_whose_name_has_a_colon(self) -> None:
        assert parse_attribute("a:b", COLUMNS).labels == ("0", "1")

    def test_census_columns_have_the_levels_of_the_code_book(self) -> None:
        assert parse_attribute("MAR", COLUMNS, census=True).labels[0] == "Married"
        assert parse_attribute("MAR", COLUMNS).labels[0] == "1"
        assert parse_attribute("MAR=1", COLUMNS, census=True).labels == ("Married", "not Married")

    def test_a_level_of_the_census_by_its_label(self) -> None:
        one = parse_attribute("MAR=widowed", COLUMNS, census=True)
        assert one.labels == ("Widowed", "not Widowed")
        assert (one.levels(COLUMNS["MAR"]) == 0).sum() == 18
        with pytest.raises(
            ValueError, match=r"'Marred' is neither a code nor a label of MAR; did you mean Married"
        ):
            parse_attribute("MAR=Marred", COLUMNS, census=True)

    def test_one_truth_value_against_the_other(self) -> None:
        whole, gaps = np.array([True, False, False]), np.array([True, None, False], dtype=object)
        for spec in ("flag=true", "flag=True", "flag=1"):
            assert parse_attribute(spec, {"flag": whole}).levels(whole).tolist() == [0, 1, 1]
            assert parse_attribute(spec, {"flag": gaps}).levels(gaps).tolist() == [0, 1, 1]
        assert parse_attribute("flag=false", {"flag": gaps}).levels(gaps).tolist() == [1, 1, 0]
        with pytest.raises(ValueError, match="flag holds booleans, so flag=maybe matches none"):
            parse_attribute("flag=maybe", {"flag": whole})

    def test_whole_numbers_with_a_blank(self) -> None:
        columns = {"g": np.array([1.0, 2.0, np.nan])}
        assert parse_attribute("g", columns).labels == ("1", "2", "(missing)")
        assert parse_attribute("g=1", columns).levels(columns["g"]).tolist() == [0, 1, 1]
        bands = parse_attribute("g:2", columns)
        assert bands.labels == ("< 2", ">= 2", "(missing)")
        assert bands.levels(columns["g"]).tolist() == [0, 1, 2]

    def test_the_same_list_in_words_and_in_a_table(self) -> None:
        table = load("synthetic:OK")
        listed = parse_attributes("SEX, AGEP:25:65", table.columns, census=True)
        assert table.intersection(" SEX,AGEP:25:65,").attributes == tuple(listed)
        assert table.intersection([" SEX", listed[1]]).attributes == tuple(listed)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("AGE", "90 different numbers; cut it into bands.*AGE:25:45:65"),
            ("AGE:x", "must be numbers"),
            ("rase", "did you mean race"),
            ("AGE=old", "holds numbers"),
            (" , ", "at least one"),
        ],
    )
    def test_refusals(self, spec: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            parse_attributes(spec, COLUMNS)
