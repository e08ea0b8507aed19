"""What auditors ask: AUC and calibration by group, the groups behind a gap, gaps without tiny
groups, two audits."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from commands import call

from fairbound.auditing import Audit, audit, compare
from fairbound.auditing._comparisons import change
from fairbound.auditing._tables import audit_page, comparison_page
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._reference_gaps import ERROR_RATES
from fairbound.metrics.fairness_metrics import METRICS


def table(seed: int, rows: int = 1500) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    g = rng.choice(["big", "middle", "tiny"], rows, p=[0.7, 0.28, 0.02])
    y = (rng.random(rows) < 0.4).astype(int)
    score = np.clip(rng.beta(2, 3, rows) + 0.2 * y + 0.1 * (g == "tiny"), 0, 1)
    return {"y": y, "g": g, "p": score, "q": np.clip(score + rng.normal(0, 0.05, rows), 0, 1)}


@pytest.fixture(scope="module")
def found() -> Audit:
    data = table(0)
    return audit(data["y"], data["g"], scores=data["p"], draws=500)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_three_tables_beside_aif360(seed: int) -> None:
    theirs = pytest.importorskip("aif360.sklearn.metrics", reason="AIF360 is not installed")
    data = table(seed)
    protected = (data["g"] == "big").astype(int)
    made = (data["p"] >= 0.5).astype(int)
    found = audit(
        data["y"], protected, predictions=made, names=["others", "big"], reference="big", draws=50
    )
    for name in (
        "statistical_parity_difference",
        "equal_opportunity_difference",
        "average_odds_difference",
    ):
        value = getattr(theirs, name)(data["y"], made, prot_attr=protected, priv_group=1)
        assert found.metrics[name].value == pytest.approx(value, abs=1e-12)
    value = theirs.disparate_impact_ratio(data["y"], made, prot_attr=protected, priv_group=1)
    assert found.metrics["disparate_impact"].value == pytest.approx(value, abs=1e-12)


def test_the_groups_behind_each_gap(found: Audit) -> None:
    rates = {group.name: group.rates for group in found.groups}
    for name, rate in (
        ("demographic_parity_difference", "positive_rate"),
        ("accuracy_difference", "accuracy"),
    ):
        pair = found.pairs[name]
        assert pair.of == rate
        of = {group: own[rate].value for group, own in rates.items()}
        assert pair.high_value == max(of.values()) == of[pair.high]
        assert pair.low_value == min(of.values()) == of[pair.low]
        assert found.metrics[name].value == pytest.approx(pair.high_value - pair.low_value)
    areas = {group.name: group.auc.value for group in found.groups if group.examples >= 30}
    assert found.metrics["auc_difference"].value == pytest.approx(
        max(areas.values()) - min(areas.values())
    )
    assert found.pairs["auc_difference"].high == max(areas, key=areas.get)
    assert {"w1", "largest_loss_gap", "calibration_difference"} <= set(found.pairs)


def test_small_groups_are_listed_but_compared_with_no_other(found: Audit) -> None:
    data = table(0)
    large = data["g"] != "tiny"
    assert 0 < (~large).sum() < 50
    alone = audit(data["y"][large], data["g"][large], scores=data["p"][large], draws=500)
    kept = audit(data["y"], data["g"], scores=data["p"], draws=500, min_size=50)
    assert [group.name for group in kept.groups] == ["big", "middle", "tiny"]
    assert [group.name for group in kept.compared] == ["big", "middle"]
    everybody = {"inaccuracy", "loss", "loss_difference"} | {
        name for name, metric in METRICS.items() if metric.groups == "reference"
    }
    for name, measured in kept.metrics.items():
        assert measured.value == pytest.approx(
            (found if name in everybody else alone).metrics[name].value
        ), name
    assert kept.pairs == alone.pairs
    assert kept.groups[2].rates == found.groups[2].rates
    assert kept.groups[2].auc == found.groups[2].auc
    assert kept.groups[2].against_reference == {}
    assert set(kept.groups[1].against_reference) == set(ERROR_RATES)
    assert kept.notes[0].startswith(
        f"group 'tiny' ({(~large).sum()}) has fewer than 50 examples (`min_size`): listed"
    )
    html = audit_page(kept)
    assert f"Not compared, with fewer than 50 examples: tiny ({(~large).sum()})" in html
    assert "Not compared" not in audit_page(alone)
    with pytest.raises(ValueError, match=r"'tiny' has \d+ examples.* 50 or more"):
        audit(data["y"], data["g"], scores=data["p"], reference="tiny", min_size=50)


def test_where_too_few_groups_are_large_all_are_compared(found: Audit) -> None:
    data = table(0)
    kept = audit(data["y"], data["g"], scores=data["p"], draws=500, min_size=1_200)
    assert kept.metrics == found.metrics
    assert any("`min_size=1200`" in note for note in kept.notes)


def test_histograms_of_whole_numbers_have_one_bin_each() -> None:
    score = np.tile(np.arange(1, 11), 60)
    found = audit(score > 4, np.repeat([0, 1], 300), scores=score, threshold=5, draws=50)
    assert found.bins == tuple(i + 0.5 for i in range(11))
    assert found.groups[0].histogram == pytest.approx([0.1] * 10)
    assert [one.score for one in found.groups[0].calibration] == list(range(1, 11))
    assert not found.probabilities
    assert "the same score should mean the same in every group" in audit_page(found)


def test_a_comparison_of_two_models(found: Audit) -> None:
    data = table(0)
    other = audit(data["y"], data["g"], scores=data["q"], draws=500)
    both = compare(found, other, ("old <b>", "new"))
    for name, changed in both.metrics.items():
        if changed.value is not None:
            assert changed.value == other.metrics[name].value - found.metrics[name].value
            assert changed.low <= changed.value <= changed.high
    assert set(both.groups) == {"big", "middle", "tiny"}
    assert both.groups["big"]["auc"].value == pytest.approx(
        other.groups[0].auc.value - found.groups[0].auc.value
    )
    html = comparison_page(both)
    assert "old &lt;b&gt;" in html
    assert "old <b>" not in html
    assert "What changes" in html
    assert html.count("ROC curves by group") == 2
    json.dumps(both.to_dict(), allow_nan=False)


def test_changes_and_their_intervals() -> None:
    first, second = IntervalEstimate(0.5, 0.4, 0.6), IntervalEstimate(0.3, 0.25, 0.4)
    low, high = -0.2 - np.hypot(0.05, 0.1), -0.2 + np.hypot(0.1, 0.1)
    assert tuple(change(first, second)) == pytest.approx((-0.2, low, high))
    assert change(first, IntervalEstimate(None)).value is None
    assert change(first, IntervalEstimate(0.3)).low is None


def test_what_cannot_be_compared(found: Audit) -> None:
    data = table(0)
    named = {"predictions": data["p"] >= 0.5, "draws": 50}
    with pytest.raises(ValueError, match="by group and by race"):
        compare(found, audit(data["y"], data["g"], attributes=["race"], **named))
    with pytest.raises(ValueError, match=r"0.95 and 0.9"):
        compare(found, audit(data["y"], data["g"], level=0.9, **named))
    with pytest.raises(ValueError, match="'big', 'middle' and 'tiny', second '0'"):
        compare(found, audit(data["y"], np.zeros(1500, dtype=int), **named))


def test_two_models_and_two_dates_on_the_command_line(tmp_path: Path) -> None:
    for seed in (0, 1):
        data = table(seed, 400)
        rows = zip(data["y"], data["g"], data["p"].round(3), data["q"].round(3), strict=True)
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        (tmp_path / f"{seed}.csv").write_text(
            "y,g,p,q\n" + (text if seed == 0 else text.replace("tiny", "new"))
        )
    words = shlex.split("--label y --score p --group g --html")
    options = [tmp_path / "0.csv", *words, tmp_path / "page.html"]
    printed = call("audit", *options, "--compare-column", "q", "--json", tmp_path / "a.json")
    assert "Comparison: p (first) and q (second)" in printed
    assert "Groups behind the differences" in printed
    assert all(len(line) <= 80 for line in printed.splitlines()[:-2])
    assert json.loads((tmp_path / "a.json").read_text())["names"] == ["p", "q"]
    assert "Comparison of two audits" in (tmp_path / "page.html").read_text()
    printed = call(
        "audit", *options, "--compare-file", tmp_path / "1.csv", "--compare-threshold", ".6"
    )
    assert "Comparison: 0.csv (first) and 1.csv (second)" in printed
    assert "Only in 1.csv: new." in printed
    assert "is for the scores of --compare-column" in call(
        "audit", *options, "--compare-threshold", ".5", code=1
    )
    assert "there is no column 'pp'" in call("audit", *options, "--compare-column", "pp", code=1)
