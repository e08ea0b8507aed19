"""How near a point is to a solution: the Karush-Kuhn-Tucker residuals from (g, c, J, y).

stationarity      |g + J'y|              no direction improves the Lagrangian
feasibility       max_i [c_i]_+          the constraints hold (|c_i| for an equality)
complementarity   max_i |y_i c_i|        only a constraint that binds has a multiplier
sign              max_i [-y_i]_+         and multipliers are not negative (of an equality: any sign)
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.sentences import counted
from fairbound.algorithms._subproblems.nnqp import nnqp


class Residuals(NamedTuple):
    """Zero at a KKT point."""

    stationarity: float
    feasibility: float
    complementarity: float
    sign: float


def residuals(
    g: Tensor, c: Tensor, J: Tensor, y: Tensor, equality: Tensor | None = None
) -> Residuals:
    """KKT residuals of the gradient g (n,), constraints c (m,), Jacobian J (m, n) and
    multipliers y (m,).

    >>> one = torch.ones(1)
    >>> residuals(-one, 0 * one, one[:, None], one)  # min -x s.t. x <= 0, at 0 with y = 1
    Residuals(stationarity=0.0, feasibility=0.0, complementarity=0.0, sign=0.0)
    """
    free = torch.zeros_like(c, dtype=torch.bool) if equality is None else equality.to(c.device)
    return Residuals(
        stationarity=float((g + y @ J).norm()),
        feasibility=_positive(torch.where(free, c.abs(), c).max()),
        complementarity=float((y * c).abs().max()),
        sign=_positive(torch.where(free, 0.0, -y).max()),
    )


def _positive(value: Tensor) -> float:
    """Positive part of a value; NaN stays."""
    return float(value.clamp(min=0.0)) + 0.0  # no minus zero


def fitted_multipliers(
    g: Tensor, c: Tensor, J: Tensor, equality: Tensor | None, tolerance: float | Tensor
) -> Tensor:
    """argmin |g + J'y| over multipliers y, which are 0 for constraints that do not bind and >= 0
    for c <= 0.

    Args:
        equality: (m,) bool, the constraints c = 0, whose multipliers have any sign; None: none is.
        tolerance: () or (m,), a constraint c <= 0 binds where c >= -tolerance.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> fitted_multipliers(
    ...     one, 0 * one, one[:, None], torch.tensor([True]), 0.0
    ... )  # min (x-2)^2/2 s.t. x = 3, at 3
    tensor([-1.], dtype=torch.float64)
    """
    free = torch.zeros_like(c, dtype=torch.bool) if equality is None else equality.to(c.device)
    binding = free | (c >= -tolerance)
    rows = torch.cat([J[binding], -J[free]])  # a multiplier of any sign is the difference of two
    y = torch.zeros_like(c)
    if len(rows):
        parts = nnqp((rows @ rows.T)[None], -(rows @ g)[None])[0]
        y[binding] = parts[: int(binding.sum())]
        y[free] -= parts[int(binding.sum()) :]
    return y


@dataclass(frozen=True)
class KKT:
    """Residuals of a model over the examples given; `str` of it is a table. `report_kkt` has an
    example."""

    loss: float
    # c by name, feasible where <= 0: of the surrogates where rates are constrained
    constraints: dict[str, float]
    exact: dict[str, float]  # the same with the exact rates in place of their surrogates
    multipliers: dict[str, float]
    fitted: bool  # whether the multipliers were fitted here, for a method that has none
    stationarity: float
    gradient: float  # |grad f|, to compare stationarity with
    feasibility: float
    complementarity: float
    sign: float
    warning: str | None  # a sign of an infeasible problem, seen in training
    examples: int
    # the constraints c = 0, and how large |c| is by chance
    equalities: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        width = min(36, max(len(name) for name in (*self.constraints, "constraint")))
        lines = [f"{'constraint':<{width}} {'c':>10} {'exact c':>10} {'multiplier':>11}"]
        for name, c in self.constraints.items():
            exact = self.exact[name]
            violated = abs(exact) > self.equalities[name] if name in self.equalities else exact > 0
            mark = "  violated" if violated else ""
            lines.append(
                f"{name[:width]:<{width}} {c:>10.4f} {exact:>10.4f}"
                f" {self.multipliers[name]:>11.4f}{mark}"
            )
        zero = (
            ", equalities where |c| is within two standard errors of 0" if self.equalities else ""
        )
        lines.append(
            f"loss {self.loss:.4f} over {counted(self.examples, 'example')}; constraints hold where"
            f" c <= 0{zero}"
        )
        lines.append(
            f"stationarity {self.stationarity:.2e} (gradient of the loss {self.gradient:.2e}), "
            f"feasibility {self.feasibility:.2e},"
        )
        lines.append(f"complementarity {self.complementarity:.2e}, sign {self.sign:.2e}")
        if self.fitted:
            lines.append("the method has no multipliers: those that fit best are shown")
        if self.warning:
            lines += textwrap.wrap(f"warning: {self.warning}", 80)
        return "\n".join(lines)
