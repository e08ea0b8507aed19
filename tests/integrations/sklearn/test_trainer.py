"""Training of an ensemble: folds, selection, early stopping, and what is reported of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fairbound.integrations.sklearn import _trainer as trainer
from fairbound.integrations.sklearn._features import Features
from fairbound.integrations.sklearn._networks import Member, NetworkCopies, NetworkEnsemble
from fairbound.integrations.sklearn._trainer import Examples, NetworkAverage, cross_entropy, train

SETTINGS: dict[str, Any] = {"learning_rate": 0.02, "epochs": 3, "batch_size": 16}
FOLDS = torch.tensor([0, 1, 2])


def make_examples(n: int = 120, seed: int = 0) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 3, generator=generator)
    y = (X[:, 0] + 0.5 * torch.randn(n, generator=generator) > 0).long()
    return Examples(Features(X, torch.empty(n, 0, dtype=torch.int64)), y, None, torch.arange(n) % 3)


def ensemble(members: int = 3) -> NetworkEnsemble:
    return NetworkEnsemble(members, 3, (), (6,), 1, seed=0)


def test_losses() -> None:
    z, y = torch.randn(20, 1), torch.randint(0, 2, (20,))
    np.testing.assert_allclose(
        cross_entropy(z, y),
        np.log1p(np.exp(-np.where(y == 1, z[:, 0], -z[:, 0]))),
        rtol=1e-5,
        atol=1e-7,
    )
    several, classes = torch.randn(2, 20, 4), torch.randint(0, 4, (2, 20))
    expected = nn.functional.cross_entropy(
        several.reshape(40, 4), classes.reshape(40), reduction="none"
    )
    torch.testing.assert_close(cross_entropy(several, classes), expected.reshape(2, 20))


def test_a_network_never_trains_on_its_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in fold 0 change the networks of folds 1 and 2 only; with one evaluation nothing
    is selected."""
    monkeypatch.setattr(trainer, "_EVALUATIONS", 1)
    examples, found = make_examples(), []
    flipped = examples._replace(
        target=torch.where(examples.fold == 0, 1 - examples.target, examples.target)
    )
    for given in (examples, flipped):
        network = ensemble()
        train(network, given, FOLDS, **SETTINGS)
        found.append(network.numeric.detach())
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][2], found[1][2])


def test_every_network_is_as_it_was_at_its_best_on_its_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer, "PATIENCE", 1000)
    examples, network = make_examples(), ensemble()
    history = train(network, examples, FOLDS, **SETTINGS | {"epochs": 30, "learning_rate": 0.3})
    outputs = NetworkAverage(network).outputs(examples.features)
    for s, fold in enumerate(FOLDS):
        rows = examples.fold == fold
        loss = cross_entropy(outputs[s][rows], examples.target[rows]).mean()
        assert float(loss) == pytest.approx(float(history.losses[:, s].min()), abs=1e-5)
        assert history.best[s] == history.epochs[history.losses[:, s].argmin()]
    assert len(set(history.best.tolist())) > 1  # each at its own
    assert not network.training


def test_weights_count_in_training_and_selection() -> None:
    """An example of weight 0 is as one that is not there."""
    examples = make_examples()
    weight = torch.ones(120)
    weight[::4] = 0
    flipped = torch.where(weight == 0, 1 - examples.target, examples.target)
    found = []
    for target in (examples.target, flipped):
        network = ensemble()
        train(network, examples._replace(target=target, weight=weight), FOLDS, **SETTINGS)
        found.append(network.numeric.detach())
    assert torch.equal(*found)


def test_training_stops_where_nothing_improves() -> None:
    """Labels that are random cannot be learned."""
    examples = make_examples()
    examples = examples._replace(
        target=torch.randint(0, 2, (120,), generator=torch.Generator().manual_seed(3))
    )
    history = train(ensemble(), examples, FOLDS, **SETTINGS | {"epochs": 200, "learning_rate": 0.1})
    assert float(history.epochs[-1]) < 200
    later = history.losses[-trainer.PATIENCE :]
    assert (later >= history.losses[: -trainer.PATIENCE].min(0).values).all()
    assert history.planned == 200


