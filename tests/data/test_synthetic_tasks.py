"""The synthetic census beyond Income in Oklahoma and Virginia: every task, more states."""

import os
from pathlib import Path

import numpy as np
import pytest

from fairbound.benchmark.executor import Job, execute, plan
from fairbound.benchmark.store import Store
from fairbound.data import codebook, load
from fairbound.data.acs_files import STATES
from fairbound.data.synthetic import FITTED, basis, other_states, population, states
from fairbound.data.synthetic_persons import persons
from fairbound.data.tasks import TASKS, apply

SOME = ("OK", "AK", "WY", "DC", "PR")  # fitted, of an extract (the smallest, and one with Alaska Natives), national
LARGE = 400  # rows of a group that must have both labels
RATES = {"Income": (0.25, 0.5), "PublicCoverage": (0.2, 0.5), "Mobility": (0.65, 0.8), "Employment": (0.4, 0.5),
         "TravelTime": (0.25, 0.7)}  # fmt: skip  # plausible shares of positive labels
DATA = Path(os.environ.get("FAIRBOUND_DATA", Path(__file__).parents[3] / "shared" / "data")) / "acs"


@pytest.fixture(scope="module")
def rows():
    """Persons of Oklahoma, as the census asks them."""
    return persons(population("OK"))


@pytest.mark.parametrize("state", SOME)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_columns_valid_codes_and_both_labels(task, state):
    table = load(f"synthetic:{state}:{task}", missing=-1)
    assert (table.features, table.label) == (TASKS[task].features, TASKS[task].label)
    assert table.source == f"synthetic:{state}" + ("" if task == "Income" else f":{task}")
    assert table.synthetic
    for name in table.features:
        known = codebook.variable(name)
        for value in np.unique(table.columns[name]):
            assert known.holds(value) or (value == -1 and known.blank), (name, value)
    assert set(table.columns["ST"]) == {STATES[state]}
    label = table.columns[table.label]
    assert RATES[task][0] < label.mean() < RATES[task][1]
    for name in ("SEX", "RAC1P"):
        sizes = np.bincount(table.columns[name])
        positive = np.bincount(table.columns[name], weights=label)
        large = sizes > LARGE
        assert large.any()
        assert ((positive > 0) & (positive < sizes))[large].all()


def test_all_states_have_one():
    assert set(states()) == set(STATES)
    assert {basis(state) for state in FITTED} == {"fitted to its extract"}
    assert basis("CA") != basis("AL")


def test_no_count_of_an_extract_stands_for_fewer_than_ten_people():
    for state, own in other_states()["states"].items():
        counts = np.array(own["counts"])
        assert counts[counts > 0].min() >= 10, state
        assert counts.shape == (len(other_states()["races"]), 5)


def test_the_same_seed_gives_the_same_rows_and_another_gives_others(rows):
    again, other = persons(population("OK")), persons(population("OK"), seed=1)
    for name, column in rows.items():
        np.testing.assert_array_equal(column, again[name])
    assert (rows["AGEP"] == other["AGEP"]).mean() < 0.1


def test_the_first_rows_stay_what_they_are(rows):
    """Published results name a seed: numbers that change would change them."""
    names = ("AGEP", "SEX", "RAC1P", "MAR", "SCHL", "ESR", "PINCP", "PUBCOV", "MIG")
    found = np.nan_to_num(np.stack([rows[name][:4] for name in names], axis=1), nan=-1).astype(int).tolist()
    assert found == [
        [0, 2, 1, 5, -1, -1, -1, 2, -1],
        [34, 2, 1, 1, 16, 6, 6350, 2, 3],
        [69, 1, 1, 5, 21, 1, 28090, 2, 1],
        [22, 1, 1, 5, 20, 1, 13810, 2, 3],
    ]


def test_fields_are_empty_where_the_census_does_not_ask(rows):
    age, empty = rows["AGEP"], {name: np.isnan(column) for name, column in rows.items()}
    assert (empty["ESR"] == (age < 16)).all()
    assert (empty["PINCP"] == (age < 15)).all()
    assert (empty["FER"] == ~((rows["SEX"] == 2) & (age >= 15) & (age <= 50))).all()
    assert empty["JWMNP"][rows["JWTR"] == 11].all(), "who works at home does not travel"
    assert empty["JWTR"][(rows["ESR"] == 3) | (rows["ESR"] == 6)].all()
    assert not empty["OCCP"][rows["ESR"] == 1].any()
    assert ((rows["NATIVITY"] == 2) == (rows["CIT"] >= 4)).all()
    assert (rows["DIS"] == 1)[(rows["DEAR"] == 1) | (rows["DEYE"] == 1) | (rows["DREM"] == 1)].all()
    assert (rows["MAR"] == 5)[age < 15].all()


