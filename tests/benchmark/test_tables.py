"""The benchmark's tables: every number against numpy, on a small store of made-up results and on
one real run."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_results import Made, stored_study
from scipy import stats
from small_study import small_plan, small_study

from fairbound.benchmark._engine import Engine
from fairbound.benchmark._entry import Paper, Printed
from fairbound.benchmark._paper_comparison import PAPERS_CHOICE
from fairbound.benchmark._results import ReportItem, Results
from fairbound.benchmark._sections import study_section
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import StoredStudy
from fairbound.benchmark._study import load_study
from fairbound.benchmark._tables import (
    TABLES,
    fairness_table,
    split_table,
    summary_table,
    tuning_table,
)
from fairbound.benchmark.problems.table import SplitSpec
from fairbound.reports._table import ReportTable, csv_text, frame_of, latex

SHARES = {"train": 0.5, "validation": 0.25, "test": 0.25}
PARTS = ("train", "validation", "test")
ENTRIES = ("SGD", "SSL-ALM", "ALM")
PAPER = Paper(
    {"loss": Printed(0.4, 0.1), "violation": Printed(0.0, 0.0)},
    {name: Printed(0.1, 0.2) for name in ("Ind", "Sp", "Ina", "Sf", "Wd")},
    {name: Printed(0.3, 0.001) for name in ("Ind", "Sp", "Ina", "Sf", "Wd")},
)


def small(
    groups: int, *, seeds: int, splits: int, entries: tuple[str, ...] = ENTRIES, **changes: Any
) -> StoredStudy:
    """Experiment 1 or 2 with some of its entries. Only the first of them is in the paper."""
    whole = load_study("paper-ok-race" if groups == 2 else "paper-va-marital").with_entries(
        (), only=entries
    )
    assert whole.problem is not None
    some = [
        replace(one, steps=6, paper=PAPER if i == 0 else Paper({}, {}, {}))
        for i, one in enumerate(whole.entries)
    ]
    spec = replace(whole.problem, split=SplitSpec(seed=0, shares=SHARES))
    study = replace(
        whole,
        entries=tuple(some),
        problem=spec,
        records=3,
        last_states=2,
        seeds=seeds,
        splits=splits,
        **changes,
    )
    return stored_study(study)


@pytest.fixture
def two() -> Made:
    return Made(small(2, seeds=3, splits=1), without=("ALM",))


def records_of(table: ReportTable) -> list[dict[str, Any]]:
    """Lines of a table: a plain value, or the fields of a name; None for a value that is
    missing."""
    lines: list[dict[str, Any]] = []
    for _, values in table.frame.astype(object).iterrows():
        line: dict[str, Any] = {}
        for (name, part), value in values.items():
            value = None if pd.isna(value) else value
            line[name] = value if part == "" else line.get(name, {}) | {part: value}
        lines.append(line)
    return lines


def assert_spread(shown: dict[str, float | None], numbers: Any) -> None:
    expected = (np.mean(numbers), np.std(numbers, ddof=1))
    assert (shown["mean"], shown["std"]) == pytest.approx(expected, rel=1e-12)


# Fairness -----------------------------------------------------------------------------------------


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
        found |= {
            "Ind": distance[0],
            "Sp": (distance[1] + distance[2]) / 2,
            "Sf": (distance[3] + distance[4]) / 2,
        }
    elif len(n) == 2:
        apart = [abs(rate[0] - rate[1]) for rate in (pr, tpr, fpr, ppv, omitted)]
        found |= {"Ind": apart[0], "Sp": apart[1] + apart[2], "Sf": apart[3] + apart[4]}
    distances = {"Wd": end["wd"], "Wd of logits": end["wd_logits"], "W1": end["w1"]}
    return found | {name: distance[at].max() for name, distance in distances.items()}


@pytest.mark.parametrize("groups", [2, 5])
def test_fairness_is_a_line_a_method(groups: int) -> None:
    """As the paper's results define it for two groups, for more as its text does."""
    made = Made(
        small(
            groups,
            seeds=3,
            splits=1,
            entries=("SGD", "SSL-ALM, tau 0.05" if groups == 5 else "SSL-ALM"),
        )
    )
    table, family = fairness_table(made.read), "reported" if groups == 2 else "printed"
    names = ["Ind", "Sp", "Ina", "Sf", "Wd"]
    assert list(table.frame.columns.unique(0)) == [
        "row",
        "runs",
        *(f"train {name}" for name in names),
        *(f"test {name}" for name in names),
    ]
    for line in records_of(table):
        for part in ("train", "test"):
            runs = [
                transcribed(tables["parts"], part, family)
                for _, tables in made.results[line["row"]]
            ]
            for name in names:
                assert_spread(line[f"{part} {name}"], [run[name] for run in runs])


