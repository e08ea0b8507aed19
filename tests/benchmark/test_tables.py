"""The benchmark's tables: every number against numpy, on a small store of made-up results and on one real run."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbound.benchmark import config
from fairbound.benchmark.config import Paper, Printed, SplitSpec
from fairbound.benchmark.executor import RunBatch, RunPlan, execute, run_batches
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.store import Store
from fairbound.benchmark.summary import Interval, Spread, student_quantile, summary
from fairbound.benchmark.table_writers import Column, Difference, Table, latex
from fairbound.benchmark.tables import PAPERS_CHOICE, chosen, fairness_table, split_table, tuning_table
from fairbound.data.dataset import Dataset
from fairbound.data.splits import random_split

SHARES = {"train": 0.5, "validation": 0.25, "test": 0.25}
PARTS = ("train", "validation", "test")
ROWS = ("SGD", "SSL-ALM", "ALM")
PAPER = Paper(
    {"loss": Printed(0.4, 0.1), "violation": Printed(0.0, 0.0)},
    {name: Printed(0.1, 0.2) for name in ("Ind", "Sp", "Ina", "Sf", "Wd")},
    {name: Printed(0.3, 0.001) for name in ("Ind", "Sp", "Ina", "Sf", "Wd")},
)


def small(groups: int, *, seeds: int, splits: int, rows: tuple[str, ...] = ROWS) -> PreparedExperiment:
    """Experiment 1 or 2 with some of its rows, on a few made-up people. Only the first row is in the paper."""
    whole = config.load("income-ok-race" if groups == 2 else "income-va-marital")
    kept = [row for row in whole.rows if row.name in rows]
    kept = [replace(row, steps=6, paper=PAPER if i == 0 else Paper({}, {}, {})) for i, row in enumerate(kept)]
    split = SplitSpec(seed=0, splits=splits, shares=SHARES)
    experiment = replace(whole, rows=tuple(kept), hidden=(2,), records=3, last_states=2, seeds=seeds, split=split)
    rng = np.random.default_rng(0)
    member = torch.arange(40 * groups) % groups
    X, y = torch.from_numpy(rng.normal(size=(40 * groups, 3))).float(), (torch.arange(40 * groups) % 3 == 0).float()
    plain = Dataset(X, y, {"group": member}, levels={"group": experiment.groups})
    return PreparedExperiment(
        experiment, "made up", plain, tuple(random_split(member, SHARES, seed=i) for i in range(splits))
    )


def made_up(groups: int, rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    """Tables of the form that a run stores."""
    losses = {part: rng.uniform(0.3, 0.6, (3, 1 + groups)).astype(np.float32) for part in PARTS}
    pairs = (len(PARTS), groups - 1)
    end = {
        "part": np.array(PARTS),
        "counts": rng.integers(1, 30, (len(PARTS), groups, 2, 2)).astype(np.float64),
        "w1": rng.uniform(size=pairs),
        "wd": rng.uniform(size=pairs),
        "wd_logits": rng.uniform(size=pairs),
    }
    return {"records": {"step": np.array([2, 4, 6]), **losses}, "end": end}


def planned_runs(planned: list[RunBatch]) -> list[tuple[RunPlan, str, Any]]:
    return [run for s in planned for run in zip(s.plans, s.keys, s.settings, strict=True)]


class Made:
    """A store of made-up results, and the results themselves by row."""

    def __init__(self, prepared: PreparedExperiment, folder: Path, without: tuple[str, ...] = ()) -> None:
        self.prepared, self.planned, self.store = prepared, run_batches(prepared), Store(folder)
        self.results: dict[str, list[tuple[RunPlan, dict[str, Any]]]] = {
            row.name: [] for row in prepared.experiment.rows
        }
        rng = np.random.default_rng(1)
        for plan, _, _ in planned_runs(self.planned):
            if plan.row.name not in without:
                self.results[plan.row.name].append((plan, made_up(len(prepared.experiment.groups), rng)))

    def stored(self) -> Made:
        """Put what the test has made of the results."""
        settings = {(plan.row.name, plan.seed, plan.split): one for plan, _, one in planned_runs(self.planned)}
        for name, results in self.results.items():
            for plan, tables in results:
                self.store.put(settings[name, plan.seed, plan.split], tables)
        return self

    @property
    def read(self) -> tuple[PreparedExperiment, Store, list[RunBatch]]:
        return self.prepared, self.store, self.planned


@pytest.fixture
def two(tmp_path: Path) -> Made:
    return Made(small(2, seeds=3, splits=1), tmp_path, without=("ALM",))


def records_of(table: Table) -> list[dict[str, Any]]:
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


def assert_spread(shown: Spread | None, numbers: list[float]) -> None:
    assert shown == pytest.approx((np.mean(numbers), np.std(numbers, ddof=1)), rel=1e-12)


# Fairness -------------------------------------------------------------------------------------------------------------


def transcribed(end: dict[str, np.ndarray], part: str, family: str) -> dict[str, float]:
    """The figures from the formulas, with numpy: counts[group, label, prediction]."""
    at = PARTS.index(part)
    n = end["counts"][at]
    pr = n[:, :, 1].sum(1) / n.sum((1, 2))
    tpr, fpr = n[:, 1, 1] / n[:, 1].sum(1), n[:, 0, 1] / n[:, 0].sum(1)
    ppv, omitted = n[:, 1, 1] / n[:, :, 1].sum(1), n[:, 1, 0] / n[:, :, 0].sum(1)
    found = {"Ina": (n[:, 0, 1] + n[:, 1, 0]).sum() / n.sum()}
    if family == "printed":
        distance = [np.abs(rate - rate.mean()).mean() for rate in (pr, tpr, fpr, ppv, omitted)]
        found |= {"Ind": distance[0], "Sp": (distance[1] + distance[2]) / 2, "Sf": (distance[3] + distance[4]) / 2}
    elif len(n) == 2:
        apart = [abs(rate[0] - rate[1]) for rate in (pr, tpr, fpr, ppv, omitted)]
        found |= {"Ind": apart[0], "Sp": apart[1] + apart[2], "Sf": apart[3] + apart[4]}
    distances = {"Wd": end["wd"], "Wd of logits": end["wd_logits"], "W1": end["w1"]}
    return found | {name: distance[at].max() for name, distance in distances.items()}


@pytest.mark.parametrize("family", ["printed", "reported"])
def test_fairness_of_two_groups(two: Made, family: Any) -> None:
    table = records_of(fairness_table(*two.stored().read, family))
    assert [line["figure"] for line in table[:7]] == ["Ind", "Sp", "Ina", "Sf", "Wd", "Wd of logits", "W1"]
    for line in table[:14]:
        for part in ("train", "test"):
            runs = [transcribed(tables["end"], part, family) for _, tables in two.results[line["row"]]]
            assert_spread(line[part], [run[line["figure"]] for run in runs])


def test_fairness_beside_the_paper(two: Made) -> None:
    table = records_of(fairness_table(*two.stored().read, "reported"))
    for line in table[:6]:
        for part, mean, std in (("train", 0.1, 0.2), ("test", 0.3, 0.001)):
            difference = line[part].mean - mean
            assert line[f"{part}, paper"] == (mean, std)
            assert line[f"{part}, difference"] == (pytest.approx(difference), abs(difference) > 2 * std)
    marks = [line[f"{part}, difference"].marked for line in table[:6] for part in ("train", "test")]
    assert set(marks) == {True, False}  # the results above have both
    assert table[6]["train, paper"] is None  # W1 is not in the paper
    assert table[7]["test, difference"] is None  # nor is the second row


def test_reported_definitions_of_more_than_two_groups_are_undefined(tmp_path: Path) -> None:
    made = Made(small(5, seeds=2, splits=1, rows=("SGD",)), tmp_path).stored()
    reported, printed = (fairness_table(*made.read, family) for family in ("reported", "printed"))
    for line, other in zip(records_of(reported), records_of(printed), strict=True):
        assert (line["test"] is None) == (line["figure"] in ("Ind", "Sp", "Sf"))
        runs = [transcribed(tables["end"], "test", "printed") for _, tables in made.results["SGD"]]
        assert_spread(other["test"], [run[line["figure"]] for run in runs])
    assert any("undefined here" in note for note in reported.notes)


def test_a_figure_that_some_runs_lack(two: Made) -> None:
    """In one run nobody of a group is predicted positive, in another Wd does not exist."""
    results = [tables["end"] for _, tables in two.results["SGD"]]
    results[0]["counts"][2, 0, :, 1] = 0
    results[1]["wd"][2] = np.nan
    table = fairness_table(*two.stored().read, "reported")
    lines = {line["figure"]: line for line in records_of(table)[:7]}
    assert_spread(lines["Sf"]["test"], [transcribed(end, "test", "reported")["Sf"] for end in results[1:]])
    assert_spread(lines["Wd"]["test"], [float(results[i]["wd"][2, 0]) for i in (0, 2)])
    said = "SGD, {}, test: undefined in 1 of 3 runs, left out of the mean."
    assert [note for note in table.notes if "undefined" in note] == [said.format("Sf"), said.format("Wd")]


def test_a_row_without_runs_is_missing(two: Made) -> None:
    made = two.stored()
    for table in (fairness_table(*made.read, "printed"), tuning_table(*made.read), split_table(*made.read)):
        (line, *_) = [line for line in records_of(table) if line["row"] == "ALM"]
        figures = [c.name for c in table.columns if c.kind in ("spread", "interval", "difference", "percent")]
        assert line.get("runs", line.get("splits")) == 0
        assert [line[name] for name in figures] == [None] * len(figures)
        assert "Missing from the store: ALM (3 of 3 runs)." in table.notes


def test_an_empty_store_is_all_missing(tmp_path: Path) -> None:
    prepared = small(2, seeds=1, splits=1)
    table = tuning_table(prepared, Store(tmp_path), run_batches(prepared))
    assert [line["loss"] for line in records_of(table)] == [None] * 3
    assert "here" not in {line["chosen"] for line in records_of(table)}


# Tuning ---------------------------------------------------------------------------------------------------------------


def violations(losses: np.ndarray, bound: float) -> np.ndarray:
    return np.maximum(np.abs(losses[:, 1] - losses[:, 2]) - bound, 0)


def test_tuning_is_the_mean_over_the_last_states(two: Made) -> None:
    for line in records_of(tuning_table(*two.stored().read))[:2]:
        last = [tables["records"]["validation"].astype(float)[-2:] for _, tables in two.results[line["row"]]]
        assert_spread(line["loss"], [one[:, 0].mean() for one in last])
        assert_spread(line["violation"], [violations(one, 0.005).mean() for one in last])
        assert (line["steps"], line["runs"]) == (6, 3)


def test_a_printed_deviation_of_zero_is_rounded(two: Made) -> None:
    """The paper prints a violation of 0.000 ± 0.000: 0.0009 is no difference, 0.0011 is one."""
    for excess, marked in ((0.0009, False), (0.0011, True)):
        for _, tables in two.results["SGD"]:
            tables["records"]["validation"] = np.array([[0.4, 0.405 + excess, 0.4]] * 3)
        line = records_of(tuning_table(*two.stored().read))[0]
        assert line["violation, difference"] == (pytest.approx(excess), marked)


@pytest.mark.parametrize(("loss", "marked"), [(0.21, False), (0.59, False), (0.19, True), (0.61, True)])
def test_two_standard_deviations(two: Made, loss: float, marked: bool) -> None:
    """The paper prints a loss of 0.4 ± 0.1. The mark is explained where there is one."""
    for _, tables in two.results["SGD"]:
        tables["records"]["validation"] = np.array([[loss, 0.4, 0.4]] * 3)
    table = tuning_table(*two.stored().read)
    assert records_of(table)[0]["loss, difference"] == (pytest.approx(loss - 0.4), marked)
    assert table.shown()[0][5] == f"{loss - 0.4:+.4f}" + "*" * marked
    assert any(note.startswith("* more than two") for note in table.notes) == marked


def test_the_chosen_row(two: Made) -> None:
    """SSL-ALM is within the tolerance of the smallest violation, and has the smaller loss; then it is not."""
    for excess, row in ((0.003, "SSL-ALM"), (0.005, "SGD")):
        for name, loss, above in (("SGD", 0.5, 0.0), ("SSL-ALM", 0.4, excess)):
            for _, tables in two.results[name]:
                tables["records"]["validation"] = np.array([[loss, 0.4 + 0.005 + above, 0.4]] * 3)
        table = records_of(tuning_table(*two.stored().read))
        assert [line["row"] for line in table if line["chosen"] == "here"] == [row]


def test_the_rule_on_the_papers_own_figures() -> None:
    """Seven of its eight choices, as the module says; and every choice is a row of its experiment."""
    agree = []
    for name, choice in PAPERS_CHOICE.items():
        printed = {row.name: row.paper.validation for row in config.load(name).rows}
        assert choice in printed
        figures = {row: (p["loss"].mean, p["violation"].mean) for row, p in printed.items() if p}
        agree.append(chosen(figures) == choice)
    assert len(agree) == 8
    assert [name for name, same in zip(PAPERS_CHOICE, agree, strict=True) if not same] == ["tune-va-ghost"]


def test_the_papers_choice_is_shown(tmp_path: Path) -> None:
    prepared = small(2, seeds=1, splits=1, rows=("SGD",))
    row = replace(prepared.experiment.rows[0], name="eta_f 0.05, eta_c 0.04")
    prepared = replace(prepared, experiment=replace(prepared.experiment, name="tune-ok-ssw", rows=(row,)))
    table = tuning_table(*Made(prepared, tmp_path).stored().read)
    assert records_of(table)[0]["chosen"] == "here, paper"
    assert "On the paper's own figures this chooses: eta_f 0.05, eta_c 0.04." in table.notes


def test_diverged_rows_are_shown_and_never_chosen(two: Made) -> None:
    for value in (np.inf, np.nan):
        for _, tables in two.results["SGD"]:
            for part in PARTS:
                tables["records"][part] = np.full((3, 3), value)
        tuned, split = tuning_table(*two.stored().read), split_table(*two.read)
        assert tuned.shown()[0][3] == "not finite ± not finite"
        assert records_of(tuned)[0]["loss, difference"].marked
        assert [line["chosen"] for line in records_of(tuned)] == [None, "here", None]
        assert records_of(split)[0]["bound holds"] == 0
    assert chosen({"a": (math.nan, 0.0)}) is None


def test_no_rows_to_choose_by(tmp_path: Path) -> None:
    prepared = small(2, seeds=1, splits=1)
    prepared = replace(prepared, splits=(random_split(prepared.unscaled.groups["group"], seed=0),))
    with pytest.raises(ValueError, match=r"no rows for validation \(it has train, dual, test\)"):
        tuning_table(prepared, Store(tmp_path), [])


# Splits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2, 5])
def test_splits(groups: int, tmp_path: Path) -> None:
    """Two seeds on each of four splits: seeds are averaged first, and there are four values."""
    scipy_stats = pytest.importorskip("scipy.stats")
    made = Made(small(groups, seeds=2, splits=4, rows=("SGD",)), tmp_path)
    for plan, tables in made.results["SGD"]:
        if plan.split == 0 or (plan.split, plan.seed) == (1, 0):  # equal losses: the bound holds in 3 of 8 runs
            tables["records"]["test"][:, 1:] = 0.4
    (line,) = records_of(split_table(*made.stored().read))

    def gap(losses: np.ndarray) -> float:
        of_groups = losses[:, 1:]
        if groups == 2:
            return float((of_groups[:, 0] - of_groups[:, 1]).mean())
        return float(np.abs(of_groups - of_groups.mean(1, keepdims=True)).max(1).mean())  # eq. (4)

    def over_splits(value: Any) -> np.ndarray:
        return np.array([np.mean([value(t) for p, t in made.results["SGD"] if p.split == s]) for s in range(4)])

    for shown, part in (("train", "train"), ("held-out", "test")):
        losses = over_splits(lambda t, part=part: t["records"][part][-2:, 0].astype(float).mean())
        gaps = over_splits(lambda t, part=part: gap(t["records"][part][-2:].astype(float)))
        assert_spread(line[f"{shown} loss"], losses)
        assert_spread(line[f"{shown} gap"], gaps)
        ends = scipy_stats.t.interval(0.95, 3, gaps.mean(), scipy_stats.sem(gaps))
        assert line[f"{shown} gap, 95 %"] == pytest.approx(ends, rel=1e-9)
    at = PARTS.index("test")
    right = over_splits(lambda t: t["end"]["counts"][at][:, [0, 1], [0, 1]].sum() / t["end"]["counts"][at].sum())
    assert_spread(line["held-out accuracy"], right)
    assert line["splits"] == 4
    assert made.prepared.experiment.notion == ("pairwise" if groups == 2 else "against_mean")
    assert line["bound holds"] == 3 / 8  # in no other run do the made-up losses lie so near to each other


def test_one_split_has_no_interval(tmp_path: Path) -> None:
    made = Made(small(2, seeds=2, splits=1, rows=("SGD",)), tmp_path).stored()
    (line,) = records_of(split_table(*made.read))
    assert line["held-out gap, 95 %"] is None
    assert line["held-out gap"].std == 0


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 100])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.9995])
def test_students_quantile(probability: float, freedom: int) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    assert student_quantile(probability, freedom) == pytest.approx(scipy_stats.t.ppf(probability, freedom), rel=1e-9)


# From a run to the tables ---------------------------------------------------------------------------------------------


def test_tables_of_a_real_run(tmp_path: Path) -> None:
    """What `execute` stores is what the tables read; lengths other than the experiment's are named."""
    prepared, store = small(2, seeds=2, splits=2, rows=("SGD",)), Store(tmp_path)
    planned = run_batches(prepared, steps=3)
    execute(prepared, store, planned)
    cells = [store.get(key) for _, key, _ in planned_runs(planned)]
    fairness = fairness_table(prepared, store, planned, "reported")
    at = cells[0].tables["end"]["part"].tolist().index("test")
    counts = [cell.tables["end"]["counts"][at] for cell in cells]
    assert_spread(records_of(fairness)[2]["test"], [1 - n[:, [0, 1], [0, 1]].sum() / n.sum() for n in counts])
    (split,), (tuned,) = (records_of(make(prepared, store, planned)) for make in (split_table, tuning_table))
    (line,) = summary(prepared, store, planned, "validation")
    assert (tuned["loss"], tuned["violation"], tuned["runs"]) == (line.loss, line.violation, 4)
    assert (split["splits"], split["steps"]) == (2, 3)
    assert "Other numbers of steps than the experiment's: SGD 3 for 6." in fairness.notes


