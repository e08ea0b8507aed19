"""The KKT report on a problem whose solution and price are known, and the signs of one that has
none."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from loops import LR, flat, network, people, rows_of, step, three_constraints
from scipy.optimize import brentq  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import KKT, Constrained, MiniBatch, constraints, load_flat, report_kkt
from fairbound.algorithms import SSLALM, DescentAscent, Penalty, SwitchingSubgradient
from fairbound.constraints._cells import Cells
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._contrasts import each
from fairbound.core import Algorithm

F64 = torch.float64
ROWS = 90


class Known(NamedTuple):
    """Least squares, min mean (a'x - b)^2, where the second group's mean is at most `bound`."""

    A: np.ndarray  # (rows, 3)
    b: np.ndarray  # (rows,)
    group: np.ndarray  # (rows,) 0 or 1
    bound: float
    x: np.ndarray  # (3,) the solution
    y: float  # the bound's multiplier

    def constraint(self) -> Any:
        """The first group's bound is out of reach."""
        bounds = torch.tensor([10.0, self.bound], dtype=F64)
        return Constraint(Cells.of_groups(["A", "B"]), each(["loss of A", "loss of B"]), bounds)

    def data(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(torch.as_tensor(self.A), torch.as_tensor(self.b), torch.as_tensor(self.group))]

    def model(self, x: np.ndarray) -> nn.Module:
        return load_flat(nn.Linear(3, 1, bias=False).double(), torch.as_tensor(x))


def known() -> Known:
    """For a price y the Lagrangian's minimizer is weighted least squares; the price is where the
    bound is met."""
    rng = np.random.default_rng(0)
    A, group = rng.normal(size=(ROWS, 3)), (np.arange(ROWS) % 3 == 0).astype(int)
    # the groups want different models
    truth = np.where(group[:, None], [1.0, -1.0, 0.5], [-0.5, 1.0, 2.0])
    b = (A * truth).sum(1) + 0.3 * rng.normal(size=ROWS)

    def solution(y: float) -> np.ndarray:
        weight = 1 / ROWS + y * group / group.sum()
        solved: np.ndarray = np.linalg.solve(A.T @ (weight[:, None] * A), A.T @ (weight * b))
        return solved

    def group_loss(x: np.ndarray) -> float:
        return float(((A @ x - b)[group == 1] ** 2).mean())

    bound = 0.5 * (group_loss(solution(0.0)) + group_loss(solution(50.0)))
    y = brentq(lambda price: group_loss(solution(price)) - bound, 0.0, 50.0, xtol=1e-14, rtol=1e-14)
    return Known(A, b, group, bound, solution(y), y)


KNOWN = known()


def judged(model: nn.Module, data: Any, **options: Any) -> KKT:
    def evaluate(batch: tuple[Tensor, Tensor, Tensor]) -> MiniBatch:
        X, b, group = batch
        return MiniBatch((model(X)[:, 0] - b).square(), group)

    return report_kkt(model, KNOWN.constraint(), data, evaluate, **options)


def priced(model: nn.Module, of_a: float = 0.0, of_b: float = KNOWN.y) -> KKT:
    names = KNOWN.constraint().names
    return judged(model, KNOWN.data(), multipliers={names[0]: of_a, names[1]: of_b})


def residuals(found: KKT) -> list[float]:
    return [found.stationarity, found.feasibility, found.complementarity, found.sign]


# At the solution ----------------------------------------------------------------------------------


def test_the_residuals_vanish_at_the_solution() -> None:
    names = KNOWN.constraint().names
    found = priced(KNOWN.model(KNOWN.x))
    assert KNOWN.y > 0.1
    assert max(residuals(found)) < 1e-6
    assert found.gradient > 0.1  # the loss alone is not stationary there
    assert not found.fitted
    assert found.examples == ROWS
    residual = KNOWN.A @ KNOWN.x - KNOWN.b
    assert found.loss == pytest.approx(float((residual**2).mean()))
    assert found.constraints[names[0]] == pytest.approx(
        float((residual[KNOWN.group == 0] ** 2).mean()) - 10
    )


def test_multipliers_that_fit_are_the_known_ones() -> None:
    found = judged(KNOWN.model(KNOWN.x), KNOWN.data())
    names = KNOWN.constraint().names
    assert found.fitted
    assert max(residuals(found)) < 1e-6
    binding = [name for name in names if found.constraints[name] > -1e-3]
    assert binding == [names[1]]
    assert found.multipliers[names[1]] == pytest.approx(KNOWN.y, abs=1e-6)
    assert found.multipliers[names[0]] == 0.0


@pytest.mark.parametrize("far", [1e-2, 0.3])
def test_the_residuals_do_not_vanish_elsewhere(far: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        direction = rng.normal(size=3)
        model = KNOWN.model(KNOWN.x + far * direction / np.linalg.norm(direction))
        known = priced(model)
        assert max(residuals(known)) > 1e-3 * far
        assert known.stationarity > 1e-2 * far
        assert max(residuals(judged(model, KNOWN.data()))) > 1e-3 * far


def test_each_residual_says_its_own() -> None:
    """A wrong price: not stationary; one of a limit that does not bind: not complementary; a
    negative one: its sign."""
    names, at = KNOWN.constraint().names, KNOWN.model(KNOWN.x)
    high = priced(at, of_b=KNOWN.y + 1)
    assert high.stationarity > 0.01
    assert max(high.feasibility, high.complementarity, high.sign) < 1e-6
    other = priced(at, of_a=1.0)
    assert other.complementarity == pytest.approx(abs(other.constraints[names[0]]))
    below = judged(at, KNOWN.data(), multipliers=torch.tensor([-0.25, KNOWN.y], dtype=F64))
    assert below.sign == 0.25
    alone = priced(KNOWN.model(np.linalg.lstsq(KNOWN.A, KNOWN.b, rcond=None)[0]), of_b=0.0)
    assert alone.stationarity < 1e-6
    assert alone.feasibility == pytest.approx(alone.constraints[names[1]])
    assert alone.feasibility > 0.1


@pytest.mark.parametrize("size", [1, 7, 32, ROWS])
def test_the_size_of_batches_does_not_matter(size: int) -> None:
    """Sums and counts are added up: batches that lack a group, and a short last one, are as good as
    one of all."""
    model = KNOWN.model(KNOWN.x + 0.1)
    whole = judged(model, KNOWN.data())
    order = torch.as_tensor(KNOWN.group.argsort(kind="stable"))
    table = TensorDataset(*(part[order] for part in KNOWN.data()[0]))
    found = judged(model, DataLoader(table, batch_size=size))
    for name in (
        "loss",
        "stationarity",
        "gradient",
        "feasibility",
        "complementarity",
        "sign",
        "examples",
    ):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), abs=1e-12)
    assert found.multipliers == pytest.approx(whole.multipliers, abs=1e-9)


