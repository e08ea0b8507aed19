"""`FairClassifier`, a scikit-learn classifier trained under a constraint, with a verdict on held-out data."""

from fairbound._utils.optional import need

need("sklearn", "data", "FairClassifier")

from fairbound.integrations.sklearn.classifier import FairClassifier  # noqa: E402

__all__ = ["FairClassifier"]
