"""The choice of a model on selection rows: first how far the limits are broken there, then the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.estimating.people import People
from fairbound.fairness.limits import Limit
from fairbound.loop.reading import Plan
from fairbound.loop.rows import Rows

LATE = 0.9  # the share of the steps after which a model may be chosen: before, steps are long and gaps swing
SLACK = 0.5  # violations within so many bounds of the smallest count as equal, and the loss decides
DEAR = 0.015  # accuracy that the other mode may cost


class Seen(NamedTuple):
    """A model on its way, as the selection rows see it."""

    mode: str
    step: int
    loss: float
    accuracy: float
    violation: float  # the largest c, at least 0
    x: Tensor  # (n,)
    multipliers: Tensor | None  # (m,)


class Judge:
    """Looks at models on some rows; rates are the true ones."""

    def __init__(
        self,
        people: People,
        rows: Tensor,
        limit: Limit | None,
        forward: Callable[[Tensor, Tensor], Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.forward, self.loss = forward, loss
        self.X, self.y, self.groups = people.X[rows], people.y[rows], people.groups[rows]
        self.weight = None if people.weight is None else people.weight[rows]
        self.plan = None if limit is None else Plan([limit])

    def seen(self, mode: str, step: int, x: Tensor, multipliers: Tensor | None) -> Seen:
        with torch.no_grad():
            outputs = self.forward(x, self.X)
            losses = self.loss(outputs, self.y)
        right = (_decided(outputs) == self.y).float()
        weight = torch.ones_like(losses) if self.weight is None else self.weight
        accuracy = float((right * weight).sum() / weight.sum())
        loss, violation = float((losses * weight).sum() / weight.sum()), 0.0
        if self.plan is not None:
            rows = Rows(losses, self.groups, self.y, outputs, self.weight)
            c = self.plan.evaluated(self.plan.read(rows, true=True).totals())[1:]
            violation = max(0.0, float(c.nan_to_num(nan=torch.inf).max()))
        return Seen(mode, step, loss, accuracy, violation, x.clone(), multipliers)


def _decided(outputs: Tensor) -> Tensor:
    """The number of the class, in the labels' type for two."""
    return (outputs > 0).to(outputs.dtype) if outputs.ndim == 1 else outputs.argmax(-1)


def chosen(seen: Sequence[Seen], steps: int, scale: float) -> tuple[Seen, str]:
    """The model to keep, and a sentence that says why; `scale` is the bound that violations are held against."""
    modes = list(dict.fromkeys(one.mode for one in seen))
    best = {mode: _best([one for one in seen if one.mode == mode], steps, scale) for mode in modes}
    first = best[modes[0]]
    if len(modes) == 1:
        return first, f"{_words(first)}, the best of its run on selection rows."
    other = best[modes[1]]
    if other.violation < first.violation and other.accuracy >= first.accuracy - DEAR:
        return other, (
            f"{_words(other)}. With multipliers moved by {first.mode} the violation is {first.violation:.3f} at an "
            f"accuracy of {first.accuracy:.3f}: rows of their own keep the limits better."
        )
    return first, (
        f"{_words(first)}. With multipliers moved by {other.mode} the violation is {other.violation:.3f} at an "
        f"accuracy of {other.accuracy:.3f}, which is no gain."
    )


def _best(seen: Sequence[Seen], steps: int, scale: float) -> Seen:
    late = [one for one in seen if one.step >= LATE * steps] or list(seen[-1:])
    least = min(one.violation for one in late)
    return min((one for one in late if one.violation <= least + SLACK * scale), key=lambda one: one.loss)


def _words(one: Seen) -> str:
    who = {"no limit": "No limit", "training rows": "Multipliers moved by training rows"}.get(
        one.mode, "Multipliers moved by rows of their own"
    )
    return f"{who}, step {one.step}: violation {one.violation:.3f}, accuracy {one.accuracy:.3f} on selection rows"
