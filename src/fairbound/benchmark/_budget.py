"""How many examples a method passes through the model: the unit in which budgets are equal for
all."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import fields
from functools import lru_cache
from typing import Any

from fairbound.core import Algorithm, MultiplierMethod
from fairbound.training._contract import StepFacts, trial_step

TRIAL_S = 20.0  # for a step on a toy, Python's start included
TRIAL = """
import pickle, sys
from pathlib import Path
from fairbound._utils.modules import load_module
from fairbound.training._contract import trial_step
file, name, settings = pickle.load(sys.stdin.buffer)
facts = trial_step(getattr(load_module(Path(file)), name)(**settings))
print("\\n", *facts.passes, int(facts.several_gradients), int(facts.several_points))
"""


def examples_per_step(method: Algorithm[Any], objective: int, constraints: int) -> float:
    """Examples that a step passes through the model, forward only or also backward.

    Of a random batch size it is the expectation: one mini-batch, and one of 2^(level + 1) times its
    examples, whose halves are the same examples.

    Args:
        objective: examples of a mini-batch for the objective.
        constraints: examples of a mini-batch for the constraints, those of all groups together.

    >>> from fairbound.algorithms import SGD, SSLALM
    >>> examples_per_step(SGD(), 8, 16), examples_per_step(SSLALM(), 8, 16)
    (8.0, 40.0)
    """
    uses = zip(method.evaluates, step_facts(method).passes, strict=True)
    draws: list[int] = [
        passes * (objective * ("f" in read) + constraints * ("c" in read)) for read, passes in uses
    ]
    if method.batch_size_probs is None:
        return float(sum(draws))
    return draws[0] * (
        1 + math.fsum(2.0 ** (level + 1) * p for level, p in enumerate(method.batch_size_probs))
    )


def step_facts(method: Algorithm[Any]) -> StepFacts:
    """What a trial step shows; of a method from a file in a process of its own, since its code may
    hang or exit.

    One that breaks there counts one pass for each mini-batch: its runs, which have limits, will say
    why.
    """
    kind = type(method)
    if isinstance(method, MultiplierMethod):
        return StepFacts((1,) * method.draws, several_gradients=False, several_points=False)
    if not kind.__module__.startswith("fairbound_custom_"):
        return trial_step(method)
    settings = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    return _tried(
        pickle.dumps((sys.modules[kind.__module__].__file__, kind.__name__, settings)), method.draws
    )


@lru_cache(maxsize=256)
def _tried(method: bytes, draws: int) -> StepFacts:
    broken = StepFacts((1,) * draws, several_gradients=False, several_points=False)
    try:
        command = [sys.executable, "-c", TRIAL]
        said = subprocess.run(
            command, input=method, capture_output=True, timeout=TRIAL_S, check=True
        ).stdout
        *passes, gradients, points = map(int, said.splitlines()[-1].split())
    except (subprocess.SubprocessError, ValueError, IndexError):
        return broken
    return (
        StepFacts(tuple(passes), bool(gradients), bool(points)) if len(passes) == draws else broken
    )