def test_empty_fields_are_filled_as_in_real_data():
    assert np.isnan(load("synthetic:WY:Employment", missing=None).columns["ESP"]).any()
    assert (load("synthetic:WY:Employment").columns["ESP"] == 0).any()


def test_incomes_follow_the_income_model(rows):
    """P(PINCP > 50,000) of those who work is the model's probability, to within 4.5 standard errors."""
    works = np.isin(rows["ESR"], (1, 2, 4, 5)) & (rows["AGEP"] > 16)
    columns = {name: rows[name][works].astype(int) for name in TASKS["Income"].features}
    p = population("OK").probability(columns)
    assert abs(p.mean() - (rows["PINCP"][works] > 50_000).mean()) < 4.5 * np.sqrt((p * (1 - p)).sum()) / works.sum()
    assert apply("Income", rows).rows > 10_000


@pytest.mark.parametrize(
    ("task", "group", "codes", "gap"),  # rate of the first group less that of the second, at least
    [
        ("PublicCoverage", "RAC1P", (2, 1), 0.04),
        ("PublicCoverage", "DIS", (1, 2), 0.25),
        ("Employment", "SEX", (1, 2), 0.03),
        ("Employment", "DIS", (2, 1), 0.2),
        ("Mobility", "MAR", (1, 3), 0.05),
        ("TravelTime", "RAC1P", (2, 1), 0.03),
    ],
)
def test_groups_differ(task, group, codes, gap):
    table = load(f"synthetic:OK:{task}")
    first, second = (table.columns[table.label][table.columns[group] == code].mean() for code in codes)
    assert first - second > gap


def test_states_differ_as_they_do():
    """Medicaid was extended in New Mexico, not in Oklahoma; commutes are longer in the District of Columbia."""
    covered = {s: load(f"synthetic:{s}:PublicCoverage").columns["PUBCOV_IS_1"].mean() for s in ("NM", "OK")}
    assert covered["NM"] > covered["OK"] + 0.05
    long = {state: load(f"synthetic:{state}:TravelTime").columns["JWMNP_GT_20"].mean() for state in ("DC", "WY")}
    assert long["DC"] > long["WY"] + 0.1


@pytest.mark.parametrize("task", [task for task in TASKS if task != "Income"])
def test_labels_can_be_learned_and_not_too_well(task):
    """Held-out AUC of boosted trees, about what it was when the numbers were chosen; not compared with real tables."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    metrics = pytest.importorskip("sklearn.metrics")
    table = load(f"synthetic:OK:{task}")
    X = np.stack([table.columns[name].astype(float) for name in table.features], axis=1)[:12_000]
    y = table.columns[table.label][:12_000]
    half = len(y) // 2
    model = ensemble.HistGradientBoostingClassifier(max_iter=30, random_state=0).fit(X[:half], y[:half])
    low, high = {"Employment": (0.85, 0.93), "PublicCoverage": (0.7, 0.85)}.get(task, (0.62, 0.78))
    assert low < metrics.roc_auc_score(y[half:], model.predict_proba(X[half:])[:, 1]) < high


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no census extracts in {DATA}; set FAIRBOUND_DATA")
def test_rates_of_a_state_are_those_of_its_extract():
    """By race and sex, to within .01 and 4.5 standard errors of 200,000 drawn persons and of the real rows."""
    real = load("acs:AL")
    drawn = population("AL").draw(100_000, seed=1)
    for name in ("RAC1P", "SEX"):
        for code in (1, 2):
            a, b = (t.columns[t.label][t.columns[name] == code] for t in (real, drawn))
            assert abs(a.mean() - b.mean()) < 0.01 + 4.5 * np.sqrt(0.25 / len(b)), (name, code)


EXPERIMENT = """
title = "Employment of women and men"
reference = "here"
source = "synthetic:WY:Employment"
group = "SEX"
notion = "pairwise_loss_parity"
bound = 0.02
hidden = [4]
batch = 8
seeds = 1
records = 1
split = { seed = 1 }
common = { reference = "here" }
rows = [{ name = "SGD", method = "SGD", steps = 20, settings = { tau = 0.01 } }]
"""


def test_an_experiment_on_a_task_runs(tmp_path):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    planned = plan(Job(experiment=str(tmp_path / "mine.toml")))
    assert planned.prepared.source == "synthetic:WY:Employment"
    assert planned.prepared.synthetic
    assert execute(planned.prepared, Store(tmp_path / "store"), planned.batches) == 1
