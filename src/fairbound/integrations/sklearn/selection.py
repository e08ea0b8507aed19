"""What is chosen on out-of-fold data: margins, weights of the groups, the path of corrections, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.integrations.sklearn.corrections import (
    Correction,
    Evaluated,
    Scores,
    evaluate,
    fit_correction,
    standard_errors,
)
from fairbound.integrations.sklearn.cross_fitting import CrossFitted
from fairbound.integrations.sklearn.inputs import is_difference

STRICTNESS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # of the path: from the tightened bounds to no difference at all
MARGIN_ERRORS = 2.0  # standard errors by which bounds are tightened, as the Seldonian toolkit does
LEVEL_MARGINS = 2.0  # such margins inside a bound on a level (a rate, a loss), at the strict end of the path
REWEIGHTINGS = 4  # models with other weights of the groups
WEIGHT_STEP = 1.0  # of their multipliers, in units of the unweighted model's loss
WEIGHTS = (0.1, 10.0)  # smallest and largest weight of a group: no negative ones, which would pay for harm


class Candidate(NamedTuple):
    """A model with its correction."""

    name: str
    fitted: CrossFitted
    correction: Correction


class ConstraintRows(NamedTuple):
    """(m,) each, of all constraints, one after the other."""

    difference: Tensor  # whether it compares cells
    equality: Tensor
    loss: Tensor  # whether it is about losses
    bound: Tensor

    @staticmethod
    def of(constraints: Sequence[Constraint]) -> ConstraintRows:
        return ConstraintRows(
            torch.cat([is_difference(one) for one in constraints]),
            torch.cat([torch.full((one.m,), one.equality) for one in constraints]),
            torch.cat([torch.full((one.m,), one.statistic is None) for one in constraints]),
            torch.cat([one.bound.double() for one in constraints]),
        )

    @property
    def correctable(self) -> bool:
        """Whether a correction of scores can help: rates, and differences of losses; not bounds on losses."""
        return bool((self.difference | ~self.loss).any())

    @property
    def weighted(self) -> Tensor:
        """(m,) the constraints that weights of the groups serve: bounds on losses, not differences of losses.

        Differences are left to corrections, which change no decision. On KS weights can narrow the loss gap between the
        sexes, but they cost 0.5 (networks) to 1.4 (LightGBM) points of accuracy.
        """
        return self.loss & ~self.difference


def margins(constraints: Sequence[Constraint], scores: Scores) -> Tensor:
    """(m,) by which bounds are tightened: standard errors, at most the bound of a difference; 0 for equalities."""
    rows, errors = ConstraintRows.of(constraints), MARGIN_ERRORS * standard_errors(constraints, scores)
    return torch.where(rows.equality, 0.0, torch.where(rows.difference, torch.minimum(errors, rows.bound), errors))


def correction_path(constraints: Sequence[Constraint], scores: Scores, margin: Tensor) -> list[Correction]:
    """Corrections from the tightened bounds to the strictest, one for every `STRICTNESS`."""
    rows = ConstraintRows.of(constraints)
    strict = torch.where(rows.difference, rows.bound, LEVEL_MARGINS * margin).maximum(margin)
    found: list[Correction] = []
    for strictness in STRICTNESS:
        wanted = torch.where(rows.equality, 0.0, torch.lerp(margin, strict, strictness))
        found.append(fit_correction(constraints, scores, wanted, found[-1] if found else None))
    return found


def reweighted(
    rows: Tensor,
    plain: CrossFitted,
    margin: Tensor,
    evaluated: Callable[[CrossFitted], Evaluated],
    fit: Callable[[Tensor], CrossFitted],
) -> CrossFitted:
    """The best of some models whose group weights follow the multipliers, or the plain one.

    rows: (m,) the constraints that weights are to serve.
    fit: multipliers (m,) -> the model trained with their weights.
    """
    best, found = plain, evaluated(plain)
    mu, step = torch.zeros(len(margin), dtype=torch.float64), WEIGHT_STEP / max(found.loss, 1e-12)
    for _ in range(REWEIGHTINGS):
        tried = (mu + step * (found.c + margin) * rows).clamp(min=0)
        fitted = fit(tried)
        own = evaluated(fitted)
        if _key(own, margin) < _key(found, margin):
            best, found, mu = fitted, own, tried
        else:  # too far: where weights have much leverage, longer steps swing from one group to the other
            step /= 2
    return best


def group_weights(constraints: Sequence[Constraint], mu: Tensor, groups: dict[str, Tensor], labels: Tensor) -> Tensor:
    """(n,) w = 1 + (M'mu) / share, over the cells that an example is in."""
    found = torch.ones(len(labels), dtype=torch.float64)
    for constraint, own in zip(constraints, mu.split([one.m for one in constraints]), strict=True):
        by_cell = constraint.contrast.to(mu.device, mu.dtype).transpose(own)
        cells = constraint.cells.bind(groups[constraint.by or ""], labels).examples
        for cell, value in zip(cells, by_cell.tolist(), strict=True):
            found[cell] += value * len(found) / max(len(cell), 1)
    return found.clamp(*WEIGHTS)


def drop_worse(candidates: Sequence[Candidate], scores: Callable[[Candidate], Scores]) -> list[Candidate]:
    """Without those that out-of-fold data show to be worse, in violation and in accuracy, than the last one."""
    plain = evaluate(candidates[-1].correction, scores(candidates[-1]))
    kept = []
    for one in candidates[:-1]:
        own = evaluate(one.correction, scores(one))
        if own.violation < plain.violation or own.accuracy >= plain.accuracy:
            kept.append(one)
    return [*kept, candidates[-1]]


def _key(found: Evaluated, margin: Tensor) -> tuple[float, float]:
    excess = torch.where(found.c.isnan(), 0.0, found.c + margin)
    return max(0.0, round(float(excess.max()), 3)), found.loss
