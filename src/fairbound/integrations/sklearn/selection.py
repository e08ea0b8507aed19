"""The candidates of a fit: models and corrections, made and chosen on development data.

1. A model is cross-fitted without any constraint. It is the only candidate where it is within the bounds, tightened by
   their standard errors on out-of-fold data.
2. The leverage of group weights is measured. For bounds on the losses themselves, models are trained with such weights.
3. A second model is cross-fitted for the probability of each group, unless the group may be used at prediction.
4. Corrections of the scores are chosen on out-of-fold data: for the tightened bounds, and for stricter ones.
5. Candidates that are worse than the unconstrained model in violation and in accuracy are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    no_correction,
    standard_errors,
)
from fairbound.integrations.sklearn.cross_fitting import CrossFit, CrossFitted, Development
from fairbound.integrations.sklearn.inputs import is_difference
from fairbound.integrations.sklearn.leverage import Leverage, measure_leverage
from fairbound.integrations.sklearn.membership import Membership, fit_membership

MAX_LEVERAGE_GROUPS = 6  # a model each
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
    value: Evaluated  # out of fold


class Selection(NamedTuple):
    """The candidates that development data give."""

    candidates: list[Candidate]  # the most corrected first, the unconstrained model last
    chosen: Candidate  # the least corrected for the tightened bounds
    plain_scores: Scores  # of the unconstrained model, out of fold
    base_scores: Scores  # of the model of all other candidates
    membership: Membership | None = None  # None where no scores are corrected
    leverage: Leverage | None = None


@dataclass(frozen=True, eq=False)
class CandidateSearch:
    """The models of a fit, and the search for candidates among them."""

    constraints: tuple[Constraint, ...]
    data: Development
    classes: int
    cross_fit: CrossFit
    group_at_prediction: bool
    retrainable: bool  # whether models can be trained with other weights

    def run(self) -> Selection:
        nothing = no_correction(self.constraints)
        plain = self._fit(self.data.train_weight, main=True)
        unconstrained = Candidate("unconstrained", plain, nothing, self._evaluate(plain))
        scores = self._scores(plain)
        margin = margins(self.constraints, scores) if self.constraints else torch.zeros(0)
        if not bool((unconstrained.value.c > -margin).any()):
            return Selection([unconstrained], unconstrained, scores, scores)
        rows = ConstraintRows.of(self.constraints)
        leverage = self._measure_leverage(unconstrained.value) if self.retrainable else None
        base = self._reweight(unconstrained, rows.weighted, margin) if self.retrainable else plain
        candidates, base_scores, membership = [unconstrained], self._scores(base), None
        if base is not plain:
            candidates.insert(0, Candidate("re-weighted", base, nothing, self._evaluate(base)))
        chosen = candidates[0]
        if rows.correctable:
            membership, group_logits = self._fit_membership()
            ratios = membership.ratios(base.out_of_fold, group_logits, self.data.groups)
            base_scores = base_scores._replace(ratios=ratios)
            path = correction_path(self.constraints, base_scores, margin)
            corrected = [
                Candidate(f"corrected, strictness {strictness:g}", base, correction, evaluate(correction, base_scores))
                for strictness, correction in zip(STRICTNESS, path, strict=True)
            ]
            candidates, chosen = [*reversed(corrected), *candidates], corrected[0]
        candidates = drop_worse(candidates)
        chosen = next((candidate for candidate in candidates if candidate is chosen), unconstrained)
        return Selection(candidates, chosen, scores, base_scores, membership, leverage)

    def _fit(self, weight: Tensor | None, *, main: bool) -> CrossFitted:
        """Models of the label."""
        return self.cross_fit(self.data, self.data.labels, self.classes, weight, main=main)

    def _scores(self, fitted: CrossFitted) -> Scores:
        """Of a model, out of fold, for evaluation without a correction."""
        return Scores(fitted.out_of_fold, (), self.data.labels, self.data.groups, self.data.weight)

    def _evaluate(self, fitted: CrossFitted) -> Evaluated:
        """A model without correction, out of fold."""
        return evaluate(no_correction(self.constraints), self._scores(fitted))

    def _reweight(self, unconstrained: Candidate, rows: Tensor, margin: Tensor) -> CrossFitted:
        """The model with the best weights of the groups; the plain one where weights serve no violated constraint."""
        if not bool((rows & (unconstrained.value.c > -margin)).any()):
            return unconstrained.fitted

        def fit(mu: Tensor) -> CrossFitted:
            weight = group_weights(self.constraints, mu, self.data.groups, self.data.labels)
            return self._fit(self._times_train_weight(weight), main=True)

        return reweighted(rows, unconstrained.fitted, margin, self._evaluate, fit)

    def _times_train_weight(self, weight: Tensor) -> Tensor:
        return weight if self.data.train_weight is None else weight * self.data.train_weight

    def _measure_leverage(self, unweighted: Evaluated) -> Leverage | None:
        """None where there are too many groups, or too few examples without one of them."""
        data = self.data
        columns = {constraint.by or "" for constraint in self.constraints if constraint.cells.needs_groups}
        sizes = {by: int(data.groups[by].max()) + 1 for by in columns}
        if not columns or max(sizes.values()) > MAX_LEVERAGE_GROUPS or min(sizes.values()) < 2:
            return None
        enough = 10 * (int(data.fold.max()) + 1)
        for by, count in sizes.items():
            for group in range(count):
                others = data.labels[data.groups[by] != group]
                if len(others) < enough or torch.bincount(others).min() < enough:
                    return None

        def without(by: str, group: int) -> Evaluated:
            weight = self._times_train_weight((data.groups[by] != group).double())
            return self._evaluate(self._fit(weight, main=False))

        return measure_leverage(self.constraints, unweighted, without)

    def _fit_membership(self) -> tuple[Membership, dict[str, Tensor]]:
        """Models of the groups, and their out-of-fold logits; none where the group is used at prediction."""
        data = self.data

        def models(target: Tensor, classes: int) -> CrossFitted:
            return self.cross_fit(data, target, classes, data.weight, main=False)

        cross_fit = None if self.group_at_prediction else models
        return fit_membership(self.constraints, data.groups, data.labels, self.classes, cross_fit)


class ConstraintRows(NamedTuple):
    """(m,) each, of all constraints, one after the other."""

    difference: Tensor  # whether it compares cells
    equality: Tensor
    loss: Tensor  # whether it is about losses
    bound: Tensor

    @staticmethod
    def of(constraints: Sequence[Constraint]) -> ConstraintRows:
        return ConstraintRows(
            torch.cat([is_difference(constraint) for constraint in constraints]),
            torch.cat([torch.full((constraint.m,), constraint.equality) for constraint in constraints]),
            torch.cat([torch.full((constraint.m,), constraint.statistic is None) for constraint in constraints]),
            torch.cat([constraint.bound.double() for constraint in constraints]),
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
    path: list[Correction] = []
    for strictness in STRICTNESS:
        tightening = torch.where(rows.equality, 0.0, torch.lerp(margin, strict, strictness))
        path.append(fit_correction(constraints, scores, tightening, path[-1] if path else None))
    return path


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
    best, best_value = plain, evaluated(plain)
    mu, step = torch.zeros(len(margin), dtype=torch.float64), WEIGHT_STEP / max(best_value.loss, 1e-12)
    for _ in range(REWEIGHTINGS):
        tried = (mu + step * (best_value.c + margin) * rows).clamp(min=0)
        fitted = fit(tried)
        value = evaluated(fitted)
        if _key(value, margin) < _key(best_value, margin):
            best, best_value, mu = fitted, value, tried
        else:  # too far: where weights have much leverage, longer steps swing from one group to the other
            step /= 2
    return best


def group_weights(constraints: Sequence[Constraint], mu: Tensor, groups: dict[str, Tensor], labels: Tensor) -> Tensor:
    """(n,) w = 1 + (M'mu) / share, over the cells that an example is in."""
    weight = torch.ones(len(labels), dtype=torch.float64)
    mus = mu.split([constraint.m for constraint in constraints])
    for constraint, multipliers in zip(constraints, mus, strict=True):
        by_cell = constraint.contrast.to(mu.device, mu.dtype).transpose(multipliers)
        cells = constraint.cells.bind(groups[constraint.by or ""], labels).examples
        for cell, value in zip(cells, by_cell.tolist(), strict=True):
            weight[cell] += value * len(weight) / max(len(cell), 1)
    return weight.clamp(*WEIGHTS)


def drop_worse(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those that are worse, in violation and in accuracy, than the last one, the unconstrained model."""
    plain = candidates[-1].value
    return [c for c in candidates if c.value.violation < plain.violation or c.value.accuracy >= plain.accuracy]


def _key(value: Evaluated, margin: Tensor) -> tuple[float, float]:
    excess = torch.where(value.c.isnan(), 0.0, value.c + margin)
    return max(0.0, round(float(excess.max()), 3)), value.loss
