"""What is measured of runs that are computed together, along the way (`Recorder`) and at the end.

Of a table the losses of all examples and of each group on the parts of a split, and at the end
everything about the scores; of any problem the loss and the violations over the training examples,
against which a board has its targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.auditing._verdicts import verdict
from fairbound.benchmark.problems._catalog import Instance
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._layouts import GroupedLayout, Term
from fairbound.data._dataset import Dataset, Split
from fairbound.metrics._counts import Counts
from fairbound.metrics._scores import Scores
from fairbound.metrics._wasserstein import w1, wd
from fairbound.training._compile import Compiler
from fairbound.training._records import Record

# in a forward pass: of fewer, the calls cost more than the cache of a CPU's core saves
_EXAMPLES_AT_ONCE = 8_192
_HISTOGRAM_BINS = 50  # of the scores

_Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Losses and scores of many points on the parts of one split.

    An example goes through the model once; sums by part and group are those of every constraint
    (`GroupedLayout`).
    """

    # flat parameters (n,), inputs -> outputs (examples,)
    forward: Callable[[Tensor, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]  # outputs, labels -> (examples,)
    data: Dataset
    group: str  # the column of groups
    split: Split
    parts: tuple[str, ...]  # the pools of the split that are measured
    compiled: bool = False  # pays where the same number of points is measured many times

    def losses(self, x: Tensor) -> Tensor:
        """(R, parts, 1 + G) mean losses of all examples and of each group, at x (R, n)."""
        sums = x.new_zeros(len(x), self._term.cells)
        with torch.no_grad():
            for inputs, labels, cell in self._blocks:
                for total, point in zip(sums, x, strict=True):
                    losses = self._losses(point, inputs, labels)
                    total += GroupedLayout([self._term], [(cell,)], losses).table([losses])[0, 1:-2]
        by_group = sums.unflatten(1, (len(self.parts), -1))
        sizes = (
            torch.bincount(self._cells, minlength=self._term.cells)
            .reshape(len(self.parts), -1)
            .to(sums)
        )
        overall = by_group.sum(-1) / sizes.sum(-1)
        return torch.cat([overall[..., None], by_group / sizes.clamp(min=1.0)], -1)

    def scores(self, x: Tensor, part: str) -> Tensor:
        """(examples of the part,) outputs of the model at x (n,)."""
        with torch.no_grad():
            return torch.cat(
                [
                    self.forward(x, self.data.X[examples])
                    for examples in self.split.pool(part).split(_EXAMPLES_AT_ONCE)
                ]
            )

    @cached_property
    def _losses(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Function for the losses of one run on one block: compiled once for all batches of runs,
        whatever their size."""

        def losses(x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            return self.loss(self.forward(x, inputs), labels)

        return Compiler(self.forward, forced=False)(losses, "losses") if self.compiled else losses

    @cached_property
    def _blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and cells of all examples in blocks of one size; what fills up the last is
        in no cell."""
        count = -(-len(self._examples) // _EXAMPLES_AT_ONCE)
        size = -(-len(self._examples) // count)
        missing = count * size - len(self._examples)
        examples = torch.cat([self._examples, self._examples[:1].expand(missing)])
        cells = torch.cat([self._cells, self._cells.new_full((missing,), self._term.cells)])
        blocks = zip(examples.split(size), cells.split(size), strict=True)
        return [(self.data.X[block], self.data.y[block], cell) for block, cell in blocks]

    @cached_property
    def _examples(self) -> Tensor:
        """(N,) the examples that are measured, part after part."""
        return torch.cat([self.split.pool(part) for part in self.parts])

    @cached_property
    def _groups(self) -> int:
        return int(self.data.groups[self.group].max()) + 1

    @cached_property
    def _term(self) -> Term:
        """The losses, by part and group."""
        return Term(0, len(self.parts) * self._groups)

    @cached_property
    def _cells(self) -> Tensor:
        """(N,) part and group of every example, as one number."""
        sizes = torch.tensor([len(self.split.pool(part)) for part in self.parts])
        part = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(self.data.X.device)
        return part * self._groups + self.data.groups[self.group][self._examples]


# of a split, some runs of a record: (runs, ...)
Measure = Callable[[int, Record, list[int]], dict[str, Tensor]]


class Recorder:
    """Keeps what the store will hold of runs that are computed together; `splits` has the split of
    each run."""

    def __init__(self, splits: Sequence[int]) -> None:
        self.splits = list(splits)
        self.rows: list[list[dict[str, Any]]] = [[] for _ in self.splits]  # for each run
        self.stepping = 0.0  # CPU seconds of all steps

    def kept(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"rows": self.rows, "stepping": self.stepping}

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore the records of a batch that goes on from a checkpoint, whose tensors may be on
        another device."""
        self.stepping = kept["stepping"]
        self.rows = [
            [
                {
                    name: value.cpu() if isinstance(value, Tensor) else value
                    for name, value in row.items()
                }
                for row in rows
            ]
            for rows in kept["rows"]
        ]

    def add(self, record: Record, measure: Measure) -> None:
        """The state of some runs after a step."""
        for split in dict.fromkeys(self.splits):
            places = [place for place, run in enumerate(record.runs) if self.splits[run] == split]
            if places:
                columns = {
                    name: column.cpu() for name, column in measure(split, record, places).items()
                }
                for i, place in enumerate(places):
                    row = {name: column[i] for name, column in columns.items()}
                    self.rows[record.runs[place]].append({"step": record.step, **row})

    def records(self, run: int, epochs_per_step: float) -> _Columns:
        """The table of a run, along the way."""
        rows = self.rows[run]
        found = {
            name: (
                torch.stack([row[name] for row in rows]).numpy()
                if name != "step"
                else np.array([r[name] for r in rows])
            )
            for name in rows[0]
        }
        return found | {"epochs": epochs_per_step * found["step"]}


def by_group(evaluators: Mapping[int, Evaluator]) -> Measure:
    """Mean losses of all examples and of each group (1 + G), on every part of the split; of the
    last iterates."""

    def measure(split: int, record: Record, places: list[int]) -> dict[str, Tensor]:
        losses = evaluators[split].losses(record.x[places])
        return {part: losses[:, i] for i, part in enumerate(evaluators[split].parts)}

    return measure


def against_targets(instance: Instance, starts: Tensor) -> Measure:
    """Loss and violations over all training examples, in the constraints' units as stated; of the
    outputs."""

    def measure(split: int, record: Record, places: list[int]) -> dict[str, Tensor]:
        x = record.output[places]
        found = instance.problem.evaluate(x, instance.splits[split].train)
        positive = instance.violations(found.c) / instance.scale
        columns = {
            "loss": found.loss,
            "violation": positive.amax(-1),
            "mean_violation": positive.mean(-1),
        }
        if instance.solution is not None:
            exact = instance.solution.x
            columns["distance"] = (x - exact).norm(dim=-1) / (starts[0] - exact).norm()
        return {name: column.double() for name, column in columns.items()}

    return measure


def parts_at_end(evaluator: Evaluator, x: Tensor) -> _Columns:
    """Measurements by part at the end x (n,) of a run: counts (G, 2, 2), W1, Wd of the first group
    and the others, histograms."""
    data, names = evaluator.data, evaluator.data.levels[evaluator.group]
    columns: dict[str, list[Any]] = {"part": list(evaluator.parts)}
    for part in evaluator.parts:
        examples = evaluator.split.pool(part)
        # of a run that diverged: its losses say so
        logits = torch.nan_to_num(evaluator.scores(x, part).cpu())
        labels, groups = data.y[examples].cpu(), data.groups[evaluator.group][examples].cpu()
        for name, value in _of_scores(logits, labels, groups, names).items():
            columns.setdefault(name, []).append(value)
    return {name: np.array(column) for name, column in columns.items()}


def held_out(instance: Instance, split: int, x: Tensor) -> _Columns:
    """Loss, violation, accuracy and verdict at the end x (n,) of a run, on the held-out examples of
    its split."""
    test, problem = instance.splits[split].test, instance.problem
    at_end = problem.evaluate(x, test)
    with torch.no_grad():
        outputs, labels = problem.forward(x, problem.data.X[test]), problem.data.y[test]
        losses = problem.loss(outputs, labels)
    (constraint,) = problem.constraints.parts
    decision = "undecided"
    if isinstance(constraint, Constraint) and bool(torch.isfinite(losses).all()):
        groups = next(iter(problem.data.groups.values()))[test]
        unbound = replace(constraint, cells=replace(constraint.cells, members=None))
        decision = verdict(unbound, groups, losses=losses, outputs=outputs, labels=labels).decision
    right = ((outputs > 0) == (labels > 0.5)).double().mean()
    return {
        "loss": np.array([float(at_end.loss[0])]),
        "violation": np.array([float((instance.violations(at_end.c) / instance.scale).amax())]),
        "accuracy": np.array([float(right)]),
        "decision": np.array([decision]),
    }


def multiplier_distance(instance: Instance, y: Tensor) -> float:
    """|y - y*| / max(1, |y*|) of multipliers (m,); NaN where y* is not known."""
    solution = instance.solution
    if solution is None or solution.y is None:
        return math.nan
    return float((y - solution.y).norm() / max(1.0, float(solution.y.norm())))


def _of_scores(
    logits: Tensor, labels: Tensor, groups: Tensor, names: Sequence[str]
) -> dict[str, Any]:
    probabilities, raw = (
        Scores.of(values, groups, names=names) for values in (torch.sigmoid(logits), logits)
    )
    others = range(1, len(names))
    return {
        "counts": Counts.of(labels, logits > 0, groups, names=names).weight.numpy(),
        "w1": [w1(probabilities, 0, g) for g in others],
        "wd": [_number(wd(probabilities, 0, g)) for g in others],
        "wd_logits": [_number(wd(raw, 0, g)) for g in others],
        "histogram": _histogram(probabilities),
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _histogram(scores: Scores) -> NDArray[Any]:
    bins = (scores.values * _HISTOGRAM_BINS).long().clamp(0, _HISTOGRAM_BINS - 1)
    return scores.binned(bins, _HISTOGRAM_BINS, scores.examples[0]).long().numpy()
