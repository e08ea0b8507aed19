"""The KKT residuals of a model over all examples of some data: two passes over its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint_set import ConstraintSet, Given
from fairbound.constraints._linear import SumsCounts
from fairbound.integrations.torch._estimate import BatchStatistics
from fairbound.integrations.torch._kkt import KKT, fitted_multipliers, residuals
from fairbound.integrations.torch._parameters import Parameters

# a constraint binds where a move of the parameters by this share of their norm could make it bind
MOVE = 1e-3


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

    The model is in eval mode meanwhile; its `.grad` is not touched.

    Args:
        evaluate: passes a batch through the model and gives its `MiniBatch`.
        multipliers: (m,) or by name; if not given, those that fit best: min |grad f + J'y| over y
            >= 0 of the constraints that bind (c is 0 within two standard errors) or are violated,
            of any sign for equalities.
        warning: a sentence that the report repeats.

    >>> from fairbound import constraints
    >>> model = nn.Linear(2, 1)
    >>> data = [(torch.randn(8, 2), torch.arange(8) % 2)]
    >>> report = report_kkt(
    ...     model,
    ...     constraints.bounded_group_loss(2, bound=100.0),
    ...     data,
    ...     lambda batch: MiniBatch(model(batch[0])[:, 0].square(), batch[1]),
    ... )
    >>> report.feasibility, report.complementarity
    (0.0, 0.0)
    """
    listed, parameters = ConstraintSet.of(constraints), Parameters(model)
    if iter(batches) is batches:
        raise ValueError(
            "the batches are read twice, and this is an iterator; give a list or a DataLoader"
        )
    with _in_eval_mode(model):
        data = _totals(listed, parameters, batches, evaluate)
        listed = listed.to(data.surrogate.sums.device, data.surrogate.sums.dtype)
        observed = listed.observed(data.surrogate.counts)[1:]
        if not observed.all():
            absent = [
                name
                for name, known in zip(listed.names, observed.tolist(), strict=True)
                if not known
            ]
            raise ValueError(
                f"the data have no examples for {absent[:4]}, so the constraints cannot be"
                " evaluated"
            )
        values = listed.value(data.surrogate.filled().means)
        if not torch.isfinite(values).all():
            raise ValueError("the loss or a constraint is NaN or infinite over these examples")
        rows = _gradients(listed, parameters, batches, evaluate, data.surrogate)
    means = data.surrogate.means.double()
    precise = listed.to(means.device, torch.float64)
    g, J, c = rows[0], precise.jacobian(means, rows[1:]), values[1:].double()
    near = MOVE * J.norm(dim=1) * parameters.flat().double().norm()
    tolerance = torch.maximum(2 * _standard_errors(precise, data, means), near)
    if multipliers is None:
        y = fitted_multipliers(g, c, J, listed.equality, tolerance)
    else:
        y = _by_constraint(multipliers, listed.names, g)

    def by_name(values: Tensor) -> dict[str, float]:
        return dict(zip(listed.names, values.tolist(), strict=True))

    equality = [] if listed.equality is None else listed.equality.tolist()
    return KKT(
        loss=float(values[0]),
        constraints=by_name(c),
        exact=by_name(listed.value(data.exact.means)[1:].double()),
        multipliers=by_name(y),
        fitted=multipliers is None,
        gradient=float(g.norm()),
        warning=warning,
        examples=data.examples,
        equalities=dict(compress(by_name(tolerance).items(), equality)),
        **residuals(g, c, J, y, listed.equality)._asdict(),
    )


class DataTotals(NamedTuple):
    """Sums and counts over all batches, (1+q,) each."""

    surrogate: SumsCounts
    exact: SumsCounts  # with the exact rates
    squares: Tensor  # sums of the squared values, those of a function once a batch
    examples: int


def _batch_of(
    batch: Any, evaluate: Callable[[Any], MiniBatch], parameters: Parameters
) -> MiniBatch:
    examples = evaluate(batch)
    if not isinstance(examples, MiniBatch):
        raise TypeError(
            f"evaluate must return MiniBatch(losses, groups), got {type(examples).__name__}"
        )
    return examples._replace(parameters=parameters.tensors)


def _totals(
    constraints: ConstraintSet,
    parameters: Parameters,
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
) -> DataTotals:
    totals: DataTotals | None = None
    with torch.no_grad():
        for batch in batches:
            mini_batch = _batch_of(batch, evaluate, parameters)
            constraints.check(mini_batch)
            surrogate, exact = (
                BatchStatistics.of(constraints, mini_batch, exact=exact) for exact in (False, True)
            )
            functions = [f._replace(value=f.value.square()) for f in surrogate.functions]
            squares = constraints.sums_counts(
                [v.square() for v in surrogate.values], functions, surrogate.layout
            )
            new = DataTotals(
                constraints.sums_counts(surrogate.values, surrogate.functions, surrogate.layout),
                constraints.sums_counts(exact.values, exact.functions, exact.layout),
                squares.sums,
                mini_batch.losses.shape[0],
            )
            if totals is not None:
                new = DataTotals(
                    totals.surrogate.plus(new.surrogate),
                    totals.exact.plus(new.exact),
                    totals.squares + new.squares,
                    totals.examples + new.examples,
                )
            totals = new
    if totals is None:
        raise ValueError("there are no batches to report on")
    return totals


def _standard_errors(constraints: ConstraintSet, data: DataTotals, means: Tensor) -> Tensor:
    """(m,) of the constraints: from the variance of examples in their cells, of a function between
    batches."""
    counts = data.surrogate.counts.double()
    variances = (data.squares.double() / counts - means.square()).clamp(min=0.0) / counts
    unit = torch.eye(len(means) - 1, dtype=torch.float64, device=means.device)
    contrast = constraints.jacobian(means, unit)  # (m, q)
    return (contrast.square() @ variances[1:]).sqrt()


def _gradients(
    constraints: ConstraintSet,
    parameters: Parameters,
    batches: Iterable[Any],
    evaluate: Callable[[Any], MiniBatch],
    totals: SumsCounts,
) -> Tensor:
    """The gradient of every mean over all batches, (1+q, n), in double precision."""
    second_pass = torch.zeros_like(totals.sums)
    rows = torch.zeros(
        totals.sums.shape[0], parameters.n, dtype=torch.float64, device=parameters.device
    )
    unit = torch.eye(totals.sums.shape[0], dtype=totals.sums.dtype, device=totals.sums.device)
    for batch in batches:
        with torch.enable_grad():
            statistics = BatchStatistics.of(constraints, _batch_of(batch, evaluate, parameters))
        second_pass += statistics.totals().sums[:-2].to(second_pass.dtype)
        for i, mean in enumerate(unit):
            by_sum = mean / totals.counts
            weights = statistics.weights(torch.cat([by_sum, by_sum.new_zeros(2)]))
            rows[i] += parameters.gradient_of(statistics.tensors, weights)[0].double()
    if not torch.allclose(second_pass, totals.sums, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(
            "the two passes over the batches saw other examples; give all in order, not a loader"
            " that draws anew (BalancedBatchSampler, a sampler with replacement)"
        )
    return rows


def _by_constraint(
    multipliers: Tensor | Mapping[str, float], names: Sequence[str], like: Tensor
) -> Tensor:
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
