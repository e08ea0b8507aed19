"""What a loop may do wrong is answered with a sentence: the value, and the remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from loops import BOTH, F64, FIXED, GHOSTS, WholeVectors, knowledge, network, same
from methods import METHODS, bce
from torch import Tensor, nn

from fairbound import ALGORITHMS, Constrained, MiniBatch, constraints
from fairbound.algorithms import SGD, SSLALM, DescentAscent, StochasticGhost, SwitchingSubgradient
from fairbound.core import Algorithm, Draw, MultiplierMethod

LIMIT = constraints.bounded_group_loss(["A", "B"], bound=0.5)
RATE = constraints.demographic_parity(["A", "B"], bound=0.1)
RECALL = constraints.minimum_rate(0.8, groups=["A", "B"], label=1)
MANY = {name: method for name, method in FIXED.items() if method.draws > 1}
GENERAL = {
    name: method for name, method in METHODS.items() if not isinstance(method, MultiplierMethod)
}
WHOLE = "wants the gradients of whole mini-batches"


def outputs_of(model: nn.Module, seed: int = 0) -> Tensor:
    outputs: Tensor = model(
        torch.randn(8, 4, dtype=F64, generator=torch.Generator().manual_seed(seed))
    )[:, 0]
    return outputs


def losses_of(model: nn.Module, seed: int = 0) -> Tensor:
    return bce(outputs_of(model, seed), torch.ones(8, dtype=F64))


GROUPS = torch.arange(8) % 2


@pytest.mark.parametrize("method", MANY.values(), ids=MANY)
def test_too_few_mini_batches_is_a_sentence(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, LIMIT, method)
    name = type(method).__name__
    with pytest.raises(
        ValueError, match=rf"{name} needs {method.draws} .*got 1; .*extra_batches="
    ) as said:
        fair.backward(losses_of(model), GROUPS)
    assert "SSLALM(samples=1)" in str(said.value)
    refusal = (
        rf"needs {method.draws} mini-batches a step"
        if isinstance(method, MultiplierMethod)
        else WHOLE
    )
    with pytest.raises(ValueError, match=rf"{name} {refusal}.*scale=1/k"):
        fair.accumulate(losses_of(model), GROUPS)
    assert fair.steps == 0


@pytest.mark.parametrize("method", GENERAL.values(), ids=GENERAL)
def test_a_general_method_does_not_accumulate(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, LIMIT, method)
    with pytest.raises(ValueError, match=rf"{type(method).__name__} {WHOLE}, .*takes apart"):
        fair.accumulate(losses_of(model), GROUPS)
    with pytest.raises(
        ValueError,
        match=rf"{type(method).__name__} .*loss; use fair.back",
    ):
        fair.loss(losses_of(model), GROUPS)


def test_too_many_mini_batches_is_a_sentence() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"DescentAscent needs 1 .*got 2"):
        Constrained(model, LIMIT, DescentAscent()).backward(
            losses_of(model), GROUPS, extra_batches=[MiniBatch(losses_of(model), GROUPS)]
        )


@pytest.mark.parametrize("method", GHOSTS.values(), ids=GHOSTS)
def test_ghost_names_its_closure(method: StochasticGhost) -> None:
    model = network()
    with pytest.raises(
        ValueError, match=r"StochasticGhost.* random size.*fair.backward_closure\(evaluate\)"
    ):
        Constrained(model, LIMIT, method).backward(losses_of(model), GROUPS)


BAD_ROWS: dict[str, tuple[str, Any, Callable[[Tensor], MiniBatch]]] = {
    "a mean": (
        r"per-example losses, \(B,\), got \(\); use a loss with reduction='none'",
        LIMIT,
        lambda u: MiniBatch(u.mean(), GROUPS),
    ),
    "a matrix": (
        r"got \(8, 1\); use a loss with reduction='none'",
        LIMIT,
        lambda u: MiniBatch(u[:, None], GROUPS),
    ),
    "a float": (
        "got float; use a loss with reduction='none'",
        LIMIT,
        lambda u: MiniBatch(u.mean().item(), GROUPS),
    ),  # type: ignore[arg-type]
    "no groups": ("pass groups=", LIMIT, lambda u: MiniBatch(u)),
    "float groups": (
        "groups must be a vector of whole numbers, got torch.float32",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS.float()),
    ),
    "short groups": (
        r"8 losses but groups has shape \(7,\)",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS[:7]),
    ),
    "a third group": (
        "groups must be 0 to 1, or -1 for none, found 0 to 2",
        LIMIT,
        lambda u: MiniBatch(u, torch.arange(8) % 3),
    ),
    "group -2": (
        "groups must be 0 to 1, or -1 for none, found -2 to -1",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS - 2),
    ),
    "unnamed column": (
        "columns \\['race', 'sex'\\]; a constraint must name one of them with by=",
        LIMIT,
        lambda u: MiniBatch(u, {"sex": GROUPS, "race": GROUPS}),
    ),
    "no outputs": (r"'A - B' needs outputs; pass outputs=", RATE, lambda u: MiniBatch(u, GROUPS)),
    "outputs of classes": (
        r"one logit per example.*name one of them, outcome=k",
        RATE,
        lambda u: MiniBatch(u, GROUPS, outputs=torch.zeros(8, 3)),
    ),
    "no labels": (
        r"needs labels; pass labels=",
        RECALL,
        lambda u: MiniBatch(u, GROUPS, outputs=torch.zeros(8)),
    ),
    "short labels": (
        r"8 losses but labels has shape \(4,\)",
        RECALL,
        lambda u: MiniBatch(u, GROUPS, torch.ones(4)),
    ),
    "objective by number": (
        "objective must be True or False",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS, objective=GROUPS),
    ),
    "weight of another batch": (
        r"8 losses but weight has shape \(3,\)",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS, weight=torch.ones(3)),
    ),
    "groups as texts": (
        r"groups must be a tensor, got ndarray.* in the order of the constraint's names",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS.numpy().astype(str)),
    ),  # type: ignore[arg-type]
    "groups on another device": (
        r"meta.*cpu; use groups.to\('cpu'\)",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS.to("meta")),
    ),
    "negative weights": (
        "weights must be >= 0, found -1",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS, weight=-torch.ones(8)),
    ),
    "empty objective": (
        "objective is False for every example .* leave the mini-batch out",
        LIMIT,
        lambda u: MiniBatch(u, GROUPS, objective=GROUPS > 1),
    ),
    "nothing": ("mini-batch.*empty", LIMIT, lambda u: MiniBatch(u[:0], GROUPS[:0])),
    "two values for one": (
        r"must give values of shape \(1,\), got shape \(2,\)",
        constraints.function(lambda rows: rows.losses[:2], "mean"),
        lambda u: MiniBatch(u),
    ),
}


# unknown groups in the middle of a run have a test below
LATER = BAD_ROWS.keys() - {"a third group", "group -2", "two values for one"}


@pytest.mark.parametrize(
    ("case", "steps"), [*((case, 0) for case in BAD_ROWS), *((case, 1) for case in sorted(LATER))]
)
def test_rows_that_do_not_fit_are_a_sentence(case: str, steps: int) -> None:
    """In the first mini-batch and in a later one."""
    sentence, limit, rows = BAD_ROWS[case]
    model = network()
    fair = Constrained(model, limit, DescentAscent())
    if steps:
        fair.backward(losses_of(model), GROUPS, labels=GROUPS, outputs=outputs_of(model))
        model.zero_grad()
    before = knowledge(fair)
    with pytest.raises((TypeError, ValueError), match=sentence):
        fair.backward(rows(losses_of(model)))
    assert same(before, knowledge(fair))
    assert fair.skipped == 0
    assert all(p.grad is None for p in model.parameters())


def test_a_function_of_outputs_that_are_not_there_is_told_so_and_a_scalar_is_taken() -> None:
    reads_outputs = constraints.function(lambda batch: batch.outputs.mean(), "mean output <= 0")
    with pytest.raises(AttributeError) as raised:
        reads_outputs.evaluate(MiniBatch(torch.ones(8)))
    assert raised.value.__notes__ == [
        "This mini-batch has no outputs, labels, groups: pass what 'mean output <= 0' reads."
    ]
    assert reads_outputs.evaluate(MiniBatch(torch.ones(8), outputs=torch.ones(8))).tolist() == [1.0]


@pytest.mark.parametrize("code", [2, 7, -2, -3, -4])
def test_a_group_that_no_limit_knows_is_never_taken_for_another(code: int) -> None:
    """Also in the middle of a run, where nothing is checked for speed: a sentence, or the step is
    skipped."""
    model = network()
    fair = Constrained(model, LIMIT, DescentAscent(eta=1.0))
    fair.backward(losses_of(model), GROUPS)
    before = knowledge(fair)
    groups = GROUPS.clone()
    groups[3] = code
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            assert fair.backward(losses_of(model), groups).skipped
        except ValueError as error:
            assert "groups must be 0 to 1" in str(error)  # noqa: PT017
    assert same(before, knowledge(fair))
    assert all(p.grad is None for p in model.parameters())


def no_graph_cases() -> dict[str, tuple[Any, Callable[[nn.Module], MiniBatch]]]:
    def outputs_apart(model: nn.Module) -> MiniBatch:
        return MiniBatch(losses_of(model), GROUPS, outputs=outputs_of(model).detach())

    return {
        "losses": (LIMIT, lambda model: MiniBatch(losses_of(model).detach(), GROUPS)),
        "losses beside a weight norm": (
            [LIMIT, constraints.weight_norm(1.0)],
            lambda model: MiniBatch(losses_of(model).detach(), GROUPS),
        ),
        "outputs of a rate": (RATE, outputs_apart),
    }


@pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize("case", no_graph_cases())
def test_what_carries_no_graph_is_a_sentence(method: Algorithm[Any], case: str) -> None:
    limit, rows = no_graph_cases()[case]
    model = network()
    fair = Constrained(model, limit, method)
    with pytest.raises(ValueError, match=r"no graph .*torch.no_grad\(\)"):
        fair.backward(rows(model))
    assert fair.steps == 0
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)
def test_a_graph_used_twice_is_a_sentence(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, LIMIT, method)
    losses = losses_of(model)
    fair.backward(losses, GROUPS)
    kept = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(kept) == 4
    with pytest.raises(ValueError, match=r"graph.*used before"):
        fair.backward(losses, GROUPS)
    assert fair.steps == 1
    assert same(kept, [p.grad for p in model.parameters() if p.grad is not None])


@dataclass(frozen=True, kw_only=True)
class Extragradient(WholeVectors):
    """Asks for a mini-batch at a second point."""

    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:
        ahead = x - 0.1 * draw.samples[0](x).grad(f=1.0)
        return -0.1 * draw.samples[0](ahead).grad(f=1.0), state


def test_a_second_point_is_a_sentence_and_changes_nothing() -> None:
    model = network()
    fair = Constrained(model, LIMIT, Extragradient())
    kept = [torch.full_like(p, 3.0) for p in model.parameters()]
    for p, grad in zip(model.parameters(), kept, strict=True):
        p.grad = grad
    with pytest.raises(ValueError, match=r"second point.*fairbound.run"):
        fair.backward(losses_of(model), GROUPS)
    assert all(p.grad is grad for p, grad in zip(model.parameters(), kept, strict=True))
    assert fair.steps == 0


@dataclass(frozen=True, kw_only=True)
class Averaged(WholeVectors):
    """The gradients of two mini-batches."""

    evaluates = ("fc", "fc")

    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:
        first, second = (sample(x).grad(f=1.0) for sample in draw.samples)
        return -(first + 3 * second), state


def test_gradients_of_two_mini_batches_are_apart() -> None:
    """A method may ask for both, where both have their graphs."""
    model = network()
    one, other = losses_of(model, seed=0), losses_of(model, seed=1)
    apart = [
        torch.autograd.grad(u.mean(), [*model.parameters()], retain_graph=True)
        for u in (one, other)
    ]
    Constrained(model, LIMIT, Averaged(inside=SSLALM(tau=1.0))).backward(
        one, GROUPS, extra_batches=[MiniBatch(other, GROUPS)]
    )
    for p, first, second in zip(model.parameters(), *apart, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, first + 3 * second, atol=1e-12)


def test_what_cannot_be_built_is_a_sentence() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"'A - B'.*give a mapping"):
        Constrained(model, [RATE, RATE], DescentAscent())
    with pytest.raises(ValueError, match="no constraints"):
        Constrained(model, [], DescentAscent())
    with pytest.raises(
        TypeError,
        match=r"Constrained.*SGD\(\), got.*SGD",
    ):
        Constrained(model, LIMIT, ALGORITHMS["SGD"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameters"):
        Constrained(model.requires_grad_(False), LIMIT, DescentAscent())
    with pytest.raises(ValueError, match=r"seed.*64 bits"):
        Constrained(network(), LIMIT, SwitchingSubgradient(), seed=1 << 70)


def test_what_was_not_begun_is_a_sentence() -> None:
    fair = Constrained(network(), LIMIT, SSLALM())
    with pytest.raises(ValueError, match=r"backward\(\) or start\(\) first"):
        _ = fair.primal_step
    with pytest.raises(ValueError, match=r"NaN.*start from"):
        fair.start(torch.full((8,), torch.nan), GROUPS)
    assert fair.multipliers == {}
    assert [*fair.constraints] == ["loss of A <= 0.5", "loss of B <= 0.5"]


def test_accumulating_is_orderly() -> None:
    model = network()
    fair = Constrained(model, LIMIT, DescentAscent())
    for _ in range(2):
        fair.accumulate(losses_of(model), GROUPS)
    with pytest.raises(ValueError, match=r"in progress.*backward"):
        fair.state_dict()
    fair.backward(losses_of(model), GROUPS)
    with pytest.raises(ValueError, match="finish it first"):
        fair.accumulate(losses_of(model), GROUPS)
    fair.backward(losses_of(model), GROUPS)
    assert fair.steps == 1


def test_names_follow_the_mapping() -> None:
    fair = Constrained(
        network(),
        {"race": LIMIT, "sex": constraints.bounded_group_loss(["A", "B"], bound=0.5)},
        SGD(),
    )
    names = [*fair.constraints]
    assert names == [f"{key}: loss of {group} <= 0.5" for key in ("race", "sex") for group in "AB"]
    assert all(first != second for first, second in pairwise(names))
