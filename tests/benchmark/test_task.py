"""Studies carried out: results stored once, resumed to the same results, measured as
`Problem.evaluate` does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call

from fairbound.benchmark._engine import Engine
from fairbound.benchmark._measuring import Evaluator
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._results import Results
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import StoredStudy
from fairbound.benchmark._study import load_study
from fairbound.benchmark._task import Task, TaskRun, built_instance
from fairbound.benchmark.problems import _catalog as catalog
from fairbound.training._compile import COMPILED

STEPS = 12


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Experiment 1 with four of its entries, few records and a small network, on the synthetic
    census, two splits."""
    whole = (
        load_study("paper-ok-race")
        .with_entries((), only=("SGD", "SSL-ALM", "ALM", "SSw"))
        .on(source="synthetic:OK")
    )
    assert whole.problem is not None
    small = replace(whole.problem, hidden=(4,))
    return Plan(replace(whole, problem=small, records=3, seeds=2, splits=2, steps=STEPS))


@pytest.fixture(scope="module")
def done(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    assert plan.compute(store, Engine()).runs == 16
    return store


def keys_of(plan: Plan) -> list[str]:
    return [key for task in plan.tasks(Store("nowhere")) for key in task.keys]


def same(a: StoredResult | None, b: StoredResult | None) -> bool:
    assert a is not None
    assert b is not None
    return all(
        np.array_equal(column, b.tables[table][name], equal_nan=column.dtype.kind == "f")
        for table, columns in a.tables.items()
        for name, column in columns.items()
    )


def test_entries_of_one_method_share_a_task(plan: Plan, done: Store) -> None:
    assert [len(task.runs) for task in plan.tasks(done)] == [4, 8, 4]
    assert len(set(keys_of(plan))) == 16


def test_nothing_is_computed_twice(plan: Plan, done: Store) -> None:
    assert plan.compute(done, Engine()).runs == 0


def test_what_is_missing_comes_back_the_same(plan: Plan, done: Store, tmp_path: Path) -> None:
    """One stored result of a batch is lost: the batch is computed again and equals the first bit
    for bit."""
    resumed, keys = Store(tmp_path), keys_of(plan)
    lost = plan.tasks(done)[1].keys[3]
    resumed.put_many([result for key in keys if key != lost and (result := done.get(key))])
    assert plan.compute(resumed, Engine()).runs == 1
    assert all(same(done.get(key), resumed.get(key)) for key in keys)


def test_progress_reaches_the_end(plan: Plan, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    plan.compute(Store(tmp_path), Engine(), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


def test_many_runs_are_computed_in_batches_of_one_size() -> None:
    spec = load_study("paper-ok-race").problem
    assert spec is not None
    task = Task(
        spec,
        load_study("paper-ok-race").entries[:1],
        tuple(TaskRun(0, seed) for seed in range(100)),
        "groups",
    )
    assert [len(batch.runs) for batch in task.batches()] == [25, 25, 25, 25]
    assert [run for batch in task.batches() for run in batch.runs] == list(task.runs)


def test_records_are_measured_on_all_examples_of_a_part(plan: Plan, done: Store) -> None:
    result = done.get(plan.tasks(done)[0].keys[0])
    assert result is not None
    assert result.tables["records"]["step"].tolist() == [4, 8, 12]
    parts = result.tables["parts"]
    sizes = [len(plan._built.splits[0].pool(str(part))) for part in parts["part"]]
    assert parts["counts"].sum((1, 2, 3)).tolist() == sizes
    assert parts["histogram"].sum((1, 2)).tolist() == sizes
    assert np.all(np.diff(result.tables["records"]["train"][:, 0]) < 0)  # SGD's loss falls
    assert 0 < result.made["step_seconds"] < 1


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler on this machine")
def test_compiled_batches_come_back_the_same(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process had compiled is lost: a second compilation gives the same bits."""
    monkeypatch.setattr("fairbound.training._compile.LONG", STEPS)
    one = Plan(replace(plan.study.with_entries((), only=("SSL-ALM",)), splits=1))
    stores = [Store(tmp_path / name) for name in ("first", "second")]
    for store in stores:
        built_instance.cache_clear()
        assert Plan(one.study).compute(store, Engine()).runs == 2
        instance = Plan(one.study)._built
        assert len(COMPILED[instance.problem]) == 1
    assert all(same(stores[0].get(key), stores[1].get(key)) for key in keys_of(one))


def test_the_evaluator_agrees_with_the_problem(plan: Plan) -> None:
    torch.manual_seed(0)
    instance = plan._built
    problem, x = instance.problem, torch.randn(3, instance.starts([0]).shape[1])
    column = next(iter(problem.data.groups))
    for split in instance.splits:
        parts = ("train", "test")
        losses = Evaluator(
            problem.forward, problem.loss, problem.data, column, split, parts
        ).losses(x)
        for p, part in enumerate(parts):
            measured = problem.evaluate(x, split.pool(part))
            assert torch.allclose(losses[:, p, 0], measured.loss, atol=1e-5)
            assert torch.allclose(
                losses[:, p, 1] - losses[:, p, 2] - 0.005, measured.c[:, 0], atol=1e-5
            )


def test_splits_differ_and_each_is_scaled_by_its_own_rows(plan: Plan) -> None:
    instance = plan._built
    first, second = (split.train for split in instance.splits)
    assert instance.unscaled is not None
    assert not torch.equal(first + instance.unscaled.rows, second)
    for rows in (first, second):
        assert instance.problem.data.X[rows].double().mean(0).abs().max() < 1e-4


# Reading ------------------------------------------------------------------------------------------


def stored(store: Store) -> StoredStudy:
    (content,) = store.studies().values()
    return StoredStudy.from_json(content)


def test_pages_are_read_without_building_a_problem(
    done: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("a problem is built, or loaded")

    monkeypatch.setattr(catalog, "load_problem", forbidden)
    monkeypatch.setattr("fairbound.benchmark._task.built_instance", forbidden)
    monkeypatch.setattr("fairbound.benchmark.problems.table._build", forbidden)
    results = Results.read(stored(done), done)
    found = results.summary("test")
    assert list(found.index) == ["SGD", "SSL-ALM", "ALM", "SSw"]
    assert (found["violation", "mean"] >= 0).all()
    assert (results.rows() == [4, STEPS]).all(axis=None)
    assert results.card.data == "synthetic:OK"
    assert results.groups == ("white", "non-white")


def test_other_code_leaves_the_store_as_it_is_and_is_named(
    plan: Plan, done: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an edit of a source file: pages are served, the status says what is older, --recompute
    refreshes it."""
    store = Store(tmp_path / "results")
    shutil.copytree(done.folder, store.folder)
    keys, older = keys_of(plan), stored(store).stale(store)
    assert older == []
    monkeypatch.setattr("fairbound.benchmark._stored_study.code_hash", lambda: "edited")
    monkeypatch.setattr("fairbound.benchmark._task.code_hash", lambda: "edited")
    assert keys_of(Plan(plan.study)) == keys
    assert plan.compute(store, Engine()).runs == 0
    assert len(stored(store).stale(store)) == 16
    assert Results.read(stored(store), store).rows()["runs"].tolist() == [4, 4, 4, 4]
    said = " ".join(call("status", "--out", store.folder).split())
    assert "16 of 16 runs; older code computed 16 of them: --recompute refreshes them" in said
    assert Plan(plan.study, recompute=True).compute(store, Engine()).runs == 16
    assert stored(store).stale(store) == []
    assert all(same(done.get(key), store.get(key)) for key in keys)
    assert Plan(plan.study, recompute=True).compute(store, Engine()).runs == 0


def test_what_is_asked_changes_the_key(plan: Plan) -> None:
    keys = set(keys_of(plan))
    assert not keys & set(keys_of(Plan(replace(plan.study, steps=STEPS + 1))))
    assert keys == set(keys_of(Plan(plan.study.within("examples"))))  # capped to the same lengths
    assert keys == set(keys_of(Plan(replace(plan.study, title="Another title", seeds=2))))
    spec = plan.study.problem
    assert spec is not None
    assert not keys & set(keys_of(Plan(replace(plan.study, problem=replace(spec, bound=0.006)))))


def test_groups_that_the_data_lack(plan: Plan) -> None:
    spec = plan.study.problem
    assert spec is not None
    with pytest.raises(ValueError, match=r"3 groups.*RAC1P=1 gives 2"):
        keys_of(Plan(replace(plan.study, problem=replace(spec, groups=("a", "b", "c")))))


# A table of the user's own ------------------------------------------------------------------------

OWN_TABLE = """
title = "Loans"
seeds = 1
records = 2
common = { steps = 4 }
entries = [{ name = "SGD", method = "SGD" }, { name = "Descent-ascent", method = "DescentAscent" }]
[problem]
source = "loans.csv"
label = "granted"
group = "sex"
notion = "pairwise"
bound = 0.05
hidden = [3]
batch = 4
min_size = 0
split = { seed = 0, shares = { train = 0.6, test = 0.4 } }
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An experiment file with a table beside it, one of whose rows lacks a value."""
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(18, 80)},{'fm'[i % 2]},{'yes' if rng.random() < 0.5 else 'no'}"
        for i in range(60)
    ]
    (tmp_path / "loans.csv").write_text("\n".join(["age,sex,granted", *lines, ",f,yes"]))
    (tmp_path / "loans.toml").write_text(OWN_TABLE)
    return tmp_path / "loans.toml"


def test_a_table_of_the_users_own_is_named_in_the_study(own: Path, tmp_path: Path) -> None:
    plan, store = Plan(load_study(own)), Store(tmp_path / "results")
    assert plan.compute(store, Engine()).runs == 2
    (card,) = stored(store).cards
    assert card.group_names == ("f", "m")
    assert (card.data, card.source) == (
        "loans.csv; 1 of 61 rows dropped, with missing values",
        "loans.csv",
    )
    assert not card.synthetic
    result = store.get(keys_of(plan)[0])
    assert result is not None
    assert result.tables["parts"]["counts"].sum() == 60
    assert Results.read(stored(store), store).rows()["runs"].tolist() == [1, 1]


def test_source_label_and_group_as_options(own: Path, tmp_path: Path) -> None:
    """An installed study on a table of the user's."""
    options = (
        "--source",
        tmp_path / "loans.csv",
        "--label",
        "granted",
        "--group",
        "sex",
        "--steps",
        "3",
    )
    printed = call(
        "run",
        "tune-ok-fairret",
        *options,
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        tmp_path / "results",
    )
    assert "loans.csv; 1 of 61 rows" in printed
    assert "7 runs computed, 0 were there" in printed
    said = call(
        "run",
        own,
        "--source",
        tmp_path / "loans.csv",
        "--label",
        "income",
        "--out",
        tmp_path,
        code=1,
    )
    assert "'income'" in said
    said = call(
        "run", "paper-ok-race", "--source", tmp_path / "loans.csv", "--out", tmp_path, code=1
    )
    assert "the column to predict must be named" in said


def test_census_data_in_the_place_of_a_table_need_no_label(own: Path) -> None:
    instance = Plan(load_study(own).on(source="synthetic:OK", group="SEX"))._built
    assert instance.group_names == ("Male", "Female")
    assert instance.source == "synthetic:OK"


def test_another_label_value_counts_as_positive(own: Path) -> None:
    yes = Plan(load_study(own))._built.problem.data.y
    own.write_text(OWN_TABLE.replace('label = "granted"', 'label = "granted"\npositive = "no"'))
    assert torch.equal(Plan(load_study(own))._built.problem.data.y, 1 - yes)
