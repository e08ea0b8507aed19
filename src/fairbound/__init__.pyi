"""Public names for type checkers, which do not run `__getattr__`; a test keeps it equal."""

from fairbound import constraints as constraints
from fairbound.algorithms import ALGORITHMS as ALGORITHMS
from fairbound.algorithms import SGD as SGD
from fairbound.algorithms import SSLALM as SSLALM
from fairbound.algorithms import AdaptivePI as AdaptivePI
from fairbound.algorithms import DescentAscent as DescentAscent
from fairbound.algorithms import Penalty as Penalty
from fairbound.algorithms import StochasticGhost as StochasticGhost
from fairbound.algorithms import SwitchingSubgradient as SwitchingSubgradient
from fairbound.algorithms import primal as primal
from fairbound.auditing import Audit as Audit
from fairbound.auditing import Verdict as Verdict
from fairbound.auditing import audit as audit
from fairbound.auditing import audit_columns as audit_columns
from fairbound.auditing import verdict as verdict
from fairbound.constraints import MiniBatch as MiniBatch
from fairbound.core import Algorithm as Algorithm
from fairbound.core import Draw as Draw
from fairbound.core import Estimate as Estimate
from fairbound.core import MultiplierMethod as MultiplierMethod
from fairbound.core import Sample as Sample
from fairbound.data import BalancedBatchSampler as BalancedBatchSampler
from fairbound.data import BatchSpec as BatchSpec
from fairbound.data import Dataset as Dataset
from fairbound.data import Sampler as Sampler
from fairbound.data import Split as Split
from fairbound.integrations.sklearn import FairClassifier as FairClassifier
from fairbound.integrations.sklearn import FairPostprocessor as FairPostprocessor
from fairbound.integrations.sklearn import trade_off_curve as trade_off_curve
from fairbound.integrations.torch import KKT as KKT
from fairbound.integrations.torch import Constrained as Constrained
from fairbound.integrations.torch import report_kkt as report_kkt
from fairbound.testing import check_algorithm as check_algorithm
from fairbound.testing import check_constraint as check_constraint
from fairbound.training import Problem as Problem
from fairbound.training import Record as Record
from fairbound.training import Result as Result
from fairbound.training import Run as Run
from fairbound.training import grid as grid
from fairbound.training import initial_points as initial_points
from fairbound.training import load_flat as load_flat
from fairbound.training import make_functional as make_functional
from fairbound.training import run as run

__version__: str
__all__: list[str]
_HOME: dict[str, str]
