"""A synthetic census: rows like those of ACSIncome (2018), generated from a seed instead of downloaded.

`load("OK")` and `load("VA")` have the columns, codes and number of rows of the real extracts, and exactly their sizes
of the groups that the paper protects. People are drawn column by column (`synthetic_tables`):

    race and marital status -> sex -> age -> schooling -> place of birth -> occupation -> class of worker -> hours
    -> relationship

and the label from a logistic model of all of them (`synthetic_income`), calibrated so that the shares of incomes above
50,000 dollars in the population meet those of the state by race, marital status and sex, to within .002. What the real
census has and this one has not: dependence beyond the tables. What this one has and the real one has not: the truth.
The probability of every label is known, so that a model's expected losses can be computed (`true_losses`).

Its people never lived: results on them say something about algorithms, nothing about Oklahoma or Virginia.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound.data.synthetic_income import Income
from fairbound.data.synthetic_tables import Columns, Floats, Variable, cumulated, facts, pick, variables
from fairbound.data.table import Table
from fairbound.data.tasks import TASKS

FEATURES, LABEL = TASKS["Income"].features, TASKS["Income"].label
CHUNK = 65_536  # rows of the true losses at a time: some 10 MB

# Every use of a seed has a stream of its own: rows drawn with the seed of the training rows must still be fresh.
LOAD, DRAW, TRUTH = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Population:
    """People without number, of whom `load` is one sample.

    >>> population("OK").draw(1000, seed=0).rows
    1000
    """

    state: str
    fips: int  # the state's code, in column ST
    races: NDArray[np.uint8]  # (pairs,) RAC1P, with
    marital: NDArray[np.uint8]  # (pairs,) MAR, and
    counts: NDArray[np.int64]  # (pairs,) how many people of the extract have both
    variables: tuple[Variable, ...]
    income: Income

    @staticmethod
    def of(state: str, facts: Mapping[str, Any]) -> Population:
        """The population that the calibrated numbers describe."""
        own = facts["states"][state]
        races, marital = np.meshgrid(facts["races"], np.arange(1, 6), indexing="ij")
        counts = np.asarray(own["counts"], dtype=np.int64).ravel()
        some = counts > 0
        pairs = races.ravel()[some].astype(np.uint8), marital.ravel()[some].astype(np.uint8), counts[some]
        return Population(state, own["fips"], *pairs, variables(state, facts), Income.of(state, facts))

    @property
    def source(self) -> str:
        return f"synthetic:{self.state}"

    def draw(self, rows: int, seed: int) -> Table:
        """Independent rows. The same seed gives the same rows, unrelated to those of `load` with that seed."""
        if rows < 1:
            raise ValueError(f"a table needs at least one row, got rows={rows}")
        return self._drawn(_generator(seed, DRAW), rows)

    def sample(self, seed: int) -> Table:
        """As many rows as the extract has; race and marital status have exactly its group sizes, in random order."""
        random = _generator(seed, LOAD)
        pair = np.repeat(np.arange(len(self.counts)), self.counts)
        return self.people(random, pair[np.argsort(random.random(len(pair)), kind="stable")])

    def probability(self, columns: Columns) -> Floats:
        """(rows,) the true P(label = 1 | columns), for rows of this population.

        >>> people = population("VA").draw(1000, seed=0)
        >>> bool(abs(population("VA").probability(people.columns).mean() - people.columns[people.label].mean()) < 0.05)
        True
        """
        for name in FEATURES:
            if name not in columns:
                raise KeyError(f"the income model needs the columns {', '.join(FEATURES)}; {name} is missing")
            self._refuse_unknown(name, columns[name])
        return self.income.probability(columns)

    def chunks(self, rows: int, seed: int) -> Iterator[Table]:
        """Independent rows, a bounded number at a time, from a stream that neither `draw` nor `sample` uses."""
        random = _generator(seed, TRUTH)
        for start in range(0, rows, CHUNK):
            yield self._drawn(random, min(CHUNK, rows - start))

    def people(self, random: np.random.Generator, pair: NDArray[np.int64]) -> Table:
        """People of given race and marital status: `pair` numbers the entries of `races` and `marital`."""
        rows = len(pair)
        columns: dict[str, NDArray[Any]] = {"RAC1P": self.races[pair], "MAR": self.marital[pair]}
        for variable in self.variables:
            columns[variable.name] = variable.draw(columns, random.random(rows))
        # Drawn as small as the codes allow, given as the census gives them: AGEP - 40 must not wrap around.
        ordered: dict[str, NDArray[Any]] = {name: columns[name].astype(np.int64) for name in FEATURES}
        ordered["ST"] = np.full(rows, self.fips, dtype=np.int64)
        ordered[LABEL] = random.random(rows) < self.income.probability(columns)
        return Table(ordered, LABEL, FEATURES, self.source)

    def _drawn(self, random: np.random.Generator, rows: int) -> Table:
        pair = pick(cumulated(self.counts[None].astype(float)), np.zeros(rows, dtype=np.int64), random.random(rows))
        return self.people(random, pair)

    def _refuse_unknown(self, name: str, column: NDArray[Any]) -> None:
        known = {"RAC1P": self.races, "MAR": self.marital} | {each.name: each.codes for each in self.variables}
        unknown = ~np.isin(column, known[name])
        if unknown.any():
            raise ValueError(
                f"{name} holds {column[unknown.argmax()]} in row {int(unknown.argmax())}, which {self.source} never "
                "draws; the true probability is known for its own rows only"
            )


def population(state: str) -> Population:
    """The synthetic population of a state, "OK" or "VA".

    >>> population("OK").source
    'synthetic:OK'
    """
    if state.upper() not in states():
        raise ValueError(f"there is no synthetic census of {state!r}; there are {', '.join(states())}")
    return _population(state.upper())


def states() -> tuple[str, ...]:
    """Those that have a synthetic census.

    >>> states()
    ('OK', 'VA')
    """
    return tuple(facts()["states"])


def load(state: str, seed: int = 0) -> Table:
    """The synthetic counterpart of ACSIncome 2018 for a state: as many rows, and groups of the same sizes.

    >>> table = load("OK")
    >>> table.rows, table.source, int((table.columns["RAC1P"] == 1).sum())
    (17917, 'synthetic:OK', 13350)
    """
    return population(state).sample(seed)


def _generator(seed: int, use: int) -> np.random.Generator:
    if seed < 0:
        raise ValueError(f"a seed is a whole number >= 0, got {seed}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(use,))))


@cache
def _population(state: str) -> Population:
    return Population.of(state, facts())
