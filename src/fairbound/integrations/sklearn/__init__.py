"""`FairClassifier`, a scikit-learn estimator that keeps rows aside to judge itself by."""

from fairbound._utils.optional import need

need("sklearn", "data", "FairClassifier")

from fairbound.integrations.sklearn.classifier import FairClassifier  # noqa: E402

__all__ = ["FairClassifier"]