# Writing --------------------------------------------------------------------------------------------------------------

COLUMNS = (
    Column("row"), Column("runs", "whole"), Column("loss", "spread"), Column("gap", "interval", 2),
    Column("off", "difference"), Column("holds", "percent"), Column("rate", "number", 1),
)  # fmt: skip
TABLE = Table(
    "Losses & gaps",
    COLUMNS,
    (
        ('a_b, "c" #1', 25000, Spread(1 / 3, 0.1), Interval(-0.123, 2e-17), Difference(-0.1, True), 0.35, 0.25),
        ("none", 0, None, None, None, None, None),
    ),
    ("5 % of {x}.",),
)


def test_csv_round_trip() -> None:
    """Every number comes back as it was, and what does not exist is empty."""
    first, second = csv.DictReader(io.StringIO(TABLE.to_csv()))
    assert first["row"] == 'a_b, "c" #1'
    numbers = ("loss mean", "loss std", "gap low", "gap high", "off", "holds", "rate")
    assert [float(first[name]) for name in numbers] == [1 / 3, 0.1, -0.123, 2e-17, -0.1, 0.35, 0.25]
    assert (first["runs"], first["off marked"]) == ("25000", "yes")
    assert list(second.values()) == ["none", "0", *[""] * 8]


def test_csv_of_all_tables_is_readable_by_pandas(two: Made) -> None:
    pandas = pytest.importorskip("pandas")
    read = pandas.read_csv(io.StringIO(fairness_table(*two.stored().read, "printed").to_csv()))
    assert read["train mean"].dtype == float
    assert read["train mean"].isna().sum() == 7  # the row without runs


