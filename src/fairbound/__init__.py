"""Train neural networks within bounds: stochastic algorithms for `min E f(x) s.t. E c(x) <= 0`.

Public names are resolved on first use (PEP 562): `import fairbound` alone imports nothing heavy.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {  # public name -> the module that defines it
    "ALGORITHMS": "algorithms",
    "SGD": "algorithms",
    "SSLALM": "algorithms",
    "DescentAscent": "algorithms",
    "AdaptivePI": "algorithms",
    "Penalty": "algorithms",
    "primal": "algorithms.primal",
    "StochasticGhost": "algorithms",
    "SwitchingSubgradient": "algorithms",
    "Audit": "auditing",
    "Verdict": "auditing",
    "audit": "auditing",
    "audit_columns": "auditing",
    "verdict": "auditing",
    "Algorithm": "core",
    "Draw": "core",
    "Estimate": "core",
    "MultiplierMethod": "core",
    "Sample": "core",
    "Dataset": "data",
    "Split": "data",
    "BalancedBatchSampler": "data",
    "Sampler": "data",
    "BatchSpec": "data",
    "FairClassifier": "integrations.sklearn",
    "FairPostprocessor": "integrations.sklearn",
    "trade_off_curve": "integrations.sklearn",
    "KKT": "integrations.torch",
    "report_kkt": "integrations.torch",
    "MiniBatch": "constraints",
    "constraints": "constraints",
    "Constrained": "integrations.torch",
    "check_algorithm": "testing",
    "check_constraint": "testing",
    "make_functional": "training",
    "initial_points": "training",
    "load_flat": "training",
    "grid": "training",
    "Problem": "training",
    "Record": "training",
    "Result": "training",
    "Run": "training",
    "run": "training",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairbound' has no attribute {name!r}")
    module = import_module(f"fairbound.{_HOME[name]}")
    return module if name == _HOME[name].rpartition(".")[2] else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
