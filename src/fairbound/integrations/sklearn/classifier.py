"""`FairClassifier`: constrained training of a neural network as a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.notions import make_constraint
from fairbound.core import Algorithm
from fairbound.integrations.sklearn.evaluation import Candidate, Evaluator
from fairbound.integrations.sklearn.inputs import Scaler, TrainingData, group_codes
from fairbound.integrations.sklearn.model_selection import ModelSelector, TrainedModes, select_model
from fairbound.integrations.sklearn.modules import copy_network, functional_forward, unwrap
from fairbound.integrations.sklearn.report import report
from fairbound.integrations.sklearn.splits import has_held_out, split_examples, train_and_dual
from fairbound.integrations.sklearn.trainer import (
    BOUND_SHARE,
    HELD_OUT_DUALS,
    TRAIN_DUALS,
    UNCONSTRAINED,
    Trainer,
    TrainingConfig,
    per_example_loss,
    tighten_bound,
    violation_scale,
)
from fairbound.integrations.torch.kkt_report import report_kkt
from fairbound.metrics.kkt import KKT
from fairbound.training.functional import load_flat

MODES = ("auto", TRAIN_DUALS, HELD_OUT_DUALS)


class FairClassifier(ClassifierMixin, BaseEstimator):
    """A network trained under a constraint; held-out data select the model and give its verdict.

    Args:
        constraint: the name of a notion of `fairbound.constraints`, a function of (names of the groups, bound=...) that
            gives a constraint, or a constraint.
        bound: of the constraint.
        mode: the examples that update the multipliers: "train_duals" (the training set), "held_out_duals" (a held-out
            set), or "auto" (selected on validation data).
        algorithm: a method in place of the default one, with train duals; its multipliers are capped if it does so.
        hidden: widths of the hidden layers; or give `module`, a torch module or a Keras model that takes standardized
            columns and returns one logit (two classes) or one per class.
        steps, batch_size, learning_rate: of the training.
        parts: shares of the examples that train ("train"), update the multipliers ("dual"), select the model
            ("validation") and give the verdict ("calibration").
        early_stopping: stop a run that no longer improves on validation data; the best model so far is kept.
        n_iter_no_change: number of evaluations (of 40 per run) without improvement, after which a run is stopped.
        random_state: seed.
        verbose: show a progress bar, or lines where there is no terminal or rich is not installed.
        compile: compile the training step; None decides by the number of steps.

    After `fit`: `report()` explains all of it; `verdict_`, `decision_`, `mode_`, `multipliers_`, `kkt_`, `history_`,
    `n_iter_`, `constraint_`, `groups_`, `module_`, `parts_`.

    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((600, 2)), rng.choice(["A", "B"], 600)
    >>> y = X[:, 0] + rng.standard_normal(600) > 0
    >>> fair = FairClassifier(bound=0.3, steps=100, random_state=0).fit(X, y, sensitive_features=group)
    >>> fair.predict(X[:2]).shape, sorted(fair.multipliers_)
    ((2,), ['A - B', 'B - A'])
    """

    def __init__(
        self,
        *,
        constraint: str | Constraint | Callable[..., Constraint] = "pairwise_loss_parity",
        bound: float = 0.02,
        mode: str = "auto",
        algorithm: Algorithm[Any] | None = None,
        hidden: Sequence[int] = (64, 32),
        module: Any = None,
        steps: int = 15_000,
        batch_size: int = 64,
        learning_rate: float = 0.05,
        parts: Mapping[str, float] | None = None,
        early_stopping: bool = False,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        verbose: bool = False,
        compile: bool | None = None,  # noqa: A002
    ) -> None:
        self.constraint = constraint
        self.bound = bound
        self.mode = mode
        self.algorithm = algorithm
        self.hidden = hidden
        self.module = module
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.parts = parts
        self.early_stopping = early_stopping
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose
        self.compile = compile

    # Fitting ----------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> FairClassifier:
        """Train under the constraint; without `sensitive_features` unconstrained, with a warning."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {self.mode!r}")
        if self.algorithm is not None and self.mode == HELD_OUT_DUALS:
            raise ValueError("algorithm= runs with train duals; remove mode='held_out_duals' or algorithm=")
        if not isinstance(self.algorithm, Algorithm | None):
            raise TypeError(f"algorithm must be a method such as SSLALM(), got {self.algorithm!r}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_.tolist()}; a classifier needs two or more")
        weight = None if sample_weight is None else _weights(sample_weight, X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if sensitive_features is None:
            warnings.warn("no sensitive_features were given: training is unconstrained", UserWarning, stacklevel=2)
            codes, names = group_codes(np.zeros(len(X)), len(X))
        else:
            codes, names = group_codes(sensitive_features, len(X))
        self.groups_ = [] if sensitive_features is None else list(names)
        self.constraint_ = None if sensitive_features is None else make_constraint(self.constraint, names, self.bound)
        if self.constraint_ is not None:
            _refuse_empty_cells(self.constraint_, torch.from_numpy(codes), torch.from_numpy(labels))
        self.parts_ = split_examples(codes * len(self.classes_) + labels, self.parts, seed)
        if self.constraint_ is not None and not has_held_out(self.parts_):
            warnings.warn(
                f"{len(X)} examples are too few to hold any out: the model is selected on its training data, and "
                "there is no verdict",
                UserWarning,
                stacklevel=2,
            )
        self._fit(self._training_data(X, labels, codes, names, weight), seed)
        return self

    def _training_data(
        self,
        X: NDArray[np.float64],
        labels: NDArray[np.int64],
        codes: NDArray[np.int64],
        names: tuple[str, ...],
        weight: NDArray[np.float64] | None,
    ) -> TrainingData:
        train = train_and_dual(self.parts_).numpy()
        if weight is not None and not weight[train].any():
            raise ValueError(f"sample_weight is zero for all {len(train)} training examples, which are drawn at random")
        self._scaler = Scaler.of(X[train])
        two = len(self.classes_) == 2
        return TrainingData(
            self._scaler.scaled(X),
            torch.from_numpy(labels).float() if two else torch.from_numpy(labels),
            len(self.classes_),
            torch.from_numpy(codes),
            names,
            None if weight is None else torch.from_numpy(weight / weight[train].mean()).float(),
        )

    def _fit(self, data: TrainingData, seed: int) -> None:
        network = self._network(data, seed)
        forward = functional_forward(network)
        x0 = torch.cat([p.detach().reshape(-1) for p in network.parameters() if p.requires_grad])
        config = TrainingConfig(self.steps, self.batch_size, self.learning_rate, seed, self.compile)
        trainer = Trainer(data, self.parts_, self.constraint_, forward, config)
        split, held_out = self.parts_, has_held_out(self.parts_)

        def evaluator(examples: Tensor, bound_share: float = 1.0) -> Evaluator:
            constraint = None if self.constraint_ is None else tighten_bound(self.constraint_, bound_share)
            return Evaluator(data, examples, constraint, forward, per_example_loss(data.classes))

        on_training, on_validation = evaluator(train_and_dual(split)), evaluator(split.validation)
        on_line = evaluator(torch.cat([split.dual, split.validation]), BOUND_SHARE[HELD_OUT_DUALS])
        patience = self.n_iter_no_change if self.early_stopping else None
        selector = ModelSelector(
            trainer, on_validation if held_out else on_training, on_line, x0, patience, self.verbose
        )
        scale = violation_scale(self.constraint_)
        modes = TrainedModes(
            best=lambda mode: selector.best(mode, self.algorithm if mode != UNCONSTRAINED else None, scale),
            training_constraints=lambda one: on_training.candidate(one.mode, one.step, one.x, None).c,
            violates=lambda one: on_validation.verdict(one.x).decision == "violated",
            no_held_out_duals_reason=trainer.no_held_out_duals_reason(),
            scale=scale,
            evaluated_on="validation data" if held_out else "training data",
        )
        with selector:
            best, self.decision_ = select_model(self._mode(modes), modes)
        self.mode_, self.n_iter_, self.history_ = best.mode, best.step, selector.history()
        for problem in selector.problems(best.mode):
            warnings.warn(
                f"{problem}; the model is the best of its run on {modes.evaluated_on}", ConvergenceWarning, stacklevel=3
            )
        load_flat(network, best.x).eval()
        self.module_ = unwrap(network)
        self._float64 = deepcopy(network).double()  # a prediction must not depend on what else is in its batch
        self._report(data, best, network)
        judged = self.constraint_ is not None and held_out
        self.verdict_ = evaluator(split.calibration).verdict(best.x) if judged else None

    def _mode(self, modes: TrainedModes) -> str:
        if self.constraint_ is None:
            return UNCONSTRAINED
        if self.algorithm is not None or (self.mode == "auto" and not has_held_out(self.parts_)):
            return TRAIN_DUALS
        if self.mode == HELD_OUT_DUALS and modes.no_held_out_duals_reason:
            raise ValueError(
                f"mode='held_out_duals' is not possible: {modes.no_held_out_duals_reason}; merge small groups, or use "
                "mode='train_duals'"
            )
        return self.mode

    def _network(self, data: TrainingData, seed: int) -> nn.Module:
        if self.module is not None:
            return copy_network(self.module, data)
        outputs = 1 if data.classes == 2 else data.classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = [data.X.shape[1], *self.hidden, outputs]
            layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def _report(self, data: TrainingData, best: Candidate, network: nn.Module) -> None:
        """Multipliers, and KKT residuals on the training data."""
        self.multipliers_: dict[str, float] = {}
        self.kkt_: KKT | None = None
        if self.constraint_ is None:
            return
        if best.multipliers is not None:
            self.multipliers_ = dict(zip(self.constraint_.names, best.multipliers.tolist(), strict=True))
        loss = per_example_loss(data.classes)

        def evaluate(examples: Tensor) -> MiniBatch:
            outputs, y = _logits(network, data.X[examples]), data.y[examples]
            weight = None if data.weight is None else data.weight[examples]
            return MiniBatch(loss(outputs, y), data.groups[examples], y, outputs, weight)

        self.kkt_ = report_kkt(
            network, self.constraint_, [train_and_dual(self.parts_)], evaluate, multipliers=self.multipliers_ or None
        )

    def report(self) -> str:
        """What `fit` did and its result, in 80 columns: split, runs, decision, KKT residuals, verdict."""
        check_is_fitted(self)
        return report(self.parts_, self.groups_, self.history_, self.decision_, self.kkt_, self.verdict_)

    # Predicting -------------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits: one per example for two classes, else one per class. Groups are not needed."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        with torch.no_grad():
            found: NDArray[np.float64] = _logits(self._float64, self._scaler.scaled(X).double()).numpy()
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class."""
        logits = torch.from_numpy(self.decision_function(X))
        if logits.ndim == 1:
            positive = torch.sigmoid(logits)
            return torch.stack([1 - positive, positive], 1).numpy()
        return torch.softmax(logits, 1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class."""
        logits = self.decision_function(X)
        found: NDArray[Any] = self.classes_[(logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)]
        return found


def _weights(given: Any, X: NDArray[np.float64]) -> NDArray[np.float64]:
    weight: NDArray[np.float64] = _check_sample_weight(given, X)
    if (weight < 0).any():
        raise ValueError(f"sample_weight must not be negative, found {float(weight.min()):g}")
    if not weight.any():
        raise ValueError("sample_weight is zero for every example")
    return weight


def _refuse_empty_cells(constraint: Constraint, groups: Tensor, labels: Tensor) -> None:
    cells = constraint.cells.bind(groups, labels)
    empty = [name for name, member in zip(cells.names, cells.examples, strict=True) if len(member) == 0]
    if empty:
        raise ValueError(
            f"there are no examples of {', '.join(map(repr, empty[:4]))}, which the constraint "
            f"{constraint.names[0]!r} is about; merge groups, or choose a notion that does not need them"
        )


def _logits(module: nn.Module, X: Tensor) -> Tensor:
    outputs: Tensor = module(X)
    return outputs.squeeze(-1) if outputs.ndim > 1 and outputs.shape[-1] == 1 else outputs