@pytest.mark.parametrize(
    "method", [DescentAscent(tau=0.05, eta=0.1), SSLALM(samples=1, tau=0.05, rho=1.0, eta=0.2)]
)
def test_a_loop_arrives_and_its_report_says_so(method: Algorithm[Any]) -> None:
    """On whole batches the method's own multipliers become the known ones."""
    model = KNOWN.model(np.zeros(3))
    fair = Constrained(model, KNOWN.constraint(), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    X, b, group = KNOWN.data()[0]

    def evaluate(batch: tuple[Tensor, Tensor, Tensor]) -> MiniBatch:
        return MiniBatch((model(batch[0])[:, 0] - batch[1]).square(), batch[2])

    early = None
    for _ in range(1500):
        optimizer.zero_grad()
        fair.backward(evaluate((X, b, group)))
        optimizer.step()
        early = early or fair.report(KNOWN.data(), evaluate)
    found = fair.report(KNOWN.data(), evaluate)
    assert early is not None
    assert max(residuals(early)) > 0.1
    assert max(residuals(found)) < 1e-4
    assert found.multipliers[KNOWN.constraint().names[1]] == pytest.approx(KNOWN.y, abs=1e-3)
    assert found.warning is None
    assert not found.fitted


# What a report leaves alone -----------------------------------------------------------------------

WHO = people()
ALL = [torch.arange(120)]


def of_people(model: nn.Module, limit: Any, batches: Any = ALL, **options: Any) -> KKT:
    return report_kkt(model, limit, batches, lambda own: rows_of(model, WHO, own), **options)


class Halves(nn.Module):
    """Dropout, batch norm, and a part that is in eval mode for good."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1)
        )
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.frozen(self.body(X))
        return out


def test_modes_buffers_and_gradients_are_as_they_were() -> None:
    model = Halves().double()
    held = [torch.full_like(p, 2.0) for p in model.parameters()]
    for p, grad in zip(model.parameters(), held, strict=True):
        p.grad = grad
    buffers = [b.clone() for b in model.buffers()]
    modes = [module.training for module in model.modules()]
    first, second = (of_people(model, three_constraints()) for _ in range(2))
    assert first == second  # no dropout
    assert [module.training for module in model.modules()] == modes
    assert all(
        p.grad is grad and (grad == 2).all()
        for p, grad in zip(model.parameters(), held, strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))


def test_modes_are_restored_after_an_error() -> None:
    model = Halves().double()
    with pytest.raises(ValueError, match="needs outputs"):
        report_kkt(
            model,
            constraints.demographic_parity(3, bound=0.1),
            [0],
            lambda _: MiniBatch(model(WHO.X)[:, 0], WHO.race),
        )
    assert model.body.training
    assert not model.frozen.training


def test_the_true_rate_stands_beside_its_stand_in() -> None:
    """What is trained is soft; what people see is counted."""
    model = network()
    limit = constraints.minimum_rate(0.9, groups=["A", "B", "C"], label=1, by="race")
    found = of_people(model, limit, [torch.arange(50), torch.arange(50, 120)])
    with torch.no_grad():
        outputs = model(WHO.X)[:, 0]
    for race, name in enumerate(limit.names):
        chosen = (WHO.race == race) & (WHO.y == 1)
        assert found.exact[name] == pytest.approx(
            0.9 - float((outputs[chosen] > 0).double().mean())
        )
        assert found.constraints[name] == pytest.approx(
            0.9 - float(outputs[chosen].sigmoid().mean())
        )
        assert abs(found.exact[name] - found.constraints[name]) > 1e-3
    losses = of_people(model, three_constraints()["race"])
    assert losses.exact == losses.constraints


# How it reads -------------------------------------------------------------------------------------


def test_the_table_is_80_columns_wide() -> None:
    """Long names, broken limits, a warning and fitted multipliers included."""
    model = network()
    names = [
        "people of a group with a rather long name",
        "others of a group with a long name",
        "the rest of them all",
    ]
    limit = {"a limit of this name": constraints.equal_opportunity(names, bound=0.0, by="race")}
    sign = (
        "the multipliers still grow, from a norm of 1.23e+05 at step 100000 to 2.46e+05 at step"
        " 200000: " * 2
    )
    found = of_people(model, limit, warning=sign)
    lines = str(found).splitlines()
    assert max(len(line) for line in lines) <= 80
    text = " ".join(str(found).split())
    for part in (
        "violated",
        "exact c",
        "stationarity",
        "complementarity",
        "those that fit best",
        "warning: the mult",
    ):
        assert part in text


def test_the_table_says_what_was_found() -> None:
    names = KNOWN.constraint().names
    text = str(priced(KNOWN.model(KNOWN.x + 0.3), of_b=0.125))
    assert f"over {ROWS} examples" in text
    assert next(line for line in text.splitlines() if line.startswith(names[1])).split()[-2:] == [
        "0.1250",
        "violated",
    ]
    assert "fit best" not in text
    assert "warning" not in text


# Problems without a solution ----------------------------------------------------------------------


def trained(method: Algorithm[Any], bound: float, steps: int = 60) -> KKT:
    model = network()
    fair = Constrained(model, constraints.bounded_group_loss(3, bound=bound, by="race"), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(steps):
        step(fair, optimizer, model, WHO, torch.arange(120).expand(method.draws, -1))
    assert flat(model).isfinite().all()
    return fair.report([torch.arange(120)], lambda numbers: rows_of(model, WHO, numbers))


def test_multipliers_that_grow_are_a_warning() -> None:
    for method, sign in (
        (DescentAscent(eta=0.2), "the multipliers still grow"),
        (SSLALM(samples=1, eta=0.5, y_max=2.0), "met y_max"),
        (SwitchingSubgradient(), "no feasible step"),
    ):
        found = trained(method, 0.01)
        assert sign in str(found.warning)
        assert "warning: " in str(found)
        # it has no multipliers of its own
        assert found.fitted == isinstance(method, SwitchingSubgradient)


FEASIBLE = [DescentAscent(eta=0.2), SSLALM(samples=1), SwitchingSubgradient(), Penalty()]


@pytest.mark.parametrize("method", FEASIBLE, ids=lambda method: type(method).__name__)
def test_a_feasible_problem_has_no_warning(method: Algorithm[Any]) -> None:
    assert trained(method, 5.0).warning is None


# What is refused ----------------------------------------------------------------------------------


def test_what_cannot_be_judged_is_a_sentence() -> None:
    model, names = KNOWN.model(KNOWN.x), KNOWN.constraint().names
    with pytest.raises(ValueError, match=r"an iterator.*list.*DataLoader"):
        judged(model, iter(KNOWN.data()))
    with pytest.raises(ValueError, match="no batches"):
        judged(model, [])
    with pytest.raises(ValueError, match=rf"multipliers has no \['{names[1]}'\]"):
        judged(model, KNOWN.data(), multipliers={names[0]: 1.0})
    X, b, group = KNOWN.data()[0]
    with pytest.raises(ValueError, match=rf"no examples for \['{names[1]}'\]"):
        judged(model, [(X, b, 0 * group)])
    with pytest.raises(ValueError, match=r"groups.*0 to 1"):
        judged(model, [(X, b, group + 1)])
    with pytest.raises(ValueError, match="reduction='none'"):
        report_kkt(
            model,
            KNOWN.constraint(),
            KNOWN.data(),
            lambda batch: MiniBatch(model(batch[0]).mean(), batch[2]),
        )
    fair = Constrained([*model.parameters()], KNOWN.constraint(), DescentAscent())
    with pytest.raises(TypeError, match=r"report.*model itself"):
        fair.report(KNOWN.data(), lambda batch: MiniBatch(model(batch[0])[:, 0], batch[2]))
