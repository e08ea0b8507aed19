"""Runs of one structure, stepping together: one `vmap` of the algorithm's own `update`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map

from fairbound.chunked import ChunkedTables
from fairbound.compiling import Compiler
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.diagnostics import signs_of_infeasibility
from fairbound.problem import Problem
from fairbound.replaying import Replayed
from fairbound.sampling import START, Sampler, SamplerStack
from fairbound.stacking import rebuilt, stacked_numbers, structure
from fairbound.trees import leaves, refilled

log = logging.getLogger("fairbound")

BLOCK_BYTES = 32 << 20  # memory for the rows of one block of steps
GPU_BLOCK_BYTES = 2 << 30  # the same on a GPU, where drawing a block is mostly launching
RECORDS = 100  # how often a run looks at its monitors for the diagnosis


class Record(NamedTuple):
    """The runs of one group after `step` steps."""

    step: int
    runs: tuple[int, ...]  # which runs of the stack these are
    x: Tensor  # (R, n)
    output: Tensor  # (R, n) what the method would return now
    multipliers: Tensor | None  # (R, m), for the methods that have them
    monitors: dict[str, Tensor]  # the method's own scalars, (R,) each


class End(NamedTuple):
    """What a group of runs leaves behind."""

    runs: tuple[int, ...]
    x: Tensor
    output: Tensor
    multipliers: Tensor
    mean_x: Tensor | None
    mean_multipliers: Tensor | None
    monitors: list[dict[str, float]]
    infeasible: list[str | None]
    skipped: Tensor


def _watched(sample: Sample, reads: str, seen: list[Tensor]) -> Sample:
    """The same sample; what is read of its estimates is noted."""

    def at(point: Tensor) -> Estimate:
        e = sample(point)
        seen.extend([e.f] * ("f" in reads) + [e.c] * ("c" in reads))
        return e

    return Sample(at)


@contextmanager
def _own_words() -> Iterator[None]:
    """vmap's complaint about random operations as a sentence."""
    try:
        yield
    except RuntimeError as error:
        if "randomness" not in str(error):
            raise
        raise ValueError(
            "the model draws random numbers (dropout, say), which stacked runs cannot; "
            "put it in eval mode, or train it in a loop of your own"
        ) from error


class Mean:
    """Running means of x and the multipliers over the steps from `start` on."""

    def __init__(self, start: int) -> None:
        self.start, self.count = start, 0
        self.x = self.y = torch.zeros(())

    def add(self, step: int, x: Tensor, y: Tensor) -> None:
        if step < self.start:
            return
        self.count += 1
        self.x = x.clone() if self.count == 1 else self.x.lerp_(x, 1 / self.count)
        self.y = y.clone() if self.count == 1 else self.y.lerp_(y, 1 / self.count)


