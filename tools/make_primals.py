"""Write how multiplier methods move x on each problem of the collection:
problems/_collection/primals.json.

    OMP_NUM_THREADS=1 python tools/make_primals.py               all problems
    OMP_NUM_THREADS=1 python tools/make_primals.py hs71 qcqp     these alone

It is Adam with the rate that is best *without the constraints*: the smallest loss over all training
examples at the end of the budget, the median over three seeds that no board uses of the mean over
the last three of twenty points. Where the objective has no minimum, the rate is that of
`primal.Adam`, 0.01. Choosing it does not look at the constraints, so it favors no method.
"""

from __future__ import annotations

import argparse
import json
import math

import torch

from fairbound.algorithms import SGD, primal
from fairbound.benchmark.problems import load, names, reference
from fairbound.benchmark.problems._catalog import PRIMALS
from fairbound.training._runner import run

RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
SEEDS = (200, 201, 202)
POINTS, LAST = 20, 3
# sizes of the loss below the constrained reference: so far down there is no minimum
UNBOUNDED = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args().names or [name for name in names() if load(name).on_board]
    torch.set_num_threads(1)
    table = json.loads(PRIMALS.read_text(encoding="utf-8"))
    for name in chosen:
        table[name] = rate_of(name)
        lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(table.items()))
        PRIMALS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def rate_of(name: str) -> dict[str, object]:
    """The rate, and how it was chosen."""
    problem = load(name)
    instance = problem.build()
    settings = [(rate, seed) for rate in RATES for seed in SEEDS]
    losses = []
    for record in run(
        instance.problem,
        SGD(),
        [instance.sampler(0, seed) for _, seed in settings],
        instance.starts([seed for _, seed in settings]),
        problem.steps,
        primal=[primal.Adam(lr=rate) for rate, _ in settings],
        every=problem.steps // POINTS,
        compile=False,
    ):
        losses.append(instance.problem.evaluate(record.output, instance.splits[0].train).loss)
    ends = (
        torch.stack(losses[-LAST:])
        .mean(0)
        .double()
        .nan_to_num(math.inf)
        .reshape(len(RATES), len(SEEDS))
    )
    final = dict(zip(RATES, ends.median(1).values.tolist(), strict=True))
    best = min(final, key=lambda rate: final[rate])
    known = reference(name, instance.source)
    print(name, {rate: round(loss, 5) for rate, loss in final.items()}, best, flush=True)
    size = 0.0 if known is None else max(abs(known.start - known.loss), abs(known.loss))
    if known is not None and final[best] < known.loss - UNBOUNDED * size:
        return {
            "lr": primal.Adam().lr,
            "how": "the default of Adam: without the constraints there is no minimum",
        }
    how = f"the best of {len(RATES)} rates without the constraints, {RATES[0]:g} to {RATES[-1]:g}"
    return {"lr": best, "how": f"{how}, on {instance.source} data"}


if __name__ == "__main__":
    main()
