"""Experiments carried out: results stored once, resumed to the same results, measured as `Problem.measure` does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call

from fairbound.benchmark import config
from fairbound.benchmark.executor import Job, RunBatch, execute, plan, run_batches
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.results import Results
from fairbound.benchmark.store import Store
from fairbound.data import load
from fairbound.training.compile import COMPILED

STEPS = 12


@pytest.fixture(scope="module")
def prepared() -> PreparedExperiment:
    """Experiment 1 with four of its rows, few records and a small network, on the synthetic census, two splits."""
    whole = config.load("income-ok-race")
    rows = tuple(row for row in whole.rows if row.name in ("SGD", "SSL-ALM", "ALM", "SSw"))
    small = replace(whole, rows=rows, hidden=(4,), records=3, seeds=2)
    return PreparedExperiment.of(small, load("synthetic:OK"), splits=2)


@pytest.fixture(scope="module")
def planned(prepared: PreparedExperiment) -> list[RunBatch]:
    return run_batches(prepared, steps=STEPS)


@pytest.fixture(scope="module")
def done(prepared: PreparedExperiment, planned: list[RunBatch], tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    assert execute(prepared, store, planned) == 16
    return store


def same(a: StoredResult, b: StoredResult) -> bool:
    return all(
        np.array_equal(column, b.tables[table][name], equal_nan=column.dtype.kind == "f")
        for table, columns in a.tables.items()
        for name, column in columns.items()
    )


def test_rows_of_one_method_share_a_batch(planned: list[RunBatch]) -> None:
    assert [len(batch.plans) for batch in planned] == [4, 8, 4]
    assert len({key for batch in planned for key in batch.keys}) == 16


def test_nothing_is_computed_twice(prepared: PreparedExperiment, planned: list[RunBatch], done: Store) -> None:
    assert execute(prepared, done, planned) == 0


def test_what_is_missing_comes_back_the_same(
    prepared: PreparedExperiment, planned: list[RunBatch], done: Store, tmp_path: Path
) -> None:
    """One stored result of a batch is lost: the batch is computed again and equals the first bit for bit."""
    resumed = Store(tmp_path)
    lost = planned[1].keys[3]
    kept = [key for batch in planned for key in batch.keys if key != lost]
    resumed.put_many([done.get(key) for key in kept])
    assert execute(prepared, resumed, planned) == 8
    for batch in planned:
        assert all(same(done.get(key), resumed.get(key)) for key in batch.keys)


def test_progress_reaches_the_end(prepared: PreparedExperiment, planned: list[RunBatch], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    execute(prepared, Store(tmp_path), planned, lambda done, total: seen.append((done, total)))
    whole = sum(batch.work(groups=2) for batch in planned)
    assert seen[-1] == (whole, whole)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_records_are_measured_on_all_examples_of_a_part(
    prepared: PreparedExperiment, planned: list[RunBatch], done: Store
) -> None:
    result = done.get(planned[0].keys[0])
    assert result.tables["records"]["step"].tolist() == [4, 8, 12]
    counts = result.tables["end"]["counts"]
    sizes = [len(prepared.splits[0].pool(str(part))) for part in result.tables["end"]["part"]]
    assert counts.sum((1, 2, 3)).tolist() == sizes
    assert result.tables["end"]["histogram"].sum((1, 2)).tolist() == sizes
    assert np.all(np.diff(result.tables["records"]["train"][:, 0]) < 0)  # SGD's loss falls


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler on this machine")
def test_compiled_batches_come_back_the_same(
    prepared: PreparedExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process had compiled is lost: a second compilation gives the same bits."""
    monkeypatch.setattr("fairbound.training.compile.LONG", STEPS)
    stores = [Store(tmp_path / name) for name in ("first", "second")]
    rows = tuple(row for row in prepared.experiment.rows if row.name == "SSL-ALM")
    fresh = [
        PreparedExperiment.of(replace(prepared.experiment, rows=rows), load("synthetic:OK"), splits=1) for _ in stores
    ]
    for store, one in zip(stores, fresh, strict=True):
        (batch,) = run_batches(one, steps=STEPS)
        assert execute(one, store, [batch]) == 2
    assert len(COMPILED[fresh[0].problem(rows[0])]) == len(COMPILED[fresh[1].problem(rows[0])]) == 1
    assert all(same(stores[0].get(key), stores[1].get(key)) for key in batch.keys)


def test_the_evaluator_agrees_with_the_problem(prepared: PreparedExperiment) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, sum(p.numel() for p in prepared.network().parameters()))
    problem = prepared.problem(prepared.experiment.rows[0])
    for split in (0, 1):
        losses = prepared.evaluator(split, ("train", "test")).losses(x)
        for p, part in enumerate(("train", "test")):
            measured = problem.evaluate(x, prepared.split_of(split).pool(part))
            assert torch.allclose(losses[:, p, 0], measured.loss, atol=1e-5)
            assert torch.allclose(losses[:, p, 1] - losses[:, p, 2] - 0.005, measured.c[:, 0], atol=1e-5)


def test_splits_differ_and_each_is_scaled_by_its_own_rows(prepared: PreparedExperiment) -> None:
    first, second = (prepared.split_of(i).train for i in (0, 1))
    assert not torch.equal(first + prepared.unscaled.rows, second)
    for rows in (first, second):
        assert prepared.data.X[rows].double().mean(0).abs().max() < 1e-4


