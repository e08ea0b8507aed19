"""Who earns more than 50,000 dollars in the synthetic census: a logistic model with known effects.

    log-odds  =  strength * (sum over columns of effect(code)  +  effect(SEX, MAR))  +  own(RAC1P) + own(MAR) + own(SEX)

Effects of age and hours are piecewise linear, those of schooling, class of worker, relationship and place of birth
constant in bands, those of occupations free: all are the same in every state. A state's own effects are calibrated to
its rates by race, marital status and sex; its strength, to how well income can be told from the rest. The tables keep
less dependence between, say, schooling and hours than people have, which alone would make incomes too random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbound.data.synthetic_tables import Columns, Floats, band_of

LARGEST = {"AGEP": 99, "WKHP": 99, "SCHL": 24, "COW": 9, "RELP": 17, "POBP": 554, "OCCP": 9920, "RAC1P": 9}  # code book


@dataclass(frozen=True, eq=False)
class Income:
    """The effects, looked up by code; a code that the population never draws has none (NaN)."""

    effects: Mapping[str, Floats]  # column -> (largest code + 1,)
    marital: Floats  # (3, 6) by SEX (1, 2) and MAR (1 to 5)

    @staticmethod
    def of(state: str, facts: Mapping[str, Any]) -> Income:
        """The model that the calibrated numbers describe."""
        shared, own = facts["income"], facts["states"][state]
        effects = {name: _piecewise_linear(name, shared[name]) for name in ("AGEP", "WKHP")}
        for name in ("SCHL", "COW", "RELP", "POBP"):
            effects[name] = _constant_in_bands(name, shared[name]["starts"], shared[name]["effects"])
        effects["OCCP"] = _free(facts)
        effects = {name: own["strength"] * effect for name, effect in effects.items()}
        effects["RAC1P"] = _constant_in_bands("RAC1P", shared["RAC1P"]["starts"], own["effects"]["RAC1P"])
        marital = np.full((3, 6), np.nan)
        marital[1:, 1:] = own["strength"] * np.asarray(shared["MAR"]["by_sex"])
        marital[1:, 1:] += np.add.outer(own["effects"]["SEX"], own["effects"]["MAR"])
        return Income(effects, marital)

    def log_odds(self, columns: Columns) -> Floats:
        """(rows,) of a label 1."""
        total: Floats = self.marital[columns["SEX"], columns["MAR"]]
        for name, effect in self.effects.items():
            total += effect[columns[name]]  # looking up made a new array
        return total

    def probability(self, columns: Columns) -> Floats:
        """(rows,) P(label = 1 | columns)."""
        probability: Floats = 1 / (1 + np.exp(-self.log_odds(columns)))
        return probability


def _piecewise_linear(name: str, table: Mapping[str, Any]) -> Floats:
    by_code: Floats = np.interp(np.arange(LARGEST[name] + 1), table["at"], table["effects"])
    return by_code


def _constant_in_bands(name: str, starts: list[int], effects: list[float]) -> Floats:
    codes = np.arange(starts[0], LARGEST[name] + 1)
    by_code = np.full(LARGEST[name] + 1, np.nan)
    by_code[codes] = np.asarray(effects)[band_of(codes, starts)]
    return by_code


def _free(facts: Mapping[str, Any]) -> Floats:
    """One effect for every listed occupation."""
    occupations = next(table for table in facts["variables"] if table["name"] == "OCCP")
    by_code = np.full(LARGEST["OCCP"] + 1, np.nan)
    for codes, effects in zip(occupations["codes"], facts["income"]["OCCP"]["effects"], strict=True):
        by_code[np.asarray(codes)] = effects
    return by_code