def test_fairness_beside_the_paper(two: Made) -> None:
    first, second, _ = records_of(fairness_table(two.read))
    marks = []
    for part, mean, std in (("train", 0.1, 0.2), ("test", 0.3, 0.001)):
        for name in ("Ind", "Sp", "Ina", "Sf", "Wd"):
            figure = first[f"{part} {name}"]
            assert (figure["paper mean"], figure["paper std"]) == (mean, std)
            assert figure["difference"] == pytest.approx(figure["mean"] - mean)
            assert figure["differs"] == (abs(figure["mean"] - mean) > 2 * std)
            marks.append(figure["differs"])
            # the second row is not in the paper
            assert second[f"{part} {name}"]["difference"] is None
    assert set(marks) == {True, False}  # the results above have both


def test_within_another_budget_nothing_stands_beside() -> None:
    """The paper's figures are of its own seconds."""
    made = Made(replace(small(2, seeds=3, splits=1), budget="examples"))
    for table in (fairness_table(made.read), TABLES["loss"].make(made.read)):
        assert not [field for _, field in table.frame.columns if "paper" in field]


def test_a_figure_that_some_runs_lack(two: Made) -> None:
    """In one run nobody of a group is predicted positive, in another Wd does not exist."""
    results = [tables["parts"] for _, tables in two.results["SGD"]]
    results[0]["counts"][2, 0, :, 1] = 0
    results[1]["wd"][2] = np.nan
    table = fairness_table(two.read)
    line = records_of(table)[0]
    assert_spread(
        line["test Sf"], [transcribed(end, "test", "reported")["Sf"] for end in results[1:]]
    )
    assert_spread(line["test Wd"], [float(results[i]["wd"][2, 0]) for i in (0, 2)])
    said = "SGD, {}, test: undefined in 1 of 3 runs, skipped in the mean."
    assert [note for note in table.notes if "undefined" in note] == [
        said.format("Sf"),
        said.format("Wd"),
    ]


def test_a_row_without_runs_is_missing(two: Made) -> None:
    made = two
    for table in (fairness_table(made.read), tuning_table(made.read), split_table(made.read)):
        line, *_ = [line for line in records_of(table) if line["row"] == "ALM"]
        figures = [line[name][part] for name, part in table.frame.columns if part] + [
            line.get("bound holds")
        ]
        assert line.get("runs", line.get("splits")) == 0
        assert figures == [None] * len(figures)
        assert "Missing from the store: ALM (3 of 3 runs)." in table.notes


def test_an_empty_store_is_all_missing(tmp_path: Path) -> None:
    results = Results.read(small(2, seeds=1, splits=1), Store(tmp_path))
    table = tuning_table(results)
    assert [line["loss"]["mean"] for line in records_of(table)] == [None] * 3
    for make in (TABLES["loss"].make, split_table, fairness_table):
        assert set(make(results).to_text().split()) >= {"SGD", "—"}
    assert {line["choice"] for line in records_of(table)} == {None}


# Tuning -------------------------------------------------------------------------------------------


def violations(losses: np.ndarray, bound: float) -> np.ndarray:
    return np.maximum(np.abs(losses[:, 1] - losses[:, 2]) - bound, 0)


def test_tuning_is_the_mean_over_the_last_states(two: Made) -> None:
    for line in records_of(tuning_table(two.read))[:2]:
        last = [
            tables["records"]["validation"].astype(float)[-2:]
            for _, tables in two.results[line["row"]]
        ]
        assert_spread(line["loss"], [one[:, 0].mean() for one in last])
        assert_spread(line["violation"], [violations(one, 0.005).mean() for one in last])
        assert (line["steps"], line["runs"]) == (6, 3)


