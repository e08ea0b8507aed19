"""One file per algorithm. `ALGORITHMS` is the registry; being listed is being tested."""

from fairbound.algorithms.adaptive_pi import AdaptivePI
from fairbound.algorithms.descent_ascent import DescentAscent
from fairbound.algorithms.exact_penalty import ExactPenalty
from fairbound.algorithms.ghost import StochasticGhost
from fairbound.algorithms.level_constrained import LevelConstrained
from fairbound.algorithms.nu_pi import NuPI
from fairbound.algorithms.penalty import Penalty
from fairbound.algorithms.phr_alm import PHRALM
from fairbound.algorithms.sgd import SGD
from fairbound.algorithms.spbm import SPBM
from fairbound.algorithms.sqp_adam import SQPAdam
from fairbound.algorithms.ssl_alm import SSLALM
from fairbound.algorithms.switching import Adaptive, SwitchingSubgradient
from fairbound.algorithms.tracked_sqp import TrackedSQP
from fairbound.core import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {  # type: ignore[type-arg]  # each has a state of its own
    "AdaptivePI": AdaptivePI,
    "SGD": SGD,
    "Penalty": Penalty,
    "DescentAscent": DescentAscent,
    "SSLALM": SSLALM,
    "PHRALM": PHRALM,
    "NuPI": NuPI,
    "SPBM": SPBM,
    "SwitchingSubgradient": SwitchingSubgradient,
    "StochasticGhost": StochasticGhost,
    "TrackedSQP": TrackedSQP,
    "SQPAdam": SQPAdam,
    "LevelConstrained": LevelConstrained,
    "ExactPenalty": ExactPenalty,
}

__all__ = [
    "ALGORITHMS",
    "PHRALM",
    "SGD",
    "SPBM",
    "SSLALM",
    "Adaptive",
    "AdaptivePI",
    "DescentAscent",
    "ExactPenalty",
    "LevelConstrained",
    "NuPI",
    "Penalty",
    "SQPAdam",
    "StochasticGhost",
    "SwitchingSubgradient",
    "TrackedSQP",
]
