"""Constraints c = 0: free multipliers, |c| in a penalty, no slack; switching lands on them, Ghost
keeps both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transcription import draws, path

from fairbound import SGD, DescentAscent, Penalty, SwitchingSubgradient
from fairbound.algorithms._subproblems import ghost_direction
from fairbound.algorithms.schedules import Linear
from fairbound.core import Algorithm, Sample, refuse_equality

F64 = torch.float64
# min |x - (0, 3)|^2 / 2  s.t.  x_1 - 1 = 0 (approached from c < 0: multiplier -1),  x_2 <= 2
# (multiplier 1)
A, B = torch.tensor([0.0, 3.0], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64)
SAMPLE = Sample.of(lambda x: (0.5 * (x - A).square().sum(), x - B))
EQUALITY = torch.tensor([True, False])


def end(method: Algorithm[Any], steps: int) -> tuple[torch.Tensor, Any]:
    *_, last = path(
        method, [SAMPLE] * (steps * method.draws), A, 2, first=SAMPLE(A), equality=EQUALITY
    )
    return last


def test_switching_meets_it_with_steps_longer_than_its_tolerance() -> None:
    """A constant step of .04 would step over c = 0 and back, and never be within .001 of it."""
    x, state = end(SwitchingSubgradient(eta_f=Linear(0.05, 3000), eta_c=0.04, eps=0.001), 3000)
    assert torch.allclose(x, B, atol=0.005)
    assert state.feasible_steps > 300


@pytest.mark.parametrize("worst_of_test", [True, False])
def test_switching_against_numpy(worst_of_test: bool) -> None:
    functions, samples, x = draws(12, seed=3)
    equality = np.array([True, False, True])
    method = SwitchingSubgradient(eta_f=0.05, eta_c=0.2, eps=0.3, worst_of_test=worst_of_test)
    signs = set()
    for k, (point, _) in enumerate(path(method, samples, x, equality=equality)):
        test, fresh = functions[2 * k], functions[2 * k + 1]
        judge = test.c(x) if worst_of_test else fresh.c(x)
        judged = np.where(equality, np.abs(judge), judge)
        if np.where(equality, np.abs(test.c(x)), test.c(x)).max() <= 0.3:
            x = x - 0.05 * fresh.gradient(x)
        else:
            i = judged.argmax()
            s = fresh.jacobian(x)[i] * (np.sign(judge[i]) if equality[i] else 1.0)
            x = x - (min(0.2, judged[i] / (s @ s)) if equality[i] else 0.2) * s
            signs.add((bool(equality[i]), np.sign(judge[i])))
        assert np.allclose(point, x, atol=1e-12)
    assert (True, -1.0) in signs


def test_a_cap_holds_on_both_sides() -> None:
    _, state = end(DescentAscent(tau=0.1, eta=0.1, y_max=0.5), 3000)
    assert state.y.tolist() == [-0.5, 0.5]
    assert state.capped > 0


def test_an_equality_is_penalized_on_both_sides() -> None:
    x, _ = end(Penalty(tau=0.01, weight=0.5), 2000)
    # 1/2 |x - a|^2 + 1/2 |x_1 - 1| + ...
    assert torch.allclose(x, torch.tensor([0.5, 2.5], dtype=F64), atol=1e-3)


def test_a_method_for_inequalities_says_so() -> None:
    with pytest.raises(ValueError, match=r"SGD.*c <= 0.*1 of 2"):
        refuse_equality(SGD(), EQUALITY)
    refuse_equality(SGD(), torch.zeros(2, dtype=torch.bool))


# The direction of Ghost ---------------------------------------------------------------------------

BOX = {"tau": 0.7, "beta": 4.0, "rho": 0.3, "lam": 0.4}


def instances(batch: int, m: int = 3, n: int = 6) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(m)
    return tuple(
        torch.randn(*shape, dtype=F64, generator=generator)
        for shape in ((batch, n), (batch, m), (batch, m, n))
    )


@pytest.mark.parametrize(
    "equality", [(True, True, True), (True, False, False), (False, True, False)]
)
def test_an_equality_is_its_two_inequalities(equality: tuple[bool, ...]) -> None:
    g, c, J = instances(40)
    mask = torch.tensor(equality)
    found = ghost_direction(g, c, J, **BOX, equality=mask)
    both = ghost_direction(g, torch.cat([c, -c[:, mask]], 1), torch.cat([J, -J[:, mask]], 1), **BOX)
    assert torch.allclose(found.d, both.d, atol=1e-8)
    assert torch.allclose(found.kappa, both.kappa, atol=1e-8)
    y = both.multipliers[:, :3].clone()
    y[:, mask] -= both.multipliers[:, 3:]
    assert torch.allclose(found.multipliers, y, atol=1e-6)
    assert (found.multipliers[:, mask] < -1e-3).any()
    within = (c + torch.einsum("bmn,bn->bm", J, found.d)).abs()[:, mask] - found.kappa[:, None]
    assert within.max() < 1e-8
    assert found.violation.max() < 1e-8
    assert found.gap.abs().max() < 1e-6


def test_instances_of_a_stack_may_have_equalities_of_their_own() -> None:
    g, c, J = instances(6)
    mask = torch.arange(18).reshape(6, 3) % 4 < 2
    stacked = torch.func.vmap(lambda *one: ghost_direction(*one[:3], **BOX, equality=one[3]))(
        g, c, J, mask
    )
    for i in range(6):
        alone = ghost_direction(g[i], c[i], J[i], **BOX, equality=mask[i])
        assert torch.allclose(stacked.d[i], alone.d, atol=1e-8)
        assert torch.allclose(stacked.multipliers[i], alone.multipliers, atol=1e-6)
