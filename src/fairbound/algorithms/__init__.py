"""One file per algorithm. `ALGORITHMS` is the registry; being listed is being tested."""

from fairbound.algorithms._adaptive_pi import AdaptivePI
from fairbound.algorithms._descent_ascent import DescentAscent
from fairbound.algorithms._exact_penalty import ExactPenalty
from fairbound.algorithms._ghost import StochasticGhost
from fairbound.algorithms._level_constrained import LevelConstrained
from fairbound.algorithms._nu_pi import NuPI
from fairbound.algorithms._penalty import Penalty
from fairbound.algorithms._phr_alm import PHRALM
from fairbound.algorithms._sgd import SGD
from fairbound.algorithms._spbm import SPBM
from fairbound.algorithms._sqp_adam import SQPAdam
from fairbound.algorithms._ssl_alm import SSLALM
from fairbound.algorithms._switching import Adaptive, SwitchingSubgradient
from fairbound.algorithms._tracked_sqp import TrackedSQP
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
