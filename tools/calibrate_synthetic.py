"""Fit the numbers of the synthetic census to the ACSIncome extracts, and write
`src/fairbound/data/synthetic.toml`.

    python tools/calibrate_synthetic.py ../shared/data/acs

Run manually when the model changes; neither the package nor its tests run it. Shares and the
effects on income come from the extract of 42 states, the tilts and the effects of race and marital
status from the extract of each state. Only aggregates of at least SMALLEST people are written:
smaller cells become 0.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression

import fairbound.data
from fairbound.data._synthetic import LABEL, Population, band_of, band_shares

SMALLEST = 10  # people in a published cell
STATES = {"OK": 40, "VA": 51}  # FIPS codes
# RAC1P; 4 (Alaska Native) has fewer than SMALLEST people in either state
RACES = [1, 2, 3, 5, 6, 7, 8, 9]

RACE = [1, 2, 3, 6, 7]  # white; Black; American Indian or Alaska Native; Asian; other or several
MARITAL = [1, 2, 3, 4, 5]
SEX = [1, 2]
AGE = [17, 18, 20, 22, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80]
LIFE = [17, 20, 25, 40, 65]  # at school, starting, settling, settled, past retirement age
# none, high school, some college, associate, bachelor, master, prof., doctor
SCHOOL = [1, 16, 18, 20, 21, 22, 23, 24]
# US, its territories, Europe, Asia, Americas, Africa, Oceania
BIRTH = [1, 60, 100, 200, 300, 400, 500]
OCCUPATION = [
    10,
    500,
    800,
    1005,
    1305,
    1600,
    2001,
    2100,
    2205,
    2600,
    3000,
    3601,
    3700,
    4000,
    4200,
    4330,
    4700,
    5000,
    6005,
    6200,
    6800,
    7000,
    7700,
    9005,
    9800,
]  # the major groups of the code book, MGR to MIL
KIND_OF_WORK = [10, 1005, 2001, 3000, 3601, 4700, 6005, 9800]  # the same, coarser
HOURS = [1, 20, 30, 35, 40, 41, 50, 60, 70]
RELATION = [
    0,
    1,
    2,
    3,
    11,
    13,
    14,
    16,
]  # RELP: reference person, spouse, child, other kin, lodger, partner, other, none

Rates = dict[str, NDArray[np.float64]]  # column of OWN -> (bands,)


class Plan(NamedTuple):
    """How one column is drawn."""

    name: str
    starts: list[int]  # of its bands
    given: dict[str, list[int]]  # columns drawn before, with their bands
    tilt_by_first: bool  # whether the tilts of a state depend on the first given column
    within: Mapping[str, list[int]] = MappingProxyType(
        {}
    )  # what the codes in a band depend on: coarser bands of given columns


PLANS = [  # in the order of drawing
    Plan("SEX", SEX, {"MAR": MARITAL, "RAC1P": RACE}, True),
    Plan("AGEP", AGE, {"MAR": MARITAL, "SEX": SEX, "RAC1P": [1, 2]}, True),
    Plan("SCHL", SCHOOL, {"RAC1P": RACE, "SEX": SEX, "AGEP": LIFE}, True),
    Plan("POBP", BIRTH, {"RAC1P": RACE, "SCHL": [1, 16, 21]}, True),
    Plan(
        "OCCP",
        OCCUPATION,
        {"SCHL": SCHOOL, "SEX": SEX, "AGEP": [17, 22, 30]},
        False,
        {"SCHL": [1, 21, 22], "SEX": SEX},
    ),
    Plan("COW", [1, 2, 3, 4, 5, 6, 7, 8], {"OCCP": OCCUPATION, "AGEP": [17, 35, 60]}, False),
    Plan("WKHP", HOURS, {"OCCP": KIND_OF_WORK, "SEX": SEX, "AGEP": [17, 20, 25, 65]}, False),
    Plan("RELP", RELATION, {"MAR": MARITAL, "SEX": SEX, "AGEP": LIFE}, True),
]
# the columns whose effects on income are calibrated in each state
OWN = {"RAC1P": RACE, "MAR": MARITAL, "SEX": SEX}

# Chosen by trial, so that a 9-64-32-1 net under plain SGD (rate .05, batches of 64, 10,000 steps)
# ends near the loss that it has on the real rows (OK .405, VA .416). The tables let schooling and
# hours say less about the occupation than in reality, which leaves more to the occupation's code
# alone: a net that reads codes as numbers does not learn that.
KEPT_IN_GROUP = 0.5  # of the differences between the effects of occupations of one group
EASIER = 0.012  # entropy below the loss of the income model on the real rows

AGE_KNOTS = [17, 20, 23, 26, 30, 35, 45, 55, 62, 70, 80]
HOUR_KNOTS = [5, 15, 25, 35, 40, 45, 50, 60, 75]


def main(folder: Path) -> None:
    everyone = pd.read_parquet(folder / "acsincome_2018_42states.parquet")
    facts: dict[str, Any] = {
        "races": RACES,
        "variables": [shared_table(everyone, plan) for plan in PLANS],
        "states": {},
    }
    facts["income"] = income_effects(
        everyone, next(t for t in facts["variables"] if t["name"] == "OCCP")["codes"]
    )
    for state, fips in STATES.items():
        rows = pd.read_parquet(folder / f"acsincome_2018_{state}.parquet")
        facts["states"][state] = state_facts(rows, fips, facts)
        calibrate_income(rows, state, facts)
    target = Path(fairbound.data.__file__).with_name("synthetic.toml")
    target.write_text(as_toml(facts), encoding="utf-8")
    print(f"wrote {target}")


# Shares: what one column is like, given others


def shared_table(rows: pd.DataFrame, plan: Plan) -> dict[str, Any]:
    counts = counted(rows, plan.name, plan.starts, plan.given)
    codes = frequent_codes(rows[plan.name], plan)
    return {
        "name": plan.name,
        "given": plan.given,
        "shares": in_thousandths(counts),
        "codes": codes,
        "within": dict(plan.within),
        "code_shares": [in_thousandths(code_counts(rows, plan, listed)) for listed in codes],
    }


def frequent_codes(column: pd.Series, plan: Plan) -> list[list[int]]:
    """The codes of each band; of the long lists (occupations, places) only frequent ones, and at
    least two a band."""
    least = len(column) / 300 if plan.name in ("OCCP", "POBP") else SMALLEST
    counts = column.value_counts()
    codes = []
    for band in range(len(plan.starts)):
        inside = counts[band_of(counts.index.to_numpy(), plan.starts) == band]
        kept = inside[(inside >= least) | (inside >= inside.nlargest(2).min())]
        codes.append(sorted(int(code) for code in kept.index))
    return codes


def code_counts(rows: pd.DataFrame, plan: Plan, codes: list[int]) -> NDArray[np.int64]:
    """(cells of `within`, codes) people."""
    inside = rows[rows[plan.name].isin(codes)]
    return counted(inside, plan.name, codes, plan.within)


def counted(
    rows: pd.DataFrame, name: str, starts: Sequence[int], given: Mapping[str, Sequence[int]]
) -> NDArray[np.int64]:
    """(cells, bands) people."""
    cell = np.zeros(len(rows), dtype=np.int64)
    for parent, bands in given.items():
        cell = cell * len(bands) + band_of(rows[parent].to_numpy(), bands)
    cells = int(np.prod([len(bands) for bands in given.values()]))
    index = cell * len(starts) + band_of(rows[name].to_numpy(), starts)
    return np.bincount(index, minlength=cells * len(starts)).reshape(cells, len(starts))


def in_thousandths(counts: NDArray[np.int64]) -> list[list[int]]:
    """Shares in each row, without small cells; a row that has no other is that of all rows
    together."""
    large = np.where(counts < SMALLEST, 0, counts)
    large = np.where(large.any(axis=1, keepdims=True), large, large.sum(axis=0))
    return np.rint(1000 * large / large.sum(axis=1, keepdims=True)).astype(int).tolist()


# Tilts: what moves the shares to one state


def state_facts(rows: pd.DataFrame, fips: int, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "fips": fips,
        "counts": race_by_marital(rows).tolist(),
        "strength": 1.0,
        "effects": {name: [0.0] * len(starts) for name, starts in OWN.items()},
        "tilts": {
            plan.name: tilts(rows, plan, table)
            for plan, table in zip(PLANS, facts["variables"], strict=True)
        },
        "codes": {"POBP": {"0": birth_states(rows["POBP"])}},
    }


def race_by_marital(rows: pd.DataFrame) -> NDArray[np.int64]:
    """(races, 5) people. Small cells go to the largest other race but white with that marital
    status, so that the sizes of white, non-white and every marital status stay exact."""
    counts = np.zeros((10, 6), dtype=np.int64)
    np.add.at(counts, (rows["RAC1P"], rows["MAR"]), 1)
    counts = merged_small(counts)
    assert counts.sum() == len(rows)
    assert counts[4].sum() == 0, "Alaska Natives are too few to be in RACES"
    return counts[np.ix_(RACES, MARITAL)]


def merged_small(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(10, 6) the same with the small cells in the largest other race but white."""
    for marital in MARITAL:
        largest = 2 + int(counts[2:, marital].argmax())
        small = [race for race in range(2, 10) if counts[race, marital] < SMALLEST]
        counts[largest, marital] += counts[small, marital].sum()
        counts[small, marital] = 0
    return counts


