"""Mistakes that would train something else without a word: a sentence each."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fairbound import Constrained, constraints
from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.constraints import MiniBatch

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
Y, GROUPS = (X[:, 0] > 0).float(), torch.arange(16) % 2
PARITY = constraints.loss_parity(2, bound=0.1)
RATES = constraints.demographic_parity(2, bound=0.1)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def losses_of(model: nn.Module) -> Tensor:
    return binary_cross_entropy_with_logits(model(X)[:, 0], Y, reduction="none")


def test_probabilities_in_the_place_of_logits() -> None:
    model = network()
    fair = Constrained(model, RATES, DescentAscent())
    with pytest.warns(UserWarning, match=r"0 and 1, .*'0 - 1'.*from logits") as said:
        fair.backward(losses_of(model), GROUPS, outputs=torch.sigmoid(model(X)[:, 0]))
    assert said[0].filename == __file__


def test_probabilities_of_several_classes() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    rate = constraints.demographic_parity(2, bound=0.1, outcome=1)
    losses = nn.functional.cross_entropy(model(X), Y.long(), reduction="none")
    with pytest.warns(UserWarning, match="lie between 0 and 1"):
        Constrained(model, rate, DescentAscent()).backward(
            losses, GROUPS, outputs=torch.softmax(model(X), 1)
        )


@pytest.mark.parametrize("start_at_zero", [False, True])
def test_logits_are_taken_without_a_word(start_at_zero: bool) -> None:
    model = network()
    if start_at_zero:
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Constrained(model, RATES, DescentAscent()).backward(
            losses_of(model), GROUPS, outputs=model(X)[:, 0]
        )


@pytest.mark.parametrize("method", [DescentAscent(), SSLALM(samples=1)])
def test_losses_of_another_model(method: DescentAscent | SSLALM) -> None:
    fair = Constrained(network(), PARITY, method)
    with pytest.raises(ValueError, match=r"not depend.*Constrained"):
        fair.backward(losses_of(network()), GROUPS)
    assert fair.steps == 0


def test_a_layer_replaced_after_building() -> None:
    model = network()
    fair = Constrained(model, PARITY, DescentAscent())
    model[2] = nn.Linear(4, 1)
    with pytest.raises(ValueError, match=r"'2.weight'.*build Constrained"):
        fair.backward(losses_of(model), GROUPS)


def test_a_layer_unfrozen_after_building() -> None:
    model = network()
    model[0].requires_grad_(False)
    fair = Constrained(model, PARITY, DescentAscent())
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"'0.weight'.*to train"):
        fair.backward(losses_of(model), GROUPS)


def test_a_negative_bound_on_a_loss() -> None:
    model = network()
    fair = Constrained(model, constraints.bounded_group_loss(2, bound=-1), DescentAscent())
    with pytest.warns(UserWarning, match=r"'loss of 0 <= -1'.*negative"):
        fair.backward(losses_of(model), GROUPS)


def test_a_function_that_gives_a_float() -> None:
    model = network()
    own = constraints.function(lambda batch: batch.losses.mean().item() - 0.5, "mean")  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"'mean' .*number .*without .item\(\)"):
        Constrained(model, own, DescentAscent()).backward(losses_of(model))


def test_a_function_without_a_graph() -> None:
    model = network()
    own = constraints.function(lambda batch: batch.losses.detach().mean().reshape(1), "mean")
    with pytest.raises(ValueError, match=r"'mean' .*graph"):
        Constrained(model, own, DescentAscent()).backward(losses_of(model))


def test_groups_on_another_device() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"meta.*cpu; use groups.to\('cpu'\)"):
        Constrained(model, PARITY, DescentAscent()).backward(losses_of(model), GROUPS.to("meta"))


def test_a_learning_rate_given_to_a_method() -> None:
    with pytest.raises(
        TypeError,
        match=r"DescentAscent.*'lr'.*tau, eta",
    ):
        DescentAscent(lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"SSLALM.*'penalty'.*rho"):
        SSLALM(penalty=0.1)  # type: ignore[call-arg]


def test_an_empty_batch() -> None:
    model = network()
    fair = Constrained(model, PARITY, DescentAscent())
    with pytest.raises(ValueError, match=r"mini-batch.*empty"):
        fair.backward(losses_of(model)[:0], GROUPS[:0])
    with pytest.raises(ValueError, match=r"mini-batch.*empty"):
        fair.backward(MiniBatch(losses_of(model)[:0], GROUPS[:0]))
