"""Boards: planned, computed, interrupted, resumed and read."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairbound.algorithms import primal
from fairbound.algorithms.schedules import Power
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._entry import TUNING_POINTS, TUNING_SEEDS, Entry
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._sections import read_page
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import StoredStudy
from fairbound.benchmark._study import load_study
from fairbound.benchmark._task import Task, TaskRun
from fairbound.benchmark.board._findings import overall
from fairbound.benchmark.board._results import Board, InstanceName
from fairbound.benchmark.problems import load as load_problem
from fairbound.benchmark.problems import names
from fairbound.benchmark.problems._changes import CHANGES

PROBLEM = """
import torch
from fairbound.benchmark.problems import BenchmarkProblem, Solution
from fairbound.benchmark.problems.expectation import centered, expectation

def values(x, noise):  # min |x - (2, 1)|^2 / 2 s.t. x0 <= 1, x1 = .5: x* = (1, .5), y* = (1, .5)
    f = ((x - torch.tensor([2.0, 1.0])).square().sum() / 2).expand(len(noise)) + noise @ x
    return torch.stack([f, x[0] - 1 + noise[:, 0], x[1] - 0.5 + noise[:, 1]], 1)

def build():
    noise = centered(0.1 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0)))
    solution = Solution(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.5]))
    return expectation(values, noise, torch.zeros(2), inequalities=1, equalities=1, batch=4, solution=solution)

PROBLEMS = (BenchmarkProblem(name="two-lines", title="Two lines", family="test", changed=True,
                             build=build, noise="Gaussian", kinds="<= and = linear", convex=True, steps=300),)
