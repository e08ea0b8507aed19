"""scikit-learn estimators that keep a bound on fairness and certify it on held-out data."""

from fairbound._utils.optional import need

need("sklearn", "data", "FairClassifier")

from fairbound.integrations.sklearn._classifier import FairClassifier  # noqa: E402
from fairbound.integrations.sklearn._postprocessor import FairPostprocessor  # noqa: E402
from fairbound.integrations.sklearn._trade_off import (  # noqa: E402
    bounded_accuracy_scorer,
    trade_off_curve,
)

__all__ = ["FairClassifier", "FairPostprocessor", "bounded_accuracy_scorer", "trade_off_curve"]
