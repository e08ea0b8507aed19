"""Audits without labels: selection rates, scoring rates and impact ratios of New York City's Local
Law 144 (6 RCNY 5-300, 5-301), beside the definitions written out in numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import call

from fairbound.auditing import Audit, audit, audit_columns

RACES = {"White": 0.5, "Black": 0.28, "Asian": 0.2, "Native": 0.02 * 2 / 3}


def applicants(rows: int = 3000) -> dict[str, np.ndarray]:
    """Some of unknown race or sex; scores with ties at the median; of the smallest race, which is
    below 2 % of the rows, most are selected."""
    rng = np.random.default_rng(144)
    share = np.array([*RACES.values()]) / sum(RACES.values())
    race = rng.choice([*RACES], rows, p=share).astype(object)
    sex = rng.choice(["f", "m"], rows).astype(object)
    shift = 0.5 * (race == "White") + 2.0 * (race == "Native") + 0.2 * (sex == "m")
    score = np.round(2 * (50 + 8 * (rng.standard_normal(rows) + shift))) / 2
    race[rng.random(rows) < 0.06] = None
    sex[rng.random(rows) < 0.05] = None
    selected = (score + rng.normal(0, 6, rows) > 56).astype(int)
    return {"race": race, "sex": sex, "score": score, "selected": selected}


def by_hand(columns: dict[str, np.ndarray], names: list[str], hit: np.ndarray) -> dict[str, tuple]:
    """Category -> its number, those selected, rate, and impact ratio (None below 2 %)."""
    frame = pd.DataFrame({name: columns[name] for name in names} | {"hit": hit}).dropna()
    numbers = {", ".join(key): part["hit"] for key, part in frame.groupby(names)}
    large = {name: part.mean() for name, part in numbers.items() if len(part) >= 0.02 * len(hit)}
    return {
        name: (
            len(part),
            part.sum(),
            part.mean(),
            large[name] / max(large.values()) if name in large else None,
        )
        for name, part in numbers.items()
    }


def impact_ratio(audited: Audit, group: str) -> float | None:
    """1 of the reference group, None of a group that is not compared."""
    (chosen,) = (one for one in audited.groups if one.name == group)
    if group == audited.reference:
        return 1.0
    gap = chosen.against_reference.get("positive_rate")
    return None if gap is None else gap.ratio.value


@pytest.mark.parametrize("made", ["prediction", "score"])
def test_rates_and_impact_ratios_follow_the_rule(made: str) -> None:
    columns = applicants()
    column = {"prediction": "selected", "score": "score"}[made]
    hit = columns["selected"]
    if made == "score":  # above the median of all applicants, unknown ones too, and not equal to it
        hit = columns["score"] > np.median(columns["score"])
        assert (columns["score"] == np.median(columns["score"])).sum() > 10
    crossed = audit_columns(columns, groups="race,sex", draws=200, **{made: column})
    assert [part.attributes for part in crossed.parts] == [("race",), ("sex",)]
    for audited in (crossed, *crossed.parts):
        names = [*audited.attributes]
        expected = by_hand(columns, names, hit)
        assert {group.name for group in audited.groups} == set(expected)
        for group in audited.groups:
            size, selected, rate, ratio = expected[group.name]
            assert group.examples == size
            assert group.counts == {"selected": selected, "not_selected": size - selected}
            assert group.rates.keys() == {"positive_rate"}
            assert group.rates["positive_rate"].value == pytest.approx(rate, abs=1e-12)
            assert impact_ratio(audited, group.name) == (
                None if ratio is None else pytest.approx(ratio, abs=1e-12)
            )
        ratios = [ratio for *_, ratio in expected.values() if ratio is not None]
        smallest = audited.metrics["demographic_parity_ratio"]
        assert smallest.value == pytest.approx(min(ratios), abs=1e-12)
        assert 0 < smallest.low < smallest.value < smallest.high <= 1
        lacking = np.any([pd.isna(columns[name]) for name in names], axis=0).sum()
        assert audited.dropped == lacking > 0
    race = crossed.parts[0]
    native = next(group for group in race.groups if group.name == "Native")
    others = [g.rates["positive_rate"].value for g in race.groups if g is not native]
    assert native.rates["positive_rate"].value > max(others)
    assert race.reference != "Native"
    assert "equal_opportunity_difference" not in race.metrics
    assert ("w1" in crossed.metrics) == (made == "score")
    assert "auc_difference" not in crossed.metrics
    json.dumps(crossed.to_dict(), allow_nan=False)


def test_arrays_weights_and_medians() -> None:
    groups = np.array(["a", "a", "b", "b", None, "b"], dtype=object)
    scores = np.array([1, 2, 2, 3, 9, 9], dtype=np.float32)
    found = audit(None, groups, scores=scores, draws=50)  # the median is 2.5
    assert [group.counts["selected"] for group in found.groups] == [0, 2]
    assert found.dropped == 1
    assert found.reference == "b"
    weights = [1, 1, 1, 4, 1, 0]  # of 8, half lie below 3 and half from 3 on
    heavy = audit(None, groups, scores=scores, weights=weights, draws=50)
    assert heavy.threshold == pytest.approx(3.0)
    assert (
        audit(None, groups, scores=scores, threshold=2, draws=50).groups[0].counts["selected"] == 1
    )
    with pytest.raises(ValueError, match="NaN"):
        audit(None, groups, scores=[np.nan, *scores[1:]])


def test_the_command_needs_no_label(tmp_path: Path) -> None:
    columns = applicants()
    columns["selected"] = np.where(columns["selected"], "yes", "no")
    pd.DataFrame(columns).to_csv(tmp_path / "tool.csv", index=False)
    options = ["audit", tmp_path / "tool.csv", "--group", "race,sex"]
    printed = call(*options, "--prediction", "selected", "--csv", tmp_path / "groups.csv")
    assert "Selection rates and impact ratios by race x sex" in printed
    assert f"Unknown: {pd.isna(columns['sex']).sum()} examples" in printed
    table = pd.read_csv(tmp_path / "groups.csv")
    assert {"selected", "positive_rate", "positive_rate_ratio_low"} <= set(table)
    assert "above the median" in " ".join(call(*options, "--score", "score").split())
    call(*options, "--score", "score", "-o", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "impact ratio" in page
    assert "small: not compared" in page
