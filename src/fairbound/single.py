"""One run in plain autograd, for a model that cannot be vmapped (`forward.stacks` is False: a Keras model).

The counterpart of `stepping.Group`: the same random numbers, the same `update`, the same rule for steps that are not
finite, the same records, so that its trajectory is that of a stack of one run to rounding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.diagnostics import signs_of_infeasibility
from fairbound.eager import eager
from fairbound.problem import Problem, join
from fairbound.sampling import START, Batch, Sampler, SamplerStack
from fairbound.stepping import BLOCK_BYTES, RECORDS, End, Mean, Record
from fairbound.trees import leaves, refilled

log = logging.getLogger("fairbound")


class Single:
    """One run of a method."""

    compiler = None  # nothing is compiled: `Run` asks

    def __init__(self, problem: Problem, algorithm: Algorithm[Any], sampler: Sampler, x0: Tensor, run: int) -> None:
        self.problem, self.algorithm, self.run = problem, algorithm, run
        self.eager = eager(problem)
        self.stack = SamplerStack([sampler], algorithm.draws, algorithm.levels, x0.device)
        self.x = x0.clone()
        self.skipped = 0
        self.state = self._init()

    def _init(self) -> Any:
        reads = "fc" if any("c" in read for read in self.algorithm.reads) else "f"
        block = self.eager.gather(_of_the_run(self.stack.block(START, 1)[0]), reads)
        first = self.eager.at(refilled(block, (leaf[0] for leaf in leaves(block))), reads, self.x)
        if not _finite([first.f] + [first.c] * ("c" in reads)):
            raise ValueError(
                f"the loss or a constraint is NaN or infinite at the starting point of run {self.run}; nothing was run"
            )
        return self.algorithm.init(self.x, self.problem.m, first if self.algorithm.reads_first else None)

    # Steps ------------------------------------------------------------------------------------------------------------

    def records(self, steps: int, every: int, average_from: int | None) -> Generator[Record, None, End]:
        """Step to the end; a record every `every` steps and at the end. Returns the run's end."""
        history: list[dict[str, Tensor]] = []
        seen: list[int] = []
        mean = None if average_from is None else Mean(average_from)
        for k, (parts, weight, u) in enumerate(self._draws(steps)):
            done, last = k + 1, k + 1 == steps
            with torch.no_grad():  # not around the yield: it would switch gradients off for whoever reads the records
                self._step(parts, weight, u)
                if mean is not None:
                    mean.add(k, self.x[None], self._multipliers()[None])
            if last or done % max(1, steps // RECORDS) == 0:
                y = self._multipliers()
                history.append(self._monitors() | ({"multipliers": y[None].clone()} if y.numel() else {}))
                seen.append(done)
            if last or done % every == 0:
                yield self._record(done)
        return self._end(history, seen, mean)

    def _step(self, parts: tuple[Any, ...], weight: Tensor, u: Tensor) -> None:
        looked_at: list[Tensor] = []  # all that must be finite: what was read, the step, the state
        samples = tuple(
            Sample(self._at(part, reads, looked_at)) for part, reads in zip(parts, self.algorithm.reads, strict=True)
        )
        d, new = self.algorithm.update(self.x, self.state, Draw(samples, weight, u))
        after = leaves(new)
        if not _finite([*looked_at, d, *after]):
            self.skipped += 1
            return
        self.x = (self.x + d).to(self.x.dtype)
        self.state = refilled(new, (a.to(b.dtype) for a, b in zip(after, leaves(self.state), strict=True)))

    def _at(self, parts: Any, reads: str, looked_at: list[Tensor]) -> Callable[[Tensor], Estimate]:
        def at(point: Tensor) -> Estimate:
            e = self.eager.at(parts, reads, point)
            looked_at.extend([e.f] * ("f" in reads) + [e.c] * ("c" in reads))
            return e

        return at

    def _draws(self, steps: int) -> Iterator[tuple[tuple[Any, ...], Tensor, Tensor]]:
        """The draws of every step: what is gathered for each mini-batch, the weight and the coin."""
        one = torch.ones((), dtype=self.x.dtype, device=self.x.device)
        size = self._block_size()
        reads = self.algorithm.reads
        for first in range(0, steps, size):
            block = min(size, steps - first)
            coins = self.stack.coins(first, block)[:, 0]
            if self.algorithm.levels is not None:
                yield from self._of_random_size(first, block, coins)
                continue
            batches = zip(self.stack.block(first, block, reads), reads, strict=True)
            gathered = tuple(self.eager.gather(_of_the_run(batch), read) for batch, read in batches)
            for coin, *parts in zip(coins, *(leaf.unbind() for leaf in leaves(gathered)), strict=True):
                yield refilled(gathered, iter(parts)), one, coin

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

    def _multipliers(self) -> Tensor:
        y = self.algorithm.multipliers(self.state)
        return self.x.new_zeros(0) if y is None else y

    def _monitors(self) -> dict[str, Tensor]:
        return {name: value[None].clone() for name, value in self.algorithm.monitor(self.state).items()}

    def _output(self) -> Tensor:
        return self.algorithm.output(self.x, self.state)[None].clone()

    def _record(self, step: int) -> Record:
        y = self._multipliers()
        shown = y[None].clone() if y.numel() else None
        return Record(step, (self.run,), self.x[None].clone(), self._output(), shown, self._monitors())

    def _end(self, history: list[dict[str, Tensor]], seen: list[int], mean: Mean | None) -> End:
        def filled(y: Tensor) -> Tensor:
            return y.clone() if y.shape[1] else y.new_full((1, self.problem.m), torch.nan)

        recorded = {name: torch.stack([entry[name] for entry in history]) for name in history[0]}
        if self.skipped:
            log.warning(
                f"{type(self.algorithm).__name__}: run {self.run} skipped {self.skipped} steps that were not finite; "
                "its steps may be too long"
            )
        averaged = mean is not None and mean.count > 0
        return End(
            runs=(self.run,),
            x=self.x[None],
            output=self._output(),
            multipliers=filled(self._multipliers()[None]),
            mean_x=mean.x if mean is not None and averaged else None,
            mean_multipliers=filled(mean.y) if mean is not None and averaged else None,
            monitors=[{name: float(value) for name, value in self._monitors().items()}],
            infeasible=signs_of_infeasibility(recorded, seen) or [None],
            skipped=torch.tensor([self.skipped]),
        )


def _of_the_run(block: Batch) -> Batch:
    """A block of steps (T, 1, ...) without the dimension of runs."""
    return Batch(block.objective[:, 0], block.cells[:, 0])


def _finite(tensors: list[Tensor]) -> bool:
    """One look at all of them: NaN and infinities show in the sum, and a sum may be infinite for no such reason."""
    whole = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return math.isfinite(float(whole.sum())) or bool(torch.isfinite(whole).all())
