"""What the figures of a finished experiment show, read from the store alone: curves along the runs, and their ends.

Rows come in the experiment's order; a row of which no run is stored is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbound.benchmark.count_tables import metrics_of
from fairbound.benchmark.executor import RunBatch
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store
from fairbound.benchmark.summary import runs_by_row

Values = NDArray[np.float64]
Definition = Literal["reported", "printed"]  # of Ind, Sp and Sf: see `fairbound.metrics.fairness_metrics`
LOSS = "loss"


@dataclass(frozen=True, eq=False)
class Gap:
    """A difference of group losses that the experiment bounds."""

    name: str
    contrast: Values  # (G,) weights of the group losses
    bound: float
    absolute: bool  # whether the size of the difference is measured
    two_sided: bool  # whether the negative difference has the same bound

    def of(self, losses: Values) -> Values:
        """(...,) the gap of group losses (..., G)."""
        with np.errstate(invalid="ignore"):  # inf - inf, of a run that diverged
            gap: Values = losses @ self.contrast
        return np.abs(gap) if self.absolute else gap

    @property
    def limits(self) -> tuple[float, ...]:
        """Where the gap is held."""
        return (self.bound, -self.bound) if self.two_sided else (self.bound,)


class Band(NamedTuple):
    """Over runs, at every record."""

    mean: Values
    low: Values  # first quartile
    high: Values  # third quartile

    @staticmethod
    def of(runs: Values) -> Band:
        """Of (runs, records).

        >>> Band.of(np.array([[0.0], [1.0], [2.0], [9.0]]))
        Band(mean=array([3.]), low=array([0.75]), high=array([3.75]))
        """
        with np.errstate(invalid="ignore"):  # a run that diverged to infinity
            return Band(runs.mean(0), np.quantile(runs, 0.25, axis=0), np.quantile(runs, 0.75, axis=0))


@dataclass(frozen=True, eq=False)
class Curve:
    """The runs of a row along their steps."""

    step: NDArray[np.int64]  # (records,)
    runs: int
    measured: Mapping[str, Mapping[str, Band]]  # by part, then "loss" and the names of the gaps


@dataclass(frozen=True, eq=False)
class Ending:
    """The last state of a row's runs, means over them."""

    runs: int
    scores: Mapping[str, Values]  # by part: (G, bins) shares of each group, the bins even between 0 and 1
    metrics: Mapping[
        str, Mapping[str, float]
    ]  # by part: Ind, Sp, Ina, Sf, Wd, DifAcc; NaN where undefined in every run


def gaps(prepared: PreparedExperiment) -> list[Gap]:
    """What the experiment bounds; a difference and its negative, where both are bounded alike, are one gap."""
    constraint = prepared.constraint(prepared.experiment.notion, prepared.experiment.bound)
    found: list[Gap] = []
    listed = zip(constraint.names, constraint.contrast.matrix().numpy(), constraint.bound.tolist(), strict=True)
    for name, contrast, bound in listed:
        mirrored = [i for i, gap in enumerate(found) if _mirrored(gap, contrast, bound)]
        if mirrored:
            first = found[mirrored[0]]
            found[mirrored[0]] = Gap(first.name, first.contrast, first.bound, first.absolute, two_sided=True)
        else:
            found.append(Gap(name, contrast, bound, constraint.absolute, two_sided=False))
    return found


def _mirrored(gap: Gap, contrast: Values, bound: float) -> bool:
    return not gap.absolute and gap.bound == bound and np.allclose(gap.contrast, -contrast)


def curves(prepared: PreparedExperiment, store: Store, planned: Sequence[RunBatch]) -> dict[str, Curve]:
    """Of every row that has a stored run: loss and gaps on the parts that are measured along it, mean and quartiles
    over seeds and splits."""
    bounded, parts = gaps(prepared), prepared.measured()
    return {name: _curve(cells, bounded, parts) for name, cells in _by_row(prepared, store, planned).items()}


def endings(
    prepared: PreparedExperiment,
    store: Store,
    planned: Sequence[RunBatch],
    definition: Definition | None = None,
    parts: Sequence[str] | None = None,
) -> dict[str, Ending]:
    """Of every row that has a stored run: scores and fairness at the end, on these parts of the split or on all.

    Metrics are by default those of the paper's results, and as printed where these are undefined: with three groups
    or more.
    """
    groups = prepared.experiment.groups
    if definition is None:
        definition = "reported" if len(groups) == 2 else "printed"
    found = _by_row(prepared, store, planned)
    shown = prepared.parts() if parts is None else parts
    return {name: _ending(cells, groups, definition, shown) for name, cells in found.items()}


def _by_row(prepared: PreparedExperiment, store: Store, planned: Sequence[RunBatch]) -> dict[str, list[StoredResult]]:
    found = runs_by_row(prepared, store, planned)
    cells = {name: [run.cell for run in runs if run.cell is not None] for name, runs in found.items()}
    stored = {name: there for name, there in cells.items() if there}
    if not stored:
        raise ValueError(
            f"{store.folder} holds none of the planned runs of {prepared.experiment.name}; "
            f"compute them first: fairbound run {prepared.experiment.name} --out {store.folder}"
        )
    return stored


def _curve(cells: Sequence[StoredResult], bounded: Sequence[Gap], parts: Sequence[str]) -> Curve:
    measured = {}
    for part in parts:
        losses = np.array([cell.tables["records"][part] for cell in cells], dtype=np.float64)  # (runs, records, 1 + G)
        bands = {gap.name: Band.of(gap.of(losses[..., 1:])) for gap in bounded}
        measured[part] = {LOSS: Band.of(losses[..., 0])} | bands
    return Curve(np.asarray(cells[0].tables["records"]["step"]), len(cells), measured)


def _ending(
    cells: Sequence[StoredResult], groups: Sequence[str], definition: Definition, parts: Sequence[str]
) -> Ending:
    stored = cells[0].tables["end"]["part"].tolist()
    scores, metrics = {}, {}
    for part in parts:
        at = stored.index(part)
        scores[part] = np.mean([_shares(cell.tables["end"]["histogram"][at]) for cell in cells], axis=0)
        runs = [_fairness(cell.tables["end"], at, groups, definition) for cell in cells]
        metrics[part] = {name: _over_defined(np.mean, [run[name] for run in runs]) for name in runs[0]}
    return Ending(len(cells), scores, metrics)


def _shares(histogram: NDArray[Any]) -> Values:
    """Of a group without rows: zeros."""
    shares: Values = histogram / np.maximum(histogram.sum(-1, keepdims=True), 1)
    return shares


def _fairness(
    end: Mapping[str, NDArray[Any]], at: int, groups: Sequence[str], definition: Definition
) -> dict[str, float]:
    found = metrics_of(end["counts"][at], groups)
    return {
        "Ind": _number(found[f"independence_{definition}"]),
        "Sp": _number(found[f"separation_{definition}"]),
        "Ina": _number(found["inaccuracy"]),
        "Sf": _number(found[f"sufficiency_{definition}"]),
        "Wd": _over_defined(np.max, end["wd"][at].tolist()),  # of the first group to the farthest
        "DifAcc": _number(found["accuracy_difference"]),
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _over_defined(of: Callable[[Values], Any], numbers: Sequence[float]) -> float:
    defined = np.array([number for number in numbers if np.isfinite(number)])
    return float(of(defined)) if len(defined) else float("nan")
