"""Every named limit against a transcription of its formula in numpy, in a mini-batch and over a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from loops import F64, network, seeded
from torch import nn

from fairbound import KKT, Constrained, MiniBatch, kkt, limits
from fairbound.algorithms import SGD, DescentAscent
from fairbound.constraints.contrasts import against_mean, pairwise
from fairbound.constraints.limits import Cell, FunctionLimit, Limit
from fairbound.constraints.statistics import soft_positive
from fairbound.core import Draw
from fairbound.integrations.torch import statistics

ROWS, GROUPS = 60, 3
NAMES = ["A", "B", "C"]
BOUND = 0.07


class Table(NamedTuple):
    """Random rows: one logit or one per class, a loss that has nothing to do with them, groups, labels, weights."""

    logit: np.ndarray  # (rows,)
    logits: np.ndarray  # (rows, 3)
    loss: np.ndarray  # (rows,)
    group: np.ndarray  # (rows,) 0, 1, 2, or -1
    label: np.ndarray  # (rows,) 0 or 1
    kind: np.ndarray  # (rows,) 0, 1 or 2: the label of several classes
    weight: np.ndarray  # (rows,)

    def mean(self, values: np.ndarray, chosen: np.ndarray, weighted: bool) -> float:
        """The mean over some rows, as the definition has it."""
        weight = self.weight if weighted else np.ones(len(values))
        return float((values * weight)[chosen].sum() / weight[chosen].sum())


def table(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    group = rng.integers(-1, GROUPS, ROWS)
    group[:6] = [0, 1, 2, 0, 1, 2]
    label, kind = rng.integers(0, 2, ROWS), rng.integers(0, 3, ROWS)
    label[:6], kind[:6] = [0, 0, 0, 1, 1, 1], [1, 1, 1, 2, 2, 2]
    logit, logits, losses = rng.normal(size=ROWS), rng.normal(size=(ROWS, 3)), rng.exponential(size=ROWS)
    return Table(logit, logits, losses, group, label, kind, rng.random(ROWS) + 0.1)


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


Values = Callable[[Table], np.ndarray]


def of_group(t: Table, values: np.ndarray, weighted: bool, inside: np.ndarray | None = None) -> list[float]:
    """The mean of every group, within some rows."""
    inside = np.ones(ROWS, bool) if inside is None else inside
    return [t.mean(values, (t.group == g) & inside, weighted) for g in range(GROUPS)]


def gaps(means: list[float]) -> list[float]:
    """|a - b| of all pairs, each as two rows."""
    return [sign * (means[i] - means[j]) for i, j in combinations(range(GROUPS), 2) for sign in (1, -1)]


def from_mean(means: list[float]) -> list[float]:
    centre = sum(means) / GROUPS
    return [sign * (mean - centre) for mean in means for sign in (1, -1)]


def odds(t: Table, values: np.ndarray, weighted: bool) -> list[float]:
    """|gap among positives| + |gap among negatives| of all pairs, each as four rows."""
    positive, negative = (of_group(t, values, weighted, t.label == y) for y in (1, 0))
    return [
        s * (positive[i] - positive[j]) + u * (negative[i] - negative[j])
        for i, j in combinations(range(GROUPS), 2)
        for s, u in product((1, -1), repeat=2)
    ]


class Case(NamedTuple):
    limit: Any
    formula: Callable[[Table, np.ndarray, bool], list[float]]  # what must be at most the bound
    bound: float
    trained: Values
    true: Values
    labels: str = "label"
    outputs: str = "logit"


def rate(limit: Any, formula: Callable[..., list[float]], bound: float = BOUND) -> Case:
    return Case(limit, formula, bound, soft, hard)


def of_class(limit: Any, formula: Callable[..., list[float]], bound: float = BOUND) -> Case:
    return Case(limit, formula, bound, soft_class, hard_class, "kind", "logits")


def of_loss(limit: Any, formula: Callable[..., list[float]], bound: float = BOUND) -> Case:
    return Case(limit, formula, bound, loss, loss)


CASES = {
    "loss parity": of_loss(limits.loss_parity(NAMES, bound=BOUND), lambda t, v, w: from_mean(of_group(t, v, w))),
    "loss parity of pairs": of_loss(
        limits.loss_parity(NAMES, bound=BOUND, contrast=pairwise), lambda t, v, w: gaps(of_group(t, v, w))
    ),
    "accuracy equality": of_loss(
        limits.pairwise_loss_parity(NAMES, bound=BOUND), lambda t, v, w: gaps(of_group(t, v, w))
    ),
    "equal opportunity": of_loss(
        limits.equal_opportunity(NAMES, bound=BOUND), lambda t, v, w: gaps(of_group(t, v, w, t.label == 1))
    ),
    "equalized odds": of_loss(limits.equalized_odds(NAMES, bound=BOUND), odds),
    "equalized odds of rates": rate(limits.equalized_odds(NAMES, bound=BOUND, value=soft_positive), odds),
    "bounded group loss": of_loss(limits.bounded_group_loss(NAMES, bound=BOUND), of_group),
    "demographic parity": rate(
        limits.demographic_parity(NAMES, bound=BOUND), lambda t, v, w: gaps(of_group(t, v, w))
    ),
    "demographic parity from the mean": rate(
        limits.demographic_parity(NAMES, bound=BOUND, contrast=against_mean),
        lambda t, v, w: from_mean(of_group(t, v, w)),
    ),
    "demographic parity of a class": of_class(
        limits.demographic_parity(NAMES, bound=BOUND, outcome=2), lambda t, v, w: gaps(of_group(t, v, w))
    ),
    "true positive parity": rate(
        limits.true_positive_parity(NAMES, bound=BOUND), lambda t, v, w: gaps(of_group(t, v, w, t.label == 1))
    ),
    "recall of a class": of_class(
        limits.true_positive_parity(NAMES, bound=BOUND, outcome=2),
        lambda t, v, w: gaps(of_group(t, v, w, t.kind == 2)),
    ),
    "false positive parity": rate(
        limits.false_positive_parity(NAMES, bound=BOUND), lambda t, v, w: gaps(of_group(t, v, w, t.label == 0))
    ),
    "a minimum recall of B": rate(
        limits.minimum_rate(0.8, groups=NAMES, group="B", label=1),
        lambda t, v, w: [-of_group(t, v, w, t.label == 1)[1]],
        -0.8,
    ),
    "a minimum rate of every group": rate(
        limits.minimum_rate(0.3, groups=3), lambda t, v, w: [-mean for mean in of_group(t, v, w)], -0.3
    ),
    "a maximum rate of all": rate(
        limits.maximum_rate(0.4), lambda t, v, w: [t.mean(v, np.ones(ROWS, bool), w)], 0.4
    ),
    "a maximum false positive rate": rate(
        limits.maximum_rate(0.1, label=0), lambda t, v, w: [t.mean(v, t.label == 0, w)], 0.1
    ),
    "a minimum rate of a class in group 1": of_class(
        limits.minimum_rate(0.5, groups=NAMES, group=1, outcome=2), lambda t, v, w: [-of_group(t, v, w)[1]], -0.5
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class Free(nn.Module):
    """A model whose parameters are its outputs and losses on the rows of a table: any gradient can be read off."""

    def __init__(self, t: Table, outputs: str) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(getattr(t, outputs)))
        self.losses = nn.Parameter(torch.tensor(t.loss))


def rows_of(model: Free, t: Table, case: Case, weighted: bool = False) -> MiniBatch:
    labels, weight = torch.as_tensor(getattr(t, case.labels)).double(), torch.as_tensor(t.weight)
    return MiniBatch(
        model.losses * 1, torch.as_tensor(t.group), labels, model.outputs * 1, weight if weighted else None
    )


def found_in(t: Table, case: Case, weighted: bool = False) -> KKT:
    """All rows as one mini-batch."""
    model = Free(t, case.outputs)
    return kkt(model, case.limit, [t], lambda t: rows_of(model, t, case, weighted))


@every_case
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_a_limit_is_its_formula(case: Case, weighted: bool) -> None:
    """As it is trained and as it is reported; rows of no group are among the others."""
    for seed in range(3):
        t = table(seed)
        found = found_in(t, case, weighted)
        for values, own in ((case.trained, found.constraints), (case.true, found.true)):
            expected = np.array(case.formula(t, values(t), weighted)) - case.bound
            assert [*own.values()] == pytest.approx(expected, abs=1e-12)
        assert tuple(found.constraints) == case.limit.names
        assert found.loss == pytest.approx(t.mean(t.loss, np.ones(ROWS, bool), weighted))


def over_a_dataset(t: Table, case: Case, model: Free) -> torch.Tensor:
    """`limit.on(groups, labels)` of all rows, with its graph."""
    rows = rows_of(model, t, case)
    constraint = case.limit.on(rows.groups, rows.labels)
    parts = (rows.outputs, rows.labels, rows.losses)
    by_cell = [[part[member] for member in constraint.cells.members] for part in parts if part is not None]
    assert constraint.names == case.limit.names
    c: torch.Tensor = constraint.linearized(constraint.statistics(torch.zeros(1), *by_cell))[0]
    return c


@every_case
def test_over_a_dataset_it_is_the_same(case: Case) -> None:
    t = table(9)
    c = over_a_dataset(t, case, Free(t, case.outputs))
    assert [*found_in(t, case).constraints.values()] == pytest.approx(c.tolist(), abs=1e-12)


@dataclass(frozen=True, kw_only=True)
class Priced(SGD):
    """Follows the constraints alone, each with a price of its own."""

    @property
    def evaluates(self) -> tuple[str, ...]:
        return ("fc",)

    def update(self, x: torch.Tensor, state: Any, draw: Draw) -> tuple[torch.Tensor, Any]:
        e = draw.samples[0](x)
        return -self.tau * e.grad(c=prices(e.c.shape[0])), state  # type: ignore[operator]


def prices(m: int) -> torch.Tensor:
    return torch.linspace(1, 2, m, dtype=F64).square()


@every_case
def test_the_gradient_is_that_of_the_formula(case: Case) -> None:
    """By the weights of rows, against autograd through the means over a dataset."""
    t = table(3)
    model, other = Free(t, case.outputs), Free(t, case.outputs)
    Constrained(model, case.limit, Priced(tau=1.0)).backward(rows_of(model, t, case))
    c = over_a_dataset(t, case, other)
    (prices(c.shape[0]) @ c).backward()
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        zero = torch.zeros_like(own)
        found, wanted = (zero if p.grad is None else p.grad for p in (own, expected))
        assert torch.allclose(found, wanted, atol=1e-12)
    assert sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None) > 0.01


def test_names_say_what_is_limited() -> None:
    assert limits.loss_parity(["A", "B"], bound=0.1).names == ("A - mean", "mean - A", "B - mean", "mean - B")
    assert limits.equal_opportunity(["A", "B"], bound=0.1).names == ("A, y=1 - B, y=1", "B, y=1 - A, y=1")
    assert limits.bounded_group_loss(2, bound=0.5).names == ("loss of 0 <= 0.5", "loss of 1 <= 0.5")
    assert limits.minimum_rate(0.8, label=1).names == ("rate of all, y=1 >= 0.8",)
    assert limits.maximum_rate(0.2, groups=["A"], outcome=3).names == ("rate of class 3 of A <= 0.2",)
    for case in CASES.values():
        assert len(set(case.limit.names)) == len(case.limit.names)


def test_several_columns_are_told_by_name() -> None:
    """Each limit reads the column that it names."""
    t = table(0)
    model = Free(t, "logit")
    both = [limits.bounded_group_loss(3, bound=0.1, by="race"), limits.bounded_group_loss(2, bound=0.2, by="sex")]
    columns = {"sex": torch.as_tensor(t.label), "race": torch.as_tensor(t.group)}
    found = kkt(model, both, [0], lambda _: MiniBatch(model.losses * 1, columns))
    expected = [t.loss[t.group == g].mean() - 0.1 for g in range(3)] + [
        t.loss[t.label == g].mean() - 0.2 for g in (0, 1)
    ]
    assert [*found.constraints.values()] == pytest.approx(expected)


def test_a_limit_of_one_s_own_cells() -> None:
    """A group against everybody, and a group within a label against the label: cells of all four kinds."""
    t = table(1)
    who = (Cell("A", 0), Cell("all"), Cell("A, y=1", 0, 1), Cell("y=1", None, 1))
    contrast = torch.tensor([[1.0, -1, 0, 0], [0, 0, 1, -1]], dtype=F64)
    limit = Limit(who, contrast, torch.tensor([0.1, 0.2], dtype=F64), ("A - all", "A - all among y=1"))
    case = of_loss(limit, lambda t, v, w: [])
    one, everybody = t.group == 0, np.ones(ROWS, bool)
    means = [t.mean(t.loss, chosen, True) for chosen in (one, everybody, one & (t.label == 1), t.label == 1)]
    expected = [means[0] - means[1] - 0.1, means[2] - means[3] - 0.2]
    assert [*found_in(t, case, weighted=True).constraints.values()] == pytest.approx(expected)


WHOLE_NUMBERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", WHOLE_NUMBERS, ids=str)
def test_groups_may_be_whole_numbers_of_any_kind(dtype: torch.dtype) -> None:
    t = table(0)
    sex = torch.as_tensor(t.label).to(dtype)
    model = Free(t, "logit")
    fair = Constrained(model, limits.bounded_group_loss(2, bound=0.0), Priced())
    fair.backward(model.losses * 1, sex)
    assert [*fair.constraints.values()] == pytest.approx([t.loss[t.label == g].mean() for g in (0, 1)])


def variations() -> dict[str, MiniBatch]:
    """Mini-batches in a row, each of which differs from the one before it in one thing only."""
    t = table(4)
    losses, groups = torch.tensor(t.loss), torch.tensor(t.group)
    some = torch.arange(ROWS) % 4 > 0
    return {
        "first": MiniBatch(losses, groups),
        "other losses": MiniBatch(losses.flip(0), groups),
        "an objective": MiniBatch(losses, groups, objective=some),
        "weights like it": MiniBatch(losses, groups, weight=some.double()),
        "no weights": MiniBatch(losses, groups),
        "other weights": MiniBatch(losses, groups, weight=torch.tensor(t.weight)),
        "both": MiniBatch(losses, groups, weight=torch.tensor(t.weight), objective=some),
        "fewer rows": MiniBatch(losses[:30], groups[:30]),
        "other groups": MiniBatch(losses[:30], groups[:30].flip(0)),
        "a group less": MiniBatch(losses[:30], groups[:30].clamp(max=1)),
        "float32": MiniBatch(losses[:30].float(), groups[:30].clamp(max=1)),
        "last": MiniBatch(losses, groups),
    }


@pytest.mark.parametrize("limit", [limits.bounded_group_loss(3, bound=0.1), limits.loss_parity(3, bound=0.1)])
def test_what_was_laid_out_before_does_not_stick(limit: Limit) -> None:
    """A loop that saw other mini-batches reads the next one as a fresh loop does."""
    model = nn.Linear(1, 1, bias=False).double()
    fair = Constrained(model, limit, SGD(tau=1.0))
    for name, rows in variations().items():
        found = []
        for loop in (fair, Constrained(model, limit, SGD(tau=1.0))):
            model.zero_grad()
            loop.backward(rows._replace(losses=rows.losses * model.weight[0, 0]))
            assert model.weight.grad is not None
            found.append((loop.constraints, model.weight.grad.item()))
        (old, old_gradient), (new, new_gradient) = found
        assert old_gradient == pytest.approx(new_gradient, abs=1e-12), name
        for key, value in new.items():  # what a fresh loop cannot tell, the old one remembers
            assert np.isnan(value) or old[key] == pytest.approx(value, abs=1e-12), name


def test_many_rows_are_read_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond some size the map from rows to constraints is not made."""
    t = table(2)
    ends = []
    for most in (statistics.MOST_IN_A_MAP, 0):
        monkeypatch.setattr(statistics, "MOST_IN_A_MAP", most)
        model = Free(t, "logit")
        fair = Constrained(model, limits.loss_parity(3, bound=0.1), DescentAscent(eta=1.0))
        for _ in range(3):
            model.zero_grad()
            fair.backward(model.losses * 1, torch.as_tensor(t.group))
        assert model.losses.grad is not None
        ends.append((model.losses.grad, fair.multipliers))
    assert torch.allclose(ends[0][0], ends[1][0], atol=1e-14)
    assert ends[0][1] == pytest.approx(ends[1][1], abs=1e-14)
    assert max(ends[0][1].values()) > 0.01


