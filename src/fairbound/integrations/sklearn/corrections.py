r"""Corrections of a trained model's scores by the multipliers of the constraints, chosen on out-of-fold scores.

A constraint compares means over cells (a group, or a group within a label). The mean of s(x) over cell k is E[r_k s],
with the ratio r_k(x) = P(cell k | x) / P(cell k), so that with multipliers mu and a = M'mu (M the contrast)

    objective + mu'(M means) = E[objective(x) + B(x) s(x)],      B(x) = sum_k a_k r_k(x)

and the best decision is found example by example. Without the group at prediction r_k comes from a model of the group;
with it, cell k is known.

**Rates** (s = 1 for a positive decision; Chen et al. 2024, "Post-hoc bias scoring is optimal"): the largest accuracy
has the decision 1 where 2 p(x) - 1 > B(x), with p the probability of a positive label; as logits

    z'(x) = z(x) - log((1 + B) / (1 - B)) = z(x) - 2 artanh B(x).

With the group at prediction these are thresholds by group. With several classes, B_j for class j, the decision is the
class with the largest p_j(x) - B_j(x), whose logarithm is its logit.

**Losses** (s = the loss): an example counts W(x) = 1 + B(x). Training changes nothing where the label depends on the
group through x only; what remains is the confidence, z'(x) = T(x) z(x) with T in [0, 1], and the best T is 1 where
W > 0 and 0 where W < 0. Its smooth form, with "no correction" at mu = 0 (*selective flattening*):

    T(x) = min(1, sigma(W(x) / kappa) / sigma(1 / kappa)).

No decision at one half is changed. It is leveling down: the model becomes less sure of examples like those of the group
with the smaller loss.

One rule without the group may fail: where the columns that tell the label are those that tell the group, the function
2 p - 1 - B is near 0 for all examples at the multipliers that close the gap, and no deterministic rule is close to the
optimum, which is random. There one threshold for all examples, up to "everybody" or "nobody", may be more accurate at
the same bound; it is taken where out-of-fold data say so.

The multipliers are found by dual ascent, mu <- max(0, mu + step * (c + margin)), where c is evaluated with the actual
groups of the out-of-fold examples, never with the ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.constraints.statistics import HardClass
from fairbound.integrations.sklearn.trainer import cross_entropy

KAPPA = 0.25  # of selective flattening; between 0.1 and 0.5 it changes little
MIN_CONFIDENCE = 1e-6  # T of an example: its decision can still be read from its probability
MIN_PROBABILITY = 1e-3  # p_j - B_j of a class, for its logit
MAX_SHIFT = 0.98  # |B| of rates: a probability of 0.99 is moved to a half
ITERATIONS = 400  # of the dual ascent
THRESHOLDS = 33  # that are tried for all examples
LOSS_STEP = 4.0  # of losses, in the step of rates: they answer less to their multipliers


def decisions(logits: Tensor) -> Tensor:
    """(N,) the class that logits (N,) or (N, classes) decide for."""
    return (logits > 0).long() if logits.ndim == 1 else logits.argmax(-1)


class Scores(NamedTuple):
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
        return float(self._mean((decisions(logits) == self.labels).double()))

    def loss(self, logits: Tensor) -> float:
        return float(self._mean(self.batch(logits).losses))

    def _mean(self, values: Tensor) -> Tensor:
        return values.mean() if self.weight is None else (values * self.weight).sum() / self.weight.sum()


@dataclass(frozen=True, eq=False)
class Correction:
    """The constraints with their multipliers; `apply` corrects logits.

    >>> from fairbound import constraints
    >>> parity = constraints.demographic_parity(["A", "B"], bound=0.0)
    >>> fair = Correction((parity,), torch.tensor([0.2, 0.0], dtype=torch.float64))
    >>> ratios = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)    # of an example of A, of one of B
    >>> fair.apply(torch.zeros(2, dtype=torch.float64), (ratios,))
    tensor([-0.8473,  0.8473], dtype=torch.float64)
    """

    constraints: tuple[Constraint, ...]
    multipliers: Tensor  # (m,) of all constraints, one after the other
    threshold: float = 0.0  # of two classes: the logit above which all examples are decided 1, before the multipliers

    @property
    def is_nothing(self) -> bool:
        return self.threshold == 0 and not bool(self.multipliers.any())

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
            shifted = logits - self.threshold - 2 * torch.atanh(shift.clamp(-MAX_SHIFT, MAX_SHIFT))
        elif bool(shift.any()):
            shifted = (logits.softmax(1) - shift).clamp(min=MIN_PROBABILITY).log()
        confidence = torch.sigmoid(weight / KAPPA) / torch.sigmoid(torch.tensor(1 / KAPPA, dtype=logits.dtype))
        confidence = confidence.clamp(MIN_CONFIDENCE, 1.0)
        return shifted * (confidence if logits.ndim == 1 else confidence[:, None])


def _outcome(constraint: Constraint) -> int:
    statistic = constraint.statistic
    assert statistic is not None
    if not isinstance(statistic.reported, HardClass):
        raise ValueError(
            f"{constraint.names[0]!r} is about one logit per example, and y has several classes; name one of them: "
            "pos_label=, or outcome= of the notion"
        )
    return statistic.reported.outcome


def no_correction(constraints: Sequence[Constraint]) -> Correction:
    m = sum(constraint.m for constraint in constraints)
    return Correction(tuple(constraints), torch.zeros(m, dtype=torch.float64))


class Evaluated(NamedTuple):
    """A corrected model on some examples."""

    c: Tensor  # (m,) exact rates and losses minus the bounds; NaN where a cell is empty
    accuracy: float
    loss: float

    @property
    def violation(self) -> float:
        values: list[float] = self.c[~self.c.isnan()].tolist()
        return max([0.0, *values])


def evaluate(correction: Correction, scores: Scores) -> Evaluated:
    """The constraints, accuracy and loss of the corrected model."""
    logits = correction.apply(scores.logits, scores.ratios)
    c = ConstraintSet(correction.constraints).evaluate(scores.batch(logits), exact=True)[1:]
    return Evaluated(c, scores.accuracy(logits), scores.loss(logits))


def standard_errors(constraints: Sequence[Constraint], scores: Scores) -> Tensor:
    """(m,) of the constraints' values on these examples, cells taken as independent."""
    batch = scores.batch(scores.logits)
    weight = torch.ones_like(batch.losses) if scores.weight is None else scores.weight
    errors = []
    for constraint in constraints:
        statistic = constraint.statistic
        values = batch.losses if statistic is None else statistic.reported(scores.logits, scores.labels)
        cells = constraint.cells.bind(batch.column(constraint.by), scores.labels).examples
        variances = torch.stack([_variance_of_mean(values[cell], weight[cell]) for cell in cells])
        errors.append((constraint.contrast.matrix().square() @ variances).sqrt())
    return torch.cat(errors)


