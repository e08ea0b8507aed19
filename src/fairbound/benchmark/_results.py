"""What the store holds of a report's study, read once: for tables, figures and the page.

`Results.final`       one line per stored run and part of the split: loss, gap and violation over
                      the run's last records (`Study.last_states`), metrics of its last state
`Results.summary`     mean and standard deviation (n - 1) of these over the runs of a row
`Results.curves`      loss and bounded gaps along the steps, mean and quartiles over runs
`Results.histograms`  the score distributions of the groups at the end

NaN is a value that is undefined or missing; what diverged is infinite. Rows are the study's
entries, in its order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats

from fairbound.benchmark._entry import Paper
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import Card, EntryInfo, StoredRun, StoredStudy
from fairbound.metrics._counts import Counts
from fairbound.metrics.fairness_metrics import values as fairness_metrics

Array = NDArray[np.float64]
LOSS = "loss"
QUANTITIES = [LOSS, "gap", "violation"]
DECISIONS = ("holds", "violated", "undecided")  # of a verdict, in this order


@dataclass(frozen=True, eq=False)
class BoundedGaps:
    """The differences of group losses that a study bounds."""

    names: Sequence[str]
    contrast: Array  # (m, G) weights of the group losses
    bound: Array  # (m,)
    absolute: bool  # whether the size of a difference is bounded, not the difference

    @staticmethod
    def of(card: Card) -> BoundedGaps:
        """Gaps as the card keeps them; nothing else in tables and figures reads a constraint."""
        gaps = card.gaps
        return BoundedGaps(
            gaps["names"], np.array(gaps["contrast"]), np.array(gaps["bound"]), gaps["absolute"]
        )

    def values(self, losses: Array) -> Array:
        """(..., m) of group losses (..., G)."""
        with np.errstate(invalid="ignore"):  # inf - inf, of a run that diverged
            values: Array = losses @ self.contrast.T
        return np.abs(values) if self.absolute else values

    def gap(self, losses: Array) -> Array:
        """(...,) of two groups: the first one's loss minus the second's; of more: the largest of
        the values."""
        if self.contrast.shape[1] > 2:
            return np.asarray(self.values(losses).max(-1))
        with np.errstate(invalid="ignore"):
            return np.asarray(losses[..., 0] - losses[..., 1])

    def violation(self, losses: Array) -> Array:
        """(...,) the largest excess over the bound, at least 0."""
        return np.asarray(np.maximum(self.values(losses) - self.bound, 0.0).max(-1))

    @cached_property
    def limits(self) -> dict[str, tuple[float, ...]]:
        """Bounds of each gap; a difference and its negative, where both are bounded alike, are one
        gap."""
        found: dict[str, tuple[float, ...]] = {}
        for i, name in enumerate(self.names):
            negative = [np.allclose(self.contrast[j], -self.contrast[i]) for j in range(i)]
            same = [j for j in range(i) if negative[j] and self.bound[j] == self.bound[i]]
            if same and not self.absolute:
                found[self.names[same[0]]] = (float(self.bound[i]), -float(self.bound[i]))
            else:
                found[name] = (float(self.bound[i]),)
        return found


class RunResult(NamedTuple):
    """A run of the study, and what the store has of it."""

    run: StoredRun
    result: StoredResult | None  # None: missing


@dataclass(frozen=True, eq=False)
class Results:
    """The stored runs of a study on a table."""

    study: StoredStudy
    folder: Path  # of the store
    # by entry: all that were asked, those without results too
    runs: Mapping[str, Sequence[RunResult]]

    @staticmethod
    def read(study: StoredStudy, store: Store) -> Results:
        runs: dict[str, list[RunResult]] = {entry.name: [] for entry in study.entries}
        for run, result in study.results(store):
            runs[run.entry].append(RunResult(run, result))
        return Results(study, store.folder, runs)

    @property
    def card(self) -> Card:
        return self.study.cards[0]

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return self.card.group_names

    @property
    def definition(self) -> Literal["reported", "printed"]:
        """Definition of Ind, Sp and Sf: that of the paper's results, which is for two groups; for
        more, that of its text."""
        return "reported" if len(self.groups) == 2 else "printed"

    @property
    def metrics(self) -> dict[str, str]:
        """The paper's names of the metrics, and the columns of `final` that hold them."""
        return {
            "Ind": f"independence_{self.definition}",
            "Sp": f"separation_{self.definition}",
            "Ina": "inaccuracy",
            "Sf": f"sufficiency_{self.definition}",
            "Wd": "wd",
        }

    @property
    def bound(self) -> float:
        return float(self.card.bound or 0.0)

    @property
    def tuning(self) -> bool:
        """Whether the study chooses settings, on the validation split."""
        return self.study.last_states > 1

    @property
    def equal_examples(self) -> bool:
        """Whether all entries pass as many examples through the model, within whichever budget."""
        return all(entry.steps == entry.equal_steps for entry in self.study.entries)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """CPU seconds of a step of one run, the median over the runs of an entry, which were
        computed together."""
        noted = {
            entry: [
                r.made["step_seconds"]
                for _, r in runs
                if r is not None and "step_seconds" in r.made
            ]
            for entry, runs in self.runs.items()
        }
        return {entry: float(np.median(some)) for entry, some in noted.items() if some}

    @cached_property
    def decisions(self) -> dict[str, Counter[str]]:
        """Verdicts on held-out examples by row, counted over its runs; rows that were not tested
        are missing."""
        tested = {
            row: [r.tables["heldout"] for r in some if "heldout" in r.tables]
            for row, some in self.stored.items()
        }
        return {
            row: Counter(str(one["decision"][0]) for one in some)
            for row, some in tested.items()
            if some
        }

    @cached_property
    def short(self) -> str:
        """Say in what these runs are fewer or shorter than the study's; empty where they are
        not."""
        study = self.study
        whole = [
            entry.own_steps if self.study.budget == "paper" else entry.equal_steps
            for entry in study.entries
        ]
        steps = [entry.steps for entry in study.entries]
        runs, all_runs = study.seeds * study.splits, study.whole_seeds * study.splits
        found = [f"{runs} of {all_runs} runs of a method"] if runs < all_runs else []
        if any(here < of for here, of in zip(steps, whole, strict=True)):
            found.append(f"at most {max(steps):,} of {max(whole):,} steps")
        return ", ".join(found)

    def paper(self, entry: EntryInfo) -> Paper:
        """What the paper prints for an entry; nothing beside a short run or within another budget
        than its own."""
        return Paper({}, {}, {}) if self.short or self.study.budget != "paper" else entry.paper

    @cached_property
    def gaps(self) -> BoundedGaps:
        return BoundedGaps.of(self.card)

    @cached_property
    def stored(self) -> dict[str, list[StoredResult]]:
        """Results by row, of the rows that have one; a store without any is refused."""
        results = {
            row: [run.result for run in runs if run.result is not None]
            for row, runs in self.runs.items()
        }
        found = {row: there for row, there in results.items() if there}
        if not found:
            name = self.study.name
            raise ValueError(
                f"{self.folder} holds none of the runs of {name}; "
                f"compute them first: fairbound run {name} --out {self.folder}"
            )
        return found

    def rows(self) -> pd.DataFrame:
        """Number of stored runs and steps of a run, by row."""
        counts = {
            row: sum(run.result is not None for run in runs) for row, runs in self.runs.items()
        }
        steps = {entry.name: entry.steps for entry in self.study.entries}
        return pd.DataFrame({"runs": pd.Series(counts), "steps": pd.Series(steps)})

    @cached_property
    def final(self) -> pd.DataFrame:
        """Columns row, seed, split, part, loss, gap, violation, accuracy, w1, wd, wd_logits, and
        every metric of `fairbound.metrics.fairness_metrics`."""
        lines = [
            {
                "row": row,
                "seed": one.run.seed,
                "split": one.run.split,
                "part": part,
                **self._final(one.result, part),
            }
            for row, runs in self.runs.items()
            for one in runs
            if one.result is not None
            for part in self.study.measured
        ]
        empty = pd.DataFrame(columns=["row", "seed", "split", "part", *QUANTITIES])
        return pd.DataFrame(lines) if lines else empty.astype(dict.fromkeys(QUANTITIES, float))

    def _final(self, result: StoredResult, part: str) -> dict[str, float]:
        """Numbers at the end of one run on one part."""
        last = result.tables["records"][part][-self.study.last_states :].astype(np.float64)
        groups = last[:, 1:]  # (states, G)
        measured = {
            LOSS: last[:, 0],
            "gap": self.gaps.gap(groups),
            "violation": self.gaps.violation(groups),
        }
        end = result.tables["parts"]
        at = end["part"].tolist().index(part)
        return (
            {name: _or_infinite(_mean(states)) for name, states in measured.items()}
            | {"accuracy": float(np.trace(end["counts"][at].sum(0)) / end["counts"][at].sum())}
            | _metrics(end["counts"][at], self.groups)
            | {name: _largest(end[name][at]) for name in ("w1", "wd", "wd_logits")}
        )

    def summary(self, part: str) -> pd.DataFrame:
        """Loss, gap and violation by row: columns (name, "mean") and (name, "std")."""
        return mean_std(
            self.final[self.final["part"] == part].groupby("row", sort=False)[QUANTITIES]
        )

    def curves(self, parts: Sequence[str]) -> pd.DataFrame:
        """Columns row, part, quantity ("loss", or the name of a gap), step, mean, low, high
        (quartiles), runs."""
        absent = [part for part in parts if part not in self.study.measured]
        if absent:
            name, there = self.study.name, ", ".join(self.study.measured)
            raise ValueError(f"{name} was not measured on {absent[0]!r}; its parts are {there}")
        frames = []
        for row, results in self.stored.items():
            labels = {
                "row": row,
                "step": results[0].tables["records"]["step"],
                "runs": len(results),
            }
            for part in parts:
                losses = np.array(
                    [result.tables["records"][part] for result in results], dtype=np.float64
                )
                gaps = dict(
                    zip(
                        self.gaps.names,
                        np.moveaxis(self.gaps.values(losses[..., 1:]), -1, 0),
                        strict=True,
                    )
                )
                for quantity in (LOSS, *self.gaps.limits):
                    # (runs, records)
                    values = losses[..., 0] if quantity == LOSS else gaps[quantity]
                    with np.errstate(invalid="ignore"):  # a run that diverged to infinity
                        low, high = np.quantile(values, (0.25, 0.75), axis=0)
                        measured = {"mean": values.mean(0), "low": low, "high": high}
                    frames.append(
                        pd.DataFrame(labels | {"part": part, "quantity": quantity} | measured)
                    )
        return pd.concat(frames, ignore_index=True)

    def histograms(self, parts: Sequence[str]) -> pd.DataFrame:
        """Columns row, part, group, low, high (the ends of a bin), share of the group in it, mean
        over runs."""
        frames = []
        for row, results in self.stored.items():
            stored = results[0].tables["parts"]["part"].tolist()
            for part in parts:
                counts = np.array(
                    [result.tables["parts"]["histogram"][stored.index(part)] for result in results]
                )
                shares = (counts / np.maximum(counts.sum(-1, keepdims=True), 1)).mean(
                    0
                )  # of a group without examples 0
                edges = np.linspace(0.0, 1.0, shares.shape[1] + 1)
                for group, share in zip(self.groups, shares, strict=True):
                    bins = {"low": edges[:-1], "high": edges[1:], "share": share}
                    frames.append(pd.DataFrame({"row": row, "part": part, "group": group} | bins))
        return pd.concat(frames, ignore_index=True)

    def notes(self) -> tuple[str, ...]:
        """Notes on where the data come from, and in what the runs are not those of the study."""
        missing = {row: sum(run.result is None for run in runs) for row, runs in self.runs.items()}
        missed = [
            f"{row} ({count} of {len(self.runs[row])} runs)"
            for row, count in missing.items()
            if count
        ]
        lengths = [
            f"{entry.name} {entry.steps:,} for {entry.own_steps:,}"
            for entry in self.study.entries
            if entry.steps != entry.own_steps
        ]
        return (
            f"Data: {self.card.data}.",
            *([f"Missing from the store: {', '.join(missed)}."] if missed else []),
            *(
                [f"Other numbers of steps than the study's: {', '.join(lengths)}."]
                if lengths
                else []
            ),
        )

    def gap_in_words(self) -> str:
        """What the column "gap" measures."""
        first, second, *others = self.groups
        return (
            "the largest of the constraints' gaps"
            if others
            else f"loss of {first} minus loss of {second}"
        )


