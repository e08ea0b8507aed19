"""Tables as problems: the collection's, a user's own CSV, and what is said of a wrong file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairbound.algorithms import DescentAscent
from fairbound.benchmark.problems import load, names, table
from fairbound.benchmark.problems._scaled import scaled_instance
from fairbound.training._runner import run

TABLES = [name for name in names() if name.startswith("income-") and load(name).on_board]
SPEC = """
title = "Loans: losses of two regions within .05"
source = "loans.csv"
label = "approved"
group = "region"
notion = "pairwise"
bound = 0.05
hidden = [4]
batch = 8
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A problem file beside its table of 200 loans."""
    rng = np.random.default_rng(0)
    income, region = rng.normal(size=200), rng.choice(["north", "south"], 200)
    approved = (income + rng.normal(size=200) > 0).astype(int)
    pd.DataFrame({"income": income, "region": region, "approved": approved}).to_csv(
        tmp_path / "loans.csv", index=False
    )
    path = tmp_path / "loans.toml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no real data are found."""
    monkeypatch.setattr(table, "best", lambda state, folder: f"synthetic:{state}")


def test_a_users_csv_is_a_problem_that_trains(spec: Path) -> None:
    problem = load(spec)
    assert (problem.name, problem.scale, problem.license) == ("loans", 0.05, "that of your file")
    instance = problem.build()
    assert (instance.source, instance.examples, instance.problem.m) == ("loans.csv", 160, 2)
    assert instance.problem.names == ("north - south", "south - north")
    starts = instance.starts([0, 1])
    train = instance.splits[0].train
    end = run(
        instance.problem,
        DescentAscent(),
        [instance.sampler(i, i) for i in range(2)],
        starts,
        200,
        compile=False,
    )
    before, after = (
        instance.problem.evaluate(starts, train),
        instance.problem.evaluate(end.result().x, train),
    )
    assert (after.loss < before.loss - 0.05).all()


def test_scaled_instances_have_the_same_feasible_points(spec: Path) -> None:
    """On the same examples c is multiplied by the factor."""
    stated = load(spec).build()
    other = scaled_instance(stated, 100.0)
    assert other.scale == 100 * stated.scale
    x, train = stated.starts([0]), other.splits[0].train
    outputs = other.problem.forward(x[0], other.problem.data.X[train])
    losses = other.problem.loss(outputs, other.problem.data.y[train])
    group = other.problem.data.groups["region"][train]
    gap = losses[group == 0].mean() - losses[group == 1].mean()
    expected = other.scale * torch.stack([gap - 0.05, -gap - 0.05])
    torch.testing.assert_close(
        other.problem.evaluate(x, train).c[0], expected, atol=1e-6, rtol=1e-4
    )


def test_splits_are_different_and_disjoint(spec: Path) -> None:
    instance = load(spec).build(splits=3)
    assert len(instance.splits) == 3
    for i, split in enumerate(instance.splits):
        both = torch.cat([split.train, split.test]).sort().values
        assert torch.equal(both, 200 * i + torch.arange(200))
    assert not torch.equal(instance.splits[0].train, instance.splits[1].train - 200)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bound = 0.05", "bond = 0.05", "there is no key 'bond'; the nearest is 'bound'"),
        ("bound = 0.05", "bound = -1", "bound should be greater"),
        ("batch = 8", "batch = 8\nunit = 0", "unit should be greater"),
        ('notion = "pairwise"', 'notion = "parity"', "parity"),
        ('source = "loans.csv"', "", "name the data"),
        ("batch = 8", "batch = 8\nsteps = 0", "steps should be greater"),
        ("batch = 8", "batch = [", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(spec: Path, old: str, new: str, said: str) -> None:
    spec.write_text(SPEC.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=said) as error:
        load(spec)
    assert str(spec) in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("loans.csv", "credits.csv", "credits.csv"),
        ('label = "approved"', 'label = "granted"', "granted"),
        ('label = "approved"', "", "label"),
        ('group = "region"', 'group = "country"', "country"),
        ("batch = 8", 'batch = 8\ngroups = ["a", "b", "c"]', "names 3 groups, but"),
    ],
)
def test_what_the_table_lacks_is_said_when_it_is_built(
    spec: Path, old: str, new: str, said: str
) -> None:
    spec.write_text(SPEC.replace(old, new), encoding="utf-8")
    with pytest.raises((ValueError, OSError), match=said):
        load(spec).build()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no file .*nothing.toml"):
        load(tmp_path / "nothing.toml")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.usefixtures("synthetic")
def test_tables_of_the_collection_have_enough_examples_of_every_group(name: str) -> None:
    problem = load(name)
    instance = problem.build()
    assert instance.source.startswith("synthetic:")
    instance.sampler(0, seed=0)  # refuses a cell with fewer examples than its batch
    assert instance.problem.m == {"income-va-marital": 10, "income-va-marital-sex": 90}.get(name, 2)
    assert problem.steps >= 2000
