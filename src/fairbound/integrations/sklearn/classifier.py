"""`FairClassifier`: an ensemble of neural networks with a bound that is chosen and certified on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.core import Algorithm
from fairbound.integrations.sklearn.base import Development
from fairbound.integrations.sklearn.classification import FairClassification
from fairbound.integrations.sklearn.cross_fitting import CrossFitted
from fairbound.integrations.sklearn.networks import unwrap
from fairbound.integrations.sklearn.neural import NeuralEstimator


class FairClassifier(FairClassification, NeuralEstimator):
    """A classifier that keeps a bound on held-out data: networks, a correction of their scores, and a certificate.

    Args:
        constraint: the name of a notion of `fairbound.constraints`, a constraint, or a function of (names of the
            groups, bound=...) that gives one; several as a list, or as a mapping of names to bounds.
        bound: of the constraint, or a list of bounds.
        group_at_prediction: whether the group may be used to predict: then `predict` needs `sensitive_features`.
        subgroups: with several columns of sensitive features: "intersectional", "marginal" or "both".
        pos_label: the class that is the positive decision; by default the second in sorted order, with several classes
            each of them.
        algorithm: a method of `fairbound.algorithms` that trains the networks under the constraint, in place of plain
            training; the corrections add what is missing.
        hidden: widths of the hidden layers; or give `module`, a torch module or a Keras model that takes the columns of
            X as they are and returns one logit (two classes) or one per class.
        categorical_features: names, positions or a mask of the columns that are categories; "from_dtype": columns of
            categories, text or booleans.
        epochs, batch_size: of the training; "auto": by the number of examples. Training stops early.
        learning_rate: of AdamW, decaying to 0.
        ensemble_size: number of networks, a multiple of `cv`.
        cv: number of folds. Every network trains on all but one of them and is selected on that one.
        calibration: share of the examples that nothing but the certificate uses.
        level: of confidence of the certificate and the verdict.
        class_weight: as in scikit-learn, "balanced" or a dict.
        device: of torch.
        warm_start: start from the networks of the last fit.
        random_state: seed.
        verbose: show progress.

    After `fit`: `report()` explains all of it; `verdict_`, `certified_`, `choice_`, `candidates_`, `leverage_`,
    `power_`, `multipliers_`, `constraints_`, `groups_`, `networks_`, `unconstrained_`, `judge(X, y, ...)` on new data.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((600, 2)), rng.choice(["A", "B"], 600)
    >>> y = X[:, 0] + rng.standard_normal(600) > 0
    >>> fair = FairClassifier(constraint="demographic_parity", bound=0.3, epochs=2, random_state=0)
    >>> fair = fair.fit(X, y, sensitive_features=group)
    >>> fair.predict(X[:2]).shape, sorted(fair.multipliers_)
    ((2,), ['A - B', 'B - A'])
    """

    def __init__(
        self,
        *,
        constraint: str | Constraint | Callable[..., Constraint] | Sequence[Any] | Mapping[str, float] = (
            "pairwise_loss_parity"
        ),
        bound: float | Sequence[float] = 0.02,
        group_at_prediction: bool = False,
        subgroups: str = "intersectional",
        pos_label: Any = None,
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
        class_weight: Any = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.constraint = constraint
        self.bound = bound
        self.group_at_prediction = group_at_prediction
        self.subgroups = subgroups
        self.pos_label = pos_label
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
        self.class_weight = class_weight
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        self._check_common()
        self._check_network()

    def _cross_fit(
        self, data: Development, target: NDArray[Any], classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        outputs = 1 if classes == 2 else classes
        return self._cross_fit_networks(data, torch.from_numpy(target), outputs, weight, main=main)

    @property
    def networks_(self) -> Any:
        """The trained networks: one module with all of them, or a list of copies of `module`."""
        model: Any = self._candidate.fitted.model
        return unwrap(model.network)
