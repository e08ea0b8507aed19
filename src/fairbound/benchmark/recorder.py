"""What a cell keeps of a run: losses by group along the way, and everything about its scores at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.benchmark.experiment import Setting
from fairbound.metrics.counts import Counts
from fairbound.metrics.wasserstein import Scores, w1, wd

BINS = 50  # of the score histograms
Columns = dict[str, NDArray[Any]]


class Recorder:
    """Measures a stack of runs on the parts that its experiment names."""

    def __init__(self, setting: Setting, splits: Sequence[int], compiled: bool) -> None:
        self.setting, self.splits = setting, list(splits)
        self.parts = setting.measured()
        self.evaluators = {
            split: setting.evaluator(split, self.parts, compiled) for split in dict.fromkeys(self.splits)
        }
        self.records: list[list[tuple[int, Tensor]]] = [[] for _ in self.splits]  # for each run (step, losses)

    def add(self, step: int, runs: Sequence[int], x: Tensor) -> None:
        """The state of some runs after a step."""
        for split, evaluator in self.evaluators.items():
            own = [place for place, run in enumerate(runs) if self.splits[run] == split]
            if own:
                for place, losses in zip(own, evaluator.losses(x[own]).cpu(), strict=True):
                    self.records[runs[place]].append((step, losses))

    def tables(self, x: Tensor, multipliers: Tensor, skipped: Tensor) -> list[dict[str, Columns]]:
        """For each run the tables of its cell."""
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
        evaluator, data = self.evaluators[self.splits[i]], self.setting.data
        columns: dict[str, list[Any]] = {"part": list(self.parts)}
        for part in self.parts:
            rows = evaluator.split.pool(part)
            logits = evaluator.scores(x, part).cpu()
            labels, groups = data.y[rows].cpu(), data.groups[self.setting.column][rows].cpu()
            for name, value in self._of_scores(logits, labels, groups).items():
                columns.setdefault(name, []).append(value)
        return {name: np.array(column) for name, column in columns.items()}

    def _of_scores(self, logits: Tensor, labels: Tensor, groups: Tensor) -> dict[str, Any]:
        names = self.setting.experiment.groups
        probabilities, raw = (Scores.of(values, groups, names=names) for values in (torch.sigmoid(logits), logits))
        others = range(1, len(names))
        return {
            "counts": Counts.of(labels, logits >= 0, groups, names=names).weight.numpy(),
            "w1": [w1(probabilities, 0, g) for g in others],
            "wd": [_number(wd(probabilities, 0, g)) for g in others],
            "wd_logits": [_number(wd(raw, 0, g)) for g in others],
            "histogram": _histogram(probabilities.values, groups, len(names)),
        }


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _histogram(scores: Tensor, groups: Tensor, count: int) -> NDArray[Any]:
    at = (scores * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(groups * BINS + at, minlength=count * BINS).reshape(count, BINS).numpy()
