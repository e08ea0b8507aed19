"""A synthetic census: rows like those of ACSIncome (2018) in Oklahoma and Virginia, generated from
a seed.

`load("OK")` and `load("VA")` have the columns, codes and number of rows of the real extracts, and
exactly their sizes of the groups that the paper protects. Columns are drawn one after the other,
each from a table of shares, given columns that were drawn before it (race and marital status -> SEX
-> AGEP -> SCHL -> POBP -> OCCP -> COW -> WKHP -> RELP):

    P(code | cell)  =  P(code | band) P(band | cell),        P(band | cell)  ~
            share(band | cell) * tilt(band)

A *band* is a run of neighboring codes (ages 25 to 29, the occupations of one major group), a *cell*
a combination of bands of the given columns. The shares are those of 42 states; the tilts, which may
depend on the first given column, move them to the margins of one state. The label follows a
logistic model with known effects:

    log-odds  =  strength * (sum over columns of effect(code)  +  effect(SEX, MAR))  +
            e(RAC1P) + e(MAR) + e(SEX)

The effects e of a state are calibrated to its rates by race, marital status and sex, to within
0.002; its strength, to how well income can be predicted from the other columns. The real census has
dependence beyond the tables, this one has not. This one has the true probability of every label, so
that a model's expected losses can be computed on any number of new rows. Results on it describe
algorithms, not Oklahoma or Virginia.

Only `Generator.random` is ever called, and the rest is inverse distribution functions: numpy keeps
the stream of PCG64 the same on every platform, but not the algorithms of its other samplers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound.data._table import Table
from fairbound.data._tasks import TASKS, task_of

STATES = ("OK", "VA")
FEATURES, LABEL = TASKS["Income"].features, TASKS["Income"].label
CODES = 10_000  # effects have a place for every code below this; the largest is 9920, of OCCP

# Every use of a seed has a separate stream: rows drawn with the seed of the training rows must be
# independent of them.
LOAD, DRAW = 0, 1

Columns = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DrawnColumn:
    """A column, and its distribution given the columns before it."""

    name: str
    given: Mapping[str, Sequence[int]]  # columns drawn before, each with the starts of its bands
    codes: NDArray[Any]  # (codes,) ascending
    cumulative: Floats  # (cells, codes) distribution functions

    def draw(self, columns: Columns, uniform: Floats) -> NDArray[Any]:
        """(rows,) codes."""
        cell = cell_of(columns, self.given)
        drawn: NDArray[Any] = self.codes[pick(self.cumulative, cell, uniform)]
        return drawn


@dataclass(frozen=True, eq=False)
class Population:
    """A distribution of which `load` is one sample.

    >>> population("OK").draw(1000, seed=0).rows
    1000
    """

    state: str
    fips: int  # the state's code, in column ST
    races: NDArray[np.uint8]  # (pairs,) RAC1P, with
    marital: NDArray[np.uint8]  # (pairs,) MAR, and
    counts: NDArray[np.int64]  # (pairs,) how many rows of the extract have both
    variables: tuple[DrawnColumn, ...]  # in the order in which they are drawn
    # column or columns -> effect on the log-odds by code; NaN: never drawn
    effects: Mapping[tuple[str, ...], Floats]

    @staticmethod
    def of(state: str, facts: Mapping[str, Any]) -> Population:
        """The population that the calibrated numbers describe."""
        calibrated = facts["states"][state]
        races, marital = np.meshgrid(facts["races"], np.arange(1, 6), indexing="ij")
        counts = np.asarray(calibrated["counts"], dtype=np.int64).ravel()
        populated = counts > 0
        return Population(
            state,
            calibrated["fips"],
            races.ravel()[populated].astype(np.uint8),
            marital.ravel()[populated].astype(np.uint8),
            counts[populated],
            tuple(_variable(table, calibrated) for table in facts["variables"]),
            _effects(facts, calibrated),
        )

    @property
    def source(self) -> str:
        return f"synthetic:{self.state}"

    def draw(self, rows: int, seed: int) -> Table:
        """Independent rows. The same seed gives the same rows, unrelated to those of `load` with
        that seed."""
        if rows < 1:
            raise ValueError(f"a table needs at least one row, got rows={rows}")
        random = generator(seed, DRAW)
        every = _cumulated(self.counts[None].astype(float))
        only_cell = np.zeros(rows, dtype=np.int64)
        return self.complete(random, pick(every, only_cell, random.random(rows)))

    def sample(self, seed: int) -> Table:
        """As many rows as the extract has; race and marital status have exactly its group sizes, in
        random order."""
        random = generator(seed, LOAD)
        pair = np.repeat(np.arange(len(self.counts)), self.counts)
        return self.complete(random, pair[np.argsort(random.random(len(pair)), kind="stable")])

    def complete(self, random: np.random.Generator, pair: NDArray[np.int64]) -> Table:
        """Rows of given race and marital status: `pair` numbers the entries of `races` and
        `marital`."""
        rows = len(pair)
        columns: dict[str, NDArray[Any]] = {"RAC1P": self.races[pair], "MAR": self.marital[pair]}
        for variable in self.variables:
            columns[variable.name] = variable.draw(columns, random.random(rows))
        # Drawn as small as the codes allow, given as the census gives them: AGEP - 40 must not wrap
        # around.
        ordered: dict[str, NDArray[Any]] = {
            name: columns[name].astype(np.int64) for name in FEATURES
        }
        ordered["ST"] = np.full(rows, self.fips, dtype=np.int64)
        ordered[LABEL] = random.random(rows) < _logistic(self.log_odds(columns))
        return Table(ordered, LABEL, FEATURES, self.source)

    def log_odds(self, columns: Columns) -> Floats:
        """(rows,) of a label 1; NaN for codes that the population never draws."""
        total: Floats = sum(
            effect[tuple(columns[name] for name in names)] for names, effect in self.effects.items()
        )  # type: ignore[assignment]
        return total

    def probability(self, columns: Columns) -> Floats:
        """(rows,) the true P(label = 1 | columns), for rows of this population.

        >>> table = population("VA").draw(1000, seed=0)
        >>> bool(
        ...     abs(
        ...         population("VA").probability(table.columns).mean()
        ...         - table.columns[table.label].mean()
        ...     )
        ...     < 0.05
        ... )
        True
        """
        drawn = {"RAC1P": self.races, "MAR": self.marital}
        drawn |= {variable.name: variable.codes for variable in self.variables}
        for name in FEATURES:
            unknown = ~np.isin(columns[name], drawn[name])
            if unknown.any():
                row = int(unknown.argmax())
                raise ValueError(
                    f"{name} holds {columns[name][row]} in row {row}, which {self.source} never"
                    " draws; the true probability is known only for rows it draws"
                )
        return _logistic(self.log_odds(columns))


def load(state: str, seed: int = 0, task: str = "Income") -> Table:
    """The synthetic counterpart of a state's ACSIncome table of 2018: as many rows, and groups of
    the same sizes.

    >>> table = load("OK")
    >>> table.rows, table.source, int((table.columns["RAC1P"] == 1).sum())
    (17917, 'synthetic:OK', 13350)
    """
    synthetic = population(state)
    if task_of(task).name != "Income":
        raise ValueError(
            f"the synthetic census has the task Income only, not {task}; for real data use"
            f" acs:{state.upper()}:{task}"
        )
    return synthetic.sample(seed)


@cache
def population(state: str) -> Population:
    """The synthetic population of a state.

    >>> population("OK").source
    'synthetic:OK'
    """
    if state.upper() not in STATES:
        raise ValueError(
            f"there is no synthetic census of {state!r}; there are {', '.join(STATES)}; for real"
            f" data use acs:{state.upper()}"
        )
    return Population.of(state.upper(), facts())


@cache
def facts() -> dict[str, Any]:
    """The calibrated numbers: aggregates that `tools/calibrate_synthetic.py` wrote, never rows."""
    return tomllib.loads(
        resources.files("fairbound.data").joinpath("synthetic.toml").read_text(encoding="utf-8")
    )


def generator(seed: int, use: int) -> np.random.Generator:
    if seed < 0:
        raise ValueError(f"a seed is a whole number >= 0, got {seed}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(use,))))


# Tables of shares ---------------------------------------------------------------------------------


def band_of(codes: NDArray[Any], starts: Sequence[int]) -> NDArray[np.int64]:
    """The last band that starts at or below each code.

    >>> band_of(np.array([17, 24, 25, 80]), (17, 25, 65))
    array([0, 0, 1, 2])
    """
    return np.searchsorted(np.asarray(starts), codes, side="right") - 1


def cell_of(columns: Columns, bands: Mapping[str, Sequence[int]]) -> Any:
    """(rows,) the number of the cell, a combination of bands, in the order of a nested loop; 0
    where there are no bands."""
    cell: Any = 0
    for name, starts in bands.items():
        cell = cell * len(starts) + band_of(columns[name], starts)
    return cell


def pick(cumulative: Floats, cell: NDArray[np.int64], uniform: Floats) -> NDArray[np.int64]:
    """Draw from a different distribution in every row: the inverse of row `cell` of `cumulative` at
    `uniform`.

    Row c is moved to the interval [c, c + 1], which makes all rows one ascending list and one
    binary search.

    >>> pick(np.array([[0.5, 1.0], [0.0, 1.0]]), np.array([0, 0, 1]), np.array([0.4, 0.6, 0.4]))
    array([0, 1, 1])
    """
    cells, codes = cumulative.shape
    ascending = (cumulative + np.arange(cells)[:, None]).ravel()
    above = np.searchsorted(ascending, cell + uniform, side="right") - cell * codes
    # cell + uniform may round up to the next whole number
    index: NDArray[np.int64] = np.minimum(above, codes - 1)
    return index


def band_shares(shares: Floats, tilts: Floats) -> Floats:
    """(cells, bands) P(band | cell) in a state; row i of `tilts` belongs to band i of the first
    given column.

    >>> band_shares(np.array([[500.0, 500.0]]), np.array([[3.0, 1.0]]))
    array([[0.75, 0.25]])
    """
    return _normalized(shares * np.repeat(tilts, len(shares) // len(tilts), axis=0))


def _variable(table: Mapping[str, Any], calibrated: Mapping[str, Any]) -> DrawnColumn:
    name, given = table["name"], table["given"]
    shares = band_shares(
        np.asarray(table["shares"], dtype=np.float64), np.asarray(calibrated["tilts"][name])
    )
    firsts = dict(zip(given, np.meshgrid(*given.values(), indexing="ij"), strict=True))
    # of the code shares that hold in each cell: `within` cuts some of the given columns coarser
    row = cell_of({name: codes.ravel() for name, codes in firsts.items()}, table["within"])
    codes, blocks = [], []
    for band, (listed, weights) in enumerate(
        zip(table["codes"], table["code_shares"], strict=True)
    ):
        # where a state has other codes: its places of birth
        local = calibrated["codes"].get(name, {}).get(str(band))
        listed, weights = (local["codes"], local["shares"]) if local else (listed, weights)
        codes += listed
        blocks.append(
            shares[:, band, None] * _normalized(np.asarray(weights, dtype=np.float64))[row]
        )
    dtype = np.uint8 if max(codes) < 256 else np.uint16
    return DrawnColumn(
        name, given, np.asarray(codes, dtype=dtype), _cumulated(np.concatenate(blocks, axis=1))
    )


def _normalized(weights: Floats) -> Floats:
    normalized: Floats = weights / weights.sum(axis=1, keepdims=True)
    return normalized


def _cumulated(shares: Floats) -> Floats:
    """(cells, codes) distribution functions; the last code with a share ends at exactly 1."""
    sums = np.cumsum(shares, axis=-1)
    cumulative: Floats = sums / sums[..., -1:]
    return cumulative


# Effects on income --------------------------------------------------------------------------------


def _effects(
    facts: Mapping[str, Any], calibrated: Mapping[str, Any]
) -> dict[tuple[str, ...], Floats]:
    """Piecewise linear in age and hours, constant in bands of schooling, class of worker,
    relationship, place of birth and race, one for every occupation, and one for every pair of sex
    and marital status."""
    shared, strength = facts["income"], calibrated["strength"]
    marital = np.full((3, 6), np.nan)  # by SEX (1, 2) and MAR (1 to 5)
    marital[1:, 1:] = strength * np.asarray(shared["MAR"]["by_sex"])
    marital[1:, 1:] += np.add.outer(calibrated["effects"]["SEX"], calibrated["effects"]["MAR"])
    effects: dict[tuple[str, ...], Floats] = {("SEX", "MAR"): marital}
    for name in ("AGEP", "WKHP"):
        at, listed = shared[name]["at"], shared[name]["effects"]
        effects[name,] = strength * np.interp(np.arange(CODES), at, listed)
    for name in ("SCHL", "COW", "RELP", "POBP"):
        effects[name,] = strength * _in_bands(shared[name]["starts"], shared[name]["effects"])
    occupations = next(table for table in facts["variables"] if table["name"] == "OCCP")["codes"]
    by_code = np.full(CODES, np.nan)
    by_code[np.concatenate(occupations)] = np.concatenate(shared["OCCP"]["effects"])
    effects["OCCP",] = strength * by_code
    effects["RAC1P",] = _in_bands(shared["RAC1P"]["starts"], calibrated["effects"]["RAC1P"])
    return effects


def _in_bands(starts: Sequence[int], effects: Sequence[float]) -> Floats:
    by_code = np.full(CODES, np.nan)
    codes = np.arange(starts[0], CODES)
    by_code[codes] = np.asarray(effects)[band_of(codes, starts)]
    return by_code


def _logistic(log_odds: Floats) -> Floats:
    probability: Floats = 1 / (1 + np.exp(-log_odds))
    return probability
