"""Every named constraint against a transcription of its formula in numpy, in a mini-batch and over
a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tables import EXAMPLES, GROUPS, Free, Table, table

from fairbound import KKT, Dataset, MiniBatch, Problem, check_constraint, constraints, report_kkt
from fairbound.constraints._contrasts import against_mean, against_pooled, pairwise
from fairbound.constraints._statistics import Statistic

NAMES = ["A", "B", "C"]
BOUND = 0.07
F64 = torch.float64

Values = Callable[[Table], np.ndarray]
Formula = Callable[[Table, np.ndarray, bool], list[float]]


# What is averaged
def loss(t: Table) -> np.ndarray:
    return t.loss


def soft(t: Table) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-t.logit)))


def hard(t: Table) -> np.ndarray:
    return np.asarray(t.logit > 0, dtype=float)


def soft_class(t: Table) -> np.ndarray:
    return np.asarray(np.exp(t.logits[:, 2]) / np.exp(t.logits).sum(1))


def hard_class(t: Table) -> np.ndarray:
    return np.asarray(t.logits.argmax(1) == 2, dtype=float)


def gaps(means: list[float]) -> list[float]:
    """|a - b| of all pairs, each as two rows."""
    return [
        sign * (means[i] - means[j]) for i, j in combinations(range(GROUPS), 2) for sign in (1, -1)
    ]


def from_mean(means: list[float], shares: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 3)) -> list[float]:
    center = float(np.dot(shares, means))
    return [sign * (mean - center) for mean in means for sign in (1, -1)]


def odds(t: Table, values: np.ndarray, weighted: bool) -> list[float]:
    """|gap among positives| + |gap among negatives| of all pairs, each as four rows."""
    positive, negative = (t.by_group(values, weighted, t.label == y) for y in (1, 0))
    return [
        s * (positive[i] - positive[j]) + u * (negative[i] - negative[j])
        for i, j in combinations(range(GROUPS), 2)
        for s, u in product((1, -1), repeat=2)
    ]


class Case(NamedTuple):
    constraint: Any
    formula: Formula  # what must be at most the bound
    bound: float
    surrogate: Values
    exact: Values
    labels: str = "label"
    outputs: str = "logit"


def rate(constraint: Any, formula: Formula, bound: float = BOUND) -> Case:
    return Case(constraint, formula, bound, soft, hard)


def of_class(constraint: Any, formula: Formula, bound: float = BOUND) -> Case:
    return Case(constraint, formula, bound, soft_class, hard_class, "kind", "logits")


def of_loss(constraint: Any, formula: Formula, bound: float = BOUND) -> Case:
    return Case(constraint, formula, bound, loss, loss)


CASES = {
    "loss parity": of_loss(
        constraints.loss_parity(NAMES, bound=BOUND), lambda t, v, w: from_mean(t.by_group(v, w))
    ),
    "loss parity from the pooled mean": of_loss(
        constraints.loss_parity(NAMES, bound=BOUND, contrast=against_pooled([0.5, 0.3, 0.2])),
        lambda t, v, w: from_mean(t.by_group(v, w), (0.5, 0.3, 0.2)),
    ),
    "loss parity of pairs": of_loss(
        constraints.loss_parity(NAMES, bound=BOUND, contrast=pairwise),
        lambda t, v, w: gaps(t.by_group(v, w)),
    ),
    "pairwise loss parity": of_loss(
        constraints.pairwise_loss_parity(NAMES, bound=BOUND), lambda t, v, w: gaps(t.by_group(v, w))
    ),
    "equal opportunity of losses": of_loss(
        constraints.equal_opportunity(NAMES, bound=BOUND, of="loss"),
        lambda t, v, w: gaps(t.by_group(v, w, t.label == 1)),
    ),
    "equalized odds of losses": of_loss(
        constraints.equalized_odds(NAMES, bound=BOUND, of="loss"), odds
    ),
    "equalized odds": rate(constraints.equalized_odds(NAMES, bound=BOUND), odds),
    "bounded group loss": of_loss(
        constraints.bounded_group_loss(NAMES, bound=BOUND), lambda t, v, w: t.by_group(v, w)
    ),
    "demographic parity": rate(
        constraints.demographic_parity(NAMES, bound=BOUND), lambda t, v, w: gaps(t.by_group(v, w))
    ),
    "demographic parity from the mean": rate(
        constraints.demographic_parity(NAMES, bound=BOUND, contrast=against_mean),
        lambda t, v, w: from_mean(t.by_group(v, w)),
    ),
    "ratios of rates": rate(
        constraints.demographic_parity_ratio(NAMES, bound=0.8),
        lambda t, v, w: [
            0.8 * a - b for p in combinations(t.by_group(v, w), 2) for a, b in (p, p[::-1])
        ],
        0.0,
    ),
    "demographic parity of a class": of_class(
        constraints.demographic_parity(NAMES, bound=BOUND, outcome=2),
        lambda t, v, w: gaps(t.by_group(v, w)),
    ),
    "equal opportunity": rate(
        constraints.equal_opportunity(NAMES, bound=BOUND),
        lambda t, v, w: gaps(t.by_group(v, w, t.label == 1)),
    ),
    "recall of a class": of_class(
        constraints.equal_opportunity(NAMES, bound=BOUND, outcome=2),
        lambda t, v, w: gaps(t.by_group(v, w, t.kind == 2)),
    ),
    "false positive parity": rate(
        constraints.false_positive_parity(NAMES, bound=BOUND),
        lambda t, v, w: gaps(t.by_group(v, w, t.label == 0)),
    ),
    "a minimum recall of B": rate(
        constraints.minimum_rate(0.8, groups=NAMES, group="B", label=1),
        lambda t, v, w: [-t.by_group(v, w, t.label == 1)[1]],
        -0.8,
    ),
    "a minimum rate of every group": rate(
        constraints.minimum_rate(0.3, groups=3),
        lambda t, v, w: [-mean for mean in t.by_group(v, w)],
        -0.3,
    ),
    "a maximum rate of all": rate(
        constraints.maximum_rate(0.4), lambda t, v, w: [t.mean(v, np.ones(EXAMPLES, bool), w)], 0.4
    ),
    "a maximum false positive rate": rate(
        constraints.maximum_rate(0.1, label=0), lambda t, v, w: [t.mean(v, t.label == 0, w)], 0.1
    ),
    "a minimum rate of a class in group 1": of_class(
        constraints.minimum_rate(0.5, groups=NAMES, group=1, outcome=2),
        lambda t, v, w: [-t.by_group(v, w)[1]],
        -0.5,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def batch_of(model: Free, t: Table, case: Case, weighted: bool = False) -> MiniBatch:
    labels, weight = torch.as_tensor(getattr(t, case.labels)).double(), torch.as_tensor(t.weight)
    return MiniBatch(
        model.losses * 1,
        torch.as_tensor(t.group),
        labels,
        model.outputs * 1,
        weight if weighted else None,
    )


def found_in(t: Table, case: Case, weighted: bool = False) -> KKT:
    """All examples as one mini-batch."""
    model = Free(t, case.outputs)
    return report_kkt(model, case.constraint, [t], lambda t: batch_of(model, t, case, weighted))


@every_case
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_a_constraint_is_its_formula(case: Case, weighted: bool) -> None:
    """As it is trained and as it is reported; examples of no group are among the others."""
    for seed in range(3):
        t = table(seed)
        found = found_in(t, case, weighted)
        for values, own in ((case.surrogate, found.constraints), (case.exact, found.exact)):
            expected = np.array(case.formula(t, values(t), weighted)) - case.bound
            assert [*own.values()] == pytest.approx(expected, abs=1e-12)
        batch = batch_of(Free(t, case.outputs), t, case, weighted)
        assert case.constraint.evaluate(batch).tolist() == pytest.approx(
            [*found.constraints.values()], abs=1e-12
        )
        assert case.constraint.evaluate(batch, exact=True).tolist() == pytest.approx(
            [*found.exact.values()], abs=1e-12
        )
        assert tuple(found.constraints) == case.constraint.names
        assert found.loss == pytest.approx(t.mean(t.loss, np.ones(EXAMPLES, bool), weighted))


@every_case
def test_over_a_dataset_it_is_the_same(case: Case) -> None:
    """`bind` and a `Problem` whose outputs are the logits and whose losses are the table's."""
    t = table(9)
    outputs = torch.tensor(getattr(t, case.outputs)).reshape(EXAMPLES, -1)
    columns = outputs.shape[1]
    X = torch.cat([outputs, torch.tensor(t.loss)[:, None]], 1)
    labels = torch.as_tensor(getattr(t, case.labels)).double()
    constraint = case.constraint.bind(torch.as_tensor(t.group), labels)
    problem = Problem(
        lambda x, inputs: inputs * x,
        lambda out, y: out[:, columns],
        _of_columns(constraint, columns),
        Dataset(X, labels),
    )
    c = problem.evaluate(torch.ones(1, dtype=F64), torch.arange(EXAMPLES)).c[0]
    assert constraint.names == case.constraint.names
    assert [*found_in(t, case).constraints.values()] == pytest.approx(c.tolist(), abs=1e-12)


