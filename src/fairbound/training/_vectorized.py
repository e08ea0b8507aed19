"""Runs of one structure, stepping together: one `vmap` of the algorithm's own `update`.

A model that cannot be vmapped (a Keras model) has sequential runs, through the same code without
`vmap`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_structure, tree_unflatten

from fairbound._utils.measuring import is_probe
from fairbound.algorithms._diagnostics import (
    monitor_record,
    signs_of_divergence,
    signs_of_infeasibility,
)
from fairbound.core import Algorithm, Draw, Estimate, MultiplierMethod, Primal, Sample
from fairbound.data._samplers import START, Sampler, SamplerStack
from fairbound.training._checkpoint import Checkpoint
from fairbound.training._compile import Compiler
from fairbound.training._contract import start_warning
from fairbound.training._hyperparams import stack_hyperparams, structure, with_hyperparams
from fairbound.training._multilevel import MultilevelTables
from fairbound.training._problem import Problem
from fairbound.training._records import FinalState, Mean, Record

_log = logging.getLogger("fairbound")

_BLOCK_BYTES = 32 << 20  # memory for the examples of one block of steps
GPU_BLOCK_BYTES = 2 << 30  # the same on a GPU, where drawing a block is mostly launching
MONITORED = 100  # how often a run records its monitors for the diagnosis


def _watched(sample: Sample, evaluates: str, read: dict[str, list[Tensor]]) -> Sample:
    """The same sample, which notes in `read` what its estimates are."""

    def at(point: Tensor) -> Estimate:
        e = sample(point)
        for name, value in (("f", e.f), ("c", e.c)):
            if name in evaluates:
                read[name].append(value)
        return e

    return Sample(at)


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces vmap for a single run: removes the run's dimension and restores it."""

    def of_one(*args: Any) -> Any:
        inside = tree_map(lambda leaf: leaf[0], args)
        return tree_map(lambda leaf: leaf[None], function(*inside))

    return of_one


@contextmanager
def _explained() -> Iterator[None]:
    """vmap's error about random operations as a readable message."""
    try:
        yield
    except RuntimeError as error:
        if "randomness" not in str(error):
            raise
        raise ValueError(
            "the model draws random numbers (dropout, say), which stacked runs cannot; "
            "put it in eval mode, or train it in a loop of your own"
        ) from error


@dataclass(frozen=True)
class MethodAndPrimal:
    """What moves x in a run: a method, and the primal step of a multiplier method; None: the
    method's own."""

    method: Algorithm[Any]
    primal: Primal | None = None

    def init(self, x: Tensor, m: int, first: Estimate | None, equality: Tensor | None) -> Any:
        if isinstance(self.method, MultiplierMethod):
            return self.method.init(x, m, first, equality, self.primal)
        return self.method.init(x, m, first, equality)

    def update(self, x: Tensor, state: Any, draw: Draw, probe: bool) -> tuple[Tensor, Any]:
        if isinstance(self.method, MultiplierMethod):
            return self.method.update(x, state, draw, self.primal, probe)
        return self.method.update(x, state, draw)

    @property
    def measures(self) -> bool:
        return isinstance(self.method, MultiplierMethod) and self.method.measures


