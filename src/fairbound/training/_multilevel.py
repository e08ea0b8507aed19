"""Mini-batches of random size for stacked runs: values and Jacobians of chunks, summed back per
run.

Every mini-batch is split into chunks of the sampler's base size, and these are joined to units of
1, 4 or 16 chunks of one mini-batch: few shapes, and for a large mini-batch few Jacobians. The units
of all runs form a flat stack for each shape, evaluated in pieces of a fixed number, so that shapes
never change. For a constraint made of plain means the mean over a mini-batch is that over its
units. Any other constraint, or a regularizer, is a nonlinear function of the whole batch: then each
mini-batch is evaluated as it is, run by run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fairbound.core import Estimate, Sample
from fairbound.data._samplers import Batch, Chunks, SamplerStack
from fairbound.training._compile import Compiler
from fairbound.training._problem import Problem

# evaluated at once: enough to hide the overhead of a call, few enough for the cache of a core
_EXAMPLES_AT_ONCE = 3_072
JACOBIAN_BYTES_AT_ONCE = 1 << 20  # of their Jacobians, for the same reason
UNITS = (1, 4, 16)  # chunks of a unit


class Tables(NamedTuple):
    """The means of the four mini-batches of a step and their Jacobians, for every run."""

    means: Tensor  # (R, 4, 1+q)
    jacobian: Tensor  # (R, 4, 1+q, n)


class MultilevelTables:
    """Evaluates the four mini-batches (single, whole, odd half, even half) of every run at its
    point."""

    def __init__(
        self, problem: Problem, stack: SamplerStack, compiler: Compiler | None, x0: Tensor
    ) -> None:
        self.problem, self.stack = problem, stack
        plain = problem.regularizer is None and problem.vectorizes
        self.separable = plain and problem.constraints.averages
        self.size = 1 + sum(part.size for part in problem.constraints.parts)  # means
        self.bytes = self.size * x0.shape[1] * x0.element_size()  # of a Jacobian
        self._jacobians: Tensor | None = None  # the Jacobians of the last step
        many = vmap(self._weighted)
        self.many = {
            unit: (
                many if compiler is None or not self.separable else compiler(many, ("units", unit))
            )
            for unit in UNITS
        }

    def _weighted(
        self, x: Tensor, parts: dict[str, dict[str, Tensor]], weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a unit adds to the means of its mini-batch, and to their Jacobian."""
        means, rows = self.problem.means_and_jacobian(x, parts)
        return weight * means, weight * rows

    def _piece(self, unit: int) -> int:
        """How many units are evaluated at once."""
        examples = unit * (
            self.stack.specs[0].objective + self.stack.cells * self.stack.specs[0].cell
        )
        return max(1, min(_EXAMPLES_AT_ONCE // examples, JACOBIAN_BYTES_AT_ONCE // self.bytes))

    def evaluate(self, x: Tensor, step: int, level: Tensor) -> Tables:
        """Tables for the points x (R, n) and the levels (R,) of this step."""
        chunks = self.stack.chunks(step, level)
        return self._by_chunks(x, chunks, level) if self.separable else self._by_runs(x, chunks)

    def samples(self, x: Tensor, tables: Tables) -> tuple[Sample, ...]:
        """The samples of one run, evaluated at x only."""

        def sample(means: Tensor, jacobian: Tensor) -> Sample:
            def at(point: Tensor) -> Estimate:
                if point is not x:
                    raise ValueError(
                        "a mini-batch of random size is evaluated at the step's own point only"
                    )
                return self.problem.constraints.estimate(
                    means, lambda w: (w.unsqueeze(-1) * jacobian).sum(0), jacobian
                )

            return Sample(at)

        return tuple(sample(*table) for table in zip(tables.means, tables.jacobian, strict=True))

    def _by_chunks(self, x: Tensor, chunks: Chunks, level: Tensor) -> Tables:
        runs = x.shape[0]
        # (C,) single, -, odd, even of a run
        slot = 4 * chunks.run + torch.where(chunks.half == 0, 0, chunks.half + 1)
        order = slot.argsort(stable=True)
        factor = torch.where(
            chunks.half == 0, 0, torch.div(level[chunks.run], 2, rounding_mode="floor")
        )
        factor = factor.clamp(max=len(UNITS) - 1)[order]  # which of UNITS
        # of a chunk in its mini-batch
        share = 1 / x.new_zeros(4 * runs).index_add_(0, slot, x.new_ones(len(slot)))
        value = x.new_zeros(4 * runs, self.size)
        jacobian = self._emptied(x)
        for number, unit in enumerate(UNITS):
            # (units, chunks) all of one mini-batch
            members = order[factor == number].unflatten(0, (-1, unit))
            if len(members) == 0:
                continue
            slots = slot[members[:, 0]]
            for where, values, rows in self._evaluated(
                x, chunks, members, slots, unit * share[slots]
            ):
                value.index_add_(0, where, values)
                jacobian.index_add_(0, where, rows)
        return Tables(*(_with_whole(parts.unflatten(0, (runs, 4))) for parts in (value, jacobian)))

    def _emptied(self, x: Tensor) -> Tensor:
        """Zeros (4 R, 1+q, n), in the memory of the step before: allocating it anew takes a tenth
        of a step."""
        if self._jacobians is None or self._jacobians.shape[0] != 4 * x.shape[0]:
            self._jacobians = x.new_empty(4 * x.shape[0], self.size, x.shape[1])
        return self._jacobians.zero_()

    def _evaluated(
        self, x: Tensor, chunks: Chunks, members: Tensor, slots: Tensor, weight: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Units (units, chunks) in pieces of one size: their slots, the means and Jacobians, times
        their weights.

        The last unit, with weight 0, fills up the last piece.
        """
        unit = members.shape[1]
        size = self._piece(unit)
        missing = -len(members) % size
        members, slots = (
            torch.cat([part, part[-1:].expand(missing, *part.shape[1:])])
            for part in (members, slots)
        )
        weight = torch.cat([weight, weight.new_zeros(missing)])
        objective = chunks.batch.objective[members].flatten(1)
        cells = chunks.batch.cells[members].transpose(1, 2).flatten(2)
        parts = self.problem.gather(Batch(objective, cells), "fc")
        leaves, form = tree_flatten(parts)
        pieces = zip(*(leaf.split(size) for leaf in leaves), strict=True)
        for piece, where, weights in zip(
            pieces, slots.split(size), weight.split(size), strict=True
        ):
            points = x[torch.div(where, 4, rounding_mode="floor")]
            yield (where, *self.many[unit](points, tree_unflatten(piece, form), weights))

    def _by_runs(self, x: Tensor, chunks: Chunks) -> Tables:
        tables = []
        for r in range(x.shape[0]):
            gathered = (self.problem.gather(batch, "fc") for batch in chunks.batches(r))
            means, rows = zip(
                *(self.problem.means_and_jacobian(x[r], parts) for parts in gathered), strict=True
            )
            tables.append(Tables(torch.stack(means), torch.stack(rows)))
        return tree_map(lambda *leaves: torch.stack(leaves), *tables)  # type: ignore[no-any-return]


def _with_whole(parts: Tensor) -> Tensor:
    """(R, 4, ...) single, whole, odd, even, of which the whole is still missing: the mean of its
    halves."""
    torch.add(parts[:, 2], parts[:, 3], out=parts[:, 1]).div_(2)
    return parts
