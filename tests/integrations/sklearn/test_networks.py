"""Networks of the estimators: an ensemble equals its members, and modules of users are checked and
copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fairbound.integrations.sklearn._features import Features
from fairbound.integrations.sklearn._networks import (
    Member,
    NetworkCopies,
    NetworkEnsemble,
    copy_module,
    unwrap,
)


def some_features(S: int = 3, B: int = 7) -> Features:
    return Features(
        torch.randn(S, B, 2),
        torch.stack([torch.randint(0, 4, (S, B)), torch.randint(0, 2, (S, B))], 2),
    )


def test_an_ensemble_equals_its_networks_one_by_one() -> None:
    """Sums of embeddings and products of matrices, in numpy."""
    network = NetworkEnsemble(3, numeric=2, sizes=(4, 2), hidden=(5, 6), outputs=2, seed=0).eval()
    features = some_features()
    found = network(features)
    assert found.shape == (3, 7, 2)
    for s in range(3):
        numeric, codes = features.numeric[s].numpy(), features.codes[s].numpy()
        get = [
            p.detach()[s].numpy()
            for p in (network.numeric, network.embeddings, *network.weights, *network.biases)
        ]
        first, table, w1, w2, b0, b1, b2 = get
        h = numeric @ first + b0 + table[codes[:, 0]] + table[4 + codes[:, 1]]
        h = np.maximum(np.maximum(h, 0) @ w1 + b1, 0) @ w2 + b2
        np.testing.assert_allclose(found[s].detach(), h, atol=1e-5)


def test_a_network_without_hidden_layers_is_linear() -> None:
    network = NetworkEnsemble(2, numeric=2, sizes=(), hidden=(), outputs=1, seed=0).eval()
    X = torch.randn(2, 9, 2)
    found = network(Features(X, torch.empty(2, 9, 0, dtype=torch.int64)))
    torch.testing.assert_close(found, X @ network.numeric + network.biases[0])


def test_members_differ_and_follow_the_seed() -> None:
    one, same, other = (NetworkEnsemble(2, 3, (), (4,), 1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.numeric, same.numeric)
    assert not torch.equal(one.numeric, other.numeric)
    assert not torch.equal(one.numeric[0], one.numeric[1])


@pytest.mark.parametrize("kind", ["ensemble", "copies"])
def test_the_state_of_some_members_is_kept(kind: str) -> None:
    network: Any = NetworkEnsemble(2, 3, (), (4,), 1, seed=0)
    if kind == "copies":
        network = NetworkCopies(
            [Member(nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)), True) for _ in range(2)]
        )
    kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in kept.items()}
    with torch.no_grad():
        for p in network.parameters():
            p += 1
    network.copy_state(kept, torch.tensor([False, True]))
    for name, parameter in network.named_parameters():
        if kind == "ensemble":
            assert torch.equal(kept[name][0], before[name][0])
            assert torch.equal(kept[name][1], parameter[1])
        else:
            assert torch.equal(
                kept[name], before[name] if name.startswith("copies.0") else parameter
            )


def test_copies_of_a_module_are_its_own() -> None:
    module = nn.Linear(3, 1)
    copies = copy_module(module, torch.randn(5, 3), 1, 2)
    found = unwrap(copies)
    assert all(isinstance(one, nn.Linear) and one is not module for one in found)
    assert torch.equal(found[0].weight, module.weight)
    X = torch.randn(5, 3)
    empty = torch.empty(2, 5, 0, dtype=torch.int64)
    torch.testing.assert_close(
        copies(Features(X.expand(2, 5, 3), empty)), module(X).expand(2, 5, 1)
    )
    ensemble = NetworkEnsemble(2, 3, (), (4,), 1, seed=0)
    assert unwrap(ensemble) is ensemble


class Flat(nn.Linear):
    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return super().forward(X)[:, 0]


def test_a_module_may_return_one_number_per_example() -> None:
    copies = copy_module(Flat(3, 1), torch.randn(5, 3), 1, 2)
    assert copies(
        Features(torch.randn(2, 5, 3), torch.empty(2, 5, 0, dtype=torch.int64))
    ).shape == (2, 5, 1)


@pytest.mark.parametrize(
    ("module", "outputs", "sentence"),
    [
        (
            nn.Linear(3, 2),
            1,
            r"one output \(a logit\) per example; for 2 examples it returns \(2, 2\)",
        ),
        (
            nn.Linear(3, 2),
            3,
            r"3 logits per example, one per class; for 2 examples it returns \(2, 2\)",
        ),
        (nn.Linear(3, 1).double(), 1, r"trained in float32.*use module.float\(\)"),
        ("mlp", 1, "a torch module or a Keras model, got str"),
    ],
)
def test_modules_that_do_not_fit(module: Any, outputs: int, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        copy_module(module, torch.randn(5, 3), outputs, 2)
