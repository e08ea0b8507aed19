"""scikit-learn estimators that keep a bound on fairness and certify it on held-out data."""

from fairbound._utils.optional import need

need("sklearn", "data", "FairClassifier")

from fairbound.integrations.sklearn.classifier import FairClassifier  # noqa: E402
from fairbound.integrations.sklearn.postprocessor import FairPostprocessor  # noqa: E402
from fairbound.integrations.sklearn.trade_off import (  # noqa: E402
    bounded_accuracy_scorer,
    trade_off_curve,
)

__all__ = ["FairClassifier", "FairPostprocessor", "bounded_accuracy_scorer", "trade_off_curve"]