def test_a_printed_deviation_of_zero_is_rounded(two: Made) -> None:
    """The paper prints a violation of 0.000 ± 0.000: 0.0009 is no difference, 0.0011 is one."""
    for excess, marked in ((0.0009, False), (0.0011, True)):
        for _, tables in two.results["SGD"]:
            tables["records"]["validation"] = np.array([[0.4, 0.405 + excess, 0.4]] * 3)
        line = records_of(tuning_table(two.read))[0]
        assert line["violation"]["difference"] == pytest.approx(excess)
        assert line["violation"]["differs"] == marked


@pytest.mark.parametrize(
    ("loss", "marked"), [(0.21, False), (0.59, False), (0.19, True), (0.61, True)]
)
def test_two_standard_deviations(two: Made, loss: float, marked: bool) -> None:
    """The paper prints a loss of 0.4 ± 0.1. The mark is explained where there is one."""
    for _, tables in two.results["SGD"]:
        tables["records"]["validation"] = np.array([[loss, 0.4, 0.4]] * 3)
    table = tuning_table(two.read)
    line = records_of(table)[0]["loss"]
    assert (line["difference"], line["differs"]) == (pytest.approx(loss - 0.4), marked)
    (column,) = (column for column in table.columns if column.heading == "loss")
    assert column.text[0] == f"{loss:.4f} ± 0.0000" + "*" * marked
    assert column.details["paper"][0] == "0.4000 ± 0.1000"
    assert any(note.startswith("* more than two") for note in table.notes) == marked


def test_the_front_and_the_papers_choice(two: Made) -> None:
    """SSL-ALM has the smaller loss; it is alone on the front unless SGD has the smaller
    violation."""
    for excess, front in ((0.003, {"SGD", "SSL-ALM"}), (0.0, {"SSL-ALM"})):
        for name, loss, above in (("SGD", 0.5, 0.0), ("SSL-ALM", 0.4, excess)):
            for _, tables in two.results[name]:
                tables["records"]["validation"] = np.array([[loss, 0.4 + 0.005 + above, 0.4]] * 3)
        table = records_of(tuning_table(two.read))
        assert {line["row"] for line in table if line["choice"] == "front"} == front
    name = "eta_f 0.05, eta_c 0.04"
    study = small(2, seeds=1, splits=1, entries=("SGD",))
    entries = [replace(study.entries[0], name=name)]
    study = replace(
        study, name="tune-ok-ssw", entries=entries, runs=[study.runs[0]._replace(entry=name)]
    )
    assert records_of(tuning_table(Made(study).read))[0]["choice"] == "front, the paper's"


def test_the_papers_choices_are_rows_of_its_tables() -> None:
    assert len(PAPERS_CHOICE) == 8
    for name, choice in PAPERS_CHOICE.items():
        assert choice in {entry.name for entry in load_study(name).entries}


def test_diverged_rows_are_shown_and_never_on_the_front(two: Made) -> None:
    for value in (np.inf, np.nan):
        for _, tables in two.results["SGD"]:
            for part in PARTS:
                tables["records"][part] = np.full((3, 3), value)
        tuned, split = tuning_table(two.read), split_table(two.read)
        assert (
            next(column.text[0] for column in tuned.columns if column.heading == "loss")
            == "not finite ± not finite*"
        )
        assert records_of(tuned)[0]["loss"]["differs"]
        assert [line["choice"] for line in records_of(tuned)] == [None, "front", None]
        assert records_of(split)[0]["bound holds"] == 0


def test_no_examples_to_choose_by(tmp_path: Path) -> None:
    study = small(2, seeds=1, splits=1)
    study = replace(study, cards=[replace(study.cards[0], parts=("train", "dual", "test"))])
    with pytest.raises(ValueError, match=r"validation.*train, dual, test"):
        tuning_table(Results.read(study, Store(tmp_path)))