def tilts(
    rows: pd.DataFrame, plan: Plan, table: dict[str, Any], rounds: int = 200
) -> list[list[float]]:
    """Iterative proportional fitting of the shared shares to the state's band sizes."""
    counts = counted(rows, plan.name, plan.starts, plan.given)
    people, bands = counts.sum(axis=1), len(plan.starts)
    first = len(next(iter(plan.given.values()))) if plan.tilt_by_first else 1
    target = counts.reshape(first, -1, bands).sum(axis=1)
    tilt = np.where(target < SMALLEST, 0.0, 1.0)
    tilt[tilt.sum(axis=1) == 0] = 1.0
    for _ in range(rounds):
        expected = people[:, None] * band_shares(np.asarray(table["shares"], dtype=float), tilt)
        expected = expected.reshape(first, -1, bands).sum(axis=1)
        tilt = tilt * np.divide(
            target, expected, out=np.ones_like(tilt), where=(tilt > 0) & (expected > 0)
        )
    tilt /= np.average(tilt, axis=1, weights=target.sum(axis=0))[:, None]  # only ratios count
    return [[float(f"{value:.3g}") for value in row] for row in tilt]


def birth_states(column: pd.Series, most: int = 15) -> dict[str, Any]:
    """Where in the United States people of a state were born: the most frequent states."""
    counts = column[column < BIRTH[1]].value_counts().head(most).sort_index()
    counts = counts[counts >= SMALLEST]
    return {
        "codes": [int(code) for code in counts.index],
        "shares": in_thousandths(counts.to_numpy()[None]),
    }


