"""docs/background/capabilities.md is true: every "yes" of ours has a test, and what peers are said to have is in them.

The tests below stand behind those rows of the table that no other file is about.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import SSLALM, Constrained, DescentAscent, constraints
from fairbound.core import Algorithm

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "background" / "capabilities.md").read_text()
HEAD, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")
]
RNG = torch.Generator().manual_seed(0)
X = torch.randn(60, 2, generator=RNG)
Y = (X[:, 0] + 0.3 * torch.randn(60, generator=RNG) > 0).float()
GROUP = torch.arange(60) % 3


# The table ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_yes_has_a_test_and_a_no_has_none(row: list[str]) -> None:
    assert len(row) == len(HEAD)
    ours, named = row[1], row[-1].strip("`")
    assert re.match(r"(yes|no)\b", ours)
    if ours.startswith("no"):
        assert named == ""
        return
    path, _, test = named.partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), flags=re.MULTILINE), named


def test_the_table_has_the_rows_that_users_ask_for() -> None:
    text = " ".join(row[0] for row in ROWS)
    for word in (
        "equality", "proxy", "indexed", "implicit", "dual step for each", "dual optimizers", "restarts",
        "penalty updates", "switching", "SQP", "DDP", "FSDP", "resume by name", "KKT",
    ):  # fmt: skip
        assert word in text, word


def sources(package: ModuleType) -> str:
    found = [package.__file__] if package.__file__ else []
    found += [
        spec.origin
        for part in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if (spec := part.module_finder.find_spec(part.name, None)) and spec.origin  # type: ignore[call-arg]
    ]
    return "\n".join(Path(path).read_text() for path in found)


@pytest.mark.parametrize(
    ("peer", "package"), [("Cooper", "cooper"), ("humancompatible-train", "humancompatible.train")]
)
def test_what_a_peer_is_said_to_have_is_in_it(peer: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{peer} is not installed: pip install -r benchmarks/requirements.txt")
    text = sources(importlib.import_module(package))
    names = re.findall(r"`(\w+)[^`]*`", " ".join(row[HEAD.index(peer)] for row in ROWS))
    assert len(names) > 4
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


# Rows of it -----------------------------------------------------------------------------------------------------------


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(2, 1)


def losses_of(model: nn.Module, X: Tensor = X, y: Tensor = Y) -> Tensor:
    return bce(model(X)[:, 0], y, reduction="none")


def gradient_of(value: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters())))


def assert_grads(model: nn.Module, expected: list[Tensor]) -> None:
    for p, g in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, g, atol=1e-6)


def test_a_proxy_moves_the_multiplier_by_the_exact_rate() -> None:
    model = linear()
    fair = Constrained(model, constraints.maximum_rate(0.05, proxy=True), DescentAscent(eta=2.0))
    logits = model(X)[:, 0]
    exact, soft = (logits > 0).float().mean() - 0.05, logits.sigmoid().mean() - 0.05
    assert exact > 0
    assert (exact - soft).abs() > 0.01
    fair.backward(losses_of(model), outputs=logits)
    (multiplier,) = fair.multipliers.values()
    assert multiplier == pytest.approx(2.0 * exact.item(), rel=1e-5)

    model.zero_grad()
    logits = model(X)[:, 0]
    fair.backward(losses_of(model), outputs=logits)
    assert_grads(model, gradient_of(losses_of(model).mean() + multiplier * model(X).sigmoid().mean(), model))


def test_a_value_may_come_from_another_batch() -> None:
    model, second = linear(), torch.randn(20, 2, generator=torch.Generator().manual_seed(3))
    fair = Constrained(model, constraints.given("second task"), DescentAscent(eta=0.5))
    for _ in range(2):  # a step with a multiplier of 0, and one with that of the first
        model.zero_grad()
        before = fair.multipliers["second task"] if fair.steps else 0.0
        fair.backward(losses_of(model), values={"second task": model(second).square().mean() - 0.01})
        assert_grads(model, gradient_of(losses_of(model).mean() + before * model(second).square().mean(), model))
    value = model(second).square().mean().item() - 0.01
    assert value > 0
    assert fair.multipliers["second task"] == pytest.approx(2 * 0.5 * value, rel=1e-5)


@pytest.mark.parametrize(
    "method", [DescentAscent(eta=0.5), SSLALM(eta=0.5, mu=0.0, rho=0.0, samples=1, slack_from_first=False)]
)
def test_what_is_not_observed_stays_as_it_was(method: Algorithm[Any]) -> None:
    model = linear()
    fair = Constrained(model, constraints.given("a", "b"), method)
    fair.backward(losses_of(model), values={name: -model.weight.sum() - 1 for name in "ab"})
    before, violation = fair.multipliers["a"], fair.constraints["a"]
    values = {"a": -model.weight.sum() + 5}
    model.zero_grad()
    fair.backward(losses_of(model), values=values)
    assert fair.multipliers["b"] == before
    assert fair.multipliers["a"] > before
    assert fair.constraints["b"] == violation
    assert (fair.observed, fair.ages) == ({"a": 2, "b": 1}, {"a": 0, "b": 1})
    weight = fair.multipliers["a"] if isinstance(method, SSLALM) else before  # SSL-ALM moves the multipliers first
    assert_grads(model, gradient_of(losses_of(model).mean() - weight * model.weight.sum(), model))


def test_a_group_that_is_absent_is_compared_by_its_running_mean() -> None:
    model = linear()
    fair = Constrained(model, constraints.loss_parity(3, bound=0.1), DescentAscent(eta=0.5))
    fair.backward(losses_of(model), GROUP)
    means = [losses_of(model)[g == GROUP].mean().item() for g in range(3)]
    assert fair.constraints["0 - mean"] == pytest.approx(means[0] - sum(means) / 3 - 0.1, abs=1e-6)

    present = (GROUP != 2).nonzero()[:20, 0]
    fair.backward(losses_of(model, X[present], Y[present]), GROUP[present])
    now = [losses_of(model, X[present], Y[present])[GROUP[present] == g].mean().item() for g in range(2)]
    assert fair.constraints["0 - mean"] == pytest.approx(now[0] - (now[0] + now[1] + means[2]) / 3 - 0.1, abs=1e-6)
    assert (fair.ages["0 - mean"], fair.ages["2 - mean"]) == (0, 1)


def test_one_bound_and_one_step_for_each_constraint() -> None:
    model = linear()
    bounds, steps = [0.1, 0.2, 0.05], (0.5, 0.25, 1.0)
    fair = Constrained(model, constraints.bounded_group_loss(3, bound=bounds), DescentAscent(eta=steps))
    fair.backward(losses_of(model), GROUP)
    for g, multiplier in enumerate(fair.multipliers.values()):
        violation = losses_of(model)[g == GROUP].mean().item() - bounds[g]
        assert violation > 0
        assert multiplier == pytest.approx(steps[g] * violation, rel=1e-5)
