"""The class `Constraint`, functions of the user's own, several together, equalities, and what is
refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from loops import F64, network, seeded
from methods import classification
from tables import EXAMPLES, Free, table
from torch import nn

from fairbound import (
    Constrained,
    Dataset,
    MiniBatch,
    Problem,
    Sampler,
    Split,
    constraints,
    report_kkt,
    run,
)
from fairbound.algorithms import SGD, SSLALM, DescentAscent, Penalty
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import Constraint, FunctionConstraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._contrasts import Matrix, against_mean, each
from fairbound.core import Algorithm


def test_several_columns_are_told_by_name() -> None:
    """Each constraint reads the column that it names."""
    t = table(0)
    model = Free(t)
    both = [
        constraints.bounded_group_loss(3, bound=0.1, by="race"),
        constraints.bounded_group_loss(2, bound=0.2, by="sex"),
    ]
    columns = {"sex": torch.as_tensor(t.label), "race": torch.as_tensor(t.group)}
    found = report_kkt(model, both, [0], lambda _: MiniBatch(model.losses * 1, columns))
    expected = [t.loss[t.group == g].mean() - 0.1 for g in range(3)] + [
        t.loss[t.label == g].mean() - 0.2 for g in (0, 1)
    ]
    assert [*found.constraints.values()] == pytest.approx(expected)
    assert [len(m) for m in both[1].bind(columns).cells.examples] == [
        (t.label == g).sum() for g in (0, 1)
    ]
    with pytest.raises(ValueError, match=r"\['race', 'sex'\].*'0' has by=None"):
        FunctionConstraint(lambda batch: batch.losses[:1], ("0",), Cells.of_groups(["A"])).bind(
            columns
        )


def test_a_constraint_on_cells_of_one_s_own() -> None:
    """A group against everybody, and a group within a label against the label: overlapping cells of
    all four kinds."""
    t = table(1)
    cells = Cells((Cell("A", 0), Cell("all"), Cell("A, y=1", 0, 1), Cell("y=1", None, 1)))
    contrast = Matrix(
        ("A - all", "A - all among y=1"), torch.tensor([[1.0, -1, 0, 0], [0, 0, 1, -1]], dtype=F64)
    )
    own = Constraint(cells, contrast, torch.tensor([0.1, 0.2], dtype=F64))
    one, everybody = t.group == 0, np.ones(EXAMPLES, bool)
    means = [
        t.mean(t.loss, chosen, True)
        for chosen in (one, everybody, one & (t.label == 1), t.label == 1)
    ]
    expected = [means[0] - means[1] - 0.1, means[2] - means[3] - 0.2]
    losses, groups, labels, weight = (
        torch.as_tensor(part) for part in (t.loss, t.group, t.label, t.weight)
    )
    assert own.evaluate(MiniBatch(losses, groups, labels, weight=weight)).tolist() == pytest.approx(
        expected
    )


def test_absolute_rows_are_the_larger_of_the_two_sides() -> None:
    both = constraints.loss_parity(3, bound=0.05)
    one = replace(
        both,
        contrast=against_mean(["0", "1", "2"], two_sided=False),
        bound=both.bound[::2],
        names=both.names[::2],
        absolute=True,
    )
    t = table(0)
    batch = MiniBatch(torch.as_tensor(t.loss), torch.as_tensor(t.group))
    assert torch.allclose(one.evaluate(batch), both.evaluate(batch).reshape(3, 2).amax(1))
    means = torch.tensor([0.2, 0.5, 0.1], dtype=F64)
    expected = torch.autograd.functional.jacobian(one.value, means)
    assert torch.allclose(one.jacobian(means, torch.eye(3, dtype=F64)), expected)
    w = torch.tensor([0.3, 1.0, 2.0], dtype=F64)
    assert torch.allclose(one.mean_weights(means, w), w @ expected)


def test_a_combination_keeps_each_part() -> None:
    t = table(2)
    losses, logits, labels = (torch.as_tensor(part) for part in (t.loss, t.logit, t.label))
    group, other = torch.as_tensor(t.group).clamp(min=0), (torch.arange(EXAMPLES) < 40).long()
    norm = FunctionConstraint(
        lambda batch: (batch.outputs.square().mean() - 2).reshape(1), ("norm",)
    )
    parts = (
        constraints.pairwise_loss_parity(3, bound=0.1, by="g"),
        norm,
        constraints.demographic_parity(2, bound=0.2, by="h"),
    )
    columns = {"g": group, "h": other}
    combined = constraints.combine(*parts)
    assert combined.names == sum((part.names for part in parts), ())
    batch = MiniBatch(losses, columns, labels, logits)
    expected = torch.cat([torch.as_tensor(part.evaluate(batch)) for part in parts])
    assert torch.allclose(combined.evaluate(batch)[1:], expected)
    assert not combined.averages
    assert constraints.combine(parts[0], parts[2]).averages

    whole = combined.bind(columns)
    data = Dataset(torch.stack([logits, losses], 1), labels.double(), columns)
    problem = Problem(lambda x, X: X[:, 0] * x[0], lambda out, y: out.square(), whole, data)
    found = problem.evaluate(torch.ones(1, dtype=F64), torch.arange(EXAMPLES))
    again = combined.evaluate(MiniBatch(logits.square(), columns, labels, logits))
    assert torch.allclose(torch.cat([found.loss, found.c[0]]), again)


# Equalities ---------------------------------------------------------------------------------------


def equal_losses() -> ConstraintSet:
    """Equal losses of two groups, beside a bound that is never reached: rows (=, <=, <=)."""
    gap = Matrix(("A - B",), torch.tensor([[1.0, -1.0]], dtype=F64))
    equal = Constraint(Cells.of_groups(["A", "B"]), gap, torch.zeros(1, dtype=F64), equality=True)
    return ConstraintSet((equal, constraints.bounded_group_loss(["A", "B"], bound=9.0)))


def test_equality_rows_are_told() -> None:
    assert equal_losses().equality is not None
    assert equal_losses().equality.tolist() == [True, False, False]
    assert ConstraintSet.of(constraints.loss_parity(2, bound=0.1)).equality is None
    assert ConstraintSet.of(
        constraints.function(lambda b: b.losses[:1], "own", equality=True)
    ).equality.tolist() == [True]


@pytest.mark.parametrize(
    "method", [DescentAscent(eta=1.0), SSLALM(eta=1.0, samples=1), Penalty()], ids=type
)
def test_equality_rows_reach_the_algorithm(method: Algorithm) -> None:
    """In `run` and in a loop: a gap of either sign moves a multiplier of that sign, which an
    inequality's cannot."""
    problem, _, x0 = classification()
    own = equal_losses().bind(problem.data.groups["group"])
    problem = replace(problem, constraint=own)
    sampler = Sampler(Split.all_train(problem.data.rows), own.cells)
    masks = []

    class Watched(type(method)):  # type: ignore[misc]
        def start(self, like, m, equality=None, first=None):  # type: ignore[no-untyped-def]
            masks.append(equality)
            return super().start(like, m, equality, first)

    watched = Watched(**{name: getattr(method, name) for name in method.__dataclass_fields__})
    result = run(problem, watched, sampler, x0[0], 5).result()
    model = network()
    fair = Constrained(model, equal_losses(), watched)
    for sign in (1.0, -1.0):
        losses = model(torch.ones(2, 4, dtype=F64))[:, 0] * 0 + torch.tensor(
            [sign, 2.0 * sign], dtype=F64
        )
        fair.backward(losses, torch.tensor([0, 1]))
        if sign > 0 and fair.multipliers:
            assert fair.multipliers["A - B"] < 0
            assert fair.multipliers["loss of A <= 9"] >= 0
    given = [mask.tolist() for mask in masks if mask is not None]  # the trial of a step has none
    # in `run`, and in a loop for the form of a state and at its start
    assert given == [[True, False, False]] * 3
    assert result.skipped.sum() == 0


