"""How near a model is to a solution: the Karush-Kuhn-Tucker conditions over all rows of some data.

    stationarity      |grad f + J'y|         no direction improves the Lagrangian
    feasibility       max_i [c_i]_+          the limits hold
    complementarity   max_i |y_i c_i|        only a limit that binds has a price
    sign              max_i [-y_i]_+         and prices are not negative

Where a method has no multipliers, those that fit best are taken: min |grad f + J'y| over y >= 0 of the limits that
bind or are broken.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.algorithms._subproblems.nnqp import nnqp
from fairbound.constraints.limits import AnyLimit, named
from fairbound.integrations.torch.batch import MiniBatch
from fairbound.integrations.torch.estimate import evaluated
from fairbound.integrations.torch.flat_params import Parameters
from fairbound.integrations.torch.statistics import BatchStatistics, ConstraintMatrix, SumsCounts

BINDS = 1e-3  # a limit with c above minus this binds, where multipliers are to be found


@dataclass(frozen=True)
class KKT:
    """Residuals over the rows given; `str` of it is a table."""

    loss: float
    constraints: dict[str, float]  # c by name, feasible where <= 0: of the stand-ins where rates are limited
    true: dict[str, float]  # the same with the true rates in place of their stand-ins
    multipliers: dict[str, float]
    fitted: bool  # whether the multipliers were fitted here, for a method that has none
    stationarity: float
    gradient: float  # |grad f|, to hold stationarity against
    feasibility: float
    complementarity: float
    sign: float
    warning: str | None  # a sign of an infeasible problem, seen on the way
    rows: int

    def __str__(self) -> str:
        width = min(36, max(len(name) for name in self.constraints))
        lines = [f"{'limit':<{width}} {'c':>10} {'true c':>10} {'multiplier':>11}"]
        for name, c in self.constraints.items():
            mark = "" if self.true[name] <= 0 else "  broken"
            lines.append(
                f"{name[:width]:<{width}} {c:>10.4f} {self.true[name]:>10.4f} {self.multipliers[name]:>11.4f}{mark}"
            )
        lines.append(f"loss {self.loss:.4f} over {self.rows:,} rows; limits hold where c <= 0")
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


def kkt(
    model: nn.Module,
    limits: AnyLimit | Sequence[AnyLimit] | Mapping[str, AnyLimit],
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
    *,
    multipliers: Tensor | Mapping[str, float] | None = None,
    warning: str | None = None,
) -> KKT:
    """The KKT residuals of a model over all rows of `batches`, which is read twice.

    `evaluate(batch)` passes a batch through the model and gives its `MiniBatch`. The model is in eval mode
    meanwhile; its `.grad` is not touched.

    >>> from fairbound import limits
    >>> model = nn.Linear(2, 1)
    >>> data = [(torch.randn(8, 2), torch.arange(8) % 2)]
    >>> found = kkt(model, limits.bounded_group_loss(2, bound=100.0), data,
    ...             lambda batch: MiniBatch(model(batch[0])[:, 0].square(), batch[1]))
    >>> found.feasibility, found.complementarity
    (0.0, 0.0)
    """
    listed, names = named(limits)
    plan, parameters = ConstraintMatrix(listed), Parameters(model)
    if iter(batches) is batches:
        raise ValueError("the batches are read twice, and this is an iterator; give a list or a DataLoader")
    with _in_eval_mode(model):
        whole, true, rows = _totals(plan, parameters, batches, evaluate)
        found = evaluated(plan, whole, None)
        if found.absent is not None and found.absent.any():
            absent = [name for name, gone in zip(names, found.absent.tolist(), strict=True) if gone]
            raise ValueError(f"the data have no rows for {absent[:4]}, so the limits cannot be judged on them")
        if not found.finite:
            raise ValueError("the loss or a limit is NaN or infinite over these rows: the model is spoilt, or a row is")
        jacobian = _jacobian(plan, parameters, batches, evaluate, whole)
    g, J = jacobian[0], jacobian[1:]
    y = _given(multipliers, names, g) if multipliers is not None else _fitted(g, J, found.c.double())
    c = found.c.double()
    true_c = plan.evaluated(true)[1:].double()

    def by_name(values: Tensor) -> dict[str, float]:
        return dict(zip(names, values.tolist(), strict=True))

    return KKT(
        loss=float(found.f),
        constraints=by_name(c),
        true=by_name(true_c),
        multipliers=by_name(y),
        fitted=multipliers is None,
        stationarity=float((g + y @ J).norm()),
        gradient=float(g.norm()),
        feasibility=_positive(c.max()),
        complementarity=float((y * c).abs().max()),
        sign=_positive(-y.min()),
        warning=warning,
        rows=rows,
    )


def _positive(value: Tensor) -> float:
    """Its positive part; NaN stays."""
    return float(value.clamp(min=0.0)) + 0.0  # no minus zero


def _rows_of(batch: Any, evaluate: Callable[[Any], MiniBatch], parameters: Parameters) -> MiniBatch:
    return evaluate(batch)._replace(parameters=parameters.tensors)


def _totals(
    plan: ConstraintMatrix, parameters: Parameters, batches: Iterable[Any], evaluate: Callable[[Any], MiniBatch]
) -> tuple[SumsCounts, SumsCounts, int]:
    """Sums and counts over all batches, of the stand-ins and of the true rates."""
    whole: SumsCounts | None = None
    true: SumsCounts | None = None
    count = 0
    with torch.no_grad():
        for batch in batches:
            rows = _rows_of(batch, evaluate, parameters)
            plan.check(rows)
            one, other = plan.read(rows).totals(), plan.read(rows, true=True).totals()
            whole, true = (one, other) if whole is None or true is None else (whole.plus(one), true.plus(other))
            count += rows.losses.shape[0]
    if whole is None or true is None:
        raise ValueError("there are no batches to report on")
    return whole, true, count


def _jacobian(
    plan: ConstraintMatrix,
    parameters: Parameters,
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
    whole: SumsCounts,
) -> Tensor:
    """Gradients of the objective and of every limit over all batches, (1+m, n), in double precision."""
    matrix, again = plan.matrices(torch.float64, whole.counts.device).whole, torch.zeros_like(whole.sums)
    rows = torch.zeros(matrix.shape[1], parameters.n, dtype=torch.float64, device=parameters.device)
    weights = torch.diag(1 / whole.counts)
    for batch in batches:
        with torch.enable_grad():
            reading: BatchStatistics = plan.read(_rows_of(batch, evaluate, parameters))
        again += reading.totals().sums
        for i, weight in enumerate(weights):
            rows[i] += parameters.jacobian_row(reading.tensors, reading.spread(weight)).double()
    if not torch.allclose(again, whole.sums, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            "the two passes over the batches saw other rows; give all rows in order, not a loader that draws anew "
            "(BalancedBatchSampler, a sampler with replacement)"
        )
    return matrix @ rows


def _given(multipliers: Tensor | Mapping[str, float], names: Sequence[str], like: Tensor) -> Tensor:
    if isinstance(multipliers, Mapping):
        missing = [name for name in names if name not in multipliers]
        if missing:
            raise ValueError(f"multipliers has no {missing[:3]}; it must name every limit")
        multipliers = torch.tensor([multipliers[name] for name in names])
    return multipliers.detach().to(like)


def _fitted(g: Tensor, J: Tensor, c: Tensor) -> Tensor:
    """argmin |g + J'y| over y >= 0, where 0 is forced for limits that do not bind."""
    y = torch.zeros_like(c)
    binding = c > -BINDS
    if binding.any():
        own = J[binding]
        y[binding] = nnqp((own @ own.T)[None], -(own @ g)[None])[0]
    return y


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
