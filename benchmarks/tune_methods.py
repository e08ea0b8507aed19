"""Settings for the rows of methods-*.toml, chosen on census data of other states than those of the experiments.

    OMP_NUM_THREADS=1 python benchmarks/tune_methods.py race       Experiment 1's form on Alabama
    OMP_NUM_THREADS=1 python benchmarks/tune_methods.py marital    Experiment 2's form on North Carolina
        [--only "Tracked SQP" ...] [--share 0.5] [--seeds 3] [--out /tmp/tuned]

For every row at most 12 combinations of step sizes and what else decides (GRIDS), each with half of the experiment's
steps and the same total decay of its step sizes. Chosen is the smallest loss on training examples among
the combinations whose largest violation there is at most .01 above the bound, else the smallest violation; medians over
seeds. Plain SGD has no constraints, so its loss decides. The test examples decide nothing.

The combinations of a row are one stack; results stay in a store (--out), so what was computed is not computed again.
Needs the 42-state file (FAIRBOUND_DATA or ../shared/data).
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

from fairbound.benchmark.config import Experiment, Row, load
from fairbound.benchmark.executor import execute, run_batches
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.results import Results
from fairbound.benchmark.store import Store
from fairbound.data.sources import load as load_data
from fairbound.data.table import Table

DATA = Path(os.environ.get("FAIRBOUND_DATA") or Path(__file__).parents[2] / "shared" / "data")
FILE = DATA / "acs" / "acsincome_2018_42states.parquet"
FORMS = {"race": ("methods-ok-race", "AL", 1), "marital": ("methods-va-marital", "NC", 37)}  # state and its FIPS code
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
    "Exact penalty, tracked": {"tau": falling(0.05, 0.1), "weight": [1.0, 2.0, 4.0], "gamma": [0.01, 0.03]},
    "Switching subgradient": {"eta_f": falling(0.05, 0.1), "eta_c": falling(0.04, 0.1), "eps": [0.0, 0.02, 0.05]},
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--only", nargs="+", choices=GRIDS, default=list(GRIDS), metavar="ROW")
    parser.add_argument("--share", type=float, default=0.5, help="of the experiment's steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("/tmp/tuned"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    name, state, code = FORMS[asked.form]
    experiment, table, store = load(name), census(state, code, asked.out / "data"), Store(asked.out / "results")
    print(f"{name} on {table.source}, {asked.seeds} seeds, {asked.share:g} of the steps")
    for row in [row for row in experiment.rows if row.name in asked.only]:
        before = time.process_time()
        found, settings = tuned(candidates(experiment, row, asked.share, asked.seeds), table, store)
        best = choice(found, row.name in UNCONSTRAINED)
        print(f"\n{row.name}, {time.process_time() - before:.0f} s of CPU time\n{found.to_string(float_format='%.4f')}")
        print(f"chosen: {settings[best]}", flush=True)


def census(state: str, code: int, folder: Path) -> Table:
    """The state's rows of the 42-state file, by way of a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.read_parquet(FILE, filters=[("ST", "==", code)]).to_parquet(folder / f"acsincome_2018_{state}.parquet")
    return load_data(f"acs:{state}", folder=folder)


def candidates(experiment: Experiment, row: Row, share: float, seeds: int) -> Experiment:
    """The experiment with the row's combinations as its rows, measured at the end."""
    grid = GRIDS[row.name]
    made = []
    for values in product(*grid.values()):
        picked = dict(zip(grid, values, strict=True))
        own = {name: picked.pop(name) for name in ROW_FIELDS if name in picked}
        name = ", ".join(map(_words, (own | picked).items()))
        one = replace(row, name=name, settings={**row.settings, **picked}, **own)
        made.append(replace(one, steps=max(1, round(share * experiment.equal_examples_steps(one)))))
    return replace(experiment, rows=tuple(made), seeds=seeds, records=1)


def _words(setting: tuple[str, Any]) -> str:
    name, value = setting
    return f"{name} {value['start'] if isinstance(value, Mapping) else value:g}"


def tuned(experiment: Experiment, table: Table, store: Store) -> tuple[pd.DataFrame, dict[str, Mapping[str, Any]]]:
    """Medians of loss, violation and the largest violation over seeds, by combination; and the settings of each."""
    prepared = PreparedExperiment.of(experiment, table)
    batches = run_batches(prepared)
    execute(prepared, store, batches)
    final = Results.read(prepared, store, batches).final
    by_row = final[final["part"] == "train"].groupby("row", sort=False)[["loss", "violation"]]
    found = by_row.median()
    found["largest violation"] = by_row.max()["violation"]
    return found, {row.name: {**row.settings, "fairret": row.fairret} for row in experiment.rows}


def choice(found: pd.DataFrame, by_loss: bool = False) -> str:
    """The combination that is chosen.

    >>> choice(pd.DataFrame({"loss": [0.4, 0.5, 0.3], "violation": [0.01, 0.0, 0.02]}, index=["a", "b", "c"]))
    'a'
    """
    within = found[found["violation"] <= TOLERANCE]
    if len(within) or by_loss:
        return str((found if by_loss else within)["loss"].idxmin())
    return str(found["violation"].idxmin())


if __name__ == "__main__":
    main()
