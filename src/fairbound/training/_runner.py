"""`run`: many runs of a method at once, over seeds and hyper-parameters.

All runs of a stack take a step together, as one `vmap` of the algorithm's own `update`. Every run
owns its random stream, so its trajectory does not depend on what shares its stack. Runs that differ
in structure (another class, schedule or batch size) are grouped and run group by group. A model
that cannot be vmapped (`forward.stacks` is False) runs one after another.

A step whose direction or state is not finite is skipped and counted; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.sentences import listing
from fairbound.core import Algorithm, MultiplierMethod, Primal
from fairbound.data._samplers import Sampler
from fairbound.training._checkpoint import Checkpoint
from fairbound.training._compile import choose_compilation
from fairbound.training._contract import check_contract
from fairbound.training._hyperparams import structure
from fairbound.training._problem import Problem
from fairbound.training._records import FinalState, Record
from fairbound.training._vectorized import MethodAndPrimal, VectorizedRuns


@dataclass(frozen=True)
class Result:
    """The end of all runs. R runs, n parameters, m constraints. `run` has an example."""

    x: Tensor  # (R, n) last iterates
    output: Tensor  # (R, n) what each method returns
    multipliers: Tensor  # (R, m); NaN for a method that has none
    mean_x: Tensor | None  # (R, n) means over the steps from `average_from` on
    mean_multipliers: Tensor | None  # (R, m)
    monitors: tuple[dict[str, float], ...]  # the method's own scalars at the end, for each run
    # for each run None, or the sign of an infeasible problem that was seen
    infeasible: tuple[str | None, ...]
    diverging: tuple[str | None, ...]  # for each run None, or the sign of divergence that was seen
    skipped: Tensor  # (R,) steps skipped because something was not finite
    compiled: bool
    note: str  # one line on how it ran


class Run:
    """A computation in progress: iterate over its records, or ask for the result. `run` has an
    example."""

    def __init__(
        self,
        groups: Sequence[VectorizedRuns],
        steps: int,
        every: int | Sequence[int],
        average_from: int | None,
        compiled: bool,
        note: str,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._groups, self._steps, self._every, self._average_from = (
            groups,
            steps,
            every,
            average_from,
        )
        self._checkpoint = checkpoint
        self._records = self._advance()
        self._ends: list[FinalState] = []
        self._compiled, self._note = compiled, note

    @property
    def compiled(self) -> bool:
        """Whether the runs are compiled."""
        return self._compiled and not self._failures

    @property
    def note(self) -> str:
        """One line on how it runs."""
        return self._failures[0] if self._failures else self._note

    @property
    def compiling(self) -> float:
        """Seconds spent on compiling so far."""
        return sum(group.compiler.seconds for group in self._groups if group.compiler)

    @property
    def _failures(self) -> list[str]:
        return [
            group.compiler.failure
            for group in self._groups
            if group.compiler and group.compiler.failure
        ]

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def _advance(self) -> Iterator[Record]:
        for group in self._groups:
            records = group.records(self._steps, self._every, self._average_from, self._checkpoint)
            self._ends.append((yield from records))

    def result(self) -> Result:
        """Run to the end and put the groups together."""
        for _ in self._records:
            pass
        ends = self._ends
        if len(ends) < len(self._groups):
            raise RuntimeError(
                "the run was interrupted before its end, so it has no result; start it again"
            )
        order = torch.tensor([run for end in ends for run in end.runs]).argsort().tolist()

        def joined(name: str) -> Any:
            parts = [getattr(end, name) for end in ends]
            if parts[0] is None:
                return None
            if isinstance(parts[0], Tensor):
                return torch.cat(parts)[order]
            entries = [entry for part in parts for entry in part]
            return tuple(entries[i] for i in order)

        of_runs = {name: joined(name) for name in FinalState._fields if name != "runs"}
        return Result(**of_runs, compiled=self.compiled, note=self.note)


def run(
    problem: Problem,
    method: Algorithm[Any] | Sequence[Algorithm[Any]],
    samplers: Sampler | Sequence[Sampler],
    x0: Tensor,
    steps: int,
    *,
    primal: Primal | Sequence[Primal | None] | None = None,
    every: int | Sequence[int] | None = None,
    average_from: int | None = None,
    compile: bool | None = None,  # noqa: A002
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Runs of `method` on `problem`: as many as there are samplers, methods, primals or starting
    points.

    Args:
        method: one for all runs, or one for each.
        samplers: one for each run (`sampler.seeded(0, 1, 2)`); a single one is for all.
        x0: starting points, (n,) for all or (R, n). Device and precision are theirs.
        steps: steps of every run.
        primal: how x moves along the gradient of a multiplier method, such as
            `primal.Adam(lr=0.01)`, one for all runs or one for each; None: by the method's own
            step, -tau times the gradient.
        every: give a record after this many steps, or at the steps listed, and at the end; None: at
            the end only.
        average_from: from this step on keep means of x and of the multipliers.
        compile: into machine code; None decides by the length of the run and says so in `note`.
        checkpoint: a file to which the run is saved now and then, and from which it resumes. For
            runs of one structure without `average_from`; others are not saved.

    Returns:
        A `Run`: iterate over it for records, or call `.result()`.

    >>> from fairbound import (
    ...     SSLALM,
    ...     BatchSpec,
    ...     Dataset,
    ...     Sampler,
    ...     Split,
    ...     constraints,
    ...     make_functional,
    ... )
    >>> data = Dataset(torch.randn(64, 3), torch.randn(64), {"sex": torch.arange(64) % 2})
    >>> forward, x = make_functional(torch.nn.Linear(3, 1))
    >>> parity = constraints.pairwise_loss_parity(["F", "M"], bound=0.01).bind(data.groups["sex"])
    >>> problem = Problem(forward, lambda outputs, y: (outputs - y) ** 2, parity, data)
    >>> sampler = Sampler(Split.all_train(64), parity.cells, BatchSpec(objective=8, cell=8))
    >>> runs = run(problem, SSLALM(), sampler.seeded(0, 1, 2), x, steps=10, every=5)
    >>> [record.step for record in runs]
    [5, 10]
    >>> runs.result().x.shape
    torch.Size([3, 4])
    """
    listed_steps = list(every) if isinstance(every, Sequence) else [] if every is None else [every]
    for name, number in (("steps", steps), *(("every", step) for step in listed_steps)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, got {number!r}")
    if x0.ndim not in (1, 2):
        raise ValueError(
            f"x0 must be a vector (n,) or a row for each run (R, n), got shape {tuple(x0.shape)}"
        )
    if average_from is not None and not 0 <= average_from < steps:
        raise ValueError(f"average_from must be a step from 0 to {steps - 1}, got {average_from}")
    methods = [method] if isinstance(method, Algorithm | type | str) else list(method)
    kinds = {type(method): method for method in methods}
    facts = {kind: check_contract(method, "run", problem.m) for kind, method in kinds.items()}
    primals = list(primal) if isinstance(primal, Sequence) else [primal]
    listed = [samplers] if isinstance(samplers, Sampler) else list(samplers)
    points = x0.detach().reshape(-1, x0.shape[-1])
    runs = max(len(methods), len(listed), len(points), len(primals))
    for kind, size in (
        ("methods", len(methods)),
        ("primals", len(primals)),
        ("samplers", len(listed)),
        ("starting points", len(points)),
    ):
        if size == 0 or size not in (1, runs):
            raise ValueError(f"{size} {kind} for {runs} runs; give one, or one for each run")
    methods = methods * (runs // len(methods))
    listed = listed * (runs // len(listed))
    primals = primals * (runs // len(primals))
    points = points.expand(runs, -1)
    _check(problem, methods, listed, points)

    compiled, note = False, "not compiled: this model runs one by one"
    if problem.vectorizes:
        compiled, note = choose_compilation(
            compile, steps, any(method.batch_size_probs is not None for method in methods)
        )
    settings = [MethodAndPrimal(*pair) for pair in zip(methods, primals, strict=True)]
    for pair in settings:
        if pair.primal is not None and not isinstance(pair.method, MultiplierMethod):
            raise ValueError(
                f"{type(pair.method).__name__} has a step of its own; primal= is for multiplier"
                " methods"
            )
    members: dict[Hashable, list[int]] = {}
    for i, (pair, sampler) in enumerate(zip(settings, listed, strict=True)):
        alike = (structure(pair), sampler.structure(pair.method.draws)) if problem.vectorizes else i
        members.setdefault(alike, []).append(i)
    groups = [
        VectorizedRuns(
            problem,
            [settings[i] for i in numbers],
            [listed[i] for i in numbers],
            points[numbers],
            numbers,
            compiled,
            compile is True,
            facts[type(methods[numbers[0]])].several_gradients,
        )
        for numbers in members.values()
    ]
    together = len(groups) == 1 and average_from is None
    return Run(
        groups,
        steps,
        every or steps,
        average_from,
        compiled,
        note,
        checkpoint if together else None,
    )


def _check(
    problem: Problem, methods: Sequence[Algorithm[Any]], samplers: Sequence[Sampler], points: Tensor
) -> None:
    if not torch.isfinite(points).all():
        bad = (~torch.isfinite(points)).any(1).nonzero().flatten().tolist()
        raise ValueError(f"the starting points of runs {bad[:5]} are not finite")
    stateful: list[str] = getattr(problem.forward, "stateful", list)()
    if stateful:
        raise ValueError(
            "stacked runs cannot share layers that keep state or draw random numbers:"
            f" {', '.join(stateful)}; put the module in eval mode, or train it in a loop of"
            " your own"
        )
    problem.check(points[0])
    for method, sampler in zip(methods, samplers, strict=True):
        if sampler.min_rows > problem.data.rows:
            raise ValueError(
                f"the sampler's split or cells contain example {sampler.min_rows - 1}, "
                f"but the data have {problem.data.rows} examples"
            )
        if not any("c" in read for read in method.evaluates):
            continue
        if problem.constraint is None:
            raise ValueError(f"{type(method).__name__} needs constraints, and the problem has none")
        if not sampler.cells.same(problem.constraints.cells):
            raise ValueError(
                f"the sampler draws from {_few(sampler.cells.names)} but the constraint is about"
                f" {_few(problem.constraints.cells.names)}, or their examples differ; build it with"
                " constraint.cells"
            )


def _few(names: Sequence[str]) -> str:
    return f"{len(names)} cells ({listing(names, 4)})"
