"""Impact ratios of New York City's Local Law 144 (6 RCNY 5-300, 5-301) beside relfair's.

    pip install relfair && python benchmarks/local_law_144.py [applicants.csv]

relfair 0.1.0 compares every category with the most selected one, however small that is; fairbound
sets categories below 2 % of the applicants apart. The figures must be equal to 1e-12 for all other
categories, wherever the most selected one is not small. Without a file, 3,000 applicants of six
races and two sexes are made, some of unknown race or sex.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from fairbound import audit_columns
from fairbound.auditing import Audit

TOLERANCE = 1e-12
RACES = {
    "White": 0.40,
    "Black or African American": 0.20,
    "Hispanic or Latino": 0.18,
    "Asian": 0.14,
    "Two or More Races": 0.065,
    "American Indian or Alaska Native": 0.015,
}


def applicants(rows: int = 3000, seed: int = 144) -> pd.DataFrame:
    """A table with scores in steps of a half, so that many equal their median."""
    rng = np.random.default_rng(seed)
    race = rng.choice(list(RACES), rows, p=list(RACES.values()))
    sex = rng.choice(["Female", "Male"], rows)
    score = 50 + 8 * (rng.standard_normal(rows) + 0.3 * (race == "White") + 0.2 * (sex == "Male"))
    score = np.round(2 * score) / 2
    table = pd.DataFrame({"race": race, "sex": sex, "score": score})
    table["selected"] = (score + rng.normal(0, 6, rows) > 56).astype(int)
    table.loc[rng.random(rows) < 0.06, "race"] = None
    table.loc[rng.random(rows) < 0.05, "sex"] = None
    return table


def ours(table: pd.DataFrame, made: dict[str, str]) -> dict[str, Audit]:
    """The audits of race and sex together, and of each alone."""
    columns = {name: table[name].to_numpy() for name in table}
    crossed = audit_columns(columns, groups="race,sex", intervals=False, **made)
    return {" x ".join(part.attributes): part for part in (crossed, *crossed.parts)}


def theirs(table: pd.DataFrame, made: dict[str, str]) -> dict[str, dict[str, Any]]:
    """relfair's statistics of every category, under our names."""
    from relfair.metrics import compute_ll144_metrics

    kind = "score" if "score" in made else "binary"
    (outcome,) = made.values()
    results = compute_ll144_metrics(
        table, outcome_col=outcome, outcome_type=kind, sex_col="sex", race_col="race", n_boot=1
    )
    return {
        "race": {category.group: category for category in results.by_race},
        "sex": {category.group: category for category in results.by_sex},
        "race x sex": {f"{cell.race}, {cell.sex}": cell for cell in results.intersectional},
    }


def largest_difference(audited: Audit, categories: dict[str, Any]) -> float:
    """The largest difference of a count, selection rate or impact ratio, over all categories that
    are not small."""
    differences = [0.0]
    for group in audited.groups:
        category = categories[group.name]
        differences.append(abs(group.examples - category.n))
        differences.append(abs(group.counts["selected"] - category.selected))
        differences.append(abs(group.rates["positive_rate"].value - category.rate))
        if group in audited.compared:
            gap = group.against_reference.get("positive_rate")
            differences.append(abs((gap.ratio.value if gap else 1.0) - category.ratio))
    return max(differences)


def main() -> None:
    table = pd.read_csv(sys.argv[1]) if len(sys.argv) > 1 else applicants()
    try:
        import relfair
    except ImportError:
        relfair = None
        print("relfair is not installed: nothing to compare with; pip install relfair")
    worst = 0.0
    for made in ({"prediction": "selected"}, {"score": "score"}):
        audits = ours(table, made)
        categories = theirs(table, made) if relfair else {}
        for name, audited in audits.items():
            ratio = audited.metrics["demographic_parity_ratio"].value
            line = f"{next(iter(made.values()))} by {name}: smallest impact ratio {ratio:.4f}"
            line += f", {audited.dropped} unknown, reference {audited.reference}"
            if relfair:
                difference = largest_difference(audited, categories[name])
                line += f", at most {difference:.1e} from relfair's figures"
                worst = max(worst, difference)
            print(line)
    if worst > TOLERANCE:
        raise SystemExit(f"a figure differs from relfair's by {worst:.1e}, more than {TOLERANCE}")


if __name__ == "__main__":
    main()
