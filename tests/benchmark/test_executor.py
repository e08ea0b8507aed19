"""Experiments carried out: cells stored once, resumed to the same results, measured as `Problem.measure` does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fairbound.algorithms import StochasticGhost
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.benchmark import config
from fairbound.benchmark.executor import Stack, aligned, execute, stacks
from fairbound.benchmark.experiment import Setting
from fairbound.benchmark.result_file import Cell
from fairbound.benchmark.results import Results
from fairbound.benchmark.store import Store
from fairbound.data import load
from fairbound.training.compile import COMPILED

STEPS = 12


@pytest.fixture(scope="module")
def setting() -> Setting:
    """Experiment 1 with four of its rows, few records and a small network, on synthetic people, two splits."""
    whole = config.load("income-ok-race")
    rows = tuple(row for row in whole.rows if row.name in ("SGD", "SSL-ALM", "ALM", "SSw"))
    small = replace(whole, rows=rows, hidden=(4,), records=3, seeds=2)
    return Setting.of(small, load("synthetic:OK"), splits=2)


@pytest.fixture(scope="module")
def planned(setting: Setting) -> list[Stack]:
    return stacks(setting, steps=STEPS)


@pytest.fixture(scope="module")
def done(setting: Setting, planned: list[Stack], tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    assert execute(setting, store, planned) == 16
    return store


def same(a: Cell, b: Cell) -> bool:
    return all(
        np.array_equal(column, b.tables[table][name], equal_nan=column.dtype.kind == "f")
        for table, columns in a.tables.items()
        for name, column in columns.items()
    )


def test_rows_of_one_method_share_a_stack(planned: list[Stack]) -> None:
    assert [len(stack.plans) for stack in planned] == [4, 8, 4]
    assert len({key for stack in planned for key in stack.keys}) == 16


def test_nothing_is_computed_twice(setting: Setting, planned: list[Stack], done: Store) -> None:
    assert execute(setting, done, planned) == 0


def test_what_is_missing_comes_back_the_same(
    setting: Setting, planned: list[Stack], done: Store, tmp_path: Path
) -> None:
    """One stored cell of a stack is lost: the stack is computed again and equals the first bit for bit."""
    resumed = Store(tmp_path)
    lost = planned[1].keys[3]
    kept = [key for stack in planned for key in stack.keys if key != lost]
    resumed.put_many([done.get(key) for key in kept])
    assert execute(setting, resumed, planned) == 8
    for stack in planned:
        assert all(same(done.get(key), resumed.get(key)) for key in stack.keys)


def test_progress_reaches_the_end(setting: Setting, planned: list[Stack], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    execute(setting, Store(tmp_path), planned, lambda done, total: seen.append((done, total)))
    whole = sum(stack.work(groups=2) for stack in planned)
    assert seen[-1] == (whole, whole)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_records_are_measured_on_all_rows_of_a_part(setting: Setting, planned: list[Stack], done: Store) -> None:
    cell = done.get(planned[0].keys[0])
    assert cell.tables["records"]["step"].tolist() == [4, 8, 12]
    counts = cell.tables["end"]["counts"]
    sizes = [len(setting.splits[0].pool(str(part))) for part in cell.tables["end"]["part"]]
    assert counts.sum((1, 2, 3)).tolist() == sizes
    assert cell.tables["end"]["histogram"].sum((1, 2)).tolist() == sizes
    assert np.all(np.diff(cell.tables["records"]["train"][:, 0]) < 0)  # SGD's loss falls


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler on this machine")
def test_compiled_stacks_come_back_the_same(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process had compiled is lost: a second compilation gives the same bits."""
    monkeypatch.setattr("fairbound.training.compile.LONG", STEPS)
    stores = [Store(tmp_path / name) for name in ("first", "second")]
    rows = tuple(row for row in setting.experiment.rows if row.name == "SSL-ALM")
    fresh = [Setting.of(replace(setting.experiment, rows=rows), load("synthetic:OK"), splits=1) for _ in stores]
    for store, one in zip(stores, fresh, strict=True):
        (stack,) = stacks(one, steps=STEPS)
        assert execute(one, store, [stack]) == 2
    assert len(COMPILED[fresh[0].problem(rows[0])]) == len(COMPILED[fresh[1].problem(rows[0])]) == 1
    assert all(same(stores[0].get(key), stores[1].get(key)) for key in stack.keys)


def test_a_constant_that_starts_a_rule_is_not_made_a_schedule() -> None:
    ghosts = [StochasticGhost(alpha=0.05, decay=0.2), StochasticGhost(alpha=InverseSqrt(0.05))]
    assert aligned(ghosts) == ghosts


def test_the_evaluator_agrees_with_the_problem(setting: Setting) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, sum(p.numel() for p in setting.network().parameters()))
    problem = setting.problem(setting.experiment.rows[0])
    for split in (0, 1):
        losses = setting.evaluator(split, ("train", "test")).losses(x)
        for p, part in enumerate(("train", "test")):
            measured = problem.measure(x, setting.moved(split).pool(part))
            assert torch.allclose(losses[:, p, 0], measured.loss, atol=1e-5)
            assert torch.allclose(losses[:, p, 1] - losses[:, p, 2] - 0.005, measured.c[:, 0], atol=1e-5)


def test_splits_differ_and_each_is_scaled_by_its_own_rows(setting: Setting) -> None:
    first, second = (setting.moved(i).train for i in (0, 1))
    assert not torch.equal(first + setting.plain.rows, second)
    for rows in (first, second):
        assert setting.data.X[rows].double().mean(0).abs().max() < 1e-4


def test_the_summary_reads_the_store_alone(setting: Setting, planned: list[Stack], done: Store) -> None:
    results = Results.read(setting, done, planned)
    found = results.summary("test")
    assert list(found.index) == [row.name for row in setting.experiment.rows]
    assert (found["violation", "mean"] >= 0).all()
    assert (results.rows() == [4, STEPS]).all(axis=None)


def test_settings_that_decide_results_change_the_key(setting: Setting, planned: list[Stack]) -> None:
    others = stacks(setting, steps=STEPS + 1)
    rows = stacks(setting, budget="rows", steps=STEPS)
    assert not {k for s in planned for k in s.keys} & {k for s in others for k in s.keys}
    assert {k for s in planned for k in s.keys} == {k for s in rows for k in s.keys}  # capped to the same lengths


def test_groups_that_the_data_lack(setting: Setting) -> None:
    with pytest.raises(ValueError, match="names 3 groups, but RAC1P=1 gives 2"):
        Setting.of(replace(setting.experiment, groups=("a", "b", "c")), load("synthetic:OK"))