def decided(counts: Mapping[str, int]) -> str:
    """
    >>> decided(Counter(undecided=1, holds=4))
    '4 holds, 1 undecided'
    """
    return ", ".join(f"{counts[decision]} {decision}" for decision in DECISIONS if counts[decision])


class ReportItem(NamedTuple):
    """A table or a figure of a study: an entry of `tables.TABLES` or `plots.PLOTS`."""

    heading: str  # in the contents up to its first comma
    applies: Callable[[Results], bool]
    make: Callable[[Results], Any]  # a ReportTable, or a matplotlib figure


def mean_std(grouped: Any) -> pd.DataFrame:
    """Columns (name, "mean") and (name, "std") of a pandas group-by; undefined values are skipped.

    The standard deviation of a single value is 0; where a value is infinite, both are.

    >>> mean_std(pd.DataFrame({"row": ["a", "a", "b"], "loss": [1.0, 3.0, 5.0]}).groupby("row"))[
    ...     "loss", "std"
    ... ].tolist()
    [1.4142135623730951, 0.0]
    """
    found = grouped.agg(["mean", "std"])
    for name in found.columns.unique(0):
        mean = found[name, "mean"]
        std = found[name, "std"].fillna(0.0).mask(np.isinf(mean), math.inf)
        found[name, "std"] = std.where(mean.notna())
    return found


def student_interval(values: Sequence[float] | Array, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of independent values; NaN for fewer than two, or where one is not
    finite.

    >>> [round(end, 4) for end in student_interval([1.0, 2.0, 3.0])]
    [-0.4841, 4.4841]
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan, math.nan
    half = (
        stats.t.ppf((1 + level) / 2, len(values) - 1)
        * np.std(values, ddof=1)
        / math.sqrt(len(values))
    )
    return float(np.mean(values) - half), float(np.mean(values) + half)


def _metrics(counts: NDArray[Any], groups: Sequence[str]) -> dict[str, float]:
    """Every metric of counts (G, label, prediction); NaN where undefined."""
    weight = torch.as_tensor(counts, dtype=torch.float64)
    found = fairness_metrics(Counts(tuple(groups), weight, weight, weight.long()))
    return {name: math.nan if value is None else value for name, value in found.items()}


def _mean(states: Array) -> float:
    with np.errstate(invalid="ignore"):
        return float(states.mean())


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _largest(distances: NDArray[Any]) -> float:
    """Largest of the distances that are defined."""
    defined = distances[np.isfinite(distances)]
    return float(defined.max()) if len(defined) else math.nan