@pytest.mark.parametrize(
    ("n", "steps", "planned"), [(300, 1000, 84), (3000, 1000, 20), (3000, 100, 5)]
)
def test_epochs_know_the_number_of_examples(
    n: int, steps: int, planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many steps of 16 examples, or of a fiftieth of them, as are needed; at least 5 epochs."""
    monkeypatch.setattr(trainer, "PATIENCE", 1)
    monkeypatch.setattr(trainer, "MIN_STEPS", steps)
    history = train(
        ensemble(), make_examples(n), FOLDS, **SETTINGS | {"epochs": None, "batch_size": None}
    )
    assert history.planned == planned


def test_progress_is_shown_at_every_evaluation() -> None:
    seen: list[str] = []
    history = train(ensemble(), make_examples(), FOLDS, **SETTINGS | {"progress": seen.append})
    losses = history.losses.mean(1).tolist()
    evaluations = zip(history.epochs.tolist(), losses, strict=True)
    assert seen == [
        f"epoch {epoch:.1f} of 3, validation loss {loss:.4f}" for epoch, loss in evaluations
    ]


def test_losses_that_are_never_finite_are_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"NaN.*scale.*lower"):
        train(
            ensemble(),
            make_examples(),
            FOLDS,
            **SETTINGS | {"learning_rate": 1e30, "epochs": 1, "batch_size": 1},
        )


def test_the_random_state_of_torch_is_left_alone_and_dropout_is_seeded() -> None:
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        network = ensemble()
        train(network, make_examples(), FOLDS, **SETTINGS)
        assert torch.equal(before, torch.random.get_rng_state())
        found.append(network.numeric.detach())
    assert torch.equal(*found)


def test_dropout_and_batch_norm_of_a_module() -> None:
    """Statistics of batches are learned in training, and selected with the weights."""
    torch.manual_seed(0)
    made = [
        nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)
        )
        for _ in "abc"
    ]
    network = NetworkCopies([Member(one, True) for one in made])
    examples = make_examples()
    history = train(network, examples, FOLDS, **SETTINGS | {"epochs": 20})
    assert not torch.equal(made[0][1].running_mean, torch.zeros(8))
    one, two = (NetworkAverage(network).outputs(examples.features) for _ in range(2))
    assert torch.equal(one, two)  # no dropout
    for s, fold in enumerate(FOLDS):
        rows = examples.fold == fold
        loss = cross_entropy(one[s][rows], examples.target[rows]).mean()
        assert float(loss) == pytest.approx(float(history.losses[:, s].min()), abs=1e-5)


def test_all_examples_are_evaluated_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    network: Any = ensemble().eval()
    examples = make_examples()
    whole = NetworkAverage(network).outputs(examples.features)
    monkeypatch.setattr(trainer, "CHUNK", 50)
    torch.testing.assert_close(NetworkAverage(network).outputs(examples.features), whole)


def test_networks_are_selected_by_the_weighted_validation_loss() -> None:
    examples, network = make_examples(), ensemble()
    weight = torch.rand(120, generator=torch.Generator().manual_seed(5)) ** 4
    history = train(network, examples._replace(weight=weight), FOLDS, **SETTINGS)
    outputs = NetworkAverage(network).outputs(examples.features)
    for s, fold in enumerate(FOLDS):
        rows = examples.fold == fold
        losses = cross_entropy(outputs[s][rows], examples.target[rows])
        expected = float((losses * weight[rows]).sum() / weight[rows].sum())
        assert float(history.losses[:, s].min()) == pytest.approx(expected, abs=1e-5)
        assert abs(expected - float(losses.mean())) > 1e-3  # the plain mean is another one


def test_weights_decay_and_biases_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients only decay moves parameters."""

    def no_gradient(network: Any, examples: Examples, index: torch.Tensor) -> None:
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(trainer, "_EVALUATIONS", 1)
    network = ensemble()
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    train(network, make_examples(), FOLDS, **SETTINGS, backward=no_gradient)
    for name, parameter in network.named_parameters():
        if "bias" in name:
            assert torch.equal(parameter, before[name])
        elif parameter.numel():
            assert float(parameter.norm()) < 0.99 * float(before[name].norm())
