"""Our numbers beside the paper's, and the choice of settings that both make.

A number of ours meets the paper's where it is within two of the paper's standard deviations of it.

The paper chooses settings by "the lowest loss value with the least constraint violation", which no single row need
have. Our rule: the smallest mean loss among the rows whose mean violation is at most `TOLERANCE` above the smallest
mean violation. The paper gives no number: the tolerance was fitted, after the fact, to the eight choices that its
appendix states, of which it gives seven, so it describes them, and their agreement proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from fairbound.benchmark.entry import Printed

HALF_A_DIGIT = 0.0005  # the appendix prints three digits: a standard deviation of 0.000 is one below this
OTHER_VARIANTS = ("Wd of logits",)  # beside a number of the paper that another line stands beside too
TOLERANCE = 0.0035  # of violation, in the rule above: the middle of what fits
PAPERS_CHOICE = {  # appendix B: the row that it says it picks
    "tune-ok-ssw": "eta_f 0.05, eta_c 0.04",  # B.1.1
    "tune-ok-sslalm": "tau 0.01, eta 0.05, mu 0",  # B.1.2; the second best, mu 2, is its SSL-ALM
    "tune-ok-ghost": "alpha 0.05, decay 0.05, rho 0.1, beta 20",  # B.1.3
    "tune-ok-fairret": "weight 3, tau 0.05",  # B.1.4
    "tune-va-ssw": "eta_f 0.05, eta_c 0.25 decaying",  # B.2.1
    "tune-va-sslalm": "tau 0.05, eta 0.01",  # B.2.2
    "tune-va-ghost": "alpha 0.01, decay 0.2, rho 0.1, beta 5",  # B.2.3
    "tune-va-penalty": "weight 0.4",  # B.2.4
}


def beside(ours: pd.DataFrame, paper: Sequence[Printed | None]) -> pd.DataFrame:
    """Ours (columns mean, std), the paper's for each line or None, their difference, and whether it is a large one.

    >>> ours = pd.DataFrame({"mean": [0.45], "std": [0.01]})
    >>> beside(ours, [Printed(0.40, 0.02)])[["difference", "differs"]].round(6).values.tolist()
    [[0.05, True]]
    """
    printed = [(math.nan, math.nan) if one is None else one for one in paper]
    found = ours.join(pd.DataFrame(printed, columns=["paper mean", "paper std"], index=ours.index, dtype=float))
    found["difference"] = found["mean"] - found["paper mean"]
    near = found["difference"].abs() <= 2 * _deviation(found["paper std"])  # what is not finite is not near
    found["differs"] = (~near).astype(object).where(found["difference"].notna())
    return found


def _deviation(std: pd.Series) -> pd.Series:
    return std.clip(lower=HALF_A_DIGIT)


def comparisons(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One line for each number of the paper that a table has ours beside: of all tables that `beside` made.

    Columns row, figure, mean, std, paper mean, paper std, difference, differs, and deviations: how many of the paper's.
    """
    found = []
    for frame in frames:
        figures = frame["figure"] if "figure" in frame else pd.Series("", index=frame.index)
        own = ~figures.isin(OTHER_VARIANTS)
        names = [name for name, field in frame.columns if field == "differs"]
        of_names = [
            frame[name].assign(row=frame["row"], figure=figures.where(figures == "", figures + ", ") + name)[own]
            for name in names
        ]
        if names:
            found.append(pd.concat(of_names).sort_index(kind="stable"))  # as a table is read, line by line
    if not found:
        return pd.DataFrame(columns=["row", "figure", "differs"])
    every = pd.concat(found, ignore_index=True)
    every = every[every["differs"].notna()].reset_index(drop=True)
    return every.assign(deviations=every["difference"].abs() / _deviation(every["paper std"]))


def chosen(figures: Mapping[str, tuple[float, float]], tolerance: float = TOLERANCE) -> str | None:
    """The row with the smallest loss of those whose violation is within the tolerance of the smallest violation.

    Figures are (mean loss, mean violation) by row; rows that diverged are never chosen.

    >>> chosen({"free": (0.40, 0.030), "near": (0.50, 0.003), "strict": (0.60, 0.0)})
    'near'
    """
    finite = {name: pair for name, pair in figures.items() if np.isfinite(pair).all()}
    if not finite:
        return None
    most = min(violation for _, violation in finite.values()) + tolerance
    return min((name for name in finite if finite[name][1] <= most), key=lambda name: finite[name])
