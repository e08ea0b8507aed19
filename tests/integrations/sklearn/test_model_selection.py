"""Selection of a model: among the candidates of a run, and between the modes; from constructed candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from fairbound import constraints
from fairbound.integrations.sklearn.evaluation import Candidate
from fairbound.integrations.sklearn.model_selection import (
    TrainedModes,
    best_candidate,
    generalized_share,
    select_model,
)
from fairbound.integrations.sklearn.trainer import tighten_bound


def candidate(mode: str, c: float = 0.0, *, loss: float = 0.4, accuracy: float = 0.8, step: int = 100) -> Candidate:
    """A model with two constraints, the first of which is c and has the only multiplier."""
    values, multipliers = torch.tensor([c, -1.0]), torch.tensor([0.5, 0.0])
    return Candidate(mode, step, loss, accuracy, max(0.0, c), values, torch.zeros(1), multipliers, eligible=True)


def trained(on_validation: Mapping[str, Candidate], on_training: Mapping[str, float], **others: object) -> TrainedModes:
    def best(mode: str) -> Candidate:
        return on_validation[mode]

    def training_constraints(one: Candidate) -> torch.Tensor:
        return torch.tensor([on_training[one.mode], -1.0])

    return TrainedModes(best, training_constraints, lambda one: False, "", 0.02)._replace(**others)


# On training data the multipliers close a gap of .06; of that, this much is there on validation data.
CLOSED = {"unconstrained": 0.06, "train_duals": 0.0}
ALL = {"unconstrained": candidate("unconstrained", 0.05), "train_duals": candidate("train_duals", 0.0)}
NOTHING = {"unconstrained": candidate("unconstrained", 0.05), "train_duals": candidate("train_duals", 0.05)}


def test_the_generalized_share_is_weighted_by_the_multipliers() -> None:
    plain, constrained = ALL["unconstrained"], ALL["train_duals"]
    assert generalized_share(plain, constrained, trained(ALL, CLOSED)) == pytest.approx(5 / 6)
    assert generalized_share(plain, NOTHING["train_duals"], trained(NOTHING, CLOSED)) == pytest.approx(0.0)
    hardly = trained(ALL, {"unconstrained": 0.001, "train_duals": 0.0})
    assert generalized_share(plain, constrained, hardly) is None
    inactive = constrained._replace(multipliers=torch.zeros(2))
    assert generalized_share(plain, inactive, trained(ALL, CLOSED)) is None


def test_train_duals_where_the_change_generalizes() -> None:
    best, why = select_model("auto", trained(ALL, CLOSED))
    assert best.mode == "train_duals"
    assert "83 % of the change that it makes on the training data generalizes" in why


def test_held_out_duals_where_it_does_not() -> None:
    modes = trained(NOTHING | {"held_out_duals": candidate("held_out_duals", 0.01)}, CLOSED)
    best, why = select_model("auto", modes)
    assert best.mode == "held_out_duals"
    assert "Only 0 % of the change" in why
    assert "overfitted" in why


def test_no_held_out_duals_that_cost_too_much_or_violate_the_bound_more() -> None:
    costly = NOTHING | {"held_out_duals": candidate("held_out_duals", 0.01, accuracy=0.76)}
    best, why = select_model("auto", trained(costly, CLOSED))
    assert best.mode == "train_duals"
    assert "cost too much accuracy" in why
    worse = NOTHING | {"held_out_duals": candidate("held_out_duals", 0.2)}
    best, why = select_model("auto", trained(worse, CLOSED, violates=lambda one: True))
    assert best.mode == "train_duals"
    assert "violate the bound more" in why


def test_no_dual_set_and_the_reason() -> None:
    reason = "the dual set would have 7 examples of 'B'"
    best, why = select_model("auto", trained(NOTHING, CLOSED, no_held_out_duals_reason=reason))
    assert best.mode == "train_duals"
    assert reason in why


def test_a_given_mode_is_taken() -> None:
    assert select_model("train_duals", trained(NOTHING, CLOSED))[0] is NOTHING["train_duals"]


def test_of_eligible_candidates_the_least_violation_and_then_the_loss() -> None:
    early = candidate("train_duals", loss=0.1)._replace(eligible=False)
    violating, kept = candidate("train_duals", 0.05, loss=0.2), candidate("train_duals", 0.001, loss=0.3)
    larger_loss, invalid = candidate("train_duals", 0.0, loss=0.4), candidate("train_duals", loss=float("nan"))
    candidates = [early, violating, kept, larger_loss, invalid]
    assert best_candidate(candidates, slack=0.002) is kept
    assert best_candidate(candidates, slack=0.0) is larger_loss
    assert best_candidate(candidates, slack=0.1) is violating
    assert best_candidate([early], slack=0.002) is early  # a run that ended before its eligible evaluations
    with pytest.raises(ValueError, match=r"NaN or infinite; scale the columns of X, or lower learning_rate"):
        best_candidate([invalid, invalid], slack=0.002)


def test_only_bounds_on_differences_are_tightened() -> None:
    parity = constraints.loss_parity(["A", "B"], bound=0.05)
    assert tighten_bound(parity, 0.5).bound.tolist() == pytest.approx([0.025] * len(parity.bound))
    level = constraints.bounded_group_loss(["A", "B"], bound=0.3)
    assert torch.equal(tighten_bound(level, 0.5).bound, level.bound)
    assert torch.equal(tighten_bound(replace(parity, bound=parity.bound * 0), 0.5).bound, parity.bound * 0)