# Functions ------------------------------------------------------------------------------------------------------------


def test_the_weight_norm_and_its_gradient() -> None:
    """|x| - bound, whose gradient is x / |x|: descent on it alone shrinks all parameters alike."""
    model = network()
    x = torch.cat([p.detach().flatten() for p in model.parameters()])
    fair = Constrained(model, limits.weight_norm(0.5), DescentAscent(eta=1.0))
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
    seen = Constrained(model, limits.weight_norm(0.5), SGD()).backward(model(torch.ones(2, 4, dtype=F64))[:, 0])
    assert float(seen.c) == pytest.approx(float(trained.norm()) - 0.5)


def test_a_weight_norm_of_zero_has_a_finite_gradient() -> None:
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    fair = Constrained(model, limits.weight_norm(0.5), DescentAscent())
    assert not fair.backward((model(torch.ones(2, 2)) - 1)[:, 0].square()).skipped
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_function_of_one_s_own() -> None:
    """It sees losses, outputs, labels, groups and parameters, and may give several values."""
    model = seeded(lambda: nn.Linear(3, 1)).double()

    def spread(rows: MiniBatch) -> torch.Tensor:
        assert rows.outputs is not None
        assert rows.labels is not None
        return torch.stack([rows.outputs.var() - 1, (rows.outputs * rows.labels).mean(), rows.parameters[1].sum()])

    limit = limits.function(spread, "variance", "product", "intercept")
    X = torch.randn(9, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    outputs, labels = model(X)[:, 0], torch.arange(9, dtype=F64)
    fair = Constrained(model, limit, SGD())
    seen = fair.backward(outputs.square(), outputs=outputs, labels=labels)
    out = outputs.detach()
    expected = [float(out.var() - 1), float((out * labels).mean()), float(model.bias.detach())]
    assert seen.c.tolist() == pytest.approx(expected)
    assert [*fair.constraints] == ["variance", "product", "intercept"]


# What is refused ------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a negative bound": (lambda: limits.loss_parity(2, bound=-0.1), ValueError, "finite and >= 0, got -0.1"),
    "a bound that is NaN": (lambda: limits.demographic_parity(2, bound=float("nan")), ValueError, "got nan"),
    "an infinite bound": (lambda: limits.bounded_group_loss(2, bound=float("inf")), ValueError, "must be finite"),
    "groups as a string": (lambda: limits.loss_parity("AB", bound=0.1), TypeError, r"got the string 'AB'; use \["),
    "a name twice": (lambda: limits.loss_parity(["A", "A"], bound=0.1), ValueError, "names of their own"),
    "one group": (lambda: limits.loss_parity(["A"], bound=0.1), ValueError, "two or more"),
    "one group in pairs": (lambda: limits.demographic_parity(1, bound=0.1), ValueError, "at least two cells, got 1"),
    "a rate above 1": (lambda: limits.minimum_rate(1.2), ValueError, "between 0 and 1, got 1.2"),
    "a rate that is NaN": (lambda: limits.maximum_rate(float("nan")), ValueError, "between 0 and 1, got nan"),
    "an unknown group": (lambda: limits.minimum_rate(0.5, groups=["A", "B"], group="C"), ValueError, r"no group 'C'; the groups are \['A', 'B'\]"),  # noqa: E501
    "a group beyond": (lambda: limits.minimum_rate(0.5, groups=2, group=2), ValueError, "there is no group 2"),
    "a group without groups": (lambda: limits.minimum_rate(0.5, group="A"), ValueError, "group='A' needs groups="),
    "a norm of 0": (lambda: limits.weight_norm(0.0), ValueError, "finite and > 0, got 0.0"),
    "a function without a name": (lambda: limits.function(lambda rows: rows.losses), TypeError, "one name for each"),
    "a name that is a string": (lambda: FunctionLimit(lambda rows: rows.losses, "ab"), TypeError, "got 'ab'"),  # type: ignore[arg-type]
    "no labels over a dataset": (lambda: limits.equal_opportunity(2, bound=0.1).on(torch.arange(2)), ValueError, "give labels="),  # noqa: E501
    "labels of another dataset": (lambda: limits.equal_opportunity(2, bound=0.1).on(torch.arange(2), torch.ones(3)), ValueError, r"\(2,\) but labels \(3,\)"),  # noqa: E501
    "a contrast of another size": (lambda: Limit((Cell("A", 0),), torch.eye(2), torch.zeros(2), ("a", "b")), ValueError, r"contrast of shape \(2, 1\)"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_limit_is_a_sentence(case: str) -> None:
    build, error, sentence = BAD[case]
    with pytest.raises(error, match=sentence):
        build()


def test_a_class_that_is_not_there_is_a_sentence() -> None:
    fair = Constrained(network(), limits.demographic_parity(2, bound=0.1, outcome=3), SGD())
    with pytest.raises(ValueError, match=r"outcome=3 needs outputs \(rows, classes\) with more than 3 classes"):
        fair.backward(torch.ones(4), torch.arange(4) % 2, outputs=torch.ones(4, 3))


def test_two_columns_in_one_tensor_are_a_sentence() -> None:
    """Limits that name different columns cannot both mean the one that is given."""
    both = [limits.bounded_group_loss(2, bound=0.5, by="race"), limits.pairwise_loss_parity(2, bound=0.5, by="sex")]
    model = network()
    fair = Constrained(model, both, SGD())
    with pytest.raises(ValueError, match=r"race.*sex|sex.*race"):
        fair.backward(model(torch.ones(4, 4, dtype=F64))[:, 0], torch.arange(4) % 2)
