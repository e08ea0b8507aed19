"""`FairClassifier`, a scikit-learn estimator that keeps rows aside to judge itself by."""

from fairbound.extras import need

need("sklearn", "data", "FairClassifier")

from fairbound.estimating.classifier import FairClassifier  # noqa: E402

__all__ = ["FairClassifier"]
