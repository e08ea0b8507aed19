"""The report: what was done, what it means, which groups it helped or harmed; within 80 columns."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from two_groups import make_data, make_shifted, postprocessor, small

from fairbound import audit, constraints
from fairbound.auditing._tables import verdict_table
from fairbound.integrations.sklearn._corrections import Correction, ScoredExamples
from fairbound.integrations.sklearn._report import Predictions, _difference


def joined(text: str) -> str:
    return " ".join(text.split())


def harder_for_b(n: int = 1200) -> tuple[Any, Any, Any]:
    X, y, group = make_shifted(n)
    return X, np.where((group == "B") & (np.random.default_rng(5).random(n) < 0.3), 1 - y, y), group


def test_flattening_is_leveling_down() -> None:
    X, y, group = harder_for_b()
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.05).fit(
        X, y, sensitive_features=group
    )
    text = joined(fair.report())
    assert "changes no decision at one half: it is leveling down" in text
    assert "can be met so without helping anybody" in text
    assert "The correction moves decisions" not in text
    assert "The loss rose for 'A'" in text
    assert text.count("0 to positive, 0 to negative") == 2
    assert "It costs 0.000 [0.000, 0.000] of accuracy (95 %)" in text


def test_rates_move_decisions() -> None:
    X, y, group = make_shifted(800)
    fair = postprocessor().fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert "moves decisions: predict_proba are scores that are consistent with predict" in text
    assert "leveling down" not in text
    at = fair.calibration_
    before, after = fair.unconstrained_.predict(X[at]), fair.predict(X[at])
    for name in "AB":
        one, other = before[group[at] == name], after[group[at] == name]
        assert (
            f"{((one == 0) & (other == 1)).sum()} to positive, {((one == 1) & (other == 0)).sum()}"
            " to negative" in text
        )
        assert f"selection rate {one.mean():.3f} [" in text
        assert f"] {other.mean():.3f} [" in text
    rates = [[decided[group[at] == name].mean() for name in "AB"] for decided in (before, after)]
    assert f"largest: {min(rates[0]) / max(rates[0]):.3f} [" in text
    assert f"before, {min(rates[1]) / max(rates[1]):.3f} [" in text


def test_nothing_is_explained_away_where_nothing_was_corrected() -> None:
    X, y, group = make_shifted(800, shift=0.0)
    fair = postprocessor(bound=0.6).fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert (
        "Choice: unconstrained, the least corrected within its bounds out of fold that is"
        " certified, at 95 %" in text
    )
    assert "The loss" not in text
    assert "leveling down" not in text
    assert "The correction moves decisions" not in text
    assert "certify with" not in text


def test_all_parts_are_there() -> None:
    X, y, group = harder_for_b()
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.02).fit(
        X, y, sensitive_features=group
    )
    text = joined(fair.report())
    assert (
        f"Examples: {len(fair.development_):,} for development, {len(fair.calibration_):,} for"
        " calibration" in text
    )
    assert (
        "Groups: A, B. Positive class: 1. Model: the average of 4 fits of LogisticRegression"
        in text
    )
    assert f"seed {fair.seed_}; fairbound 0.1.0, torch {torch.__version__}" in text
    assert f"data {fair.data_hash_}" in text
    assert (
        f"bound=0.02, group_at_prediction=False, max_accuracy_loss={fair.max_accuracy_loss},"
        in text
    )
    for name, found in fair.candidates_:
        assert f"{name} {found.violation:.4f} {found.accuracy:.4f} {found.loss:.4f}" in text
    assert f"Choice: {fair.choice_}, chosen on out-of-fold data; none could be certified" in text
    assert joined(str(fair.verdict_)) in text
    assert text.count(fair.verdict_.sentence) == 1


@pytest.mark.parametrize("notion", ["pairwise_loss_parity", "equalized_odds", "loss_parity"])
def test_80_columns_whatever_the_names(notion: str) -> None:
    X, y, group = make_shifted(900)
    long = np.where(
        group == "A",
        "women of a village in the far north-west of the county",
        "all of the others, together",
    )
    both = np.stack([long, np.random.default_rng(0).choice(["x" * 50, "y" * 60], 900)], 1)
    fair = postprocessor(
        constraint=[notion, "demographic_parity"], bound=0.05, subgroups="marginal"
    )
    fair.fit(X, y, sensitive_features=both)
    assert max(map(len, fair.report().splitlines())) <= 80


def test_a_report_without_a_constraint_and_one_without_held_out_data() -> None:
    X, y, group = make_data(300)
    with pytest.warns(UserWarning, match="training is unconstrained"):
        plain = small().fit(X, y)
    assert "Groups: none were given" in plain.report()
    assert "Choice" not in plain.report()
    with pytest.warns(UserWarning, match=r"too few.*hold"):
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


def test_predictions_before_and_after() -> None:
    """Rates, decisions that changed and the accuracy that is lost, against numpy."""
    rng = np.random.default_rng(0)
    z, y, g = rng.standard_normal(200), rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    weight = rng.random(200)
    ratios = torch.from_numpy(np.eye(2)[g] / np.bincount(g) * 200)
    scores = ScoredExamples(
        torch.from_numpy(z),
        (ratios,),
        torch.from_numpy(y),
        {"group": torch.from_numpy(g)},
        torch.from_numpy(weight),
    )
    parity = replace(constraints.demographic_parity(["A", "B"], bound=0.1), by="group")
    correction = Correction((parity,), torch.tensor([0.1, 0.0], dtype=torch.float64))
    predictions = Predictions.of(scores, scores, correction, positive=1)
    after = z - 2 * np.arctanh(0.1 * np.where(g == 0, 1, -1) * 200 / np.bincount(g)[g])
    np.testing.assert_array_equal(predictions.after > 0.5, after > 0)
    lost = ((z > 0) == y).astype(float) - ((after > 0) == y)
    mean = np.average(lost, weights=weight)
    half = 1.959964 * np.sqrt((weight**2 * (lost - mean) ** 2).sum()) / weight.sum()
    assert predictions.cost(0.95) == f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"
    for code in (0, 1):
        up, down = (
            ((z <= 0) & (after > 0))[g == code].sum(),
            ((z > 0) & (after <= 0))[g == code].sum(),
        )
        assert predictions.changed("group", code) == f"{up} to positive, {down} to negative"
    compared = predictions.comparison("group", ["A", "B"], "fair", 0.9)
    rate = compared.second.groups[0].rates["positive_rate"]
    assert rate.value == pytest.approx(np.average((after > 0)[g == 0], weights=weight[g == 0]))
    assert compared.names == ("unconstrained", "fair")


def test_a_difference_of_equal_rates_names_both_groups() -> None:
    equal = audit([1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 1, 0], draws=50)
    assert _difference(equal, "positive_rate") == (0.0, "1 - 0")


def test_side_effects_are_in_the_open() -> None:
    """Equal rates where base rates differ: true positives turn around, and the report names
    both."""
    rng = np.random.default_rng(0)
    group = rng.choice(["A", "B"], 6000)
    X = rng.standard_normal((6000, 2)) + np.where(group == "A", 1.0, 0.0)[:, None]
    y = (X[:, 0] + rng.standard_normal(6000) > 0.7).astype(int)
    fair = postprocessor(group_at_prediction=True, bound=0.02).fit(X, y, sensitive_features=group)
    text = joined(fair.report())
    assert "Difference of true positives: " in text
    (line,) = [part for part in text.split("Difference of ") if part.startswith("true positives")]
    assert "(A - B) before" in line
    assert "(B - A) after" in line


def test_a_page_for_those_who_do_not_run_python(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    X, y, group = make_shifted(800)
    answer = np.where(y == 1, "grant", "deny")
    fair = postprocessor(pos_label="grant").fit(
        X, answer, sensitive_features=np.where(group == "A", "<A>", "B")
    )
    text = fair.report(html=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "&lt;A&gt;" in page
    assert "Positive class: grant" in joined(page)
    assert f"data {fair.data_hash_}" in joined(page)
    assert "of accuracy" in joined(page)
    assert "Changed decisions of &lt;A&gt;: " in joined(page)
    assert "class grant: &lt;A&gt; - B" in page or "class grant: <A> - B" in text
    with pytest.warns(UserWarning, match="training is unconstrained"):
        plain = postprocessor().fit(X, y)
    with pytest.raises(ValueError, match=r"without sensitive_features.*no groups"):
        plain.report(html=tmp_path / "other.html")


@pytest.mark.parametrize(
    ("n", "bound", "decision"), [(4000, 0.15, "holds"), (800, 0.02, "undecided")]
)
def test_the_page_opens_with_the_verdicts(
    n: int, bound: float, decision: str, tmp_path: Path
) -> None:
    """Every constraint's verdict, limits and examples needed, and all candidates, as the text has
    them."""
    pytest.importorskip("jinja2")
    X, y, group = make_shifted(n)
    fair = postprocessor(bound=bound).fit(X, y, sensitive_features=group)
    assert fair.verdict_.decision == decision
    fair.report(html=tmp_path / "report.html")
    words = joined(
        unescape(re.sub("<[^>]*>", " ", (tmp_path / "report.html").read_text().split("<body>")[1]))
    )
    top, notes = words.split(" Notes ", 1)
    assert top.index(fair.verdict_.sentence) < top.index("Candidates")
    assert f"On {len(fair.calibration_):,} calibration examples, which nothing else has used" in top
    for row in verdict_table(fair.verdict_.gaps, fair.verdict_.level).rows():
        assert joined(" ".join(f"{cell.text} {cell.ends} {cell.small}" for cell in row)) in top
    for name, found in fair.candidates_:
        chosen = "chosen " * (name == fair.choice_)
        assert f"{name} {chosen}{found.violation:.4f} {found.accuracy:.4f} {found.loss:.4f}" in top
    assert top.count("Choice: ") == words.count("Choice: ") == 1
    assert "The correction moves decisions" in notes


def test_the_price_is_said_and_what_a_higher_one_would_buy() -> None:
    X, y, group = make_shifted(4000)
    fair = postprocessor(max_accuracy_loss=0.03).fit(X, y, sensitive_features=group)
    values = dict(fair.candidates_)
    assert values[fair.choice_].accuracy >= values["unconstrained"].accuracy - 0.03
    assert values[fair.choice_].violation < values["unconstrained"].violation
    text = joined(fair.report())
    assert text.startswith(
        "No correction within `max_accuracy_loss=0.03` keeps the bound out of fold"
    )
    admits = float(text.split("max_accuracy_loss=")[2].split("`")[0])
    more = postprocessor(max_accuracy_loss=admits).fit(X, y, sensitive_features=group)
    assert dict(more.candidates_)[more.choice_].violation == 0
    assert ("could be certified, and costs" in text) == more.certified_


def test_small_groups_are_named() -> None:
    X, y, group = make_shifted(1500)
    group = np.where(np.arange(1500) % 75 == 0, "few", group)
    fair = postprocessor().fit(X, y, sensitive_features=group)
    assert "Too few examples to tell a violation from chance: few." in joined(fair.report())
