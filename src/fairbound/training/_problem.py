"""A problem: model, loss, constraint and data as a random function of flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import AnyConstraint, FunctionConstraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._layouts import BlockedLayout, GroupedLayout
from fairbound.core import Draw, Estimate, Sample
from fairbound.data._dataset import Dataset
from fairbound.data._samplers import START, Batch, Sampler, SamplerStack

Regularizer = Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]
Gathered = dict[str, dict[str, Tensor]]  # by "f" and "c": inputs, labels and groups of the examples
GROUP = "group "  # before the name of a column of groups


class Evaluation(NamedTuple):
    """Loss (without regularizer) and constraints over many examples, for every run."""

    loss: Tensor  # (R,)
    c: Tensor  # (R, m)


@dataclass(frozen=True, eq=False)
class Problem:
    """min E loss s.t. constraint, over the flat parameters x of a model.

    >>> from fairbound import constraints, make_functional
    >>> data = Dataset(torch.randn(64, 3), torch.randn(64), {"sex": torch.arange(64) % 2})
    >>> forward, x = make_functional(torch.nn.Linear(3, 1))
    >>> parity = constraints.pairwise_loss_parity(["F", "M"], bound=0.01).bind(data.groups["sex"])
    >>> problem = Problem(forward, lambda outputs, y: (outputs - y) ** 2, parity, data)
    >>> problem.evaluate(x, torch.arange(64)).c.shape
    torch.Size([1, 2])
    """

    forward: Callable[[Tensor, Tensor], Tensor]  # (x (n,), inputs (B, ...)) -> outputs (B, ...)
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> (B,)
    constraint: AnyConstraint | ConstraintSet | None  # bound to the data
    data: Dataset
    # (outputs, labels, groups) of a whole objective batch -> ()
    regularizer: Regularizer | None = None

    @cached_property
    def constraints(self) -> ConstraintSet:
        """All constraints, in the data's precision; none is an empty set."""
        if self.constraint is None:
            return ConstraintSet(())
        one_or_set = self.constraint
        constraints = (
            one_or_set if isinstance(one_or_set, ConstraintSet) else ConstraintSet((one_or_set,))
        )
        dtype = self.data.X.dtype if self.data.X.is_floating_point() else torch.get_default_dtype()
        return constraints.to(self.data.X.device, dtype)

    @property
    def m(self) -> int:
        return self.constraints.m

    @property
    def names(self) -> Sequence[str]:
        """Names of the constraints."""
        return self.constraints.names

    @property
    def vectorizes(self) -> bool:
        """Whether the model can be vmapped; a Keras model cannot."""
        return bool(getattr(self.forward, "stacks", True))

    # Mini-batches ---------------------------------------------------------------------------------

    def gather(self, batch: Batch, evaluates: str) -> Gathered:
        """The tensors behind a batch's example numbers; only of the part that is evaluated."""
        parts: Gathered = {}
        if "f" in evaluates:
            parts["f"] = self._examples(batch.objective, groups=self.regularizer is not None)
        if "c" in evaluates:
            parts["c"] = self._examples(batch.cells, groups=not self.constraints.by_cell)
        return parts

    def _examples(self, numbers: Tensor, groups: bool) -> dict[str, Tensor]:
        flat = numbers.flatten()  # index_select copies whole rows, twice as fast as indexing
        columns = {"inputs": self.data.X, "labels": self.data.y}
        if groups:
            columns |= {f"{GROUP}{name}": column for name, column in self.data.groups.items()}
        return {
            name: column.index_select(0, flat).unflatten(0, numbers.shape)
            for name, column in columns.items()
        }

    def layout(self, parts: Gathered) -> BlockedLayout:
        """Layout that says where the examples of gathered tensors count."""
        objective = parts["f"]["labels"].shape[0] if "f" in parts else 0
        cell = parts["c"]["labels"].shape[1] if "c" in parts else 0
        return BlockedLayout(self.constraints.terms if "c" in parts else (), objective, cell)

    def sample(self, parts: Gathered) -> Sample:
        """The random function that gathered tensors fix. What is not evaluated is NaN, so that
        using it shows."""
        constraints = self.constraints if "c" in parts else ConstraintSet(())
        layout = self.layout(parts)

        def at(x: Tensor) -> Estimate:
            values, pull = self.vjp(lambda point: self.values(point, parts, layout), x)
            means = self._means(constraints, layout, values)
            e = constraints.estimate(
                means, lambda w: pull(self._cotangents(constraints, layout, values, w))
            )
            nothing = x.new_full((), torch.nan)
            if "c" not in parts:
                c = nothing.expand(self.m)
                return Estimate(
                    e.f,
                    c,
                    lambda w: e.vjp(w[:1]) + torch.where((w[1:] != 0).any(), nothing, 0.0),
                )
            if "f" not in parts:
                return Estimate(
                    nothing, e.c, lambda w: e.vjp(w) + torch.where(w[0] != 0, nothing, 0.0), e.cells
                )
            return e

        return Sample(at)

    def vjp(
        self, function: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[Sequence[Tensor]], Tensor]]:
        """The values of a function at x, and the gradient of a weighted sum of them."""
        if self.vectorizes:
            values, pull = torch.func.vjp(function, x)[:2]
            return values, lambda weights: pull(tuple(weights))[0]
        point = x.detach().requires_grad_()
        with torch.enable_grad():
            graph = function(point)

        def gradient(weights: Sequence[Tensor]) -> Tensor:
            (grad_x,) = torch.autograd.grad(
                graph, point, list(weights), retain_graph=True, allow_unused=True
            )
            return torch.zeros_like(point) if grad_x is None else grad_x

        return tuple(value.detach() for value in graph), gradient

    def values(self, x: Tensor, parts: Gathered, layout: BlockedLayout) -> tuple[Tensor, ...]:
        """What is differentiated, by one forward pass: per-example values, functions, and the
        regularizer."""
        flat_parts = {name: part if name == "f" else _flat(part) for name, part in parts.items()}
        labels = torch.cat([part["labels"] for part in flat_parts.values()])
        outputs = self.forward(x, torch.cat([part["inputs"] for part in flat_parts.values()]))
        batch = MiniBatch(self.loss(outputs, labels), None, labels, outputs)
        values = [batch.losses]
        if "c" in parts:
            values = self.constraints.example_values(batch)
            functions = self.constraints.function_values(
                lambda i: self._block(i, x, batch, flat_parts["c"], layout)
            )
            if any(observed is not None for _, observed in functions):
                raise ValueError(
                    "a function that is observed at some steps only works in a loop, with"
                    " Constrained; run() wants all of its values"
                )
            values += [value for value, _ in functions]
        if "f" in parts and self.regularizer is not None:
            size = layout.objective
            values.append(
                self.regularizer(outputs[:size], labels[:size], group_columns(flat_parts["f"]))
            )
        return tuple(values)

    def _block(
        self, i: int, x: Tensor, batch: MiniBatch, part: dict[str, Tensor], layout: BlockedLayout
    ) -> MiniBatch:
        """The examples of a function: those of its cells."""
        assert batch.labels is not None
        assert batch.outputs is not None
        losses, labels, outputs = (
            layout.block(i, column) for column in (batch.losses, batch.labels, batch.outputs)
        )
        columns = {
            name: layout.block(i, column, of_cells=True)
            for name, column in group_columns(part).items()
        }
        groups = next(iter(columns.values())) if len(columns) == 1 else columns or None
        return MiniBatch(losses, groups, labels, outputs, parameters=(x,))

    def _means(
        self, constraints: ConstraintSet, layout: BlockedLayout, values: tuple[Tensor, ...]
    ) -> Tensor:
        """(1+q,) the means of a mini-batch, the objective's with the regularizer."""
        means, rest = (
            layout.means(values[: len(constraints.statistics)]),
            iter(values[len(constraints.statistics) :]),
        )
        for i, part in enumerate(constraints.parts, 1):
            if isinstance(part, FunctionConstraint):
                means[i] = next(rest)
        if layout.objective and self.regularizer is not None:
            means[0] = means[0] + next(rest)
        return torch.cat(means)

    def _cotangents(
        self,
        constraints: ConstraintSet,
        layout: BlockedLayout,
        values: tuple[Tensor, ...],
        w: Tensor,
    ) -> list[Tensor]:
        """The weights of all that is differentiated, from a weight on every mean."""
        by_mean = constraints.split(w)
        cotangents = layout.spread_means(by_mean, values[: len(constraints.statistics)])
        parts = zip(constraints.parts, by_mean[1:], strict=True)
        cotangents += [weight for part, weight in parts if isinstance(part, FunctionConstraint)]
        return (
            [*cotangents, w[0]] if layout.objective and self.regularizer is not None else cotangents
        )

    def means_and_jacobian(self, x: Tensor, parts: Gathered) -> tuple[Tensor, Tensor]:
        """The means of a mini-batch of both parts, (1+q,), and their Jacobian (1+q, n)."""
        layout = self.layout(parts)
        if self.constraints.by_cell and self.regularizer is None and self.vectorizes:
            return self._jacobian_by_cell(x, parts, layout)
        values, pull = self.vjp(lambda point: self.values(point, parts, layout), x)
        means = self._means(self.constraints, layout, values)
        unit = torch.eye(means.shape[0], dtype=means.dtype, device=means.device)
        rows = [pull(self._cotangents(self.constraints, layout, values, row)) for row in unit]
        return means, torch.stack(rows)

    def _jacobian_by_cell(
        self, x: Tensor, parts: Gathered, layout: BlockedLayout
    ) -> tuple[Tensor, Tensor]:
        """Objective and cells have different examples, so each gets a copy of x: one backward pass
        for all."""
        objective, cells = parts["f"], parts["c"]

        def total(copies: Tensor) -> tuple[Tensor, Tensor]:
            outputs = torch.cat(
                [
                    self.forward(copies[0], objective["inputs"]),
                    vmap(self.forward)(copies[1:], cells["inputs"]).flatten(0, 1),
                ]
            )
            labels = torch.cat([objective["labels"], cells["labels"].flatten(0, 1)])
            batch = MiniBatch(self.loss(outputs, labels), None, labels, outputs)
            values = self.constraints.example_values(batch)
            differentiated = torch.cat(layout.means(values, surrogates=True))
            return differentiated.sum(), torch.cat(layout.means(values))

        rows, means = grad(total, has_aux=True)(x.expand(1 + len(cells["labels"]), -1))
        return means, rows

    def source(self, sampler: Sampler) -> ProblemSource:
        """The draws of one run, step after step, for a custom loop."""
        return ProblemSource(self, sampler)

    # Many examples --------------------------------------------------------------------------------

    def evaluate(self, x: Tensor, examples: Tensor, *, at_once: int = 1 << 18) -> Evaluation:
        """Loss and constraints over all of `examples`, at x (n,) or (R, n); `at_once` bounds
        examples x runs a pass."""
        points = x.reshape(-1, x.shape[-1])
        numbers = (examples.nonzero().flatten() if examples.dtype == torch.bool else examples).to(
            self.data.X.device
        )
        if numbers.numel() == 0:
            raise ValueError("there are no examples to evaluate on")
        step = max(1, at_once // points.shape[0])
        with torch.no_grad():
            outputs = torch.cat(
                [
                    vmap(self.forward, (0, None))(points, self.data.X[block])
                    for block in numbers.split(step)
                ],
                1,
            )  # (R, examples, ...)
            labels = self.data.y[numbers]
            losses = vmap(self.loss, (0, None))(outputs, labels)  # (R, examples)
            values = vmap(self._evaluator(numbers, labels))(points, outputs, losses)
        return Evaluation(values[:, 0], values[:, 1:])

    def _evaluator(
        self, numbers: Tensor, labels: Tensor
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """[f, c] (1+m,) of one point from outputs and losses."""
        constraints, device = self.constraints, numbers.device
        inside = torch.zeros(self.data.rows, dtype=torch.bool)
        inside[numbers.cpu()] = True
        for name, member in zip(constraints.cells.names, constraints.cells.examples, strict=True):
            if not bool(inside[member].any()):
                raise ValueError(
                    f"cell {name!r} has none of the {numbers.numel()} examples to be evaluated"
                )
        layers = [
            () if term.statistic is None else part.cells.layers_of(numbers, self.data.rows)
            for part, term in zip(constraints.parts, constraints.terms, strict=True)
        ]
        # for a function the places of its examples; one that is given twice counts twice
        chosen = {}
        for i, (part, term) in enumerate(zip(constraints.parts, constraints.terms, strict=True)):
            if term.statistic is None:
                places = [
                    torch.isin(numbers.cpu(), member).nonzero().flatten()
                    for member in part.cells.examples
                ]
                chosen[i] = torch.cat([*places, torch.zeros(0, dtype=torch.long)]).to(device)

        def evaluate_run(point: Tensor, outputs: Tensor, losses: Tensor) -> Tensor:
            def block(i: int) -> MiniBatch:
                at = chosen[i]
                columns = {name: column[numbers[at]] for name, column in self.data.groups.items()}
                groups = next(iter(columns.values())) if len(columns) == 1 else columns or None
                return MiniBatch(losses[at], groups, labels[at], outputs[at], parameters=(point,))

            batch = MiniBatch(losses, None, labels, outputs)
            layout = GroupedLayout(constraints.terms, layers, losses)
            values = constraints.example_values(batch)
            totals = constraints.sums_counts(values, constraints.function_values(block), layout)
            return constraints.value(totals.means)

        return evaluate_run

    # Checks ---------------------------------------------------------------------------------------

    def check(self, x: Tensor) -> None:
        """Check shapes and types before a long computation; x (n,)."""
        few = min(3, self.data.rows)
        inputs, labels = self.data.X[:few], self.data.y[:few]
        if not x.is_floating_point():
            raise ValueError(f"the starting point must be floating point, got {x.dtype}")
        for name, values in (("X", inputs), ("y", labels)):
            if values.is_floating_point() and values.dtype != x.dtype:
                raise ValueError(
                    f"{name} is {values.dtype} but the parameters are {x.dtype}; use"
                    f" data.to(dtype={x.dtype})"
                )
            if values.device != x.device:
                raise ValueError(
                    f"{name} is on {values.device} but the parameters are on {x.device}; use"
                    f" data.to({str(x.device)!r})"
                )
        expected = getattr(self.forward, "n", x.numel())
        if x.shape != (expected,):
            raise ValueError(
                f"the model has {expected} parameters, got a starting point of shape"
                f" {tuple(x.shape)}"
            )
        with torch.no_grad():
            outputs = _tried(self.forward, "the model", x, inputs)
            if outputs.shape[:1] != (few,):
                raise ValueError(
                    f"the model must give one output per example; {few} examples gave shape"
                    f" {tuple(outputs.shape)}"
                )
            losses = _tried(self.loss, "the loss", outputs, labels)
        if losses.shape != (few,):
            raise ValueError(
                f"the loss must be per example; {few} examples gave shape {tuple(losses.shape)}"
                f" from outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}; use"
                " reduction='none' and equal shapes"
            )


def _flat(part: dict[str, Tensor]) -> dict[str, Tensor]:
    """(K, b, ...) as (K b, ...)."""
    return {name: column.flatten(0, 1) for name, column in part.items()}


def group_columns(part: dict[str, Tensor]) -> dict[str, Tensor]:
    """The columns of groups among gathered tensors, by name."""
    return {
        name.removeprefix(GROUP): column for name, column in part.items() if name.startswith(GROUP)
    }


def _tried(function: Callable[..., Tensor], name: str, *args: Tensor) -> Tensor:
    """Call a function on a few examples; an error from torch is raised with the shapes and types of
    the arguments."""
    try:
        return function(*args)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes = ", ".join(f"{tuple(a.shape)} {a.dtype}".replace("torch.", "") for a in args)
        raise ValueError(f"{name} does not accept these arguments ({shapes}): {error}") from error


class ProblemSource:
    """Draws of one run for a custom loop; `run` makes the same ones in blocks."""

    def __init__(self, problem: Problem, sampler: Sampler) -> None:
        self.problem = problem
        self.sampler = sampler
        self.step = 0
        self._stacks: dict[tuple[int, bool], SamplerStack] = {}

    def _stack(self, draws: int, batch_size_probs: Sequence[float] | None) -> SamplerStack:
        key = (draws, batch_size_probs is None)
        if key not in self._stacks:
            self._stacks[key] = SamplerStack(
                [self.sampler], draws, batch_size_probs, self.problem.data.X.device
            )
        return self._stacks[key]

    def next(self, evaluates: Sequence[str], batch_size_probs: Sequence[float] | None) -> Draw:
        """The randomness of the next step."""
        stack = self._stack(len(evaluates), batch_size_probs)
        uniform = stack.uniform(self.step, 1)[0, 0]
        weight = torch.ones(())
        if batch_size_probs is None:
            batches = [_run_of(batch) for batch in stack.block(self.step, 1, evaluates)]
        else:
            level, weights = stack.levels(self.step, 1)
            batches, weight = list(stack.chunks(self.step, level[0]).batches(0)), weights[0, 0]
        self.step += 1
        gathered = [
            self.problem.gather(b, evaluated)
            for b, evaluated in zip(batches, evaluates, strict=True)
        ]
        return Draw(tuple(self.problem.sample(parts) for parts in gathered), weight, uniform)

    def first(self, evaluates: Sequence[str]) -> Sample:
        """The mini-batch that the starting point is evaluated on."""
        stack = self._stack(len(evaluates), None)
        return self.problem.sample(self.problem.gather(_run_of(stack.block(START, 1)[0]), "fc"))


def _run_of(batch: Batch) -> Batch:
    """The one run and step of a block."""
    return Batch(batch.objective[0, 0], batch.cells[0, 0])
