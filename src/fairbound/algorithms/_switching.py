r"""Stochastic switching subgradient: step on the objective where the constraints look met, on the
worst constraint elsewhere.

    v = max_i c_i(x, zeta_1..zeta_J)                                       the test
    v <= eps_k:   x+ = x - eta^f_k S^f(x, xi)
    otherwise:    x+ = x - eta^c_k S^c_i(x, zeta),
            i = the worst constraint, zeta independent of the test
    an equality c_i = 0: its value is |c_i|, its subgradient sign(c_i) S^c_i, its step
        at most |c_i| / |S^c_i|^2
    output: x_k drawn from the saved iterates I = {k >= k0, v <= eps_k} with
        probability proportional to its step

Huang and Lin, NeurIPS 2023 (arXiv 2301.13314); the paper's Algorithm 3. Steps: constant, a
schedule, or `Adaptive`.

Differs from it:
- `feasible_only=False` saves the iterates of both branches, as the paper prints; the original saves
  the feasible ones.
- The paper has one scalar c; with several constraints "the worst" has two readings.
  `worst_of_test=True` takes it from the test: the gradient then is an unbiased one of that
  constraint, as E c <= 0 asks. `False` takes it from the fresh draw, as code does that
  differentiates max(c) of a mini-batch: that lowers E max_i c_i, which noise alone makes positive,
  and so flattens the model. The paper's table is that (docs/reference/algorithms.md).
- The sign of an equality comes from where the worst constraint does: from the test it is
  independent of the gradient, so that the step is sign(C_i) grad C_i on average wherever the noise
  does not hide the sign. From the fresh draw it would lower E |c_i|, which noise alone makes
  positive. Noise above eps_k makes |c_i| of the test fail at a solution, and steps on the objective
  rare: a large test, or a larger eps. The limit on the step is Polyak's, which lands on c_i = 0: a
  longer one steps over it and back for ever, and never meets a small eps.
- One copy of x is kept and replaced with probability eta_k / sum of the steps saved so far, which
  is that very law without a list of iterates. Where nothing was saved, the last iterate is returned
  and `Result.infeasible` says so.
- The adaptive objective step is not defined in the paper; see `Adaptive`.

The test's noise moves the answer: x settles where C(x) = eps + sd(v) * Phi^{-1}(q), q = eta^f y* /
(eta^f y* + eta^c) That is inside the bound where y* < eta^c / eta^f, outside where it is larger.
Give the test a large batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, POSITIVE, require, require_switch, require_whole
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.core import Algorithm, Draw, Estimate, Schedule, equality_mask, value, violations


@dataclass(frozen=True)
class Adaptive:
    """Polyak's step, target / |S|^2, at most `cap`.

    On the constraint branch the target is the violation: of the test or, with
    `worst_of_test=False`, of the fresh draw, which is c / |S^c|^2 of one sample as the paper's
    appendix prints it. On the objective branch it is the tolerance eps_k, by the same reasoning:
    the step that moves the linear model by the target. The cap guards against the noise of the
    violation, which is biased upwards on that branch, and against |S| = 0.
    """

    cap: float = 1.0

    def __post_init__(self) -> None:
        require(self, POSITIVE, "cap")

    def step(self, target: Tensor, squared_norm: Tensor) -> Tensor:
        tiny = torch.finfo(squared_norm.dtype).tiny
        return torch.clamp(target / squared_norm.clamp(min=tiny), min=0.0).clamp(max=self.cap)


class State(NamedTuple):
    k: Tensor  # () step
    kept: Tensor  # (n,) the saved iterate
    mass: Tensor  # () sum of the steps of all saved iterates
    feasible_steps: Tensor  # () steps on the objective branch
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class SwitchingSubgradient(Algorithm[State]):
    """Switching subgradient; draw 0 is the test, draw 1 gives the subgradient.

    >>> SwitchingSubgradient(eta_f=0.05, eta_c=0.04, eps=InverseSqrt(0.01)).draws
    2
    """

    solves = "kkt"
    evaluates = ("c", "fc")  # independent: a test on the examples of the step would bias the branch

    eta_f: float | Schedule | Adaptive = 0.05  # step on the objective
    eta_c: float | Schedule | Adaptive = 0.04  # step on the worst constraint
    eps: float | Schedule = InverseSqrt(0.01)  # noqa: RUF009  (frozen)  tolerance of the test
    k0: int = 0  # first step whose iterate may be the output
    # which constraint to step on: the worst of the test, or of the fresh draw
    worst_of_test: bool = True
    # save feasible iterates only (the original), or all of them (as the paper prints)
    feasible_only: bool = True

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "eta_f", "eta_c", also=(Schedule, Adaptive))
        require(self, NONNEGATIVE, "eps", also=(Schedule,))
        require_whole(self, 0, None, "k0")
        require_switch(self, "worst_of_test", "feasible_only")

    def primal_step(self, state: State) -> float | Tensor:
        return 1.0 if isinstance(self.eta_f, Adaptive) else value(self.eta_f, state.k)

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        zero = x.new_zeros(())
        return State(
            zero, x.clone(), mass=zero, feasible_steps=zero, equality=equality_mask(x, m, equality)
        )

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        test, fresh = (sample(x) for sample in draw.unpack(self))
        eps = torch.as_tensor(value(self.eps, state.k), dtype=x.dtype, device=x.device)
        ok = (violations(test.c, state.equality).max() <= eps).to(x.dtype)
        judge = test.c if self.worst_of_test else fresh.c
        judged = violations(judge, state.equality)
        worst = (torch.arange(judge.shape[0], device=x.device) == judged.argmax()).to(x.dtype)
        slope = torch.where(state.equality > 0, torch.sign(judge), 1.0)

        s = fresh.grad(f=ok, c=(1 - ok) * worst * slope)
        eta_f, eta_c = (
            self._step(self.eta_f, eps, s, state.k),
            self._step(self.eta_c, judged.max(), s, state.k),
        )
        landing = judged.max() / (s @ s).clamp(min=torch.finfo(s.dtype).tiny)
        eta_c = torch.where(worst @ state.equality > 0, torch.minimum(eta_c, landing), eta_c)
        eta = torch.where(ok > 0, eta_f, eta_c)

        saved = ((state.k >= self.k0) & ((ok > 0) | (not self.feasible_only))) * eta
        mass = state.mass + saved
        kept = torch.where(draw.uniform * mass < saved, x, state.kept)
        return -eta * s, State(state.k + 1, kept, mass, state.feasible_steps + ok, state.equality)

    def _step(
        self, rule: float | Schedule | Adaptive, target: Tensor, s: Tensor, k: Tensor
    ) -> Tensor:
        eta = rule.step(target, s.square().sum()) if isinstance(rule, Adaptive) else value(rule, k)
        return torch.as_tensor(eta, dtype=s.dtype, device=s.device)

    def output(self, x: Tensor, state: State) -> Tensor:
        return torch.where(state.mass > 0, state.kept, x)

    def monitor(self, state: State) -> dict[str, Tensor]:
        return {"feasible_steps": state.feasible_steps, "saved": state.mass}
