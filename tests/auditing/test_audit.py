"""Audits of arrays and of named columns: values, intersections, notes, JSON, refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import call
from sklearn.metrics import log_loss, roc_auc_score

from fairbound.auditing import audit, audit_columns
from fairbound.metrics._counts import Counts
from fairbound.metrics._intervals import spread
from fairbound.metrics.fairness_metrics import METRICS, Metric, values
from fairbound.reports._words import capital


def people(rows: int = 3000, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    race = rng.choice(["white", "black", "asian"], rows, p=[0.6, 0.3, 0.1])
    y = (rng.random(rows) < np.where(race == "white", 0.4, 0.25)).astype(int)
    score = np.clip(rng.beta(2, 4, rows) + 0.25 * y, 0.01, 0.99)
    return {
        "race": race,
        "sex": rng.choice(["f", "m"], rows),
        "y": y,
        "score": score,
        "made": (score >= 0.5).astype(int),
        "weight": rng.uniform(0.5, 2, rows),
        "age": rng.integers(18, 90, rows),
    }


def test_print_shows_groups_and_metrics() -> None:
    columns = people()
    found = audit(columns["y"], columns["race"], predictions=columns["made"])
    shown = str(found).splitlines()
    assert shown[0] == "3,000 examples, 3 groups by group; predictions"
    rate = found.groups[0].rates["positive_rate"]
    row = next(line for line in shown[shown.index("Groups") :] if line.startswith("asian"))
    assert f" {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}] " in row
    assert any(line.startswith("demographic_parity_difference ") for line in shown)
    assert any(line.startswith("Reference group: white; 95 % intervals") for line in shown)
    assert all(len(line) <= 80 for line in shown)


def test_an_audit_of_scores_has_every_number() -> None:
    columns = people()
    found = audit_columns(columns, label="y", groups="race", score="score", draws=500)
    ids = np.searchsorted(["asian", "black", "white"], columns["race"])
    plain = values(Counts.of(columns["y"], columns["made"], ids, names=["asian", "black", "white"]))
    assert {name: found.metrics[name].value for name in plain} == plain
    assert found.reference == "white"
    assert {"w1", "wd", "loss", "loss_difference", "largest_loss_gap"} <= set(found.metrics)
    for group in found.groups:
        chosen = columns["race"] == group.name
        assert group.examples == chosen.sum()
        y, score = columns["y"][chosen], columns["score"][chosen]
        assert group.loss.value == pytest.approx(log_loss(y, score), rel=1e-9)
        assert group.auc.value == pytest.approx(roc_auc_score(y, score))
        assert group.calibration_gap.value == pytest.approx((score - y).mean())
        assert sum(group.counts.values()) == group.examples
        assert sum(group.histogram) == pytest.approx(1.0)


def test_predictions_and_scores_at_the_threshold_agree() -> None:
    columns = people()
    by = "race,sex"
    scores = audit_columns(columns, label="y", groups=by, score="score", weight="weight", draws=500)
    made = audit_columns(
        columns, label="y", groups=by, prediction="made", weight="weight", draws=500
    )
    for name, measured in made.metrics.items():
        assert measured == scores.metrics[name]
    assert "w1" not in made.metrics
    assert [part.attributes for part in made.parts] == [("race",), ("sex",)]
    assert made.parts[1].groups[0].examples == (columns["sex"] == "f").sum()


def test_json_holds_everything_and_no_nan() -> None:
    columns = people(60)
    found = audit_columns(columns, label="y", groups="race,sex", score="score", draws=200)
    text = json.dumps(found.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert set(back["metrics"]["demographic_parity_difference"]) == {"value", "low", "high"}
    assert back["groups"]["white, f"]["rates"]["true_positive_rate"]["value"] is not None
    assert [part["attributes"] for part in back["parts"]] == [["race"], ["sex"]]
    assert back["metrics"]["separation_reported"]["value"] is None


def test_text_labels_and_predictions() -> None:
    columns = people()
    for name in ("y", "made"):
        columns[name] = np.where(columns[name], ">50K", "<=50K")
    asked = {"label": "y", "groups": "sex", "prediction": "made", "positive": ">50K", "draws": 50}
    assert audit_columns(columns, **asked).groups[0].rates["base_rate"].value < 0.5
    columns["made"] = np.full(len(columns["y"]), "<=50K")  # nobody: still predictions
    none = audit_columns(columns, **asked)
    assert none.groups[0].rates["positive_rate"].value == 0.0
    assert any("every prediction is 0" in note for note in none.notes)


def test_which_label_is_positive_holds_for_both() -> None:
    columns = people()
    by = "sex"
    usual = audit_columns(columns, label="y", groups=by, prediction="made", draws=50)
    turned = audit_columns(columns, label="y", groups=by, prediction="made", positive="0", draws=50)
    assert turned.metrics["inaccuracy"].value == usual.metrics["inaccuracy"].value
    before, after = usual.groups[0].rates, turned.groups[0].rates
    assert before["true_negative_rate"].value == after["true_positive_rate"].value


def test_float32_scores_are_compared_as_such() -> None:
    scores = np.array([0.7, 0.7, 0.2, 0.2], dtype=np.float32)
    found = audit([1, 0, 1, 0], [0, 0, 1, 1], scores=scores, threshold=0.7, draws=50)
    assert found.groups[0].rates["positive_rate"].value == 1.0


def test_rows_in_no_group_count_for_nothing() -> None:
    found = audit([1, 0, 1, 0, 1], [0, 0, 1, 1, -1], scores=[0.7, 0.2, 0.6, 0.1, 7.0], draws=50)
    assert found.dropped == 1
    assert "loss" in found.metrics


def test_groups_whose_levels_hold_commas() -> None:
    columns = people() | {
        "race": np.array(["a", "a, b"] * 1500),
        "sex": np.array(["b, c", "c"] * 1500),
    }
    found = audit_columns(columns, label="y", groups="race,sex", prediction="made", draws=50)
    assert [group.name for group in found.groups] == [
        "race='a', sex='b, c'",
        "race='a, b', sex='c'",
    ]


def test_notes_on_small_groups() -> None:
    found = audit(
        [0, 1, 0, 1, 1],
        [0, 0, 0, 0, 1],
        predictions=[0, 1, 1, 1, 0],
        names=["A", "B", "C"],
        draws=50,
    )
    assert "group 'C' has no examples" in found.notes
    assert any("'A' (4) and 'B' (1) have" in note for note in found.notes)


def test_scores_that_are_no_probabilities_have_no_loss() -> None:
    columns = people()
    columns["score"] = columns["score"] * 10 - 5
    by = "sex"
    found = audit_columns(columns, label="y", groups=by, score="score", threshold=0.0, draws=50)
    assert "loss" not in found.metrics
    assert "w1" in found.metrics
    assert any("not probabilities" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"label": "Y"}, "no column 'Y'; did you mean y"),
        ({"y": np.arange(40)}, {}, "not binary: 40 different values"),
        ({"score": np.array(["high"] * 40)}, {}, "score must hold numbers, found 'high'"),
        ({"score": np.full(40, np.nan)}, {}, "'score' is missing in 40 of 40 rows"),
        ({}, {"reference": "purple"}, "'purple'; there are f and m"),
        ({}, {"score": None}, "either predictions or scores"),
        ({}, {"level": 1.5}, "between 0 and 1, got 1.5"),
        ({}, {"threshold": float("nan")}, "threshold is NaN"),
        ({"weight": np.zeros(40)}, {"weight": "weight"}, "all weights are 0"),
    ],
)
def test_refusals(change, arguments, message: str) -> None:
    columns = people(40) | change
    settings = {"label": "y", "score": "score", "groups": "sex", "draws": 50} | arguments
    with pytest.raises(ValueError, match=message):
        audit_columns(columns, **settings)


def test_a_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of METRICS: it is then in the audit, its JSON, its text on the terminal and its page."""
    own = Metric(
        "missed_difference",
        ("false_negative_rate",),
        lambda parts: spread(parts[0]),
        "largest",
        "largest minus smallest false negative rate",
        "this test",
    )
    monkeypatch.setitem(METRICS, own.name, own)
    columns = people(400)
    pd.DataFrame(columns).to_csv(tmp_path / "made.csv", index=False)
    found = audit_columns(columns, label="y", groups="race", prediction="made", draws=200)
    rates = [group.rates["false_negative_rate"].value for group in found.groups]
    assert found.metrics[own.name].value == pytest.approx(max(rates) - min(rates))
    files = {"--json": tmp_path / "a.json", "--html": tmp_path / "a.html"}
    options = [str(part) for pair in files.items() for part in pair]
    words = shlex.split("--label y --group race --prediction made")
    printed = call("audit", tmp_path / "made.csv", *words, *options)
    assert own.name in printed
    assert own.source in printed
    assert own.name in json.loads(files["--json"].read_text())["metrics"]
    assert capital(own.words) in files["--html"].read_text()
