"""Is the certified choice wrong as rarely as it says? Models fixed, 400 calibration samples a
setting.

    OMP_NUM_THREADS=1 python benchmarks/certified_choice.py [--redraws 400] [--seed 0]

Census tables OK, VA, KS and AL. A logistic model on one-hot columns without the group is
cross-fitted to 6,000 examples, and its corrections are chosen on their out-of-fold scores, as
`FairPostprocessor` does. The other examples are the population, in which the gap of every candidate
is known. Calibration samples are drawn from it with replacement, and each goes through `certify`.

- wrong: a candidate is certified whose gap in the population exceeds the bound. The path is made
  for the gap of the uncorrected model, its last candidate; the candidate in question is the first
  from the middle on whose gap is above all before it and above 2.5 standard errors of the sample,
  else the last (below 1.6 nothing is ever certified). Where "just", the bound is .1 % below its
  gap, and the sequence starts one before it, the least favourable case: started near no gap, it
  ends there, on the other side, in most samples in which the violating one would pass. Where
  "between", the bound is halfway to the largest gap before, and the path is whole. At most 5 % over
  all, 8.5 % in each, or exit 1.
Five settings of the 20 have five groups (races).
- certified at bounds .05 and .1 (half as many redraws): the path is made for the bound and ends
  where a fit would end it. Beside it how often an exactly fair model is certified: the scores of
  the uncorrected model, dealt to the groups at random.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor

from fairbound.constraints._constraint import Constraint
from fairbound.constraints._notions import make_constraint
from fairbound.data import load
from fairbound.integrations.sklearn import _corrections as corrections
from fairbound.integrations.sklearn._certification import certify
from fairbound.integrations.sklearn._corrections import (
    CellMeans,
    Correction,
    Evaluated,
    ScoredExamples,
)
from fairbound.integrations.sklearn._cross_fitting import (
    CrossFitted,
    cross_fit_estimator,
    stratified_folds,
)
from fairbound.integrations.sklearn._membership import fit_membership
from fairbound.integrations.sklearn._selection import correction_path, margins

OVERALL, LARGEST, LEVEL = 0.05, 0.085, 0.95
# by how much a bound is just violated; standard errors of a gap that can be certified
HAIR, CERTIFIABLE = 1.001, 2.5
TRAINED, FOLDS = 6_000, 3
STATES = ("OK", "VA", "KS", "AL")
NOTIONS = {
    "loss": "pairwise_loss_parity",
    "parity": "demographic_parity",
    "opportunity": "equal_opportunity",
    "races": "demographic_parity",
}
BY = {  # by state
    "loss": "SEX MAR SEX SEX",
    "parity": "RAC1P MAR SEX RAC1P",
    "opportunity": "MAR MAR MAR RAC1P",
    "races": "RAC1P RAC1P RAC1P RAC1P",
}
SMALL, LARGE = 1_000, 2_800  # examples of a calibration sample
SETTINGS = [  # state, notion, examples, where the bound lies
    *((state, "loss", LARGE, "just") for state in STATES),
    *((state, "parity", SMALL, "just") for state in STATES),
    *((state, "opportunity", LARGE, "just") for state in STATES[1:]),
    *((state, "races", LARGE, "just") for state in STATES),
    *((state, "parity", LARGE, "between") for state in STATES),
    ("VA", "races", LARGE, "between"),
]
BOUNDS = (0.05, 0.1)  # of the second table
# by RAC1P: white, black, Asian, other, several; the rest counts as other
RACES = {1: 0, 2: 1, 6: 2, 8: 3, 9: 4}
# by MAR: married; widowed, divorced or separated; never married
MARITAL = np.array([0, 0, 1, 1, 1, 2])
Rows = NDArray[np.int64]
Shares = tuple[float, float]  # of the redraws: something is certified, and it violates the bound


@dataclass(frozen=True, eq=False)
class Fixed:
    """A model and what it says of the examples, for one notion."""

    name: str  # of the table and the column of its groups
    notion: str
    names: tuple[str, ...]  # of the groups
    out_of_fold: ScoredExamples
    population: ScoredExamples

    def constraint(self, bound: float) -> Constraint:
        return replace(make_constraint(NOTIONS[self.notion], self.names, bound), by="group")

    def uncorrected(self, bound: float) -> Correction:
        return corrections.no_correction([self.constraint(bound)])

    def path(self, bound: float) -> list[Correction]:
        """From the most corrected to the one that a fit would choose."""
        means = CellMeans([self.constraint(bound)], self.out_of_fold)
        margin = margins(means)
        if bool((evaluate(self.uncorrected(bound), self.out_of_fold).c <= -margin.known).all()):
            return [self.uncorrected(bound)]
        return [correction for _, correction in correction_path(means, margin, lowest=0.0)][::-1]

    def drawn(self, n: int, rng: np.random.Generator, fair: bool = False) -> ScoredExamples:
        """A sample; `fair`: with scores of other examples, so that what is compared has no gap in
        the population."""
        everyone, labels = self.population, self.population.labels.numpy()
        rows = rng.integers(0, len(labels), n)
        others = rng.integers(0, len(labels), n) if fair else rows
        # groups are compared within a label
        for label in (0, 1) if fair and self.notion == "opportunity" else ():
            same = labels[rows] == label
            others[same] = rng.choice(np.flatnonzero(labels == label), same.sum())
        ratios, groups = (
            tuple(ratio[others] for ratio in everyone.ratios),
            {"group": everyone.groups["group"][rows]},
        )
        return ScoredExamples(
            everyone.logits[others], ratios, everyone.labels[others], groups, None
        )


def evaluate(correction: Correction, scores: ScoredExamples) -> Evaluated:
    """With the cells' own means, which in a population are known."""
    return corrections.evaluate(correction, unshrunk(CellMeans(correction.constraints, scores)))


