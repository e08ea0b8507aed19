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
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from fairbound.core import Algorithm
from fairbound.estimating.choosing import Judge, Seen, chosen
from fairbound.estimating.parts import parts_of
from fairbound.estimating.people import People, Scaler, group_codes
from fairbound.estimating.training import Plan, Training, row_loss
from fairbound.fairness import limits
from fairbound.fairness.limits import Limit
from fairbound.loop.kkt import kkt
from fairbound.loop.rows import Rows
from fairbound.modules import ModuleForward, load_flat
from fairbound.verdicts import verdict

NOTIONS: dict[str, Callable[..., Limit]] = {
    name: getattr(limits, name)
    for name in (
        "accuracy_equality",
        "bounded_group_loss",
        "demographic_parity",
        "equal_opportunity",
        "equalized_odds",
        "false_positive_parity",
        "loss_parity",
        "true_positive_parity",
    )
}
MODES = ("auto", "training rows", "own rows")
RECORDS = 40  # looks at the selection rows


class FairClassifier(ClassifierMixin, BaseEstimator):
    """A network trained within a bound, chosen and judged on rows of their own.

    Args:
        constraint: the name of a notion of `fairbound.limits`, a function of (names of the groups, bound=...) that
            gives a limit, or a limit.
        bound: what the notion allows.
        mode: what moves the multipliers: "training rows", "own rows", or "auto", which trains both ways and decides on
            selection rows.
        algorithm: a method in place of ours, on training rows.
        hidden: widths of the hidden layers; or give `module`, a torch module that takes standardised columns and gives
            one logit (two classes) or one for each class.
        steps, batch_size, learning_rate: of the training.
        parts: shares of the rows that train, move the multipliers, choose the model and judge it.
        patience: stop a run after so many looks (of 40) without a better one on selection rows; None: never.
        random_state: seed.
        verbose: print a line for every look.
        compile: into machine code; None decides by the length.

    After `fit`: `verdict_`, `decision_`, `mode_`, `multipliers_`, `kkt_`, `history_`, `limit_`, `module_`, `parts_`.
    """

    def __init__(
        self,
        *,
        constraint: str | Limit | Callable[..., Limit] = "accuracy_equality",
        bound: float = 0.02,
        mode: str = "auto",
        algorithm: Algorithm[Any] | None = None,
        hidden: Sequence[int] = (64, 32),
        module: nn.Module | None = None,
        steps: int = 15_000,
        batch_size: int = 64,
        learning_rate: float = 0.05,
        parts: Mapping[str, float] | None = None,
        patience: int | None = None,
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
        self.patience = patience
        self.random_state = random_state
        self.verbose = verbose
        self.compile = compile

    # Fitting ----------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> FairClassifier:
        """Train within the bound; without `sensitive_features` without one, and with a warning."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {self.mode!r}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, labels = np.unique(_as_classes(y), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_.tolist()}; a classifier needs two or more")
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if sensitive_features is None:
            warnings.warn("no sensitive_features were given: trained without a limit", UserWarning, stacklevel=2)
            codes, names = group_codes(np.zeros(len(X)), len(X))
        else:
            codes, names = group_codes(sensitive_features, len(X))
        self.groups_ = list(names)
        self.limit_ = None if sensitive_features is None else self._limit(names)
        self.parts_ = parts_of(codes, self.parts, seed)
        self._fit(self._people(X, labels, codes, names, weight), seed)
        return self

    def _limit(self, names: Sequence[str]) -> Limit:
        if isinstance(self.constraint, Limit):
            return self.constraint
        if callable(self.constraint):
            return self.constraint(names, bound=self.bound)
        if self.constraint not in NOTIONS:
            raise ValueError(f"constraint must be one of {', '.join(sorted(NOTIONS))}, got {self.constraint!r}")
        return NOTIONS[self.constraint](names, bound=self.bound)

    def _people(
        self,
        X: NDArray[np.float64],
        labels: NDArray[np.int64],
        codes: NDArray[np.int64],
        names: tuple[str, ...],
        weight: NDArray[np.float64] | None,
    ) -> People:
        self._scaler = Scaler.of(X[self.parts_.primal.numpy()])
        two = len(self.classes_) == 2
        return People(
            self._scaler.scaled(X),
            torch.from_numpy(labels).float() if two else torch.from_numpy(labels),
            len(self.classes_),
            torch.from_numpy(codes),
            names,
            None if weight is None else torch.from_numpy(weight / weight.mean()).float(),
        )

    def _fit(self, people: People, seed: int) -> None:
        self.module_ = self._network(people, seed)
        forward = ModuleForward(self.module_)
        x0 = torch.cat([p.detach().reshape(-1) for p in self.module_.parameters() if p.requires_grad])
        plan = Plan(self.steps, self.batch_size, self.learning_rate, seed, self.compile)
        mode = "training rows" if self.algorithm is not None else self.mode
        training = Training(people, self.parts_, self.limit_, forward, mode, plan)
        rows = self.parts_.selection if self.parts_.kept_aside else self.parts_.train
        judge = Judge(people, rows, self.limit_, forward, row_loss(people.classes))
        self._signs: dict[str, str | None] = {}
        seen = [one for name in training.modes for one in self._seen(training, name, x0, judge)]
        scale = 1.0 if self.limit_ is None else float(self.limit_.bound.abs().max())
        best, self.decision_ = chosen(seen, self.steps, scale)
        self.mode_ = best.mode
        sign = self._signs.get(best.mode)
        if sign is not None:
            warnings.warn(
                f"{sign}; the model is the best of its run on selection rows", ConvergenceWarning, stacklevel=3
            )
        self.history_ = [
            {"mode": s.mode, "step": s.step, "loss": s.loss, "accuracy": s.accuracy, "violation": s.violation}
            for s in seen
        ]
        load_flat(self.module_, best.x).eval()
        self._exact = deepcopy(self.module_).double()  # predictions of a row must not depend on what is beside it
        self._report(people, best)

    def _network(self, people: People, seed: int) -> nn.Module:
        if self.module is not None:
            return deepcopy(self.module)
        outputs = 1 if people.classes == 2 else people.classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = [people.X.shape[1], *self.hidden, outputs]
            layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def _seen(self, training: Training, mode: str, x0: Tensor, judge: Judge) -> list[Seen]:
        """The looks at one run."""
        candidate = training.candidate(mode, self.algorithm)
        found: list[Seen] = []
        best, waited = (np.inf, np.inf), 0
        run = training.run(candidate, x0, RECORDS)
        for record in run:
            y = None if record.multipliers is None else record.multipliers[0].clone()
            one = judge.seen(mode, record.step, record.output[0], y)
            found.append(one)
            if self.verbose:
                print(f"{mode}: step {one.step}, loss {one.loss:.4f}, violation {one.violation:.4f}")
            waited = 0 if (one.violation, one.loss) < best else waited + 1
            best = min(best, (one.violation, one.loss))
            if self.patience is not None and waited >= self.patience:
                return found
        self._signs[mode] = run.result().infeasible[0]
        return found

    def _report(self, people: People, best: Seen) -> None:
        """Multipliers, KKT residuals on training rows, and the verdict on rows that nothing else has used."""
        self.multipliers_, self.kkt_, self.verdict_ = {}, None, None
        if self.limit_ is None:
            return
        if best.multipliers is not None:
            self.multipliers_ = dict(zip(self.limit_.names, best.multipliers.tolist(), strict=True))
        loss = row_loss(people.classes)

        def evaluate(rows: Tensor) -> Rows:
            outputs = _logits(self.module_, people.X[rows])
            weight = None if people.weight is None else people.weight[rows]
            return Rows(loss(outputs, people.y[rows]), people.groups[rows], people.y[rows], outputs, weight)

        self.kkt_ = kkt(
            self.module_, self.limit_, [self.parts_.primal], evaluate, multipliers=self.multipliers_ or None
        )
        if self.parts_.kept_aside:
            with torch.no_grad():
                rows = evaluate(self.parts_.verdict)
            self.verdict_ = verdict(
                self.limit_,
                rows.groups,
                losses=rows.losses,
                outputs=rows.outputs,
                labels=rows.labels,
                weight=rows.weight,
            )

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


def _as_classes(y: NDArray[Any]) -> NDArray[Any]:
    from sklearn.utils.multiclass import check_classification_targets

    check_classification_targets(y)
    return y


def _logits(module: nn.Module, X: Tensor) -> Tensor:
    outputs: Tensor = module(X)
    return outputs.squeeze(-1) if outputs.ndim > 1 and outputs.shape[-1] == 1 else outputs
