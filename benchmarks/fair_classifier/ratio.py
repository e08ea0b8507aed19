"""The four-fifths rule on census tables: no group's rate of positive decisions below 0.8 of
another's.

    OMP_NUM_THREADS=1 python benchmarks/fair_classifier/ratio.py [--states NC,TN] [--cases
    races5,two]

`demographic_parity_ratio` with the group at prediction and without it, beside Fairlearn's
ExponentiatedGradient with `DemographicParity(ratio_bound=8 / 9)`, which compares every group with
all examples: between two groups of one size it means 0.8. Base model, tables, cases and states are
those of many_groups.py. The ratio is the smallest rate over the largest, on up to 20,000 test
examples, over groups with 100 of them or more; it is kept where no pair of groups is below 0.8 by
more than two standard errors.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from fairlearn.reductions import DemographicParity, ExponentiatedGradient
from many_groups import CASES, COUNTED, REPORT, Data, base_model, make
from numpy.typing import NDArray

from fairbound.integrations.sklearn import FairPostprocessor

RATIO = 0.8


def ours(aware: bool) -> Callable[..., Any]:
    def contestant(train: Data, test: Data, seed: int) -> tuple[NDArray[Any], str]:
        settings: dict[str, Any] = {
            "constraint": "demographic_parity_ratio",
            "bound": RATIO,
            "random_state": seed,
        }
        model = FairPostprocessor(base_model(train, seed), **settings, group_at_prediction=aware)
        model.fit(train.X, train.y, sensitive_features=train.group)
        return model.predict(test.X, test.group if aware else None), model.verdict_.decision

    return contestant


def plain(train: Data, test: Data, seed: int) -> tuple[NDArray[Any], str]:
    return base_model(train, seed).fit(train.X, train.y).predict(test.X), ""


def reduction(train: Data, test: Data, seed: int) -> tuple[NDArray[Any], str]:
    to_all = 2 * RATIO / (1 + RATIO)
    model = ExponentiatedGradient(
        base_model(train, seed), DemographicParity(ratio_bound=to_all), max_iter=30
    )
    model.fit(train.X, train.y, sensitive_features=train.group)
    return model._pmf_predict(test.X)[:, 1], ""


CONTESTANTS = {
    "plain": plain,
    "ours+group": ours(aware=True),
    "ours": ours(aware=False),
    "ExponentiatedGradient": reduction,
}


def ratio(decision: NDArray[Any], group: NDArray[Any]) -> tuple[float, bool]:
    """The smallest rate over the largest, and whether every pair may have `RATIO`."""
    names, sizes = np.unique(group, return_counts=True)
    counted = [
        decision[group == name] for name, size in zip(names, sizes, strict=True) if size >= COUNTED
    ]
    rates, errors = (
        np.array([f(one) for one in counted]) for f in (np.mean, lambda one: one.var() / len(one))
    )
    short = RATIO * rates[:, None] - rates
    noise = 2 * np.sqrt(RATIO**2 * errors[:, None] + errors)
    return float(rates.min() / rates.max()), bool((short <= noise).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--states", default=",".join(REPORT))
    parser.add_argument("--cases", default="races5,two")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in options.cases.split(","):
        for state in options.states.split(","):
            train, test = make(CASES[case], state, seed=0)
            for name, contestant in CONTESTANTS.items():
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    decision, says = contestant(train, test, 0)
                smallest, kept = ratio(decision, test.group)
                accuracy = np.where(test.y == 1, decision, 1 - decision).mean()
                rows.append((case, state, name, accuracy, smallest, kept, decision.mean(), says))
                seconds = time.process_time() - start
                print(
                    *rows[-1][:3],
                    f"{accuracy:.4f} {smallest:.3f} {kept} {says} {seconds:.0f} s",
                    flush=True,
                )
    columns = ["case", "state", "contestant", "accuracy", "ratio", "kept", "positive", "says"]
    found = pd.DataFrame(rows, columns=columns).groupby(["case", "contestant"], sort=False)
    means = found[["accuracy", "ratio", "positive"]].mean()
    print(means.assign(kept=found["kept"].sum(), of=found.size()).round(3))


if __name__ == "__main__":
    main()
