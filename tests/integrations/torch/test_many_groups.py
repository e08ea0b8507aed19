"""Very many groups: the rows that a mini-batch shows are gathered, stepped and written back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import flat, seeded
from methods import bce
from torch import Tensor, nn

from fairbound import Constrained, constraints
from fairbound.algorithms import (
    SSLALM,
    DescentAscent,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.constraints import Constraint
from fairbound.constraints import _cells as cells
from fairbound.core import Algorithm

GROUPS = 50


def network() -> nn.Module:
    model: nn.Module = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    return model.double()


def batches(
    count: int, groups: int = GROUPS, size: int = 24
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, labels and groups; a mini-batch shows about two fifths of the groups, and some
    examples have none."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        X = torch.randn(size, 4, generator=generator, dtype=torch.float64)
        y = (torch.rand(size, generator=generator) < 0.4).double()
        made.append((X, y, torch.randint(-1, groups, (size,), generator=generator)))
    return made


def losses_of(model: nn.Module, X: Tensor, y: Tensor) -> Tensor:
    return bce(model(X)[:, 0], y)


def trained(
    method: Algorithm[Any],
    make: Callable[[], Any],
    steps: int = 120,
    *,
    resumed_at: int | None = None,
    loss: bool = False,
    further: Callable[[int, Tensor, nn.Module], dict[str, Any]] = lambda k, groups, model: {},
) -> tuple[Constrained, Tensor]:
    """A loop, and the weights at its end; `loss` passes the scalar of a trainer backward."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fair = Constrained(model, make(), method)
    for k, (X, y, groups) in enumerate(batches(steps)):
        if k == resumed_at:
            kept, fair = fair.state_dict(), Constrained(model, make(), method)
            fair.load_state_dict(kept)
        optimizer.zero_grad()
        outputs = model(X)[:, 0]
        shown = {"groups": groups, "labels": y, "outputs": outputs} | further(k, groups, model)
        if loss:
            fair.loss(bce(outputs, y), **shown).backward()
        else:
            fair.backward(bce(outputs, y), **shown)
        optimizer.step()
    return fair, flat(model)


METHODS: dict[str, Algorithm[Any]] = {
    "DescentAscent": DescentAscent(eta=0.05),
    "Penalty": Penalty(weight=0.1),
    "SSLALM": SSLALM(samples=1, eta=0.05, rho=0.1, slack_from_first=False),
}
MADE: dict[str, Callable[[], Constraint]] = {
    "each": lambda: constraints.bounded_group_loss(GROUPS, bound=0.5),
    "each, own bounds": lambda: constraints.bounded_group_loss(
        GROUPS, bound=[0.4 + k / 200 for k in range(GROUPS)]
    ),
    "against the mean": lambda: constraints.loss_parity(GROUPS, bound=0.1),
    "shares": lambda: constraints.loss_parity(
        GROUPS, bound=0.1, contrast=constraints.against_pooled([k / 1225 for k in range(GROUPS)])
    ),
    "equal rates": lambda: constraints.minimum_rate(0.5, groups=GROUPS, equality=True),
    "rates of a label": lambda: constraints.equal_opportunity(
        GROUPS, bound=0.1, contrast=constraints.against_mean, proxy=True
    ),
}


def assert_the_same(
    few: tuple[Constrained, Tensor], many: tuple[Constrained, Tensor], largest: float = 0.01
) -> None:
    """Of the dense form, and of gathered rows."""
    (dense, plain), (gathered, weights) = few, many
    assert (dense._steps.gathered, gathered._steps.gathered) == (False, True)
    assert torch.allclose(plain, weights, atol=1e-9)
    for key in ("multipliers", "ages"):
        assert getattr(gathered, key) == pytest.approx(getattr(dense, key), abs=1e-9), key
    assert gathered.constraints == pytest.approx(dense.constraints, abs=1e-9, nan_ok=True)
    assert gathered.log_values() == pytest.approx(dense.log_values(), nan_ok=True)
    assert max(map(abs, dense.multipliers.values()), default=largest) >= largest


