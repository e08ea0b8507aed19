"""What the paper says of its results, `paper_statements.csv`, and whether our runs of its studies
say the same.

A line of the file has a statement, its section, the claims that it makes, and the cause of a
difference where one is known. A claim compares figures on a part of the split, of rows of a study:

    loss: SSL-ALM & ALM < SSw                        both have less than SSw
    Ind & Sf: SSw = SGD ± 0.02                       both figures differ by less than 0.02
    range of loss: tune-va-sslalm < tune-va-penalty  over the rows of a study

It is *shown* where the 95 % interval (Student's) of the mean over runs is inside the range that it
claims, *refuted* where it is outside. Figures of two rows are subtracted by seed first. Nothing is
adjusted for the number of statements.

    reproduced          every claim is shown
    opposite            every claim says that one row has less than another, and the reverse of
    every one is shown not reproduced      a claim is refuted
    cannot be decided   otherwise: intervals reach across the limit, or a figure is undefined
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairbound.benchmark._entry import PAPER_METRICS
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._results import Array, Results, student_interval
from fairbound.reports._table import WHOLE, ReportTable, frame_of
from fairbound.reports._words import with_deviation

_Studies = Mapping[str, Results]  # by name, within the paper's budget
VERDICTS = ("reproduced", "not reproduced", "opposite", "cannot be decided")
STUDY = re.compile(r"(?:paper|tune)-(?:ok|va)-\w+")
RANGES = {"<": (-math.inf, 0.0), ">": (0.0, math.inf)}  # of figure minus figure
# What the paper prints of the validation set
VALIDATION = {"loss along the run": "loss", "range of loss": "loss", "largest gap": "violation"}


class Figure(NamedTuple):
    """A number of each run."""

    # a column of `Results.final`, a metric of the paper, a key of `OF_RUN`, or one that `by_seed`
    # knows
    name: str
    study: str
    row: str  # empty: all of the study's
    part: str


class Claim(NamedTuple):
    """The figure, minus the other one if there is one, lies between low and high."""

    figure: Figure
    other: Figure | None
    low: float
    high: float


class Statement(NamedTuple):
    """A line of the file."""

    section: str
    statement: str
    study: str  # of rows that name none
    part: str
    claims: str
    cause: str

    def parsed(self) -> list[Claim]:
        claims = []
        for text in self.claims.split("; "):
            names, _, comparison = text.partition(": ")
            left, sign, right = re.split(" ([<>=]) ", comparison)
            right, _, width = right.partition(" ± ")
            low, high = RANGES[sign] if sign in RANGES else (-float(width), float(width))
            for name, row, other in product(
                names.split(" & "), left.split(" & "), right.split(" & ")
            ):
                if re.fullmatch(r"[\d.]+", other):
                    claims.append(
                        Claim(
                            self._figure(name, row), None, low + float(other), high + float(other)
                        )
                    )
                else:
                    claims.append(
                        Claim(self._figure(name, row), self._figure(name, other), low, high)
                    )
        return claims

    def _figure(self, name: str, row: str) -> Figure:
        return (
            Figure(name, row, "", self.part)
            if STUDY.fullmatch(row)
            else Figure(name, self.study, row, self.part)
        )


@cache
def statements() -> list[Statement]:
    path = files("fairbound.benchmark") / "paper_statements.csv"
    with path.open(encoding="utf-8") as file:
        lines = pd.read_csv(file, dtype=str, keep_default_na=False)
    return [Statement(*line) for line in lines.itertuples(index=False)]


# Figures ------------------------------------------------------------------------------------------


def _losses(result: StoredResult, part: str) -> Array:
    """(records, 1 + G): of all examples, and of each group."""
    return np.asarray(result.tables["records"][part], dtype=float)


def _end(result: StoredResult, part: str, table: str) -> Array:
    end = result.tables["parts"]
    return np.asarray(end[table][end["part"].tolist().index(part)], dtype=float)


def _gap(result: StoredResult, part: str, group: int) -> float:
    losses = _losses(result, part)[-1, 1:]
    return float(abs(losses[group] - losses.mean()))


def _positives(result: StoredResult, results: Results, group: int) -> float:
    counts = np.sum(
        [_end(result, part, "counts")[group].sum(1) for part in results.study.measured], axis=0
    )
    return float(counts[1] / counts.sum())


def _scores(result: StoredResult, part: str) -> Array:
    """(G, bins) shares of a group."""
    counts = _end(result, part, "histogram")
    return np.asarray(counts / counts.sum(1, keepdims=True))


def _far_from_sgd(results: Results, result: StoredResult, part: str) -> float:
    """The 1-Wasserstein distance of the groups' scores from those of SGD, the mean over its runs;
    NaN without any."""
    if "SGD" not in results.stored:
        return math.nan
    apart = _scores(result, part) - np.mean(
        [_scores(other, part) for other in results.stored["SGD"]], axis=0
    )
    return float(np.abs(apart.cumsum(1)).mean())


OF_RUN: dict[str, Callable[[Results, StoredResult, str], float]] = {
    "rows of the data": lambda r, *_: r.card.rows,
    "parameters": lambda r, *_: r.card.n,
    "examples": lambda _, run, part: _end(run, part, "counts").sum(),
    "positives of white": lambda r, run, _: _positives(run, r, 0),
    "positives of non-white": lambda r, run, _: _positives(run, r, 1),
    "largest gap": lambda r, run, part: np.abs(r.gaps.values(_losses(run, part)[-1, 1:])).max(),
    "loss along the run": lambda _, run, part: _losses(run, part)[:, 0].mean(),
    "growth of the violation": lambda r, run, part: np.diff(
        r.gaps.violation(_losses(run, part)[[r.study.records // 2, -1], 1:])
    )[0],  # over the second half of the run
    "gap of Mar": lambda _, run, part: _gap(run, part, 0),
    "gap of Wid": lambda _, run, part: _gap(run, part, 1),
    "gap of Div": lambda _, run, part: _gap(run, part, 2),
    "gap of Sep": lambda _, run, part: _gap(run, part, 3),
    "gap of Nev": lambda _, run, part: _gap(run, part, 4),
    "scores below 0.2, non-white less white": lambda _, run, part: (
        -np.diff(_scores(run, part)[::-1, :10].sum(1))[0]
    ),
    "scores from 0.3 to 0.7": lambda _, run, part: _scores(run, part)[:, 15:35].sum(1).mean(),
    "distance of scores from SGD's": _far_from_sgd,
}


def by_seed(figure: Figure, studies: _Studies) -> pd.Series:
    """The figure of every run; empty for a row that has none."""
    results, name, part = studies[figure.study], figure.name, figure.part
    final = results.final[results.final["part"] == part]
    if name == "range of loss":  # over the settings of a study
        losses = final.groupby("seed")["loss"]
        return losses.max() - losses.min()
    row = final[final["row"] == figure.row].set_index("seed")
    column = results.metrics.get(name, name)
    if row.empty:
        return pd.Series(dtype=float)
    if column in row:
        return row[column].astype(float)
    # how many have a mean loss and a mean violation at most as large
    if name.startswith("better settings"):
        means, others = (
            studies[study].summary(part).xs("mean", axis=1, level=1)[["loss", "violation"]]
            for study in (figure.study, name.partition(" of ")[2] or figure.study)
        )
        point = means.loc[figure.row]
        better = (others <= point).all(axis=1) & (others < point).any(axis=1)
        return pd.Series(float(better.sum()), row.index)
    runs = {run.seed: result for run, result in results.runs[figure.row] if result is not None}
    if name.startswith("spread of "):  # around the median over runs, the mean along the run
        curves = {seed: _losses(result, part) for seed, result in runs.items()}
        of_loss = name.endswith("loss")
        lines = pd.DataFrame(
            {s: c[:, 0] if of_loss else results.gaps.gap(c[:, 1:]) for s, c in curves.items()}
        )
        return lines.sub(lines.median(axis=1), axis=0).abs().mean()
    return pd.Series(
        {seed: OF_RUN[name](results, result, part) for seed, result in runs.items()}, dtype=float
    )


# Verdicts -----------------------------------------------------------------------------------------


def statement_verdict(claims: Iterable[Claim], studies: _Studies) -> str:
    states = {_state(claim, studies) for claim in claims}
    if states == {"reversed"}:
        return "opposite"
    if states & {"refuted", "reversed"}:
        return "not reproduced"
    return "reproduced" if states == {"shown"} else "cannot be decided"


def _state(claim: Claim, studies: _Studies) -> str:
    values = by_seed(claim.figure, studies)
    if claim.other is not None:
        values = values - by_seed(claim.other, studies)
    low, high = student_interval(values.dropna().to_numpy())
    if (
        claim.other is not None
        and 0 in (claim.low, claim.high)
        and (low > claim.high or high < claim.low)
    ):
        return "reversed"
    if high <= claim.low or low >= claim.high:
        return "refuted"
    return "shown" if claim.low < low and high < claim.high else "undecided"


def statements_table(studies: _Studies) -> ReportTable | None:
    """Table of the statements whose studies are all there; None without any."""
    lines = []
    for statement in statements():
        if not set(STUDY.findall(f"{statement.study} {statement.claims}")) <= set(studies):
            continue
        claims = statement.parsed()
        figures = list(
            dict.fromkeys(figure for claim in claims for figure in claim[:2] if figure is not None)
        )
        runs = max(len(by_seed(figure, studies)) for figure in figures)
        line = {
            "statement": statement.statement,
            "section": statement.section,
            "verdict": statement_verdict(claims, studies),
            "runs": runs,
            "here": _in_words(figures, studies, _here),
            "paper": _in_words(figures, studies, _paper) or None,
            "cause": statement.cause or None,
            "claims": statement.claims,
        }
        lines.append(line)
    if not lines:
        return None
    frame = pd.DataFrame(lines)
    counts = frame["verdict"].value_counts().reindex(VERDICTS).dropna()
    notes = (
        (
            f"Of {len(lines)} statements:"
            f" {', '.join(f'{count:.0f} {name}' for name, count in counts.items())}."
        ),
        (
            "Reproduced: the 95 % intervals of the means over runs show every claim; opposite: they"
            " show the reverse of every one; not reproduced: they refute one; cannot be decided:"
            " otherwise."
        ),
        "The paper prints losses and violations of its validation set alone.",
    )
    title = "What the paper says, and what these runs show"
    return ReportTable(title, frame_of(dict(frame.items())), notes, formats={"runs": WHOLE})


def _here(figure: Figure, studies: _Studies) -> tuple[str, str]:
    values = by_seed(figure, studies).dropna()
    label = figure.name if figure.part == "train" else f"{figure.name}, {figure.part}"
    return label, _spread(float(values.mean()), float(values.std())) if len(values) else "undefined"


def _paper(figure: Figure, studies: _Studies) -> tuple[str, str]:
    """Empty where it prints none."""
    name, part = (
        VALIDATION.get(figure.name, figure.name),
        figure.part if figure.name in PAPER_METRICS else "validation",
    )
    entries = [
        entry for entry in studies[figure.study].study.entries if figure.row in (entry.name, "")
    ]
    printed = [
        getattr(entry.paper, part)[name] for entry in entries if name in getattr(entry.paper, part)
    ]
    means = [mean for mean, _ in printed]
    words = (
        ""
        if not printed
        else _spread(*printed[0])
        if figure.row
        else _spread(max(means) - min(means), 0.0)
    )
    return f"{name}, {part}", words


def _in_words(
    figures: Iterable[Figure],
    studies: _Studies,
    write: Callable[[Figure, _Studies], tuple[str, str]],
) -> str:
    """Every figure with its rows."""
    rows: dict[str, list[str]] = {}
    for figure in figures:
        label, words = write(figure, studies)
        if words:
            rows.setdefault(label, []).append(f"{figure.row or figure.study} {words}")
    return "; ".join(f"{label}: {', '.join(words)}" for label, words in rows.items())


def _spread(mean: float, std: float) -> str:
    if std == 0 and mean == round(mean):
        return f"{mean:,.0f}"
    return with_deviation(mean, std) if std else f"{mean:.3f}"
