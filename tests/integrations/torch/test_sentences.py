"""Mistakes in a loop that used to pass in silence: each is a sentence with the remedy, or a
warning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from loops import network, people, rows_of, step
from torch import nn

from fairbound import SSLALM, Constrained, DescentAscent, MiniBatch, constraints

WHO = people(120)
ROWS = torch.arange(24)
PARITY = constraints.loss_parity(3, bound=0.02, by="race")
RATES = constraints.demographic_parity(3, bound=0.1, by="race")


def loop(limit: Any = PARITY) -> tuple[nn.Module, Constrained]:
    """A loop that has made one step."""
    model = network()
    fair = Constrained(model, limit, DescentAscent())
    fair.backward(rows_of(model, WHO, ROWS))
    return model, fair


# What is handed over with a mini-batch ------------------------------------------------------------


def second_task(values: dict[str, Any]) -> None:
    model = network()
    fair = Constrained(model, constraints.given("second task"), DescentAscent())
    batch = rows_of(model, WHO, ROWS)
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
    batch = rows_of(model, WHO, ROWS)
    with pytest.raises(ValueError, match=r"'extra', .* has: none"):
        fair.backward(batch._replace(values={"extra": batch.losses.mean()}))


@pytest.mark.parametrize(
    ("own", "error", "sentence"),
    [
        (
            lambda batch: batch.losses.mean().item() - 0.5,
            TypeError,
            r"'mean' .*number .*without .item\(\)",
        ),
        (lambda batch: batch.losses.detach().mean().reshape(1), ValueError, r"'mean' .*graph"),
    ],
)
def test_a_function_without_a_graph(own: Any, error: type[Exception], sentence: str) -> None:
    model = network()
    fair = Constrained(model, constraints.function(own, "mean"), DescentAscent())
    with pytest.raises(error, match=sentence):
        fair.backward(rows_of(model, WHO, ROWS))


# Outputs ------------------------------------------------------------------------------------------


def test_probabilities_in_the_place_of_logits() -> None:
    model = network()
    batch = rows_of(model, WHO, ROWS)
    with pytest.warns(UserWarning, match=r"0 and 1, .*'0 - 1'.*from logits") as said:
        Constrained(model, RATES, DescentAscent()).backward(
            batch._replace(outputs=torch.sigmoid(batch.outputs))
        )
    assert said[0].filename == __file__
    classes = nn.Linear(4, 3).double()
    rate = constraints.demographic_parity(2, bound=0.1, outcome=1)
    outputs, labels = classes(WHO.X), WHO.y.long()
    with pytest.warns(UserWarning, match="lie between 0 and 1"):
        Constrained(classes, rate, DescentAscent()).backward(
            nn.functional.cross_entropy(outputs, labels, reduction="none"),
            WHO.sex,
            outputs=torch.softmax(outputs, 1),
        )


@pytest.mark.parametrize("start_at_zero", [False, True])
def test_logits_are_taken_without_a_word(start_at_zero: bool) -> None:
    model = network()
    if start_at_zero:
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Constrained(model, RATES, DescentAscent()).backward(rows_of(model, WHO, ROWS))


# Another model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [DescentAscent(), SSLALM(samples=1)])
def test_losses_of_another_model(method: DescentAscent | SSLALM) -> None:
    fair = Constrained(network(), PARITY, method)
    with pytest.raises(ValueError, match=r"not depend.*Constrained"):
        fair.backward(rows_of(network(), WHO, ROWS))
    assert fair.steps == 0


def test_a_layer_replaced_after_building() -> None:
    model = network()
    fair = Constrained(model, PARITY, DescentAscent())
    model[2] = nn.Linear(6, 1).double()
    with pytest.raises(ValueError, match=r"'2.weight'.*build Constrained"):
        fair.backward(rows_of(model, WHO, ROWS))


def test_a_layer_unfrozen_after_building() -> None:
    model = network()
    model[0].requires_grad_(False)
    fair = Constrained(model, PARITY, DescentAscent())
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"'0.weight'.*to train"):
        fair.backward(rows_of(model, WHO, ROWS))


def test_parameters_unfrozen_later() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    fair = Constrained(model, PARITY, DescentAscent())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        step(fair, optimizer, model, WHO, ROWS[None])
    model[0].weight.requires_grad_(True)
    for _ in range(97):
        step(fair, optimizer, model, WHO, ROWS[None])
    with pytest.raises(ValueError, match=r"'0.weight'.*unfrozen since"):
        step(fair, optimizer, model, WHO, ROWS[None])


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


def test_a_negative_bound_on_a_loss() -> None:
    model = network()
    fair = Constrained(
        model, constraints.bounded_group_loss(3, bound=-1, by="race"), DescentAscent()
    )
    with pytest.warns(UserWarning, match=r"'loss of 0 <= -1'.*negative"):
        fair.backward(rows_of(model, WHO, ROWS))


def test_a_learning_rate_given_to_a_method() -> None:
    with pytest.raises(TypeError, match=r"DescentAscent.*'lr'.*tau, eta"):
        DescentAscent(lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"SSLALM.*'penalty'.*rho"):
        SSLALM(penalty=0.1)  # type: ignore[call-arg]


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
    fair.loss(rows_of(other, WHO, ROWS)).backward()
    with pytest.raises(ValueError, match=r"depend.*another model's"):
        torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_one_rule_for_positive_predictions() -> None:
    """A logit of 0 is no positive prediction, in statistics and in the benchmark's evaluation."""
    exact = constraints.demographic_parity(2, bound=0.5)
    batch = MiniBatch(torch.zeros(2), torch.arange(2), outputs=torch.tensor([0.0, 1.0]))
    assert exact.evaluate(batch, exact=True).tolist() == [-1.5, 0.5]
