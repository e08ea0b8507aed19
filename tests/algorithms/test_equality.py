"""Constraints c = 0: free multipliers, |c| in a penalty, no slack; a method for c <= 0 alone says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairbound import SGD, SSLALM, DescentAscent, Penalty, StochasticGhost, SwitchingSubgradient
from fairbound.core import Algorithm, Draw, Sample

F64 = torch.float64
# min |x - (0, 3)|^2 / 2  s.t.  x_1 - 1 = 0 (approached from c < 0: multiplier -1),  x_2 <= 2 (multiplier 1)
A, B = torch.tensor([0.0, 3.0], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64)
SAMPLE = Sample.of(lambda x: (0.5 * (x - A).square().sum(), x - B))
EQUALITY = torch.tensor([True, False])


def end(method: Algorithm[Any], steps: int, x: torch.Tensor = A) -> tuple[torch.Tensor, Any]:
    state = method.init(x, 2, SAMPLE(x), EQUALITY)
    for _ in range(steps):
        d, state = method.update(x, state, Draw.of(*[SAMPLE] * method.draws))
        x = x + d
    return x, state


@pytest.mark.parametrize("method", [DescentAscent(tau=0.1, eta=0.1), SSLALM(tau=0.05, eta=0.05), SSLALM(mu=0.0)])
def test_an_equality_is_met_from_below(method: Algorithm[Any]) -> None:
    x, state = end(method, 3000)
    assert torch.allclose(x, B, atol=1e-4)
    assert torch.allclose(method.multipliers(state), torch.tensor([-1.0, 1.0], dtype=F64), atol=1e-3)


def test_a_cap_holds_on_both_sides() -> None:
    _, state = end(DescentAscent(tau=0.1, eta=0.1, y_max=0.5), 3000)
    assert state.y.tolist() == [-0.5, 0.5]
    assert state.capped > 0


def test_an_equality_is_penalized_on_both_sides() -> None:
    x, _ = end(Penalty(tau=0.01, weight=0.5), 2000)
    assert torch.allclose(x, torch.tensor([0.5, 2.5], dtype=F64), atol=1e-3)  # 1/2 |x - a|^2 + 1/2 |x_1 - 1| + ...
    x, _ = end(Penalty(tau=0.01, weight=5.0), 2000)
    assert torch.allclose(x, B, atol=0.1)


def test_sgd_asks_for_no_constraint() -> None:
    x, _ = end(SGD(tau=0.1), 300, torch.zeros(2, dtype=F64))
    assert torch.allclose(x, A, atol=1e-6)


@pytest.mark.parametrize("method", [SwitchingSubgradient(), StochasticGhost()])
def test_a_method_for_inequalities_says_so(method: Algorithm[Any]) -> None:
    with pytest.raises(ValueError, match=rf"{type(method).__name__} is for constraints c <= 0, and 1 of 2 are equalit"):
        method.init(A, 2, equality=EQUALITY)
    method.init(A, 2, equality=torch.zeros(2, dtype=torch.bool))