"""
STATED = InstanceName("two-lines")
DESCENT, LEVEL = (
    Entry(name="Descent", method="DescentAscent"),
    Entry(name="Level", method="LevelConstrained"),
)


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "two_lines.py"
    path.write_text(textwrap.dedent(PROBLEM))
    return str(path)


def plan(problem: str, *entries: Entry, **options: object) -> Plan:
    study = load_study("board")
    return Plan(
        replace(study, problems=(problem,), entries=entries or study.entries, seeds=3, **options)
    )  # type: ignore[arg-type]


def computed(made: Plan, folder: Path) -> Board:
    """From the store alone, after what it lacks is computed."""
    store = Store(folder)
    made.compute(store, Engine())
    (study,) = store.studies(f"board-{made.study.digest}*").values()
    return Board.read(StoredStudy.from_json(study), store)


def test_records_are_losses_and_violations_of_the_whole_problem(
    problem: str, tmp_path: Path
) -> None:
    made = plan(problem, DESCENT)
    board = computed(made, tmp_path / "results")
    curves = board.curves["Descent", STATED]
    # the first step after 0.5 %
    assert (curves.share[0], curves.share[-1]) == pytest.approx((2 / 300, 1.0))
    assert curves.loss.shape == curves.violation.shape == (3, len(curves.share))
    assert np.abs(curves.loss[:, -1] - 0.625).max() < 0.1  # |(1, .5) - (2, 1)|^2 / 2
    assert curves.distance is not None
    assert curves.distance[:, -1].max() < 0.1
    assert curves.multiplier_distance is not None
    assert curves.multiplier_distance.max() < 0.3
    card = board.problem("two-lines")
    assert (card.n, card.m, card.examples, card.provisional) == (2, 2, 200, True)


def test_a_page_is_made_without_building_a_problem(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(problem, DESCENT)
    made.compute(Store(tmp_path / "results"), Engine())
    before = computed(made, tmp_path / "results")

    def forbidden(*args: object) -> None:
        raise AssertionError("a problem is built, or loaded")

    Path(problem).unlink()
    loaders = ("_task.load_problem", "_plan.load_problem", "problems._catalog.load_problem")
    for name in ("_task.built_instance", *loaders):
        monkeypatch.setattr(f"fairbound.benchmark.{name}", forbidden)
    (study,) = Store(tmp_path / "results").studies().values()
    stored = StoredStudy.from_json(study)
    board = Board.read(stored, Store(tmp_path / "results"))
    assert np.array_equal(
        board.curves["Descent", STATED].loss, before.curves["Descent", STATED].loss
    )
    assert "two-lines" in read_page([stored], Store(tmp_path / "results")).html()


def test_changed_instances_are_measured_in_the_units_of_the_problem(
    problem: str, tmp_path: Path
) -> None:
    made = plan(problem, DESCENT, changed_seeds=2)
    assert {
        run["steps"] for task in made.tasks(Store(tmp_path / "results")) for run in task.asked
    } == {300}
    board = computed(made, tmp_path / "results")
    stated = board.curves["Descent", STATED]
    for change in filter(None, CHANGES):
        curves = board.curves["Descent", InstanceName("two-lines", change)]
        assert curves.loss.shape == (2, len(curves.share))
        assert not np.array_equal(curves.loss, stated.loss[:2])
    small = board.curves["Descent", InstanceName("two-lines", "c x 0.01")]
    # after two steps
    assert small.violation[:, 0] == pytest.approx(stated.violation[:2, 0], rel=0.2)
    # the multipliers are too small
    assert small.violation[:, -1].min() > 10 * stated.violation[:, -1].max()
    assert len(plan(problem, DESCENT, changed_seeds=0).tasks(Store(tmp_path / "results"))) == 1


def test_a_change_of_the_rate_is_one_of_the_primal_step_or_of_the_methods_own(problem: str) -> None:
    own, adam = Entry(name="SQP", method="TrackedSQP"), {"name": "Adam", "lr": 0.01}
    assert DESCENT.moved(100, adam, 3.0) == (DESCENT.algorithm(100), primal.Adam(lr=0.03))
    assert DESCENT.moved(100, {}, 3.0)[0].tau == pytest.approx(3 * DESCENT.algorithm(100).tau)
    assert own.moved(100, adam, 3.0)[0].alpha == Power(1.5, 0.6)
    (run,) = Task(problem, (DESCENT,), (TaskRun(0, 0, change="batch / 4"),), "solve").asked
    assert run["batch"] == [1, 1]


def test_a_method_that_refuses_a_problem_has_its_sentence_in_the_place_of_a_score(
    problem: str, tmp_path: Path
) -> None:
    made = plan(problem, DESCENT, LEVEL)
    board = computed(made, tmp_path / "results")
    assert "1 of 2 are equalities" in board.failures["Level", STATED]
    assert ("Level", STATED) not in board.curves
    assert ("Descent", STATED) in board.curves


def test_what_is_stored_is_not_computed_again_and_another_method_changes_nothing(
    problem: str, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    plan(problem, DESCENT).compute(Store(folder), Engine())
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    plan(problem, DESCENT).compute(Store(folder), Engine())
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()} == before
    plan(problem, DESCENT, replace(DESCENT, name="Slow", settings={"eta": 0.01})).compute(
        Store(folder), Engine()
    )
    after = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    assert {path: after[path] for path in before} == before
    assert len(after) == 2 * len(before)


def test_an_interrupted_board_goes_on_with_the_same_numbers(problem: str, tmp_path: Path) -> None:
    made = plan(problem, DESCENT, replace(DESCENT, name="Slow", settings={"eta": 0.01}))
    whole = computed(made, tmp_path / "whole")
    store = Store(tmp_path / "part")
    tasks = made.tasks(store)

    class Killed(BaseException):
        pass

    def killed(share: float) -> None:
        if share > 0.5:
            raise Killed

    tasks[0].complete(store, lambda share: None)
    with pytest.raises(Killed):
        tasks[1].complete(store, killed)
    assert not store.missing(tasks[0].keys)
    assert store.missing(tasks[1].keys) == tasks[1].keys
    made.note(store)
    (study,) = store.studies("board*").values()
    unfinished = Board.read(StoredStudy.from_json(study), store)
    assert unfinished.missing == sum(len(task.runs) for task in tasks[1:])
    assert overall(unfinished)[0].startswith(f"Not finished: {unfinished.missing:,} runs missing")
    part = computed(made, tmp_path / "part")
    assert part.missing == 0
    for cell, curves in whole.curves.items():
        assert np.array_equal(curves.loss, part.curves[cell].loss)
        assert np.array_equal(curves.violation, part.curves[cell].violation)


def test_several_processes_give_the_same_numbers(problem: str, tmp_path: Path) -> None:
    made = plan(problem, DESCENT, replace(DESCENT, name="Slow", settings={"eta": 0.01}))
    for processes in (1, 2):
        made.compute(Store(tmp_path / str(processes)), Engine(processes=processes))
    one, two = (computed(made, tmp_path / str(processes)) for processes in (1, 2))
    for cell, curves in one.curves.items():
        assert np.array_equal(curves.loss, two.curves[cell].loss)


def test_a_run_does_not_depend_on_how_the_board_is_composed(problem: str) -> None:
    """Results are named by what decides them: the name of the entry and the other problems do
    not."""
    named = Task(problem, (DESCENT,), (TaskRun(0, 0), TaskRun(0, 1)), "solve")
    other = replace(named, entries=(replace(DESCENT, name="Other"),))
    assert named.keys == other.keys
    assert not set(named.keys) & set(replace(named, entries=(LEVEL,)).keys)
    assert not set(named.keys) & set(replace(named, runs=(TaskRun(0, 0, change="c x 100"),)).keys)
    assert not set(named.keys) & set(replace(named, limit=100).keys)


def test_the_tuned_rules_take_the_best_point_on_other_seeds(problem: str, tmp_path: Path) -> None:
    entry = replace(DESCENT, space={"tau": (1e-4, 0.3), "eta": (1e-3, 1.0)})
    made = plan(problem, entry, rules="tuned", steps=200)
    board, store = computed(made, tmp_path / "results"), Store(tmp_path / "results")
    (task,) = made.tuning()
    assert len(task.entries) == TUNING_POINTS
    assert {run.seed for run in task.runs} == set(TUNING_SEEDS)
    chosen = made.chosen(problem, entry, store)
    ends = {
        one.settings["tau"]: [
            float(np.median(found.tables["records"]["distance"][-3:]))
            for key, run in zip(task.keys, task.runs, strict=True)
            if task.entries[run.entry] == one and (found := store.get(key))
        ]
        for one in task.entries
    }
    medians = {tau: np.median(distances) for tau, distances in ends.items()}
    # by the merit that is counted
    assert medians[chosen.settings["tau"]] == min(medians.values()) < 0.1
    assert (
        board.methods[0]
        .chosen["two-lines"]
        .startswith(f"DescentAscent(tau={chosen.settings['tau']}")
    )


def test_points_of_a_space_are_spread_and_repeatable() -> None:
    entry = replace(DESCENT, space={"tau": (0.01, 1.0)}, settings={"eta": 0.2})
    taus = [one.settings["tau"] for one in entry.tuning_entries()]
    assert taus == [one.settings["tau"] for one in entry.tuning_entries()]
    assert len(set(taus)) == TUNING_POINTS
    assert 0.01 <= min(taus) < 0.02
    assert 0.5 < max(taus) <= 1.0
    assert 6 <= sum(tau < 0.1 for tau in taus) <= 14  # half of them below the geometric mean
    scheduled = replace(
        entry, settings={"tau": {"schedule": "Linear", "start": 1.0, "steps": "run"}}
    )
    assert scheduled.tuning_entries()[0].settings["tau"]["schedule"] == "Linear"
    assert scheduled.tuning_entries()[0].settings["tau"]["start"] == taus[0]


def test_too_many_constraints_for_a_subproblem_are_refused_beforehand(problem: str) -> None:
    text = Path(problem).read_text().replace("inequalities=1", "inequalities=600")
    text = text.replace("noise[:, 0], x[1]", "noise[:, 0], *([x[0] - 1 + noise[:, 0]] * 599), x[1]")
    text = text.replace("torch.tensor([1.0, 0.5]))", "torch.ones(601))").replace(
        "two-lines", "many-lines"
    )
    path = Path(problem).with_name("many.py")
    path.write_text(text)
    task = Task(str(path), (Entry(name="SQP", method="TrackedSQP"),), (TaskRun(0, 0),), "solve")
    assert (
        task.refusal() == "a step solves a subproblem in all constraints, and 601 are more than 50"
    )
    assert replace(task, entries=(DESCENT,)).refusal() is None


def test_wrong_plans_are_sentences(problem: str) -> None:
    with pytest.raises(ValueError, match=r"'income-okrace'; .*nearest.*'income-ok-race'"):
        plan("income-okrace", DESCENT).tasks(Store("nowhere"))
    with pytest.raises(ValueError, match=r"tuned.*search space"):
        plan(problem, DESCENT, rules="tuned")
    with pytest.raises(ValueError, match=r"2 entries.*'Descent'"):
        plan(problem, DESCENT).study.with_entries([DESCENT])
    with pytest.raises(ValueError, match=r"'SSLALM'; .*nearest.*'SSL-ALM'"):
        plan(problem).study.with_entries([], only=["SSLALM"])


DOCS = Path(__file__).parents[2] / "docs" / "guides" / "board.md"


def block(language: str, number: int = 0) -> str:
    return DOCS.read_text().split(f"```{language}\n")[1 + number].split("```")[0]


def test_the_problems_of_the_docs_run(tmp_path: Path) -> None:
    own = tmp_path / "five_means.py"
    own.write_text(block("python"))
    generator = np.random.default_rng(0)
    sex, income = generator.integers(2, size=400), generator.normal(size=400)
    approved = (income + 0.5 * sex + generator.normal(size=400) > 0).astype(int)
    rows = [
        f"{i:.3f},{'women' if s else 'men'},{a}"
        for i, s, a in zip(income, sex, approved, strict=True)
    ]
    (tmp_path / "loans.csv").write_text("\n".join(["income,sex,approved", *rows]))
    table = tmp_path / "loans.toml"
    table.write_text(block("toml").replace("[64, 32]", "[4]").replace("128", "16"))
    study = replace(
        load_study("board"),
        problems=(str(own), str(table)),
        entries=(DESCENT,),
        seeds=2,
        splits=2,
        steps=60,
    )
    board = computed(Plan(study), tmp_path / "results")
    assert {one.problem for _, one in board.curves} == {"five-means", "loans"}
    loans = board.problem("loans")
    assert (loans.groups, loans.bound, loans.source, loans.summary) == (
        2,
        0.02,
        "loans.csv",
        "2 groups, bound 0.02",
    )
    held = board.heldout["Descent", "loans"]
    assert len(held.decisions) == 2
    assert set(held.decisions) <= {"holds", "violated", "undecided"}
    assert 0.5 < held.accuracy.mean() <= 1.0


def test_the_docs_name_every_problem() -> None:
    text = DOCS.read_text()
    assert [
        name for name in names() if load_problem(name).on_board and f"`{name}`" not in text
    ] == []