def _variance_of_mean(values: Tensor, weight: Tensor) -> Tensor:
    if len(values) < 2:
        return torch.zeros((), dtype=torch.float64)
    share = weight / weight.sum()
    return (share * (values - share @ values)).square().sum().double()


def fit_correction(
    constraints: Sequence[Constraint], scores: Scores, margin: Tensor, start: Correction | None = None
) -> Correction:
    """The correction with which c <= -margin, (m,), on these examples; of those that meet it, the least harmful.

    Its steps are one over the curvature of the dual, bounded row by row: E[r_k^2] is how fast cell k answers. The best
    iterate is kept: the smallest violation, rounded to a thousandth; then the smallest loss, or for rates the largest
    accuracy.
    """
    constraints = tuple(constraints)
    step = torch.cat([_step(constraint, ratio) for constraint, ratio in zip(constraints, scores.ratios, strict=True)])
    equality = torch.cat([torch.full((constraint.m,), constraint.equality) for constraint in constraints])
    only_losses = all(constraint.statistic is None for constraint in constraints)

    def excess_and_harm(tried: Correction) -> tuple[tuple[float, float], Tensor]:
        """What is to be small, and by how much each constraint is exceeded."""
        value = evaluate(tried, scores)
        excess = torch.where(value.c.isnan(), 0.0, value.c + margin * ~equality)
        size = torch.where(equality, excess.abs(), excess)
        return (max(0.0, round(float(size.max()), 3)), value.loss if only_losses else -value.accuracy), excess

    mu = (start or no_correction(constraints)).multipliers.clone()
    best, best_key = Correction(constraints, mu), (torch.inf, torch.inf)
    for iteration in range(ITERATIONS):
        tried = Correction(constraints, mu)
        key, excess = excess_and_harm(tried)
        if key < best_key:
            best, best_key = tried, key
        moved = mu + step / (1 + iteration / 50) * excess
        moved = torch.where(equality, moved, moved.clamp(min=0))
        if torch.equal(moved, mu):
            break
        mu = moved
    if scores.logits.ndim == 1 and not only_losses and not best.is_nothing:
        best_key = (round(best_key[0], 2), best_key[1])  # a hundredth beyond a tightened bound is no reason for it
        levels = torch.quantile(scores.logits, torch.linspace(0, 1, THRESHOLDS, dtype=torch.float64))
        outside = levels[[0, -1]] + torch.tensor([-1.0, 1.0], dtype=torch.float64)
        for threshold in [*levels.tolist(), *outside.tolist()]:
            tried = Correction(constraints, torch.zeros_like(mu), threshold)
            (size, harm), _ = excess_and_harm(tried)
            if (round(size, 2), harm) < best_key:
                best, best_key = tried, (round(size, 2), harm)
    return best


def _step(constraint: Constraint, ratio: Tensor) -> Tensor:
    """(m,) one over a bound of the dual's curvature: the row sums of |M D M'|, D = diag E[r_k^2]."""
    M = constraint.contrast.matrix()
    curvature = ((M * ratio.square().mean(0)) @ M.T).abs().sum(1)
    return (LOSS_STEP if constraint.statistic is None else 1.0) / curvature.clamp(min=1e-12)
