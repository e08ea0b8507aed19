"""Mini-batches of a step: objective batches, and constraint batches with equally many examples of
every cell.

A `Sampler` describes one run's sampling. `SamplerStack` draws for many runs and many steps at once.
Examples come from the pool that a draw names, with replacement.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.rng import EXAMPLES, LEVEL, UNIFORM, checked_seed, keys, uniforms
from fairbound._utils.settings import require_whole
from fairbound.constraints._cells import Cells
from fairbound.data._dataset import Split, check_rows

# the step number whose examples evaluate the starting point; no run has that many steps
START = 1 << 40


class Batch(NamedTuple):
    """Example numbers of one mini-batch; leading dimensions for steps and runs where there are
    many."""

    objective: Tensor  # (..., B)
    cells: Tensor  # (..., K, b)


@dataclass(frozen=True)
class BatchSpec:
    """Sizes of one draw: examples for the objective, examples of each cell for the constraints, and
    their pools.

    >>> BatchSpec(objective=32, cell=8)
    BatchSpec(objective=32, cell=8, pool='train', objective_pool='train')
    """

    objective: int = 8  # examples for the objective
    cell: int = 8  # examples of each cell (a group, say) for the constraints
    pool: str = "train"  # of the split, for the examples of the constraints
    objective_pool: str = "train"  # of the split, for the examples of the objective

    def __post_init__(self) -> None:
        require_whole(self, 1, None, "objective", "cell")


class Sampler:
    """The sampling of one run.

    `sizes` is one `BatchSpec` for all draws of a step, or one for each.

    >>> cells = Cells.of_groups(["A", "B"]).bind(torch.tensor([0, 0, 1, 1, 1]))
    >>> sampler = Sampler(Split.all_train(5), cells, BatchSpec(objective=2, cell=2), seed=1)
    """

    def __init__(
        self,
        split: Split,
        cells: Cells | None = None,
        sizes: BatchSpec | Sequence[BatchSpec] = BatchSpec(),  # noqa: B008  (frozen)
        seed: int = 0,
    ) -> None:
        self.split = split
        self.cells = cells if cells is not None else Cells((), ())
        self.sizes = sizes if isinstance(sizes, BatchSpec) else tuple(sizes)
        self.seed = checked_seed(seed)
        specs = [self.sizes] if isinstance(self.sizes, BatchSpec) else self.sizes
        self.min_rows = 1 + max(
            (int(r.max()) for r in (*split, *self.cells.examples) if r.numel()), default=-1
        )
        for name, numbers in split._asdict().items():
            if numbers.numel():
                check_rows(numbers, f"pool {name!r}", self.min_rows)
        self._cells = {
            spec.pool: self.cells.within(split.pool(spec.pool), self.min_rows) for spec in specs
        }
        for spec in specs:
            batches = [("the objective", spec.objective_pool, spec.objective)]
            batches += [(f"cell {name!r}", spec.pool, spec.cell) for name in self.cells.names]
            for (name, pool, size), examples in zip(batches, self.pools(spec), strict=True):
                if len(examples) < size:
                    raise ValueError(
                        f"{name} has {len(examples)} examples in pool {pool!r}, fewer than its"
                        f" batch of {size}; use a smaller batch, merge or drop the group, or split"
                        " again"
                    )

    def seeded(self, *seeds: int) -> list[Sampler]:
        """The same sampling with other seeds: one sampler for every run of a stack."""
        made = []
        for seed in seeds:
            sampler = copy.copy(self)
            sampler.seed = checked_seed(seed)
            made.append(sampler)
        return made

    def specs(self, draws: int) -> tuple[BatchSpec, ...]:
        """The batch sizes of each of a step's draws."""
        if isinstance(self.sizes, BatchSpec):
            return (self.sizes,) * draws
        if len(self.sizes) != draws:
            raise ValueError(
                f"the method makes {draws} draws a step but the sampler has {len(self.sizes)}"
                f" sizes; give one, or {draws}"
            )
        return self.sizes

    def pools(self, spec: BatchSpec) -> tuple[Tensor, ...]:
        """The examples to draw from: the objective's, then each cell's."""
        return (self.split.pool(spec.objective_pool).cpu(), *self._cells[spec.pool].examples)

    def structure(self, draws: int) -> tuple[object, ...]:
        """What runs of one stack must have in common."""
        return (self.specs(draws), len(self.cells))


class Chunks(NamedTuple):
    """Mini-batches of random size, divided into chunks of equal size: one flat stack over all
    runs."""

    run: Tensor  # (C,) which run a chunk belongs to
    # (C,) 0: the single mini-batch, 1: the odd half, 2: the even half of the large one
    half: Tensor
    batch: Batch  # (C, B), (C, K, b)

    def batches(self, run: int) -> tuple[Batch, ...]:
        """The four mini-batches of a run's step: the single one, the large one, its odd half, its
        even half."""
        single, odd, even = ((self.run == run) & (self.half == half) for half in (0, 1, 2))
        chosen = (single, odd | even, odd, even)
        return tuple(
            Batch(
                self.batch.objective[which].flatten(),
                self.batch.cells[which].transpose(0, 1).flatten(1),
            )
            for which in chosen
        )


