"""The training runs that a model is selected from; they differ in what updates the multipliers.

*unconstrained*: SGD. *train_duals*: descent-ascent whose multipliers are updated on the training examples. It meets a
bound there, and may meet it by overfitting. *held_out_duals*: continues from the unconstrained model on the same
training examples; the multipliers are updated on a held-out dual set, and the gradient of the constraints is taken on
noisy copies of the training examples, which are harder to overfit.

A difference can be closed by raising a small group's loss without limit. So multipliers are capped in both modes, and
with held-out duals a loss counts in the constraints up to `MAX_CONSTRAINT_LOSS` only. (Without that the gap of a single
run on OK ended at -.4.)

Constraints on differences are trained with a share of their bound (`BOUND_SHARE`): a gap on held-out data is larger
than on the data that closed it. benchmarks/fair_classifier.py says which data the numbers here were chosen on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.algorithms import SGD, DescentAscent
from fairbound.algorithms.schedules import Linear
from fairbound.constraints.cells import Cells
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.statistics import Statistic
from fairbound.core import Algorithm
from fairbound.data.dataset import Dataset, Split
from fairbound.data.samplers import BatchSpec, Sampler
from fairbound.integrations.sklearn.inputs import TrainingData
from fairbound.integrations.sklearn.splits import MIN_EXAMPLES, has_held_out, train_and_dual
from fairbound.training.problem import Problem
from fairbound.training.runner import Run, run

UNCONSTRAINED, TRAIN_DUALS, HELD_OUT_DUALS = "unconstrained", "train_duals", "held_out_duals"
# The share of a bound on a difference that is trained with. On VA (8 splits, seeds 1000 to 1007) the mean of the last
# steps leaves a largest held-out gap of .077 with the bound, .065 with .75 and .054 with .5 of it, at an accuracy of
# .780, .777 and .772. On OK (16 splits, seeds 3000 to 3015) held-out duals leave .026 with it and .022 with half of it.
BOUND_SHARE = {TRAIN_DUALS: 0.55, HELD_OUT_DUALS: 0.25}
MAX_MULTIPLIER = {TRAIN_DUALS: 10.0, HELD_OUT_DUALS: 1.0}
LEVEL_SCALE = 0.02  # the unit of violations of a bound on a level (a rate, a loss) instead of a difference
MAX_CONSTRAINT_LOSS = 10.0  # per example, in the constraints of held-out duals: a probability of .00005
HELD_OUT_STEP_SHARE = 0.5  # of all steps
AVERAGED_STEP_SHARE = 0.25  # the last constrained steps, whose mean model is a candidate: single steps are noisy
NOISY_COPIES = 4  # of every training example
NOISE_STD = 0.5  # of the copies, in standard deviations of a column
HELD_OUT_CELL_BATCH = 256  # examples of each cell per step with held-out duals: their sampling noise moves the gap


@dataclass(frozen=True)
class TrainingConfig:
    """Hyper-parameters of a fit."""

    steps: int
    batch_size: int
    learning_rate: float
    seed: int
    compile: bool | None


def per_example_loss(classes: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy of every example, from one logit or one per class."""
    if classes <= 2:
        return lambda outputs, labels: nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return lambda outputs, labels: nn.functional.cross_entropy(outputs, labels.long(), reduction="none")