def test_the_summary_reads_the_store_alone(prepared: PreparedExperiment, planned: list[RunBatch], done: Store) -> None:
    results = Results.read(prepared, done, planned)
    found = results.summary("test")
    assert list(found.index) == [row.name for row in prepared.experiment.rows]
    assert (found["violation", "mean"] >= 0).all()
    assert (results.rows() == [4, STEPS]).all(axis=None)


def test_settings_that_decide_results_change_the_key(prepared: PreparedExperiment, planned: list[RunBatch]) -> None:
    others = run_batches(prepared, steps=STEPS + 1)
    rows = run_batches(prepared, budget="examples", steps=STEPS)
    assert not {k for s in planned for k in s.keys} & {k for s in others for k in s.keys}
    assert {k for s in planned for k in s.keys} == {k for s in rows for k in s.keys}  # capped to the same lengths


def test_groups_that_the_data_lack(prepared: PreparedExperiment) -> None:
    with pytest.raises(ValueError, match="names 3 groups, but RAC1P=1 gives 2"):
        PreparedExperiment.of(replace(prepared.experiment, groups=("a", "b", "c")), load("synthetic:OK"))


# A table of the user's own --------------------------------------------------------------------------------------------

OWN_TABLE = """
title = "Loans"
reference = "our own"
source = "loans.csv"
label = "granted"
group = "sex"
notion = "pairwise"
bound = 0.05
hidden = [3]
batch = 4
seeds = 1
records = 2
split = { seed = 0, shares = { train = 0.6, test = 0.4 } }
common = { reference = "our own", steps = 4 }
rows = [{ name = "SGD", method = "SGD" }, { name = "Descent-ascent", method = "DescentAscent" }]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An experiment file with a table beside it, one of whose rows lacks a value."""
    rng = np.random.default_rng(0)
    lines = [f"{rng.integers(18, 80)},{'fm'[i % 2]},{'yes' if rng.random() < 0.5 else 'no'}" for i in range(60)]
    (tmp_path / "loans.csv").write_text("\n".join(["age,sex,granted", *lines, ",f,yes"]))
    (tmp_path / "loans.toml").write_text(OWN_TABLE)
    return tmp_path / "loans.toml"


def test_a_table_of_the_users_own_is_named_in_the_experiment_file(own: Path, tmp_path: Path) -> None:
    planned = plan(Job(experiment=str(own)))
    prepared = planned.prepared
    assert prepared.experiment.groups == ("f", "m")
    assert prepared.source == "loans.csv; 1 of 61 rows dropped, with missing values"
    assert prepared.unscaled.names == ("age",)
    assert not prepared.synthetic
    store = Store(tmp_path / "results")
    assert execute(prepared, store, planned.batches) == 2
    counts = store.get(planned.batches[0].keys[0]).tables["end"]["counts"]
    assert counts.sum() == 60
    assert Results.read(prepared, store, planned.batches).rows()["runs"].tolist() == [1, 1]


def test_a_table_with_very_many_groups(own: Path, tmp_path: Path) -> None:
    """One group for each of 600 customers: mini-batches have examples of any of them."""
    rng = np.random.default_rng(0)
    customers = [f"c{i % 600}" for i in range(1800)]
    lines = [f"{rng.integers(18, 80)},{c},{'yes' if rng.random() < 0.5 else 'no'}" for c in customers]
    (tmp_path / "loans.csv").write_text("\n".join(["age,sex,granted", *lines]))
    text = OWN_TABLE.replace('"pairwise"', '"bounded_group_loss"').replace("bound = 0.05", "bound = 0.6")
    own.write_text(text.replace("batch = 4", "batch = 32").replace("steps = 4", "steps = 20"))
    planned = plan(Job(experiment=str(own)))
    assert planned.prepared.problem(planned.prepared.experiment.rows[1]).pooled
    store = Store(tmp_path / "results")
    assert execute(planned.prepared, store, planned.batches) == 2
    multipliers = store.get(planned.batches[1].keys[0]).tables["run"]["multipliers"]
    assert multipliers.shape == (1, 600)
    assert 0 < (multipliers > 0).sum() < 600
    assert Results.read(planned.prepared, store, planned.batches).rows()["runs"].tolist() == [1, 1]


def test_source_label_and_group_as_options(own: Path, tmp_path: Path) -> None:
    """An installed experiment on a table of the user's."""
    options = ("--source", tmp_path / "loans.csv", "--label", "granted", "--group", "sex", "--steps", "3")
    printed = call("run", "tune-ok-fairret", *options, "--seeds", "1", "--jobs", "1", "--out", tmp_path / "results")
    assert "loans.csv; 1 of 61 rows" in printed
    assert "7 runs computed, 0 were there" in printed
    said = call("run", own, "--source", tmp_path / "loans.csv", "--label", "income", "--out", tmp_path, code=1)
    assert "'income'" in said
    said = call("run", "income-ok-race", "--source", tmp_path / "loans.csv", "--out", tmp_path, code=1)
    assert "the column to predict must be named" in said


def test_census_data_in_the_place_of_a_table_need_no_label(own: Path) -> None:
    prepared = plan(Job(experiment=str(own), source="synthetic:OK", group="SEX")).prepared
    assert prepared.experiment.groups == ("Male", "Female")
    assert prepared.synthetic


def test_another_label_value_counts_as_positive(own: Path) -> None:
    yes = plan(Job(experiment=str(own))).prepared.unscaled.y
    own.write_text(OWN_TABLE.replace('label = "granted"', 'label = "granted"\npositive = "no"'))
    assert torch.equal(plan(Job(experiment=str(own))).prepared.unscaled.y, 1 - yes)
