"""Steps as CUDA graphs: the numbers of steps launched one by one. Runs on machines with an NVIDIA
GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fairbound import (
    SGD,
    SSLALM,
    AdaptivePI,
    BatchSpec,
    DescentAscent,
    Problem,
    Sampler,
    SwitchingSubgradient,
    run,
)
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Algorithm
from fairbound.data import Dataset, Split
from fairbound.training._functional import make_functional
from fairbound.training._runner import Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
METHODS = [AdaptivePI(), SGD(), DescentAscent(), SSLALM(), SwitchingSubgradient()]


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def started(method: Algorithm[Any], compiled: bool, seeds: range, steps: int = 40) -> Run:
    generator = torch.Generator().manual_seed(0)
    X, groups = torch.randn(300, 5, generator=generator), torch.arange(300) % 2
    y = (X[:, 0] + groups + torch.randn(300, generator=generator) > 0.5).float()
    data = Dataset(X, y, {"g": groups}).to("cuda")
    constraint = pairwise_loss_parity(2, bound=0.01).bind(data.groups["g"])
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    )
    forward, x0 = make_functional(net.cuda())
    sampler = Sampler(
        Split.all_train(300), constraint.cells, BatchSpec(objective=8, cell=8), seed=0
    )
    problem = Problem(forward, loss, constraint, data)
    return run(problem, method, sampler.seeded(*seeds), x0, steps, every=10, compile=compiled)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_replayed_run_equals_one_that_is_not_compiled(method: Algorithm[Any]) -> None:
    replayed, plain = started(method, True, range(3)), started(method, False, range(3))
    for one, other in zip(replayed, plain, strict=True):
        assert torch.allclose(one.x, other.x, atol=2e-5), one.step
    a, b = replayed.result(), plain.result()
    assert torch.allclose(a.multipliers, b.multipliers, atol=2e-5, equal_nan=True)
    assert torch.allclose(a.output, b.output, atol=2e-5)


def test_records_and_results_are_not_overwritten_by_later_steps_and_runs() -> None:
    first = started(SSLALM(), True, range(3))
    records = list(first)
    points = [record.x.clone() for record in records]
    end = first.result().x.clone()
    started(SSLALM(), True, range(3, 6)).result()
    assert all(torch.equal(record.x, point) for record, point in zip(records, points, strict=True))
    assert not torch.equal(points[0], points[1])
    assert torch.equal(first.result().x, end)


def test_runs_of_one_problem_may_take_turns() -> None:
    """They share the graph, and what one of them holds between two records is its own."""
    alone = [started(SSLALM(), True, seeds).result().x for seeds in (range(3), range(3, 6))]
    a = started(SSLALM(), True, range(3))
    b = run(
        a._groups[0].problem, SSLALM(), shifted(a), a._groups[0].x[0], 40, every=10, compile=True
    )
    for _ in zip(a, b, strict=True):
        pass
    assert torch.equal(a.result().x, alone[0])
    assert torch.equal(b.result().x, alone[1])


def shifted(first: Run) -> list[Sampler]:
    """Samplers of the seeds 3, 4, 5 for the problem of a run."""
    problem = first._groups[0].problem
    sampler = Sampler(
        Split.all_train(300), problem.constraints.cells, BatchSpec(objective=8, cell=8), seed=0
    )
    return sampler.seeded(3, 4, 5)
