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
    >>> found = report_kkt(model, constraints.bounded_group_loss(2, bound=100.0), data,
    ...                    lambda batch: MiniBatch(model(batch[0])[:, 0].square(), batch[1]))
    >>> found.feasibility, found.complementarity
    (0.0, 0.0)
    """
    own, parameters = ConstraintSet.of(constraints), Parameters(model)
    if iter(batches) is batches:
        raise ValueError("the batches are read twice, and this is an iterator; give a list or a DataLoader")
    with _in_eval_mode(model):
        surrogate, exact, examples = _totals(own, parameters, batches, evaluate)
        own = own.to(surrogate.sums.device, surrogate.sums.dtype)
        found = BatchEstimate.of(own, surrogate, None)
        if found.absent is not None and found.absent.any():
            absent = [name for name, gone in zip(own.names, found.absent.tolist(), strict=True) if gone]
            raise ValueError(f"the data have no examples for {absent[:4]}, so the constraints cannot be evaluated")
        if not found.finite:
            raise ValueError("the loss or a constraint is NaN or infinite over these examples")
        rows = _gradients(own, parameters, batches, evaluate, surrogate)
    means = surrogate.means.double()
    precise = own.to(means.device, torch.float64)
    g, J, c = rows[0], precise.jacobian(means, rows[1:]), found.c.double()
    y = fitted_multipliers(g, c, J) if multipliers is None else _given(multipliers, own.names, g)

    def by_name(values: Tensor) -> dict[str, float]:
        return dict(zip(own.names, values.tolist(), strict=True))

    return KKT(
        loss=float(found.f),
        constraints=by_name(c),
        exact=by_name(own.value(exact.means)[1:].double()),
        multipliers=by_name(y),
        fitted=multipliers is None,
        gradient=float(g.norm()),
        warning=warning,
        examples=examples,
        **residuals(g, c, J, y, own.equality)._asdict(),
    )


def _batch_of(batch: Any, evaluate: Callable[[Any], MiniBatch], parameters: Parameters) -> MiniBatch:
    return evaluate(batch)._replace(parameters=parameters.tensors)


def _totals(
    own: ConstraintSet, parameters: Parameters, batches: Iterable[Any], evaluate: Callable[[Any], MiniBatch]
) -> tuple[SumsCounts, SumsCounts, int]:
    """Sums and counts over all batches, of the surrogates and of the exact rates."""
    found: list[SumsCounts] = []
    count = 0
    with torch.no_grad():
        for batch in batches:
            mini_batch = _batch_of(batch, evaluate, parameters)
            own.check(mini_batch)
            both = [BatchStatistics.of(own, mini_batch, exact=exact).totals() for exact in (False, True)]
            found = both if not found else [a.plus(b) for a, b in zip(found, both, strict=True)]
            count += mini_batch.losses.shape[0]
    if not found:
        raise ValueError("there are no batches to report on")
    return found[0], found[1], count


def _gradients(
    own: ConstraintSet,
    parameters: Parameters,
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
    whole: SumsCounts,
) -> Tensor:
    """The gradient of every mean over all batches, (1+q, n), in double precision."""
    again = torch.zeros_like(whole.sums)
    rows = torch.zeros(whole.sums.shape[0], parameters.n, dtype=torch.float64, device=parameters.device)
    unit = torch.eye(whole.sums.shape[0], dtype=whole.sums.dtype, device=whole.sums.device)
    for batch in batches:
        with torch.enable_grad():
            statistics = BatchStatistics.of(own, _batch_of(batch, evaluate, parameters))
        again += statistics.totals().sums
        for i, one in enumerate(unit):
            weights = statistics.weights(one, whole.counts)
            rows[i] += parameters.gradient_of(statistics.tensors, weights)[0].double()
    if not torch.allclose(again, whole.sums, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            "the two passes over the batches saw other examples; give all in order, not a loader that draws anew "
            "(BalancedBatchSampler, a sampler with replacement)"
        )
    return rows


def _given(multipliers: Tensor | Mapping[str, float], names: Sequence[str], like: Tensor) -> Tensor:
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