def unshrunk(means: CellMeans) -> CellMeans:
    means._shrunk, means.trust = means._cells, [torch.ones_like(trust) for trust in means.trust]
    return means


def fixed(state: str, notion: str) -> Fixed:
    table, by = load(f"acs:{state}"), BY[notion].split()[STATES.index(state)]
    group = MARITAL[table.columns[by]] if by == "MAR" else (table.columns[by] != 1).astype(np.int64)
    if notion == "races":
        group = np.array([RACES.get(int(code), 3) for code in table.columns[by]])
    names: tuple[str, ...] = (
        ("married", "once married", "never married") if by == "MAR" else (f"{by} 1", "others")
    )
    names = ("white", "black", "asian", "other", "several") if notion == "races" else names
    used = [name for name in table.features if name != by]
    X, y = (
        np.stack([table.columns[name] for name in used], 1),
        table.columns[table.label].astype(np.int64),
    )
    train, rest = np.split(np.random.default_rng(0).permutation(len(y)), [TRAINED])
    codes = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=10)
    encoded = make_column_transformer(
        (StandardScaler(), [used.index("AGEP"), used.index("WKHP")]), remainder=codes
    )
    model = make_pipeline(encoded, LogisticRegression(max_iter=300))
    fold = stratified_folds(group[train] * 2 + y[train], FOLDS, seed=0)

    def cross_fit(target: Tensor, classes: int) -> CrossFitted:
        return cross_fit_estimator(model, X[train], target.numpy(), np.arange(classes), None, fold)

    groups, labels = torch.from_numpy(group), torch.from_numpy(y)
    own = [replace(make_constraint(NOTIONS[notion], names, 0.0), by="group")]
    fitted = cross_fit(labels[train], 2)
    plain = ScoredExamples(fitted.out_of_fold, (), labels[train], {"group": groups[train]}, None)
    membership, inside = fit_membership(CellMeans(own, plain), 2, cross_fit)

    def scores(logits: Tensor, of_groups: dict[str, Tensor], rows: Rows) -> ScoredExamples:
        return ScoredExamples(
            logits,
            membership.ratios(logits, of_groups, {}),
            labels[rows],
            {"group": groups[rows]},
            None,
        )

    outside = membership.group_logits(X[rest])
    known, held_out = (
        scores(fitted.out_of_fold, inside, train),
        scores(fitted.model.logits(X[rest]), outside, rest),
    )
    return Fixed(f"{state} {by}", notion, names, known, held_out)