# In a loop ----------------------------------------------------------------------------------------

WHOLE_NUMBERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", WHOLE_NUMBERS, ids=str)
def test_groups_may_be_whole_numbers_of_any_kind(dtype: torch.dtype) -> None:
    t = table(0)
    sex = torch.as_tensor(t.label).to(dtype)
    model = Free(t)
    fair = Constrained(model, constraints.bounded_group_loss(2, bound=0.0), SGD())
    fair.backward(model.losses * 1, sex)
    assert [*fair.constraints.values()] == pytest.approx(
        [t.loss[t.label == g].mean() for g in (0, 1)]
    )


def variations() -> dict[str, MiniBatch]:
    """Mini-batches one after another, each of which differs from the one before it in one thing
    only."""
    t = table(4)
    losses, groups = torch.tensor(t.loss), torch.tensor(t.group)
    some = torch.arange(EXAMPLES) % 4 > 0
    return {
        "first": MiniBatch(losses, groups),
        "other losses": MiniBatch(losses.flip(0), groups),
        "an objective": MiniBatch(losses, groups, objective=some),
        "weights like it": MiniBatch(losses, groups, weight=some.double()),
        "no weights": MiniBatch(losses, groups),
        "other weights": MiniBatch(losses, groups, weight=torch.tensor(t.weight)),
        "both": MiniBatch(losses, groups, weight=torch.tensor(t.weight), objective=some),
        "fewer examples": MiniBatch(losses[:30], groups[:30]),
        "other groups": MiniBatch(losses[:30], groups[:30].flip(0)),
        "a group less": MiniBatch(losses[:30], groups[:30].clamp(max=1)),
        "float32": MiniBatch(losses[:30].float(), groups[:30].clamp(max=1)),
        "last": MiniBatch(losses, groups),
    }