# Income: a logistic model of the whole, then race and marital status of each state


def income_effects(rows: pd.DataFrame, occupations: list[list[int]]) -> dict[str, Any]:
    known = sorted(code for band in occupations for code in band)
    rows = rows[rows["OCCP"].isin(known)]
    columns = {name: rows[name].to_numpy() for name in rows}
    blocks = {
        "AGEP": hats(columns["AGEP"], AGE_KNOTS),
        "WKHP": hats(columns["WKHP"], HOUR_KNOTS),
        "SCHL": dummies(band_of(columns["SCHL"], [1, *range(12, 25)]), 14),
        "COW": dummies(columns["COW"] - 1, 8),
        "RELP": dummies(band_of(columns["RELP"], RELATION), len(RELATION)),
        "POBP": dummies(band_of(columns["POBP"], BIRTH), len(BIRTH)),
        "OCCP": dummies(np.searchsorted(known, columns["OCCP"]), len(known)),
        "MAR": dummies((columns["SEX"].astype(int) - 1) * 5 + columns["MAR"] - 1, 10),
        "RAC1P": dummies(band_of(columns["RAC1P"], RACE), len(RACE)),
        "ST": dummies(columns["ST"], 60),
    }
    design = sparse.hstack(list(blocks.values()), format="csr")
    model = LogisticRegression(C=1.0, max_iter=500).fit(design, columns[LABEL])
    edges = np.cumsum([0] + [block.shape[1] for block in blocks.values()])
    effects = {
        name: centered(model.coef_[0, start:end], blocks[name])
        for name, start, end in zip(blocks, edges, edges[1:], strict=False)
    }
    by_code = dict(zip(known, effects["OCCP"], strict=True))
    people = rows["OCCP"].value_counts()
    return {
        "AGEP": {"at": AGE_KNOTS, "effects": effects["AGEP"]},
        "WKHP": {"at": HOUR_KNOTS, "effects": effects["WKHP"]},
        "SCHL": {"starts": [1, *range(12, 25)], "effects": effects["SCHL"]},
        "COW": {"starts": list(range(1, 9)), "effects": effects["COW"]},
        "RELP": {"starts": RELATION, "effects": effects["RELP"]},
        "POBP": {"starts": BIRTH, "effects": effects["POBP"]},
        "OCCP": {"effects": [pooled(by_code, band, people) for band in occupations]},
        "MAR": {"by_sex": [effects["MAR"][:5], effects["MAR"][5:]]},
        "RAC1P": {"starts": RACE},
    }


