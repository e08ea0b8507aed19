"""Constrained training of Keras models: the same constraints, algorithms and reports; the backend
computes the outputs.

fit(model, X, y, sensitive_features=sex, constraint="loss_parity", bound=0.02)    one call
FairClassifier(module=model)                                                      scikit-learn
Constrained(model, constraints.loss_parity(2, bound=0.02))                        tf.GradientTape
make_functional(model)                                                            `fairbound.run`
"""

from fairbound._utils.optional import need

need("keras", "keras", "fairbound.integrations.keras")

from fairbound.integrations.keras._fitting import Fitted, fit  # noqa: E402
from fairbound.integrations.keras._forward import KerasForward, make_functional  # noqa: E402
from fairbound.integrations.keras._gradient_tape import Constrained, MiniBatch  # noqa: E402
from fairbound.integrations.keras._module import KerasModule, as_module  # noqa: E402
from fairbound.integrations.keras._validation import write_weights  # noqa: E402

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
