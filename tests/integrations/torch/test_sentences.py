"""Mistakes in a loop that used to pass in silence: each is a sentence with the remedy, or a
warning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from loops import network, people, rows_of, step
from torch import Tensor, nn

from fairbound import SSLALM, Constrained, DescentAscent, MiniBatch, constraints

WHO = people(120)
PARITY = constraints.loss_parity(3, bound=0.02, by="race")


def loop(limit: Any = PARITY) -> tuple[nn.Module, Constrained]:
    """A loop that has made one step."""
    model = network()
    fair = Constrained(model, limit, DescentAscent())
    fair.backward(rows_of(model, WHO, torch.arange(24)))
    return model, fair


# What is handed over with a mini-batch ------------------------------------------------------------


def second_task(values: dict[str, Any]) -> None:
    model = network()
    fair = Constrained(model, constraints.given("second task"), DescentAscent())
    batch = rows_of(model, WHO, torch.arange(24))
    fair.backward(
        batch._replace(values={name: make(batch.losses) for name, make in values.items()})
    )


def test_a_value_without_a_graph() -> None:
    second_task({"second task": lambda losses: losses.mean() - 0.1})
    with pytest.raises(ValueError, match=r"values\['second task'\].*no graph.*\.detach\(\)"):
        second_task({"second task": lambda losses: losses.mean().detach() - 0.1})
    with pytest.raises(ValueError, match=r"values\['second task'\].*float, without"):
        second_task({"second task": lambda losses: float(losses.mean().detach())})
    with pytest.raises(
        ValueError,
        match=r"values\['second task'\].*\(24,\).*its mean",
    ):
        second_task({"second task": lambda losses: losses - 0.1})


def test_a_value_that_no_constraint_is_called() -> None:
    with pytest.raises(ValueError, match=r"'secnd task'.* has: 'second task'"):
        second_task({"secnd task": lambda losses: losses.mean()})
    model, fair = loop()
    batch = rows_of(model, WHO, torch.arange(24))
    with pytest.raises(ValueError, match=r"'extra', .* has: none"):
        fair.backward(batch._replace(values={"extra": batch.losses.mean()}))


# Later mini-batches -------------------------------------------------------------------------------


def with_race(change: Any) -> Any:
    return lambda batch: batch._replace(
        groups=batch.groups | {"race": change(batch.groups["race"])}
    )


LATER: dict[str, tuple[Any, str]] = {
    "float groups": (
        with_race(Tensor.double),
        r"race must be a vector of whole numbers, got torch.float64",
    ),
    "groups as texts": (
        with_race(lambda race: race.numpy().astype(str)),
        r"race must be a tensor, got ndarray.* in the order of the constraint's names",
    ),
    "fewer groups": (
        with_race(lambda race: race[:20]),
        r"there are 24 losses but race has shape \(20,\)",
    ),
    "fewer labels": (
        lambda batch: batch._replace(labels=batch.labels[:3]),
        r"24 losses but labels has shape \(3,\)",
    ),
    "negative weights": (
        lambda batch: batch._replace(weight=-torch.ones(24)),
        r"weights must be >= 0, found -1",
    ),
    "empty objective": (
        lambda batch: batch._replace(objective=torch.zeros(24, dtype=torch.bool)),
        r"objective is False for every example .* leave the mini-batch out",
    ),
}


@pytest.mark.parametrize("case", LATER)
def test_of_a_later_mini_batch(case: str) -> None:
    change, sentence = LATER[case]
    model, fair = loop()
    before = fair.multipliers
    with pytest.raises((TypeError, ValueError), match=sentence):
        fair.backward(change(rows_of(model, WHO, torch.arange(24))))
    assert (fair.steps, fair.skipped, fair.multipliers) == (1, 0, before)


def test_parameters_unfrozen_later() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    fair = Constrained(model, PARITY, DescentAscent())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        step(fair, optimizer, model, WHO, torch.arange(24)[None])
    model[0].weight.requires_grad_(True)
    for _ in range(97):
        step(fair, optimizer, model, WHO, torch.arange(24)[None])
    with pytest.raises(ValueError, match=r"'0.weight'.*unfrozen since"):
        step(fair, optimizer, model, WHO, torch.arange(24)[None])


# Settings -----------------------------------------------------------------------------------------


def test_a_bound_in_percent() -> None:
    for notion in (
        constraints.demographic_parity,
        constraints.equal_opportunity,
        constraints.false_positive_parity,
    ):
        with pytest.raises(ValueError, match=r"bound=5.*every difference.*0\.05"):
            notion(2, bound=5)
        assert notion(2, bound=1.0).m == 2
    assert constraints.equalized_odds(2, bound=1.5).m == 4
    with pytest.raises(ValueError, match="at most 2"):
        constraints.equalized_odds(2, bound=3)
    assert constraints.loss_parity(2, bound=5).m == 4  # a loss has no largest value
    with pytest.raises(TypeError, match=r"bounds.*'5%'.*0\.05"):
        constraints.pairwise_loss_parity(2, bound="5%")  # type: ignore[arg-type]
    for bound in (0.0, 0.2, 1.25, True):  # 0 would allow everything, and nothing meets more than 1
        with pytest.raises(ValueError, match=r"above 0\.2, .*such as 0\.8"):
            constraints.demographic_parity_ratio(2, bound=bound)


def test_an_optimizer_in_the_model_s_place() -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"the model, not.*\(SGD\)"):
        Constrained(optimizer, PARITY, DescentAscent())  # type: ignore[arg-type]


def test_tau_in_a_loop() -> None:
    with pytest.warns(UserWarning, match=r"DescentAscent\(tau=0\.3\).*no effect.* set lr="):
        Constrained(network(), PARITY, DescentAscent(tau=0.3, eta=(0.1,) * 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Constrained(network(), PARITY, DescentAscent())
        Constrained(network(), PARITY, SSLALM(tau=0.3))  # it moves the slacks


def test_a_saved_state_of_other_units() -> None:
    _, fair = loop()
    for bound, warned in ((0.03, False), (2.0, True)):
        other = Constrained(
            network(), constraints.loss_parity(3, bound=bound, by="race"), DescentAscent()
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.load_state_dict(fair.state_dict())
        assert [
            str(w.message).startswith("the saved state was trained with a bound of 0.02")
            for w in caught
        ] == ([True] if warned else [])


def test_a_saved_state_of_another_constraint_with_the_same_names() -> None:
    loss_gap = Constrained(
        network(), constraints.pairwise_loss_parity(2, bound=0.05), DescentAscent()
    )
    rate_gap = Constrained(
        network(), constraints.demographic_parity(2, bound=0.05), DescentAscent()
    )
    with pytest.raises(ValueError, match=r"rates, '0 - 1', .*losses, '0 - 1'"):
        rate_gap.load_state_dict(loss_gap.state_dict())


def test_a_trainer_s_loss_of_another_model() -> None:
    model, other = network(), network()
    fair = Constrained(model, PARITY, DescentAscent())
    fair.loss(rows_of(other, WHO, torch.arange(24))).backward()
    with pytest.raises(ValueError, match=r"depend.*another model's"):
        torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_one_rule_for_positive_predictions() -> None:
    """A logit of 0 is no positive prediction, in statistics and in the benchmark's evaluation."""
    exact = constraints.demographic_parity(2, bound=0.5)
    batch = MiniBatch(torch.zeros(2), torch.arange(2), outputs=torch.tensor([0.0, 1.0]))
    assert exact.evaluate(batch, exact=True).tolist() == [-1.5, 0.5]
