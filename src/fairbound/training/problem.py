"""A problem: model, loss, constraint and data as a random function of flat parameters.

>>> import torch
>>> from torch.nn.functional import binary_cross_entropy_with_logits as bce
>>> from fairbound import Problem, Sampler, Take, run, ALGORITHMS
>>> from fairbound.data import Dataset, Split
>>> from fairbound.fairness import pairwise_loss_parity
>>> from fairbound.training.functional import functional
>>> data = Dataset(torch.randn(64, 3), torch.ones(64), {"sex": torch.arange(64) % 2})
>>> forward, x = functional(torch.nn.Linear(3, 1))
>>> constraint = pairwise_loss_parity(data.groups["sex"], bound=0.01)
>>> problem = Problem(forward, lambda out, y: bce(out, y, reduction="none"), constraint, data)
>>> sampler = Sampler(Split.all_train(64), constraint.cells, Take(objective=8, cell=8), seed=0)
>>> run(problem, ALGORITHMS["SSLALM"](), sampler, x, steps=5).result().x.shape
torch.Size([1, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from fairbound.constraints.constraint import Constraint
from fairbound.core import Draw, Estimate, Sample
from fairbound.data.dataset import Dataset
from fairbound.data.samplers import START, Batch, Sampler, SamplerStack

Regularizer = Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]


class Evaluation(NamedTuple):
    """Loss (without regularizer) and constraints over all rows of a pool, for every run."""

    loss: Tensor  # (R,)
    c: Tensor  # (R, m)


@dataclass(frozen=True, eq=False)
class Problem:
    """min E loss s.t. constraint, over the flat parameters x of a model."""

    forward: Callable[[Tensor, Tensor], Tensor]  # (x (n,), inputs (B, ...)) -> outputs (B, ...)
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> (B,)
    constraint: Constraint | None
    data: Dataset
    regularizer: Regularizer | None = None  # (outputs, labels, groups) of a whole objective batch -> ()

    @property
    def m(self) -> int:
        return 0 if self.constraint is None else self.constraint.m

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the constraints."""
        return () if self.constraint is None else self.constraint.names

    # Mini-batches -----------------------------------------------------------------------------------------------------

    def gather(self, batch: Batch, evaluates: str) -> dict[str, dict[str, Tensor]]:
        """The tensors behind a batch's row numbers; only of the part that is read."""
        parts: dict[str, dict[str, Tensor]] = {}
        if "f" in evaluates:
            parts["f"] = self._rows(batch.objective)
            if self.regularizer is not None:
                parts["f"] |= {f"group {name}": column[batch.objective] for name, column in self.data.groups.items()}
        if "c" in evaluates:
            parts["c"] = self._rows(batch.cells)
        return parts

    def _rows(self, rows: Tensor) -> dict[str, Tensor]:
        flat = rows.flatten()  # index_select copies whole rows, twice as fast as indexing
        return {
            "inputs": self.data.X.index_select(0, flat).unflatten(0, rows.shape),
            "labels": self.data.y.index_select(0, flat).unflatten(0, rows.shape),
        }

    def sample(self, parts: dict[str, dict[str, Tensor]]) -> Sample:
        """The random function that gathered tensors fix. What was not read is NaN, so that a use of it cannot hide."""

        def at(x: Tensor) -> Estimate:
            value, pull = vjp(lambda point: self.values(point, parts), x)[:2]
            nothing = x.new_full((), torch.nan)
            if "c" not in parts:
                missing = nothing.expand(self.m)
                return Estimate(
                    value[0],
                    missing,
                    lambda w: pull(w[:1])[0] + torch.where((w[1:] != 0).any(), nothing, 0.0),
                    lambda: nothing.expand(self.m, x.shape[0]),
                )
            if "f" not in parts:
                return self.estimate(nothing, value, lambda w: pull(w[1:])[0] + torch.where(w[0] != 0, nothing, 0.0))
            return self.estimate(value[0], value[1:], lambda w: pull(w)[0])

        return Sample(at)

    def estimate(
        self, f: Tensor, statistics: Tensor, pull: Callable[[Tensor], Tensor], jacobian: Tensor | None = None
    ) -> Estimate:
        """An Estimate from f, the constraint's statistics (q,), and the transposed Jacobian of both, (1+q,) -> (n,).

        The Jacobian of the constraints needs a backward pass for each statistic (a cell), not for each constraint; none
        where that of the statistics is at hand, `jacobian` (q, n).
        """
        assert self.constraint is not None
        c, contrast = self.constraint.linearized(statistics)

        def rows() -> Tensor:
            if jacobian is not None:
                return contrast @ jacobian
            unit = torch.eye(1 + statistics.shape[0], dtype=statistics.dtype, device=statistics.device)[1:]
            return contrast @ vmap(pull)(unit)

        return Estimate(f, c, lambda w: pull(torch.cat([w[:1], w[1:] @ contrast])), rows)

    def values(self, x: Tensor, parts: dict[str, dict[str, Tensor]]) -> Tensor:
        """[f, statistics] of a mini-batch by one forward pass; a part that was not gathered is left out."""
        inputs = [part["inputs"] if name == "f" else part["inputs"].flatten(0, 1) for name, part in parts.items()]
        labels = [part["labels"] if name == "f" else part["labels"].flatten(0, 1) for name, part in parts.items()]
        outputs = self.forward(x, torch.cat(inputs)).split([len(block) for block in inputs])
        losses = [self.loss(output, label) for output, label in zip(outputs, labels, strict=True)]
        found = []
        if "f" in parts:
            found.append(self._objective(outputs[0], labels[0], losses[0], parts["f"]).reshape(1))
        if "c" in parts:
            assert self.constraint is not None
            shape = parts["c"]["labels"].shape[:2]  # (K, b)
            by_cell = [block[-1].unflatten(0, shape) for block in (outputs, labels, losses)]
            found.append(self.constraint.statistics(x, by_cell[0], by_cell[1], by_cell[2]))
        return torch.cat(found)

    def jacobian(self, x: Tensor, parts: dict[str, dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        """[f, statistics] of a mini-batch of both parts, (1+q,), and their Jacobian (1+q, n)."""
        assert self.constraint is not None
        if self.constraint.by_cell and self.regularizer is None:
            return self._jacobian_by_cell(x, parts)
        value, pull = vjp(lambda point: self.values(point, parts), x)[:2]
        unit = torch.eye(value.shape[0], dtype=value.dtype, device=value.device)
        return value, vmap(lambda w: pull(w)[0])(unit)

    def _jacobian_by_cell(self, x: Tensor, parts: dict[str, dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        """Objective and cells read rows of their own, so each gets a copy of x: one backward pass for all of them."""
        objective, cells = parts["f"], parts["c"]

        def total(copies: Tensor) -> tuple[Tensor, Tensor]:
            f = self.loss(self.forward(copies[0], objective["inputs"]), objective["labels"]).mean()
            outputs = vmap(self.forward)(copies[1:], cells["inputs"])
            losses = self.loss(outputs.flatten(0, 1), cells["labels"].flatten(0, 1)).unflatten(0, outputs.shape[:2])
            assert self.constraint is not None
            by_cell = [outputs, cells["labels"], losses]
            value = torch.cat([f.reshape(1), self.constraint.statistics(x, *by_cell)])
            return value.sum(), value

        rows, value = grad(total, has_aux=True)(x.expand(1 + len(cells["labels"]), -1))
        return value, rows

    def _objective(self, outputs: Tensor, labels: Tensor, losses: Tensor, part: dict[str, Tensor]) -> Tensor:
        if self.regularizer is None:
            return losses.mean()
        groups = {name.removeprefix("group "): column for name, column in part.items() if name.startswith("group ")}
        return losses.mean() + self.regularizer(outputs, labels, groups)

    def source(self, sampler: Sampler) -> ProblemSource:
        """The draws of one run, step after step, for a loop written by hand."""
        return ProblemSource(self, sampler)

    # Whole pools ------------------------------------------------------------------------------------------------------

    def measure(self, x: Tensor, rows: Tensor, *, at_once: int = 1 << 18) -> Evaluation:
        """Loss and constraints over all of `rows`, at x (n,) or (R, n); `at_once` limits rows x runs a forward pass."""
        points = x.reshape(-1, x.shape[-1])
        rows = (rows.nonzero().flatten() if rows.dtype == torch.bool else rows).to(self.data.X.device)
        if rows.numel() == 0:
            raise ValueError("there are no rows to measure on")
        step = max(1, at_once // points.shape[0])
        with torch.no_grad():
            outputs = torch.cat(
                [vmap(self.forward, (0, None))(points, self.data.X[block]) for block in rows.split(step)], 1
            )  # (R, rows, ...)
            labels = self.data.y[rows]
            losses = vmap(self.loss, (0, None))(outputs, labels)  # (R, rows)
            return Evaluation(losses.mean(1), self._constraints(points, rows, outputs, labels, losses))

    def _constraints(self, points: Tensor, rows: Tensor, outputs: Tensor, labels: Tensor, losses: Tensor) -> Tensor:
        if self.constraint is None:
            return points.new_zeros(points.shape[0], 0)
        members = []  # for each cell the places of its rows; a row that is given twice counts twice
        for member in self.constraint.cells.members:
            inside = torch.zeros(self.data.rows, dtype=torch.bool)
            inside[member] = True
            members.append(inside[rows.cpu()].nonzero().flatten())
        for name, member in zip(self.constraint.cells.names, members, strict=True):
            if member.numel() == 0:
                raise ValueError(f"cell {name!r} has none of the {rows.numel()} rows to be measured")
        members = [member.to(rows.device) for member in members]

        def one(point: Tensor, output: Tensor, loss: Tensor) -> Tensor:
            assert self.constraint is not None
            statistics = self.constraint.statistics(
                point, [output[m] for m in members], [labels[m] for m in members], [loss[m] for m in members]
            )
            return self.constraint.linearized(statistics)[0]

        return vmap(one)(points, outputs, losses)

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self, x: Tensor) -> None:
        """Look at shapes and types before a long computation; x (n,)."""
        few = min(3, self.data.rows)
        inputs, labels = self.data.X[:few], self.data.y[:few]
        if not x.is_floating_point():
            raise ValueError(f"the starting point must be floating point, got {x.dtype}")
        for name, values in (("X", inputs), ("y", labels)):
            if values.is_floating_point() and values.dtype != x.dtype:
                raise ValueError(
                    f"{name} is {values.dtype} but the parameters are {x.dtype}; use data.to(dtype={x.dtype})"
                )
            if values.device != x.device:
                raise ValueError(
                    f"{name} is on {values.device} but the parameters are on {x.device}; use data.to({str(x.device)!r})"
                )
        expected = getattr(self.forward, "n", x.numel())
        if x.shape != (expected,):
            raise ValueError(f"the model has {expected} parameters, got a starting point of shape {tuple(x.shape)}")
        with torch.no_grad():
            outputs = _tried(self.forward, "the model", x, inputs)
            if outputs.shape[:1] != (few,):
                raise ValueError(
                    f"the model must give one output per row; {few} rows gave shape {tuple(outputs.shape)}"
                )
            losses = _tried(self.loss, "the loss", outputs, labels)
        if losses.shape != (few,):
            raise ValueError(
                f"the loss must give one number per row; {few} rows gave shape {tuple(losses.shape)} from outputs "
                f"{tuple(outputs.shape)} and labels {tuple(labels.shape)}; use reduction='none' and equal shapes"
            )


def _tried(function: Callable[..., Tensor], what: str, *args: Tensor) -> Tensor:
    """A call on a few rows; what torch says of wrong shapes and types comes with the shapes and types."""
    try:
        return function(*args)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        given = ", ".join(f"{tuple(a.shape)} {a.dtype}".replace("torch.", "") for a in args)
        raise ValueError(f"{what} does not take what it is given ({given}): {error}") from error


class ProblemSource:
    """Draws of one run for a loop written by hand; `run` makes the same ones in blocks."""

    def __init__(self, problem: Problem, sampler: Sampler) -> None:
        self.problem = problem
        self.sampler = sampler
        self.step = 0
        self._stacks: dict[tuple[int, bool], SamplerStack] = {}

    def _stack(self, draws: int, levels: Sequence[float] | None) -> SamplerStack:
        key = (draws, levels is None)
        if key not in self._stacks:
            self._stacks[key] = SamplerStack([self.sampler], draws, levels, self.problem.data.X.device)
        return self._stacks[key]

    def next(self, evaluates: Sequence[str], levels: Sequence[float] | None) -> Draw:
        """The randomness of the next step."""
        stack = self._stack(len(evaluates), levels)
        coin = stack.coins(self.step, 1)[0, 0]
        samples, weight = self._fixed(stack, evaluates) if levels is None else self._random(stack)
        self.step += 1
        return Draw(samples, weight, coin)

    def first(self, evaluates: Sequence[str]) -> Sample:
        """The mini-batch that the starting point is measured on."""
        stack = self._stack(len(evaluates), None)
        return self.problem.sample(self.problem.gather(_run_of(stack.block(START, 1)[0], 0, 0), "fc"))

    def _fixed(self, stack: SamplerStack, evaluates: Sequence[str]) -> tuple[tuple[Sample, ...], Tensor]:
        batches = stack.block(self.step, 1, evaluates)
        gathered = [self.problem.gather(_run_of(b, 0, 0), read) for b, read in zip(batches, evaluates, strict=True)]
        return tuple(self.problem.sample(parts) for parts in gathered), torch.ones(())

    def _random(self, stack: SamplerStack) -> tuple[tuple[Sample, ...], Tensor]:
        level, weight = stack.levels(self.step, 1)
        chunks = stack.chunks(self.step, level[0])
        joined = [join(chunks.batch, chunks.half == half) for half in (0, 1, 2)]
        whole = join(chunks.batch, chunks.half > 0)
        samples = tuple(
            self.problem.sample(self.problem.gather(b, "fc")) for b in (joined[0], whole, joined[1], joined[2])
        )
        return samples, weight[0, 0]


def _run_of(batch: Batch, step: int, run: int) -> Batch:
    return Batch(batch.objective[step, run], batch.cells[step, run])


def join(batch: Batch, chosen: Tensor) -> Batch:
    """One mini-batch from the chosen chunks."""
    return Batch(batch.objective[chosen].flatten(), batch.cells[chosen].transpose(0, 1).flatten(1))
