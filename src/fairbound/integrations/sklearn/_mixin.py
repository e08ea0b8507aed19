"""What `FairClassifier` and `FairPostprocessor` share: scikit-learn's contract around a certified
choice of models.

Development data give the candidates and a choice among them (`selection`). On the calibration data
the least corrected candidate that is certified replaces it, unless it is corrected less than the
one chosen before (`certification`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from fairbound._utils.frames import frames_of_ours
from fairbound.auditing import Verdict
from fairbound.columns._groups import SUBGROUPS, GroupEncoder
from fairbound.columns._labels import evident_positive
from fairbound.constraints._constraint import Constraint
from fairbound.integrations.sklearn._certification import Certificate, certify, judge, not_certified
from fairbound.integrations.sklearn._corrections import TOLERANCE, ScoredExamples, no_correction
from fairbound.integrations.sklearn._cross_fitting import (
    CrossFitted,
    Development,
    calibration_split,
    one_thread_if_small,
    stratified_folds,
)
from fairbound.integrations.sklearn._inputs import (
    Constraints,
    checked_weight,
    data_hash,
    make_constraints,
    normalized_weight,
    refuse_empty_cells,
    refuse_permuted,
    strata_of,
)
from fairbound.integrations.sklearn._membership import probabilities
from fairbound.integrations.sklearn._report import Predictions, SearchNotes, write_report
from fairbound.integrations.sklearn._selection import (
    Candidate,
    CandidateSearch,
    Selection,
    is_constant,
)


# scikit-learn reads the parameters from the signature of __init__
@dataclass(kw_only=True, eq=False, repr=False)
class FairClassifierMixin(ClassifierMixin):
    """The fit, the predictions and the shared parameters; an estimator adds its own and its models.

    An estimator has a method `_cross_fit` as `cross_fitting.CrossFit` describes it, and may replace
    the methods of the section "Models" below. Inside, labels are numbers, and of two classes the
    positive one is 1.
    """

    # what metadata routing passes on by itself, also through a pipeline
    __metadata_request__fit = __metadata_request__score = {"sensitive_features": True}  # noqa: RUF012
    __metadata_request__predict = __metadata_request__predict_proba = {"sensitive_features": True}  # noqa: RUF012
    __metadata_request__decision_function = {"sensitive_features": True}  # noqa: RUF012

    constraint: Constraints
    bound: float | Sequence[float] = 0.05
    max_accuracy_loss: float = 0.05
    allow_constant: bool = False
    group_at_prediction: bool = False
    subgroups: str = "intersectional"
    pos_label: Any = None
    cv: int = 4
    calibration: float = 0.2
    level: float = 0.95
    class_weight: Any = None
    random_state: Any = None
    verbose: bool = False

    # models of fits with the same examples and seed
    cross_fit_cache: ClassVar[dict[Any, CrossFitted] | None] = None

    # Models ---------------------------------------------------------------------------------------

    _missing_values: ClassVar[Any] = "allow-nan"  # what `validate_data` does about them
    _retrainable = True  # whether the models can be trained again with other weights

    def _learn_encoding(self, X: Any, rows: NDArray[np.int64]) -> None:
        """Learn from some rows of X what `_inputs` needs."""

    def _inputs(self, X: Any) -> Any:
        """X as the models take it."""
        return X

    def _progress(self, main: bool) -> Callable[..., None] | None:
        """What prints how far the models are, where that is asked for."""
        return (
            partial(print, f"models of the {'label' if main else 'groups'}:", flush=True)
            if self.verbose
            else None
        )

    def _cross_fit_once(
        self, data: Development, target: Tensor, classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        """The models of `_cross_fit`, trained once for all fits that share a cache."""
        cache = {} if self.cross_fit_cache is None else self.cross_fit_cache
        key = (
            main,
            classes,
            target.numpy().tobytes(),
            None if weight is None else weight.numpy().tobytes(),
        )
        if key not in cache:
            cache[key] = self._cross_fit(data, target, classes, weight, main=main)
        return cache[key]

    # Fitting --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> Any:
        """Train, correct and certify; without `sensitive_features`, train without a constraint and
        warn."""
        self._check_parameters()
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        X = self._validate(X, reset=True)
        y_given, y = y, column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_.tolist()}; a classifier needs two or more"
            )
        weight = checked_weight(sample_weight, X)
        if weight is not None and len(weighted := np.unique(y[weight > 0])) < 2:
            raise ValueError(
                f"examples with a positive sample_weight have one class only, {weighted.tolist()}"
            )
        self._order = self._class_order()
        train_weight = weight
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            train_weight = by_class if weight is None else weight * by_class
        refuse_permuted(X, y=y_given, sensitive_features=sensitive_features)
        self._fit(X, self._numbered(y), sensitive_features, weight, train_weight)
        self.data_hash_ = data_hash(X, y, sensitive_features)
        return self

    def _fit(self, X: Any, labels: Tensor, sensitive: Any, weight: Any, train_weight: Any) -> None:
        self.seed_ = seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        groups = self._make_constraints(sensitive, labels)
        strata = strata_of(groups, labels)
        self.development_, self.calibration_ = calibration_split(
            strata, float(self.calibration), seed
        )
        development, calibration = self.development_, self.calibration_
        if self.constraints_ and not len(calibration):
            warnings.warn(
                f"{len(labels)} examples are too few to hold any out for calibration: there is no"
                " verdict",
                stacklevel=frames_of_ours(),
            )
        self._learn_encoding(X, development)

        def part(rows: NDArray[np.int64]) -> tuple[Any, Tensor, dict[str, Tensor], Tensor | None]:
            codes = {by: column[rows] for by, column in groups.items()}
            return (
                self._inputs(_safe_indexing(X, rows)),
                labels[rows],
                codes,
                normalized_weight(weight, rows),
            )

        fold = stratified_folds(
            strata[development], max(2, min(int(self.cv), len(development) // 2)), seed
        )
        data = Development(
            *part(development), normalized_weight(train_weight, development), fold, seed
        )
        held_out = part(calibration) if len(calibration) else None
        limits = float(self.max_accuracy_loss), bool(self.allow_constant)
        models = self._cross_fit_once, self.group_at_prediction, self._retrainable
        search = CandidateSearch(self.constraints_, data, len(self.classes_), *models, *limits)
        with one_thread_if_small(len(labels)):
            self._choose(search.run(), held_out)

    def _make_constraints(self, sensitive: Any, labels: Tensor) -> dict[str, Tensor]:
        """(n,) the group of every example, by column, after the constraints on these groups are
        made."""
        self._encoder: GroupEncoder | None = None
        self.constraints_: tuple[Constraint, ...] = ()
        self.groups_: dict[str, list[str]] = {}  # names of the groups, by column
        if sensitive is None:
            warnings.warn(
                "no sensitive_features were given: training is unconstrained",
                stacklevel=frames_of_ours(),
            )
            return {}
        self._encoder = GroupEncoder.fit(sensitive, len(labels), self.subgroups)
        groups = self._encoder.transform(sensitive, len(labels))
        columns = self._encoder.columns
        self.constraints_ = make_constraints(self.constraint, self.bound, columns, self._outcomes())
        self._refuse_unnamed_class()
        refuse_empty_cells(self.constraints_, groups, labels)
        self.groups_ = {by: list(column.names) for by, column in columns.items()}
        return groups

    def _choose(
        self,
        selection: Selection,
        held_out: tuple[Any, Tensor, dict[str, Tensor], Tensor | None] | None,
    ) -> None:
        """The certified candidate, or the one that was chosen on out-of-fold data, and what the
        report says of it."""
        self._membership, self._plain = selection.membership, selection.candidates[-1]
        within = [
            candidate for candidate in selection.rejected if candidate.value.violation <= TOLERANCE
        ]
        # what max_accuracy_loss keeps from being returned
        self._beyond = within[-1] if within else None
        self._could_be_certified = False
        self.verdict_: Verdict | None = None
        self._candidate, before, after = self._certified(selection, held_out)
        self.choice_, correction = self._candidate.name, self._candidate.correction
        names = [name for constraint in self.constraints_ for name in constraint.names]
        self.multipliers_ = dict(zip(names, correction.multipliers.tolist(), strict=True))
        self.candidates_ = [(candidate.name, candidate.value) for candidate in selection.candidates]
        positive = int(np.flatnonzero(self.classes_ == self.positive_class_)[0])
        self._predictions = Predictions.of(before, after, correction, positive)
        constant = is_constant(self._candidate.value, self._plain.value, self.constraints_)
        beyond = self._beyond and (
            self._beyond.name,
            self._plain.value.accuracy - self._beyond.value.accuracy,
        )
        self._search = SearchNotes(
            constant, len(selection.constant), selection.small, beyond, self._could_be_certified
        )

    def _certified(
        self, selection: Selection, held_out: Any
    ) -> tuple[Candidate, ScoredExamples, ScoredExamples]:
        """The last certified candidate up to the chosen one, else that one; scores of the plain
        model and of its own.

        The scores are those of the calibration data, or out of fold without them.
        """
        candidates, chosen = selection.candidates, selection.chosen
        if not self.constraints_ or held_out is None:
            after = selection.plain if chosen is self._plain else selection.base
            return chosen, selection.plain.scores, after.scores
        inputs, labels, groups, weight = held_out
        membership, scores = selection.membership, {}
        group_logits = {} if membership is None else membership.group_logits(inputs)
        for fitted in {
            id(other.fitted): other.fitted for other in (*candidates, *selection.rejected)
        }.values():
            logits = fitted.model.logits(inputs)
            ratios = () if membership is None else membership.ratios(logits, group_logits, groups)
            scores[id(fitted)] = ScoredExamples(logits, ratios, labels, groups, weight)

        def tested(sequence: Sequence[Candidate]) -> Certificate:
            return certify(
                [(candidate.correction, scores[id(candidate.fitted)]) for candidate in sequence],
                self.level,
            )

        # the sequence ends at the chosen candidate: a lucky sample certifies nothing beyond it
        sequence = candidates[
            : 1 + next(i for i, candidate in enumerate(candidates) if candidate is chosen)
        ]
        certificate = tested(sequence)
        self._first_verdict = certificate.verdicts[0]
        if certificate.chosen is not None:
            chosen = candidates[certificate.chosen]
        elif (dear := tested(selection.rejected).chosen) is not None:
            self._beyond, self._could_be_certified = selection.rejected[dear], True
        self.verdict_ = judge(chosen.correction, scores[id(chosen.fitted)], self.level)
        if certificate.chosen is None and self.verdict_.decision == "holds":
            self.verdict_ = not_certified(self.verdict_)
        return chosen, scores[id(self._plain.fitted)], scores[id(chosen.fitted)]

    @property
    def certified_(self) -> bool:
        """Whether the verdict on the calibration data is "holds"."""
        return self.verdict_ is not None and self.verdict_.decision == "holds"

    # Classes --------------------------------------------------------------------------------------

    def _class_order(self) -> NDArray[np.int64]:
        """(classes,) the place in `classes_` of class 0, 1, ...: of two classes the positive one is
        last."""
        order = np.arange(len(self.classes_))
        positive = self._named_or_evident
        if positive is None:
            return order
        places = np.flatnonzero(self.classes_ == positive)
        if len(places) != 1:
            raise ValueError(
                f"pos_label={self.pos_label!r} is not among the classes {self.classes_.tolist()}"
            )
        return order[::-1] if len(order) == 2 and places[0] == 0 else order

    @property
    def _named_or_evident(self) -> Any:
        """The class that is positive by `pos_label` or by itself; None where none is."""
        if self.pos_label is not None:
            return self.pos_label
        return evident_positive(self.classes_.tolist()) if len(self.classes_) == 2 else None

    @property
    def positive_class_(self) -> Any:
        """The class that is the positive decision; the last one where none is named or evident."""
        positive = self._named_or_evident
        return self.classes_[self._order[-1]] if positive is None else positive

    def _outcomes(self) -> dict[int | None, str]:
        """The classes that rates are about, and their names in constraints; with two classes the
        positive one."""
        if len(self.classes_) == 2:
            return {None: "" if self.pos_label is None else f"class {self.pos_label}"}
        names = enumerate(self.classes_.tolist())
        return {
            k: f"class {name}"
            for k, name in names
            if self.pos_label is None or name == self.pos_label
        }

    def _refuse_unnamed_class(self) -> None:
        """Refuse two classes that are texts where `pos_label` names neither as the positive one."""
        rates = any(constraint.statistic is not None for constraint in self.constraints_)
        if rates and len(self.classes_) == 2 and self._named_or_evident is None:
            one, other = self.classes_.tolist()
            raise ValueError(
                f"the classes are {one!r} and {other!r}, and the constraint is about positive"
                f" decisions: say which one is positive, pos_label={other!r} or pos_label={one!r}"
            )

    def _numbered(self, y: NDArray[Any]) -> Tensor:
        """(n,) the number of every example's class."""
        unknown = set(np.unique(y).tolist()) - set(self.classes_.tolist())
        if unknown:
            name, classes = min(unknown, key=str), self.classes_.tolist()
            raise ValueError(
                f"y has the class {name!r}, which fit has not seen; its classes are {classes}"
            )
        return torch.from_numpy(np.argsort(self._order)[np.searchsorted(self.classes_, y)])

    # Predicting -----------------------------------------------------------------------------------

    def decision_function(self, X: Any, sensitive_features: Any = None) -> NDArray[np.float64]:
        """Logits: one per example for two classes, of the second of `classes_`; else one per
        class."""
        check_is_fitted(self)
        logits = self._corrected(self._validate(X, reset=False), sensitive_features)
        signed: NDArray[np.float64] = (logits if self._order[0] == 0 else -logits).numpy()
        return signed

    def predict_proba(self, X: Any, sensitive_features: Any = None) -> NDArray[np.float64]:
        """The probability of each class; `sensitive_features` is needed with
        `group_at_prediction=True` only."""
        logits = torch.from_numpy(self.decision_function(X, sensitive_features))
        return probabilities(logits).numpy()

    def predict(self, X: Any, sensitive_features: Any = None) -> NDArray[Any]:
        """The most probable class."""
        logits = self.decision_function(X, sensitive_features)
        classes: NDArray[Any] = self.classes_[
            (logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)
        ]
        return classes

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, sensitive_features: Any = None
    ) -> float:
        """Accuracy; `sensitive_features` is needed with `group_at_prediction=True` only."""
        return float(
            accuracy_score(y, self.predict(X, sensitive_features), sample_weight=sample_weight)
        )

    def judge(self, X: Any, y: Any, sensitive_features: Any, sample_weight: Any = None) -> Verdict:
        """Whether the constraints hold in the population that these examples, new to the model,
        were drawn from."""
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        labels, weight = self._numbered(column_or_1d(y)), checked_weight(sample_weight, X)
        if self._encoder is None:
            raise ValueError(
                "the model was fitted without sensitive_features, so there is no constraint to"
                " judge"
            )
        groups = self._encoder.transform(sensitive_features, len(labels))
        logits = self._corrected(X, sensitive_features)
        scores = ScoredExamples(
            logits, (), labels, groups, None if weight is None else torch.from_numpy(weight)
        )
        return judge(no_correction(self.constraints_), scores, self.level)

    def report(self, html: str | Path | None = None) -> str:
        """What `fit` did and what it means, in 80 columns; `html`: also as a page, written to that
        file.

        Rates and changed decisions are those of the calibration data, or of out-of-fold predictions
        without them. With several columns of groups the page has the verdicts of all, and
        everything else about the first.
        """
        check_is_fitted(self)
        if html is not None and not self.groups_:
            raise ValueError(
                "the model was fitted without sensitive_features, so there are no groups to compare"
            )
        return write_report(self, html)

    @property
    def unconstrained_(self) -> Any:
        """The same models without re-weighting and correction, as a fitted estimator."""
        check_is_fitted(self)
        uncorrected = copy(self)
        uncorrected._candidate = self._plain
        return uncorrected

    def _corrected(self, X: Any, sensitive: Any) -> Tensor:
        """(N,) or (N, classes) logits after the correction; X is validated."""
        refuse_permuted(X, sensitive_features=sensitive)
        inputs, correction = self._inputs(X), self._candidate.correction
        logits: Tensor = self._candidate.fitted.model.logits(inputs)
        if correction.is_nothing:
            return logits
        assert self._membership is not None
        groups: dict[str, Tensor] = {}
        if self._membership.models is None:
            if sensitive is None:
                raise ValueError(
                    "a model with group_at_prediction=True needs sensitive_features= to predict and"
                    " score, which GridSearchCV and cross_val_score pass only after"
                    " sklearn.set_config(enable_metadata_routing=True)"
                )
            assert self._encoder is not None
            groups = self._encoder.transform(sensitive, len(logits))
        return correction.apply(
            logits, self._membership.ratios(logits, self._membership.group_logits(inputs), groups)
        )

    # Checks ---------------------------------------------------------------------------------------

    def _validate(self, X: Any, *, reset: bool) -> Any:
        """X as scikit-learn checks it; of a data frame the columns are counted and named."""
        if hasattr(X, "columns"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        finite = self._missing_values
        return validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=None, ensure_all_finite=finite
        )

    def _check_parameters(self) -> None:
        if self.subgroups not in SUBGROUPS:
            raise ValueError(
                f"subgroups must be one of {', '.join(map(repr, SUBGROUPS))}, got"
                f" {self.subgroups!r}"
            )
        if not isinstance(self.calibration, int | float) or not 0 <= self.calibration < 1:
            raise ValueError(
                "calibration is a share of the examples, from 0 to below 1, got"
                f" {self.calibration!r}"
            )
        if not isinstance(self.level, int | float) or not 0.5 < self.level < 1:
            raise ValueError(f"level is a confidence level such as 0.95, got {self.level!r}")
        if (
            not isinstance(self.max_accuracy_loss, int | float)
            or not 0 <= self.max_accuracy_loss <= 1
        ):
            raise ValueError(
                f"max_accuracy_loss is a share such as 0.05, got {self.max_accuracy_loss!r}"
            )
        if isinstance(self.cv, bool) or not isinstance(self.cv, int | np.integer) or self.cv < 2:
            raise ValueError(f"cv is a number of folds, 2 or more, got {self.cv!r}")
