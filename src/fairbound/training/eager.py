"""Estimates in plain autograd, for one run of a model that cannot be vmapped: every question is a backward pass.

Two ways to the same numbers. `General` evaluates what a `Problem` evaluates. `Means` serves the commonest problem,
limits on the mean losses of cells and no regularizer: [f, c] then is one linear map of the losses of a mini-batch, and
a combination of them is a weight for every row. Where the forward function offers a pull-back of its own (`at`),
autograd sees the loss alone. Both together take a third off the time of a small Keras model's step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.constraint import CellConstraint
from fairbound.core import Estimate
from fairbound.data.samplers import Batch
from fairbound.training.problem import Problem


class Eager(ABC):
    """How the mini-batches of a run are fetched and evaluated."""

    @abstractmethod
    def gather(self, batch: Batch, evaluates: str) -> Any:
        """The tensors behind a batch's row numbers (..., B) and (..., K, b), as a tree; only of what is read."""

    @abstractmethod
    def at(self, parts: Any, evaluates: str, x: Tensor) -> Estimate:
        """What gathered tensors of one mini-batch show at x. What was not read is NaN, as in `Problem.sample`."""


def eager(problem: Problem) -> Eager:
    """The shorter way where it serves."""
    constraint = problem.constraint
    means = isinstance(constraint, CellConstraint) and constraint.value is None and not constraint.absolute
    return Means(problem) if means and problem.regularizer is None else General(problem)


def _estimate(
    values: Tensor,
    x: Tensor,
    evaluates: str,
    m: int,
    pull: Callable[[Tensor], Tensor],
    jacobian: Callable[[], Tensor],
) -> Estimate:
    """An Estimate from what was read of [f, c] at x and the gradient of a combination of it."""
    if evaluates == "fc":
        return Estimate(values[0], values[1:], pull, jacobian)
    nothing = values.new_full((), torch.nan)
    if evaluates == "f":
        return Estimate(
            values[0],
            nothing.expand(m),
            lambda w: nothing.expand_as(x) if w[1:].any() else pull(w[:1]),
            lambda: nothing.expand(m, x.shape[0]),
        )
    return Estimate(nothing, values, lambda w: nothing.expand_as(x) if w[0] else pull(w[1:]), jacobian)


def _slope(graph: Tensor, point: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient of the sum of graph times cotangent; a graph answers as often as it is asked."""
    (found,) = torch.autograd.grad(graph, point, cotangent, retain_graph=True, allow_unused=True)
    return torch.zeros_like(point) if found is None else found


class General(Eager):
    """Any problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def gather(self, batch: Batch, evaluates: str) -> Any:
        return self.problem.gather(batch, evaluates)

    def at(self, parts: Any, evaluates: str, x: Tensor) -> Estimate:
        point = x.detach().requires_grad_()
        with torch.enable_grad():
            graph = self.problem.values(point, parts)
        found = graph.detach()
        constraint = self.problem.constraint
        if constraint is None or evaluates == "f":
            return _estimate(found, x, "f", self.problem.m, lambda w: _slope(graph, point, w), lambda: found)
        first = len(found) - constraint.size  # 1 with the objective, else 0
        c, contrast = constraint.linearized(found[first:])

        def pull(w: Tensor) -> Tensor:
            return _slope(graph, point, torch.cat([w[:first], w[first:] @ contrast]))

        def jacobian() -> Tensor:
            unit = torch.eye(len(found), dtype=found.dtype, device=found.device)[first:]
            return contrast @ torch.stack([_slope(graph, point, one) for one in unit])

        return _estimate(torch.cat([found[:first], c]), x, evaluates, self.problem.m, pull, jacobian)


class Map(NamedTuple):
    """What was read of [f, c] as a linear map of a mini-batch's losses."""

    whole: Tensor  # (1+m, rows); without what is not read
    minus_bound: Tensor  # (1+m,)
    cells: Tensor  # (K, rows) the means of cells
    contrast: Tensor  # (m, K)


class Means(Eager):
    """Limits on the mean losses of cells."""

    def __init__(self, problem: Problem) -> None:
        assert isinstance(problem.constraint, CellConstraint)
        self.problem, self.constraint = problem, problem.constraint
        self._maps: dict[tuple[str, int, int], Map] = {}

    def gather(self, batch: Batch, evaluates: str) -> Any:
        objective = batch.objective if "f" in evaluates else batch.objective[..., :0]
        rows = torch.cat([objective] + [batch.cells.flatten(-2)] * ("c" in evaluates), -1)  # one forward pass for all
        flat, data = rows.flatten(), self.problem.data
        inputs, labels = (column.index_select(0, flat).unflatten(0, rows.shape) for column in (data.X, data.y))
        return inputs, labels, objective

    def at(self, parts: Any, evaluates: str, x: Tensor) -> Estimate:
        inputs, labels, objective = parts
        losses, pull = self._losses(x, inputs, labels)
        key = (evaluates, objective.shape[0], inputs.shape[0])
        if key not in self._maps:
            self._maps[key] = self._map(*key, losses)
        own = self._maps[key]
        values = torch.addmv(own.minus_bound, own.whole, losses)

        def jacobian() -> Tensor:
            return own.contrast @ torch.stack([pull(one) for one in own.cells])

        return _estimate(values, x, evaluates, self.problem.m, lambda w: pull(w @ own.whole), jacobian)

    def _losses(self, x: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The losses of rows, and the gradient (n,) of their sum with weights."""
        loss, at = self.problem.loss, getattr(self.problem.forward, "at", None)
        if at is None:
            point = x.detach().requires_grad_()
            with torch.enable_grad():
                losses = loss(self.problem.forward(point, inputs), labels)
            return losses.detach(), lambda weights: _slope(losses, point, weights)
        here = at(x, inputs)
        outputs = here.outputs().requires_grad_()
        with torch.enable_grad():
            losses = loss(outputs, labels)
        return losses.detach(), lambda weights: here.pull(_slope(losses, outputs, weights))

    def _map(self, evaluates: str, objective: int, rows: int, like: Tensor) -> Map:
        cells, contrast = len(self.constraint.cells), self.constraint.contrast.to(like)
        of_f = like.new_zeros(1, rows)
        of_f[:, :objective] = 1 / max(1, objective)
        each = (rows - objective) // cells
        of_cells = like.new_zeros(cells, rows)
        of_cells[:, objective:] = torch.eye(cells).repeat_interleave(each, 1).to(like) / max(1, each)
        read = [of_f] * ("f" in evaluates) + [contrast @ of_cells] * ("c" in evaluates)
        bound = [like.new_zeros(1)] * ("f" in evaluates) + [-self.constraint.bound.to(like)] * ("c" in evaluates)
        return Map(torch.cat(read), torch.cat(bound), of_cells, contrast)
