"""Settings for the rows of methods-*.toml, chosen on census data of other states than those of the
experiments.

    OMP_NUM_THREADS=1 python benchmarks/tune_methods.py race       Experiment 1's form on Alabama
    OMP_NUM_THREADS=1 python benchmarks/tune_methods.py marital    Experiment 2's form on North
    Carolina
        [--only "Tracked SQP" ...] [--share 0.5] [--seeds 3] [--out /tmp/tuned]

For every row at most 12 combinations of step sizes and what else decides (GRIDS), each with half of
the experiment's steps and the same total decay of its step sizes. Chosen is the smallest loss on
training examples among the combinations whose largest violation there is at most .01 above the
bound, else the smallest violation; medians over seeds. Plain SGD has no constraints, so its loss
decides. The test examples decide nothing.

The combinations of a row are one stack; results stay in a store (--out), so what was computed is
not computed again. Needs the 42-state file (FAIRBOUND_DATA or ../shared/data).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fairbound.benchmark._engine import Engine
from fairbound.benchmark._entry import Entry
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._results import Results
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import Study, load_study

DATA = Path(os.environ.get("FAIRBOUND_DATA") or Path(__file__).parents[2] / "shared" / "data")
FILE = DATA / "acs" / "acsincome_2018_42states.parquet"
# state and its FIPS code
FORMS = {"race": ("methods-ok-race", "AL", 1), "marital": ("methods-va-marital", "NC", 37)}
TOLERANCE = 0.01  # above the bound
UNCONSTRAINED = ("SGD",)  # rows that their loss decides
ROW_FIELDS = ("fairret",)  # what a grid varies of a row beside its settings


def falling(*starts: float) -> list[dict[str, Any]]:
    """Step sizes that fall linearly over the run, to a twentieth."""
    return [{"schedule": "Linear", "start": start, "steps": "run", "end": 0.05} for start in starts]


SSLALM_GRID = {"tau": falling(0.05, 0.1), "eta": falling(0.02, 0.05, 0.1), "rho": [0.3, 1.0]}
GRIDS: dict[str, dict[str, list[Any]]] = {  # by row: the choices, at most 12 combinations
    "SGD": {"tau": falling(0.05, 0.1, 0.2, 0.4)},
    "SGD-Fairret": {"tau": falling(0.1, 0.2), "fairret": [0.3, 1.0, 2.0, 3.0]},
    "Penalty": {"tau": falling(0.1, 0.2), "weight": [0.4, 1.0, 1.3, 1.6, 2.0, 3.0]},
    "Exact penalty, tracked": {
        "tau": falling(0.05, 0.1),
        "weight": [1.0, 2.0, 4.0],
        "gamma": [0.01, 0.03],
    },
    "Switching subgradient": {
        "eta_f": falling(0.05, 0.1),
        "eta_c": falling(0.04, 0.1),
        "eps": [0.0, 0.02, 0.05],
    },
    "Descent-ascent": {"tau": falling(0.05, 0.1, 0.2), "eta": falling(0.01, 0.03, 0.1)},
    "nuPI": {"tau": falling(0.05, 0.1), "eta": falling(0.01, 0.03, 0.1), "kp": [1.0, 5.0]},
    "SSL-ALM": SSLALM_GRID,
    "SSL-ALM, lagged": SSLALM_GRID,
    "ALM": SSLALM_GRID,
    "PHR-ALM": {"tau": falling(0.05, 0.1), "eta": falling(0.01, 0.05, 0.1), "rho": [0.5, 2.0]},
    "SPBM": {"tau": falling(0.1, 0.2), "eta": falling(0.02, 0.05, 0.1), "p": [0.5, 1.0]},
    "Ghost": {"schedule": falling(0.05, 0.1, 0.3), "p0": [0.4, 0.6], "lam": [0.5, 0.9]},
    "Tracked SQP": {"alpha": falling(0.05, 0.1, 0.2), "lam": [0.5, 0.9], "least": [0.005, 0.02]},
    "SQP-Adam": {"alpha": falling(0.003, 0.01, 0.03), "rho": [0.2, 1.0], "least": [0.001, 0.005]},
    "Level-constrained": {"tau": falling(0.1, 0.2, 0.4), "L": [1.0, 10.0], "z": [0.0, 0.2]},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--only", nargs="+", choices=GRIDS, default=list(GRIDS), metavar="ROW")
    parser.add_argument("--share", type=float, default=0.5, help="of the experiment's steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("/tmp/tuned"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    name, state, code = FORMS[asked.form]
    folder, store = census(state, code, asked.out / "data"), Store(asked.out / "results")
    study = load_study(name).on(source=f"acs:{state}", folder=folder)
    print(f"{name} on acs:{state}, {asked.seeds} seeds, {asked.share:g} of the steps")
    for entry in [entry for entry in study.entries if entry.name in asked.only]:
        before = time.process_time()
        found, settings = tuned(candidates(study, entry, asked.share, asked.seeds), store)
        best = choice(found, entry.name in UNCONSTRAINED)
        print(
            f"\n{entry.name}, {time.process_time() - before:.0f} s of CPU"
            f" time\n{found.to_string(float_format='%.4f')}"
        )
        print(f"chosen: {settings[best]}", flush=True)


def census(state: str, code: int, folder: Path) -> Path:
    """The folder of a file with the state's rows of the 42-state file."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.read_parquet(FILE, filters=[("ST", "==", code)]).to_parquet(
        folder / f"acsincome_2018_{state}.parquet"
    )
    return folder


def candidates(study: Study, entry: Entry, share: float, seeds: int) -> Study:
    """The study with the entry's combinations as its entries, measured at the end."""
    grid, plan = GRIDS[entry.name], Plan(study)
    made = []
    for values in product(*grid.values()):
        picked = dict(zip(grid, values, strict=True))
        own = {name: picked.pop(name) for name in ROW_FIELDS if name in picked}
        name = ", ".join(map(_words, (own | picked).items()))
        one = replace(entry, name=name, settings={**entry.settings, **picked}, **own)
        made.append(replace(one, steps=max(1, round(share * plan.equal_steps(one)))))
    return replace(study, entries=tuple(made), seeds=seeds, records=1)


def _words(setting: tuple[str, Any]) -> str:
    name, value = setting
    return f"{name} {value['start'] if isinstance(value, Mapping) else value:g}"


def tuned(study: Study, store: Store) -> tuple[pd.DataFrame, dict[str, Mapping[str, Any]]]:
    """Medians of loss, violation and the largest violation over seeds, by combination; and the
    settings of each."""
    plan = Plan(study)
    plan.compute(store, Engine())
    final = Results.read(plan.stored(store), store).final
    by_row = final[final["part"] == "train"].groupby("row", sort=False)[["loss", "violation"]]
    found = by_row.median()
    found["largest violation"] = by_row.max()["violation"]
    return found, {
        entry.name: {**entry.settings, "fairret": entry.fairret} for entry in study.entries
    }


def choice(found: pd.DataFrame, by_loss: bool = False) -> str:
    """The combination that is chosen.

    >>> choice(
    ...     pd.DataFrame(
    ...         {"loss": [0.4, 0.5, 0.3], "violation": [0.01, 0.0, 0.02]}, index=["a", "b", "c"]
    ...     )
    ... )
    'a'
    """
    within = found[found["violation"] <= TOLERANCE]
    if len(within) or by_loss:
        return str((found if by_loss else within)["loss"].idxmin())
    return str(found["violation"].idxmin())


if __name__ == "__main__":
    main()