def both_forms(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> Any:
    few = trained(*args, **options)
    monkeypatch.setattr(cells, "MANY", 10)
    return few, trained(*args, **options)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", METHODS)
def test_gathered_rows_equal_the_dense_form(
    name: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = both_forms(monkeypatch, METHODS[name], MADE[made])
    assert_the_same(few, many)
    assert max(few[0].ages.values()) > 3


@pytest.mark.parametrize("made", ["each", "against the mean"])
def test_losses_that_a_trainer_passes_backward(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mini-batches show other groups."""
    few, many = both_forms(monkeypatch, DescentAscent(eta=0.3), MADE[made], 12, loss=True)
    assert_the_same(few, many)
    assert few[0].steps == many[0].steps == 12


def test_losses_of_a_trainer_are_not_accumulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MANY", 10)
    model = network()
    fair = Constrained(model, MADE["each"](), DescentAscent(eta=0.3))
    first, second = batches(2)
    fair.loss(losses_of(model, *first[:2]), first[2]).backward()
    with pytest.raises(ValueError, match=r"every backward.*step"):
        fair.loss(losses_of(model, *second[:2]), second[2]).backward()


def test_very_many_groups_beside_other_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns of many groups, one of few, the weights, and a value that is there at every third
    step."""

    def five() -> dict[str, Any]:
        return {
            "city": constraints.bounded_group_loss(GROUPS, bound=0.3, by="city"),
            "norm": constraints.weight_norm(0.5),
            "race": constraints.loss_parity(3, bound=0.01, by="race"),
            "job": constraints.loss_parity(40, bound=0.1, by="job"),
            "own": constraints.given("value"),
        }

    def columns(k: int, city: Tensor, model: nn.Module) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(k)
        race, job = (torch.randint(n, city.shape, generator=generator) for n in (3, 40))
        values = {"value": model[2].bias.sum() - 0.1} if k % 3 == 0 else None  # type: ignore[index]
        return {"groups": {"city": city, "race": race, "job": job}, "values": values}

    few, many = both_forms(monkeypatch, DescentAscent(eta=0.05), five, further=columns)
    assert_the_same(few, many)
    assert few[0].ages["own: value"] == 2


def test_a_step_touches_the_groups_of_its_batch_alone() -> None:
    model = network()
    fair = Constrained(
        model, constraints.bounded_group_loss(1_000_000, bound=0.1), DescentAscent(eta=0.5)
    )
    X, y, _ = batches(1)[0]
    groups = torch.arange(24) * 41_000
    info = fair.backward(losses_of(model, X, y), groups)
    assert info.rows is not None
    assert torch.equal(info.rows.sort().values, groups)
    expected = 0.5 * (losses_of(model, X, y) - 0.1).clamp(min=0.0)
    fair.backward(losses_of(model, X, y), groups + 1)
    y_of = fair._steps.multipliers()
    assert y_of is not None
    assert y_of.shape == (1_000_000,)
    assert torch.allclose(y_of[groups], expected.detach())
    assert torch.allclose(y_of[groups + 1], expected.detach())
    assert int((y_of != 0).sum()) == 48
    assert fair.names[41_000] == "loss of 41000 <= 0.1"


def test_every_example_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feasible learning: with the example's number as its group every loss is bounded.

    A line through points of which two are far off: the least squares leave those at squared errors
    above the bound.
    """
    monkeypatch.setattr(cells, "MANY", 10)
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)
    y = torch.where(x > 0.9, 1.0, 0.0).double()
    inputs = torch.stack([torch.ones_like(x), x], 1)
    fits = []
    for bound in (10.0, 0.4):
        model = nn.Linear(2, 1, bias=False).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        fair = Constrained(
            model, constraints.bounded_group_loss(40, bound=bound), DescentAscent(eta=0.02)
        )
        generator = torch.Generator().manual_seed(2)
        for _ in range(4000):
            some = torch.randperm(40, generator=generator)[:16]
            optimizer.zero_grad()
            fair.backward((model(inputs[some])[:, 0] - y[some]).square(), some)
            optimizer.step()
        fits.append((model(inputs)[:, 0] - y).square().max().item())
        assert fair._steps.gathered
    assert fits[0] > 0.55
    assert fits[1] <= 0.41


@pytest.mark.parametrize("made", ["each", "against the mean"])
def test_a_loop_goes_on_from_its_state(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MANY", 10)
    (whole, end), (resumed, other) = (
        trained(DescentAscent(eta=0.05), MADE[made], 40, resumed_at=stop) for stop in (None, 17)
    )
    assert (whole.multipliers, whole.ages) == (resumed.multipliers, resumed.ages)
    assert torch.equal(end, other)


def test_a_saved_state_of_another_number_of_groups_is_refused() -> None:
    model = network()
    fair = Constrained(model, constraints.bounded_group_loss(2000, bound=0.1), DescentAscent())
    X, y, groups = batches(1)[0]
    fair.backward(losses_of(model, X, y), groups)
    other = Constrained(model, constraints.bounded_group_loss(3000, bound=0.1), DescentAscent())
    with pytest.raises(ValueError, match=r"2001 entries.*3001"):
        other.load_state_dict(fair.state_dict())


@pytest.mark.parametrize(
    "method", [SwitchingSubgradient(), StochasticGhost(), SSLALM(), DescentAscent(second=True)]
)
def test_methods_that_treat_all_together_refuse_very_many(method: Algorithm[Any]) -> None:
    with pytest.raises(ValueError, match=r"constraints .* 20000.*each alone"):
        Constrained(network(), constraints.bounded_group_loss(20_000, bound=0.1), method)


def test_pairs_of_very_many_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 39800"):
        Constrained(
            network(), constraints.pairwise_loss_parity(200, bound=0.1), SwitchingSubgradient()
        )


def test_an_unknown_group_is_told() -> None:
    model = network()
    fair = Constrained(model, constraints.bounded_group_loss(2000, bound=0.1), DescentAscent())
    X, y, groups = batches(1)[0]
    fair.backward(losses_of(model, X, y), groups)
    with (
        pytest.warns(RuntimeWarning, match="skipped"),
        pytest.raises(ValueError, match=r"groups.*0 to 1999"),
    ):
        fair.backward(losses_of(model, X, y), groups.clamp(min=0) + 1990)
