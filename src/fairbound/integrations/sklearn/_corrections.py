r"""Corrections of a trained model's scores by the multipliers of the constraints, chosen on
out-of-fold scores.

A constraint compares means over cells (a group, or a group within a label). The mean of s(x) over
cell k is E[r_k s], with the ratio r_k(x) = P(cell k | x) / P(cell k), so that with multipliers mu
and a = M'mu (M the contrast)

    objective + mu'(M means) = E[objective(x) + B(x) s(x)],      B(x) = sum_k a_k r_k(x)

and the best decision is found example by example. Without the group at prediction r_k comes from a
model of the group; with it, cell k is known.

**Rates** (s = 1 for a positive decision; Chen et al. 2024, "Post-hoc bias scoring is optimal"): the
largest accuracy has the decision 1 where 2 p(x) - 1 > B(x), with p the probability of a positive
label; as logits

    z'(x) = z(x) - log((1 + B) / (1 - B)) = z(x) - 2 artanh B(x).

With the group at prediction these are thresholds by group. With several classes, B_j for class j,
the decision is the class with the largest p_j(x) - B_j(x), whose logarithm is its logit.

**Losses** (s = the loss): an example counts W(x) = 1 + B(x). Training changes nothing where the
label depends on the group through x only; what remains is the confidence, z'(x) = T(x) z(x) with T
in [0, 1], and the best T is 1 where W > 0 and 0 where W < 0. Its smooth form, with "no correction"
at mu = 0 (*selective flattening*):

    T(x) = min(1, sigma(W(x) / kappa) / sigma(1 / kappa)).

No decision at one half is changed. It is leveling down: the model becomes less sure of examples
like those of the group with the smaller loss.

The multipliers are found by dual ascent, mu <- max(0, mu + step * (c + margin)), where c is
evaluated with the actual groups of the out-of-fold examples, never with the ratios. The best
iterate has the largest accuracy (for losses the smallest loss) minus `PRICE` times its excess:
where a bound cannot be met, it is not pursued at any price.

**Small cells.** The mean of a cell is shrunk toward that of all examples (of its label), by its
trust t = s^2 / (s^2 + error^2), where s is the bound (of a ratio what it allows as a difference),
at least `MIN_SPREAD`: three people say nothing of their group's rate, and no rule follows them.
With the group at prediction, thresholds of small groups are shrunk by the same trust.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._statistics import HardClass
from fairbound.integrations.sklearn._inputs import is_difference
from fairbound.integrations.sklearn._trainer import cross_entropy

KAPPA = 0.25  # of selective flattening; between 0.1 and 0.5 it changes little
MIN_CONFIDENCE = 1e-6  # T of an example: its decision can still be read from its probability
MIN_PROBABILITY = 1e-3  # p_j - B_j of a class, for its logit
MAX_SHIFT = 0.98  # |B| of rates: a probability of 0.99 is moved to a half
ITERATIONS = 400  # of the dual ascent
TOLERANCE = 5e-4  # by which a tightened bound may be exceeded
# accuracy that a unit of a gap may cost; where the group is known, it costs at most its share
PRICE = 2.0
LOSS_PRICE = 10.0  # log loss that a unit of a gap of losses may cost
MIN_SPREAD = 0.05  # of the means of cells: differences of this size are taken for possible
LOSS_STEP = 4.0  # of losses, in the step of rates: they answer less to their multipliers


def decisions(logits: Tensor) -> Tensor:
    """(N,) the class that logits (N,) or (N, classes) decide for."""
    return (logits > 0).long() if logits.ndim == 1 else logits.argmax(-1)


class ScoredExamples(NamedTuple):
    """What a model says of N examples, and what is known of them."""

    logits: Tensor  # (N,) or (N, classes) float64
    ratios: tuple[Tensor, ...]  # (N, K) for every constraint: P(cell | x) / P(cell)
    labels: Tensor  # (N,)
    groups: Mapping[str, Tensor]  # (N,) by column
    weight: Tensor | None  # (N,)

    def batch(self, logits: Tensor) -> MiniBatch:
        """The examples with corrected logits."""
        outputs = logits[:, None] if logits.ndim == 1 else logits
        losses = cross_entropy(outputs, self.labels)
        return MiniBatch(losses, dict(self.groups), self.labels, logits, self.weight)

    def accuracy(self, logits: Tensor) -> float:
        return float(self.mean((decisions(logits) == self.labels).double()))

    def loss(self, logits: Tensor) -> float:
        return float(self.mean(self.batch(logits).losses))

    def mean(self, values: Tensor) -> Tensor:
        return (
            values.mean()
            if self.weight is None
            else (values * self.weight).sum() / self.weight.sum()
        )


@dataclass(frozen=True, eq=False)
class Correction:
    """The constraints with their multipliers; `apply` corrects logits.

    >>> from fairbound import constraints
    >>> parity = constraints.demographic_parity(["A", "B"], bound=0.0)
    >>> fair = Correction((parity,), torch.tensor([0.2, 0.0], dtype=torch.float64))
    >>> ratios = torch.tensor(
    ...     [[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64
    ... )  # of an example of A, of one of B
    >>> fair.apply(torch.zeros(2, dtype=torch.float64), (ratios,))
    tensor([-0.8473,  0.8473], dtype=torch.float64)
    """

    constraints: tuple[Constraint, ...]
    multipliers: Tensor  # (m,) of all constraints, one after the other

    @property
    def is_nothing(self) -> bool:
        return not bool(self.multipliers.any())

    def apply(self, logits: Tensor, ratios: Sequence[Tensor]) -> Tensor:
        """(N,) or (N, classes), like the logits."""
        if self.is_nothing:
            return logits
        shift = torch.zeros_like(logits)  # B of rates
        weight = torch.ones(len(logits), dtype=logits.dtype)  # W of losses
        mus = self.multipliers.split([constraint.m for constraint in self.constraints])
        for constraint, mu, ratio in zip(self.constraints, mus, ratios, strict=True):
            # rows of cells that are compared with others; the ratio of a cell without examples is 0
            B = ratio @ constraint.contrast.to(ratio.device, ratio.dtype).transpose(mu)
            if constraint.statistic is None:
                weight = weight + B
            elif logits.ndim == 1:
                shift = shift + B
            else:
                shift[:, _outcome(constraint)] += B
        shifted = logits
        if logits.ndim == 1:
            shifted = logits - 2 * torch.atanh(shift.clamp(-MAX_SHIFT, MAX_SHIFT))
        elif bool(shift.any()):
            shifted = (logits.softmax(1) - shift).clamp(min=MIN_PROBABILITY).log()
        confidence = torch.sigmoid(weight / KAPPA) / torch.sigmoid(
            torch.tensor(1 / KAPPA, dtype=logits.dtype)
        )
        confidence = confidence.clamp(MIN_CONFIDENCE, 1.0)
        return shifted * (confidence if logits.ndim == 1 else confidence[:, None])


def _outcome(constraint: Constraint) -> int:
    statistic = constraint.statistic
    assert statistic is not None
    if not isinstance(statistic.reported, HardClass):
        raise ValueError(
            f"{constraint.names[0]!r} is about one logit per example, and y has several classes;"
            " name one of them: pos_label=, or outcome= of the notion"
        )
    return statistic.reported.outcome


def no_correction(constraints: Sequence[Constraint]) -> Correction:
    m = sum(constraint.m for constraint in constraints)
    return Correction(tuple(constraints), torch.zeros(m, dtype=torch.float64))


class ConstraintRows(NamedTuple):
    """(m,) each, of all constraints, one after the other."""

    difference: Tensor  # whether it compares cells
    equality: Tensor
    loss: Tensor  # whether it is about losses

    @staticmethod
    def of(constraints: Sequence[Constraint]) -> ConstraintRows:
        return ConstraintRows(
            torch.cat([is_difference(constraint) for constraint in constraints]),
            torch.cat(
                [torch.full((constraint.m,), constraint.equality) for constraint in constraints]
            ),
            torch.cat(
                [
                    torch.full((constraint.m,), constraint.statistic is None)
                    for constraint in constraints
                ]
            ),
        )


class Evaluated(NamedTuple):
    """A corrected model on some examples."""

    c: Tensor  # (m,) rates and losses minus the bounds, small cells shrunk
    accuracy: float
    loss: float
    shares: Tensor  # (classes,) of the decisions

    @property
    def violation(self) -> float:
        return max(0.0, float(self.c.max())) if len(self.c) else 0.0


class CellMeans:
    """Means of the cells of constraints over some examples, small cells shrunk toward all
    examples."""

    def __init__(self, constraints: Sequence[Constraint], scores: ScoredExamples) -> None:
        self.constraints, self.scores = tuple(constraints), scores
        weight = (
            torch.ones(len(scores.labels)).double()
            if scores.weight is None
            else scores.weight.double()
        )
        self._cells: list[Tensor] = []  # (K, N) what an example counts in the mean of every cell
        self._shrunk: list[Tensor] = []  # (K, N) the same, shrunk
        self.trust: list[Tensor] = []  # (K,)
        self.shares: list[Tensor] = []  # (K,) P(cell)
        # (m,) the bound, less what equal cells have
        rooms: list[Tensor] = [torch.zeros(0, dtype=torch.float64)]
        for constraint, values in zip(
            self.constraints, self._statistics(scores.logits), strict=True
        ):
            bound = constraint.cells.bind(scores.groups[constraint.by or ""], scores.labels)
            cells = torch.zeros(len(bound), len(weight), dtype=torch.float64)
            everybody = torch.zeros_like(cells)
            for k, (cell, members) in enumerate(zip(bound.items, bound.examples, strict=True)):
                cells[k, members] = weight[members] / weight[members].sum().clamp(min=1e-12)
                everybody[k] = (
                    weight if cell.label is None else weight * (scores.labels == cell.label)
                )
            everybody /= everybody.sum(1, keepdim=True).clamp(min=1e-12)
            equal = everybody @ values
            rooms.append((constraint.bound - constraint.contrast.apply(equal)).clamp(min=0))
            trust = _trust(
                constraint, cells, everybody @ values.square() - equal.square(), rooms[-1]
            )
            self._cells.append(cells)
            self._shrunk.append(torch.lerp(everybody, cells, trust[:, None]))
            self.trust.append(trust)
            counts = torch.tensor([len(members) for members in bound.examples], dtype=torch.float64)
            self.shares.append(counts / len(weight))
        # how far a row that compares cells may lie from equality: a difference, its bound
        self.room = torch.cat(rooms)

    def c(self, logits: Tensor) -> Tensor:
        """(m,) the constraints' values with these logits."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        for constraint, shrunk, values in zip(
            self.constraints, self._shrunk, self._statistics(logits), strict=True
        ):
            parts.append(constraint.contrast.apply(shrunk @ values) - constraint.bound)
        return torch.cat(parts)

    def standard_errors(self) -> Tensor:
        """(m,) of the constraints' values without a correction, cells taken as independent."""
        errors, plain = [], self._statistics(self.scores.logits)
        for constraint, cells, trust, values in zip(
            self.constraints, self._cells, self.trust, plain, strict=True
        ):
            variances = (cells * (values - (cells @ values)[:, None])).square().sum(1)
            errors.append(
                (constraint.contrast.matrix().square() @ (trust.square() * variances)).sqrt()
            )
        return torch.cat(errors)

    def unknown(self, errors: float) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """(m,) each: differences that so many standard errors do not tell from 0 within the bound,
        and those that are mostly chance: of a cell with an error as large as the bound, or of small
        cells only. Names of the small cells.
        """
        unknown, chance, names = [], [], []
        for constraint, trust in zip(self.constraints, self.trust, strict=True):
            # (error / spread)^2 of the cells
            squares, M = 1 / trust - 1, constraint.contrast.matrix()
            compared, small = M.abs() >= 0.5, squares > 1 / errors**2
            # in a mean of all cells small ones are shrunk
            unknown.append(
                (M * torch.where(compared, 1.0, trust)).square() @ squares > 1 / errors**2
            )
            chance.append((compared & (trust < 0.5)).any(1) | (~compared | small).all(1))
            names += [constraint.cells.names[k] for k in small.nonzero()[:, 0].tolist()]
        return torch.cat(unknown), torch.cat(chance), tuple(dict.fromkeys(names))

    def _statistics(self, logits: Tensor) -> list[Tensor]:
        """(N,) what every constraint takes means of."""
        rates = [constraint.statistic for constraint in self.constraints]
        losses = self.scores.batch(logits).losses if None in rates else torch.empty(0)
        return [
            losses if rate is None else rate.reported(logits, self.scores.labels).double()
            for rate in rates
        ]


def _trust(constraint: Constraint, cells: Tensor, variance: Tensor, room: Tensor) -> Tensor:
    """(K,) of the cells, from the variance (K,) of everybody; 1 for bounds on levels, set for a
    cell by itself."""
    if not bool(is_difference(constraint).all()):
        return torch.ones(len(cells), dtype=torch.float64)
    spread = max(float(room.max()), MIN_SPREAD)
    effective = 1 / cells.square().sum(1).clamp(min=1e-12)  # Kish's number of examples
    trust = effective / (effective + variance.clamp(min=0) / spread**2)
    return torch.where(cells.any(1), trust, 1e-9)


def evaluate(correction: Correction, means: CellMeans) -> Evaluated:
    """The constraints, accuracy and loss of the corrected model."""
    scores = means.scores
    logits = correction.apply(scores.logits, scores.ratios)
    classes = 2 if logits.ndim == 1 else logits.shape[1]
    shares = torch.stack([scores.mean((decisions(logits) == k).double()) for k in range(classes)])
    return Evaluated(means.c(logits), scores.accuracy(logits), scores.loss(logits), shares)


def fit_correction(means: CellMeans, margin: Tensor, start: Correction | None = None) -> Correction:
    """The correction with which c <= -margin, (m,), on these examples; of those that meet it, the
    least harmful.

    Its steps are one over the curvature of the dual, bounded row by row: E[r_k^2] is how fast cell
    k answers.
    """
    constraints, scores = means.constraints, means.scores
    step = torch.cat(
        [
            _step(constraint, ratio)
            for constraint, ratio in zip(constraints, scores.ratios, strict=True)
        ]
    )
    _, equality, about_losses = ConstraintRows.of(constraints)
    only_losses = bool(about_losses.all())
    price = LOSS_PRICE if only_losses else PRICE
    mu = (start or no_correction(constraints)).multipliers.clone()
    best, best_key = mu, torch.inf
    for iteration in range(ITERATIONS):
        logits = Correction(constraints, mu).apply(scores.logits, scores.ratios)
        c = means.c(logits)
        excess = c + margin * ~equality
        largest = float(torch.where(equality, excess.abs(), excess).max())
        harm = scores.loss(logits) if only_losses else -scores.accuracy(logits)
        key = harm + price * max(0.0, largest - TOLERANCE)
        best, best_key = (mu, key) if key < best_key else (best, best_key)
        moved = mu + step / (1 + iteration / 50) * excess
        moved = torch.where(equality, moved, moved.clamp(min=0))
        if torch.equal(moved, mu):
            break
        mu = moved
    return Correction(constraints, best)


def _step(constraint: Constraint, ratio: Tensor) -> Tensor:
    """(m,) one over a bound of the dual's curvature: the row sums of |M D M'|, D = diag
    E[r_k^2]."""
    M = constraint.contrast.matrix()
    curvature = ((M * ratio.square().mean(0)) @ M.T).abs().sum(1)
    return (LOSS_STEP if constraint.statistic is None else 1.0) / curvature.clamp(min=1e-12)