def _of_columns(constraint: Any, columns: int) -> Any:
    """The same of a model whose last output is the loss."""
    if constraint.statistic is None:
        return constraint
    own = constraint.statistic.surrogate
    return replace(constraint, statistic=Statistic(lambda out, y: own(out[:, :columns], y)))


@every_case
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_it_is_certified(case: Case, weighted: bool) -> None:
    """Its gradient by differences among other things, with and without weights."""
    t = table(3)
    line = check_constraint(case.constraint, batch_of(Free(t, case.outputs), t, case, weighted))
    assert line.endswith("precision.")


def test_names_say_what_is_bounded() -> None:
    assert constraints.loss_parity(["A", "B"], bound=0.1).names == (
        "A - mean",
        "mean - A",
        "B - mean",
        "mean - B",
    )
    assert constraints.equal_opportunity(["A", "B"], bound=0.1).names == (
        "A, y=1 - B, y=1",
        "B, y=1 - A, y=1",
    )
    assert constraints.bounded_group_loss(2, bound=0.5).names == (
        "loss of 0 <= 0.5",
        "loss of 1 <= 0.5",
    )
    assert constraints.minimum_rate(0.8, label=1).names == ("rate of all, y=1 >= 0.8",)
    assert constraints.maximum_rate(0.2, groups=["A"], outcome=3).names == (
        "rate of class 3 of A <= 0.2",
    )
    for case in CASES.values():
        assert len(set(case.constraint.names)) == len(case.constraint.names)


