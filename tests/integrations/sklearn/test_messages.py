"""What a fit shows: progress, and a report that fits a terminal."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from fairbound.integrations.sklearn import FairClassifier


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    group = np.where(rng.random(1500) < 0.35, "women of a village in the far north-west of the county", "others")
    X = rng.standard_normal((1500, 4))
    y = (X.sum(1) - 2 * (group == "others") * X[:, 0] + rng.standard_normal(1500) > 0).astype(int)
    return {"X": X, "y": y, "sensitive_features": group}


def small(**settings: Any) -> FairClassifier:
    common = {"steps": 80, "hidden": (8,), "learning_rate": 0.2, "random_state": 0, "bound": 0.1, "compile": False}
    return FairClassifier(**common | settings)


def test_the_report_has_split_runs_decision_and_verdict_in_80_columns(data: dict[str, Any]) -> None:
    fair = small(mode="train_duals").fit(**data)
    text = fair.report()
    assert max(map(len, text.splitlines())) <= 80
    split = fair.parts_
    assert f"{len(split.train):,} train, {len(split.dual):,} dual" in text
    assert f"{fair.history_[-1]['loss']:.4f}" in text
    assert fair.verdict_.sentence.split()[0] in text
    joined = " ".join(text.split())
    assert f"Decision: {fair.decision_}" in joined
    assert " ".join(str(fair.verdict_).split()) in joined


def test_a_report_without_a_constraint_and_one_without_held_out_data(data: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="training is unconstrained"):
        plain = small().fit(data["X"], data["y"])
    assert "calibration" in plain.report()  # held out as with a constraint
    few = {name: column[:150] for name, column in data.items()}
    with pytest.warns(UserWarning, match="too few to hold any out"):
        fair = small().fit(**few)
    assert "too few to hold any out, so there is no verdict" in " ".join(fair.report().split())
    assert "on training data" in fair.decision_
    assert "validation data" not in fair.report()


def test_lines_where_there_is_no_terminal(data: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    small(mode="train_duals").fit(**data)
    assert capsys.readouterr().out == ""
    fair = small(mode="train_duals", verbose=True).fit(**data)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(not entry["averaged"] for entry in fair.history_)
    assert lines[-1].startswith("train_duals: step 80, loss ")


def test_lines_where_rich_is_not_installed(
    data: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without_rich(name: str, *rest: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    small(mode="train_duals", verbose=True).fit(**data)
    assert "train_duals: step 80, loss " in capsys.readouterr().out


def test_a_bar_in_a_terminal(
    data: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    small(mode="held_out_duals", verbose=True).fit(**data)
    out = capsys.readouterr().out
    assert out.count("100%") >= 2  # unconstrained, and held-out duals, which take half of the steps
    assert "held_out_duals: loss" in out
    assert "step 80" not in out
