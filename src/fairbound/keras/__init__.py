"""Keras models within bounds: the same limits, methods and reports, the model's outputs computed by Keras' backend.

fit(model, X, y, sensitive_features=sex, constraint="accuracy_equality", bound=0.02)       one call
FairClassifier(module=model)                                                               scikit-learn
Constrained(model, limits.accuracy_equality(["A", "B"], bound=0.02), DescentAscent())      a tf.GradientTape loop
functional(model)                                                                          for `fairbound.run`
"""

from fairbound.extras import need

need("keras", "keras", "fairbound.keras")

from fairbound.keras.fitting import Fitted, fit  # noqa: E402
from fairbound.keras.forward import KerasForward, functional  # noqa: E402
from fairbound.keras.loop import Constrained, Rows  # noqa: E402
from fairbound.keras.models import write_weights  # noqa: E402
from fairbound.keras.module import KerasModule, as_module  # noqa: E402

__all__ = [
    "Constrained",
    "Fitted",
    "KerasForward",
    "KerasModule",
    "Rows",
    "as_module",
    "fit",
    "functional",
    "write_weights",
]