@pytest.mark.parametrize(
    "constraint",
    [constraints.bounded_group_loss(3, bound=0.1), constraints.loss_parity(3, bound=0.1)],
)
def test_what_was_laid_out_before_does_not_stick(constraint: Constraint) -> None:
    """A loop that saw other mini-batches reads the next one as a fresh loop does."""
    model = nn.Linear(1, 1, bias=False).double()
    fair = Constrained(model, constraint, SGD(tau=1.0))
    for name, batch in variations().items():
        found = []
        for loop in (fair, Constrained(model, constraint, SGD(tau=1.0))):
            model.zero_grad()
            loop.backward(batch._replace(losses=batch.losses * model.weight[0, 0]))
            assert model.weight.grad is not None
            found.append((loop.constraints, model.weight.grad.item()))
        (old, old_gradient), (new, new_gradient) = found
        assert old_gradient == pytest.approx(new_gradient, abs=1e-12), name
        if name in ("a group less", "float32") and constraint.contrast.shares_of_mean is not None:
            # the mean of all has the running mean of the absent group, which a fresh loop does not
            # know
            continue
        for key, value in new.items():  # what a fresh loop cannot tell, the old one remembers
            assert np.isnan(value) or old[key] == pytest.approx(value, abs=1e-12), name


# Functions ----------------------------------------------------------------------------------------


def test_the_weight_norm_and_its_gradient() -> None:
    """|x| - bound, whose gradient is x / |x|: descent on it alone shrinks all parameters alike."""
    model = network()
    x = torch.cat([p.detach().flatten() for p in model.parameters()])
    fair = Constrained(model, constraints.weight_norm(0.5), DescentAscent(eta=1.0))
    nothing = 0 * model(torch.ones(2, 4, dtype=F64))[:, 0]
    seen = fair.backward(nothing)
    assert float(seen.c) == pytest.approx(float(x.norm()) - 0.5)
    y = fair.multipliers["weight norm <= 0.5"]
    assert y == pytest.approx(float(x.norm()) - 0.5)
    model.zero_grad()
    fair.backward(MiniBatch(0 * model(torch.ones(2, 4, dtype=F64))[:, 0]))
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert torch.allclose(found, y * x / x.norm(), atol=1e-12)


def test_the_weight_norm_is_of_trained_parameters_only() -> None:
    model = network()
    model[0].requires_grad_(False)  # type: ignore[index]
    trained = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    seen = Constrained(model, constraints.weight_norm(0.5), SGD()).backward(
        model(torch.ones(2, 4, dtype=F64))[:, 0]
    )
    assert float(seen.c) == pytest.approx(float(trained.norm()) - 0.5)


