"""A board of made-up numbers, to look at its page and to test it: `python tests/demonstration.py
FOLDER` writes one.

Methods have a speed and a noise level, problems a difficulty; curves fall towards the reference at
that speed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fairbound.benchmark._page import Page
from fairbound.benchmark._stored_study import Card, EntryInfo
from fairbound.benchmark.board._results import (
    Board,
    Curves,
    HeldOutScores,
    InstanceName,
    MethodInstance,
)
from fairbound.benchmark.board._section import board_section
from fairbound.benchmark.problems import Reference
from fairbound.benchmark.problems._changes import CHANGES

METHODS = (
    "SSLALM",
    "Ghost",
    "SPBM",
    "NuPI",
    "SGD",
    "PHRALM",
    "SQPAdam",
    "TrackedSQP",
    "DescentAscent",
    "DescentAscent (Adam)",
    "DescentAscent (second)",
    "LevelConstrained",
    "Switching",
    "Penalty",
    "NuPI (nu .5)",
    "ExactPenalty",
    "SSLALM (tau .1)",
)
PROBLEMS = {  # name: (summary, class, groups, bound)
    "income-ok-race": ("Two groups, bound 0.02", "fairness", 2, 0.02),
    "income-va-marital": ("Five groups, bound 0.05", "fairness", 5, 0.05),
    "income-pairs": ("Ten groups in pairs, bound 0.1", "many constraints", 10, 0.1),
    "hs71": ("Hock-Schittkowski 71 with noise", "known answers", None, None),
    "hs40": ("Hock-Schittkowski 40 with noise", "known answers", None, None),
    "qcqp": ("Expectation QCQP, 20 constraints", "known answers", None, None),
    "neyman-pearson": ("Neyman-Pearson on digits", "known answers", None, 0.1),
    "grid-world": ("Constrained Markov decision process", "control, physics, others", None, None),
    "classes": ("9,900 pairs of classes, bound 0.1", "many constraints", 100, 0.1),
}
CHANGED = ("income-va-marital", "hs71", "qcqp", "grid-world")


def curves(
    random: Any, problem: Card, speed: float, feasible: float, seeds: int, points: int = 40
) -> Curves:
    epochs = np.geomspace(0.5, 100, points)
    reference = problem.reference
    pace = np.exp(random.normal(0, 0.15, (seeds, 1))) * speed
    noise = np.exp(random.normal(0, 0.05, (seeds, points)))
    left = np.exp(-((pace * epochs) ** 0.5)) * noise + 0.004 / speed
    loss = reference.loss + (reference.start - reference.loss) * left
    violation = reference.scale * np.maximum(
        8 * np.exp(-((pace * feasible * epochs) ** 0.5)) * noise - 0.02, 0
    )
    distance = np.sqrt(left) if problem.name.startswith("hs") else None
    return Curves(
        share=epochs / 100,
        loss=loss,
        violation=violation,
        mean_violation=violation / 2,
        distance=distance,
        step_seconds=1e-3 / speed,
    )


def card_of(name: str, summary: str, family: str, groups: int | None, bound: float | None) -> Card:
    reference = Reference(
        loss=0.39,
        start=0.71,
        scale=bound or 0.5,
        residual=3.2e-7,
        exact=groups is None,
        how="SLSQP on the mean problem, from the best of 20 long runs",
    )
    return Card(
        name=name,
        title="Cross-entropy of a network under bounds on the differences of group losses",
        family=family,
        n=5 if name.startswith("hs") else 2753,
        m=max((groups or 2) * ((groups or 2) - 1), 1),
        changes=tuple(filter(None, CHANGES)) if name in CHANGED else (),
        kinds="<= nonlinear",
        convex=groups is None,
        noise="mini-batches of the training examples",
        examples=12_000,
        batch="64 + 2 x 32",
        steps=2000,
        origin="Kliachkin et al., Experiment 1",
        license="public domain",
        source=(
            "synthetic:OK" if name == "income-va-marital" else "acs:OK" if groups else "generated"
        ),
        reference=reference,
        groups=groups,
        bound=bound,
        summary=summary,
        primal="Adam(lr=0.01)",
        primal_how="the best of 7 rates without the constraints",
    )


def demonstration(
    methods: int = len(METHODS), problems: int = len(PROBLEMS), seeds: int = 5, **settings: Any
) -> Board:
    """Problems beyond those named are copies."""
    random = np.random.default_rng(18)
    named = list(PROBLEMS.items())
    cards = [
        card_of(f"{name}{'' if i < len(named) else f'-{i}'}", *about)
        for i, (name, about) in ((i, named[i % len(named)]) for i in range(problems))
    ]
    names = METHODS[:methods]
    speed = {name: 2.0 / (1 + 0.35 * i) for i, name in enumerate(names)}
    feasible = {
        name: 0.0 if name == "SGD" else 1.5 / (1 + 0.1 * ((3 * i) % 7))
        for i, name in enumerate(names)
    }
    found: dict[MethodInstance, Curves] = {}
    heldout: dict[tuple[str, str], HeldOutScores] = {}
    failures: dict[MethodInstance, str] = {}
    for card in cards:
        for i, name in enumerate(names):
            stated = InstanceName(card.name)
            if name == "TrackedSQP" and card.family == "many constraints":
                failures[name, stated] = (
                    f"its subproblem with {card.m:,} constraints takes longer than the limit"
                )
                continue
            pace = speed[name] * float(np.exp(random.normal(0, 0.25)))
            curve = curves(random, card, pace, feasible[name], seeds)
            if name == "Switching" and card.name == "qcqp":
                curve = replace(curve, loss=np.where(curve.share > 0.05, np.nan, curve.loss))
            found[name, stated] = curve
            for change in card.changes:
                slower = pace * float(random.uniform(0.1, 1.0))
                found[name, InstanceName(card.name, change)] = curves(
                    random, card, slower, feasible[name], 3
                )
            if card.name.startswith("income"):
                end = float(curve.violation[:, -1].mean())
                loss = float(curve.loss[:, -1].mean()) + random.normal(0, 0.003, 20)
                violation = np.maximum(end + random.normal(0.004 + 0.001 * i, 0.006, 20), 0)
                decided = np.where(
                    violation < 0.002, "holds", np.where(violation > 0.012, "violated", "undecided")
                )
                heldout[name, card.name] = HeldOutScores(
                    train_loss=loss,
                    train_violation=np.maximum(end + random.normal(0, 0.001, 20), 0),
                    loss=loss + 0.012 + random.normal(0, 0.004, 20),
                    violation=violation,
                    accuracy=0.8 - 0.1 * loss,
                    decisions=tuple(map(str, decided)),
                )
    infos = [
        EntryInfo(
            name=name,
            method=name.partition(" ")[0],
            settings=f"{name.partition(' ')[0]}(tau=0.05, eta=0.05)",
            own_step=name in ("Ghost", "Switching", "TrackedSQP", "SQPAdam", "LevelConstrained"),
            summary="A made-up entry.",
            rules="default",
            authors="nobody",
        )
        for name in names
    ]
    made: dict[str, Any] = {
        "name": "board",
        "title": "Made-up methods",
        "rules": "default",
        "seeds": seeds,
    }
    return Board(
        **(made | {"short": False} | settings),
        methods=infos,
        problems=cards,
        curves=found,
        heldout=heldout,
        failures=failures,
    )


if __name__ == "__main__":
    print(Page([board_section(demonstration())]).write(Path(sys.argv[1])))
