"""The choice of a model: among the looks at a run, and between what moves the multipliers; made of looks by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from fairbound.integrations.sklearn.mode_selection import Runs, best_look, carried_over, chosen

from fairbound import limits
from fairbound.integrations.sklearn.evaluation import Seen
from fairbound.integrations.sklearn.trainer import aimed


def look(mode: str, c: float = 0.0, *, loss: float = 0.4, accuracy: float = 0.8, step: int = 100) -> Seen:
    """A model with two limits, the first of which is c and has the only multiplier."""
    constraints, multipliers = torch.tensor([c, -1.0]), torch.tensor([0.5, 0.0])
    return Seen(mode, step, loss, accuracy, max(0.0, c), constraints, torch.zeros(1), multipliers, late=True)


def runs(on_selection: Mapping[str, Seen], on_training: Mapping[str, float], **others: object) -> Runs:
    def best(mode: str) -> Seen:
        return on_selection[mode]

    def on_training_rows(one: Seen) -> torch.Tensor:
        return torch.tensor([on_training[one.mode], -1.0])

    return Runs(best, on_training_rows, lambda one: False, "", 0.02)._replace(**others)


# On training rows the multipliers close a gap of .06; of that, this much is there on validation rows.
CLOSED = {"no limit": 0.06, "train_duals": 0.0}
ALL = {"no limit": look("no limit", 0.05), "train_duals": look("train_duals", 0.0)}
NOTHING = {"no limit": look("no limit", 0.05), "train_duals": look("train_duals", 0.05)}


def test_what_carried_over_is_weighed_by_the_multipliers() -> None:
    assert carried_over(ALL["no limit"], ALL["train_duals"], runs(ALL, CLOSED)) == pytest.approx(5 / 6)
    assert carried_over(NOTHING["no limit"], NOTHING["train_duals"], runs(NOTHING, CLOSED)) == pytest.approx(0.0)
    hardly = runs(ALL, {"no limit": 0.001, "train_duals": 0.0})
    assert carried_over(ALL["no limit"], ALL["train_duals"], hardly) is None
    free = ALL["train_duals"]._replace(multipliers=torch.zeros(2))
    assert carried_over(ALL["no limit"], free, runs(ALL, CLOSED)) is None


def test_training_rows_where_the_gain_carries_over() -> None:
    best, why = chosen("auto", runs(ALL, CLOSED))
    assert best.mode == "train_duals"
    assert "83 % carried over" in why


def test_own_rows_where_it_does_not() -> None:
    best, why = chosen("auto", runs(NOTHING | {"held_out_duals": look("held_out_duals", 0.01)}, CLOSED))
    assert best.mode == "held_out_duals"
    assert "0 % carried over" in why
    assert "by heart" in why


def test_not_own_rows_that_cost_too_much_or_break_the_bound_more() -> None:
    dear = NOTHING | {"held_out_duals": look("held_out_duals", 0.01, accuracy=0.76)}
    assert chosen("auto", runs(dear, CLOSED))[0].mode == "train_duals"
    worse = NOTHING | {"held_out_duals": look("held_out_duals", 0.2)}
    best, why = chosen("auto", runs(worse, CLOSED, breaks=lambda one: True))
    assert best.mode == "train_duals"
    assert "do worse" in why


def test_no_own_rows_and_the_reason() -> None:
    best, why = chosen("auto", runs(NOTHING, CLOSED, why_no_held_out_duals="they would have 7 rows of 'B'"))
    assert best.mode == "train_duals"
    assert "7 rows of 'B'" in why


def test_a_mode_that_was_asked_for_is_taken() -> None:
    assert chosen("train_duals", runs(NOTHING, CLOSED))[0] is NOTHING["train_duals"]


def test_of_late_looks_the_least_violation_and_then_the_loss() -> None:
    early = look("train_duals", loss=0.1)._replace(late=False)
    broken, kept = look("train_duals", 0.05, loss=0.2), look("train_duals", 0.001, loss=0.3)
    dearer, spoilt = look("train_duals", 0.0, loss=0.4), look("train_duals", loss=float("nan"))
    assert best_look([early, broken, kept, dearer, spoilt], slack=0.002) is kept
    assert best_look([early, broken, kept, dearer, spoilt], slack=0.0) is dearer
    assert best_look([early, broken, kept, dearer, spoilt], slack=0.1) is broken
    assert best_look([early], slack=0.002) is early  # a run that ended before its late looks
    with pytest.raises(ValueError, match=r"NaN or infinite; scale the columns of X, or lower learning_rate"):
        best_look([spoilt, spoilt], slack=0.002)


def test_only_bounds_on_differences_are_aimed_at_with_a_share() -> None:
    parity = limits.loss_parity(["A", "B"], bound=0.05)
    assert aimed(parity, 0.5).bound.tolist() == pytest.approx([0.025] * len(parity.bound))
    level = limits.bounded_group_loss(["A", "B"], bound=0.3)
    assert torch.equal(aimed(level, 0.5).bound, level.bound)
    assert torch.equal(aimed(replace(parity, bound=parity.bound * 0), 0.5).bound, parity.bound * 0)
