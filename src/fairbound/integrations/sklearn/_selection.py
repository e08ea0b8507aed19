"""The candidates of a fit: models and corrections, made and chosen on development data.

1. A model is cross-fitted without any constraint. It is the only candidate where it is within the
   bounds, tightened by their standard errors on out-of-fold data.
2. For bounds on the losses themselves, models are trained with other weights of the groups.
3. A second model is cross-fitted for the probability of each group, unless the group may be used at
   prediction.
4. Corrections of the scores are made on out-of-fold data: for the tightened bounds, for stricter
   ones, and for looser ones where the tightened bounds cost more than `max_accuracy_loss`.
5. Of the candidates that cost at most that much and are not constant, the most accurate within the
   stated bounds is chosen; where none is within them, the one that violates them least for the
   accuracy that it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints._constraint import Constraint
from fairbound.integrations.sklearn._corrections import (
    PRICE,
    TOLERANCE,
    CellMeans,
    ConstraintRows,
    Correction,
    Evaluated,
    ScoredExamples,
    evaluate,
    fit_correction,
    no_correction,
)
from fairbound.integrations.sklearn._cross_fitting import CrossFit, CrossFitted, Development
from fairbound.integrations.sklearn._inputs import is_difference
from fairbound.integrations.sklearn._membership import Membership, fit_membership

# of the path: from the tightened bounds to no difference at all
STRICTNESS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
# of the way from the tightened bounds to no correction, where those cost too much accuracy
HALVINGS = 4
CHEAP = 0.002  # accuracy that the margins of small cells may cost
# a class that is decided for less than this share as often as before: a constant rule
CONSTANT = 0.1
MARGIN_ERRORS = 2.0  # standard errors by which bounds are tightened, as the Seldonian toolkit does
# such margins inside a bound on a level (a rate, a loss), at the strict end of the path
LEVEL_MARGINS = 2.0
REWEIGHTINGS = 4  # models with other weights of the groups
WEIGHT_STEP = 1.0  # of their multipliers, in units of the unweighted model's loss
# smallest and largest weight of a group: no negative ones, which would pay for harm
WEIGHTS = (0.1, 10.0)


class Candidate(NamedTuple):
    """A model with its correction."""

    name: str
    fitted: CrossFitted
    correction: Correction
    value: Evaluated  # out of fold


class Selection(NamedTuple):
    """The candidates that development data give."""

    candidates: list[Candidate]  # the most corrected first, the unconstrained model last
    chosen: Candidate
    plain: CellMeans  # of the unconstrained model, out of fold
    base: CellMeans  # of the model of all other candidates
    membership: Membership | None = None  # None where no scores are corrected
    rejected: Sequence[Candidate] = ()  # more corrected ones that cost too much accuracy
    # those that are left out because they decide the same for nearly everybody
    constant: Sequence[Candidate] = ()
    small: tuple[str, ...] = ()  # cells too small for a margin


@dataclass(frozen=True, eq=False)
class CandidateSearch:
    """The models of a fit, and the search for candidates among them."""

    constraints: tuple[Constraint, ...]
    data: Development
    classes: int
    cross_fit: CrossFit
    group_at_prediction: bool
    retrainable: bool  # whether models can be trained with other weights
    max_accuracy_loss: float
    allow_constant: bool

    def run(self) -> Selection:
        nothing = no_correction(self.constraints)
        plain = self._fit_labels()
        plain_means = self._means(plain)
        unconstrained = Candidate("unconstrained", plain, nothing, evaluate(nothing, plain_means))
        margin = (
            margins(plain_means)
            if self.constraints
            else Margins(torch.zeros(0), torch.zeros(0), ())
        )
        exceeded = unconstrained.value.c > -margin.known
        if not bool(exceeded.any()):
            return Selection(
                [unconstrained], unconstrained, plain_means, plain_means, small=margin.small
            )
        rows, candidates, membership = ConstraintRows.of(self.constraints), [unconstrained], None
        # served by weights of the groups; all others by corrections of scores
        levels = rows.loss & ~rows.difference
        base, base_means = plain, plain_means
        if self.retrainable and bool((levels & exceeded).any()):
            base = reweighted(
                levels,
                plain,
                margin.known,
                lambda fitted: evaluate(nothing, self._means(fitted)),
                lambda mu: self._fit_labels(
                    group_weights(self.constraints, mu, self.data.groups, self.data.labels)
                ),
            )
        if base is not plain:
            base_means = self._means(base)
            candidates.insert(
                0, Candidate("re-weighted", base, nothing, evaluate(nothing, base_means))
            )
        if not bool(levels.all()):
            models = None if self.group_at_prediction else self._fit_groups
            membership, group_logits = fit_membership(base_means, self.classes, models)
            ratios = membership.ratios(base.out_of_fold, group_logits, self.data.groups)
            base_means = CellMeans(self.constraints, base_means.scores._replace(ratios=ratios))
            lowest = unconstrained.value.accuracy - self.max_accuracy_loss
            corrected = [
                Candidate(name, base, correction, evaluate(correction, base_means))
                for name, correction in correction_path(base_means, margin, lowest)
            ]
            candidates = [*reversed(corrected), *candidates]
        kept, rejected, constant = self._sorted_out(drop_worse(candidates))
        return Selection(
            kept,
            choose(kept),
            plain_means,
            base_means,
            membership,
            rejected,
            constant,
            margin.small,
        )

    def _sorted_out(
        self, candidates: Sequence[Candidate]
    ) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
        """Candidates that may be returned, those that cost too much, and constant ones."""
        plain = candidates[-1].value
        constant = [
            c
            for c in candidates
            if not self.allow_constant and is_constant(c.value, plain, self.constraints)
        ]
        others = [candidate for candidate in candidates if candidate not in constant]
        rejected = [c for c in others if c.value.accuracy < plain.accuracy - self.max_accuracy_loss]
        return [c for c in others if c not in rejected], rejected, constant

    def _fit_labels(self, weight: Tensor | None = None) -> CrossFitted:
        """Models of the label; the weights (n,) are multiplied by those of the training data."""
        given = self.data.train_weight
        weight = given if weight is None else weight if given is None else weight * given
        return self.cross_fit(self.data, self.data.labels, self.classes, weight, main=True)

    def _fit_groups(self, target: Tensor, classes: int) -> CrossFitted:
        return self.cross_fit(self.data, target, classes, self.data.weight, main=False)

    def _means(self, fitted: CrossFitted) -> CellMeans:
        """Means of a model without a correction, out of fold."""
        data = self.data
        return CellMeans(
            self.constraints,
            ScoredExamples(fitted.out_of_fold, (), data.labels, data.groups, data.weight),
        )


class Margins(NamedTuple):
    """(m,) by which bounds are tightened: standard errors, at most the bound of a difference; 0 for
    equalities."""

    every: Tensor  # 0 for differences that are mostly chance
    known: Tensor  # 0 for all that two standard errors do not tell from 0 within the bound
    small: tuple[str, ...]  # the cells that make them so


def margins(means: CellMeans) -> Margins:
    rows, errors = ConstraintRows.of(means.constraints), MARGIN_ERRORS * means.standard_errors()
    every = torch.where(rows.difference, torch.minimum(errors, means.room), errors)
    every = torch.where(rows.equality, 0.0, every)
    unknown, chance, small = means.unknown(MARGIN_ERRORS)
    return Margins(torch.where(chance, 0.0, every), torch.where(unknown, 0.0, every), small)


def correction_path(
    means: CellMeans, margin: Margins, lowest: float
) -> list[tuple[str, Correction]]:
    """Corrections from looser bounds to the strictest, with their names.

    lowest: the accuracy below which the tightened bounds are given up for looser ones.
    """
    rows = ConstraintRows.of(means.constraints)
    first, cautious = (
        fit_correction(means, tightening) for tightening in (margin.known, margin.every)
    )
    start = margin.known
    if evaluate(cautious, means).accuracy >= evaluate(first, means).accuracy - CHEAP:
        first, start = cautious, margin.every
    path: list[tuple[str, Correction]] = [("corrected, strictness 0", first)]
    strict = torch.where(rows.difference, means.room, LEVEL_MARGINS * margin.every).maximum(start)
    for strictness in STRICTNESS[1:]:
        tightening = torch.where(rows.equality, 0.0, torch.lerp(start, strict, strictness))
        path.append(
            (
                f"corrected, strictness {strictness:g}",
                fit_correction(means, tightening, path[-1][1]),
            )
        )
    if evaluate(first, means).accuracy < lowest:
        c = evaluate(no_correction(means.constraints), means).c
        none = torch.minimum(start, -c)
        dear, cheap, looser = 0.0, 1.0, {}
        for _ in range(HALVINGS):
            looseness = (dear + cheap) / 2
            looser[looseness] = fit_correction(means, torch.lerp(start, none, looseness))
            too_dear = evaluate(looser[looseness], means).accuracy < lowest
            dear, cheap = (looseness, cheap) if too_dear else (dear, looseness)
        path = [
            *((f"corrected, looseness {k:g}", looser[k]) for k in sorted(looser, reverse=True)),
            *path,
        ]
    return path


def is_constant(value: Evaluated, plain: Evaluated, constraints: Sequence[Constraint]) -> bool:
    """Whether a class is hardly decided for any more; a bound on a rate itself may ask for few
    negative decisions."""
    rarely = value.shares < CONSTANT * plain.shares
    differences = all(bool(is_difference(constraint).all()) for constraint in constraints)
    return bool(rarely.any() if differences or len(rarely) > 2 else rarely[1])


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The most accurate within the stated bounds, else the smallest violation for its accuracy;
    ties: less corrected.

    The last, the unconstrained model, exceeds the tightened bounds and is not taken for one within
    them.
    """
    within = [candidate for candidate in candidates[:-1] if candidate.value.violation <= TOLERANCE]

    def worth(candidate: Candidate) -> tuple[float, float]:
        value = candidate.value
        return value.accuracy - (0.0 if within else PRICE * value.violation), -value.loss

    return max(reversed(within or candidates), key=worth)


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

    def key(value: Evaluated) -> tuple[float, float]:
        return max(0.0, round(float((value.c + margin).max()), 3)), value.loss

    best, best_value = plain, evaluated(plain)
    mu, step = (
        torch.zeros(len(margin), dtype=torch.float64),
        WEIGHT_STEP / max(best_value.loss, 1e-12),
    )
    for _ in range(REWEIGHTINGS):
        tried = (mu + step * (best_value.c + margin) * rows).clamp(min=0)
        fitted = fit(tried)
        value = evaluated(fitted)
        if key(value) < key(best_value):
            best, best_value, mu = fitted, value, tried
        else:  # too far: where weights change much, longer steps swing from one group to the other
            step /= 2
    return best


def group_weights(
    constraints: Sequence[Constraint], mu: Tensor, groups: dict[str, Tensor], labels: Tensor
) -> Tensor:
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
    """Remove candidates that are worse, in violation and in accuracy, than the last one, the
    unconstrained model."""
    plain = candidates[-1].value
    return [
        c
        for c in candidates
        if c.value.violation < plain.violation or c.value.accuracy >= plain.accuracy
    ]
