"""The KKT residuals of a model over all examples of some data: two passes over its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint_set import ConstraintSet, Given
from fairbound.constraints.linear import SumsCounts
from fairbound.integrations.torch.estimate import BatchEstimate, BatchStatistics
from fairbound.integrations.torch.parameters import Parameters
from fairbound.metrics.kkt import KKT, fitted_multipliers, residuals


def report_kkt(
    model: nn.Module,
    constraints: ConstraintSet | Given,
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
    *,
    multipliers: Tensor | Mapping[str, float] | None = None,
    warning: str | None = None,
) -> KKT:
    """The KKT residuals of a model over all examples of `batches`, which is read twice.

    `evaluate(batch)` passes a batch through the model and gives its `MiniBatch`. The model is in eval mode meanwhile;
    its `.grad` is not touched. Where no multipliers are given, those that fit best are taken: min |grad f + J'y| over
    y >= 0 of the constraints that bind or are violated.

    >>> from fairbound import constraints
    >>> model = nn.Linear(2, 1)
    >>> data = [(torch.randn(8, 2), torch.arange(8) % 2)]
    >>> report = report_kkt(model, constraints.bounded_group_loss(2, bound=100.0), data,
    ...                     lambda batch: MiniBatch(model(batch[0])[:, 0].square(), batch[1]))
    >>> report.feasibility, report.complementarity
    (0.0, 0.0)
    """
    constraint_set, parameters = ConstraintSet.of(constraints), Parameters(model)
    if iter(batches) is batches:
        raise ValueError("the batches are read twice, and this is an iterator; give a list or a DataLoader")
    with _in_eval_mode(model):
        surrogate, exact, examples = _totals(constraint_set, parameters, batches, evaluate)
        constraint_set = constraint_set.to(surrogate.sums.device, surrogate.sums.dtype)
        estimate = BatchEstimate.of(constraint_set, surrogate, None)
        if estimate.absent is not None and estimate.absent.any():
            absent = [name for name, gone in zip(constraint_set.names, estimate.absent.tolist(), strict=True) if gone]
            raise ValueError(f"the data have no examples for {absent[:4]}, so the constraints cannot be evaluated")
        if not estimate.finite:
            raise ValueError("the loss or a constraint is NaN or infinite over these examples")
        rows = _gradients(constraint_set, parameters, batches, evaluate, surrogate)
    means = surrogate.means.double()
    precise = constraint_set.to(means.device, torch.float64)
    g, J, c = rows[0], precise.jacobian(means, rows[1:]), estimate.c.double()
    y = fitted_multipliers(g, c, J) if multipliers is None else _in_order(multipliers, constraint_set.names, g)

    def by_name(values: Tensor) -> dict[str, float]:
        return dict(zip(constraint_set.names, values.tolist(), strict=True))

    return KKT(
        loss=float(estimate.f),
        constraints=by_name(c),
        exact=by_name(constraint_set.value(exact.means)[1:].double()),
        multipliers=by_name(y),
        fitted=multipliers is None,
        gradient=float(g.norm()),
        warning=warning,
        examples=examples,
        **residuals(g, c, J, y, constraint_set.equality)._asdict(),
    )


def _batch_of(batch: Any, evaluate: Callable[[Any], MiniBatch], parameters: Parameters) -> MiniBatch:
    return evaluate(batch)._replace(parameters=parameters.tensors)


def _totals(
    constraints: ConstraintSet, parameters: Parameters, batches: Iterable[Any], evaluate: Callable[[Any], MiniBatch]
) -> tuple[SumsCounts, SumsCounts, int]:
    """Sums and counts over all batches, of the surrogates and of the exact rates."""
    totals: list[SumsCounts] = []
    count = 0
    with torch.no_grad():
        for batch in batches:
            mini_batch = _batch_of(batch, evaluate, parameters)
            constraints.check(mini_batch)
            both = [BatchStatistics.of(constraints, mini_batch, exact=exact).totals() for exact in (False, True)]
            totals = both if not totals else [a.plus(b) for a, b in zip(totals, both, strict=True)]
            count += mini_batch.losses.shape[0]
    if not totals:
        raise ValueError("there are no batches to report on")
    return totals[0], totals[1], count


def _gradients(
    constraints: ConstraintSet,
    parameters: Parameters,
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
    totals: SumsCounts,
) -> Tensor:
    """The gradient of every mean over all batches, (1+q, n), in double precision."""
    second_sums = torch.zeros_like(totals.sums)
    rows = torch.zeros(totals.sums.shape[0], parameters.n, dtype=torch.float64, device=parameters.device)
    unit = torch.eye(totals.sums.shape[0], dtype=totals.sums.dtype, device=totals.sums.device)
    for batch in batches:
        with torch.enable_grad():
            statistics = BatchStatistics.of(constraints, _batch_of(batch, evaluate, parameters))
        second_sums += statistics.totals().sums
        for i, row in enumerate(unit):
            weights = statistics.weights(row, totals.counts)
            rows[i] += parameters.gradient_of(statistics.tensors, weights)[0].double()
    if not torch.allclose(second_sums, totals.sums, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            "the two passes over the batches saw other examples; give all in order, not a loader that draws anew "
            "(BalancedBatchSampler, a sampler with replacement)"
        )
    return rows


def _in_order(multipliers: Tensor | Mapping[str, float], names: Sequence[str], like: Tensor) -> Tensor:
    if isinstance(multipliers, Mapping):
        missing = [name for name in names if name not in multipliers]
        if missing:
            raise ValueError(f"multipliers has no {missing[:3]}; it must name every constraint")
        multipliers = torch.tensor([multipliers[name] for name in names])
    return multipliers.detach().to(like)


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
