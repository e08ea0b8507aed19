"""The collection of problems, and what a problem of one's own is written with."""

from fairbound.benchmark.problems._catalog import (
    BenchmarkProblem,
    Instance,
    Optimum,
    Reference,
    Solution,
    reference,
)
from fairbound.benchmark.problems._catalog import (
    load_problem as load,
)
from fairbound.benchmark.problems._catalog import (
    problem_names as names,
)

__all__ = [
    "BenchmarkProblem",
    "Instance",
    "Optimum",
    "Reference",
    "Solution",
    "load",
    "names",
    "reference",
]