# Splits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2, 5])
def test_splits(groups: int) -> None:
    """Two seeds on each of four splits: seeds are averaged first, and there are four values."""
    made = Made(small(groups, seeds=2, splits=4, entries=("SGD",)))
    for run, tables in made.results["SGD"]:
        # equal losses: the bound holds in 3 of 8 runs
        if run.split == 0 or (run.split, run.seed) == (1, 0):
            tables["records"]["test"][:, 1:] = 0.4
    (line,) = records_of(split_table(made.read))

    def gap(losses: np.ndarray) -> float:
        of_groups = losses[:, 1:]
        if groups == 2:
            return float((of_groups[:, 0] - of_groups[:, 1]).mean())
        return float(np.abs(of_groups - of_groups.mean(1, keepdims=True)).max(1).mean())  # eq. (4)

    def over_splits(value: Any) -> np.ndarray:
        return np.array(
            [np.mean([value(t) for p, t in made.results["SGD"] if p.split == s]) for s in range(4)]
        )

    for shown, part in (("train", "train"), ("held-out", "test")):
        losses = over_splits(lambda t, part=part: t["records"][part][-2:, 0].astype(float).mean())
        gaps = over_splits(lambda t, part=part: gap(t["records"][part][-2:].astype(float)))
        assert_spread(line[f"{shown} loss"], losses)
        assert_spread(line[f"{shown} gap"], gaps)
        ends = stats.t.interval(0.95, 3, gaps.mean(), stats.sem(gaps))
        assert (line[f"{shown} gap"]["low"], line[f"{shown} gap"]["high"]) == pytest.approx(
            ends, rel=1e-9
        )
    at = PARTS.index("test")
    right = over_splits(
        lambda t: t["parts"]["counts"][at][:, [0, 1], [0, 1]].sum() / t["parts"]["counts"][at].sum()
    )
    assert_spread(line["held-out accuracy"], right)
    assert line["splits"] == 4
    assert made.study.cards[0].notion == ("pairwise" if groups == 2 else "against_mean")
    # in no other run do the made-up losses lie so near to each other
    assert line["bound holds"] == 3 / 8


def test_one_split_has_no_interval() -> None:
    made = Made(small(2, seeds=2, splits=1, entries=("SGD",)))
    (line,) = records_of(split_table(made.read))
    assert line["held-out gap"]["low"] is None
    assert line["held-out gap"]["std"] == 0


# From a run to the tables -------------------------------------------------------------------------


def test_tables_of_a_real_run(tmp_path: Path) -> None:
    """What a task stores is what the tables read; lengths other than the study's are named."""
    entries = '{ name = "SGD", method = "SGD", steps = 6 }'
    (tmp_path / "small.toml").write_text(
        "last_states = 2\n" + small_study(entries, seeds=2, records=3)
    )
    plan, store = small_plan(tmp_path, steps=3, splits=2), Store(tmp_path / "results")
    plan.compute(store, Engine())
    results = Results.read(plan.stored(store), store)
    fairness = fairness_table(results)
    parts = [one.tables["parts"] for one in store.results()]
    at = parts[0]["part"].tolist().index("test")
    counts = [one["counts"][at] for one in parts]
    assert_spread(
        records_of(fairness)[0]["test Ina"],
        [1 - n[:, [0, 1], [0, 1]].sum() / n.sum() for n in counts],
    )
    (split,), (tuned,) = (records_of(make(results)) for make in (split_table, tuning_table))
    (line,) = records_of(summary_table(results, "validation"))
    assert (tuned["loss"]["mean"], tuned["runs"]) == (line["loss"]["mean"], 4)
    assert tuned["violation"]["std"] == line["largest violation"]["std"]
    assert (split["splits"], split["steps"]) == (2, 3)
    assert "Other numbers of steps than the study's: SGD 3 for 6." in fairness.notes