def pooled(
    effects: Mapping[int, float], codes: list[int], people: Mapping[int, int]
) -> list[float]:
    """Effects of one group's occupations, moved towards their mean."""
    mean = float(
        np.average([effects[code] for code in codes], weights=[people[code] for code in codes])
    )
    return [round(mean + KEPT_IN_GROUP * (effects[code] - mean), 2) for code in codes]


def hats(x: NDArray[Any], at: list[int]) -> sparse.csr_matrix:
    """Piecewise linear functions, 1 at one knot and 0 at the others."""
    return sparse.csr_matrix(np.stack([np.interp(x, at, row) for row in np.eye(len(at))], axis=1))


def dummies(index: NDArray[Any], size: int) -> sparse.csr_matrix:
    return sparse.csr_matrix(
        (np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), size)
    )


def centered(effects: NDArray[Any], block: sparse.csr_matrix) -> list[float]:
    """Effects relative to the average person; the constants are in the effects of each state."""
    mean = (
        float(block.mean(axis=0).A1 @ effects)
        if hasattr(block.mean(axis=0), "A1")
        else float(np.asarray(block.mean(axis=0)).ravel() @ effects)
    )
    return [round(float(effect) - mean, 2) for effect in effects]


class Sample(NamedTuple):
    """What the calibration needs of real or synthetic rows."""

    log_odds: NDArray[np.float64]  # (rows,) by the shared effects alone
    bands: dict[str, NDArray[np.int64]]  # (rows,) by the columns of OWN
    weight: NDArray[np.float64]  # (rows,)

    def fitted(
        self, strength: float, targets: Rates, rounds: int = 40
    ) -> tuple[Rates, NDArray[np.float64]]:
        """The effects that meet the rates, by Newton's method in one column after the other, and
        the probabilities."""
        effects = {name: np.zeros(len(starts)) for name, starts in OWN.items()}
        for _ in range(rounds):
            for name, band in self.bands.items():
                p = self._probability(strength, effects)
                size, sums, slope = (
                    np.bincount(band, weights=self.weight * each, minlength=len(effects[name]))
                    for each in (1.0, p, p * (1 - p))
                )
                effects[name] += np.where(size > 0, targets[name] * size - sums, 0) / np.maximum(
                    slope, 1e-9
                )
        return effects, self._probability(strength, effects)

    def _probability(self, strength: float, effects: Rates) -> NDArray[np.float64]:
        own = sum(effects[name][band] for name, band in self.bands.items())
        return 1 / (1 + np.exp(-(strength * self.log_odds + own)))


def calibrate_income(rows: pd.DataFrame, state: str, facts: dict[str, Any]) -> None:
    """The state's own effects, from its rates by race, marital status and sex; its strength, from
    the labels' entropy.

    The entropy aimed at is the loss of the shared model on the real rows, with effects of the
    state's own, less EASIER.
    """
    own, population = facts["states"][state], Population.of(state, facts)
    aim = loss_on(rows, population) - EASIER
    sample, targets = synthetic(population), rates(rows)
    weak, strong = 0.8, 2.0
    for _ in range(10):
        strength = round((weak + strong) / 2, 3)
        _, p = sample.fitted(strength, targets, rounds=10)
        entropy = -np.average(p * np.log(p) + (1 - p) * np.log1p(-p), weights=sample.weight)
        weak, strong = (strength, strong) if entropy > aim else (weak, strength)
    effects, p = sample.fitted(strength, targets)
    own |= {
        "strength": strength,
        "effects": {name: values.round(4).tolist() for name, values in effects.items()},
    }
    print(
        f"{state}: entropy {aim:.4f}, strength {strength}, rate"
        f" {np.average(p, weights=sample.weight):.5f}",
        flush=True,
    )


