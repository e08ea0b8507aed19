"""Synthetic persons of all ages in the form of the person file, from which every task takes its rows.

`persons` draws one column after the other: race in the state's proportions (`synthetic_states.toml`), then age, sex
and marital status, and so on, each from a table of shares or from a logistic model given columns drawn before it.
Schooling, relationship, occupation, class of worker and hours of adults come from the shared tables of `synthetic.py`,
which were fitted to workers; incomes of workers are such that P(PINCP > 50,000) is the probability of its income model:

    PINCP  =  50,000 exp((log-odds + z) / 2),    z standard logistic

Everything else is chosen by hand (`synthetic_persons.toml`). All but race, income, places of birth and, in rough
classes, public coverage and commutes is the same in every state. Results on these rows describe algorithms, not people.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound.data.acs_files import STATES
from fairbound.data.synthetic import Floats, Population, Variable, band_of, generator, read_toml, variable_of

PERSONS = 3  # the stream of random numbers that these rows use
PER_WORKER = 2.1  # persons in the census file, per row of ACSIncome
PER_AREA = 3_800  # persons per PUMA
FIRST_ADULT = 17  # the youngest age in the shared tables

# Questions that are asked from some age on; `with_blanks` has the other reasons why a field is empty.
YOUNGEST = {
    "SCHL": 3,
    "MIG": 1,
    "MIL": 17,
    "DREM": 5,
    "ESR": 16,
    "PINCP": 15,
    "GCL": 30,
    "COW": 16,
    "WKHP": 16,
    "OCCP": 16,
}


def persons(population: Population, seed: int = 0) -> dict[str, Floats]:
    """Columns of the person file, NaN where a field is empty.

    >>> from fairbound.data.synthetic import population
    >>> rows = persons(population("OK"))
    >>> len(rows["AGEP"]), bool(np.isnan(rows["ESR"][rows["AGEP"] < 16]).all())
    (37625, True)
    """
    rows = int(PER_WORKER * population.counts.sum())
    drawn = _Persons(population, generator(seed, PERSONS), rows)
    drawn.origins()
    drawn.health()
    drawn.work()
    drawn.income()
    drawn.commute()
    drawn.families()
    return drawn.with_blanks()


class _Persons:
    """Columns while they are drawn; every field has a value, those that are empty in the end too."""

    def __init__(self, population: Population, random: np.random.Generator, rows: int) -> None:
        self.population, self.random, self.rows = population, random, rows
        self.state = population.state
        self.columns: dict[str, NDArray[Any]] = {}

    # How a column is drawn

    def uniform(self) -> Floats:
        return self.random.random(self.rows)

    def logistic(self) -> Floats:
        uniform = np.maximum(self.uniform(), 2.0**-53)
        return np.log(uniform) - np.log1p(-uniform)

    def from_table(self, name: str) -> NDArray[np.int64]:
        return tables()[name].draw(self.columns, self.uniform()).astype(np.int64)

    def of_adults(self, name: str) -> NDArray[np.int64]:
        """From the tables that were fitted to workers, who are 17 or older."""
        table = next(each for each in self.population.variables if each.name == name)
        adult = {**self.columns, "AGEP": np.maximum(self.columns["AGEP"], FIRST_ADULT)}
        if "SCHL" in adult:
            adult["SCHL"] = np.maximum(adult["SCHL"], 1)
        return table.draw(adult, self.uniform()).astype(np.int64)

    def log_odds(self, name: str) -> Floats:
        model = numbers()["logits"][name]
        total = np.full(self.rows, model["constant"], dtype=np.float64)
        for column, effect in model.items():
            if isinstance(effect, Mapping):
                total += _effect(effect, self.columns[column])
        return total

    def happens(self, name: str, shift: float = 0.0) -> NDArray[np.bool_]:
        return self.logistic() < self.log_odds(name) + shift

    def coded(self, name: str, shift: float = 0.0) -> NDArray[np.int64]:
        model = numbers()["logits"][name]
        codes: NDArray[np.int64] = np.where(self.happens(name, shift), model["yes"], model["no"])
        return codes

    def shift(self, *classes: str) -> float:
        """The effects of those classes of states that this one is in."""
        known = numbers()["states"]
        return float(sum(known["effects"][name] for name in classes if self.state in known[name]))

    # What is drawn

    def origins(self) -> None:
        own, columns = self.population, self.columns
        share = np.cumsum(own.counts) / own.counts.sum()
        columns["RAC1P"] = own.races[np.searchsorted(share[:-1], self.uniform(), side="right")].astype(np.int64)
        for name in ("AGEP", "SEX", "MAR"):
            columns[name] = self.from_table(name)
        age = columns["AGEP"]
        grade = np.clip(age - 2 + np.rint(2 * self.uniform() - 1).astype(np.int64), 1, 15)  # a year per class
        columns["SCHL"] = np.where(age < FIRST_ADULT, grade, self.of_adults("SCHL"))
        columns["POBP"] = self.of_adults("POBP")
        columns["RELP"] = np.where(age < FIRST_ADULT, self.from_table("RELP of children"), self.of_adults("RELP"))
        for name in ("NATIVITY", "CIT", "ANC"):
            columns[name] = self.coded(name) if name in numbers()["logits"] else self.from_table(name)

    def health(self) -> None:
        columns = self.columns
        columns["DIS"] = self.coded("DIS")
        for name in ("DEAR", "DEYE", "DREM"):
            columns[name] = np.where(columns["DIS"] == 1, self.coded(name), 2)

    def work(self) -> None:
        columns = self.columns
        age = columns["AGEP"]
        columns["MIL"] = self.from_table("MIL")
        columns["sex_by_marital"] = 5 * (columns["SEX"] - 1) + columns["MAR"] - 1
        employed, soldier = self.happens("employed") & (age >= 16), (columns["MIL"] == 1) & (age >= 17)
        looking = self.uniform() < np.where(age < 25, 0.16, np.where(age < 62, 0.11, 0.02))
        at_work = self.uniform() < 0.975
        columns["ESR"] = np.where(employed, np.where(at_work, 1, 2), np.where(looking, 3, 6))
        columns["ESR"][soldier] = np.where(at_work, 4, 5)[soldier]
        self.works = np.isin(columns["ESR"], (1, 2, 4, 5))
        self.worked = self.works | (self.uniform() < np.where(columns["ESR"] == 3, 0.7, np.where(age < 75, 0.12, 0)))
        for name in ("OCCP", "COW", "WKHP"):
            columns[name] = self.of_adults(name)

    def income(self) -> None:
        columns = self.columns
        age, old = columns["AGEP"], columns["AGEP"] >= 62
        adult = {**columns, "AGEP": np.maximum(age, FIRST_ADULT)}
        earned = 50_000 * np.exp((self.population.log_odds(adult) + self.logistic()) / 2)
        earned *= np.where(self.works, 1.0, 0.4)
        other = np.where(old, 17_000, 7_000) * np.exp(0.5 * self.logistic())
        other *= self.uniform() > np.where(old, 0.06, 0.55)
        income = np.where(self.worked, np.maximum(earned, 200), other) * (age >= 15)
        columns["PINCP"] = np.minimum(10 * np.rint(income / 10), 700_000)
        partner = np.where(columns["MAR"] == 1, 42_000, np.where(columns["RELP"] == 0, 3_000, 38_000))
        shared = columns["PINCP"] + partner * np.exp(0.6 * self.logistic())
        more = (
            (columns["MAR"] == 1).astype(int) + (columns["RELP"] > 1) + np.rint(2 * self.uniform())
        )  # in the household
        need = 13_000 + 4_500 * more
        columns["POVPIP"] = np.minimum(np.rint(100 * shared / need), 501)

    def commute(self) -> None:
        columns = self.columns
        areas = max(1, round(self.rows / PER_AREA))
        home = (areas * self.uniform()).astype(np.int64)
        away = (home + 1 + (3 * self.uniform()).astype(np.int64)) % areas
        columns["elsewhere"] = (self.uniform() < 0.36).astype(np.int64)
        columns["PUMA"] = 100 * (home + 1)
        columns["POWPUMA"] = 100 * (np.where(columns["elsewhere"] == 1, away, home) + 1)
        columns["transit"] = np.full(self.rows, int(self.state in numbers()["states"]["transit"]))
        columns["JWTR"] = self.from_table("JWTR")
        area = 0.6 * (7 * home % 11 - 5) / 5  # some areas are far from where work is
        odds = self.log_odds("long_way") + area + self.shift("long_commute", "short_commute")
        minutes = 22.5 * np.exp((odds + self.logistic()) / 2)  # rounded to 5 minutes, as people answer
        columns["JWMNP"] = np.clip(np.where(minutes < 8, np.ceil(minutes), 5 * np.rint(minutes / 5)), 1, 140)

    def families(self) -> None:
        columns = self.columns
        abroad = self.uniform() < np.where(columns["NATIVITY"] == 2, 0.12, 0.02)
        columns["MIG"] = np.where(self.happens("moved"), np.where(abroad, 2, 3), 1)
        for name in ("FER", "GCL"):
            columns[name] = self.coded(name)
        women = (columns["SEX"] == 2) & (columns["AGEP"] >= 15) & (columns["AGEP"] <= 50)
        columns["FER"] = np.where(women, columns["FER"], 2)
        columns["ESP"] = self.from_table("ESP")
        columns["PUBCOV"] = self.coded("PUBCOV", self.shift("without_medicaid_expansion"))
        columns["PWGTP"] = 30 + np.floor(140 * self.uniform() ** 2)
        columns["ST"] = np.full(self.rows, STATES[self.state])
        self.women = women

    def with_blanks(self) -> dict[str, Floats]:
        """The columns of the census, NaN where a question was not asked."""
        columns, age = self.columns, self.columns["AGEP"]
        at_work, quarters = np.isin(columns["ESR"], (1, 4)), columns["RELP"] >= 16
        blank = {name: age < youngest for name, youngest in YOUNGEST.items()}
        blank |= {name: blank[name] | ~self.worked for name in ("COW", "OCCP", "WKHP")}
        blank["GCL"] |= columns["RELP"] == 16
        blank |= {"JWTR": ~at_work, "POWPUMA": ~at_work, "JWMNP": ~at_work | (columns["JWTR"] == 11)}
        blank |= {"FER": ~self.women, "ESP": (age > 17) | ~np.isin(columns["RELP"], (2, 3, 4)), "POVPIP": quarters}
        own = ("elsewhere", "transit", "sex_by_marital")
        kept = {name: column.astype(np.float64) for name, column in columns.items() if name not in own}
        for name, empty in blank.items():
            kept[name][empty] = np.nan
        return kept


def _effect(effect: Mapping[str, Any], column: NDArray[Any]) -> Floats:
    if "at" in effect:
        interpolated: Floats = np.interp(column, effect["at"], effect["effects"])
        return interpolated
    by_band: Floats = np.asarray(effect["effects"], dtype=np.float64)[band_of(column, effect["starts"])]
    return by_band


@cache
def numbers() -> dict[str, Any]:
    return read_toml("synthetic_persons.toml")


@cache
def tables() -> dict[str, Variable]:
    """By name; the codes of a band are equally frequent."""
    return {
        table["name"]: variable_of(
            {**table, "within": {}, "code_shares": [[[1] * len(band)] for band in table["codes"]]}, {}
        )
        for table in numbers()["tables"]
    }