class VectorizedRuns:
    """Runs of one structure, stepping together; one run alone where the model cannot be vmapped."""

    def __init__(
        self,
        problem: Problem,
        methods: Sequence[MethodAndPrimal],
        samplers: Sequence[Sampler],
        x0: Tensor,
        runs: Sequence[int],
        compiled: bool,
        forced: bool,
        waits: bool,
    ) -> None:
        self.problem, self.settings, self.algorithm = problem, methods[0], methods[0].method
        self.hyper = stack_hyperparams(methods, x0, all_of_them=compiled)
        self.runs = tuple(runs)
        self.stack = SamplerStack(
            samplers, self.algorithm.draws, self.algorithm.batch_size_probs, x0.device
        )
        compiler = Compiler(problem, forced) if compiled else None
        self.compiler = compiler
        self.tables = (
            None
            if self.algorithm.batch_size_probs is None
            else MultilevelTables(problem, self.stack, compiler, x0)
        )
        self.map = vmap if problem.vectorizes else _one_by_one
        # what waits for the device cannot be recorded
        as_graph = x0.is_cuda and self.tables is None and not waits
        self.step, self.probing_step = (self._mapped(probe, as_graph) for probe in (False, True))
        self.x = x0.clone()
        self.state = self._init()
        self.skipped = x0.new_zeros(len(runs))
        self.read: dict[str, Tensor] = {}  # f (R,) and c (R, m) of the last step's mini-batches
        # (R, m), or (R, 0) for a method that has none
        self.y: Tensor = self._each(self._multipliers_of)[:, : problem.m]

    def _mapped(self, probe: bool, as_graph: bool) -> Callable[..., Any]:
        """A step of all runs; `probe`: with the measurements of a method that asks for them."""
        step = self.map(partial(self._step, probe))
        return (
            step
            if self.compiler is None
            else self.compiler(step, (structure(self.settings), probe), as_graph)
        )

    # One run, one step; vmapped over the runs -----------------------------------------------------

    def _step(
        self,
        probe: bool,
        x: Tensor,
        state: Any,
        skipped: Tensor,
        hyper: dict[str, Tensor],
        parts: Any,
        weight: Tensor,
        uniform: Tensor,
    ) -> tuple[Tensor, Any, Tensor, Tensor, dict[str, Tensor]]:
        settings = with_hyperparams(self.settings, hyper)
        read: dict[str, list[Tensor]] = {"f": [], "c": []}  # what was read
        samples = tuple(
            _watched(sample, evaluates, read)
            for sample, evaluates in zip(
                self._samples(x, parts), self.algorithm.evaluates, strict=True
            )
        )
        d, new = settings.update(x, state, Draw(samples, weight, uniform), probe)
        checked = (*read["f"], *read["c"], d, *tree_leaves(new))
        finite = torch.stack([torch.isfinite(part).all() for part in checked]).all()
        # In the old precision: a compiled step reads its inputs as what they were at the first
        # call.
        state = tree_map(
            lambda after, before: torch.where(finite, after.to(before.dtype), before), new, state
        )
        return (
            torch.where(finite, (x + d).to(x.dtype), x),
            state,
            skipped + ~finite,
            self._multipliers_of(settings.method, x, state),
            {name: values[-1] for name, values in read.items() if values},
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
        equality, m = self.problem.constraints.equality, self.problem.m

        def start(x: Tensor, hyper: dict[str, Tensor], part: Any) -> tuple[Any, Tensor, Tensor]:
            first = self.problem.sample(part)(x)
            settings = with_hyperparams(self.settings, hyper)
            state = settings.init(x, m, first, equality)
            finite = torch.isfinite(first.f)
            return (
                state,
                finite & torch.isfinite(first.c).all() if "c" in evaluates else finite,
                first.c,
            )

        with torch.no_grad(), _explained():
            state, finite, c = self.map(start)(self.x, self.hyper, parts)
        if not finite.all():
            bad = [run for run, ok in zip(self.runs, finite.tolist(), strict=True) if not ok]
            raise ValueError(
                "the loss or a constraint is NaN or infinite at the starting point of runs"
                f" {bad[:5]}; nothing was run"
            )
        if "c" in evaluates and c.shape[1]:
            worst = int(c.amax(-1).argmax())
            sentence = start_warning(self.algorithm, f"run {self.runs[worst]}", c[worst])
            if sentence is not None:
                _log.warning(sentence)
        # Values that vmap shares between runs become their own, with plain strides: others would
        # mean a second compilation.
        return tree_map(lambda leaf: leaf.new_empty(leaf.shape).copy_(leaf), state)

    # All runs -------------------------------------------------------------------------------------

    def _advance(self, step: int, parts: Any, weight: Tensor, uniform: Tensor) -> None:
        if self.tables is not None:
            parts = self.tables.evaluate(self.x, step, parts)
        take = (
            self.probing_step
            if self.settings.measures and is_probe(step, self.problem.m)
            else self.step
        )
        self.x, self.state, self.skipped, self.y, self.read = take(
            self.x, self.state, self.skipped, self.hyper, parts, weight, uniform
        )

    def _draws(self, steps: int, begin: int = 0) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """The draws of every step from `begin` on: tensors (R, ...), made in blocks of many
        steps."""
        ones = torch.ones(len(self.runs), dtype=self.x.dtype, device=self.x.device)
        size = self._block_size()
        for first in range(begin, steps, size):
            block = min(size, steps - first)
            uniform = self.stack.uniform(first, block)
            if self.tables is not None:
                level, weight = self.stack.levels(first, block)
                yield from zip(level, weight.to(self.x.dtype), uniform, strict=True)
                continue
            evaluates = self.algorithm.evaluates
            batches = zip(self.stack.block(first, block, evaluates), evaluates, strict=True)
            examples = [self.problem.gather(batch, evaluates) for batch, evaluates in batches]
            leaves, form = tree_flatten(examples)
            for number, *parts in zip(uniform, *(leaf.unbind() for leaf in leaves), strict=True):
                yield tree_unflatten(parts, form), ones, number

    def _block_size(self) -> int:
        example_bytes = self.problem.data.X[0].numel() * self.problem.data.X.element_size() + 64
        per_step = len(self.runs) * self.stack.column.numel() * example_bytes
        budget = GPU_BLOCK_BYTES if self.x.is_cuda else _BLOCK_BYTES
        return max(1, min(512, budget // per_step))

    # What the runs show ---------------------------------------------------------------------------

    def _each(self, read: Callable[[Algorithm[Any], Tensor, Any], Any]) -> Any:
        """A function of every run's point and state, as copies."""
        with torch.no_grad():
            values = self.map(
                lambda x, state, hyper: read(
                    with_hyperparams(self.settings, hyper).method, x, state
                )
            )(self.x, self.state, self.hyper)
        return tree_map(lambda leaf: leaf.clone(), values)

    def _output(self) -> Tensor:
        output: Tensor = self._each(lambda algorithm, x, state: algorithm.output(x, state))
        return output

    def _monitors(self) -> dict[str, Tensor]:
        monitors: dict[str, Tensor] = self._each(
            lambda algorithm, x, state: algorithm.monitor(state)
        )
        return monitors

    def records(
        self,
        steps: int,
        every: int | Sequence[int],
        average_from: int | None,
        checkpoint: Checkpoint | None = None,
    ) -> Generator[Record, None, FinalState]:
        """Step to the end; a record every `every` steps (or at those) and at the end. Returns the
        final state."""
        recorded_at = range(every, steps, every) if isinstance(every, int) else frozenset(every)
        history: list[dict[str, Tensor]] = []
        recorded_steps: list[int] = []
        mean = None if average_from is None else Mean(average_from)
        begin = 0 if checkpoint is None else self._resume(checkpoint, history, recorded_steps)
        for k, (parts, weight, uniform) in enumerate(self._draws(steps, begin), begin):
            done, last = k + 1, k + 1 == steps
            with torch.no_grad():  # not around the yield: it would disable gradients for the caller
                self._advance(k, parts, weight, uniform)
                if mean is not None:
                    mean.add(k, self.x, self.y)
            if last or done % max(1, steps // MONITORED) == 0:
                history.append(self._diagnosed())
                recorded_steps.append(done)
            if last or done in recorded_at:
                self._own_results()
                yield self._record(done)
            # after the caller has seen the record
            if checkpoint is not None and checkpoint.is_due and not last:
                state = {
                    "x": self.x,
                    "state": tree_leaves(self.state),
                    "skipped": self.skipped,
                    "y": self.y,
                }
                checkpoint.save(state | {"step": done, "history": history, "seen": recorded_steps})
        return self._final(history, recorded_steps, mean)

    def _own_results(self) -> None:
        """Copies of what a step returned: a CUDA graph's next call, which may be that of another
        run, overwrites it."""
        results = self.x, self.state, self.skipped, self.y
        self.x, self.state, self.skipped, self.y = tree_map(torch.clone, results)

    def _resume(
        self, checkpoint: Checkpoint, history: list[dict[str, Tensor]], recorded_steps: list[int]
    ) -> int:
        """Resume an interrupted run; returns the step from which it goes on."""
        saved = checkpoint.load(self.x.device)
        if saved is None:
            return 0
        self.x, self.skipped, self.y = saved["x"], saved["skipped"], saved["y"]
        self.state = tree_unflatten(saved["state"], tree_structure(self.state))
        history += saved["history"]
        recorded_steps += saved["seen"]
        return int(saved["step"])

    def _diagnosed(self) -> dict[str, Tensor]:
        f, c = self.read.get("f"), self.read.get("c")
        equality = self.problem.constraints.equality
        record = monitor_record(self._monitors(), self.y, f, c, equality)
        # a CUDA graph writes over what it returned
        return {name: values.clone() for name, values in record.items()}

    def _record(self, step: int) -> Record:
        y = self.y.clone() if self.y.shape[1] else None
        return Record(
            step,
            self.runs,
            self.x.clone(),
            self._output(),
            y,
            self._monitors(),
            self.skipped.long(),
        )

    def _final(
        self, history: list[dict[str, Tensor]], recorded_steps: list[int], mean: Mean | None
    ) -> FinalState:
        def filled(y: Tensor) -> Tensor:
            return (
                y.clone() if y.shape[1] else y.new_full((len(self.runs), self.problem.m), torch.nan)
            )

        shown = {name: torch.stack([entry[name] for entry in history]) for name in history[0]}
        monitors, skipped = self._monitors(), self.skipped.long()
        if skipped.any():
            _log.warning(
                f"{type(self.algorithm).__name__}: {int((skipped > 0).sum())} of {len(self.runs)}"
                f" runs skipped steps that were not finite (up to {int(skipped.max())}, run"
                f" {self.runs[int(skipped.argmax())]}); its steps may be too long"
            )
        return FinalState(
            runs=self.runs,
            x=self.x,
            output=self._output(),
            multipliers=filled(self.y),
            mean_x=None if mean is None else mean.x,
            mean_multipliers=None if mean is None else filled(mean.y),
            monitors=[
                {name: float(v[i]) for name, v in monitors.items()} for i in range(len(self.runs))
            ],
            infeasible=signs_of_infeasibility(shown, recorded_steps) or [None] * len(self.runs),
            diverging=signs_of_divergence(shown) or [None] * len(self.runs),
            skipped=skipped,
        )
