"""`check_constraint` passes every named constraint, and finds the faults it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tables import table
from torch import Tensor

from fairbound import MiniBatch, check_constraint, constraints
from fairbound.constraints._cells import Cells
from fairbound.constraints._constraint import Constraint, FunctionConstraint
from fairbound.constraints._contrasts import AgainstMean, Matrix, against_mean, each
from fairbound.constraints._statistics import Statistic, soft_positive

F64 = torch.float64
NAMES = ["A", "B", "C"]


def batch(seed: int = 0, weighted: bool = False) -> MiniBatch:
    t = table(seed)
    losses, groups, labels, logits, weight = map(
        torch.as_tensor, (t.loss, t.group, t.label, t.logit, t.weight)
    )
    return MiniBatch(
        losses,
        groups,
        labels.double(),
        logits,
        weight if weighted else None,
        parameters=[torch.ones(3), torch.zeros(2)],
    )


# those that are named: tests/constraints/test_notions.py
SOUND: dict[str, Any] = {
    "weight norm": constraints.weight_norm(0.5),
    "one-sided": replace(
        constraints.loss_parity(
            NAMES, bound=0.1, contrast=lambda n: against_mean(n, two_sided=False)
        ),
        absolute=True,
    ),
    "a mean": FunctionConstraint(
        lambda b: (b.losses.square() - 1).mean().reshape(1), ("square",), mean=True
    ),
    "a variance": FunctionConstraint(lambda b: b.outputs.var().reshape(1) - 1, ("variance",)),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_a_sound_constraint_passes(name: str, weighted: bool) -> None:
    line = check_constraint(SOUND[name], batch(weighted=weighted))
    assert line.startswith(f"{type(SOUND[name]).__name__} passes ")
    assert line.endswith("precision.")


def test_a_function_that_cannot_be_vmapped_is_told() -> None:
    own = FunctionConstraint(lambda b: b.losses[b.losses > 0.5].mean().reshape(1), ("large",))
    assert "for loops, not for stacked runs" in check_constraint(own, batch())


# Planted faults -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Wrong(AgainstMean):
    """Forgets the mean in its transpose."""

    def transpose(self, w: Tensor) -> Tensor:
        return w[..., ::2] - w[..., 1::2]


@dataclass(frozen=True, eq=False)
class SeesAll(Matrix):
    """Says that every row is observed."""

    def observed(self, present: Tensor) -> Tensor:
        return torch.ones(len(self.names), dtype=torch.bool)


def of(statistic: Any) -> Constraint:
    return replace(constraints.demographic_parity(NAMES, bound=0.1), statistic=Statistic(statistic))


def with_contrast(contrast: Any) -> Constraint:
    return replace(
        constraints.loss_parity(NAMES, bound=0.1), contrast=contrast, names=contrast.names
    )


def in_place(b: MiniBatch) -> Tensor:
    return b.losses.sub_(1).mean().reshape(1)


def two_values(b: MiniBatch) -> Tensor:
    return b.losses[:2]


MEAN = against_mean(NAMES)
FAULTS: dict[str, tuple[Any, str]] = {
    "a surrogate without a graph": (
        of(lambda out, y: soft_positive(out, y).detach()),
        r"'gradient'.*without .detach\(\)",
    ),
    "a decision as a surrogate": (
        of(lambda out, y: (out > 0).double() + 0 * out + out.detach()),
        "'gradient'",
    ),
    "a statistic of the batch": (
        of(lambda out, y: out / out.norm()),
        "'chunks'.*a value of each example by itself",
    ),
    "a statistic in order": (of(lambda out, y: out.cumsum(0)), "'order'.*depends on the order"),
    "a statistic of the wrong size": (
        of(lambda out, y: out[:3]),
        "'value'.*must be one value per example",
    ),
    "a statistic that is random": (
        of(lambda out, y: out * torch.rand(())),
        "'value'.*differs from call to call",
    ),
    "a wrong transpose": (
        with_contrast(Wrong(MEAN.names, MEAN.shares)),
        r"'gradient'.*transpose\(\) must be",
    ),
    "observed by mistake": (
        with_contrast(SeesAll(MEAN.names, MEAN.matrix())),
        r"'absent cells'.*observed\(\) must say",
    ),
    "one name twice": (
        replace(constraints.bounded_group_loss(2, bound=0.1), names=("a", "a")),
        "'names'.*distinct name",
    ),
    "a change in place": (FunctionConstraint(in_place, ("own",)), "'value'.*in place"),
    "two values for one": (
        FunctionConstraint(two_values, ("own",)),
        "'value'.*must give values of shape",
    ),
    "a function without a graph": (
        FunctionConstraint(lambda b: torch.tensor([b.losses.mean().item()]), ("own",)),
        "'gradient'",
    ),
    "no plain mean": (
        FunctionConstraint(lambda b: b.losses.var().reshape(1), ("own",), mean=True),
        "'chunks'.*omit mean",
    ),
    "half precision inside": (
        of(lambda out, y: (out.float() * 1e9 % 1).to(out)),
        "'gradient'|'precision'",
    ),
    "a cell that is not there": (
        constraints.bounded_group_loss([*NAMES, "D"], bound=0.1),
        "'value'.*examples of every cell",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    own, sentence = FAULTS[name]
    with pytest.raises(AssertionError, match=rf"fails the check {sentence}"):
        check_constraint(own, batch())


def test_what_is_no_constraint_is_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"Constraint or.*FunctionConstraint, got 'loss_parity'"):
        check_constraint("loss_parity", batch())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="per-example losses"):
        check_constraint(constraints.loss_parity(NAMES, bound=0.3), MiniBatch(torch.ones(())))


def test_a_constraint_of_cells_of_its_own() -> None:
    own = Constraint(Cells.of_groups(NAMES, 1), each(["a", "b", "c"]), torch.zeros(3, dtype=F64))
    assert "absent cells" in check_constraint(own, batch())
