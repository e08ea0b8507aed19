"""P(cell | x) / P(cell): from models of the group, or from the group itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fairbound import constraints
from fairbound.constraints._constraint import Constraint
from fairbound.integrations.sklearn._corrections import CellMeans, ScoredExamples
from fairbound.integrations.sklearn._cross_fitting import CrossFitted
from fairbound.integrations.sklearn._membership import fit_membership, probabilities

NAMES = ["A", "B", "C"]
GROUPS = torch.tensor([0, 0, 0, 1, 1, 2])
LABELS = torch.tensor([1, 0, 1, 1, 0, 1])
PARITY = replace(constraints.demographic_parity(NAMES, bound=0.1), by="race")
OPPORTUNITY = replace(constraints.equal_opportunity(NAMES, bound=0.1), by="race")
ALL = replace(constraints.minimum_rate(0.5, label=1), by="race")


def means(*own: Constraint) -> CellMeans:
    """Of six examples that all have one decision, so that nothing is uncertain, and nothing is
    shrunk."""
    return CellMeans(
        own, ScoredExamples(torch.ones(6).double(), (), LABELS, {"race": GROUPS}, None)
    )


def models(seen: list[tuple[np.ndarray, int]]):  # type: ignore[no-untyped-def]
    def cross_fit(target: np.ndarray, size: int) -> CrossFitted:
        seen.append((target, size))
        return CrossFitted(None, torch.randn(6, size, dtype=torch.float64))  # type: ignore[arg-type]

    return cross_fit


def test_probabilities_of_two_and_of_several_classes() -> None:
    np.testing.assert_allclose(
        probabilities(torch.tensor([0.0, np.log(3)])), [[0.5, 0.5], [0.25, 0.75]], atol=1e-6
    )
    np.testing.assert_allclose(
        probabilities(torch.tensor([[0.0, np.log(3), 0.0]])), [[0.2, 0.6, 0.2]], atol=1e-6
    )


def test_groups_alone() -> None:
    seen: list[tuple[np.ndarray, int]] = []
    own, out_of_fold = fit_membership(means(PARITY), 2, models(seen))
    assert [(target.tolist(), size) for target, size in seen] == [(GROUPS.tolist(), 3)]
    (found,) = own.ratios(torch.zeros(6), out_of_fold, {})
    np.testing.assert_allclose(
        found, out_of_fold["race"].softmax(1) / torch.tensor([1 / 2, 1 / 3, 1 / 6])
    )


def test_groups_and_labels_together() -> None:
    """One model of the pairs serves cells of a group, of a group within a label, and of all
    examples of a label."""
    seen: list[tuple[np.ndarray, int]] = []
    own, out_of_fold = fit_membership(means(PARITY, OPPORTUNITY, ALL), 2, models(seen))
    assert [(target.tolist(), size) for target, size in seen] == [
        ((2 * GROUPS + LABELS).tolist(), 6)
    ]
    logits = torch.randn(6, dtype=torch.float64)
    of_group, of_pair, of_all = own.ratios(logits, out_of_fold, {})
    joint = out_of_fold["race"].softmax(1).reshape(6, 3, 2)
    np.testing.assert_allclose(of_group, joint.sum(2) / torch.tensor([1 / 2, 1 / 3, 1 / 6]))
    np.testing.assert_allclose(of_pair, joint[:, :, 1] / torch.tensor([2 / 6, 1 / 6, 1 / 6]))
    np.testing.assert_allclose(of_all, logits.sigmoid()[:, None] / (4 / 6))


def test_the_group_at_prediction() -> None:
    own, out_of_fold = fit_membership(means(PARITY, OPPORTUNITY), 2, None)
    assert out_of_fold == {}
    logits = torch.randn(6, dtype=torch.float64)
    of_group, of_pair = own.ratios(logits, {}, {"race": GROUPS})
    inside = np.eye(3)[GROUPS]
    np.testing.assert_allclose(of_group, inside / [1 / 2, 1 / 3, 1 / 6], atol=1e-12)
    np.testing.assert_allclose(
        of_pair, inside * logits.sigmoid().numpy()[:, None] / [2 / 6, 1 / 6, 1 / 6], atol=1e-12
    )


def test_ratios_average_to_one_over_the_population() -> None:
    own, _ = fit_membership(means(PARITY), 2, None)
    (found,) = own.ratios(torch.zeros(6), {}, {"race": GROUPS})
    assert found.mean(0).tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_a_small_group_is_in_part_like_everybody() -> None:
    """An example of group j belongs to j by its trust t, and to each group by (1 - t) times its
    share."""
    own, _ = fit_membership(means(PARITY), 2, None)
    own = replace(own, trust=(torch.tensor([1.0, 0.8, 0.1], dtype=torch.float64),))
    (found,) = own.ratios(torch.zeros(6).double(), {}, {"race": GROUPS})
    share = np.array([1 / 2, 1 / 3, 1 / 6])
    np.testing.assert_allclose(found[5], (0.1 * np.eye(3)[2] + 0.9 * share) / share)
    np.testing.assert_allclose(found[3], (0.8 * np.eye(3)[1] + 0.2 * share) / share)
    np.testing.assert_allclose(found[0], np.eye(3)[0] / share)