def test_text() -> None:
    assert TABLE.to_text().splitlines() == [
        "Losses & gaps",
        "row          runs    loss             gap            off       holds  rate",
        'a_b, "c" #1  25,000  0.3333 ± 0.1000  [-0.12, 0.00]  -0.1000*   35 %   0.2',
        "none              0                —              —         —      —     —",
        "5 % of {x}.",
    ]


def test_latex_is_escaped_and_has_the_rules_of_booktabs() -> None:
    lines = TABLE.to_latex().splitlines()
    assert r"\caption{Losses \& gaps}" in lines
    assert r"\begin{tabular}{lrrrrrr}" in lines
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r'a\_b, "c" \#1 & 25,000 & 0.3333 $\pm$ 0.1000 & [$-$0.12, 0.00] & $-$0.1000* & 35 \% & 0.2 \\' in lines
    assert r"none & 0 & --- & --- & --- & --- & --- \\" in lines
    assert r"\par\footnotesize 5 \% of \{x\}." in lines


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\\~^", r"\textbackslash{}\textasciitilde{}\textasciicircum{}"),
        ("$&%#_{}", r"\$\&\%\#\_\{\}"),
        ("<|>", r"\textless{}\textbar{}\textgreater{}"),
        ("SSL-ALM -0.5", "SSL-ALM $-$0.5"),
    ],
)
def test_what_latex_reads_otherwise(text: str, written: str) -> None:
    assert latex(text) == written


def test_a_row_that_begins_like_an_option() -> None:
    """After the \\\\ of a line, [ and * would be read as its arguments."""
    table = Table("t", (Column("row"),), (("a",), ("[2]",), ("*",)))
    assert {r"{}[2] \\", r"{}* \\", r"a \\"} <= set(table.to_latex().splitlines())


def test_tables_are_checked() -> None:
    with pytest.raises(ValueError, match="a row of 1 values for 2 columns"):
        Table("t", (Column("a"), Column("b")), (("x",),))
    with pytest.raises(TypeError, match=r"column 'a' is of kind 'spread', got 0\.5"):
        Table("t", (Column("a", "spread"),), ((0.5,),))
