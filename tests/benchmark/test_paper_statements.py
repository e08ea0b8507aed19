"""The paper's statements: every verdict from made-up figures, the figures against numpy, and every
line of the file."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_results import Made, stored_study

from fairbound.benchmark._paper_statements import (
    STUDY,
    Figure,
    Statement,
    by_seed,
    statement_verdict,
    statements,
    statements_table,
)
from fairbound.benchmark._results import Results
from fairbound.benchmark._sections import paper_section
from fairbound.benchmark._study import load_study

STUDIES = {name for line in statements() for name in STUDY.findall(f"{line.study} {line.claims}")}


def made(name: str = "paper-ok-race", source: str = "acs:OK", **changes: Any) -> Made:
    return Made(stored_study(replace(load_study(name), **changes), source=source))


def with_losses(losses: dict[str, list[tuple[float, ...]]]) -> dict[str, Results]:
    """Every record of a run: its loss, and the losses of white and non-white people."""
    experiment = made()
    for row, runs in losses.items():
        for (_, tables), values in zip(experiment.results[row], runs, strict=True):
            tables["records"]["train"] = np.array([values] * 30)
    return {"paper-ok-race": experiment.read}


def decided(claims: str, studies: dict[str, Results], part: str = "train") -> str:
    return statement_verdict(
        Statement("4.2.1", "", "paper-ok-race", part, claims, "").parsed(), studies
    )


def test_every_verdict() -> None:
    """Ten runs: SGD ends at 0.40 and 0.41 by turns, ALM always 0.1 above it; SSw is as often above
    as below SGD."""
    base = [0.40 + 0.01 * (seed % 2) for seed in range(10)]
    apart = {"SGD": 0.0, "ALM": 0.1}
    losses = {row: [(loss + more, 0.5, 0.5) for loss in base] for row, more in apart.items()}
    losses["SSw"] = [
        (loss + (0.1 if seed < 5 else -0.1), 0.5, 0.5) for seed, loss in enumerate(base)
    ]
    studies = with_losses(losses)
    for claims, wanted in {
        "loss: SGD < ALM": "reproduced",
        "loss: ALM > SGD": "reproduced",
        "loss: ALM < SGD": "opposite",
        # one claim is shown, of the other one the reverse
        "loss: ALM > SGD; loss: SGD > ALM": "not reproduced",
        "loss: SSw < SGD": "cannot be decided",
        "loss: ALM > SGD; loss: SSw < SGD": "cannot be decided",
        "loss: ALM < SGD; loss: SSw < SGD": "not reproduced",
        "loss: SGD < SGD": "not reproduced",  # the same
        "loss: SGD < 0.5": "reproduced",
        "loss: ALM < 0.45": "not reproduced",  # of a number there is no opposite
        "loss: SGD < 0.405": "cannot be decided",
        "loss: ALM = SGD ± 0.11": "reproduced",
        "loss: ALM = SGD ± 0.09": "not reproduced",
        "loss: SSw = SGD ± 0.05": "cannot be decided",
        "loss: SGD = 0.405 ± 0.01": "reproduced",
        "loss & loss along the run: SGD < ALM & ALM": "reproduced",
        "loss: nobody < SGD": "cannot be decided",  # a row without runs
    }.items():
        assert decided(claims, studies) == wanted, claims


def test_runs_are_compared_by_seed() -> None:
    """The same ten losses, in the other order: differences are as often positive as negative."""
    rising = [0.4 + 0.01 * seed for seed in range(10)]
    apart = {
        "SGD": rising,
        "ALM": [loss + 0.005 for loss in rising],
        "SSw": [loss + 0.005 for loss in rising[::-1]],
    }
    studies = with_losses(
        {row: [(loss, 0.5, 0.5) for loss in values] for row, values in apart.items()}
    )
    assert decided("loss: SGD < ALM", studies) == "reproduced"
    assert decided("loss: SGD < SSw", studies) == "cannot be decided"


def test_a_figure_that_is_undefined_is_left_out() -> None:
    experiment = made()
    for seed, (_, tables) in enumerate(experiment.results["SGD"]):
        at = tables["parts"]["part"].tolist().index("train")
        tables["parts"]["counts"][at] = [[[50, 10], [10, 30]], [[50, 10], [10, 30]]]
        if seed:
            tables["parts"]["counts"][at][0, :, 1] = 0  # nobody is predicted positive
    studies = {"paper-ok-race": experiment.read}
    assert len(by_seed(Figure("Sf", "paper-ok-race", "SGD", "train"), studies).dropna()) == 1
    assert decided("Sf: SGD < 0.5", studies) == "cannot be decided"
    assert decided("Ina: SGD < 0.5", studies) == "reproduced"


def test_figures_of_a_run() -> None:
    experiment = made()
    results = experiment.read
    runs = [tables for _, tables in experiment.results["SSw"]]
    # (runs, 30, 3)
    records = np.array([tables["records"]["train"] for tables in runs], dtype=float)
    at = runs[0]["parts"]["part"].tolist().index("train")
    shares = np.array([tables["parts"]["histogram"][at] for tables in runs], dtype=float)
    shares /= shares.sum(-1, keepdims=True)  # (runs, 2, 50)
    sgd = np.array(
        [tables["parts"]["histogram"][at] for _, tables in experiment.results["SGD"]], dtype=float
    )
    sgd = (sgd / sgd.sum(-1, keepdims=True)).mean(0)
    # (runs, 2 groups, 2 labels)
    labels = np.array([tables["parts"]["counts"].sum((0, 3)) for tables in runs])
    gap = records[..., 1] - records[..., 2]
    over = np.maximum(np.abs(gap) - 0.005, 0)
    for name, wanted in {
        "largest gap": np.abs(gap[:, -1]),
        "loss along the run": records[..., 0].mean(1),
        "growth of the violation": over[:, -1] - over[:, 15],
        "spread of loss": np.abs(records[..., 0] - np.median(records[..., 0], axis=0)).mean(1),
        "spread of gap": np.abs(gap - np.median(gap, axis=0)).mean(1),
        "positives of white": labels[:, 0, 1] / labels[:, 0].sum(1),
        "positives of non-white": labels[:, 1, 1] / labels[:, 1].sum(1),
        "examples": [tables["parts"]["counts"][at].sum() for tables in runs],
        "scores below 0.2, non-white less white": (
            shares[:, 1, :10].sum(1) - shares[:, 0, :10].sum(1)
        ),
        "scores from 0.3 to 0.7": shares[..., 15:35].sum(-1).mean(1),
        "distance of scores from SGD's": np.abs((shares - sgd).cumsum(-1)).sum(-1).mean(1) / 50,
        "Wd": [float(tables["parts"]["wd"][at, 0]) for tables in runs],
        "gap": gap[:, -1],
    }.items():
        values = by_seed(Figure(name, "paper-ok-race", "SSw", "train"), {"paper-ok-race": results})
        assert values.to_numpy() == pytest.approx(np.array(wanted), rel=1e-5), name


def test_experiment_whose_sgd_has_no_results() -> None:
    study = stored_study(load_study("paper-ok-race"), source="acs:OK")
    table = statements_table({"paper-ok-race": Made(study, without=("SGD",)).read})
    assert table is not None
    far = table.frame[table.frame[("claims", "")].str.contains("distance of scores from SGD's")]
    assert set(far["verdict"]) == {"cannot be decided"}


def test_figures_of_five_groups_and_of_a_studys_rows() -> None:
    marital, tuning = made("paper-va-marital", "acs:VA"), made("tune-va-penalty", "acs:VA")
    studies = {"paper-va-marital": marital.read, "tune-va-penalty": tuning.read}
    for group, name in enumerate(("Mar", "Wid", "Div", "Sep", "Nev")):
        ends = np.array(
            [tables["records"]["test"][-1, 1:] for _, tables in marital.results["SGD"]], dtype=float
        )
        values = by_seed(Figure(f"gap of {name}", "paper-va-marital", "SGD", "test"), studies)
        assert values.to_numpy() == pytest.approx(np.abs(ends[:, group] - ends.mean(1)), rel=1e-5)
        assert (
            marital.study.cards[0]
            .group_names[group]
            .startswith({"Sep": "Sep", "Nev": "Never"}.get(name, name))
        )
    losses = studies["tune-va-penalty"].final.pivot(index="seed", columns="row", values="loss")
    ranges = by_seed(Figure("range of loss", "tune-va-penalty", "", "validation"), studies)
    assert ranges.tolist() == (losses.max(axis=1) - losses.min(axis=1)).tolist()


def test_better_settings_are_counted() -> None:
    """Of three rows one has less loss and less violation than the third, one the same violation and
    less loss."""
    tuning = made("tune-va-penalty", "acs:VA")
    for (_, runs), loss, apart in zip(
        tuning.results.items(), (0.3, 0.4, 0.5, 0.4), (0.0, 0.3, 0.3, 0.4), strict=True
    ):
        for _, tables in runs:
            tables["records"]["validation"][:] = [loss, 0.5 + apart, 0.5, 0.5, 0.5, 0.5]
    studies = {"tune-va-penalty": tuning.read}
    rows = list(tuning.results)
    counts = [
        by_seed(Figure("better settings", "tune-va-penalty", row, "validation"), studies)[0]
        for row in rows
    ]
    assert counts == [0, 1, 2, 2]
    other = by_seed(
        Figure("better settings of tune-va-penalty", "tune-va-penalty", rows[2], "validation"),
        studies,
    )
    assert other.tolist() == [2.0] * 5


@pytest.mark.parametrize("statement", statements(), ids=lambda line: line.statement[:40])
def test_every_line_of_the_file_can_be_read(statement: Statement) -> None:
    """Its rows are of its study; it names known figures; a number that it compares with is one of
    the paper's."""
    claims = statement.parsed()
    assert claims
    for figure in (figure for claim in claims for figure in claim[:2] if figure is not None):
        assert figure.row in {"", *(entry.name for entry in load_study(figure.study).entries)}
        assert (figure.row == "") == (figure.name == "range of loss")
    assert re.fullmatch(r"4\.2\.[12]|A|B\.[12]\.[1-4]", statement.section)
    assert statement.part in ("train", "validation", "test")


