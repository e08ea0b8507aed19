"""Mini-batches of random size for stacked runs: values and Jacobians of chunks, summed back per run.

Every mini-batch is cut into chunks of the sampler's base size. The chunks of all runs form one flat stack, evaluated
in pieces of a fixed number, so that shapes never change. For a constraint made of plain means the mean over a
mini-batch is the mean over its chunks. Any other constraint, or a regulariser, is a nonlinear function of the whole
batch: then each mini-batch is evaluated as it is, run by run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils._pytree import tree_map

from fairbound.compiling import Compiler
from fairbound.core import Estimate, Sample
from fairbound.problem import Problem, join
from fairbound.sampling import Batch, SamplerStack

PIECE = 256  # most chunks evaluated at once: enough to hide the overhead of a call
PIECE_BYTES = 64 << 20  # memory for the Jacobians of one piece


class Tables(NamedTuple):
    """[f, statistics] of the four mini-batches of a step and their Jacobians, for every run."""

    value: Tensor  # (R, 4, 1+q)
    jacobian: Tensor  # (R, 4, 1+q, n)


class ChunkedTables:
    """Evaluates the four mini-batches (single, whole, odd half, even half) of every run at its point."""

    def __init__(self, problem: Problem, stack: SamplerStack, compiler: Compiler | None, x0: Tensor) -> None:
        self.problem, self.stack = problem, stack
        assert problem.constraint is not None
        self.separable = problem.constraint.averages and problem.regulariser is None
        self.piece = self._piece(x0)
        many = vmap(self._value_and_jacobian)
        self.fixed_shape = compiler is not None and self.separable
        self.many = compiler(many, "chunks") if compiler is not None and self.separable else many

    def _piece(self, x0: Tensor) -> int:
        """Chunks evaluated at once: about those of one step, within the memory."""
        assert self.problem.constraint is not None
        assert self.stack.law is not None
        expected = x0.shape[0] * (1 + sum(p * 2 ** (n + 1) for n, p in enumerate(self.stack.law.tolist())))
        bytes_each = (1 + self.problem.constraint.size) * x0.shape[1] * x0.element_size()
        return max(1, min(PIECE, 1 << math.ceil(math.log2(expected)), PIECE_BYTES // bytes_each))

    def evaluate(self, x: Tensor, step: int, level: Tensor) -> Tables:
        """Tables for the points x (R, n) and the levels (R,) of this step."""
        chunks = self.stack.chunks(step, level)
        return self._by_chunks(x, chunks.run, chunks.half, chunks.batch) if self.separable else self._by_runs(x, chunks)

    def samples(self, x: Tensor, tables: Tables) -> tuple[Sample, ...]:
        """The samples of one run; they were evaluated at x and know no other point."""

        def sample(value: Tensor, jacobian: Tensor) -> Sample:
            def at(point: Tensor) -> Estimate:
                if point is not x:
                    raise ValueError("a mini-batch of random size is evaluated at the step's own point only")
                return self.problem.estimate(value[0], value[1:], lambda w: w @ jacobian)

            return Sample(at)

        return tuple(sample(value, jacobian) for value, jacobian in zip(tables.value, tables.jacobian, strict=True))

    def _value_and_jacobian(self, x: Tensor, parts: dict[str, dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        value, pull = vjp(lambda point: self.problem.values(point, parts), x)[:2]
        unit = torch.eye(value.shape[0], dtype=value.dtype, device=value.device)
        return value, vmap(lambda w: pull(w)[0])(unit)

    def _by_chunks(self, x: Tensor, run: Tensor, half: Tensor, batch: Batch) -> Tables:
        runs = x.shape[0]
        slot = 3 * run + half  # (C,) single, odd, even of each run
        count = torch.zeros(3 * runs, dtype=x.dtype, device=x.device).index_add_(
            0, slot, torch.ones_like(slot, dtype=x.dtype)
        )
        value = jacobian = torch.zeros(())
        for piece in torch.arange(run.numel(), device=x.device).split(self.piece):
            size = piece.numel()
            if self.fixed_shape and size < self.piece:  # repeat the last chunk; its copies are not summed
                piece = torch.cat([piece, piece[-1:].expand(self.piece - size)])
            parts = self.problem.gather(Batch(batch.objective[piece], batch.cells[piece]), "fc")
            values, rows = self.many(x[run[piece]], parts)
            if value.ndim == 0:
                value = values.new_zeros(3 * runs, values.shape[1])
                jacobian = rows.new_zeros(3 * runs, *rows.shape[1:])
            own = slot[piece[:size]]
            value.index_add_(0, own, values[:size])
            jacobian.index_add_(0, own, rows[:size])
        return self._four(
            (value / count[:, None]).unflatten(0, (runs, 3)),
            (jacobian / count[:, None, None]).unflatten(0, (runs, 3)),
        )

    def _four(self, value: Tensor, jacobian: Tensor) -> Tables:
        """From single, odd, even to single, whole, odd, even; the whole is the mean of its halves."""

        def insert(parts: Tensor) -> Tensor:
            single, odd, even = parts.unbind(1)
            return torch.stack([single, (odd + even) / 2, odd, even], 1)

        return Tables(insert(value), insert(jacobian))

    def _by_runs(self, x: Tensor, chunks: Any) -> Tables:
        tables = []
        for r in range(x.shape[0]):
            own = chunks.run == r
            selections = (
                own & (chunks.half == 0),
                own & (chunks.half > 0),
                own & (chunks.half == 1),
                own & (chunks.half == 2),
            )
            gathered = (self.problem.gather(join(chunks.batch, chosen), "fc") for chosen in selections)
            found = [self._value_and_jacobian(x[r], parts) for parts in gathered]
            tables.append(Tables(torch.stack([v for v, _ in found]), torch.stack([j for _, j in found])))
        return tree_map(lambda *leaves: torch.stack(leaves), *tables)  # type: ignore[no-any-return]
