"""Write what the losses of benchmark problems are measured against:
problems/references/<name>.json.

    OMP_NUM_THREADS=1 python tools/make_references.py hs71 qcqp          from the problem's own
    solution OMP_NUM_THREADS=1 python tools/make_references.py --long income-ok-race    the best of
    long stochastic runs

A long reference is the smallest training loss among the recorded outputs of several methods, step
sizes and seeds, over as many times the budget as `--budgets` says with steps that fall linearly,
whose largest violation is at most 0.03 of the constraints' scale. Multiplier methods move x by the
problem's Adam, whose rate falls, too. It is no solution (a full-batch solver would memorize the
examples); its KKT residual is printed with the multipliers that fit best, and the method that found
it is noted with it. The scale is the problem's own (its bound), or the violation where plain
training ends.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.algorithms import PHRALM, SGD, AdaptivePI, DescentAscent, NuPI, TrackedSQP, primal
from fairbound.algorithms.schedules import Linear
from fairbound.benchmark._budget import examples_per_step
from fairbound.benchmark._task import MAX_SUBPROBLEM, batch_sizes
from fairbound.benchmark.problems import BenchmarkProblem, Instance, Reference, load
from fairbound.benchmark.problems import table as table_problems
from fairbound.benchmark.problems._catalog import FOLDER
from fairbound.benchmark.problems._certificate import kkt_residual
from fairbound.core import Algorithm, Primal
from fairbound.training._runner import run

STARTS = tuple(range(5))  # the board's seeds
LONG_SEEDS = (200, 201, 202)  # no seeds of the board
FEASIBLE = 0.03  # of the scale: the board's tightest target
FACTORS = (0.3, 1.0, 3.0)  # of the problem's rate, or of a method's own step size
LARGEST_JACOBIAN = 50_000_000  # entries; beyond it the residual of a long reference is not computed


class Candidate(NamedTuple):
    """A method of a long run, and how it moves x where its own step does not."""

    name: str
    method: Algorithm[Any]
    primal: Primal | None = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument(
        "--long", action="store_true", help="the best of long runs, in the place of the solution"
    )
    parser.add_argument(
        "--budgets", type=float, default=3.0, help="length of a long run in budgets of the problem"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="of a long reference; all where it is left out",
    )
    parser.add_argument(
        "--factors", nargs="+", type=float, default=FACTORS, help="of every method's rate"
    )
    parser.add_argument(
        "--dual", type=float, default=1.0, help="factor of every method's own dual step"
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="census tables as where no real data are found"
    )
    options = parser.parse_args()
    if options.synthetic:
        table_problems.best = lambda state: f"synthetic:{state}"  # type: ignore[assignment]
    torch.set_num_threads(1)
    for name in options.names:
        problem = load(name)
        instance = problem.build()
        if options.long:
            tried = settings(
                problem, instance, options.budgets, options.factors, options.methods, options.dual
            )
            found = best_of_long_runs(problem, instance, tried, options.budgets)
        else:
            found = exact(problem, instance)
        write(name, instance.source, found)
        print(
            f"{name} ({instance.source}): loss {found.loss:.6g}, start {found.start:.6g}, scale"
            f" {found.scale:.4g}, residual"
            f" {'-' if found.residual is None else f'{found.residual:.2e}'}; {found.how}",
            flush=True,
        )


def write(name: str, source: str, found: Reference) -> None:
    """Into the problem's file, beside what is known of other sources."""
    path = FOLDER / "references" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    table[source] = asdict(found)
    lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(table.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def evaluated(instance: Instance, x: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and largest violation over all training examples: (R,) each."""
    found = instance.problem.evaluate(x, instance.splits[0].train)
    return found.loss, instance.violation(found.c) / instance.scale


def start_loss(instance: Instance) -> float:
    return float(evaluated(instance, instance.starts(STARTS))[0].median())


def scale_of(problem: BenchmarkProblem, instance: Instance) -> float:
    """The problem's own, or the median violation where unconstrained SGD ends; 1 where that
    violates nothing."""
    if problem.scale is not None:
        return problem.scale
    end = recorded(problem, instance, Candidate("SGD", SGD()), STARTS, points=1)
    size = float(evaluated(instance, next(end))[1].median())
    return size if size > 1e-3 else 1.0


# Exact --------------------------------------------------------------------------------------------


def exact(problem: BenchmarkProblem, instance: Instance) -> Reference:
    """From the solution or the optimal value that the problem states, with its certificate."""
    solution = instance.solution
    start, scale = start_loss(instance), scale_of(problem, instance)
    if solution is not None:
        return Reference(
            loss=float(evaluated(instance, solution.x)[0][0]),
            start=start,
            scale=scale,
            residual=kkt_residual(instance, solution.x, solution.y),
            exact=True,
            how="the exact solution; the residual is that of the KKT conditions over all examples",
            x=tuple(solution.x.tolist()),
            y=None if solution.y is None else tuple(solution.y.tolist()),
        )
    if problem.optimum is None:
        raise ValueError(f"{problem.name} states no solution; use --long")
    loss, residual, how, y = problem.optimum()
    multipliers = None if y is None else tuple(y.tolist())
    return Reference(
        loss=loss, start=start, scale=scale, residual=residual, exact=True, how=how, y=multipliers
    )


# Long runs ----------------------------------------------------------------------------------------


def best_of_long_runs(
    problem: BenchmarkProblem,
    instance: Instance,
    tried: Iterable[tuple[Candidate, float]],
    budgets: float,
) -> Reference:
    scale, best, best_x, how = scale_of(problem, instance), float("inf"), None, "nothing feasible"
    print(
        f"{problem.name}: scale {scale:.4g}; feasible is a violation of at most"
        f" {FEASIBLE * scale:.3g}"
    )
    for candidate, factor in tried:
        began, own, last = time.perf_counter(), float("inf"), float("nan")
        for x in recorded(problem, instance, candidate, LONG_SEEDS, budgets):
            loss, violation = evaluated(instance, x)
            loss, last = (
                torch.where(violation <= FEASIBLE * scale, loss, torch.inf),
                float(violation.median()),
            )
            place = int(loss.nan_to_num(torch.inf).argmin())
            own = min(own, float(loss[place]))
            if loss[place] < best:
                best, best_x = float(loss[place]), x[place].clone()
                how = (
                    f"the best feasible loss of long runs: {candidate.name}, {factor:g} x its rate"
                )
        seconds = time.perf_counter() - began
        print(
            f"  {candidate.name:<24} x {factor:<4g} best feasible {own:<10.6g} last violation"
            f" {last:<9.3g} {seconds:.0f} s",
            flush=True,
        )
    if best_x is None:
        raise ValueError(
            f"no run on {problem.name} was within {FEASIBLE * scale:.3g} of feasible; make it"
            " easier"
        )
    small = instance.problem.m * best_x.numel() <= LARGEST_JACOBIAN
    residual = kkt_residual(instance, best_x) if small else None
    return Reference(
        loss=best, start=start_loss(instance), scale=scale, residual=residual, exact=False, how=how
    )


def settings(
    problem: BenchmarkProblem,
    instance: Instance,
    budgets: float,
    factors: Sequence[float] = FACTORS,
    names: Sequence[str] | None = None,
    dual: float = 1.0,
) -> Iterator[tuple[Candidate, float]]:
    """Methods with steps that fall linearly to 2 %, at several sizes."""
    bases: list[tuple[Algorithm[Any], tuple[str, ...]]] = [
        (DescentAscent(), ("eta",)),
        (NuPI(), ("eta",)),
        (PHRALM(), ("eta",)),
        (AdaptivePI(), ()),
    ]
    if instance.problem.m <= MAX_SUBPROBLEM:
        bases.append((TrackedSQP(alpha=0.3), ()))
    for base, duals in bases:
        name = type(base).__name__
        if names is not None and name not in names:
            continue
        steps = steps_within(base, problem, instance, budgets)
        falling = {setting: Linear(dual * getattr(base, setting), steps, 0.02) for setting in duals}
        for factor in factors:
            if isinstance(base, TrackedSQP):
                yield (
                    Candidate(name, replace(base, alpha=Linear(factor * 0.3, steps, 0.02))),
                    factor,
                )
            else:
                rate = float(problem.primal.get("lr", primal.Adam().lr))
                adam = primal.Adam(lr=Linear(factor * rate, steps, 0.02))
                yield Candidate(name, replace(base, **falling), adam), factor


def recorded(
    problem: BenchmarkProblem,
    instance: Instance,
    candidate: Candidate,
    seeds: tuple[int, ...],
    budgets: float = 1.0,
    points: int = 40,
) -> Iterator[Tensor]:
    """(R, n) outputs of stacked runs at equally spaced steps."""
    steps = steps_within(candidate.method, problem, instance, budgets)
    every = max(1, steps // points)
    samplers = [instance.sampler(i, seed) for i, seed in enumerate(seeds)]
    going = run(
        instance.problem,
        candidate.method,
        samplers,
        instance.starts(seeds),
        steps,
        primal=candidate.primal,
        every=every,
        compile=False,
    )
    for record in going:
        yield record.output


def steps_within(
    method: Algorithm[Any], problem: BenchmarkProblem, instance: Instance, budgets: float
) -> int:
    """How many steps pass so many budgets of examples through the model."""
    sizes = batch_sizes(instance)
    return max(1, int(budgets * problem.steps * sum(sizes) / examples_per_step(method, *sizes)))


if __name__ == "__main__":
    main()
