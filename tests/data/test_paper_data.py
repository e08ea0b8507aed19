"""The data of the paper's two experiments, from the file to the split, real and synthetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fairbound import ALGORITHMS, BatchSpec, Problem, Sampler, initial_points, make_functional, run
from fairbound.columns._attributes import Against, Attribute
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.data import load, paper_split, scaled
from fairbound.data._synthetic import population
from fairbound.metrics._counts import Counts

WHITE = Against("RAC1P", 1, ("white", "non-white"))
FEATURES = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX")


@dataclass(frozen=True)
class Expected:
    """What the paper says of an experiment's data."""

    group: str | Attribute
    features: tuple[str, ...]
    sizes: list[int]  # of the groups
    rates: list[float]  # of positive labels in the groups
    digits: float  # to which the rates are given
    parts: list[int]  # train, validation and test


EXPERIMENTS = {
    "OK": Expected(
        WHITE,
        FEATURES,
        [13_350, 4_567],
        [0.30794, 0.20758],
        5e-6,
        [14_333, 1_792, 1_792],
    ),
    "VA": Expected(
        "MAR",
        (*FEATURES[:3], *FEATURES[4:], "RAC1P"),
        [26_061, 931, 4_485, 903, 13_764],
        [0.5549, 0.3921, 0.4700, 0.3455, 0.2121],
        5e-5,
        [36_915, 4_614, 4_615],
    ),
}


@pytest.mark.parametrize("source", ["acs:OK", "synthetic:OK", "acs:VA", "synthetic:VA"])
def test_an_experiment(source: str, request: pytest.FixtureRequest) -> None:
    """Oklahoma by race, Virginia by marital status."""
    kind, state = source.split(":")
    if kind == "acs":
        request.getfixturevalue("acs_ok")  # skips where the data are absent
    expected = EXPERIMENTS[state]
    data = load(source).dataset(expected.group)
    assert (data.names, data.source) == (expected.features, source)
    ((name, groups),) = data.groups.items()
    counts = Counts.of(data.y, data.y, groups, names=data.levels[name])
    assert counts.sizes().tolist() == expected.sizes
    # synthetic labels vary: p < 1e-4
    chance = 4 * np.sqrt(0.25 / min(expected.sizes))
    tolerance = expected.digits if kind == "acs" else chance
    assert counts.rate("base_rate") == pytest.approx(expected.rates, abs=tolerance)
    split = paper_split(groups)
    assert [len(split.train), len(split.validation), len(split.test)] == expected.parts
    X = scaled(data, split).X[split.train].double()
    assert X.mean(0).abs().max() < 1e-5
    assert (X.std(0, correction=0) - 1).abs().max() < 1e-4


def test_plain_training_leaves_a_gap_on_the_synthetic_census() -> None:
    """The bound has something to close: SGD's loss differs by race, on its own rows and in the
    population."""
    data = load("synthetic:OK").dataset(WHITE)
    split = paper_split(data.groups["RAC1P"])
    standard = scaled(data, split)
    bound = pairwise_loss_parity(data.levels["RAC1P"], bound=0.005).bind(data.groups["RAC1P"])

    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(9, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(
            outputs, labels, reduction="none"
        )

    forward, _ = make_functional(net())
    problem = Problem(forward, loss, bound, standard)
    sampler = Sampler(split, bound.cells, BatchSpec(objective=64, cell=64))
    method = ALGORITHMS["SGD"](tau=0.1)
    result = run(
        problem, method, sampler.seeded(0), initial_points(net, [0]), 1_500, compile=False
    ).result()
    gap = float(problem.evaluate(result.x, split.train).c[0, 0]) + 0.005
    assert 0.03 < gap < 0.12

    columns = population("OK").draw(100_000, seed=1).columns
    p, white = (
        torch.as_tensor(population("OK").probability(columns)),
        torch.as_tensor(columns["RAC1P"] == 1),
    )
    X = torch.stack([torch.as_tensor(columns[name]).float() for name in FEATURES], 1)
    X = (X - data.X[split.train].mean(0)) / data.X[split.train].std(0, correction=0)
    # over the labels: cross-entropy is linear in them
    expected = loss(forward(result.x[0], X).double(), p)
    assert 0.03 < float(expected[white].mean() - expected[~white].mean()) < 0.12
