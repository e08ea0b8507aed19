"""Runs of one structure, stepping together: one `vmap` of the algorithm's own `update`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.data.samplers import START, Sampler, SamplerStack
from fairbound.training.compile import Compiler
from fairbound.training.cuda_graph import CUDAGraphStep
from fairbound.training.hyperparams import stack_hyperparams, structure, with_hyperparams
from fairbound.training.multilevel import MultilevelTables
from fairbound.training.problem import Problem
from fairbound.training.records import BLOCK_BYTES, RunBase

log = logging.getLogger("fairbound")

GPU_BLOCK_BYTES = 2 << 30  # the same on a GPU, where drawing a block is mostly launching


def _watched(sample: Sample, evaluates: str, seen: list[Tensor]) -> Sample:
    """The same sample; what is read of its estimates is noted."""

    def at(point: Tensor) -> Estimate:
        e = sample(point)
        seen.extend([e.f] * ("f" in evaluates) + [e.c] * ("c" in evaluates))
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


class VectorizedRuns(RunBase):
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
        self.hyper = stack_hyperparams(algorithms, x0, all_of_them=compiled)
        self.runs = tuple(runs)
        self.stack = SamplerStack(samplers, self.algorithm.draws, self.algorithm.batch_size_probs, x0.device, compiled)
        if problem.constraint is not None:
            problem.constraint.made_ready(x0)
        compiler = Compiler(problem, forced) if compiled else None
        self.compiler = compiler
        self.tables = (
            None if self.algorithm.batch_size_probs is None else MultilevelTables(problem, self.stack, compiler, x0)
        )
        step = vmap(self._step)
        self.step = step if compiler is None else compiler(step, structure(self.algorithm))
        self.x = x0.clone()
        self.state = self._init()
        self.skipped = x0.new_zeros(len(runs))
        if compiler is not None and x0.is_cuda and self.tables is None:
            self.step = CUDAGraphStep(self.step, len(tree_leaves((self.x, self.state, self.skipped))))
        self.y: Tensor = self._each(self._multipliers_of)  # (R, m), or (R, 0) for a method that has none

    # One run, one step; vmapped over the runs -------------------------------------------------------------------------

    def _step(
        self, x: Tensor, state: Any, skipped: Tensor, hyper: dict[str, Tensor], parts: Any, weight: Tensor, u: Tensor
    ) -> tuple[Tensor, Any, Tensor, Tensor]:
        algorithm = with_hyperparams(self.algorithm, hyper)
        seen: list[Tensor] = []  # all that must be finite: what was read, the step, the state
        samples = tuple(
            _watched(sample, evaluates, seen)
            for sample, evaluates in zip(self._samples(x, parts), self.algorithm.evaluates, strict=True)
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
        evaluates = "fc" if any("c" in read for read in self.algorithm.evaluates) else "f"
        parts = tree_map(lambda t: t[0], self.problem.gather(batch, evaluates))

        def start(x: Tensor, hyper: dict[str, Tensor], part: Any) -> tuple[Any, Tensor]:
            first: Estimate = self.problem.sample(part)(x)
            algorithm = with_hyperparams(self.algorithm, hyper)
            state = algorithm.init(x, self.problem.m, first if algorithm.needs_initial_estimate else None)
            finite = torch.isfinite(first.f)
            return state, finite & torch.isfinite(first.c).all() if "c" in evaluates else finite

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

    def _advance(self, step: int, parts: Any, weight: Tensor, u: Tensor) -> None:
        if self.tables is not None:
            parts = self.tables.evaluate(self.x, step, parts)
        self.x, self.state, self.skipped, self.y = self.step(
            self.x, self.state, self.skipped, self.hyper, parts, weight, u
        )

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
            evaluates = self.algorithm.evaluates
            batches = zip(self.stack.block(first, block, evaluates), evaluates, strict=True)
            gathered = [self.problem.gather(batch, evaluates) for batch, evaluates in batches]
            for coin, *parts in zip(coins, *(leaf.unbind() for leaf in tree_leaves(gathered)), strict=True):
                yield tree_unflatten(gathered, iter(parts)), one, coin

    def _block_size(self) -> int:
        row = self.problem.data.X[0].numel() * self.problem.data.X.element_size() + 64
        per_step = len(self.runs) * self.stack.column.numel() * row
        room = GPU_BLOCK_BYTES if self.x.is_cuda else BLOCK_BYTES
        return max(1, min(512, room // per_step))

    # What the runs show -----------------------------------------------------------------------------------------------

    def _each(self, read: Callable[[Algorithm[Any], Tensor, Any], Any]) -> Any:
        """Something read from every run's point and state, as values of its own."""
        with torch.no_grad():
            found = vmap(lambda x, state, hyper: read(with_hyperparams(self.algorithm, hyper), x, state))(
                self.x, self.state, self.hyper
            )
        return tree_map(lambda leaf: leaf.clone(), found)

    def _points(self) -> Tensor:
        return self.x

    def _multipliers(self) -> Tensor:
        return self.y

    def _skipped(self) -> Tensor:
        return self.skipped.long()

    def _output(self) -> Tensor:
        output: Tensor = self._each(lambda algorithm, x, state: algorithm.output(x, state))
        return output

    def _monitors(self) -> dict[str, Tensor]:
        monitors: dict[str, Tensor] = self._each(lambda algorithm, x, state: algorithm.monitor(state))
        return monitors