def test_a_weight_norm_of_zero_has_a_finite_gradient() -> None:
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    fair = Constrained(model, constraints.weight_norm(0.5), DescentAscent())
    assert not fair.backward((model(torch.ones(2, 2)) - 1)[:, 0].square()).skipped
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_function_of_one_s_own() -> None:
    """It sees losses, outputs, labels, groups and parameters, and may give several values."""
    model = seeded(lambda: nn.Linear(3, 1)).double()

    def spread(batch: MiniBatch) -> torch.Tensor:
        assert batch.outputs is not None
        assert batch.labels is not None
        return torch.stack(
            [
                batch.outputs.var() - 1,
                (batch.outputs * batch.labels).mean(),
                batch.parameters[1].sum(),
            ]
        )

    own = constraints.function(spread, "variance", "product", "intercept")
    X = torch.randn(9, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    outputs, labels = model(X)[:, 0], torch.arange(9, dtype=F64)
    fair = Constrained(model, own, SGD())
    seen = fair.backward(outputs.square(), outputs=outputs, labels=labels)
    out = outputs.detach()
    expected = [float(out.var() - 1), float((out * labels).mean()), float(model.bias.detach())]
    assert seen.c.tolist() == pytest.approx(expected)
    assert [*fair.constraints] == ["variance", "product", "intercept"]


# What is refused ----------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a negative bound": (
        lambda: constraints.loss_parity(2, bound=-0.1),
        ValueError,
        "finite and >= 0, got -0.1",
    ),
    "a bound that is NaN": (
        lambda: constraints.demographic_parity(2, bound=float("nan")),
        ValueError,
        "got nan",
    ),
    "an infinite bound": (
        lambda: constraints.bounded_group_loss(2, bound=float("inf")),
        ValueError,
        "must be finite",
    ),
    "groups as a string": (
        lambda: constraints.loss_parity("AB", bound=0.1),
        TypeError,
        r"got the string 'AB'; use \[",
    ),
    "a name twice": (
        lambda: constraints.loss_parity(["A", "A"], bound=0.1),
        ValueError,
        "distinct names",
    ),
    "one group": (
        lambda: constraints.loss_parity(["A"], bound=0.1),
        ValueError,
        "at least two groups",
    ),
    "one group in pairs": (
        lambda: constraints.demographic_parity(1, bound=0.1),
        ValueError,
        "two groups, got 1",
    ),
    "a rate above 1": (
        lambda: constraints.minimum_rate(1.2),
        ValueError,
        "between 0 and 1, got 1.2",
    ),
    "a rate that is NaN": (
        lambda: constraints.maximum_rate(float("nan")),
        ValueError,
        "between 0 and 1, got nan",
    ),
    "an unknown group": (
        lambda: constraints.minimum_rate(0.5, groups=["A", "B"], group="C"),
        ValueError,
        r"no group 'C'; the groups are \['A', 'B'\]",
    ),
    "a group beyond": (
        lambda: constraints.minimum_rate(0.5, groups=2, group=2),
        ValueError,
        "there is no group 2",
    ),
    "a group without groups": (
        lambda: constraints.minimum_rate(0.5, group="A"),
        ValueError,
        "group='A' needs groups=",
    ),
    "a norm of 0": (lambda: constraints.weight_norm(0.0), ValueError, "finite and > 0, got 0.0"),
    "a function without a name": (
        lambda: constraints.function(lambda batch: batch.losses),
        TypeError,
        "one name",
    ),
    "a name that is a string": (
        lambda: FunctionConstraint(lambda batch: batch.losses, "ab"),
        TypeError,
        "got 'ab'",
    ),  # type: ignore[arg-type]
    "no labels over a dataset": (
        lambda: constraints.equal_opportunity(2, bound=0.1).bind(torch.arange(2)),
        ValueError,
        "give labels=",
    ),
    "labels of another dataset": (
        lambda: constraints.equal_opportunity(2, bound=0.1).bind(torch.arange(2), torch.ones(3)),
        ValueError,
        r"\(2,\) but labels \(3,\)",
    ),
    "a contrast of another size": (
        lambda: Constraint(Cells.of_groups(["A"]), each(["a", "b"]), torch.zeros(2)),
        ValueError,
        "as many rows and cells and as many bounds, got 2 x 2",
    ),
    "bounds of another size": (
        lambda: Constraint(Cells.of_groups(["A"]), each(["a"]), torch.zeros(2)),
        ValueError,
        r"got 1 x 1 and \(2,\)",
    ),
    "a statistic of nothing known": (
        lambda: constraints.equal_opportunity(2, bound=0.1, of="gain"),
        ValueError,
        'must be "rate" or "loss", got \'gain\'',
    ),  # type: ignore[arg-type]
    "nothing to combine": (lambda: constraints.combine(), ValueError, "at least one"),
    "no constraint": (lambda: ConstraintSet.of([]), ValueError, "there are no constraints"),
    "a name for a constraint": (
        lambda: ConstraintSet.of("loss_parity"),
        TypeError,
        "as constraints.loss_parity",
    ),  # type: ignore[arg-type]
    "outputs of classes": (
        lambda: constraints.soft_positive(torch.zeros(4, 3), torch.zeros(4)),
        ValueError,
        "one logit per example",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_constraint_is_a_sentence(case: str) -> None:
    build, error, sentence = BAD[case]
    with pytest.raises(error, match=sentence):
        build()


def test_a_class_that_is_not_there_is_a_sentence() -> None:
    fair = Constrained(network(), constraints.demographic_parity(2, bound=0.1, outcome=3), SGD())
    with pytest.raises(ValueError, match=r"outcome=3 .*\(examples, classes\).*3 classes"):
        fair.backward(torch.ones(4), torch.arange(4) % 2, outputs=torch.ones(4, 3))


def test_two_columns_in_one_tensor_are_a_sentence() -> None:
    """Constraints that name different columns cannot both mean the one that is given."""
    both = [
        constraints.bounded_group_loss(2, bound=0.5, by="race"),
        constraints.pairwise_loss_parity(2, bound=0.5, by="sex"),
    ]
    model = network()
    fair = Constrained(model, both, SGD())
    with pytest.raises(ValueError, match=r"race.*sex|sex.*race"):
        fair.backward(model(torch.ones(4, 4, dtype=F64))[:, 0], torch.arange(4) % 2)
