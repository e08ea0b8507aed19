"""The KKT residual of a point, over all training examples, against numbers by hand."""

import pytest
import torch

from fairbound import BatchSpec, Problem, Split, constraints
from fairbound.benchmark.problems import Instance
from fairbound.benchmark.problems._certificate import derivatives, fitted, kkt_residual
from fairbound.benchmark.problems.expectation import expectation
from fairbound.data._dataset import Dataset

F64 = torch.float64


def line() -> Instance:
    """min 1/2 E (x - a)^2 s.t. E b x - 1 <= 0, with a of mean 2 and b of mean 1: x = 1, y = 1."""
    rows = torch.tensor([[1.0, 0.5], [3.0, 1.5]], dtype=F64)

    def values(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return torch.stack([0.5 * (x[0] - given[:, 0]) ** 2, given[:, 1] * x[0] - 1], 1)

    return expectation(values, rows, torch.zeros(1, dtype=F64), batch=1, inequalities=1)


def test_derivatives_by_hand() -> None:
    at = derivatives(line(), torch.tensor([0.5], dtype=F64))
    assert [float(at.f), *at.g.tolist(), *at.c.tolist(), *at.J.flatten().tolist()] == pytest.approx(
        [0.25 * (0.25 + 6.25), -1.5, -0.5, 1.0]
    )


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 0.5, 0.5),  # stationarity
        (1.5, 0.5, 0.5),  # feasibility, and complementarity .25
        (0.5, 1.5, 0.75 / 1.5),  # complementarity, relative to |grad f| = 1.5
        (2.5, -0.5, 1.5),  # feasibility; the sign is wrong by .5
    ],
)
def test_largest_residual_by_hand(x: float, y: float, expected: float) -> None:
    found = kkt_residual(line(), torch.tensor([x], dtype=F64), torch.tensor([y], dtype=F64))
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_negative_multiplier_is_allowed_for_equalities_alone() -> None:
    rows = torch.zeros(2, 1, dtype=F64)
    for kinds, expected in (({"equalities": 1}, 0.0), ({"inequalities": 1}, 1.0)):
        made = expectation(
            lambda x, given: torch.cat([x + given, x - 1 + given], 1),
            rows,
            torch.zeros(1, dtype=F64),
            batch=1,
            **kinds,
        )  # f = x, c = x - 1: y = -1
        found = kkt_residual(made, torch.ones(1, dtype=F64), -torch.ones(1, dtype=F64))
        assert found == pytest.approx(expected, abs=1e-12)
        assert fitted(
            derivatives(made, torch.ones(1, dtype=F64)), made.problem.constraints.equality
        ).tolist() == [pytest.approx(-1.0 if "equalities" in kinds else 0.0, abs=1e-9)]


def test_multipliers_are_fitted_where_none_are_given() -> None:
    assert kkt_residual(line(), torch.ones(1, dtype=F64)) == pytest.approx(0.0, abs=1e-9)
    inactive = kkt_residual(line(), torch.full((1,), 0.5, dtype=F64))
    assert inactive == pytest.approx(1.0)  # |grad f| = 1.5 stays, since c = -.5 does not bind


def test_losses_of_groups_count_their_own_training_examples() -> None:
    """Constraints between groups of unequal size, some examples held out, against means by hand."""
    generator = torch.Generator().manual_seed(0)
    X, y = (
        torch.randn(30, 2, dtype=F64, generator=generator),
        torch.randn(30, dtype=F64, generator=generator),
    )
    group = (torch.arange(30) % 3 == 0).long()
    constraint = constraints.pairwise_loss_parity(["A", "B"], bound=0.1).bind(group)
    data = Dataset(X, y, {"g": group})
    problem = Problem(
        lambda x, rows: rows @ x, lambda out, label: (out - label) ** 2, constraint, data
    )
    train = torch.arange(20)
    instance = Instance(
        problem, lambda seeds: torch.zeros(len(seeds), 2), (Split(train),), BatchSpec()
    )
    x = torch.tensor([0.3, -0.2], dtype=F64)
    at = derivatives(instance, x)
    r = X[:20] @ x - y[:20]
    A, B = group[:20] == 0, group[:20] == 1
    gap = (r[A] ** 2).mean() - (r[B] ** 2).mean()
    slope = 2 * (r[A] @ X[:20][A]) / A.sum() - 2 * (r[B] @ X[:20][B]) / B.sum()
    assert torch.allclose(at.f, (r**2).mean())
    assert torch.allclose(at.c.sort().values, torch.stack([gap, -gap]).sort().values - 0.1)
    assert torch.allclose(at.J[at.c.argmax()], slope * gap.sign())
    assert torch.allclose(at.c, problem.evaluate(x, train).c[0])
