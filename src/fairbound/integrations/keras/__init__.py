"""Constrained training of Keras models: the same constraints, algorithms and reports; the backend
computes the outputs.

fit(model, X, y, sensitive_features=sex, constraint="pairwise_loss_parity", bound=0.02)    one call
FairClassifier(module=model)
scikit-learn Constrained(model, constraints.pairwise_loss_parity(2, bound=0.02))
   a tf.GradientTape loop make_functional(model)
                   for `fairbound.run`
"""

from fairbound._utils.optional import need

need("keras", "keras", "fairbound.integrations.keras")

from fairbound.integrations.keras.fitting import Fitted, fit  # noqa: E402
from fairbound.integrations.keras.forward import KerasForward, make_functional  # noqa: E402
from fairbound.integrations.keras.gradient_tape import Constrained, MiniBatch  # noqa: E402
from fairbound.integrations.keras.module import KerasModule, as_module  # noqa: E402
from fairbound.integrations.keras.validation import write_weights  # noqa: E402

__all__ = [
    "Constrained",
    "Fitted",
    "KerasForward",
    "KerasModule",
    "MiniBatch",
    "as_module",
    "fit",
    "make_functional",
    "write_weights",
]
