"""Switching subgradient's step against its equations in numpy; step rules, and the output rule's
law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from transcription import draws, path

from fairbound.algorithms import Adaptive, SwitchingSubgradient
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.core import Draw, Sample

RULES = {
    "constant": (0.05, lambda k, target, s: 0.05),
    "diminishing": (InverseSqrt(0.2), lambda k, target, s: 0.2 / np.sqrt(k + 1)),
    "adaptive": (Adaptive(cap=0.5), lambda k, target, s: min(max(target / (s @ s), 0), 0.5)),
}


@pytest.mark.parametrize("rule_f", RULES)
@pytest.mark.parametrize("rule_c", RULES)
@pytest.mark.parametrize("eps", [0.0, 5.0])
@pytest.mark.parametrize("worst_of_test", [True, False])
def test_steps(rule_f: str, rule_c: str, eps: float, worst_of_test: bool) -> None:
    functions, samples, x = draws(12, seed=3)
    rules = {"eta_f": RULES[rule_f][0], "eta_c": RULES[rule_c][0], "eps": InverseSqrt(eps)}
    method = SwitchingSubgradient(**rules, worst_of_test=worst_of_test)
    branches = set()
    for k, (point, _) in enumerate(path(method, samples, x)):
        test, fresh = functions[2 * k], functions[2 * k + 1]
        tolerance = eps / np.sqrt(k + 1)
        c = test.c(x)
        ok = c.max() <= tolerance
        branches.add(bool(ok))
        judge = c if worst_of_test else fresh.c(x)
        # the gradient always from the fresh draw
        s = fresh.gradient(x) if ok else fresh.jacobian(x)[judge.argmax()]
        step = RULES[rule_f][1](k, tolerance, s) if ok else RULES[rule_c][1](k, judge.max(), s)
        x = x - step * s
        assert np.allclose(point, x, atol=1e-10)
    assert branches == ({True} if eps == 5.0 else {False}) or len(branches) == 2


def constant(c: float) -> Sample:
    return Sample.of(lambda x: (x.sum() * 0 - x.sum(), x[:1] * 0 + c))


def run_outputs(method: SwitchingSubgradient, values: list[float], coins: np.ndarray) -> np.ndarray:
    """The step number of the output in each replication; x moves by 1 after every step, so that it
    tells the step."""

    def replicate(u: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(1, dtype=torch.float64)
        state = method.init(x, 1)
        for k, value in enumerate(values):
            _, state = method.update(
                x, state, Draw.of(constant(value), constant(value), uniform=u[k])
            )
            x = x + 1
        return method.output(x, state)[0]

    return torch.func.vmap(replicate)(torch.tensor(coins)).long().numpy()


@pytest.mark.parametrize("feasible_only", [True, False])
def test_output_is_drawn_in_proportion_to_the_steps(feasible_only: bool) -> None:
    """Chi-square test of the kept iterate's law, 20,000 replications, level 1e-4."""
    values = [-1.0, 1.0, -1.0, 1.0, -1.0, -1.0]  # which steps are feasible
    method = SwitchingSubgradient(
        eta_f=InverseSqrt(0.1), eta_c=0.02, eps=0.0, k0=1, feasible_only=feasible_only
    )
    chosen = run_outputs(method, values, np.random.default_rng(0).random((20_000, len(values))))
    weights = np.array([0.1 / np.sqrt(k + 1) if v <= 0 else 0.02 for k, v in enumerate(values)])
    weights[0] = 0  # before k0
    if feasible_only:
        weights[[1, 3]] = 0
    counts = np.bincount(chosen, minlength=len(values))
    assert counts[weights == 0].sum() == 0
    expected = weights[weights > 0] / weights.sum() * counts.sum()
    assert stats.chisquare(counts[weights > 0], expected).pvalue > 1e-4


def test_without_a_feasible_step_the_last_iterate_is_returned_and_the_count_says_so() -> None:
    method = SwitchingSubgradient(eps=0.0)
    x = torch.zeros(1, dtype=torch.float64)
    state = method.init(x, 1)
    for _ in range(3):
        _, state = method.update(x, state, Draw.of(constant(1.0), constant(1.0)))
        x = x + 1
    assert method.output(x, state) == x
    assert method.monitor(state)["feasible_steps"] == 0


def test_adaptive_step_is_capped_and_never_negative() -> None:
    rule = Adaptive(cap=0.3)
    zero = torch.zeros((), dtype=torch.float64)
    assert rule.step(torch.tensor(1.0), zero) == pytest.approx(0.3)
    assert rule.step(torch.tensor(-1.0), torch.tensor(1.0)) == 0
