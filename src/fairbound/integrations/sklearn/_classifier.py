"""`FairClassifier`: an ensemble of neural networks that keeps a bound and certifies it on held-out
data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from fairbound.core import Algorithm
from fairbound.integrations.sklearn._cross_fitting import CrossFitted, Development
from fairbound.integrations.sklearn._features import FeatureEncoder, Features, as_frame
from fairbound.integrations.sklearn._inputs import Constraints  # noqa: F401  annotates the mixin
from fairbound.integrations.sklearn._mixin import FairClassifierMixin
from fairbound.integrations.sklearn._networks import (
    Member,
    NetworkCopies,
    NetworkEnsemble,
    copy_module,
    unwrap,
)
from fairbound.integrations.sklearn._trainer import (
    Examples,
    NetworkAverage,
    Networks,
    constrained_backward,
    train,
)

_BINS = 16  # quantile bins of a numeric column, for its piecewise-linear encoding


@dataclass(kw_only=True, eq=False, repr=False)
class FairClassifier(FairClassifierMixin, BaseEstimator):
    """A classifier that keeps a bound on held-out data: networks, a correction of their scores, and
    a certificate.

    By default the networks are trained without a constraint, and no method of
    `fairbound.algorithms` runs: corrections of their scores, chosen on out-of-fold data, keep the
    bound. With `method=...`, that method trains them.

    Args:
        constraint: the name of a notion of `fairbound.constraints`, a constraint, or a function of
            (names of the groups, bound=...) that gives one; several as a list, or as a mapping of
            names to bounds.
        bound: bound of the constraint; a list gives one for each of several constraints.
        max_accuracy_loss: accuracy that the bound may cost, out of fold. Where it costs more, the
            model that comes nearest to the bound at this price is returned, and the report says
            what a higher one would buy.
        allow_constant: whether a rule may decide for a class less than a tenth as often as without
            the bound.
        group_at_prediction: whether `predict` may use the group; it then needs
            `sensitive_features`.
        subgroups: with several columns of sensitive features: "intersectional", "marginal" or
            "both".
        pos_label: the class that is the positive decision; required for rates of two classes that
            are texts. By default the larger of two numbers, with several classes each of them.
        method: a method of `fairbound.algorithms` that trains each network under the constraint;
            None: plain training. The corrections follow in both cases.
        hidden: widths of the hidden layers; or give `module`, a torch module or a Keras model that
            takes the columns of X as they are and returns one logit (two classes) or one per class.
        categorical_features: names, positions or a mask of the columns that are categories;
            "from_dtype": columns of categories, text or booleans.
        epochs, batch_size: "auto" chooses by the number of examples. Training stops early.
        learning_rate: initial step of AdamW, which decays to 0.
        ensemble_size: number of networks, a multiple of `cv`.
        cv: number of folds. Every network trains on all but one of them and is selected on that
            one.
        calibration: share of the examples held out for the certificate and the verdict.
        level: confidence level of both.
        class_weight: as in scikit-learn, "balanced" or a dict.
        device: torch device.
        random_state: seed.
        verbose: show progress.

    After `fit`: `report()` explains the result, `report(html="report.html")` as a page; `verdict_`,
    `certified_`, `choice_`, `candidates_`, `multipliers_`, `constraints_`, `groups_`,
    `positive_class_`, `networks_`, `unconstrained_`, `judge(X, y, ...)` on new data.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((600, 2)), rng.choice(["A", "B"], 600)
    >>> y = X[:, 0] + rng.standard_normal(600) > 0
    >>> fair = FairClassifier(constraint="demographic_parity", bound=0.3, epochs=2, random_state=0)
    >>> fair = fair.fit(X, y, sensitive_features=group)
    >>> fair.predict(X[:2]).shape, sorted(fair.multipliers_)
    ((2,), ['A - B', 'B - A'])
    """

    method: Algorithm[Any] | None = None
    hidden: Sequence[int] = (64, 32)
    module: Any = None
    categorical_features: Any = "from_dtype"
    epochs: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate: float = 0.002
    ensemble_size: int = 8
    device: str = "cpu"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    @property
    def networks_(self) -> Any:
        """The trained networks: one module with all of them, or a list of copies of `module`."""
        model: Any = self._candidate.fitted.model
        return unwrap(model.network)

    # Inputs ---------------------------------------------------------------------------------------

    def _learn_encoding(self, X: Any, rows: NDArray[np.int64]) -> None:
        raw = self.module is not None
        self._features = FeatureEncoder.fit(
            X, self.categorical_features, rows, bins=0 if raw else _BINS
        )
        self.notes_ = [] if raw else list(self._features.notes)

    def _inputs(self, X: Any) -> Features:
        """Encoded columns; for the user's module, the columns as they are."""
        if self.module is None:
            return self._features.transform(X)
        if self._features.sizes:
            raise ValueError(
                "module= takes columns of numbers, and X has columns of categories or text; encode"
                " them first, e.g. with OrdinalEncoder, or leave out module="
            )
        numeric = torch.from_numpy(as_frame(X).to_numpy(np.float32, copy=True, na_value=np.nan))
        if bool(numeric.isnan().any()):
            raise ValueError(
                "module= takes columns as they are, and X has missing values; fill them first"
            )
        return Features(numeric, torch.empty(len(numeric), 0, dtype=torch.int64))

    # Networks -------------------------------------------------------------------------------------

    def _cross_fit(
        self, data: Development, target: Tensor, classes: int, weight: Tensor | None, *, main: bool
    ) -> CrossFitted:
        """Networks of a target, member s without fold s mod K; `main`: the label's, with the user's
        module."""
        fold = torch.from_numpy(data.fold)
        folds = int(fold.max()) + 1
        members = folds * max(1, self.ensemble_size // self.cv) if main else folds
        method = self.method if main and self.constraints_ else None
        outputs = 1 if classes == 2 else classes
        network = self._network(
            data.inputs, outputs, members, data.seed, main=main, apart=method is not None
        )
        examples = Examples(
            Features(*(part.to(self.device) for part in data.inputs)),
            target.to(self.device),
            None if weight is None else weight.float().to(self.device),
            fold.to(self.device),
            {name: codes.to(self.device) for name, codes in data.groups.items()},
        )
        left_out = torch.arange(members) % folds
        history = train(
            network,
            examples,
            left_out,
            learning_rate=self.learning_rate,
            batch_size=None if self.batch_size == "auto" else int(self.batch_size),
            epochs=None if self.epochs == "auto" else int(self.epochs),
            seed=data.seed,
            progress=self._progress(main),
            backward=(
                constrained_backward(network, self.constraints_, method, data.seed)
                if method
                else None
            ),
        )
        model = NetworkAverage(network)
        when = f"{float(history.best.min()):.1f} to {float(history.best.max()):.1f}"
        note = f"{members} networks, selected after {when} of {history.planned} epochs"
        return CrossFitted(model, model.out_of_fold(data.inputs, left_out, fold), note)

    def _network(
        self, inputs: Features, outputs: int, members: int, seed: int, *, main: bool, apart: bool
    ) -> Networks:
        shape = (inputs.numeric.shape[1], self._features.sizes, self.hidden, outputs)
        if main and self.module is not None:
            network: Networks = copy_module(self.module, inputs.numeric, outputs, members)
        elif apart:
            networks = [NetworkEnsemble(1, *shape, seed + i) for i in range(members)]
            network = NetworkCopies([Member(network, raw=False) for network in networks])
        else:
            network = NetworkEnsemble(members, *shape, seed)
        return network.to(self.device)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        widths = isinstance(self.hidden, Sequence) and not isinstance(self.hidden, str)
        if not widths or not all(map(_positive, self.hidden)):
            raise ValueError(
                f"hidden is a sequence of widths such as (64, 32), got {self.hidden!r}"
            )
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if value != "auto" and not _positive(value):
                raise ValueError(f"{name} must be 'auto' or a whole number > 0, got {value!r}")
        if not _positive(self.ensemble_size):
            raise ValueError(
                f"ensemble_size must be a whole number > 0, got {self.ensemble_size!r}"
            )
        if not isinstance(self.learning_rate, int | float) or not 0 < self.learning_rate < np.inf:
            raise ValueError(f"learning_rate must be a number > 0, got {self.learning_rate!r}")
        if not isinstance(self.method, Algorithm | None):
            raise TypeError(
                f"method must be one of fairbound.algorithms such as SSLALM(), got {self.method!r}"
            )
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device={self.device!r} is not available: {str(error).splitlines()[0]}"
            ) from error


def _positive(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)
