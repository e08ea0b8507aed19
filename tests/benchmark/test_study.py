"""Studies as TOML: the installed files against the paper's tables, and what the reader refuses."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from fairbound.algorithms import (
    ALGORITHMS,
    SGD,
    SSLALM,
    Adaptive,
    DescentAscent,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.algorithms.schedules import Factorial, InverseSqrt, Linear
from fairbound.benchmark._entry import SCHEDULES, Entry, Printed
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._study import Study, load_study, paper_names, study_names
from fairbound.benchmark._task import examples_of_step
from fairbound.benchmark.problems.table import PAPER_NOTIONS, SplitSpec
from fairbound.columns._codebook import codes
from fairbound.columns._specs import parse_attribute

# saves the iterates of both branches, as Algorithm 3 prints
SSw = partial(SwitchingSubgradient, feasible_only=False)
# rows of the paper's tables, counted in the paper; more where both of its variants are rows
ENTRIES_OF = {
    "paper-ok-race": 13,
    "paper-va-marital": 12,
    "splits-ok": 10,
    "splits-va": 9,
    "tune-ok-fairret": 7,
    "tune-ok-ghost": 19,
    "tune-ok-sslalm": 12,
    "tune-ok-ssw": 12,
    "tune-va-ghost": 17,
    "tune-va-penalty": 4,
    "tune-va-sslalm": 4,
    "tune-va-ssw": 9,
}
TUNED = {name: count for name, count in ENTRIES_OF.items() if name.startswith("tune")}
ALL = [(study, entry) for study in map(load_study, ENTRIES_OF) for entry in study.entries]
EVERY_ENTRY = pytest.mark.parametrize(
    ("study", "entry"), ALL, ids=lambda value: value.name.replace(" ", "_")
)


def entry_of(study: str, name: str) -> Entry:
    (entry,) = (entry for entry in load_study(study).entries if entry.name == name)
    return entry


# The installed experiments ------------------------------------------------------------------------


def test_names_are_the_installed_files() -> None:
    assert sorted(paper_names()) == sorted(ENTRIES_OF)
    # tested elsewhere
    others = {"first", "board", "board-short", "methods-ok-race", "methods-va-marital"}
    assert set(study_names()) - set(ENTRIES_OF) == others


@pytest.mark.parametrize("name", ENTRIES_OF)
def test_every_study_loads_with_all_its_entries(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert len(study.entries) == ENTRIES_OF[name]
    assert study.problem.hidden == (64, 32)
    assert {entry.notion for entry in study.entries} - {None} | {study.problem.notion} <= set(
        PAPER_NOTIONS
    )


@pytest.mark.parametrize("name", ENTRIES_OF)
def test_the_two_problems_of_the_paper(name: str) -> None:
    study = load_study(name)
    if "ok" in name:
        assert (study.problem.state, study.problem.group, study.problem.bound) == (
            "OK",
            "RAC1P=1",
            0.005,
        )
        assert (study.problem.notion, study.problem.groups) == ("pairwise", ("white", "non-white"))
    else:
        assert (study.problem.state, study.problem.group, study.problem.bound) == (
            "VA",
            "MAR",
            0.05,
        )
        assert study.problem.notion == "against_mean"
        # in the order of the codes 1 to 5; the code book's last label is longer
        assert all(
            label.startswith(own)
            for own, label in zip(study.problem.groups, codes("MAR").values(), strict=True)
        )
    if name.startswith("splits"):
        assert study.problem.split == SplitSpec(
            seed=0, shares={"train": 0.6, "dual": 0.2, "test": 0.2}
        )
        assert ({entry.batch for entry in study.entries} - {8, 32}, study.seeds, study.splits) == (
            {64},
            1,
            20,
        )
    else:
        assert study.problem.split == SplitSpec(seed=42, shares=None)
        assert study.splits == 1
        assert study.problem.batch == (8 if "ok" in name else 32)
        assert study.seeds == (5 if name.startswith("tune") else 10)


def test_group_specifications_are_those_of_attributes() -> None:
    codes = {"RAC1P": torch.tensor([1, 2]).numpy(), "MAR": torch.tensor([1, 5]).numpy()}
    assert parse_attribute("RAC1P=1", codes, census=True).labels == ("White", "not White")
    for name in ENTRIES_OF:
        study = load_study(name)
        assert parse_attribute(study.problem.group, codes, census=True).size == len(
            study.problem.groups
        )


@EVERY_ENTRY
def test_every_row_builds_its_method_and_says_where_its_numbers_stand(
    study: Study, entry: Entry
) -> None:
    method = entry.algorithm(entry.steps)
    assert type(method) is ALGORITHMS[entry.method]
    for field in fields(method):
        value = getattr(method, field.name)
        if field.type == "float":
            # whole numbers in the file too: only floats stack
            assert type(value) is float, field.name
        if isinstance(entry.settings.get(field.name), int | float):
            assert value == entry.settings[field.name]
    assert (
        ("Table" in entry.reference)
        or ("section" in entry.reference)
        or ("appendix" in entry.reference)
        or ("not in the paper" in entry.reference)
    )
    assert entry.steps >= study.records
    # the only fairness table
    assert not (entry.paper.train or entry.paper.test) or study.name == "paper-ok-race"


@EVERY_ENTRY
def test_every_setting_is_stated(study: Study, entry: Entry) -> None:
    """A change of the library's defaults must move no study: not those of a method, nor of a
    schedule."""
    # TOML has no None
    unset = {field.name for field in fields(entry.algorithm_type) if field.default is None}
    assert set(entry.settings) == {field.name for field in fields(entry.algorithm_type)} - unset
    for value in entry.settings.values():
        if isinstance(value, dict):
            schedule = {field.name for field in fields(SCHEDULES[value["schedule"]])}
            assert set(value) == {"schedule"} | schedule


def test_settings_of_a_method_hold_for_its_rows_that_say_no_other(tmp_path: Path) -> None:
    shared = "[settings]\nSGD = { tau = 3 }\nDescentAscent = { second = true, eta = 7 }\n[common]"
    plain, dual = load_study(
        written(tmp_path, MINE.replace("[common]", shared).replace("settings = { tau = 1 }", ""))
    ).entries
    assert plain.settings == {"tau": 3}
    assert dual.settings == {"second": True, "eta": {"schedule": "InverseSqrt", "start": 1}}
    with pytest.raises(ValueError, match=r"mine\.toml.*'Sgd'; .*nearest.*'SGD'"):
        load_study(written(tmp_path, MINE.replace("[common]", "[settings]\nSgd = {}\n[common]")))


@EVERY_ENTRY
def test_penalized_sgd_trains_with_bound_0_and_all_others_with_their_own(
    study: Study, entry: Entry
) -> None:
    margin = entry.name.endswith("bound 0.03")
    # None: the problem's
    assert entry.bound == (0.0 if entry.method == "Penalty" else 0.03 if margin else None)


STEPS_IN_30_SECONDS = {
    "SGD": 25_000,
    "Penalty": 15_000,
    "SSLALM": 10_000,
    "DescentAscent": 10_000,
    "SwitchingSubgradient": 20_000,
    "StochasticGhost": 700,
}


@EVERY_ENTRY
def test_steps_are_the_papers_seconds(study: Study, entry: Entry) -> None:
    doubled = 2 if study.problem.state == "VA" else 1  # Experiment 2 runs for 60 seconds
    steps = doubled * STEPS_IN_30_SECONDS[entry.method]
    if entry.fairret or study.name == "tune-ok-fairret":
        steps = 15_000
    if study.name.startswith("splits") and entry.method != "StochasticGhost":
        steps = 15_000
    longer = "batch 64" in entry.name or entry.name.endswith("longer")
    assert entry.steps == (30_000 if longer else steps)


@pytest.mark.parametrize("name", TUNED)
def test_tuning_records_the_states_of_the_appendix(name: str) -> None:
    """A state every 100 steps (Ghost: 10), the last 20 of which count; the paper's numbers in every
    entry."""
    study = load_study(name)
    for number, entry in enumerate(study.entries, start=1):
        assert entry.steps / study.records == (10 if "ghost" in name else 100)
        assert set(entry.paper.validation) == {"loss", "violation"}
        assert entry.reference.endswith(f"row {number}")
    assert study.last_states == 20
    different = {
        (repr(sorted(entry.settings.items(), key=str)), entry.fairret) for entry in study.entries
    }
    assert len(different) == TUNED[name] - (
        name == "tune-va-ssw"
    )  # its rows 5 and 7 are printed with the same settings


# Numbers, typed by hand from the paper ------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "number", "built", "loss", "violation"),
    [
        (
            "tune-ok-ssw",
            1,
            SSw(eta_f=Adaptive(), eta_c=Adaptive(), worst_of_test=False),
            (0.681, 0.006),
            (0, 0),
        ),
        (
            "tune-ok-ssw",
            4,
            SSw(eta_f=0.05, eta_c=0.045, worst_of_test=False),
            (0.589, 0.01),
            (0.0012, 0.002),
        ),
        (
            "tune-ok-ssw",
            10,
            SSw(eta_f=0.05, eta_c=InverseSqrt(3.0), worst_of_test=False),
            (0.476, 0.016),
            (0.018, 0.004),
        ),
        (
            "tune-ok-ssw",
            12,
            SSw(eta_f=InverseSqrt(0.5), eta_c=InverseSqrt(0.5), worst_of_test=False),
            (0.633, 0.004),
            (0, 0),
        ),
        (
            "tune-ok-sslalm",
            5,
            SSLALM(tau=0.05, eta=0.05, mu=0.0, rho=1, y_max=10),
            (0.4560, 0.0962),
            (0.0282, 0.0620),
        ),
        (
            "tune-ok-sslalm",
            12,
            SSLALM(tau=0.01, eta=0.01, mu=4.0, rho=1, y_max=10),
            (0.4387, 0.0132),
            (0.0143, 0.0099),
        ),
        (
            "tune-ok-ghost",
            11,
            StochasticGhost(alpha=0.05, decay=0.05, rho=0.1, beta=1.0),
            (0.5020, 0.0804),
            (0.0545, 0.0510),
        ),
        (
            "tune-ok-ghost",
            15,
            StochasticGhost(alpha=0.05, decay=0.05, rho=0.8, beta=20.0),
            (0.6124, 0.1448),
            (0.0851, 0.0744),
        ),
        ("tune-ok-fairret", 6, SGD(tau=0.1), (0.523, 0.033), (0.007, 0.008)),
        ("tune-va-ssw", 2, SSw(eta_f=0.5, eta_c=0.05, worst_of_test=False), (0.537, 0.007), (0, 0)),
        (
            "tune-va-ssw",
            9,
            SSw(eta_f=0.05, eta_c=InverseSqrt(0.25), worst_of_test=False),
            (0.519, 0.004),
            (0.001, 0.002),
        ),
        (
            "tune-va-sslalm",
            2,
            SSLALM(tau=0.05, eta=0.01, rho=1.0, y_max=10.0),
            (0.530, 0.006),
            (0, 0.001),
        ),
        (
            "tune-va-ghost",
            14,
            StochasticGhost(alpha=0.01, decay=0.2, beta=5.0),
            (0.5868, 0.0181),
            (0.0070, 0.0071),
        ),
        (
            "tune-va-ghost",
            17,
            StochasticGhost(alpha=0.05, decay=0.2, beta=5.0),
            (0.5144, 0.0296),
            (0.0199, 0.0255),
        ),
        ("tune-va-penalty", 3, Penalty(tau=0.05, weight=0.4), (0.512, 0.002), (0.001, 0.002)),
    ],
)
def test_rows_of_the_appendix(
    study: str,
    number: int,
    built: object,
    loss: tuple[float, float],
    violation: tuple[float, float],
) -> None:
    entry = load_study(study).entries[number - 1]
    assert entry.algorithm(entry.steps) == built
    assert entry.paper.validation == {"loss": loss, "violation": violation}


@pytest.mark.parametrize(
    ("study", "name", "built"),
    [
        ("paper-ok-race", "SGD", SGD(tau=0.05)),
        ("paper-ok-race", "SGD-Fairret", SGD(tau=0.05)),
        (
            "paper-ok-race",
            "SSL-ALM",
            SSLALM(tau=0.01, eta=0.05, rho=1.0, mu=2.0, beta=0.5, y_max=10.0, samples=2),
        ),
        ("paper-ok-race", "ALM", SSLALM(tau=0.01, eta=0.05, rho=1.0, mu=0.0, beta=0.5, y_max=10.0)),
        (
            "paper-ok-race",
            "SSw",
            SSw(eta_f=0.05, eta_c=0.04, eps=InverseSqrt(0.01), worst_of_test=False),
        ),
        (
            "paper-ok-race",
            "SSw, worst of the test",
            SSw(eta_f=0.05, eta_c=0.04, eps=InverseSqrt(0.01)),
        ),
        (
            "paper-ok-race",
            "Ghost, rho 0.1",
            StochasticGhost(alpha=0.05, decay=0.05, rho=0.1, beta=20.0, tau=1.0),
        ),
        (
            "paper-ok-race",
            "Ghost, rho 0.8",
            StochasticGhost(alpha=0.05, decay=0.05, rho=0.8, beta=20.0, tau=1.0),
        ),
        (
            "paper-ok-race",
            "Descent-ascent, decaying steps",
            DescentAscent(tau=Linear(0.05, 10_000, 0.05), eta=0.005),
        ),
        ("paper-va-marital", "SSL-ALM, tau 0.01", SSLALM(tau=0.01, eta=0.01, rho=1.0, y_max=10.0)),
        ("paper-va-marital", "SSL-ALM, tau 0.05", SSLALM(tau=0.05, eta=0.01, rho=1.0, y_max=10.0)),
        (
            "paper-va-marital",
            "SSw, steps by 1/sqrt(k+1)",
            SSw(eta_f=0.05, eta_c=InverseSqrt(0.25), eps=InverseSqrt(0.01), worst_of_test=False),
        ),
        (
            "paper-va-marital",
            "SSw, steps as printed",
            SSw(eta_f=0.05, eta_c=Factorial(0.25), eps=Factorial(0.01), worst_of_test=False),
        ),
        (
            "paper-va-marital",
            "Ghost, text",
            StochasticGhost(alpha=0.005, decay=0.05, rho=0.1, beta=1.0),
        ),
        (
            "paper-va-marital",
            "Ghost, appendix",
            StochasticGhost(alpha=0.01, decay=0.2, rho=0.1, beta=5.0),
        ),
        ("splits-va", "SSw", SSw(eta_f=0.05, eta_c=0.04, worst_of_test=False)),
        (
            "splits-va",
            "SSw, steps of Experiment 2",
            SSw(eta_f=0.05, eta_c=InverseSqrt(0.25), worst_of_test=False),
        ),
        (
            "splits-ok",
            "Descent-ascent, held-out dual set",
            DescentAscent(tau=Linear(0.05, 15_000, 0.05), eta=0.005, second=True),
        ),
    ],
)
def test_parameters_of_the_two_experiments(study: str, name: str, built: object) -> None:
    entry = entry_of(study, name)
    assert entry.algorithm(entry.steps) == built


TABLES = {
    5: "tune-ok-ssw",
    6: "tune-ok-sslalm",
    7: "tune-ok-ghost",
    8: "tune-ok-fairret",
    9: "tune-va-ssw",
    10: "tune-va-sslalm",
    11: "tune-va-ghost",
    12: "tune-va-penalty",
}


@pytest.mark.parametrize("name", ["paper-ok-race", "paper-va-marital"])
def test_the_experiments_and_the_appendix_say_the_same(name: str) -> None:
    """A entry that cites a entry of the appendix has its numbers, and its settings but for what the
    entry varies."""
    compared = 0
    for entry in load_study(name).entries:
        cited = re.search(r"validation: Table (\d+), row (\d+)", entry.reference)
        assert bool(cited) == bool(entry.paper.validation), entry.name
        if cited is None:
            continue
        tuned = load_study(TABLES[int(cited[1])]).entries[int(cited[2]) - 1]
        assert entry.paper.validation == tuned.paper.validation, entry.name
        varied = {
            "worst_of_test",
            *(("eta_c", "eps") if entry.name == "SSw, steps as printed" else ()),
        }
        shared = entry.settings.keys() & tuned.settings.keys() - varied
        assert {key: entry.settings[key] for key in shared} == {
            key: tuned.settings[key] for key in shared
        }, entry.name
        compared += 1
    assert compared == (12 if name == "paper-ok-race" else 10)


def test_the_fairness_table() -> None:
    entry = entry_of("paper-ok-race", "ALM")
    assert entry.paper.train["Ind"] == Printed(mean=0.08298, std=0.00884)
    assert entry.paper.test == {
        "Ind": (0.057785, 0.011813),
        "Sp": (0.113852, 0.014183),
        "Ina": (0.243527, 0.007427),
        "Sf": (0.221226, 0.016810),
        "Wd": (0.1583, 0.0265),
    }
    assert entry_of("paper-ok-race", "SSw").paper.train["Wd"] == (0.0007, 0.0005)
    assert entry_of("paper-ok-race", "SGD-Fairret").paper.test["Sf"] == (0.05575, 0.01358)
    without = {entry.name for entry in load_study("paper-ok-race").entries if not entry.paper.test}
    assert without == {"Descent-ascent, decaying steps"}


def test_variants_differ_from_their_row_in_what_they_say_only() -> None:
    printed, authors = (
        entry_of("paper-va-marital", name)
        for name in ("SSL-ALM, tau 0.05", "SSL-ALM, tau 0.05, authors' constraint")
    )
    assert {key for key, value in asdict(printed).items() if asdict(authors)[key] != value} == {
        "name",
        "notion",
        "note",
        "equal_examples",
    }
    assert authors.notion == "absolute_against_pooled"
    small, large = (entry_of("paper-ok-race", name) for name in ("SSw", "SSw, batch 64"))
    assert {key for key, value in asdict(small).items() if asdict(large)[key] != value} == {
        "name",
        "batch",
        "steps",
        "note",
    }
    assert large.batch == 64
    ghost = entry_of("paper-ok-race", "Ghost, rho 0.8")  # its own loss, the table's fairness
    assert ghost.paper.validation["loss"] == (0.6124, 0.1448)
    assert ghost.paper.test["Ina"] == (0.23896, 0.0199)


def test_fairret_and_pools() -> None:
    assert entry_of("paper-ok-race", "SGD-Fairret").fairret == 3.0
    assert [entry.fairret for entry in load_study("tune-ok-fairret").entries] == [
        0,
        1,
        2,
        3,
        3,
        3,
        4,
    ]
    assert entry_of("splits-ok", "Descent-ascent, held-out dual set").pools == ("train", "dual")


def test_a_schedule_over_the_run_follows_its_length() -> None:
    entry = entry_of("paper-ok-race", "Descent-ascent, decaying steps")
    assert entry.settings["tau"] == {
        "schedule": "Linear",
        "start": 0.05,
        "steps": "run",
        "end": 0.05,
    }
    method = entry.algorithm(500)
    assert isinstance(method, DescentAscent)
    assert method.tau == Linear(0.05, 500.0, 0.05)


@pytest.mark.parametrize("name", ["paper-ok-race", "paper-va-marital"])
def test_equal_examples_compare_methods_not_readings(name: str) -> None:
    study = load_study(name)
    assert study.within("paper") == study
    kept = [
        (entry.method, entry.fairret, entry.settings.get("mu"), entry.batch)
        for entry in study.within("examples").entries
    ]
    assert len(set(kept)) == len(kept)
    assert {method for method, *_ in kept} == {entry.method for entry in study.entries}


# Budgets ------------------------------------------------------------------------------------------

# E 2^(N+1) for p0 = .4 and N <= 7: 2 (p0 / (1 - .6^8)) (1.2^8 - 1) / (1.2 - 1)
GHOST = 2 * 0.4 / (1 - 0.6**8) * (1.2**8 - 1) / 0.2


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """On the synthetic census, one split."""
    studies = {
        name: load_study(name) for name in ("paper-ok-race", "paper-va-marital", "splits-ok")
    }
    return {
        name: Plan(replace(study.on(source=f"synthetic:{study.problem.state}"), splits=1))
        for name, study in studies.items()
    }


@pytest.mark.parametrize(
    ("study", "name", "rows"),
    [
        ("paper-ok-race", "SGD", 8),
        ("paper-ok-race", "SGD-Fairret", 8),
        # objective, and two groups in each of two draws
        ("paper-ok-race", "SSL-ALM", 8 + 2 * 2 * 8),
        ("paper-ok-race", "SSw", 2 * 8 + 8 + 2 * 8),  # the test, then objective and constraint
        ("paper-ok-race", "SSw, batch 64", 320),
        ("paper-ok-race", "Ghost, rho 0.1", (1 + GHOST) * (8 + 2 * 8)),
        ("paper-ok-race", "Descent-ascent, decaying steps", 8 + 2 * 8),
        ("paper-va-marital", "Penalized SGD", 32 + 5 * 32),
        ("paper-va-marital", "SSL-ALM, tau 0.05", 32 + 2 * 5 * 32),
        ("paper-va-marital", "Ghost, text", (1 + GHOST) * 6 * 32),
        ("splits-ok", "Descent-ascent, held-out dual set", 64 + 2 * 2 * 64),
    ],
)
def test_examples_per_step(study: str, name: str, rows: float, plans: dict[str, Plan]) -> None:
    assert examples_of_step(entry_of(study, name), plans[study]._built) == pytest.approx(
        rows, rel=1e-12
    )


def test_expected_ghost_rows_lie_where_the_caps_6_and_8_put_them() -> None:
    assert 10.6 < GHOST < 16.8  # the mean of 2^(N+1) for caps 6 and 8


@pytest.mark.parametrize(
    ("study", "name", "steps"),
    [
        ("paper-ok-race", "SSL-ALM", 10_000),
        ("paper-ok-race", "SGD", 50_000),  # 40 rows against 8
        # against 320: the reference has the batch of the study
        ("paper-ok-race", "SSw, batch 64", 1_250),
        ("paper-ok-race", "Descent-ascent, decaying steps", 16_667),
        ("paper-ok-race", "Ghost, rho 0.8", round(400_000 / ((1 + GHOST) * 24))),
        ("paper-va-marital", "SGD", 110_000),  # 352 rows against 32
        ("paper-va-marital", "SSw, steps as printed", 10_000),
        ("paper-va-marital", "Penalized SGD", 18_333),  # against 192
    ],
)
def test_steps_for_equal_examples(
    study: str, name: str, steps: int, plans: dict[str, Plan]
) -> None:
    assert plans[study].equal_steps(entry_of(study, name)) == steps


# Files of the user's own, and refusals ------------------------------------------------------------

MINE = """
title = "mine"
reference = "nowhere"
seeds = 2
splits = 2
records = 3
[problem]
state = "OK"
group = "SEX"
groups = ["men", "women"]
notion = "pairwise"
bound = 0.01
hidden = [16]
batch = 4
[problem.split]
seed = 1
shares = { train = 0.5, dual = 0.25, test = 0.25 }
[common]
steps = 100
reference = "manual"
settings = { tau = 1 }
[[entries]]
name = "plain"
method = "SGD"
[[entries]]
name = "dual"
method = "DescentAscent"
batch = 16
settings = { eta = { schedule = "InverseSqrt", start = 1 } }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_of_ones_own(tmp_path: Path, kind: type) -> None:
    study = load_study(kind(written(tmp_path, MINE)))
    assert study.name == "mine"
    assert study.problem.split.shares == {"train": 0.5, "dual": 0.25, "test": 0.25}
    plain, dual = study.entries
    assert (study.problem.batch, plain.batch, dual.batch, plain.reference) == (
        4,
        None,
        16,
        "manual",
    )
    assert (study.problem.name, study.problem.title) == ("mine", "mine")
    assert plain.algorithm(10) == SGD(tau=1.0)
    # common settings and its own
    assert dual.algorithm(10) == DescentAscent(tau=1.0, eta=InverseSqrt(1.0))
    assert isinstance(dual.algorithm(10).tau, float)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # unknown, with the nearest known name
        ('title = "mine"', 'titel = "mine"', "there is no key 'titel'; the nearest is 'title'"),
        ("seed = 1\n", "sead = 1\n", "split: there is no key 'sead'; the nearest is 'seed'"),
        ("test = 0.25", "tests = 0.25", "shares: there is no key 'tests'; the nearest is 'test'"),
        (
            "steps = 100",
            "setps = 100",
            "entry 'plain': there is no key 'setps'; the nearest is 'steps'",
        ),
        ("batch = 16", "bach = 16", "entry 'dual': there is no key 'bach'; the nearest is 'batch'"),
        (
            'method = "SGD"',
            'method = "Sgd"',
            "entry 'plain': there is no method 'Sgd'; the nearest is 'SGD'",
        ),
        ('method = "SGD"', 'method = "SSL-ALM"', "the nearest is 'SSLALM'"),
        (
            "{ eta = {",
            "{ etta = {",
            "entry 'dual': there is no setting of DescentAscent 'etta'; the nearest is 'eta'",
        ),
        (
            "tau = 1",
            "rho = 1",
            "entry 'plain': there is no setting of SGD 'rho'; the nearest is 'tau'",
        ),
        (
            "InverseSqrt",
            "InverseSqr",
            "there is no schedule of eta called 'InverseSqr'; the nearest is 'InverseSqrt'",
        ),
        (
            "start = 1 ",
            "begin = 1 ",
            "there is no setting of InverseSqrt 'begin'; the nearest is 'start'",
        ),
        (
            'notion = "pairwise"',
            'notion = "pairwize"',
            "there is no notion 'pairwize'; the nearest is 'pairwise'",
        ),
        (
            "batch = 16",
            'notion = "mean"',
            "entry 'dual', notion: there is no notion 'mean'; the nearest is 'against",
        ),
        ("batch = 16", "paper.tests = {}", "paper: there is no key 'tests'; the nearest is 'test'"),
        (
            "batch = 16",
            "paper.validation = { los = [1, 0] }",
            "there is no key 'los'; the nearest is 'loss'",
        ),
        (
            "batch = 16",
            'pools = ["trian"]',
            "no pool of a training step 'trian'; the nearest is 'train'",
        ),
        (
            "batch = 16",
            'like = "plan"',
            "like names an earlier entry, got 'plan'; the nearest is 'plain'",
        ),
        # missing
        ('state = "OK"\n', "", "name the data: either state = .* or source = .* with its label"),
        ("seed = 1\n", "", "split: the key 'seed' is missing"),
        ("train = 0.5,", "", "shares: the key 'train' is missing"),
        ('name = "plain"\n', "", "entries is a list of tables, .*, each with a name"),
        ('method = "SGD"\n', "", "entry 'plain': the key 'method' is missing"),
        ("steps = 100\n", "", "entry 'plain': the key 'steps' is missing"),
        (
            ", start = 1 ",
            "",
            "entry 'dual': InverseSqrt.* missing 1 required positional argument: 'start'",
        ),
        (
            'schedule = "InverseSqrt", ',
            "",
            "there is no schedule of eta called None; .*there are InverseSqrt",
        ),
        (
            "batch = 16",
            "paper.validation = { loss = [1, 0] }",
            "validation: the key 'violation' is missing",
        ),
        # of the wrong kind
        ("seeds = 2", "seeds = 2.0", "seeds should be a valid integer, got 2.0"),
        ("seeds = 2", "seeds = true", "seeds should be a valid integer, got True"),
        ("seed = 1\n", "seed = -1\n", "split: seed should be greater than or equal to 0, got -1"),
        ("seed = 1\n", "seed = false\n", "split: seed should be a valid integer, got False"),
        ("bound = 0.01", 'bound = "0.01"', "bound should be a valid number, got '0.01'"),
        ("bound = 0.01", "bound = nan", "bound should be a finite number, got nan"),
        ("bound = 0.01", "bound = -1", "bound should be greater than or equal to 0, got -1"),
        (
            "hidden = [16]",
            "hidden = [0]",
            r"hidden\[0\] should be greater than or equal to 1, got 0",
        ),
        ('state = "OK"', 'state = "OK"\nsource = "my.csv"', "name the data: either state"),
        ('"women"]', '"men"]', "groups: they must be two or more different names"),
        ('title = "mine"', 'title = ""', "title should have at least 1 character, got ''"),
        ("settings = { tau = 1 }", "settings = 1", "common, settings, paper are tables"),
        (
            "tau = 1",
            'tau = "fast"',
            "SGD: tau must be a finite number >= 0 or a schedule, got 'fast'",
        ),
        (
            "tau = 1",
            "tau = true",
            "entry 'plain': SGD: tau must be a finite number >= 0 or a schedule, got True",
        ),
        ("tau = 1", "tau = -1", "entry 'plain': SGD: tau must be a finite number >= 0, got -1"),
        (
            "start = 1 ",
            'start = "run" ',
            "InverseSqrt: start must be a finite number >= 0, got 'run'",
        ),
        (
            "start = 1 ",
            "start = -1 ",
            "entry 'dual': InverseSqrt: start must be a finite number >= 0, got -1",
        ),
        (
            '"InverseSqrt", start = 1 ',
            '"Linear", start = 1, steps = "all" ',
            "Linear: steps must be .*, got 'all'",
        ),
        ('"InverseSqrt", start = 1 ', '"Adaptive" ', "entry 'dual': DescentAscent: eta must be"),
        (
            "batch = 16",
            "paper.validation = { loss = 1 }",
            r"validation: loss should be a tuple, list, .* got 1",
        ),
        # what does not fit together
        ('name = "dual"', 'name = "plain"', "2 entries are called 'plain'"),
        ("train = 0.5", "train = 0.6", "shares: they must add up to 1, got 1.1"),
        ("batch = 16", 'pools = ["train", "dual"]', "draws 1 times a step, so pools needs 1 names"),
        ("batch = 16", 'pools = ["test"]', "there is no pool of a training step 'test'"),
        ("steps = 100", "steps = 2", "records is 3, but entry 'plain' has 2 steps"),
        ("records = 3", "records = 3\nlast_states = 4", "last_states is 4, but records is only 3"),
        (
            'method = "SGD"',
            'like = "dual"',
            "entry 'plain': like names an earlier entry.*; and this is the first",
        ),
    ],
)
def test_refusals_name_the_file_the_place_and_the_remedy(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in MINE
    with pytest.raises(ValueError, match=said) as refused:
        load_study(written(tmp_path, MINE.replace(old, new, 1)))
    assert str(tmp_path / "mine.toml") in str(refused.value)


def test_pools_need_a_share_of_the_rows(tmp_path: Path) -> None:
    text = MINE.replace("train = 0.5, dual = 0.25", "train = 0.75")
    text = text.replace("batch = 16", 'pools = ["train", "dual"]').replace(
        "{ eta =", "{ second = true, eta ="
    )
    with pytest.raises(ValueError, match=r"'dual', .*split.*none"):
        load_study(written(tmp_path, text))


def test_a_study_needs_entries(tmp_path: Path) -> None:
    head = MINE[: MINE.index("[[entries]]")]
    with pytest.raises(ValueError, match=r"entries.*at least 1"):
        load_study(written(tmp_path, head))
    with pytest.raises(ValueError, match=r"entries.*at least 1"):
        load_study(written(tmp_path, "entries = []\n" + head))


def test_names_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"'paper-ok-rase'.*nearest.*'paper-ok-race'",
    ):
        load_study("paper-ok-rase")
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere.toml"):
        load_study(str(tmp_path / "nowhere.toml"))
    with pytest.raises(OSError, match=r"cannot.*a study"):
        load_study(tmp_path)
    with pytest.raises(ValueError, match=r"mine.toml .*valid TOML: .*line 2"):
        load_study(written(tmp_path, "\ntitle = \n"))
    (tmp_path / "mine.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(ValueError, match=r"mine.toml cannot.*a study"):
        load_study(tmp_path / "mine.toml")


def test_budgets_are_finite(plans: dict[str, Plan]) -> None:
    for name, plan in plans.items():
        for entry in load_study(name).entries:
            assert math.isfinite(examples_of_step(entry, plan._built))
            assert plan.equal_steps(entry) >= 1_000
