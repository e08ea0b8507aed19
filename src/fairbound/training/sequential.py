"""One run in plain autograd, for a model that cannot be vmapped (`forward.stacks` is False: a Keras model).

The counterpart of `stepping.Group`: the same random numbers, the same `update`, the same rule for steps that are not
finite, the same records, so that its trajectory is that of a stack of one run to rounding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.data.samplers import START, Batch, Sampler, SamplerStack
from fairbound.training.eager import eager
from fairbound.training.problem import Problem, join
from fairbound.training.records import BLOCK_BYTES, RunBase

log = logging.getLogger("fairbound")


class SequentialRun(RunBase):
    """One run of a method."""

    compiler = None  # nothing is compiled: `Run` asks

    def __init__(self, problem: Problem, algorithm: Algorithm[Any], sampler: Sampler, x0: Tensor, run: int) -> None:
        self.problem, self.algorithm, self.runs = problem, algorithm, (run,)
        self.eager = eager(problem)
        self.stack = SamplerStack([sampler], algorithm.draws, algorithm.batch_size_probs, x0.device)
        self.x = x0.clone()
        self.left_out = 0
        self.state = self._init()

    def _init(self) -> Any:
        evaluates = "fc" if any("c" in read for read in self.algorithm.evaluates) else "f"
        block = self.eager.gather(_of_the_run(self.stack.block(START, 1)[0]), evaluates)
        first = self.eager.at(tree_unflatten(block, (leaf[0] for leaf in tree_leaves(block))), evaluates, self.x)
        if not _finite([first.f] + [first.c] * ("c" in evaluates)):
            raise ValueError(
                f"the loss or a constraint is NaN or infinite at the starting point of run {self.runs[0]}; "
                "nothing was run"
            )
        return self.algorithm.init(self.x, self.problem.m, first if self.algorithm.needs_initial_estimate else None)

    # Steps ------------------------------------------------------------------------------------------------------------

    def _advance(self, step: int, parts: Any, weight: Tensor, u: Tensor) -> None:
        looked_at: list[Tensor] = []  # all that must be finite: what was read, the step, the state
        samples = tuple(
            Sample(self._at(part, evaluates, looked_at))
            for part, evaluates in zip(parts, self.algorithm.evaluates, strict=True)
        )
        d, new = self.algorithm.update(self.x, self.state, Draw(samples, weight, u))
        after = tree_leaves(new)
        if not _finite([*looked_at, d, *after]):
            self.left_out += 1
            return
        self.x = (self.x + d).to(self.x.dtype)
        self.state = tree_unflatten(new, (a.to(b.dtype) for a, b in zip(after, tree_leaves(self.state), strict=True)))

    def _at(self, parts: Any, evaluates: str, looked_at: list[Tensor]) -> Callable[[Tensor], Estimate]:
        def at(point: Tensor) -> Estimate:
            e = self.eager.at(parts, evaluates, point)
            looked_at.extend([e.f] * ("f" in evaluates) + [e.c] * ("c" in evaluates))
            return e

        return at

    def _draws(self, steps: int) -> Iterator[tuple[tuple[Any, ...], Tensor, Tensor]]:
        """The draws of every step: what is gathered for each mini-batch, the weight and the coin."""
        one = torch.ones((), dtype=self.x.dtype, device=self.x.device)
        size = self._block_size()
        evaluates = self.algorithm.evaluates
        for first in range(0, steps, size):
            block = min(size, steps - first)
            coins = self.stack.coins(first, block)[:, 0]
            if self.algorithm.batch_size_probs is not None:
                yield from self._of_random_size(first, block, coins)
                continue
            batches = zip(self.stack.block(first, block, evaluates), evaluates, strict=True)
            gathered = tuple(self.eager.gather(_of_the_run(batch), read) for batch, read in batches)
            for coin, *parts in zip(coins, *(leaf.unbind() for leaf in tree_leaves(gathered)), strict=True):
                yield tree_unflatten(gathered, iter(parts)), one, coin

    def _of_random_size(
        self, first: int, block: int, coins: Tensor
    ) -> Iterator[tuple[tuple[Any, ...], Tensor, Tensor]]:
        levels, weights = self.stack.levels(first, block)
        for k, (level, weight, coin) in enumerate(zip(levels, weights.to(self.x.dtype)[:, 0], coins, strict=True)):
            chunks = self.stack.chunks(first + k, level)
            chosen = [chunks.half == 0, chunks.half > 0, chunks.half == 1, chunks.half == 2]  # X1, X, its halves
            yield tuple(self.eager.gather(join(chunks.batch, half), "fc") for half in chosen), weight, coin

    def _block_size(self) -> int:
        row = self.problem.data.X[0].numel() * self.problem.data.X.element_size() + 64
        return max(1, min(512, BLOCK_BYTES // (self.stack.column.numel() * row)))

    # What the run shows -----------------------------------------------------------------------------------------------

    def _points(self) -> Tensor:
        return self.x[None]

    def _multipliers(self) -> Tensor:
        y = self.algorithm.multipliers(self.state)
        return self.x.new_zeros(1, 0) if y is None else y[None]

    def _skipped(self) -> Tensor:
        return torch.tensor([self.left_out])

    def _monitors(self) -> dict[str, Tensor]:
        return {name: value[None].clone() for name, value in self.algorithm.monitor(self.state).items()}

    def _output(self) -> Tensor:
        return self.algorithm.output(self.x, self.state)[None].clone()


def _of_the_run(block: Batch) -> Batch:
    """A block of steps (T, 1, ...) without the dimension of runs."""
    return Batch(block.objective[:, 0], block.cells[:, 0])


def _finite(tensors: list[Tensor]) -> bool:
    """One look at all of them: NaN and infinities show in the sum, and a sum may be infinite for no such reason."""
    whole = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return math.isfinite(float(whole.sum())) or bool(torch.isfinite(whole).all())