def weighted_labels_and_loss(
    data: TrainingData, constraint: Constraint | None, objective: Tensor, pools: Sequence[Tensor]
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """Labels and the per-example loss; with weights, labels have two more columns: the weight overall and in its cell.

    A weight overall has mean 1 over the examples of the objective, one in a cell over that cell's examples in each of
    the pools that constraints are sampled from. No other example has an influence.
    """
    loss = per_example_loss(data.classes)
    if data.weight is None:
        return data.y, loss
    overall = data.weight / data.weight[objective].mean()
    within = torch.zeros_like(overall)
    for pool in pools:
        for name, member in _cells_within(data, constraint, pool):
            total = data.weight[member].sum()
            if float(total) <= 0:
                raise ValueError(f"sample_weight is zero for all examples of {name!r} in the train or in the dual set")
            if bool(within[member].any()):
                raise ValueError(
                    "sample_weight needs constraints whose cells are disjoint; use one constraint at a time"
                )
            within[member] = data.weight[member] * len(member) / total
    labels = torch.stack([data.y.float(), overall, within], 1)
    return labels, lambda outputs, labels: loss(outputs, labels[:, 0]) * labels[:, 1]


def _cells_within(data: TrainingData, constraint: Constraint | None, pool: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and examples of the cells in a pool, without those that are empty there."""
    if constraint is None:
        return iter(())
    inside = constraint.cells.bind(data.groups, data.y).within(pool, len(data.X))
    return ((name, member) for name, member in zip(inside.names, inside.examples, strict=True) if len(member))


def bind_constraint(
    constraint: Constraint, data: TrainingData, groups: Tensor, labels: Tensor, max_loss: float | None = None
) -> Constraint:
    """The constraint over the examples: of weighted means where there are weights, of losses up to `max_loss`."""
    found = constraint.bind(groups, labels if labels.ndim == 1 else labels[:, 0])
    loss = per_example_loss(data.classes)
    clipped = loss if max_loss is None else lambda outputs, labels: loss(outputs, labels).clamp(max=max_loss)
    if data.weight is None:
        unchanged = constraint.statistic is not None or max_loss is None
        return found if unchanged else replace(found, statistic=Statistic(clipped))
    plain = clipped if constraint.statistic is None else constraint.statistic.surrogate
    return replace(found, statistic=Statistic(lambda outputs, labels: plain(outputs, labels[:, 0]) * labels[:, 2]))


def _is_difference(constraint: Constraint) -> Tensor:
    """(m,) which constraints compare cells: their contrast weights sum to 0."""
    ones = torch.ones(len(constraint.cells), dtype=torch.float64)
    return constraint.contrast.apply(ones).abs() < 1e-9


def tighten_bound(constraint: Constraint, share: float) -> Constraint:
    """The constraint with a share of its bounds on differences; a bound on a level (a loss, a rate) stays as it is."""
    difference = _is_difference(constraint) & (constraint.bound > 0)
    return replace(constraint, bound=torch.where(difference, share * constraint.bound, constraint.bound))


def violation_scale(constraint: Constraint | None) -> float:
    """The unit of violations: the bound on a difference; a bound on a level does not tell their size."""
    if constraint is None:
        return 1.0
    difference = _is_difference(constraint) & (constraint.bound > 0)
    return float(constraint.bound[difference].max()) if bool(difference.any()) else LEVEL_SCALE


class Trainer:
    """Starts the runs of one fit."""

    def __init__(
        self,
        data: TrainingData,
        split: Split,
        constraint: Constraint | None,
        forward: Callable[[Tensor, Tensor], Tensor],
        config: TrainingConfig,
    ) -> None:
        self.data, self.split, self.constraint, self.forward, self.config = data, split, constraint, forward, config

    def no_held_out_duals_reason(self) -> str:
        """Why there cannot be a held-out dual set; empty where there can."""
        if self.constraint is None or not has_held_out(self.split):
            return "there are too few examples to hold any out"
        cells = self.constraint.cells.bind(self.data.groups, self.data.y)
        inside = cells.within(self.split.dual, len(self.data.X))
        count, name = min((len(member), name) for name, member in zip(inside.names, inside.examples, strict=True))
        if count >= MIN_EXAMPLES:
            return ""
        return f"the dual set would have {count} examples of {name!r}, and {MIN_EXAMPLES} are needed"

    def steps(self, mode: str) -> int:
        return max(1, int(HELD_OUT_STEP_SHARE * self.config.steps)) if mode == HELD_OUT_DUALS else self.config.steps

    def run(self, mode: str, x0: Tensor, records: int, method: Algorithm[Any] | None = None) -> Run:
        """The run of a mode with so many records; `method` in place of the default algorithm."""
        problem, split = self._held_out_problem() if mode == HELD_OUT_DUALS else self._problem(mode)
        steps = self.steps(mode)
        averages = mode != UNCONSTRAINED and method is None
        return run(
            problem,
            method or self._method(mode),
            self._sampler(mode, problem, split),
            x0,
            steps,
            every=max(1, steps // records),
            average_from=int((1 - AVERAGED_STEP_SHARE) * steps) if averages else None,
            compile=self.config.compile,
        )

    def _method(self, mode: str) -> Algorithm[Any]:
        tau = Linear(self.config.learning_rate, self.steps(mode))
        if mode == UNCONSTRAINED:
            return SGD(tau=tau)
        eta = self.config.learning_rate / 10
        return DescentAscent(tau=tau, eta=eta, y_max=MAX_MULTIPLIER[mode], second=mode == HELD_OUT_DUALS)

    def _problem(self, mode: str) -> tuple[Problem, Split]:
        data, constraint = self.data, None if mode == UNCONSTRAINED else self.constraint
        # held-out duals continue from the unconstrained model, so it must not have seen the dual set
        leaves_dual_out = mode == UNCONSTRAINED and self.constraint is not None
        examples = self.split.train if leaves_dual_out else train_and_dual(self.split)
        labels, loss = weighted_labels_and_loss(data, constraint, examples, [examples])
        trained = None
        if constraint is not None:
            trained = bind_constraint(tighten_bound(constraint, BOUND_SHARE[mode]), data, data.groups, labels)
        return Problem(self.forward, loss, trained, Dataset(data.X, labels, {"group": data.groups})), Split(examples)

    def _held_out_problem(self) -> tuple[Problem, Split]:
        """All examples, then the noisy copies of the training set: the validation pool of the split that it returns."""
        data, train = self.data, self.split.train
        assert self.constraint is not None
        copied = train.repeat(NOISY_COPIES)
        generator = torch.Generator().manual_seed(self.config.seed)
        noise = NOISE_STD * torch.randn(len(copied), data.X.shape[1], generator=generator)
        labels, loss = weighted_labels_and_loss(data, self.constraint, train, [train, self.split.dual])
        X = torch.cat([data.X, data.X[copied] + noise])
        labels, groups = (torch.cat([column, column[copied]]) for column in (labels, data.groups))
        tightened = tighten_bound(self.constraint, BOUND_SHARE[HELD_OUT_DUALS])
        trained = bind_constraint(tightened, data, groups, labels, MAX_CONSTRAINT_LOSS)
        split = Split(train, self.split.dual, torch.arange(len(data.X), len(X)))
        return Problem(self.forward, loss, trained, Dataset(X, labels, {"group": groups})), split

    def _sampler(self, mode: str, problem: Problem, split: Split) -> Sampler:
        cells = None if problem.constraint is None else problem.constraint.cells
        objective = min(self.config.batch_size, len(split.train))

        def cell_batch(pool: str, largest: int) -> int:
            """Examples of each cell per step: `largest`, or as many as the smallest cell has."""
            if cells is None:
                return largest
            inside: Cells = cells.within(split.pool(pool), len(problem.data.X))
            return max(1, min([largest, *(len(member) for member in inside.examples)]))

        if mode == HELD_OUT_DUALS:
            pools = ("validation", "dual")
            specs = [BatchSpec(objective, cell_batch(pool, HELD_OUT_CELL_BATCH), pool) for pool in pools]
            return Sampler(split, cells, specs, self.config.seed)
        spec = BatchSpec(objective, cell_batch("train", self.config.batch_size))
        return Sampler(split, cells, spec, self.config.seed)