class Group:
    """Runs of one structure, stepping together."""

    def __init__(
        self,
        problem: Problem,
        algorithms: Sequence[Algorithm[Any]],
        samplers: Sequence[Sampler],
        x0: Tensor,
        runs: Sequence[int],
        compiled: bool,
        forced: bool,
    ) -> None:
        self.problem, self.algorithm = problem, algorithms[0]
        self.hyper = stacked_numbers(algorithms, x0, all_of_them=compiled)
        self.runs = tuple(runs)
        self.stack = SamplerStack(samplers, self.algorithm.draws, self.algorithm.levels, x0.device, compiled)
        if problem.constraint is not None:
            problem.constraint.made_ready(x0)
        compiler = Compiler(problem, forced) if compiled else None
        self.compiler = compiler
        self.tables = None if self.algorithm.levels is None else ChunkedTables(problem, self.stack, compiler, x0)
        step = vmap(self._step)
        self.step = step if compiler is None else compiler(step, structure(self.algorithm))
        self.x = x0.clone()
        self.state = self._init()
        self.skipped = x0.new_zeros(len(runs))
        if compiler is not None and x0.is_cuda and self.tables is None:
            self.step = Replayed(self.step, len(leaves((self.x, self.state, self.skipped))))
        self.y = self._multipliers()  # (R, m), or (R, 0) for a method that has none

    # One run, one step; vmapped over the runs -------------------------------------------------------------------------

    def _step(
        self, x: Tensor, state: Any, skipped: Tensor, hyper: dict[str, Tensor], parts: Any, weight: Tensor, u: Tensor
    ) -> tuple[Tensor, Any, Tensor, Tensor]:
        algorithm = rebuilt(self.algorithm, hyper)
        seen: list[Tensor] = []  # all that must be finite: what was read, the step, the state
        samples = tuple(
            _watched(sample, reads, seen)
            for sample, reads in zip(self._samples(x, parts), self.algorithm.reads, strict=True)
        )
        d, new = algorithm.update(x, state, Draw(samples, weight, u))
        finite = torch.stack([torch.isfinite(part).all() for part in (*seen, d, *tree_flatten(new)[0])]).all()
        # In the old precision: a compiled step reads its inputs as what they were at the first call.
        state = tree_map(lambda after, before: torch.where(finite, after.to(before.dtype), before), new, state)
        return (
            torch.where(finite, (x + d).to(x.dtype), x),
            state,
            skipped + ~finite,
            self._multipliers_of(algorithm, x, state),
        )

    def _samples(self, x: Tensor, parts: Any) -> tuple[Sample, ...]:
        if self.tables is None:
            return tuple(self.problem.sample(part) for part in parts)
        return self.tables.samples(x, parts)

    def _multipliers_of(self, algorithm: Algorithm[Any], x: Tensor, state: Any) -> Tensor:
        y = algorithm.multipliers(state)
        return x.new_zeros(0) if y is None else y

    def _init(self) -> Any:
        batch = self.stack.block(START, 1)[0]
        reads = "fc" if any("c" in read for read in self.algorithm.reads) else "f"
        parts = tree_map(lambda t: t[0], self.problem.gather(batch, reads))

        def start(x: Tensor, hyper: dict[str, Tensor], part: Any) -> tuple[Any, Tensor]:
            first: Estimate = self.problem.sample(part)(x)
            algorithm = rebuilt(self.algorithm, hyper)
            state = algorithm.init(x, self.problem.m, first if algorithm.reads_first else None)
            finite = torch.isfinite(first.f)
            return state, finite & torch.isfinite(first.c).all() if "c" in reads else finite

        with torch.no_grad(), _own_words():
            state, finite = vmap(start)(self.x, self.hyper, parts)
        if not finite.all():
            bad = [run for run, ok in zip(self.runs, finite.tolist(), strict=True) if not ok]
            raise ValueError(
                f"the loss or a constraint is NaN or infinite at the starting point of runs {bad[:5]}; nothing was run"
            )
        # Values that vmap shares between runs become their own, with plain strides: others would mean a second
        # compilation.
        return tree_map(lambda leaf: leaf.new_empty(leaf.shape).copy_(leaf), state)

    # All runs ---------------------------------------------------------------------------------------------------------

    def records(self, steps: int, every: int, average_from: int | None) -> Generator[Record, None, End]:
        """Step to the end; a record every `every` steps and at the end. Returns the group's end."""
        history: list[dict[str, Tensor]] = []
        seen: list[int] = []
        mean = None if average_from is None else Mean(average_from)
        for k, (parts, weight, u) in enumerate(self._draws(steps)):
            done, last = k + 1, k + 1 == steps
            with torch.no_grad():  # not around the yield: it would switch gradients off for whoever reads the records
                if self.tables is not None:
                    parts = self.tables.evaluate(self.x, k, parts)
                self.x, self.state, self.skipped, self.y = self.step(
                    self.x, self.state, self.skipped, self.hyper, parts, weight, u
                )
                if mean is not None:
                    mean.add(k, self.x, self.y)
            if last or done % max(1, steps // RECORDS) == 0:
                history.append(self._monitors() | ({"multipliers": self.y.clone()} if self.y.shape[1] else {}))
                seen.append(done)
            if last or done % every == 0:
                yield self._record(done)
        return self._end(history, seen, mean)

    def _draws(self, steps: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """The draws of every step: tensors (R, ...), made in blocks of many steps."""
        one = torch.ones(len(self.runs), dtype=self.x.dtype, device=self.x.device)
        size = self._block_size()
        for first in range(0, steps, size):
            block = min(size, steps - first)
            coins = self.stack.coins(first, block)
            if self.tables is not None:
                level, weight = self.stack.levels(first, block)
                yield from zip(level, weight.to(self.x.dtype), coins, strict=True)
                continue
            reads = self.algorithm.reads
            batches = zip(self.stack.block(first, block, reads), reads, strict=True)
            gathered = [self.problem.gather(batch, reads) for batch, reads in batches]
            for coin, *parts in zip(coins, *(leaf.unbind() for leaf in leaves(gathered)), strict=True):
                yield refilled(gathered, iter(parts)), one, coin

    def _block_size(self) -> int:
        row = self.problem.data.X[0].numel() * self.problem.data.X.element_size() + 64
        per_step = len(self.runs) * self.stack.column.numel() * row
        room = GPU_BLOCK_BYTES if self.x.is_cuda else BLOCK_BYTES
        return max(1, min(512, room // per_step))

    # What the runs show -----------------------------------------------------------------------------------------------

    def _each(self, read: Callable[[Algorithm[Any], Tensor, Any], Any]) -> Any:
        """Something read from every run's point and state, as values of its own."""
        with torch.no_grad():
            found = vmap(lambda x, state, hyper: read(rebuilt(self.algorithm, hyper), x, state))(
                self.x, self.state, self.hyper
            )
        return tree_map(lambda leaf: leaf.clone(), found)

    def _multipliers(self) -> Tensor:
        y: Tensor = self._each(self._multipliers_of)
        return y

    def _output(self) -> Tensor:
        output: Tensor = self._each(lambda algorithm, x, state: algorithm.output(x, state))
        return output

    def _monitors(self) -> dict[str, Tensor]:
        monitors: dict[str, Tensor] = self._each(lambda algorithm, x, state: algorithm.monitor(state))
        return monitors

    def _record(self, step: int) -> Record:
        y = self.y.clone() if self.y.shape[1] else None
        return Record(step, self.runs, self.x.clone(), self._output(), y, self._monitors())

    def _end(self, history: list[dict[str, Tensor]], seen: list[int], mean: Mean | None) -> End:
        def filled(y: Tensor) -> Tensor:
            return y.clone() if y.shape[1] else y.new_full((len(self.runs), self.problem.m), torch.nan)

        recorded = {name: torch.stack([entry[name] for entry in history]) for name in history[0]}
        monitors = self._monitors()
        skipped = self.skipped.long()
        if skipped.any():
            log.warning(
                f"{type(self.algorithm).__name__}: {int((skipped > 0).sum())} of {len(self.runs)} runs skipped steps "
                f"that were not finite (up to {int(skipped.max())}); its steps may be too long"
            )
        averaged = mean is not None and mean.count > 0
        return End(
            runs=self.runs,
            x=self.x,
            output=self._output(),
            multipliers=filled(self.y),
            mean_x=mean.x if mean is not None and averaged else None,
            mean_multipliers=filled(mean.y) if mean is not None and averaged else None,
            monitors=[{name: float(v[i]) for name, v in monitors.items()} for i in range(len(self.runs))],
            infeasible=signs_of_infeasibility(recorded, seen) or [None] * len(self.runs),
            skipped=skipped,
        )