def loss_on(rows: pd.DataFrame, population: Population) -> float:
    rows = rows[np.isfinite(population.effects["OCCP",][rows["OCCP"]])]  # the listed occupations
    columns = {name: rows[name].to_numpy() for name in rows}
    sample = Sample(population.log_odds(columns), own_bands(columns), np.ones(len(rows)))
    _, p = sample.fitted(1.0, rates(rows))
    return float(-np.log(np.where(columns[LABEL], p, 1 - p)).mean())


def synthetic(population: Population, rows: int = 4_000_000) -> Sample:
    """Rows in proportion to the root of a group's size, weighted back: small groups need them
    most."""
    roots = np.sqrt(population.counts)
    drawn = np.rint(rows * roots / roots.sum()).astype(int)
    random = np.random.Generator(np.random.PCG64(2018))
    pairs = np.repeat(np.arange(len(drawn)), drawn)
    parts = [population.complete(random, part).columns for part in np.array_split(pairs, 100)]
    bands = [own_bands(columns) for columns in parts]
    return Sample(
        np.concatenate([population.log_odds(columns) for columns in parts]),
        {name: np.concatenate([each[name] for each in bands]) for name in OWN},
        (population.counts / drawn)[pairs],
    )


def own_bands(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
    return {name: band_of(columns[name], starts) for name, starts in OWN.items()}


def rates(rows: pd.DataFrame) -> Rates:
    """(bands,) of labels 1, by the columns of OWN."""
    bands = own_bands({name: rows[name].to_numpy() for name in OWN})
    return {
        name: np.bincount(band, weights=rows[LABEL]) / np.bincount(band)
        for name, band in bands.items()
    }


# Writing

WIDTH = 116
HEADER = """\
# The numbers of the synthetic census (synthetic.py). Written by tools/calibrate_synthetic.py: change that, not this.
# Source: aggregates of the ACSIncome extracts (2018, 1-Year) of the American Community Survey's public-use microdata,
# US Census Bureau; codes are those of its 2018 code book. No cell stands for fewer than 10 people: smaller ones are 0.
# Shares and code_shares: thousandths, one row for each cell of `given`, whose bands are named by their first codes.
# Tilts: factors of the shares in a state. Effects: on the log-odds of an income above 50,000 dollars.
"""


def as_toml(facts: dict[str, Any]) -> str:
    lines = [
        HEADER,
        f"races = {facts['races']}  # RAC1P, the rows of `counts`; its columns are MAR 1 to 5",
        "",
    ]
    for table in facts["variables"]:
        lines += ["[[variables]]", *fields(table), ""]
    for name, table in facts["income"].items():
        lines += [f"[income.{name}]", *fields(table), ""]
    for state, own in facts["states"].items():
        lines += [f"[states.{state}]", *fields(own), ""]
    return "\n".join(lines)


def fields(table: Mapping[str, Any]) -> list[str]:
    """Nested tables under dotted names: in TOML an inline table must stand on one line."""
    lines = []
    for name, value in table.items():
        if isinstance(value, dict) and name not in ("given", "within"):
            lines += [f"{name}.{line}" for line in fields(value)]
        else:
            lines.append(f"{name} = {value_text(value)}")
    return lines


def value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {value_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"{line}\n" for line in packed([inline(row) for row in value])) + "]"
    return inline(value)


def inline(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(inline(each) for each in value) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if value else "0"


def packed(rows: list[str]) -> list[str]:
    """As many rows on a line as fit; a row is broken only where it is too long for one."""
    lines = [""]
    for row in rows:
        if lines[-1] and len(lines[-1]) + len(row) > WIDTH:
            lines.append("")
        lines[-1] += f" {row},"
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, WIDTH, initial_indent=" ", subsequent_indent="    ")
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
