"""Seconds per step of every row of an experiment: one run alone, in a custom loop.

    d, state = method.update(x, state, source.next(method.evaluates, method.batch_size_probs))
    x = x + d

The loop is eager and has one thread; drawing the mini-batches counts, the first steps and all evaluation do not. Rows
take turns in rounds, so that whatever else the machine does hurts all of them alike, and the medians over rounds count.
Rows whose methods differ in numbers only, on the same sizes and constraints, cost the same: one is timed for all.

Where batch sizes are random, every level is timed equally often, and the seconds are weighted by the probabilities of
the levels. The largest mini-batch of Ghost has 128 times the examples of the smallest and comes once in 90 steps: a
mean over a few hundred steps as they come would depend on how often it was met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from fairbound.benchmark.config import Row
from fairbound.benchmark.experiment import PreparedExperiment, cross_entropy
from fairbound.benchmark.store import Timing
from fairbound.core import Algorithm, Draw
from fairbound.training.functional import initial_points, load_flat
from fairbound.training.hyperparams import structure
from fairbound.training.problem import ProblemSource

SEED = 0  # of the run that is timed
TURN_STEPS = 80
WARM_UP_STEPS = 10  # the first ones allocate memory and choose kernels
Progress = Callable[[int, int], None]  # turns done and turns in all


class Seconds(NamedTuple):
    """Since some moment, or of a step."""

    wall: float
    cpu: float


def now() -> Seconds:
    """Both clocks."""
    return Seconds(time.perf_counter(), time.process_time())


def measure(
    prepared: PreparedExperiment, *, rounds: int = 5, steps: int = TURN_STEPS, progress: Progress | None = None
) -> dict[str, Timing]:
    """Seconds per step of every row, by its name; `steps` of each are timed in a round."""
    for name, value in (("rounds", rounds), ("steps", steps)):
        if value < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, got {value}")
    with _one_thread():
        pairs = _loops(prepared)
        turns = list(dict.fromkeys(loop for pair in pairs.values() for loop in pair))
        seconds: dict[RowLoop | PlainLoop, list[Seconds]] = {loop: [] for loop in turns}
        for done in range(rounds * len(turns)):
            loop = turns[done % len(turns)]
            seconds[loop].append(loop.seconds(steps))
            if progress is not None:
                progress(done + 1, rounds * len(turns))
    return {
        row.name: _timing(seconds[loop], seconds[plain], loop.timed(steps) * rounds)
        for row, (loop, plain) in ((row, pairs[_cost(row)]) for row in prepared.experiment.rows)
    }


def _cost(row: Row) -> tuple[Any, ...]:
    """What decides how long a step of the row takes; the bound and the weight of the regularizer do not."""
    return structure(row.algorithm(row.steps)), row.batch, row.notion, row.pools, row.fairret > 0


def _loops(prepared: PreparedExperiment) -> dict[tuple[Any, ...], tuple[RowLoop, PlainLoop]]:
    """By cost: a row's loop, and plain SGD on as many examples."""
    made: dict[tuple[Any, ...], tuple[RowLoop, PlainLoop]] = {}
    plain: dict[int, PlainLoop] = {}  # by the examples of a step
    for row in prepared.experiment.rows:
        examples = round(row.examples_per_step(len(prepared.experiment.groups)))
        if examples not in plain:
            plain[examples] = PlainLoop(prepared, examples)
        if _cost(row) not in made:
            made[_cost(row)] = (RowLoop(prepared, row), plain[examples])
    return made


def _timing(row: Sequence[Seconds], plain: Sequence[Seconds], steps: int) -> Timing:
    """Medians over rounds, which are robust to a short load of the machine."""
    wall, _ = np.median(row, axis=0)
    low, cpu, high = np.quantile([one.cpu for one in row], [0.25, 0.5, 0.75])
    plain_cpu = np.median([one.cpu for one in plain])
    return Timing(wall=float(wall), cpu=float(cpu), spread=float(high - low), plain=float(plain_cpu), steps=steps)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tensors are small: a second thread would mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# The loops ------------------------------------------------------------------------------------------------------------


class RowLoop:
    """One run of a row, in a custom loop."""

    def __init__(self, prepared: PreparedExperiment, row: Row) -> None:
        self.method, problem = row.algorithm(row.steps), prepared.problem(row)
        sampler = prepared.sampler(row, problem, self.method.draws, split=0, seed=SEED)
        self.levels = [Level(problem.source(sampler), p, law) for p, law in _laws(self.method.batch_size_probs)]
        self.start, self.m = initial_points(prepared.network, [SEED])[0], problem.m
        self.first = self.levels[0].source.first(self.method.evaluates)(self.start)
        self._restart()
        self.seconds(WARM_UP_STEPS)

    def _restart(self) -> None:
        self.x, self.state = self.start, self.method.init(self.start, self.m, self.first)

    def timed(self, steps: int) -> int:
        """How many steps a turn of `steps` has: equally many on every level, at least one."""
        return max(1, steps // len(self.levels)) * len(self.levels)

    def seconds(self, steps: int) -> Seconds:
        """Per step, expected over levels."""
        if not self.x.isfinite().all():  # after divergence a solver may stop early, or never
            self._restart()
        each, wall, cpu = self.timed(steps) // len(self.levels), 0.0, 0.0
        for level in self.levels:
            before = now()
            for _ in range(each):
                d, self.state = self.method.update(self.x, self.state, level.draw(self.method))
                self.x = self.x + d
            after = now()
            wall += level.probability * (after.wall - before.wall) / each
            cpu += level.probability * (after.cpu - before.cpu) / each
        return Seconds(wall, cpu)


class Level(NamedTuple):
    """Mini-batches of one size: where they come from, and how probable that size is."""

    source: ProblemSource  # a separate one: a source has one distribution of batch sizes
    probability: float
    law: tuple[float, ...] | None  # this level and no other; None where sizes are fixed

    def draw(self, method: Algorithm[Any]) -> Draw:
        """What the method draws when the level is this one."""
        if self.law is None:
            return self.source.next(method.evaluates, None)
        draw = self.source.next(method.evaluates, self.law)
        return draw._replace(weight=draw.weight / self.probability)


def _laws(law: tuple[float, ...] | None) -> list[tuple[float, tuple[float, ...] | None]]:
    """Of every level its probability, and the law that has no other level.

    >>> _laws((0.75, 0.25))
    [(0.75, (1.0, 0.0)), (0.25, (0.0, 1.0))]
    """
    if law is None:
        return [(1.0, None)]
    return [(p, tuple(float(i == level) for i in range(len(law)))) for level, p in enumerate(law)]


class PlainLoop:
    """Stochastic gradient descent as PyTorch's tutorials write it: no constraints, no flat parameters."""

    def __init__(self, prepared: PreparedExperiment, examples: int) -> None:
        self.examples, self.data = examples, prepared.data
        self.train = prepared.split_of(0).train
        self.generator = torch.Generator().manual_seed(SEED)
        self.network = load_flat(prepared.network(), initial_points(prepared.network, [SEED])[0])
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05)
        self.seconds(WARM_UP_STEPS)

    def seconds(self, steps: int) -> Seconds:
        """Per step."""
        before = now()
        for _ in range(steps):
            batch = self.train[torch.randint(len(self.train), (self.examples,), generator=self.generator)]
            self.optimizer.zero_grad()
            cross_entropy(self.network(self.data.X[batch]), self.data.y[batch]).mean().backward()
            self.optimizer.step()
        after = now()
        return Seconds((after.wall - before.wall) / steps, (after.cpu - before.cpu) / steps)
