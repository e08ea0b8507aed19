"""The estimators whose models are neural networks: their inputs, their parameters, and cross-fitted training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from fairbound.core import Algorithm
from fairbound.integrations.sklearn.base import Development, FairEstimator
from fairbound.integrations.sklearn.cross_fitting import CrossFitted
from fairbound.integrations.sklearn.features import FeatureEncoder, Features
from fairbound.integrations.sklearn.networks import Member, NetworkCopies, NetworkEnsemble, copy_module
from fairbound.integrations.sklearn.trainer import Examples, Networks, TrainingConfig, forward_all, train

BINS = 16  # quantile bins of a numeric column, for its piecewise-linear encoding


@dataclass(frozen=True, eq=False)
class NetworkAverage:
    """The average logits of an ensemble."""

    network: Networks

    def logits(self, inputs: Features) -> Tensor:
        return _squeezed(self._outputs(inputs).mean(0))

    def out_of_fold(self, inputs: Features, left_out: Tensor, fold: Tensor) -> Tensor:
        """Of every example the average of the members that left out its fold, `left_out` (S,)."""
        unseen = (left_out[:, None] == fold).double()[..., None]
        return _squeezed((self._outputs(inputs) * unseen).sum(0) / unseen.sum(0))

    def _outputs(self, inputs: Features) -> Tensor:
        """(S, N, outputs)"""
        device = next(self.network.parameters()).device
        return forward_all(self.network, Features(*(part.to(device) for part in inputs))).cpu().double()


def _squeezed(logits: Tensor) -> Tensor:
    """(N,) for two classes."""
    return logits[:, 0] if logits.shape[-1] == 1 else logits


class NeuralEstimator(FairEstimator):
    """The networks of `FairClassifier`."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.non_deterministic = False
        return tags

    def _validate(self, X: Any, *, reset: bool) -> Any:
        if hasattr(X, "columns"):  # a data frame: the encoder reads its columns one by one
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=None, ensure_all_finite="allow-nan")

    def _inputs(self, X: Any, train: NDArray[np.int64] | None) -> Features:
        if train is not None:
            raw = self.module is not None
            self._features = FeatureEncoder.fit(X, self.categorical_features, train, bins=0 if raw else BINS)
            self.notes_ = [] if raw else list(self._features.notes)
        return self._raw(X) if self.module is not None else self._features.transform(X)

    def _raw(self, X: Any) -> Features:
        """The columns as they are, for the user's module."""
        if any(size for size in self._features.sizes):
            raise ValueError(
                "module= takes columns of numbers, and X has columns of categories or text; encode them first, e.g. "
                "with OrdinalEncoder, or leave out module="
            )
        dense = X.toarray() if hasattr(X, "toarray") else X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
        numeric = torch.from_numpy(np.asarray(dense, dtype=np.float32))
        if bool(numeric.isnan().any()):
            raise ValueError("module= takes columns as they are, and X has missing values; fill them first")
        return Features(numeric, torch.empty(len(numeric), 0, dtype=torch.int64))

    def _take(self, inputs: Features, rows: NDArray[np.int64]) -> Features:
        return Features(*(part[torch.from_numpy(rows)] for part in inputs))

    def _cross_fit_networks(
        self,
        data: Development,
        target: Tensor,
        outputs: int,
        weight: Tensor | None,
        *,
        main: bool,
    ) -> CrossFitted:
        """Networks of a target, member s without fold s mod K; `main`: the label's, with the user's module."""
        fold = torch.from_numpy(data.fold)
        folds = int(fold.max()) + 1
        members = folds * max(1, self.ensemble_size // self.cv) if main else folds
        constrained = main and self.algorithm is not None and bool(self.constraints_)
        network = self._network(data.inputs, outputs, members, data.seed, main=main, apart=constrained)
        examples = Examples(
            Features(*(part.to(self.device) for part in data.inputs)),
            target.to(self.device),
            None if weight is None else weight.float().to(self.device),
            fold.to(self.device),
            {name: codes.to(self.device) for name, codes in data.groups.items()},
        )
        config = TrainingConfig(
            self.learning_rate,
            None if self.batch_size == "auto" else int(self.batch_size),
            None if self.epochs == "auto" else int(self.epochs),
            data.seed,
            self._progress("label" if main else "groups") if self.verbose else None,
            self.algorithm if constrained else None,
            self.constraints_ if constrained else (),
        )
        left_out = torch.arange(members) % folds
        history = train(network, examples, left_out, config)
        model = NetworkAverage(network)
        when = f"{float(history.best.min()):.1f} to {float(history.best.max()):.1f}"
        note = f"{members} networks, selected after {when} of {history.planned} epochs"
        return CrossFitted(model, model.out_of_fold(data.inputs, left_out, fold), note)

    def _network(self, inputs: Features, outputs: int, members: int, seed: int, *, main: bool, apart: bool) -> Networks:
        if main and self.module is not None:
            network: Networks = copy_module(self.module, inputs.numeric, outputs, members)
        elif apart:
            single = [self._ensemble(inputs, 1, outputs, seed + i) for i in range(members)]
            network = NetworkCopies([Member(one, raw=False) for one in single])
        else:
            network = self._ensemble(inputs, members, outputs, seed)
        if main and self.warm_start and hasattr(self, "_candidate"):
            self._start_warm(network)
        return network.to(self.device)

    def _ensemble(self, inputs: Features, members: int, outputs: int, seed: int) -> NetworkEnsemble:
        sizes = self._features.sizes if self.module is None else ()
        return NetworkEnsemble(members, inputs.numeric.shape[1], sizes, self.hidden, outputs, seed)

    def _start_warm(self, network: Networks) -> None:
        model: Any = self._plain.fitted.model
        last, own = model.network.state_dict(), network.state_dict()
        if {name: tensor.shape for name, tensor in last.items()} != {name: t.shape for name, t in own.items()}:
            raise ValueError(
                "warm_start=True needs the columns, categories, classes and settings of the last fit; use "
                "warm_start=False"
            )
        network.load_state_dict(last)

    def _progress(self, what: str) -> Any:
        def show(epochs: int, epoch: float, loss: float) -> None:
            print(f"networks of the {what}: epoch {epoch:.1f} of {epochs}, validation loss {loss:.4f}", flush=True)

        return show

    def _check_network(self) -> None:
        """Parameters of the networks, as sentences."""
        if (
            isinstance(self.hidden, str)
            or not isinstance(self.hidden, Sequence)
            or not all(map(_positive, self.hidden))
        ):
            raise ValueError(f"hidden is a sequence of widths such as (64, 32), got {self.hidden!r}")
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if value != "auto" and not _positive(value):
                raise ValueError(f"{name} must be 'auto' or a whole number > 0, got {value!r}")
        for name in ("ensemble_size",):
            if not _positive(getattr(self, name)):
                raise ValueError(f"{name} must be a whole number > 0, got {getattr(self, name)!r}")
        if not isinstance(self.learning_rate, int | float) or not 0 < self.learning_rate < np.inf:
            raise ValueError(f"learning_rate must be a number > 0, got {self.learning_rate!r}")
        if not isinstance(self.algorithm, Algorithm | None):
            raise TypeError(f"algorithm must be a method such as SSLALM(), got {self.algorithm!r}")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device={self.device!r} is not available: {str(error).splitlines()[0]}") from error


def _positive(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)