def test_a_table_is_added_in_one_place(two: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It then is on every page."""

    def accuracy_table(results: Results) -> ReportTable:
        means = results.final[results.final["part"] == "test"].groupby("row")["accuracy"].mean()
        return ReportTable(
            "Accuracy", frame_of({"row": means.index.to_series(), "accuracy": means})
        )

    monkeypatch.setitem(
        TABLES, "accuracy", ReportItem("Accuracy", lambda results: True, accuracy_table)
    )
    monkeypatch.setattr("fairbound.benchmark._sections.PLOTS", {})
    section = study_section(two.read)
    assert set(section.tables["accuracy"].to_text().split()) >= {"SGD", "SSL-ALM", "accuracy"}


# Writing ------------------------------------------------------------------------------------------

TABLE = ReportTable(
    "Losses & gaps",
    frame_of(
        {
            "row": pd.Series(['a_b, "c" #1', "none"]),
            "runs": pd.Series([25000, 0]),
            "loss": pd.DataFrame({"mean": [1 / 3, math.nan], "std": [0.1, math.nan]}),
            "gap": pd.DataFrame({"low": [-0.123, math.nan], "high": [2e-17, math.nan]}),
            "off": pd.DataFrame(
                {"mean": [-0.1, math.nan], "std": [0.0, math.nan], "differs": [True, None]}
            ),
            "holds": pd.Series([0.35, math.nan]),
            "rate": pd.Series([0.25, math.nan]),
        }
    ),
    ("5 % of {x}.",),
    formats={"runs": "{:,.0f}", "gap": "{:.2f}", "holds": "{:.0%}", "rate": "{:.1f}"},
)


def test_csv_round_trip() -> None:
    """Every number comes back as it was, and what does not exist is empty."""
    first, second = csv.DictReader(io.StringIO(TABLE.to_csv()))
    assert first["row"] == 'a_b, "c" #1'
    numbers = ("loss_mean", "loss_std", "gap_low", "gap_high", "off_mean", "holds", "rate")
    assert [float(first[name]) for name in numbers] == [1 / 3, 0.1, -0.123, 2e-17, -0.1, 0.35, 0.25]
    assert (first["runs"], first["off_differs"]) == ("25000", "True")
    assert list(second.values()) == ["none", "0", *[""] * 9]


def test_csv_has_no_cell_that_a_spreadsheet_runs() -> None:
    """Names of rows, methods and problems are a user's own; negative numbers stay numbers."""
    frame = frame_of({"row": pd.Series(['=HYPERLINK("x")', "@b"]), "+1": pd.Series([-0.5, None])})
    assert list(csv.reader(io.StringIO(ReportTable("t", frame).to_csv()))) == [
        ["row", "'+1"],
        ['\'=HYPERLINK("x")', "-0.5"],
        ["'@b", ""],
    ]
    rows = [("=1+1", -0.5, None), ("\uff1d1+1", 1.0, "-"), ("a\x1b[1m\u202e\u200b\0", math.nan, 2)]
    assert csv_text(["method", "score", "speed"], rows).splitlines() == [
        "method,score,speed",
        "'=1+1,-0.5,",
        "'\uff1d1+1,1.0,'-",
        "a\\x1b[1m\\u202e\\u200b\\x00,,2",
    ]


def test_csv_of_all_tables_is_readable_by_pandas(two: Made) -> None:
    read = pd.read_csv(io.StringIO(fairness_table(two.read).to_csv()))
    assert read["train Ind mean"].dtype == float
    assert read["train Ind mean"].isna().sum() == 1  # the row without runs


def test_text_stands_in_blocks_that_fit() -> None:
    lines = TABLE.to_text(60).splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split() for line in lines if line.startswith("a_b")] == [
        ["a_b,", '"c"', "#1", "25,000", "0.3333", "±", "0.1000", "[-0.12,", "0.00]"],
        ["a_b,", '"c"', "#1", "-0.1000", "±", "0.0000*", "35%", "0.2"],
    ]
    assert [line.split() for line in lines if line.startswith("none")] == [
        ["none", "0", "—", "—"],
        ["none", *"———"],
    ]


def test_latex_is_escaped_and_has_the_rules_of_booktabs() -> None:
    lines = TABLE.to_latex().splitlines()
    assert r"\caption{Losses \& gaps}" in lines
    assert r"\begin{tabular}{lrrrrrr}" in lines
    assert [line for line in lines if line.endswith("rule")] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    assert (
        r'a\_b, "c" \#1 & 25,000 & 0.3333 $\pm$ 0.1000 & [$-$0.12, 0.00] & $-$0.1000 $\pm$ 0.0000*'
        r" & 35\% & 0.2 \\" in lines
    )
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
    table = ReportTable("t", frame_of({"row": pd.Series(["a", "[2]", "*"])}))
    assert {r"{}[2] \\", r"{}* \\", r"a \\"} <= set(table.to_latex().splitlines())
