"""The trade-off between accuracy and a bound in one call, and a score for model selection under a
bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state

from fairbound._utils.optional import need
from fairbound.auditing import Verdict
from fairbound.columns._groups import GroupEncoder
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.integrations.sklearn._classifier import FairClassifier
from fairbound.integrations.sklearn._inputs import Notion, make_constraints
from fairbound.metrics._intervals import wilson
from fairbound.reports._figures import label_points
from fairbound.reports._page import as_text
from fairbound.reports._table import Measured, ReportTable

_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2)


class TradeOffPoint(NamedTuple):
    """A fit, evaluated on held-out data."""

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

    def __str__(self) -> str:
        rows = [
            {
                "constraint": point.constraint,
                "bound": "none" if point.bound is None else f"{point.bound:g}",
                "largest gap": Measured(point.gap, *point.gap_interval),
                "accuracy": Measured(point.accuracy, *point.accuracy_interval),
                "": "<- bound" if point.chosen else "",
            }
            for point in self.points
        ]
        notes = (f"{self.examples:,} held-out examples; 95 % intervals",)
        return as_text([ReportTable.of_rows("", rows, notes=notes, digits=3)])

    def plot(self, ax: Any = None) -> Any:
        """Accuracy against the largest gap, with intervals, on matplotlib's axes; the estimator's
        bound is ringed."""
        if ax is None:
            ax = need("matplotlib.pyplot", "report", "A plot").subplots(
                figsize=(7, 4.5), layout="constrained"
            )[1]
        # bounds that gave the same model share a label
        labels: dict[tuple[float, float, str], list[str]] = {}
        for number, name in enumerate(dict.fromkeys(point.constraint for point in self.points)):
            points = [point for point in self.points if point.constraint == name]
            x, y = (
                np.array([point.gap for point in points]),
                np.array([point.accuracy for point in points]),
            )
            xerr = np.abs(np.array([point.gap_interval for point in points]).T - x)
            yerr = np.abs(np.array([point.accuracy_interval for point in points]).T - y)
            ax.errorbar(
                x, y, yerr, xerr, "o-", color=f"C{number}", elinewidth=0.8, alpha=0.8, label=name
            )
            for point in points:
                at = (round(point.gap, 4), round(point.accuracy, 4), f"C{number}")
                labels.setdefault(at, []).append(
                    "unconstrained" if point.bound is None else f"{point.bound:g}"
                )
                if point.chosen:
                    ax.plot(
                        point.gap,
                        point.accuracy,
                        "o",
                        markersize=14,
                        fillstyle="none",
                        color=f"C{number}",
                    )
        ax.set_xlabel(f"largest gap on {self.examples:,} held-out examples (95 % intervals)")
        ax.set_ylabel("accuracy")
        ax.legend()
        label_points(
            ax,
            [at[:2] for at in labels],
            [", ".join(bounds) for bounds in labels.values()],
            [at[2] for at in labels],
        )
        return ax


def trade_off_curve(
    X: Any,
    y: Any,
    sensitive_features: Any,
    *,
    estimator: Any = None,
    constraints: Sequence[str] | None = None,
    bounds: Sequence[float] = _BOUNDS,
    test_size: float = 0.3,
) -> TradeOffCurve:
    """Fit with many bounds and notions, and evaluate on held-out data.

    The models are trained once: only the corrections differ.

    Args:
        X, y, sensitive_features: inputs, labels and groups, as for `FairClassifier.fit`.
        estimator: a `FairClassifier` or `FairPostprocessor` with the other settings; the point at
            its own bound is marked.
        constraints: names of notions that bound differences or losses; the estimator's if not
            given, and demographic_parity without an estimator.
        bounds: one fit for each.
        test_size: share of the examples that are held out.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from fairbound import FairPostprocessor
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.normal(size=(400, 2)), rng.integers(0, 2, 400)
    >>> y = (X[:, 0] + 0.5 * group > 0).astype(int)
    >>> fair = FairPostprocessor(
    ...     LogisticRegression(), constraint="demographic_parity", bound=0.1, random_state=0
    ... )
    >>> [
    ...     point.bound
    ...     for point in trade_off_curve(X, y, group, estimator=fair, bounds=[0.1, 0.2]).points
    ... ]
    [0.1, 0.2, None]
    """
    base = clone(
        FairClassifier(constraint="demographic_parity") if estimator is None else estimator
    )
    if constraints is None:
        constraints = (
            base.constraint if isinstance(base.constraint, list | tuple) else [base.constraint]
        )
    if not all(isinstance(name, str) for name in constraints):
        raise ValueError(
            f"a curve needs names of notions, got {list(constraints)!r}; pass constraints=[...]"
        )
    if "demographic_parity_ratio" in constraints:
        raise ValueError(
            "a curve shows differences, and so do its bounds; demographic_parity has those of these"
            " rates"
        )
    seed = int(check_random_state(base.random_state).randint(2**31 - 1))
    train, test = train_test_split(
        np.arange(len(y)), test_size=test_size, random_state=seed, stratify=np.asarray(y)
    )
    parts = [
        [_safe_indexing(column, rows) for column in (X, y, sensitive_features)]
        for rows in (train, test)
    ]
    points: list[TradeOffPoint] = []
    cache: dict[Any, Any] = {}
    for name in constraints:
        for bound in sorted(bounds):
            fitted = clone(base).set_params(constraint=name, bound=bound, random_state=seed)
            fitted.cross_fit_cache = cache  # splits and folds are the same, and so are their models
            fitted.fit(*parts[0])
            points.append(_point(fitted, name, bound, parts[1], chosen=bound == base.bound))
        points.append(_point(fitted.unconstrained_, name, None, parts[1], chosen=False))
    return TradeOffCurve(tuple(points), len(test))


def _point(
    fitted: Any, name: str, bound: float | None, test: Sequence[Any], *, chosen: bool
) -> TradeOffPoint:
    X, y, sensitive = test
    accuracy = fitted.score(
        X, y, sensitive_features=sensitive if fitted.group_at_prediction else None
    )
    ends = wilson(torch.tensor(accuracy), torch.tensor(float(len(y))), 0.95)
    verdict: Verdict = fitted.judge(X, y, sensitive)
    worst = max(
        (gap for gap in verdict.gaps if gap.estimate is not None),
        key=lambda gap: gap.estimate or 0.0,
    )
    gap, certified = float(worst.estimate or 0.0), fitted.certified_ and bound is not None
    interval = gap if worst.low is None else worst.low, gap if worst.high is None else worst.high
    accuracy_interval = float(ends[0]), float(ends[1])
    return TradeOffPoint(
        name, bound, gap, interval, accuracy, accuracy_interval, verdict.decision, certified, chosen
    )


# Model selection ----------------------------------------------------------------------------------


def bounded_accuracy(
    y: Any, predicted: NDArray[Any], *, sensitive_features: Any, constraint: Notion, bound: float
) -> float:
    """Accuracy where the constraint is kept, minus its violation where it is not.

    predicted: classes (N,), or probabilities (N, classes), which constraints on losses need.
    """
    y, classes = np.asarray(y), np.unique(y)
    encoder = GroupEncoder.fit(sensitive_features, len(y), "intersectional")
    named: dict[int | None, str] = {k: str(name) for k, name in enumerate(classes.tolist())}
    outcomes = None if len(classes) == 2 else named
    constraints = make_constraints(constraint, bound, encoder.columns, outcomes)
    probabilities = (
        predicted if predicted.ndim == 2 else (predicted[:, None] == classes).astype(float)
    )
    logits = torch.from_numpy(probabilities).clamp(1e-12, 1.0).log()
    labels = torch.from_numpy(np.searchsorted(classes, y))
    outputs = logits[:, 1] - logits[:, 0] if len(classes) == 2 else logits
    losses = -logits[torch.arange(len(y)), labels]
    batch = MiniBatch(losses, encoder.transform(sensitive_features, len(y)), labels, outputs)
    violation = float(
        torch.nan_to_num(ConstraintSet(constraints).evaluate(batch, exact=True)[1:], nan=0.0).max()
    )
    return -violation if violation > 0 else float((logits.argmax(1) == labels).double().mean())


def bounded_accuracy_scorer(constraint: Notion = "demographic_parity", bound: float = 0.05) -> Any:
    """A scorer for `GridSearchCV`: accuracy where the bound is kept, minus the violation where it
    is not.

    The scorer's bound counts, whatever bound a candidate was trained with: a looser one is not
    rewarded. It needs the groups: `sklearn.set_config(enable_metadata_routing=True)`, and
    `sensitive_features` among the search's parameters of `fit`.

    >>> from sklearn import config_context
    >>> with config_context(enable_metadata_routing=True):
    ...     bounded_accuracy_scorer("demographic_parity", 0.1)
    _BoundedAccuracy(bound=0.1, constraint='demographic_parity')
    >>> y, predicted, group = np.array([0, 1, 0, 1]), np.array([0, 1, 1, 1]), ["A", "A", "B", "B"]
    >>> bounded_accuracy(
    ...     y, predicted, sensitive_features=group, constraint="demographic_parity", bound=0.1
    ... )
    -0.4
    """
    if not get_config()["enable_metadata_routing"]:
        raise ValueError(
            "the score needs the groups, which scikit-learn passes to scorers with metadata routing"
            " only; call sklearn.set_config(enable_metadata_routing=True) first"
        )
    return _BoundedAccuracy(constraint, bound)


@dataclass(eq=False, repr=False)
class _BoundedAccuracy(BaseEstimator):
    """The scorer: scikit-learn's own give the groups to the score, and not to a model that predicts
    with them."""

    constraint: Notion
    bound: float

    __metadata_request__score = {"sensitive_features": True}  # noqa: RUF012

    def score(self, estimator: Any, X: Any, y: Any, sensitive_features: Any = None) -> float:
        model = estimator[-1] if isinstance(estimator, Pipeline) else estimator
        groups = (
            {"sensitive_features": sensitive_features}
            if getattr(model, "group_at_prediction", False)
            else {}
        )
        losses = "loss" in str(self.constraint) or getattr(self.constraint, "statistic", 0) is None
        predicted = (estimator.predict_proba if losses else estimator.predict)(X, **groups)
        given = {
            "sensitive_features": sensitive_features,
            "constraint": self.constraint,
            "bound": self.bound,
        }
        return bounded_accuracy(y, predicted, **given)

    __call__ = score  # metadata routing asks for a method of this name
