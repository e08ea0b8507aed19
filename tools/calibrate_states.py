"""Write `src/fairbound/data/synthetic_states.toml`: what the census of a state needs beside the shared tables.

    python tools/calibrate_states.py ../shared/data/acs

Run manually, after `calibrate_synthetic.py`, whose tables and Oklahoma and Virginia it leaves as they are. For the 40
other states of the extract: people by race and marital status, effects on income that meet the state's rates by race,
marital status and sex, and the states in which most of its people were born; no cell has fewer than SMALLEST people.
For the states that the extract lacks: OTHERS, and national figures for the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from calibrate_synthetic import (
    MARITAL,
    OWN,
    SMALLEST,
    Rates,
    birth_states,
    fields,
    merged_small,
    own_bands,
    synthetic,
)

import fairbound.data
from fairbound.data.acs_files import STATES
from fairbound.data.synthetic import LABEL, Population, facts

RACES = [1, 2, 3, 4, 5, 6, 7, 8, 9]
STRENGTH = 1.19  # between Oklahoma's (1.11) and Virginia's (1.27), which were fitted
BIRTHS = 8  # states of birth that are listed
BORN_HERE = 600  # thousandths of those born in the US; chosen by hand for OTHERS
WORKERS = 0.0050  # rows of ACSIncome per inhabitant: a sample of 1 %, of whom half have an income from work

# Inhabitants in millions and races in per cent (RAC1P 1, 2, 3 to 5, 6, 7, 8, 9), 2018: rounded,
# entered from memory and not checked against the Census Bureau's. The extract has no rows of these states.
OTHERS = {
    "CA": (39.6, [60, 6, 1, 15, 0, 14, 4]),
    "DC": (0.7, [41, 46, 0, 4, 0, 6, 3]),
    "FL": (21.3, [75, 16, 0, 3, 0, 3, 3]),
    "GA": (10.5, [58, 32, 0, 4, 0, 3, 3]),
    "LA": (4.7, [62, 32, 1, 2, 0, 1, 2]),
    "MI": (10.0, [78, 14, 1, 3, 0, 1, 3]),
    "NY": (19.5, [63, 16, 0, 9, 0, 9, 3]),
    "PR": (3.2, [66, 12, 0, 0, 0, 12, 10]),
    "TX": (28.7, [74, 12, 0, 5, 0, 6, 3]),
    "WA": (7.5, [76, 4, 1, 9, 1, 4, 5]),
}

HEADER = f"""\
# The synthetic census of the states other than Oklahoma and Virginia (synthetic.py). Written by
# tools/calibrate_states.py: change that, not this. Counts: people by RAC1P (rows) and MAR (1 to 5, columns). Effects:
# on the log-odds of an income above 50,000 dollars.
# basis = "extract": aggregates of the state's ACSIncome extract (2018, 1-Year) of the American Community Survey's
# public-use microdata, US Census Bureau; no cell has fewer than {SMALLEST} people.
# basis = "national": inhabitants and races are rounded figures of 2018, entered from memory and not checked against the
# Census Bureau's; marital status and effects are those of the extract's 42 states, places of birth chosen by hand.
"""


def main(folder: Path) -> None:
    everyone = pd.read_parquet(folder / "acsincome_2018_42states.parquet")
    shared = facts()
    nation = rates(everyone, everyone)
    lines = [HEADER, f"races = {RACES}", ""]
    for state, fips in sorted(STATES.items()):
        if state in shared["states"]:
            continue
        rows = everyone[everyone["ST"] == fips]
        own = of_extract(rows, fips) if len(rows) else of_nation(everyone, state, fips)
        targets = rates(rows, everyone) if len(rows) else nation
        population = Population.of(state, {**shared, "races": RACES, "states": {state: own}})
        effects, _ = synthetic(population, 400_000).fitted(STRENGTH, targets)
        own["strength"] = STRENGTH
        own["effects"] = {name: values.round(3).tolist() for name, values in effects.items()}
        lines += [f"[states.{state}]", *fields(own), ""]
        print(state, own["basis"], int(np.sum(own["counts"])), flush=True)
    target = Path(fairbound.data.__file__).with_name("synthetic_states.toml")
    target.write_text("\n".join(lines), encoding="utf-8")
    print(f"wrote {target}")


def record(fips: int, basis: str, counts: np.ndarray, births: dict[str, Any]) -> dict[str, Any]:
    effects = {name: [0.0] * len(starts) for name, starts in OWN.items()}
    return {
        "fips": fips,
        "basis": basis,
        "counts": counts.tolist(),
        "strength": 1.0,
        "effects": effects,
        "codes": {"POBP": {"0": births}},
    }


def of_extract(rows: pd.DataFrame, fips: int) -> dict[str, Any]:
    counts = merged_small(people(rows))[1:, 1:]
    return record(fips, "extract", counts, birth_states(rows["POBP"], BIRTHS))


def of_nation(everyone: pd.DataFrame, state: str, fips: int) -> dict[str, Any]:
    millions, shares = OTHERS[state]
    national = people(everyone)[1:, 1:]
    by_race = np.zeros(9)
    by_race[[0, 1, 2, 5, 6, 7, 8]] = shares
    marital = national / national.sum(axis=1, keepdims=True)
    counts = np.rint(1e6 * millions * WORKERS * by_race[:, None] / sum(shares) * marital).astype(int)
    births = birth_states(everyone["POBP"], BIRTHS)
    home = fips if fips < 60 else births["codes"][0]  # people born in Puerto Rico have a code of another band
    others = [(code, share) for code, share in zip(births["codes"], births["shares"][0], strict=True) if code != home]
    scale = (1000 - BORN_HERE) / sum(share for _, share in others)
    listed = sorted([(home, BORN_HERE), *((code, round(share * scale)) for code, share in others)])
    births = {"codes": [code for code, _ in listed], "shares": [[share for _, share in listed]]}
    return record(fips, "national", np.where(counts < SMALLEST, 0, counts), births)


def people(rows: pd.DataFrame) -> np.ndarray:
    """(10, 6) by RAC1P and MAR."""
    counts = np.zeros((10, 1 + len(MARITAL)), dtype=np.int64)
    np.add.at(counts, (rows["RAC1P"], rows["MAR"]), 1)
    return counts


def rates(rows: pd.DataFrame, everyone: pd.DataFrame) -> Rates:
    """(bands,) of labels 1, by the columns of OWN; those of the nation where a band has fewer than SMALLEST people."""
    targets = {}
    for name, starts in OWN.items():
        both = []
        for part in (rows, everyone):
            band = own_bands({each: part[each].to_numpy() for each in OWN})[name]
            size = np.bincount(band, minlength=len(starts))
            both.append((size, np.bincount(band, weights=part[LABEL], minlength=len(starts)) / np.maximum(size, 1)))
        (size, own), (_, nation) = both
        targets[name] = np.where(size >= SMALLEST, own, nation)
    return targets


if __name__ == "__main__":
    main(Path(sys.argv[1]))