class SamplerStack:
    """Draws for many runs at once; all samplers share their structure."""

    def __init__(
        self,
        samplers: Sequence[Sampler],
        draws: int,
        batch_size_probs: Sequence[float] | None,
        device: torch.device | str = "cpu",
    ) -> None:
        first = samplers[0]
        self.specs = first.specs(draws)
        self.cells = len(first.cells)
        self.runs = len(samplers)
        self.device = torch.device(device)
        self.key = keys(torch.tensor([s.seed for s in samplers])).to(self.device)  # (R,)
        self.law: Tensor | None = None
        if batch_size_probs is not None:
            self.law = torch.tensor(batch_size_probs, dtype=torch.float64, device=self.device)
            if len(set(self.specs)) > 1:
                raise ValueError(
                    "a method that draws random sizes needs equal sizes in every draw; give the"
                    " sampler one"
                )
        # Columns: the pools of a step in order, each draw's objective, then its cells. Slots:
        # examples.
        sizes = [
            size for spec in self.specs for size in (spec.objective, *[spec.cell] * self.cells)
        ]
        # (slots,)
        self.column = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(
            self.device
        )
        pools = [
            pool for sampler in samplers for spec in self.specs for pool in sampler.pools(spec)
        ]
        apart = {id(pool): pool for pool in pools}  # runs share most of them
        starts = accumulate(map(len, apart.values()), initial=0)
        start_of = dict(zip(apart, starts, strict=False))
        shape = (self.runs, len(sizes))
        start = torch.tensor([start_of[id(pool)] for pool in pools])
        count = torch.tensor([len(pool) for pool in pools])
        self.members = torch.cat(list(apart.values())).to(self.device)
        self.start = start.reshape(shape).to(self.device)  # (R, columns)
        self.count = count.reshape(shape).to(self.device)  # (R, columns)

    def uniform(self, first: int, steps: int) -> Tensor:
        """(T, R) uniform numbers, one for every step and run."""
        return uniforms(
            self.key, self._steps(first, steps), torch.tensor(UNIFORM, device=self.device)
        )

    def _steps(self, first: int, steps: int) -> Tensor:
        return torch.arange(first, first + steps, device=self.device)[:, None]  # (T, 1)

    def block(
        self, first: int, steps: int, evaluates: Sequence[str] | None = None
    ) -> tuple[Batch, ...]:
        """The mini-batches of `steps` steps from `first` on: for each draw a Batch (T, R, B), (T,
        R, K, b).

        `evaluates` says "f", "c" or "fc" for each draw: what is not evaluated may have no examples,
        as drawing takes time.
        """
        if evaluates is None:
            evaluates = ("fc",) * len(self.specs)
        sizes = [
            (spec.objective * ("f" in wanted), spec.cell * ("c" in wanted))
            for spec, wanted in zip(self.specs, evaluates, strict=True)
        ]
        # by column
        read = [part in wanted for wanted in evaluates for part in "f" + "c" * self.cells]
        slot = torch.tensor(read, device=self.device)[self.column].nonzero().flatten()
        step = self._steps(first, steps)
        drawn = self._drawn(slice(None), step, EXAMPLES + slot, self.column[slot])
        parts = drawn.split([objective + cell * self.cells for objective, cell in sizes], -1)
        return tuple(self._batch(part, *size) for part, size in zip(parts, sizes, strict=True))

    def _batch(self, drawn: Tensor, objective: int, cell: int) -> Batch:
        """(..., slots) examples as a Batch of these sizes."""
        examples, cells = drawn.split([objective, cell * self.cells], -1)
        return Batch(examples, cells.unflatten(-1, (self.cells, cell)))

    def _drawn(self, runs: slice | Tensor, step: Tensor, slot: Tensor, column: Tensor) -> Tensor:
        """(T, R, slots) examples with replacement, for step (T, 1), slot and column (slots,).

        Or (C, slots), for runs (C,), step (1,), and slot (C, slots).
        """
        u = uniforms(self.key[runs][:, None], step[..., None], slot)
        count, start = self.count[runs][:, column], self.start[runs][:, column]
        return self.members[(u * count).long() + start]

    # Random sizes ---------------------------------------------------------------------------------

    def levels(self, first: int, steps: int) -> tuple[Tensor, Tensor]:
        """Levels (T, R) and their weights 1 / probability (T, R)."""
        assert self.law is not None
        u = uniforms(self.key, self._steps(first, steps), torch.tensor(LEVEL, device=self.device))
        level = torch.searchsorted(self.law.cumsum(0)[:-1].contiguous(), u, right=True)
        return level, 1 / self.law[level]

    def chunks(self, step: int, level: Tensor) -> Chunks:
        """The examples of one step, levels (R,): run r gets one chunk for its single mini-batch and
        2^(level+1) for the large one.

        The large one's chunks are assigned alternately to the odd and to the even half.
        """
        spec = self.specs[0]
        size = 1 + (2 << level)  # (R,) chunks of each run
        run = torch.repeat_interleave(torch.arange(self.runs, device=self.device), size)
        # 0, 1, ... in a run
        number = torch.arange(run.numel(), device=self.device) - (size.cumsum(0) - size)[run]
        # every draw of such a method has the same columns
        column = self.column[: spec.objective + spec.cell * self.cells]
        place = torch.arange(column.numel(), device=self.device)
        slot = EXAMPLES + number[:, None] * column.numel() + place  # (C, slots)
        drawn = self._drawn(run, self._steps(step, 1)[0], slot, column)
        half = torch.where(number == 0, 0, 2 - number % 2)
        return Chunks(run, half, self._batch(drawn, spec.objective, spec.cell))
