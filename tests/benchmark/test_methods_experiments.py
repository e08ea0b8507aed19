"""methods-ok-race and methods-va-marital: the paper's problems, every method of the toolkit, equal examples."""

from __future__ import annotations

from dataclasses import fields

import pytest

from fairbound.algorithms import ALGORITHMS
from fairbound.benchmark.config import SCHEDULES, Experiment, Row, load

FILES = {"methods-ok-race": "income-ok-race", "methods-va-marital": "income-va-marital"}
EVERY_FILE = pytest.mark.parametrize("name", FILES)
EVERY_ROW = pytest.mark.parametrize(
    ("experiment", "row"),
    [(experiment, row) for experiment in map(load, FILES) for row in experiment.rows],
    ids=lambda value: value.name.replace(" ", "_"),
)


@EVERY_FILE
def test_the_problem_is_the_papers(name: str) -> None:
    experiment, paper = load(name), load(FILES[name])
    for field in ("state", "group", "groups", "notion", "bound", "hidden", "batch", "seeds", "split"):
        assert getattr(experiment, field) == getattr(paper, field), field
    assert {row.batch for row in experiment.rows} == {paper.batch}
    assert {row.notion for row in experiment.rows} == {paper.notion}
    for row in experiment.rows:
        assert row.bound == (0.0 if row.method == "Penalty" else paper.bound), row.name  # eq. (13)


@EVERY_FILE
def test_every_method_has_a_row(name: str) -> None:
    rows = load(name).rows
    assert {row.method for row in rows} == set(ALGORITHMS)
    differ = ("mu", "lag", "optimistic")
    variants = {(row.method, row.fairret, *(row.settings.get(name) for name in differ)) for row in rows}
    assert len(variants) == len(rows)


def test_both_have_the_same_rows() -> None:
    first, second = map(load, FILES)
    assert [(row.name, row.method) for row in first.rows] == [(row.name, row.method) for row in second.rows]


@EVERY_ROW
def test_every_setting_is_stated(experiment: Experiment, row: Row) -> None:
    """A change of the library's defaults must move no result; TOML has no None, so what is None may be left out."""
    may_be_absent = {field.name for field in fields(row.algorithm_type) if field.default is None}
    assert {field.name for field in fields(row.algorithm_type)} - set(row.settings) <= may_be_absent
    for value in row.settings.values():
        if isinstance(value, dict):
            assert set(value) == {"schedule"} | {field.name for field in fields(SCHEDULES[value["schedule"]])}


@EVERY_ROW
def test_steps_are_those_of_equal_examples(experiment: Experiment, row: Row) -> None:
    """So that the experiment is the same within both budgets."""
    assert row.equal_examples
    assert row.steps == experiment.equal_examples_steps(row)


@EVERY_ROW
def test_no_setting_was_chosen_on_the_experiments_state(experiment: Experiment, row: Row) -> None:
    assert "Alabama" in row.reference or "North Carolina" in row.reference
    assert not ({"OK", "VA"} & set(row.reference.replace(";", " ").split()))
