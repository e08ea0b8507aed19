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
    "BalancedBatchSampler": "data.balanced_batch_sampler",
    "Sampler": "data.samplers",
    "BatchSpec": "data.samplers",
    "FairClassifier": "integrations.sklearn",
    "FairPostprocessor": "integrations.sklearn",
    "trade_off_curve": "integrations.sklearn",
    "KKT": "metrics.kkt",
    "report_kkt": "integrations.torch.kkt_report",
    "MiniBatch": "constraints",
    "constraints": "constraints",
    "Constrained": "integrations.torch.constrained",
    "check_algorithm": "testing",
    "check_constraint": "testing",
    "make_functional": "training.functional",
    "initial_points": "training.functional",
    "load_flat": "training.functional",
    "grid": "training.hyperparams",
    "Problem": "training.problem",
    "Record": "training.records",
    "Result": "training.runner",
    "Run": "training.runner",
    "run": "training.runner",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairbound' has no attribute {name!r}")
    module = import_module(f"fairbound.{_HOME[name]}")
    return module if name == _HOME[name].rpartition(".")[2] else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
