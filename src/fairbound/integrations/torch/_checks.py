"""Checks of a loop's first mini-batch, for mistakes that would silently train something else."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from fairbound._utils.frames import frames_of_ours
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._contrasts import Each
from fairbound.core import MultiplierMethod
from fairbound.integrations.torch._parameters import Parameters, unwrapped
from fairbound.training._contract import toy_rows
from fairbound.training._hyperparams import with_hyperparams


def check_first(constraints: ConstraintSet, batch: MiniBatch) -> None:
    """Shapes, columns, devices and groups; probabilities in the place of logits; bounds that no
    loss can meet."""
    constraints.check(batch)
    rates = [
        part
        for part in constraints.parts
        if isinstance(part, Constraint) and part.statistic is not None
    ]
    if (
        rates
        and batch.outputs is not None
        and batch.outputs.numel() > 1
        and _are_probabilities(batch.outputs.detach())
    ):
        _warn(
            "all outputs of the first mini-batch lie between 0 and 1, as probabilities do, and"
            f" {rates[0].names[0]!r} is computed from logits: a positive prediction is one above 0;"
            " pass what goes into the sigmoid or softmax (a model that ends without one may ignore"
            " this)"
        )
    for part in constraints.parts:
        if (
            isinstance(part, Constraint)
            and part.statistic is None
            and isinstance(part.contrast, Each)
            and float(part.bound.min()) < 0
            and batch.losses.numel()
            and float(batch.losses.detach().min()) >= 0
        ):
            _warn(
                f"the bound of {part.names[int(part.bound.argmin())]!r} is negative, and all losses"
                " of the first mini-batch are >= 0: no model may meet it"
            )


def _are_probabilities(outputs: Tensor) -> bool:
    low, high = outputs.aminmax()
    # all equal: a last layer that starts at 0
    inside = bool((low >= 0) & (high <= 1) & (low < high))
    sums = outputs.sum(-1) if outputs.ndim == 2 and outputs.shape[1] > 1 else None
    return inside and (sums is None or torch.allclose(sums, torch.ones_like(sums), atol=1e-3))


def check_same_parameters(model: nn.Module | Iterable[Tensor], parameters: Parameters) -> None:
    """Whether the model still has the parameters that it had when the loop was built."""
    # fully_shard replaces them in its forward pass
    if not isinstance(model, nn.Module) or parameters.sharded:
        return
    known = {id(p) for p in parameters.tensors}
    for name, p in unwrapped(model).named_parameters():
        if p.requires_grad and id(p) not in known:
            raise ValueError(
                f"the parameter {name!r} was not among those to train when Constrained was built: a"
                " layer was replaced, added or unfrozen since; build Constrained after that"
            )


def check_tau(method: MultiplierMethod[Any]) -> None:
    """Warn where tau was set and nothing reads it: in a loop the optimizer's learning rate moves
    the model."""
    defaults = {field.name: field.default for field in fields(method)}  # type: ignore[arg-type]
    if not isinstance(method.tau, float) or method.tau == defaults.get("tau", method.tau):
        return
    m = toy_rows(method)
    # with slacks, where there are any
    state = method.start(torch.zeros(()), m, None, torch.full((m,), -0.5))
    values = [torch.full((m,), 0.1)] * method.draws
    states = [
        with_hyperparams(method, {"tau": tau}).step(state, *values)[1]
        for tau in (method.tau, method.tau + 1)
    ]
    if all(torch.equal(*leaves) for leaves in zip(*states, strict=True)):
        _warn(
            f"{type(method).__name__}(tau={method.tau:g}) has no effect in a loop: the optimizer's"
            " learning rate takes the place of tau; set lr= of the optimizer and omit tau"
        )


def check_dependence(reached: bool) -> None:
    """Whether a backward pass reached the parameters at all."""
    if not reached:
        raise ValueError(
            "the losses do not depend on the parameters that Constrained was built with: they are"
            " another model's; build Constrained with the model that computes them"
        )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=frames_of_ours())
