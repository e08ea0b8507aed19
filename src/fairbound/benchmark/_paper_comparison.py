"""Our numbers beside the paper's: a number of ours meets the paper's within two of the paper's
standard deviations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from fairbound.benchmark._entry import Printed

# the appendix prints three digits: a standard deviation of 0.000 is one below this
HALF_A_DIGIT = 0.0005
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
    """Ours (columns mean, std), the paper's for each line or None, their difference, and whether it
    is a large one.

    >>> ours = pd.DataFrame({"mean": [0.45], "std": [0.01]})
    >>> beside(ours, [Printed(0.40, 0.02)])[["difference", "differs"]].round(6).values.tolist()
    [[0.05, True]]
    """
    printed = [(math.nan, math.nan) if figure is None else figure for figure in paper]
    both = ours.join(
        pd.DataFrame(printed, columns=["paper mean", "paper std"], index=ours.index, dtype=float)
    )
    both["difference"] = both["mean"] - both["paper mean"]
    # what is not finite is not near
    near = both["difference"].abs() <= 2 * both["paper std"].clip(lower=HALF_A_DIGIT)
    both["differs"] = (~near).astype(object).where(both["difference"].notna())
    return both


def agreement(frames: Iterable[pd.DataFrame]) -> str:
    """How many numbers of the paper are met, of all that tables have ours beside; empty where they
    have none."""
    differs = [
        value
        for frame in frames
        for name in frame
        if name[1] == "differs"
        for value in frame[name].dropna()
    ]
    if not differs:
        return ""
    return (
        f"{differs.count(False)} of {len(differs)} comparisons with the paper's figures are within"
        " two of its standard deviations; every variant of a method is compared."
    )
