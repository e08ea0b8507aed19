"""methods-ok-race and methods-va-marital: the paper's problems, every method of the toolkit, equal
examples."""

from __future__ import annotations

from dataclasses import fields

import pytest

from fairbound.algorithms import ALGORITHMS
from fairbound.benchmark._entry import SCHEDULES, Entry
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._study import Study, load_study

FILES = {"methods-ok-race": "paper-ok-race", "methods-va-marital": "paper-va-marital"}
EVERY_FILE = pytest.mark.parametrize("name", FILES)
EVERY_ENTRY = pytest.mark.parametrize(
    ("study", "entry"),
    [(study, entry) for study in map(load_study, FILES) for entry in study.entries],
    ids=lambda value: value.name.replace(" ", "_"),
)


@EVERY_FILE
def test_the_problem_is_the_papers(name: str) -> None:
    study, paper = load_study(name), load_study(FILES[name])
    assert (study.problem, study.seeds, study.splits) == (paper.problem, paper.seeds, paper.splits)
    # the problem's
    assert {(entry.batch, entry.notion) for entry in study.entries} == {(None, None)}
    for entry in study.entries:
        assert entry.bound == (0.0 if entry.method == "Penalty" else None), entry.name  # eq. (13)


@EVERY_FILE
def test_every_method_has_a_row(name: str) -> None:
    entries = load_study(name).entries
    assert {entry.method for entry in entries} == set(ALGORITHMS)
    differ = ("mu", "lag", "optimistic")
    variants = {
        (entry.method, entry.fairret, *(entry.settings.get(name) for name in differ))
        for entry in entries
    }
    assert len(variants) == len(entries)


def test_both_have_the_same_rows() -> None:
    first, second = map(load_study, FILES)
    assert [(entry.name, entry.method) for entry in first.entries] == [
        (entry.name, entry.method) for entry in second.entries
    ]


@EVERY_ENTRY
def test_every_setting_is_stated(study: Study, entry: Entry) -> None:
    """A change of the library's defaults must move no result; TOML has no None, so what is None may
    be left out."""
    may_be_absent = {field.name for field in fields(entry.algorithm_type) if field.default is None}
    assert {field.name for field in fields(entry.algorithm_type)} - set(
        entry.settings
    ) <= may_be_absent
    for value in entry.settings.values():
        if isinstance(value, dict):
            assert set(value) == {"schedule"} | {
                field.name for field in fields(SCHEDULES[value["schedule"]])
            }


@EVERY_ENTRY
def test_steps_are_those_of_equal_examples(study: Study, entry: Entry) -> None:
    """So that the study is the same within both budgets."""
    assert entry.equal_examples
    assert study.problem is not None
    assert entry.steps == Plan(study.on(source=f"synthetic:{study.problem.state}")).equal_steps(
        entry
    )


@EVERY_ENTRY
def test_no_setting_was_chosen_on_the_experiments_state(study: Study, entry: Entry) -> None:
    assert "Alabama" in entry.reference or "North Carolina" in entry.reference
    assert not ({"OK", "VA"} & set(entry.reference.replace(";", " ").split()))
