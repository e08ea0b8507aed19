"""`fit`: constrained training of a Keras model in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fairbound.algorithms import AdaptivePI
from fairbound.columns._groups import GroupEncoder
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._notions import make_constraint
from fairbound.core import Algorithm
from fairbound.data._dataset import Dataset, Split
from fairbound.data._samplers import BatchSpec, Sampler
from fairbound.integrations.keras._module import KerasModule
from fairbound.integrations.keras._validation import check_inputs, refuse_probabilities
from fairbound.integrations.torch._kkt import KKT
from fairbound.integrations.torch._kkt_report import report_kkt
from fairbound.training._problem import Problem
from fairbound.training._runner import run

_EVALUATIONS = 20  # on all examples during the training
EVALUATION_BATCH = 8_192  # examples of one forward pass of an evaluation

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Fitted:
    """The result of the training beside the weights; `print` shows the report."""

    report: KKT  # over all examples given, at the model's final weights
    # step, loss and violation (the largest c, at least 0) over all examples
    history: tuple[dict[str, float], ...]
    skipped: int  # steps skipped because a value was NaN or infinite
    infeasible: str | None  # a sign that no model meets the constraints, as a sentence
    groups: tuple[str, ...]  # names, in the order of their numbers in the constraint

    @property
    def constraints(self) -> dict[str, float]:
        """c by name over all examples given, feasible where <= 0."""
        return self.report.constraints

    @property
    def multipliers(self) -> dict[str, float]:
        """Multipliers by name; for a method that has none, those that fit best."""
        return self.report.multipliers

    def __str__(self) -> str:
        return str(self.report)


def fit(
    model: Any,
    X: Any,
    y: Any,
    *,
    sensitive_features: Any,
    constraint: str | Constraint | Callable[..., Constraint] = "pairwise_loss_parity",
    bound: float = 0.02,
    method: Algorithm[Any] | None = None,
    steps: int = 5_000,
    batch_size: int = 64,
    seed: int = 0,
    loss: Loss | None = None,
    as_in_prediction: bool = False,
) -> Fitted:
    """Train the model under the constraint on all examples given, and write the weights into it.

    Nothing is held out: `FairClassifier(module=model)` selects the model and gives a verdict on
    held-out data.

    Args:
        model: a built Keras model with one input that returns one logit (labels 0 and 1), or one
            per class.
        X, y: inputs as the model takes them (scaled, for example), and labels.
        sensitive_features: the group of every example; several columns give their intersections.
        constraint: the name of a notion of `fairbound.constraints`, a function of (names of the
            groups, bound=...) that gives a constraint, or a constraint.
        bound: of the constraint.
        method: how the constraint is met; `AdaptivePI()`, which needs no tuning, if not given.
        steps, batch_size: of the training; a step takes `batch_size` examples, and as many of every
            cell.
        seed: of the mini-batches.
        loss: a function of torch tensors (outputs, labels) that returns per-example losses, in
            place of the cross-entropy.
        as_in_prediction: see `KerasForward`.

    >>> import keras
    >>> rng = np.random.default_rng(0)
    >>> X, sex = rng.normal(size=(200, 3)), rng.choice(["f", "m"], 200)
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> found = fit(
    ...     model, X, X[:, 0] > 0, sensitive_features=sex, bound=0.05, steps=20, batch_size=8
    ... )
    >>> list(found.constraints)
    ['f - m', 'm - f']
    """
    if method is not None and not isinstance(method, Algorithm):
        raise TypeError(f"method must be a method such as SSLALM(tau=0.01), got {method!r}")
    if loss is None:
        refuse_probabilities(model)
    inputs = _inputs(X)
    check_inputs(model, inputs.shape)
    module = KerasModule(model, inputs, as_in_prediction=as_in_prediction)
    forward = module.flat_forward
    inputs = inputs.to(forward.dtype) if inputs.is_floating_point() else inputs
    labels, loss = _labels(y, len(inputs), forward(module.weights.detach(), inputs[:1]), loss)
    encoder = GroupEncoder.fit(sensitive_features, len(inputs), "intersectional")
    (column,), (groups,) = (
        encoder.columns.values(),
        encoder.transform(sensitive_features, len(inputs)).values(),
    )
    names, constraint = column.names, make_constraint(constraint, column.names, bound)
    bound_constraint = constraint.bind(groups, labels if constraint.cells.needs_labels else None)
    problem = Problem(forward, loss, bound_constraint, Dataset(inputs, labels, {"group": groups}))
    smallest = min(len(member) for member in bound_constraint.cells.examples)
    sizes = BatchSpec(min(batch_size, len(inputs)), max(1, min(batch_size, smallest)))
    sampler = Sampler(Split.all_train(len(inputs)), bound_constraint.cells, sizes, seed)

    every = max(1, steps // _EVALUATIONS)
    training = run(
        problem, method or AdaptivePI(), sampler, module.weights.detach(), steps, every=every
    )
    history, examples = [], torch.arange(len(inputs))
    for record in training:
        found = problem.evaluate(record.output[0], examples, at_once=EVALUATION_BATCH)
        violation = max(0.0, float(found.c.max()))
        history.append({"step": record.step, "loss": float(found.loss[0]), "violation": violation})
    end = training.result()

    with torch.no_grad():
        module.weights.copy_(end.output[0])
    module.keras_model()
    multipliers = end.multipliers[0]

    def evaluate(batch: Tensor) -> MiniBatch:
        outputs = module(inputs[batch])
        return MiniBatch(loss(outputs, labels[batch]), groups[batch], labels[batch], outputs)

    report = report_kkt(
        module,
        constraint,
        examples.split(EVALUATION_BATCH),
        evaluate,
        multipliers=None if torch.isnan(multipliers).any() else multipliers,
        warning=end.diverging[0] or end.infeasible[0],
    )
    return Fitted(report, tuple(history), int(end.skipped[0]), end.infeasible[0], names)


def _inputs(X: Any) -> Tensor:
    values = np.asarray(X)
    if values.dtype == object or values.ndim == 0:
        raise ValueError(
            f"X must be an array of numbers as the model takes them, got {type(X).__name__}"
        )
    return torch.from_numpy(np.ascontiguousarray(values))


def _labels(y: Any, examples: int, output: Tensor, loss: Loss | None) -> tuple[Tensor, Loss]:
    """Labels as the loss takes them, and the loss, by the shape of the model's output."""
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if len(values) != examples:
        raise ValueError(
            f"X has {examples} rows but y has {len(values)}; give one label for every example"
        )
    if loss is not None:
        labels = torch.from_numpy(np.ascontiguousarray(values))
        return (labels.to(output.dtype) if labels.is_floating_point() else labels), loss
    classes = 2 if output.ndim == 1 else output.shape[-1]
    allowed = np.arange(classes)
    if values.ndim != 1 or not np.isin(values, allowed).all():
        found = (
            "several numbers per example"
            if values.ndim != 1
            else str(np.unique(values)[:5].tolist())
        )
        raise ValueError(
            f"the model returns {output.shape[1:].numel()} output(s) per example, so labels must be"
            f" whole numbers from 0 to {classes - 1}, found {found}; number the classes, or pass"
            " loss="
        )
    labels = torch.from_numpy(values.astype(np.int64))
    if output.ndim == 1:
        return labels.to(output.dtype), partial(binary_cross_entropy_with_logits, reduction="none")
    return labels, partial(cross_entropy, reduction="none")
