"""Values of an audit beside Fairlearn's, AIF360's and scikit-learn's, on three tables; exits with 1
where two differ.

    python benchmarks/audit_peers.py          # AIF360 is left out where it is not installed (pip
    install aif360)

Scores on the tables are continuous, rounded, and of a rare group. Group rates, AUC and calibration
by group; published differences and ratios under each library's own definition.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from fairlearn import metrics as fairlearn
from sklearn.calibration import calibration_curve
from sklearn.metrics import recall_score, roc_auc_score

from fairbound import audit

TOLERANCE = 1e-9
LIBRARIES = ("fairbound", "Fairlearn", "AIF360", "scikit-learn")
BETWEEN = ("demographic_parity_difference", "demographic_parity_ratio", "equalized_odds_difference")
AGAINST = {  # ours -> AIF360's name; the privileged group against the others
    "statistical_parity_difference": "statistical_parity_difference",
    "equal_opportunity_difference": "equal_opportunity_difference",
    "average_odds_difference": "average_odds_difference",
    "disparate_impact": "disparate_impact_ratio",
}

Row = dict[str, float]  # library -> value


def table(seed: int, kind: str, rows: int = 3_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores and groups 0 and 1, the privileged one."""
    rng = np.random.default_rng(seed)
    group = (rng.random(rows) < (0.03 if kind == "rare" else 0.4)).astype(int)
    label = (rng.random(rows) < 0.35 + 0.1 * group).astype(int)
    score = np.clip(rng.beta(2, 3, rows) + 0.2 * label + 0.1 * group, 0, 1)
    return label, score.round(2) if kind == "rounded" else score, group


def values(label: np.ndarray, score: np.ndarray, group: np.ndarray, aif360: Any) -> dict[str, Row]:
    """Quantity -> its value in every library that has it."""
    made = (score >= 0.5).astype(int)
    found = audit(
        label, group, scores=score, names=["others", "privileged"], reference="privileged", draws=50
    )
    rows: dict[str, Row] = {}
    for name in BETWEEN:
        theirs: Callable[..., float] = getattr(fairlearn, name)
        rows[name] = {
            "fairbound": found.metrics[name].value,
            "Fairlearn": theirs(label, made, sensitive_features=group),
        }
    for name, other in AGAINST.items():
        rows[name] = {"fairbound": found.metrics[name].value}
        if aif360:
            rows[name]["AIF360"] = getattr(aif360, other)(
                label, made, prot_attr=group, priv_group=1
            )
    frame = {
        "positive_rate": fairlearn.selection_rate,
        "true_positive_rate": fairlearn.true_positive_rate,
    }
    for g, own in enumerate(found.groups):
        y, s, p = (column[group == g] for column in (label, score, made))
        for name, theirs in frame.items():
            rows[f"{name}, {own.name}"] = {
                "fairbound": own.rates[name].value,
                "Fairlearn": theirs(y, p),
            }
        rows[f"true_positive_rate, {own.name}"]["scikit-learn"] = recall_score(y, p)
        rows[f"AUC, {own.name}"] = {"fairbound": own.auc.value, "scikit-learn": roc_auc_score(y, s)}
        share, mean = calibration_curve(y, s, n_bins=10)
        for i, (bin_share, bin_mean) in enumerate(zip(share, mean, strict=True)):
            one = own.calibration[i]
            rows[f"calibration {i}, {own.name}"] = {
                "fairbound": one.rate.value,
                "scikit-learn": bin_share,
            }
            rows[f"mean score {i}, {own.name}"] = {"fairbound": one.score, "scikit-learn": bin_mean}
    return rows


def main() -> int:
    warnings.simplefilter("ignore")
    try:
        aif360 = import_module("aif360.sklearn.metrics")
    except ImportError as error:
        aif360 = None
        print(f"AIF360 is left out: {error}")
    different = 0
    for seed, kind in enumerate(("continuous", "rounded", "rare")):
        print(f"\n{kind:44}" + "".join(f"{library:>14}" for library in LIBRARIES))
        for name, row in values(*table(seed, kind), aif360).items():
            apart = max(row.values()) - min(row.values())
            different += apart > TOLERANCE
            shown = "".join(
                f"{row[library]:14.6f}" if library in row else f"{'':>14}" for library in LIBRARIES
            )
            print(f"{name:44}{shown}" + ("  DIFFER" if apart > TOLERANCE else ""))
    print(f"\n{different} quantities differ by more than {TOLERANCE:g}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
