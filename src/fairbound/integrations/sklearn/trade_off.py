"""The trade-off between accuracy and a bound in one call, and a score for model selection under a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import train_test_split
from sklearn.utils import _safe_indexing, check_random_state

from fairbound._utils.optional import need
from fairbound.auditing import Verdict
from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.integrations.sklearn.classifier import FairClassifier
from fairbound.integrations.sklearn.inputs import GroupEncoder, Notion, make_constraints
from fairbound.metrics.intervals import wilson

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2)


class TradeOffPoint(NamedTuple):
    """A fit, on examples that it has not seen."""

    constraint: str
    bound: float | None  # None: unconstrained
    gap: float  # the largest one
    gap_interval: tuple[float, float]  # 95 %
    accuracy: float
    accuracy_interval: tuple[float, float]  # 95 %
    decision: str  # of the verdict on these examples
    certified: bool  # on the calibration examples
    chosen: bool  # whether it is the estimator's own bound


class TradeOffCurve(NamedTuple):
    """Points by notion, the strictest bound first; `print` shows a table, `plot` a figure."""

    points: tuple[TradeOffPoint, ...]
    examples: int  # held out

    def frame(self) -> Any:
        """A pandas data frame, one row per point."""
        return need("pandas", "data", "A table of points").DataFrame(self.points)

    def __str__(self) -> str:
        lines = [f"{'constraint':<20} {'bound':>5}  {'largest gap':^20}  {'accuracy':^20}"]
        for one in self.points:
            bound = "none" if one.bound is None else f"{one.bound:g}"
            gap, accuracy = (
                f"{value:.3f} [{low:.3f}, {high:.3f}]"
                for value, (low, high) in ((one.gap, one.gap_interval), (one.accuracy, one.accuracy_interval))
            )
            mark = "<- bound" if one.chosen else ""
            lines.append(f"{one.constraint[:20]:<20} {bound:>5}  {gap:>20}  {accuracy:>20} {mark}".rstrip())
        return "\n".join([*lines, f"{self.examples:,} held-out examples; 95 % intervals"])

    def plot(self, ax: Any = None) -> Any:
        """Accuracy against the largest gap, with intervals, on matplotlib's axes; the estimator's bound is ringed."""
        if ax is None:
            ax = need("matplotlib.pyplot", "report", "A plot").subplots(figsize=(7, 4.5), layout="constrained")[1]
        for number, name in enumerate(dict.fromkeys(one.constraint for one in self.points)):
            own = [one for one in self.points if one.constraint == name]
            x, y = np.array([one.gap for one in own]), np.array([one.accuracy for one in own])
            xerr = np.abs(np.array([one.gap_interval for one in own]).T - x)
            yerr = np.abs(np.array([one.accuracy_interval for one in own]).T - y)
            ax.errorbar(x, y, yerr, xerr, "o-", color=f"C{number}", elinewidth=0.8, alpha=0.8, label=name)
            labels: dict[tuple[float, float], list[str]] = {}  # bounds that gave the same model share a label
            for one in own:
                at = (round(one.gap, 4), round(one.accuracy, 4))
                labels.setdefault(at, []).append("unconstrained" if one.bound is None else f"{one.bound:g}")
                if one.chosen:
                    ax.plot(one.gap, one.accuracy, "o", markersize=14, fillstyle="none", color=f"C{number}")
            for at, bounds in labels.items():
                ax.annotate(", ".join(bounds), at, (5, 5), textcoords="offset points", fontsize="small")
        ax.set_xlabel(f"largest gap on {self.examples:,} held-out examples (95 % intervals)")
        ax.set_ylabel("accuracy")
        ax.legend()
        return ax


def trade_off_curve(
    X: Any,
    y: Any,
    sensitive_features: Any,
    *,
    estimator: Any = None,
    constraints: Sequence[str] = ("demographic_parity",),
    bounds: Sequence[float] = BOUNDS,
    test_size: float = 0.3,
) -> TradeOffCurve:
    """Fits with many bounds and notions, evaluated on examples that none of them has seen.

    The models are trained once: only the corrections differ.

    Args:
        estimator: a `FairClassifier` or `FairPostprocessor` with the other settings; the point at its own bound is
            marked.
        constraints: names of notions.
        test_size: share of the examples that are held out.
    """
    base = clone(FairClassifier() if estimator is None else estimator)
    seed = int(check_random_state(base.random_state).randint(2**31 - 1))
    train, test = train_test_split(np.arange(len(y)), test_size=test_size, random_state=seed, stratify=np.asarray(y))
    parts = [[_safe_indexing(column, rows) for column in (X, y, sensitive_features)] for rows in (train, test)]
    points: list[TradeOffPoint] = []
    cache: dict[Any, Any] = {}
    for name in constraints:
        for bound in sorted(bounds):
            one = clone(base).set_params(constraint=name, bound=bound, random_state=seed)
            one.cross_fit_cache = cache  # splits and folds are the same, and so are their models
            one.fit(*parts[0])
            points.append(_point(one, name, bound, parts[1], chosen=bound == base.bound))
        points.append(_point(one.unconstrained_, name, None, parts[1], chosen=False))
    return TradeOffCurve(tuple(points), len(test))


def _point(fitted: Any, name: str, bound: float | None, test: Sequence[Any], *, chosen: bool) -> TradeOffPoint:
    X, y, sensitive = test
    seen = {"sensitive_features": sensitive} if fitted.group_at_prediction else {}
    right = float((fitted.predict(X, **seen) == np.asarray(y)).mean())
    ends = wilson(torch.tensor(right), torch.tensor(float(len(y))), 0.95)
    found: Verdict = fitted.judge(X, y, sensitive)
    worst = max((gap for gap in found.gaps if gap.estimate is not None), key=lambda gap: gap.estimate or 0.0)
    low, high = (worst.estimate if end is None else end for end in (worst.low, worst.high))
    return TradeOffPoint(
        name,
        bound,
        float(worst.estimate or 0.0),
        (float(low or 0.0), float(high or 0.0)),
        right,
        (float(ends[0]), float(ends[1])),
        found.decision,
        fitted.certified_ and bound is not None,
        chosen,
    )


# Model selection ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundedAccuracy:
    """Accuracy where the constraint is kept, minus its violation where it is not."""

    constraint: Notion
    bound: float
    __name__ = "bounded_accuracy"  # which a scorer prints

    def __call__(self, y: Any, predicted: NDArray[Any], *, sensitive_features: Any) -> float:
        """`predicted`: classes (N,), or probabilities (N, classes), which constraints on losses need."""
        y, classes = np.asarray(y), np.unique(y)
        encoder = GroupEncoder.fit(sensitive_features, len(y), "intersectional")
        outcomes = None if len(classes) == 2 else {k: str(name) for k, name in enumerate(classes.tolist())}
        own = make_constraints(self.constraint, self.bound, encoder.columns, outcomes)
        probabilities = predicted if predicted.ndim == 2 else (predicted[:, None] == classes).astype(float)
        logits = torch.from_numpy(probabilities).clamp(1e-12, 1.0).log()
        labels = torch.from_numpy(np.searchsorted(classes, y))
        outputs = logits[:, 1] - logits[:, 0] if len(classes) == 2 else logits
        losses = -logits[torch.arange(len(y)), labels]
        batch = MiniBatch(losses, encoder.transform(sensitive_features, len(y)), labels, outputs)
        violation = float(torch.nan_to_num(ConstraintSet(own).evaluate(batch, exact=True)[1:], nan=0.0).max())
        return -violation if violation > 0 else float((logits.argmax(1) == labels).double().mean())


def bounded_accuracy_scorer(constraint: Notion = "demographic_parity", bound: float = 0.05) -> Any:
    """A scorer for `GridSearchCV`: accuracy where the bound is kept, minus the violation where it is not.

    The bound is the scorer's, whatever bound a candidate was trained with: a looser one is not rewarded. It needs the
    groups: `sklearn.set_config(enable_metadata_routing=True)`, and `sensitive_features` among the search's parameters
    of `fit`.

    >>> scorer = bounded_accuracy_scorer("demographic_parity", 0.1)
    >>> y, predicted, group = np.array([0, 1, 0, 1]), np.array([0, 1, 1, 1]), ["A", "A", "B", "B"]
    >>> scorer._score_func(y, predicted, sensitive_features=group)          # rates .5 and 1: .4 beyond the bound
    -0.4
    """
    losses = "loss" in str(constraint) or getattr(constraint, "statistic", 0) is None
    method = "predict_proba" if losses else "predict"
    made = make_scorer(BoundedAccuracy(constraint, bound), response_method=method)
    routed = bool(get_config()["enable_metadata_routing"])
    return made.set_score_request(sensitive_features=True) if routed else made
