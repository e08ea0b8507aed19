"""The report: what was done, what it means, which groups it helped or harmed; within 80 columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from two_groups import make_data, make_shifted, postprocessor, small

from fairbound import constraints
from fairbound.integrations.sklearn.corrections import Correction, Scores
from fairbound.integrations.sklearn.report import group_table


def joined(text: str) -> str:
    return " ".join(text.split())


def harder_for_b(n: int = 1200) -> tuple[Any, Any, Any]:
    X, y, group = make_shifted(n)
    return X, np.where((group == "B") & (np.random.default_rng(5).random(n) < 0.3), 1 - y, y), group


def test_flattening_is_leveling_down() -> None:
    X, y, group = harder_for_b()
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.05).fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert "changes no decision at one half: it is leveling down" in text
    assert "can be met so without helping anybody" in text
    assert "The correction moves decisions" not in text
    assert "the loss rose for A" in text
    changes = {row.name: row for row in fair._tables["group"]}
    assert changes["A"].after[0] > changes["A"].before[0]
    for row in changes.values():  # accuracy and decisions stay
        assert row.before[1:] == row.after[1:]
        assert f"{row.before[0]:.3f} -> {row.after[0]:.3f}" in text


def test_rates_move_decisions() -> None:
    X, y, group = make_shifted(800)
    fair = postprocessor().fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert "moves decisions: predict_proba are scores that are consistent with predict" in text
    assert "leveling down" not in text
    table = fair._tables["group"]
    assert [row.name for row in table] == ["A", "B"]
    assert table[0].after[2] < table[0].before[2]  # fewer positive decisions in A
    assert table[1].after[2] > table[1].before[2]


def test_nothing_is_explained_away_where_nothing_was_corrected() -> None:
    X, y, group = make_shifted(800, shift=0.0)
    fair = postprocessor(bound=0.6).fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert "Choice: unconstrained, the least corrected within its bounds out of fold that is certified, at 95 %" in text
    assert "no loss changed" in text
    assert "leveling down" not in text
    assert "The correction moves decisions" not in text
    assert "certify with" not in text


def test_all_parts_are_there() -> None:
    X, y, group = harder_for_b()
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.02).fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert f"Examples: {len(fair.development_):,} for development, {len(fair.calibration_):,} for calibration" in text
    assert "Groups: A, B. Model: the average of 4 LogisticRegression" in text
    assert "A bound of 0.02 on" in text
    assert "cannot be certified with" in text
    assert "What re-weighting the groups can reach, out of fold" in text
    for name, found in fair.candidates_:
        assert f"{name} {found.violation:.4f} {found.accuracy:.4f} {found.loss:.4f}" in text
    assert f"Choice: {fair.choice_}, chosen on out-of-fold data; none could be certified" in text
    assert joined(str(fair.verdict_)) in text
    assert "Of the strictest candidate: " in text


@pytest.mark.parametrize("notion", ["pairwise_loss_parity", "equalized_odds", "loss_parity"])
def test_80_columns_whatever_the_names(notion: str) -> None:
    X, y, group = make_shifted(900)
    long = np.where(
        group == "A", "women of a village in the far north-west of the county", "all of the others, together"
    )
    both = np.stack([long, np.random.default_rng(0).choice(["x" * 50, "y" * 60], 900)], 1)
    fair = postprocessor(constraint=[notion, "demographic_parity"], bound=0.05, subgroups="marginal")
    fair.fit(X, y, sensitive_features=both)
    assert max(map(len, fair.report().splitlines())) <= 80


def test_a_report_without_a_constraint_and_one_without_held_out_data() -> None:
    X, y, group = make_data(300)
    with pytest.warns(UserWarning, match="training is unconstrained"):
        plain = small().fit(X, y)
    assert "Groups: none were given" in plain.report()
    assert "Choice" not in plain.report()
    with pytest.warns(UserWarning, match="too few to hold any out"):
        few = small(bound=0.5).fit(X[:100], y[:100], sensitive_features=group[:100])
    assert "none held out" in few.report()
    assert "there are too few examples for a certificate" in joined(few.report())


def test_the_report_of_networks_says_when_they_were_selected_and_what_looks_like_codes() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.choice(np.arange(0, 3000, 100), 600), rng.random(600)], 1)
    y, group = (X[:, 1] > 0.5).astype(int), rng.choice(["A", "B"], 600)
    fair = small(bound=0.5).fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert "Model: 4 networks, selected after" in text
    assert "of 2 epochs" in text
    assert "if these are codes, name it in categorical_features" in text


def test_the_table_of_groups() -> None:
    """Loss, accuracy and rate of decisions of every group, before and after, against numpy."""
    rng = np.random.default_rng(0)
    z, y, g = rng.standard_normal(200), rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    ratios = torch.from_numpy(np.eye(2)[g] / np.bincount(g) * 200)
    before = Scores(torch.from_numpy(z), (ratios,), torch.from_numpy(y), {"group": torch.from_numpy(g)}, None)
    parity = replace(constraints.demographic_parity(["A", "B"], bound=0.1), by="group")
    correction = Correction((parity,), torch.tensor([0.1, 0.0], dtype=torch.float64))
    found = group_table(before, before, correction, "group", ["A", "B"])
    sign = np.where(g == 0, 1, -1)
    after = z - 2 * np.arctanh(0.1 * sign * 200 / np.bincount(g)[g])
    for code, row in enumerate(found):
        rows = g == code
        for logits, numbers in ((z, row.before), (after, row.after)):
            loss = np.log1p(np.exp(-np.where(y == 1, logits, -logits)))[rows].mean()
            expected = [loss, ((logits > 0) == y)[rows].mean(), (logits > 0)[rows].mean()]
            assert numbers == pytest.approx(expected)
        assert row.examples == rows.sum()
