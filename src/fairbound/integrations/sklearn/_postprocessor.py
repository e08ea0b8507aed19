"""`FairPostprocessor`: any scikit-learn classifier, made to keep a bound that is certified on
held-out data."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: F401  annotates a parameter of the mixin
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from torch import Tensor

from fairbound.integrations.sklearn._cross_fitting import (
    CrossFitted,
    Development,
    cross_fit_estimator,
    seeded,
)
from fairbound.integrations.sklearn._inputs import Constraints  # noqa: F401  annotates another
from fairbound.integrations.sklearn._mixin import FairClassifierMixin


@dataclass(eq=False, repr=False)
class FairPostprocessor(MetaEstimatorMixin, FairClassifierMixin, BaseEstimator):
    """Keep a bound with any classifier: correct its scores, with corrections chosen on out-of-fold
    data.

    Clones of the classifier are fitted on the folds of a cross-validation, and their average
    predicts. To keep a fitted classifier as it is, wrap it in scikit-learn's `FrozenEstimator`;
    then all of X must be new to it.

    Args:
        estimator: a classifier with `predict_proba`, e.g. `LGBMClassifier()`; a pipeline too.
        group_estimator: a classifier that predicts the group from X; by default a clone of
            `estimator`. It is not needed with `group_at_prediction=True`.
        constraint, bound: as in `FairClassifier`, and so are max_accuracy_loss, allow_constant,
            group_at_prediction, subgroups, pos_label, cv, calibration, level, class_weight,
            random_state and verbose.

    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> group = rng.choice(["A", "B"], 2000)
    >>> X = rng.standard_normal((2000, 2)) + 0.5 * (group == "A")[:, None]
    >>> y = X[:, 0] + rng.standard_normal(2000) > 0.5
    >>> fair = FairPostprocessor(
    ...     LogisticRegression(), constraint="demographic_parity", bound=0.1, random_state=0
    ... )
    >>> fair = fair.fit(X, y, sensitive_features=group)
    >>> rates = [float(fair.predict(X)[group == name].mean()) for name in "AB"]
    >>> abs(rates[0] - rates[1]) < 0.1, fair.verdict_.decision
    (True, 'undecided')
    """

    estimator: Any
    group_estimator: Any = field(default=None, kw_only=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not hasattr(self.estimator, "predict_proba"):
            raise TypeError(
                f"estimator must be a classifier with predict_proba, got {self.estimator!r}; wrap a"
                " classifier that has only decision_function in sklearn's CalibratedClassifierCV"
            )

    # Models ---------------------------------------------------------------------------------------

    _missing_values = False  # the estimator checks X itself

    @property
    def _retrainable(self) -> bool:  # type: ignore[override]
        return not isinstance(self.estimator, FrozenEstimator)

    def _cross_fit(
        self, data: Development, target: Tensor, classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        if main:
            estimator, names = self.estimator, self.classes_[self._order]
        else:
            estimator, names = self.group_estimator or self.estimator, np.arange(classes)
            estimator = estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
        weights = None if weight is None else weight.numpy()
        seeds, progress = seeded(estimator, data.seed), self._progress(main)
        return cross_fit_estimator(
            seeds, data.inputs, names[target], names, weights, data.fold, progress
        )