@cache
def whole_path(of: Fixed) -> list[Correction]:
    return [
        *of.path(float(evaluate(of.uncorrected(0.0), of.out_of_fold).c.max())),
        of.uncorrected(0.0),
    ]


def candidates_at(of: Fixed, n: int, where: str) -> tuple[float, list[Correction]]:
    """A bound, and the candidates with it, one of which is the first to violate it."""
    plain, path = of.uncorrected(0.0), whole_path(of)
    gaps = [
        float(evaluate(replace(one, constraints=plain.constraints), of.population).c.max())
        for one in path
    ]
    errors = unshrunk(CellMeans(plain.constraints, of.population)).standard_errors()
    errors = errors * (len(of.population.labels) / n) ** 0.5
    later, enough = range(len(path) // 2, len(path)), CERTIFIABLE * float(errors.max())
    first = next((i for i in later if gaps[i] > max(*gaps[:i], enough)), later[-1])
    bound = gaps[first] / HAIR if where == "just" else (max(gaps[:first]) + gaps[first]) / 2
    tested = path[first - 1 :] if where == "just" else path
    return bound, [replace(one, constraints=(of.constraint(bound),)) for one in tested]


def measured(
    of: Fixed, path: list[Correction], n: int, times: int, seed: int, fair: bool = False
) -> Shares:
    rng, violating = (
        np.random.default_rng(seed),
        [evaluate(one, of.population).violation > 0 for one in path],
    )
    samples = (of.drawn(n, rng, fair) for _ in range(times))
    found = [certify([(one, drawn) for one in path], LEVEL).chosen for drawn in samples]
    chosen = [one for one in found if one is not None]
    return len(chosen) / times, sum(violating[one] for one in chosen) / times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--redraws", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    try:
        models = {(state, notion): fixed(state, notion) for notion in NOTIONS for state in STATES}
    except FileNotFoundError as absent:
        print(f"skipped: {absent}")
        return
    print(
        f"{'table':<9} {'notion':<12} {'examples':>8} {'bound':>7} {'violated':<9} {'wrong':>6}"
        f" {'certified':>10}"
    )
    wrong: dict[str, list[float]] = {"just": [], "between": []}
    settings = [(models[state, notion], n, where) for state, notion, n, where in SETTINGS]
    for i, (of, n, where) in enumerate(settings):
        bound, tested = candidates_at(of, n, where)
        certified, share = measured(of, tested, n, asked.redraws, asked.seed + i)
        wrong[where].append(share)
        shares = f"{where:<9} {share:>6.3f} {certified:>10.3f}"
        print(f"{of.name:<9} {of.notion:<12} {n:>8,} {bound:>7.4f} {shares}", flush=True)
    print(f"\nUsual bounds, {LARGE:,} examples; fair: how often an exactly fair model is certified")
    print(f"{'table':<9} {'notion':<12} bound {'wrong':>6} {'certified':>10} {'fair':>6}")
    for i, (of, bound) in enumerate((of, bound) for of in models.values() for bound in BOUNDS):
        seed = asked.seed + 100 + 2 * i
        certified, share = measured(of, of.path(bound), LARGE, asked.redraws // 2, seed)
        fair, _ = measured(
            of, [of.uncorrected(bound)], LARGE, asked.redraws // 2, seed + 1, fair=True
        )
        shares = f"{share:>6.3f} {certified:>10.3f} {fair:>6.3f}"
        print(f"{of.name:<9} {of.notion:<12} {bound:>5.2f} {shares}", flush=True)
    every = wrong["just"] + wrong["between"]
    overall, largest = float(np.mean(every)), max(every)
    print(
        f"\nwrong, over all {len(every)} settings: {overall:.4f} (<= {OVERALL}); just:"
        f" {np.mean(wrong['just']):.4f}"
    )
    print(f"wrong, largest of a setting: {largest:.4f} (<= {LARGEST})")
    print(f"{asked.redraws} redraws a setting, {time.process_time() - start:.0f} s of CPU time")
    missed = overall > OVERALL or largest > LARGEST
    print("a target is missed" if missed else "both targets are met")
    sys.exit(missed)


if __name__ == "__main__":
    main()
