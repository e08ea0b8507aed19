"""A table of your own
======================

A CSV file, two sensitive columns, a bound on recall, and a verdict on it.
The groups are the intersections of both columns. The recall of every group must be at least 0.6, or
0.9.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt

from fairbound import constraints, verdict
from fairbound.integrations.sklearn import FairClassifier

torch.set_num_threads(1)
rng = np.random.default_rng(0)
rows = 6000
table = pd.DataFrame(
    {
        "income": rng.lognormal(10, 0.5, rows),
        "debt": rng.lognormal(8, 1.0, rows),
        "years": rng.integers(0, 40, rows),
        "work": rng.choice(["own", "state", "none"], rows),
        "sex": rng.choice(["f", "m"], rows),
        "city": rng.choice(["north", "south"], rows, p=[0.7, 0.3]),
    }
)
risk = (
    np.log(table.debt)
    - 0.8 * np.log(table.income)
    - 0.01 * table.years
    + 0.5 * (table.city == "south")
)
table["repaid"] = (risk + 0.7 * rng.standard_normal(rows) < 0).astype(int)
file = Path(tempfile.mkdtemp()) / "loans.csv"
table.to_csv(file, index=False)

loans = pd.read_csv(file)
X, y, who = loans[["income", "debt", "years", "work"]], loans["repaid"], loans[["sex", "city"]]
groups = who["sex"] + ", " + who["city"]


def recall(names, bound):
    """Among those who repaid, at least `bound` of every group get the loan."""
    return constraints.minimum_rate(bound, groups=names, label=1)


for bound in (0.6, 0.9):
    fair = FairClassifier(constraint=recall, bound=bound, epochs=5, random_state=0).fit(
        X, y, sensitive_features=who
    )
    print(
        f"recall of every group at least {bound}: {fair.verdict_.decision}; accuracy"
        f" {fair.score(X, y):.3f}"
    )
    print(fair.verdict_)
    names = [gap.cell.removesuffix(", y=1") for gap in fair.verdict_.gaps]
    # signs turned
    recalls = np.array([[-gap.estimate, -gap.high, -gap.low] for gap in fair.verdict_.gaps])
    errors = np.abs(recalls[:, 1:] - recalls[:, :1]).T
    plt.errorbar(
        names,
        recalls[:, 0],
        errors,
        fmt="o",
        capsize=4,
        label=f"bound {bound}: {fair.verdict_.decision}",
    )
    plt.axhline(bound, color="gray", linestyle="--")

# The same question about any other model's predictions on held-out data.
guessed = (loans["debt"] < loans["income"]).astype(int)
print(verdict(recall(sorted(groups.unique()), 0.6), groups, predictions=guessed, labels=y).sentence)

plt.title("Verdict: recall of every group, 95 % intervals")
plt.legend()
plt.show()
