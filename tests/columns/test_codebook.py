"""The code book: what is in it, attributes made from it, and that it is what the dictionary
says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from census import DATA, needs_extract

from fairbound.columns import _codebook as codebook
from fairbound.columns._attributes import Banded, Coded, Intersection
from fairbound.data._acs import NEWER, STATES
from fairbound.data._tasks import TASKS

ROOT = Path(__file__).resolve().parents[2]
DICTIONARY = DATA / "acs" / "PUMS_Data_Dictionary_2018.csv"
TOOL = ROOT / "tools" / "make_codebook.py"
CODED = [name for name in codebook.variables() if codebook.variable(name).kind == "codes"]


def test_every_column_of_every_task_is_described() -> None:
    for task in TASKS.values():
        assert set(task.columns) <= set(codebook.variables())


@pytest.mark.parametrize("name", CODED)
def test_labels_are_distinct_and_fit_a_table(name: str) -> None:
    labels = list(codebook.codes(name).values())
    assert len(set(labels)) == len(labels)
    assert all(0 < len(label) <= 100 for label in labels)


def test_known_levels() -> None:
    assert codebook.codes("MAR") == {
        1: "Married",
        2: "Widowed",
        3: "Divorced",
        4: "Separated",
        5: "Never married or under 15",
    }
    assert len(codebook.codes("OCCP")) == 531  # 530 occupations and the blank
    assert codebook.codes("OCCP")[10] == "Chief Executives and Legislators"
    assert codebook.codes("POBP")[40] == "Oklahoma"
    assert codebook.codes("POBP")[161] == "Georgia (country)"
    assert list(codebook.codes("COW"))[-1] is None
    assert codebook.codes("RAC1P")[1] == "White"
    assert None not in codebook.codes("RAC1P")


def test_states_are_those_of_the_code_book() -> None:
    assert sorted(STATES.values()) == sorted(codebook.codes("ST"))


def test_newer_codes_mean_what_the_older_ones_did() -> None:
    for column, (_, codes) in NEWER.items():
        assert set(codes.values()) <= set(codebook.codes(column))
    assert set(codebook.codes("RELP")) - set(NEWER["RELP"][1].values()) == {11}
    assert set(codebook.codes("JWTR")) - set(NEWER["JWTR"][1].values()) == {None}


def test_a_blank_is_a_level_and_a_fill_can_stand_for_it() -> None:
    with_nan = codebook.attribute("COW")
    assert isinstance(with_nan, Coded)
    assert with_nan.codes[-1] is None
    assert with_nan.levels(np.array([1.0, np.nan, 9.0])).tolist() == [0, 9, 8]
    for fill in (0, -1):
        filled = codebook.attribute("COW", missing=fill)
        assert filled.labels == with_nan.labels
        assert filled.levels(np.array([1, fill, 9])).tolist() == [0, 9, 8]
        with pytest.raises(ValueError, match="COW holds"):
            filled.levels(np.array([1, -1 - fill, 9]))  # the other fill is none of its codes


def test_a_fill_is_no_level_of_a_column_that_is_never_empty() -> None:
    relationship = codebook.attribute("RELP", missing=0)  # 0 is the reference person
    assert relationship.labels[0] == "Reference person"
    assert relationship.size == 18
    with pytest.raises(ValueError, match="SEX holds"):
        codebook.attribute("SEX", missing=0).levels(np.array([0, 1]))


def test_numbers_are_cut_where_documented_or_told() -> None:
    age = codebook.attribute("AGEP")
    assert isinstance(age, Banded)
    assert age.edges == (25, 35, 45, 55, 65)
    assert age.levels(np.array([24, 25, 64, 65])).tolist() == [0, 1, 4, 5]
    schooling = codebook.attribute("SCHL", edges=(16, 21))  # ordered codes may be cut, too
    assert schooling.levels(np.array([15, 16, 20, 21])).tolist() == [0, 1, 1, 2]
    with pytest.raises(ValueError, match="no usual bands"):
        codebook.attribute("PWGTP")


def test_every_default_edge_lies_within_the_range() -> None:
    for name, edges in codebook.EDGES.items():
        assert codebook.variable(name).kind == "number"
        assert all(codebook.variable(name).holds(edge) for edge in edges)


def test_filled_rows_have_a_band_of_their_own() -> None:
    commute = codebook.attribute("JWMNP", edges=(30,), missing=-1)
    assert commute.levels(np.array([-1, 1, 29, 30])).tolist() == [0, 1, 1, 2]
    # the edge at the lowest code is there already
    schooling = codebook.attribute("SCHL", edges=(1, 16), missing=0)
    assert schooling.size == 3


@pytest.mark.parametrize(("name", "fill"), [("POVPIP", 0), ("PINCP", 0), ("PINCP", -1)])
def test_a_fill_that_is_a_value_is_refused(name: str, fill: int) -> None:
    with pytest.raises(ValueError, match=f"{fill} is itself a value of {name}"):
        codebook.attribute(name, missing=fill)


def test_what_cannot_be_listed_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"Coded\.of\('PUMA', column\)"):
        codebook.attribute("PUMA")
    with pytest.raises(ValueError, match="did you mean RAC1P"):
        codebook.codes("rac1p")
    with pytest.raises(ValueError, match="no variable 'zzzzzz'; there are AGEP"):
        codebook.codes("zzzzzz")


@pytest.mark.skipif(
    not DICTIONARY.is_file() or not TOOL.is_file(), reason=f"needs {DICTIONARY} and {TOOL}"
)
def test_the_embedded_table_is_what_the_tool_extracts(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_codebook", TOOL)
    assert spec
    assert spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main(str(DICTIONARY), str(tmp_path / "codebook.csv"))
    embedded = Path(codebook.__file__).with_name("codebook.csv")
    assert (tmp_path / "codebook.csv").read_bytes() == embedded.read_bytes()


@needs_extract("42states")
def test_every_code_of_a_million_real_rows_is_known() -> None:
    from fairbound.data._acs import load

    people = load(["42states"], folder=DATA)
    attributes = tuple(codebook.attribute(name, missing=0) for name in people.features)
    every = Intersection(attributes)
    assert every.definable > 2**31
    for attribute in attributes:
        assert attribute.levels(people.columns[attribute.name]).max() < attribute.size
