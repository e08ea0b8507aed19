"""What a benchmark measures of a batch of runs on the parts of a split.

Along the way the losses of all examples and of each group; at the end everything about the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.constraints.layouts import GroupedLayout, Term
from fairbound.data.dataset import Dataset, Split
from fairbound.metrics.counts import Counts
from fairbound.metrics.wasserstein import Scores, w1, wd
from fairbound.training.compile import Compiler

EXAMPLES_AT_ONCE = 8_192  # in a forward pass: of fewer, the calls cost more than the cache of a CPU's core saves
HISTOGRAM_BINS = 50  # of the scores

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Losses and scores of many points on the parts of one split.

    An example goes through the model once; sums by part and group are those of every constraint (`GroupedLayout`).
    """

    forward: Callable[[Tensor, Tensor], Tensor]  # flat parameters (n,), inputs -> outputs (examples,)
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
                    total += GroupedLayout([self._term], [(cell,)], losses).sums([losses])[1:-2]
        by_group = sums.unflatten(1, (len(self.parts), -1))
        sizes = torch.bincount(self._cells, minlength=self._term.cells).reshape(len(self.parts), -1).to(sums)
        overall = by_group.sum(-1) / sizes.sum(-1)
        return torch.cat([overall[..., None], by_group / sizes.clamp(min=1.0)], -1)

    def scores(self, x: Tensor, part: str) -> Tensor:
        """(examples of the part,) outputs of the model at x (n,)."""
        with torch.no_grad():
            return torch.cat(
                [self.forward(x, self.data.X[examples]) for examples in self.split.pool(part).split(EXAMPLES_AT_ONCE)]
            )

    @cached_property
    def _losses(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Of one run on one block: compiled once for all batches of runs, whatever their size."""

        def losses(x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            return self.loss(self.forward(x, inputs), labels)

        return Compiler(self.forward, forced=False)(losses, "losses") if self.compiled else losses

    @cached_property
    def _blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and cells of all examples in blocks of one size; what fills up the last is in no cell."""
        count = -(-len(self._examples) // EXAMPLES_AT_ONCE)
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


class Recorder:
    """Keeps what the store will hold of a batch of runs; `splits` has the split of each run."""

    def __init__(self, evaluators: Mapping[int, Evaluator], splits: Sequence[int]) -> None:
        self.evaluators, self.splits = evaluators, list(splits)
        self.records: list[list[tuple[int, Tensor]]] = [[] for _ in self.splits]  # for each run (step, losses)

    @property
    def parts(self) -> tuple[str, ...]:
        return next(iter(self.evaluators.values())).parts

    def restore(self, records: list[list[tuple[int, Tensor]]]) -> None:
        """Of a batch that goes on from a checkpoint, whose tensors may be on another device."""
        self.records = [[(step, losses.cpu()) for step, losses in own] for own in records]

    def add(self, step: int, runs: Sequence[int], x: Tensor) -> None:
        """The state of some runs after a step."""
        for split, evaluator in self.evaluators.items():
            own = [place for place, run in enumerate(runs) if self.splits[run] == split]
            if own:
                for place, losses in zip(own, evaluator.losses(x[own]).cpu(), strict=True):
                    self.records[runs[place]].append((step, losses))

    def tables(self, x: Tensor, multipliers: Tensor, skipped: Tensor) -> list[dict[str, Columns]]:
        """For each run the tables of its result."""
        multipliers, skipped = multipliers.cpu(), skipped.cpu()
        return [
            {
                "records": self._records(i),
                "end": self._end(i, x[i]),
                "run": {"multipliers": multipliers[i : i + 1].numpy(), "skipped": skipped[i : i + 1].numpy()},
            }
            for i in range(len(self.splits))
        ]

    def _records(self, i: int) -> Columns:
        steps = np.array([step for step, _ in self.records[i]])
        losses = torch.stack([losses for _, losses in self.records[i]])  # (records, parts, 1 + G)
        return {"step": steps} | {part: losses[:, p].numpy() for p, part in enumerate(self.parts)}

    def _end(self, i: int, x: Tensor) -> Columns:
        """By part: counts (G, 2, 2), W1, Wd of the first group and the others, histograms."""
        evaluator = self.evaluators[self.splits[i]]
        data, names = evaluator.data, evaluator.data.levels[evaluator.group]
        columns: dict[str, list[Any]] = {"part": list(self.parts)}
        for part in self.parts:
            examples = evaluator.split.pool(part)
            logits = torch.nan_to_num(evaluator.scores(x, part).cpu())  # of a run that diverged: its losses say so
            labels, groups = data.y[examples].cpu(), data.groups[evaluator.group][examples].cpu()
            for name, value in _of_scores(logits, labels, groups, names).items():
                columns.setdefault(name, []).append(value)
        return {name: np.array(column) for name, column in columns.items()}


def _of_scores(logits: Tensor, labels: Tensor, groups: Tensor, names: Sequence[str]) -> dict[str, Any]:
    probabilities, raw = (Scores.of(values, groups, names=names) for values in (torch.sigmoid(logits), logits))
    others = range(1, len(names))
    return {
        "counts": Counts.of(labels, logits > 0, groups, names=names).weight.numpy(),
        "w1": [w1(probabilities, 0, g) for g in others],
        "wd": [_number(wd(probabilities, 0, g)) for g in others],
        "wd_logits": [_number(wd(raw, 0, g)) for g in others],
        "histogram": _histogram(probabilities.values, groups, len(names)),
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _histogram(scores: Tensor, groups: Tensor, count: int) -> NDArray[Any]:
    bins = (scores * HISTOGRAM_BINS).long().clamp(0, HISTOGRAM_BINS - 1)
    counts = torch.bincount(groups * HISTOGRAM_BINS + bins, minlength=count * HISTOGRAM_BINS)
    return counts.reshape(count, HISTOGRAM_BINS).numpy()
