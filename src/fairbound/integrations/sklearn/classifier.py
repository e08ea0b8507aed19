"""`FairClassifier`: a neural network within a bound, as a scikit-learn classifier."""

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
from fairbound.integrations.sklearn.evaluation import Evaluator, Seen
from fairbound.integrations.sklearn.inputs import Scaler, TrainingData, group_codes
from fairbound.integrations.sklearn.mode_selection import Runs, chosen
from fairbound.integrations.sklearn.model_selection import ModelSelector
from fairbound.integrations.sklearn.modules import as_given, forward_of, own_copy
from fairbound.integrations.sklearn.report import report
from fairbound.integrations.sklearn.splits import parts_of
from fairbound.integrations.sklearn.trainer import (
    AIM,
    HELD_OUT_DUALS,
    TRAIN_DUALS,
    UNCONSTRAINED,
    Plan,
    Training,
    row_loss,
    scale_of,
    tighten_bound,
)
from fairbound.integrations.torch.kkt_report import report_kkt
from fairbound.metrics.kkt import KKT
from fairbound.training.functional import load_flat

MODES = ("auto", TRAIN_DUALS, HELD_OUT_DUALS)


class FairClassifier(ClassifierMixin, BaseEstimator):
    """A network trained within a bound, chosen and judged on rows of their own.

    Args:
        constraint: the name of a notion of `fairbound.constraints`, a function of (names of the groups, bound=...) that
            gives a constraint, or a constraint.
        bound: what the notion allows.
        mode: what moves the multipliers: "train_duals", "held_out_duals", or "auto" (chosen on validation data).
        algorithm: a method in place of ours, on training rows; its multipliers are capped if it caps them itself.
        hidden: widths of the hidden layers; or give `module`, a torch module or a Keras model that takes standardized
            columns and gives one logit (two classes) or one for each class.
        steps, batch_size, learning_rate: of the training.
        parts: shares of the rows that train, move the multipliers, choose the model and judge it.
        early_stopping: end a run that no longer improves on validation rows; the best look so far is kept.
        n_iter_no_change: looks (of 40 to a run) without a better one, after which that is so.
        random_state: seed.
        verbose: show a bar of progress, or lines where no terminal or no rich is there.
        compile: into machine code; None decides by the length.

    After `fit`: `report()` in words; `verdict_`, `decision_`, `mode_`, `multipliers_`, `kkt_`, `history_`, `n_iter_`,
    `constraint_`, `groups_`, `module_`, `parts_`.

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
        """Train within the bound; without `sensitive_features` without one, and with a warning."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {self.mode!r}")
        if self.algorithm is not None and self.mode == HELD_OUT_DUALS:
            raise ValueError("algorithm= runs on training data; leave mode='held_out_duals' or algorithm= out")
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
            warnings.warn("no sensitive_features were given: trained without a constraint", UserWarning, stacklevel=2)
            codes, names = group_codes(np.zeros(len(X)), len(X))
        else:
            codes, names = group_codes(sensitive_features, len(X))
        self.groups_ = [] if sensitive_features is None else list(names)
        self.constraint_ = None if sensitive_features is None else make_constraint(self.constraint, names, self.bound)
        if self.constraint_ is not None:
            _refuse_empty_cells(self.constraint_, torch.from_numpy(codes), torch.from_numpy(labels))
        self.parts_ = parts_of(codes * len(self.classes_) + labels, self.parts, seed)
        if self.constraint_ is not None and not self.parts_.kept_aside:
            warnings.warn(
                f"{len(X)} rows are too few to keep any aside: the model is chosen on the rows that train it, and "
                "there is no verdict",
                UserWarning,
                stacklevel=2,
            )
        self._fit(self._people(X, labels, codes, names, weight), seed)
        return self

    def _people(
        self,
        X: NDArray[np.float64],
        labels: NDArray[np.int64],
        codes: NDArray[np.int64],
        names: tuple[str, ...],
        weight: NDArray[np.float64] | None,
    ) -> TrainingData:
        primal = self.parts_.primal.numpy()
        if weight is not None and not weight[primal].any():
            raise ValueError(f"sample_weight is zero in all {len(primal)} rows that train, drawn at random")
        self._scaler = Scaler.of(X[primal])
        two = len(self.classes_) == 2
        return TrainingData(
            self._scaler.scaled(X),
            torch.from_numpy(labels).float() if two else torch.from_numpy(labels),
            len(self.classes_),
            torch.from_numpy(codes),
            names,
            None if weight is None else torch.from_numpy(weight / weight[primal].mean()).float(),
        )

    def _fit(self, people: TrainingData, seed: int) -> None:
        network = self._network(people, seed)
        forward = forward_of(network)
        x0 = torch.cat([p.detach().reshape(-1) for p in network.parameters() if p.requires_grad])
        plan = Plan(self.steps, self.batch_size, self.learning_rate, seed, self.compile)
        training = Training(people, self.parts_, self.constraint_, forward, plan)

        def judge(rows: Tensor, share: float = 1.0) -> Evaluator:
            constraint = None if self.constraint_ is None else tighten_bound(self.constraint_, share)
            return Evaluator(people, rows, constraint, forward, row_loss(people.classes))

        trained, validation = judge(self.parts_.primal), judge(self.parts_.validation)
        patience = self.n_iter_no_change if self.early_stopping else None
        seen = validation if self.parts_.kept_aside else trained
        own = judge(torch.cat([self.parts_.dual, self.parts_.validation]), AIM[HELD_OUT_DUALS])
        search = ModelSelector(training, seen, own, x0, patience, self.verbose)
        scale = scale_of(self.constraint_)
        runs = Runs(
            best=lambda mode: search.best(mode, self.algorithm if mode != UNCONSTRAINED else None, scale),
            on_training_rows=lambda one: trained.seen(one.mode, one.step, one.x, None).c,
            breaks=lambda one: validation.verdict(one.x).decision == "violated",
            why_no_held_out_duals=training.why_no_held_out_duals(),
            scale=scale,
            seen_on="validation rows" if self.parts_.kept_aside else "the rows that trained",
        )
        with search:
            best, self.decision_ = chosen(self._mode(runs), runs)
        self.mode_, self.n_iter_, self.history_ = best.mode, best.step, search.history()
        for trouble in search.troubles(best.mode):
            warnings.warn(
                f"{trouble}; the model is the best of its run on {runs.seen_on}", ConvergenceWarning, stacklevel=3
            )
        load_flat(network, best.x).eval()
        self.module_ = as_given(network)
        self._exact = deepcopy(network).double()  # predictions of a row must not depend on what is beside it
        self._report(people, best, network)
        aside = self.constraint_ is not None and self.parts_.kept_aside
        self.verdict_ = judge(self.parts_.calibration).verdict(best.x) if aside else None

    def _mode(self, runs: Runs) -> str:
        if self.constraint_ is None:
            return UNCONSTRAINED
        if self.algorithm is not None or (self.mode == "auto" and not self.parts_.kept_aside):
            return TRAIN_DUALS
        if self.mode == HELD_OUT_DUALS and runs.why_no_held_out_duals:
            raise ValueError(
                f"mode='held_out_duals' is not possible: {runs.why_no_held_out_duals}; merge small groups, or use "
                "mode='train_duals'"
            )
        return self.mode

    def _network(self, people: TrainingData, seed: int) -> nn.Module:
        if self.module is not None:
            return own_copy(self.module, people)
        outputs = 1 if people.classes == 2 else people.classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = [people.X.shape[1], *self.hidden, outputs]
            layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def _report(self, people: TrainingData, best: Seen, network: nn.Module) -> None:
        """Multipliers, and KKT residuals on the rows that trained."""
        self.multipliers_: dict[str, float] = {}
        self.kkt_: KKT | None = None
        if self.constraint_ is None:
            return
        if best.multipliers is not None:
            self.multipliers_ = dict(zip(self.constraint_.names, best.multipliers.tolist(), strict=True))
        loss = row_loss(people.classes)

        def evaluate(rows: Tensor) -> MiniBatch:
            outputs = _logits(network, people.X[rows])
            weight = None if people.weight is None else people.weight[rows]
            return MiniBatch(loss(outputs, people.y[rows]), people.groups[rows], people.y[rows], outputs, weight)

        self.kkt_ = report_kkt(
            network, self.constraint_, [self.parts_.primal], evaluate, multipliers=self.multipliers_ or None
        )

    def report(self) -> str:
        """What `fit` did and what came of it, in 80 columns: rows, runs, decision, training rows, verdict."""
        check_is_fitted(self)
        return report(self.parts_, self.groups_, self.history_, self.decision_, self.kkt_, self.verdict_)

    # Predicting -------------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits: one a row for two classes, else one for each class. Groups are not needed."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        with torch.no_grad():
            found: NDArray[np.float64] = _logits(self._exact, self._scaler.scaled(X).double()).numpy()
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
        raise ValueError("sample_weight is zero in every row")
    return weight


def _refuse_empty_cells(constraint: Constraint, groups: Tensor, labels: Tensor) -> None:
    cells = constraint.cells.bind(groups, labels)
    empty = [name for name, member in zip(cells.names, cells.examples, strict=True) if len(member) == 0]
    if empty:
        raise ValueError(
            f"there are no rows of {', '.join(map(repr, empty[:4]))}, which the constraint "
            f"{constraint.names[0]!r} is about; merge groups, or choose a notion that does not need them"
        )


def _logits(module: nn.Module, X: Tensor) -> Tensor:
    outputs: Tensor = module(X)
    return outputs.squeeze(-1) if outputs.ndim > 1 and outputs.shape[-1] == 1 else outputs