@pytest.fixture(scope="module")
def every() -> list[Results]:
    return [
        made(name, f"acs:{name.split('-')[1].upper()}", records=30).read for name in sorted(STUDIES)
    ]


def test_the_table_has_every_statement_with_our_figures_and_the_papers(
    every: list[Results],
) -> None:
    (section,) = paper_section(every)
    table = section.tables["statements"]
    frame = table.frame.droplevel(1, axis=1)
    assert frame["statement"].tolist() == [line.statement for line in statements()]
    assert not frame["here"].str.contains("undefined").any()
    assert set(frame["runs"]) == {10, 5}
    line = frame[
        frame["statement"] == "Of the four, StGh performs worst in terms of accuracy"
    ].iloc[0]
    study = next(study for study in every if study.study.name == "paper-ok-race")
    train = study.final[
        (study.final["part"] == "train") & (study.final["row"] == "Ghost, rho 0.1")
    ]["inaccuracy"]
    assert f"Ghost, rho 0.1 {train.mean():.3f} ± {train.std():.3f}" in line["here"]
    assert "Ina, train: Ghost, rho 0.1 0.230 ± 0.025, SSL-ALM 0.208 ± 0.009" in line["paper"]
    assert re.match(rf"Of {len(frame)} statements: .*\d+ cannot be decided", section.finding)


def test_only_whole_runs_on_the_papers_data_are_judged(every: list[Results]) -> None:
    study = load_study("paper-ok-race")
    assert paper_section([made(source="synthetic:OK").read]) == []
    assert paper_section([made(budget="examples").read]) == []
    assert paper_section([made(reference="").read]) == []
    assert (
        paper_section(
            [Made(stored_study(replace(study, seeds=2), source="acs:OK", whole_seeds=10)).read]
        )
        == []
    )
    alone = statements_table({"paper-ok-race": made().read})
    assert alone is not None
    assert 0 < len(alone.frame) < len(statements())  # those that read this study alone
