"""A problem without a solution is reported, with the sign that each method shows; one with a
solution is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import problems
import pytest
import torch

from fairbound import run
from fairbound.algorithms import (
    PHRALM,
    SPBM,
    SSLALM,
    DescentAscent,
    ExactPenalty,
    NuPI,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.algorithms._diagnostics import signs_of_infeasibility

SIGNS = {
    DescentAscent(): "multipliers still grow",
    DescentAscent(y_max=0.2): "stood at y_max",
    NuPI(): "multipliers still grow",
    NuPI(y_max=5.0): "stood at y_max",
    PHRALM(): "multipliers still grow",
    PHRALM(y_max=5.0): "stood at y_max",
    PHRALM(resilient=2.0): "the largest violation stands",
    SPBM(eta=0.5, y_max=5.0): "stood at y_max",
    SSLALM(eta=0.5, y_max=2.0): "met y_max",
    SwitchingSubgradient(): "no feasible step",
}


def signs(*known: problems.Known, steps: int, method: Any) -> list[str | None]:
    """What is said of a run of each problem."""
    problem, splits, cells = problems.table_of([*known])
    samplers = [problems.sampler_for(split, cells, 1) for split in splits]
    starts = torch.stack([one.start for one in known])
    return run(problem, method, samplers, starts, steps, compile=False).result().infeasible


@pytest.mark.parametrize(
    ("method", "steps", "sign"),
    [
        pytest.param(StochasticGhost(cap=0), 200, "kappa stays at 1", marks=pytest.mark.slow),
        (ExactPenalty(), 1000, "stands at its full weight"),
    ],
)
def test_a_sign_is_shown_where_there_is_no_solution_alone(
    method: Any, steps: int, sign: str
) -> None:
    shown, none = signs(problems.infeasible(), problems.ball(), steps=steps, method=method)
    assert sign in str(shown)
    assert none is None


def test_each_method_shows_its_sign() -> None:
    problem, (split,), cells = problems.table_of([problems.infeasible()])
    sampler, x0 = problems.sampler_for(split, cells, 1), problems.infeasible().start
    result = run(problem, [*SIGNS], sampler, x0, 200, compile=False).result()
    for method, sign, said in zip(SIGNS, SIGNS.values(), result.infeasible, strict=True):
        assert said is None if sign is None else sign in said, method
    resilient = [*SIGNS].index(PHRALM(resilient=2.0))
    # relaxed by 1 = y / alpha
    assert result.multipliers[resilient, :2].tolist() == pytest.approx([2.0, 2.0], abs=1e-3)


def test_iterates_that_were_never_saved_are_reported() -> None:
    known = replace(problems.nonsmooth(), start=torch.zeros(3, dtype=problems.F64))
    assert "no iterate was saved" in str(
        signs(known, steps=50, method=SwitchingSubgradient(k0=1000))
    )


def test_what_happened_in_the_first_half_alone_is_no_sign() -> None:
    early, late = [0.0] + [2.0] * 9, [0.0] * 6 + [1.0, 2.0, 3.0, 4.0]
    for name, event in (("resets", "met y_max"), ("capped", "stood at y_max")):
        found = signs_of_infeasibility({name: torch.tensor([early, late]).T}, range(10))
        assert found[0] is None
        assert f"{event} 4 times, 4 of them in the second half" in str(found[1])


def test_a_feasible_step_of_the_first_half_alone_is_not_enough() -> None:
    early, late = [1.0] * 10, [float(k) for k in range(10)]
    found = signs_of_infeasibility({"feasible_steps": torch.tensor([early, late]).T}, range(10))
    assert "no feasible step among the last 4" in str(found[0])
    assert found[1] is None


def test_multipliers_that_rise_and_fall_do_not_grow() -> None:
    rising = torch.tensor([2.0**k for k in range(12)])
    noisy = rising * torch.tensor([1.0, 4.0] * 6)
    found = signs_of_infeasibility({"multiplier_norm": torch.stack([rising, noisy], 1)}, range(12))
    assert "the multipliers still grow" in str(found[0])
    assert found[1] is None


def test_a_direction_that_dies_out_in_the_last_quarter_while_kappa_stays() -> None:
    still, moving = [1.0] * 9 + [0.0] * 3, [1.0] * 12
    stays, falls = [1.0] * 12, [1.0] * 11 + [0.0]
    history = {
        "kappa": torch.tensor([stays, stays, falls]).T,
        "direction": torch.tensor([still, moving, still]).T,
    }
    found = signs_of_infeasibility(history, range(12))
    assert "kappa stays at 1" in str(found[0])
    assert found[1:] == [None, None]
