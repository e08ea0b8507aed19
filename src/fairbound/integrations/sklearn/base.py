"""What `FairClassifier` and `FairPostprocessor` share: from a cross-fitted model to a certified one.

1. The examples are divided into development and calibration data; the development data into folds.
2. A model is cross-fitted without any constraint. Where it is within the bounds, with the margin of step 5, it stays.
3. Leverage: which gaps could re-weighting the groups reach? Weights are used for bounds on the losses themselves.
4. A second model is cross-fitted for the probability of each group, unless the group may be used at prediction.
5. Corrections of the scores are chosen on out-of-fold data, with the bounds tightened by their standard errors there,
   and stricter ones.
6. The certified choice among them, on the calibration data: the least corrected that is certified and within the
   tightened bounds of step 5. Where none can be certified, it is that of step 5.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits  # with scikit-learn
from torch import Tensor

from fairbound.auditing import Verdict
from fairbound.constraints.constraint import Constraint
from fairbound.integrations.sklearn.certification import Power, certification_power, certify, judge
from fairbound.integrations.sklearn.corrections import Evaluated, Scores, evaluate, no_correction
from fairbound.integrations.sklearn.cross_fitting import CrossFitted, calibration_split, stratified_folds
from fairbound.integrations.sklearn.inputs import (
    SUBGROUPS,
    GroupEncoder,
    make_constraints,
    normalized_weight,
    refuse_empty_cells,
    strata_of,
)
from fairbound.integrations.sklearn.leverage import Leverage, measure_leverage
from fairbound.integrations.sklearn.membership import Membership, fit_membership
from fairbound.integrations.sklearn.report import Report, group_table
from fairbound.integrations.sklearn.selection import (
    STRICTNESS,
    Candidate,
    ConstraintRows,
    correction_path,
    drop_worse,
    group_weights,
    margins,
    reweighted,
)

MAX_LEVERAGE_GROUPS = 6  # a model each
SMALL_TABLE = 100_000  # examples: below, several threads cost more than they save (18,000: 48 CPU s on two, 11 on one)


@contextmanager
def one_thread_if(small: bool) -> Iterator[None]:
    """With one thread of torch and of BLAS; those of other libraries stay what they are."""
    before = torch.get_num_threads()
    with threadpool_limits(1, user_api="blas") if small else nullcontext():
        torch.set_num_threads(1 if small else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Development(NamedTuple):
    """The data that a model is made from."""

    inputs: Any
    labels: Tensor  # (n,)
    target: NDArray[Any]  # (n,) the same, as models are given it
    groups: dict[str, Tensor]
    weight: Tensor | None  # (n,) of the examples in the constraints
    train_weight: Tensor | None  # (n,) of the examples in training: times class weights
    fold: NDArray[np.int64]
    seed: int


class Calibration(NamedTuple):
    """The calibration data."""

    inputs: Any
    labels: Tensor
    groups: dict[str, Tensor]
    weight: Tensor | None


class FairEstimator(BaseEstimator):
    """The fit and the predictions of the estimators; a subclass gives the models."""

    # parameters of every subclass
    constraint: Any
    bound: Any
    group_at_prediction: bool
    subgroups: str
    cv: int
    calibration: float
    level: float
    random_state: Any
    verbose: bool

    cross_fit_cache: dict[Any, CrossFitted] | None = None  # models of other fits with the same examples and seed

    constraints_: tuple[Constraint, ...]
    groups_: dict[str, list[str]]  # names of the groups, by column

    # What a subclass gives --------------------------------------------------------------------------------------------

    def _validate(self, X: Any, *, reset: bool) -> Any:
        """X as scikit-learn checks it."""
        raise TypeError(f"{type(self).__name__} checks no X")

    def _inputs(self, X: Any, train: NDArray[np.int64] | None) -> Any:
        """X as its models take it; with `train`, the rows that encodings are learned from."""
        raise TypeError(f"{type(self).__name__} gives no inputs")

    def _cross_fit(
        self, data: Development, target: NDArray[Any], classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        """Models of a target; `main`: of the label, else of groups or for the leverage, where fewer will do."""
        raise TypeError(f"{type(self).__name__} gives no models")

    def _fitted(
        self, data: Development, target: NDArray[Any], classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        """The same, once for all fits that share a cache."""
        if self.cross_fit_cache is None:
            return self._cross_fit(data, target, classes, weight, main=main)
        key = (main, classes, target.tobytes(), None if weight is None else weight.numpy().tobytes())
        if key not in self.cross_fit_cache:
            self.cross_fit_cache[key] = self._cross_fit(data, target, classes, weight, main=main)
        return self.cross_fit_cache[key]

    def _retrainable(self) -> bool:
        """Whether its models can be trained again with other weights."""
        return True

    def _take(self, inputs: Any, rows: NDArray[np.int64]) -> Any:
        """Some examples."""
        raise TypeError(f"{type(self).__name__} gives no examples")

    # Fitting ----------------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, labels: Tensor, classes: int, sensitive: Any, weights: Any, outcomes: Any) -> None:
        """From validated X and numbered labels; `weights`: (sample weights, those with class weights)."""
        n, self._classes = len(labels), classes
        if n < 2:
            raise ValueError(f"X has n_samples = {n}, and cross-fitting needs 2 or more")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._encoder: GroupEncoder | None = None
        self.constraints_ = ()
        groups: dict[str, Tensor] = {}
        if sensitive is None:
            warnings.warn("no sensitive_features were given: training is unconstrained", UserWarning, stacklevel=3)
        else:
            self._encoder = GroupEncoder.fit(sensitive, n, self.subgroups)
            groups = self._encoder.transform(sensitive, n)
            self.constraints_ = make_constraints(self.constraint, self.bound, self._encoder.columns, outcomes)
            refuse_empty_cells(self.constraints_, groups, labels)
        columns = {} if self._encoder is None else self._encoder.columns
        self.groups_ = {name: list(column.names) for name, column in columns.items()}
        strata = strata_of(groups, labels)
        development, calibration = calibration_split(strata, float(self.calibration), seed)
        self.development_, self.calibration_ = development, calibration
        self.power_ = self._power(groups, labels, calibration)
        inputs = self._inputs(X, development)

        def part(rows: NDArray[np.int64]) -> tuple[Any, Tensor, dict[str, Tensor]]:
            return self._take(inputs, rows), labels[rows], {name: codes[rows] for name, codes in groups.items()}

        own_inputs, own_labels, own_groups = part(development)
        data = Development(
            own_inputs,
            own_labels,
            own_labels.numpy(),
            own_groups,
            normalized_weight(weights[0], development),
            normalized_weight(weights[1], development),
            stratified_folds(strata[development], max(2, min(int(self.cv), len(development) // 2)), seed),
            seed,
        )
        with one_thread_if(n < SMALL_TABLE):
            self._choose(data, Calibration(*part(calibration), normalized_weight(weights[0], calibration)))

    def _choose(self, data: Development, held_out: Calibration) -> None:
        """The model, its correction, and the certified choice."""
        nothing = no_correction(self.constraints_)
        self.leverage_: Leverage | None = None
        self._membership: Membership | None = None
        plain = self._fitted(data, data.target, self._classes, data.train_weight, main=True)
        candidates, of_groups, preferred = [Candidate("unconstrained", plain, nothing)], {}, "unconstrained"
        margin = margins(self.constraints_, self._scores(data, plain, {})) if self.constraints_ else torch.zeros(0)
        if self.constraints_ and bool((self._evaluated(data, plain).c > -margin).any()):
            base = self._reweighted(data, plain, margin)
            if base is not plain:
                candidates, preferred = [Candidate("re-weighted", base, nothing), *candidates], "re-weighted"
            if ConstraintRows.of(self.constraints_).correctable:
                of_groups = self._fit_membership(data)
                path = correction_path(self.constraints_, self._scores(data, base, of_groups), margin)
                steps = zip(STRICTNESS, path, strict=True)
                named = [Candidate(f"corrected, strictness {s:g}", base, one) for s, one in steps]
                candidates, preferred = [*reversed(named), *candidates], named[0].name
        candidates = drop_worse(candidates, lambda one: self._scores(data, one.fitted, of_groups))
        chosen = next((one for one in candidates if one.name == preferred), candidates[-1])
        self._candidate, self._plain = self._certified(candidates, chosen, held_out), candidates[-1]
        self.choice_, correction = self._candidate.name, self._candidate.correction
        names = [name for constraint in self.constraints_ for name in constraint.names]
        self.multipliers_ = dict(zip(names, correction.multipliers.tolist(), strict=True))
        scores = {id(one.fitted): self._scores(data, one.fitted, of_groups) for one in candidates}
        self.candidates_ = [(one.name, evaluate(one.correction, scores[id(one.fitted)])) for one in candidates]
        before, after = scores[id(plain)], scores[id(self._candidate.fitted)]
        self._tables = {by: group_table(before, after, correction, by, own) for by, own in self.groups_.items()}

    def _certified(self, candidates: Sequence[Candidate], chosen: Candidate, held_out: Calibration) -> Candidate:
        """The last certified candidate up to the one chosen on out-of-fold data; that one where none is certified."""
        self.verdict_: Verdict | None = None
        self.certified_ = False
        if not self.constraints_ or not len(held_out.labels):
            return chosen
        of_groups = self._of_groups(held_out.inputs)
        logits = {id(one.fitted): one.fitted.model.logits(held_out.inputs) for one in candidates}
        scores = {key: self._made_scores(found, of_groups, *held_out[1:]) for key, found in logits.items()}
        wanted = candidates[: 1 + next(i for i, one in enumerate(candidates) if one is chosen)]
        tested = [(one.correction, scores[id(one.fitted)]) for one in wanted]  # a lucky sample certifies nothing beyond
        certificate = certify(tested, self.level)
        self._first_verdict = certificate.verdicts[0]
        if certificate.chosen is not None:
            chosen, self.certified_ = candidates[certificate.chosen], True
        self.verdict_ = judge(chosen.correction, scores[id(chosen.fitted)], self.level)
        return chosen

    # Steps ------------------------------------------------------------------------------------------------------------

    def _reweighted(self, data: Development, plain: CrossFitted, margin: Tensor) -> CrossFitted:
        """The model with the best weights of the groups, where these serve a constraint; else the plain one."""
        if not self._retrainable():
            return plain
        own = self._evaluated(data, plain)
        self.leverage_ = self._measure_leverage(data, own)
        rows = ConstraintRows.of(self.constraints_).weighted
        if not bool((rows & (own.c > -margin)).any()):
            return plain

        def fit(mu: Tensor) -> CrossFitted:
            weight = group_weights(self.constraints_, mu, data.groups, data.labels)
            weight = weight if data.train_weight is None else weight * data.train_weight
            return self._fitted(data, data.target, self._classes, weight, main=True)

        return reweighted(rows, plain, margin, lambda one: self._evaluated(data, one), fit)

    def _measure_leverage(self, data: Development, own: Evaluated) -> Leverage | None:
        """None where there are too many groups, or too few examples without one of them."""
        columns = {constraint.by or "" for constraint in self.constraints_ if constraint.cells.needs_groups}
        sizes = {by: len(self.groups_[by]) for by in columns}
        if not columns or max(sizes.values()) > MAX_LEVERAGE_GROUPS or min(sizes.values()) < 2:
            return None
        enough = 10 * (int(data.fold.max()) + 1)
        for by, count in sizes.items():
            for group in range(count):
                rest = data.labels[data.groups[by] != group]
                if len(rest) < enough or torch.bincount(rest).min() < enough:
                    return None

        def without(by: str, group: int) -> Evaluated:
            weight = (data.groups[by] != group).double()
            weight = weight if data.train_weight is None else weight * data.train_weight
            fitted = self._fitted(data, data.target, self._classes, weight, main=False)
            return self._evaluated(data, fitted)

        return measure_leverage(self.constraints_, own, without)

    def _fit_membership(self, data: Development) -> dict[str, Tensor]:
        """Models of the groups, or none where the group is used at prediction."""

        def models(target: NDArray[np.int64], size: int) -> CrossFitted:
            return self._fitted(data, target, size, data.weight, main=False)

        given = self.group_at_prediction
        self._membership, found = fit_membership(
            self.constraints_, data.groups, data.labels, self._classes, None if given else models
        )
        return found

    # Scores -----------------------------------------------------------------------------------------------------------

    def _evaluated(self, data: Development, fitted: CrossFitted) -> Evaluated:
        """A model without correction, out of fold."""
        return evaluate(no_correction(self.constraints_), self._scores(data, fitted, {}))

    def _scores(self, data: Development, fitted: CrossFitted, of_groups: Mapping[str, Tensor]) -> Scores:
        """Out of fold; `of_groups`: logits of the models of the groups, empty where there are none yet."""
        return self._made_scores(fitted.out_of_fold, of_groups, data.labels, data.groups, data.weight)

    def _made_scores(
        self,
        logits: Tensor,
        of_groups: Mapping[str, Tensor],
        labels: Tensor,
        groups: dict[str, Tensor],
        weight: Tensor | None,
    ) -> Scores:
        ratios: tuple[Tensor, ...] = ()
        if self._membership is not None and (of_groups or not self._membership.models):
            ratios = self._membership.ratios(logits, of_groups, groups if self.group_at_prediction else None)
        return Scores(logits, ratios, labels, groups, weight)

    def _of_groups(self, inputs: Any) -> dict[str, Tensor]:
        if self._membership is None:
            return {}
        return {by: model.logits(inputs) for by, model in self._membership.models.items()}

    def _corrected(self, X: Any, sensitive: Any) -> Tensor:
        """(N,) or (N, classes) logits after the correction; X is validated."""
        check_is_fitted(self)
        inputs = self._inputs(X, None)
        best = self._candidate
        logits = best.fitted.model.logits(inputs)
        if best.correction.is_nothing:
            return logits
        assert self._membership is not None
        groups = None
        if self.group_at_prediction:
            if sensitive is None:
                raise ValueError(
                    "this model was fitted with group_at_prediction=True: give sensitive_features= to predict"
                )
            assert self._encoder is not None
            groups = self._encoder.transform(sensitive, len(logits))
        return best.correction.apply(logits, self._membership.ratios(logits, self._of_groups(inputs), groups))

    @property
    def unconstrained_(self) -> Any:
        """The same models without re-weighting and correction, as a fitted estimator."""
        check_is_fitted(self)
        found = object.__new__(type(self))  # copy.copy would refuse a constraint that cannot be saved
        found.__dict__ = self.__dict__ | {"_candidate": self._plain}
        return found

    def _judged(self, X: Any, labels: Tensor, sensitive: Any, sample_weight: Any) -> Verdict:
        check_is_fitted(self)
        if self._encoder is None:
            raise ValueError("the model was fitted without sensitive_features, so that there is no constraint to judge")
        groups = self._encoder.transform(sensitive, len(labels))
        logits = self._corrected(X, sensitive)
        weight = None if sample_weight is None else torch.from_numpy(np.asarray(sample_weight, dtype=np.float64))
        scores = Scores(logits, (), labels, groups, weight)
        return judge(no_correction(self.constraints_), scores, self.level)

    def report(self) -> str:
        """What `fit` did and what it means, in 80 columns."""
        check_is_fitted(self)
        return str(Report.of(self))

    # Parts of fit -----------------------------------------------------------------------------------------------------

    def _power(self, groups: dict[str, Tensor], labels: Tensor, rows: NDArray[np.int64]) -> Power | None:
        """Before any training: whether the calibration data can certify the bound at all."""
        if not self.constraints_ or not len(rows):
            if self.constraints_:
                warnings.warn(
                    f"{len(labels)} examples are too few to hold any out for calibration: there is no verdict",
                    UserWarning,
                    stacklevel=4,
                )
            return None
        found = certification_power(
            self.constraints_, {by: codes[rows] for by, codes in groups.items()}, labels[rows], self.level
        )
        if found is not None and found.probability == 0:
            warnings.warn(found.sentence, UserWarning, stacklevel=4)
        return found

    def _check_common(self) -> None:
        """Parameters that all estimators have, as sentences."""
        if self.subgroups not in SUBGROUPS:
            raise ValueError(f"subgroups must be one of {', '.join(map(repr, SUBGROUPS))}, got {self.subgroups!r}")
        if not isinstance(self.calibration, int | float) or not 0 <= self.calibration < 1:
            raise ValueError(f"calibration is a share of the examples, from 0 to below 1, got {self.calibration!r}")
        if not isinstance(self.level, int | float) or not 0.5 < self.level < 1:
            raise ValueError(f"level is a confidence level such as 0.95, got {self.level!r}")
        if isinstance(self.cv, bool) or not isinstance(self.cv, int | np.integer) or self.cv < 2:
            raise ValueError(f"cv is a number of folds, 2 or more, got {self.cv!r}")

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        try:
            pickle.dumps(self.constraint)
        except Exception as error:
            raise TypeError(
                f"constraint={self.constraint!r} cannot be saved ({error}); use the name of a notion, or a function "
                "defined in a module"
            ) from error
        return state
