"""One file per algorithm. `ALGORITHMS` is the registry; being listed is being tested.

`Warmup`, `AveragedDual` and `DualRestarts` go around a method and are no rows of their own.
"""

from fairbound.algorithms.adam_descent_ascent import AdamDescentAscent
from fairbound.algorithms.descent_ascent import DescentAscent
from fairbound.algorithms.exact_penalty import ExactPenalty
from fairbound.algorithms.extragradient import Extragradient
from fairbound.algorithms.ghost import StochasticGhost
from fairbound.algorithms.penalty import Penalty
from fairbound.algorithms.sgd import SGD
from fairbound.algorithms.ssl_alm import SSLALM
from fairbound.algorithms.switching import Adaptive, SwitchingSubgradient
from fairbound.algorithms.warmup import Warmup
from fairbound.algorithms.wrappers import AveragedDual, DualRestarts
from fairbound.core import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {  # type: ignore[type-arg]  # each has a state of its own
    "SGD": SGD,
    "Penalty": Penalty,
    "DescentAscent": DescentAscent,
    "SSLALM": SSLALM,
    "SwitchingSubgradient": SwitchingSubgradient,
    "StochasticGhost": StochasticGhost,
    "ExactPenalty": ExactPenalty,
    "AdamDescentAscent": AdamDescentAscent,
    "Extragradient": Extragradient,
}

__all__ = [
    "ALGORITHMS",
    "SGD",
    "SSLALM",
    "AdamDescentAscent",
    "Adaptive",
    "AveragedDual",
    "DescentAscent",
    "DualRestarts",
    "ExactPenalty",
    "Extragradient",
    "Penalty",
    "StochasticGhost",
    "SwitchingSubgradient",
    "Warmup",
]
