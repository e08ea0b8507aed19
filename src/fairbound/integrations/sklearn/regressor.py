"""`FairRegressor`: an ensemble of neural networks for numbers, with bounds on the groups' squared errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d
from torch import Tensor

from fairbound.auditing import Verdict
from fairbound.constraints.constraint import Constraint
from fairbound.core import Algorithm
from fairbound.integrations.sklearn.base import Development
from fairbound.integrations.sklearn.cross_fitting import CrossFitted
from fairbound.integrations.sklearn.inputs import checked_weight
from fairbound.integrations.sklearn.neural import NeuralEstimator
from fairbound.integrations.sklearn.selection import ConstraintRows
from fairbound.integrations.sklearn.trainer import squared_error


class FairRegressor(RegressorMixin, NeuralEstimator):
    """Predictions whose squared errors keep a bound in every group, or between groups.

    Its means are weights of the groups, chosen on out-of-fold data: there are no decisions to move and no confidence to
    lower. Bounds are in the square of the units of y. `bounded_group_loss` is the notion that such weights serve; for
    differences the leverage report says whether they can.

    Args:
        constraint: "bounded_group_loss", "loss_parity", "pairwise_loss_parity", or a constraint on losses.
        bound and the others: as in `FairClassifier`.

    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((800, 2)), rng.choice(["A", "B"], 800)
    >>> y = X[:, 0] + 0.5 * rng.standard_normal(800)
    >>> fair = FairRegressor(bound=0.5, epochs=20, random_state=0).fit(X, y, sensitive_features=group)
    >>> fair.verdict_.decision, sorted(fair.multipliers_)
    ('holds', ['loss of A <= 0.5', 'loss of B <= 0.5'])
    """

    _loss = staticmethod(squared_error)
    group_at_prediction = False

    def __init__(
        self,
        *,
        constraint: str | Constraint | Callable[..., Constraint] | Sequence[Any] | Mapping[str, float] = (
            "bounded_group_loss"
        ),
        bound: float | Sequence[float] = 1.0,
        subgroups: str = "intersectional",
        algorithm: Algorithm[Any] | None = None,
        hidden: Sequence[int] = (64, 32),
        module: Any = None,
        categorical_features: Any = "from_dtype",
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float = 0.002,
        ensemble_size: int = 8,
        cv: int = 4,
        calibration: float = 0.2,
        level: float = 0.95,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.constraint = constraint
        self.bound = bound
        self.subgroups = subgroups
        self.algorithm = algorithm
        self.hidden = hidden
        self.module = module
        self.categorical_features = categorical_features
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.ensemble_size = ensemble_size
        self.cv = cv
        self.calibration = calibration
        self.level = level
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> FairRegressor:
        """Train and certify; without `sensitive_features` unconstrained, with a warning."""
        self._check_common()
        self._check_network()
        X = self._validate(X, reset=True)
        target = self._numbers(y)
        check_consistent_length(X, target)
        weight = checked_weight(sample_weight, X)
        self._fit(X, target, 1, sensitive_features, (weight, weight), None)
        return self

    def _numbers(self, y: Any) -> Tensor:
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        given = check_array(column_or_1d(y, warn=True).reshape(-1, 1), dtype=np.float64, input_name="y")[:, 0]
        return torch.from_numpy(given)

    def _check_constraints(self) -> None:
        if any(constraint.statistic is not None for constraint in self.constraints_):
            raise ValueError("FairRegressor takes constraints on losses: bounded_group_loss, loss_parity")

    def _weighted_rows(self, rows: ConstraintRows) -> Tensor:
        """All: there is nothing else that could help."""
        return rows.loss

    def _correctable(self) -> bool:
        """There are no decisions to move, and no confidence to lower."""
        return False

    def _cross_fit(
        self, data: Development, target: NDArray[Any], classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        center, scale = float(data.labels.mean()), float(data.labels.std()) or 1.0
        scaled = torch.from_numpy(target).float() if self.module is not None else data.labels.float()
        units = (0.0, 1.0) if self.module is not None else (center, scale)
        return self._cross_fit_networks(data, scaled, 1, weight, main=main, units=units)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted number of every example."""
        check_is_fitted(self)
        found: NDArray[np.float64] = self._corrected(self._validate(X, reset=False), None).numpy()
        return found

    def judge(self, X: Any, y: Any, sensitive_features: Any, sample_weight: Any = None) -> Verdict:
        """Whether the constraints hold in the population that these examples, new to the model, were drawn from."""
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        return self._judged(X, self._numbers(y), sensitive_features, checked_weight(sample_weight, X))