# By name ------------------------------------------------------------------------------------------


def test_a_notion_is_made_by_its_name() -> None:
    for name, notion in constraints.NOTIONS.items():
        assert (
            constraints.make_constraint(name, ["A", "B"], 0.3).names
            == notion(["A", "B"], bound=0.3).names
        )
    with pytest.raises(
        ValueError,
        match=(r"'gaps'; .*bounded_group_loss, .*constraint"),
    ):
        constraints.make_constraint("gaps", ["A", "B"], 0.1)


def test_a_given_constraint_is_numbered_as_the_data() -> None:
    given = constraints.bounded_group_loss(["B", "A"], bound=0.5)
    made = constraints.make_constraint(given, ["A", "B"], 0.1)
    batch = MiniBatch(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]))
    assert made.names == given.names
    assert made.evaluate(batch).tolist() == pytest.approx([2.5, 0.5])  # B is number 1 in the data
    assert (
        constraints.make_constraint(constraints.loss_parity(2, bound=0.1), ["A", "B"], 0.1).names[0]
        == "0 - mean"
    )
    with pytest.raises(ValueError, match=r"3 groups.*has 2"):
        constraints.make_constraint(constraints.loss_parity(3, bound=0.1), ["A", "B"], 0.1)
    with pytest.raises(ValueError, match=r"'C'.*groups.*\['A', 'B'\]"):
        constraints.make_constraint(constraints.loss_parity(["A", "C"], bound=0.1), ["A", "B"], 0.1)
    with pytest.raises(ValueError, match=r"a column, by='sex'"):
        constraints.make_constraint(
            constraints.loss_parity(["A", "B"], bound=0.1, by="sex"), ["A", "B"], 0.1
        )
    with pytest.raises(TypeError, match=r"Constraint, got str"):
        constraints.make_constraint(lambda names, bound: "parity", ["A", "B"], 0.1)  # type: ignore[arg-type, return-value]
