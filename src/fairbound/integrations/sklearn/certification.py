"""The certified choice among corrections (Angelopoulos et al. 2021, "Learn then Test": fixed-sequence testing).

Candidates come in an order that was fixed without the calibration data, from the most corrected to the uncorrected
model. In that order each is tested on the calibration data, which nothing else has used; the first whose verdict is not
"holds" ends the sequence, and the last one before it is certified. A violating model is certified only if the test of
the first violating candidate fails, so P(the certified model violates) <= 1 - level, however many are tested. The
sequence may end anywhere that was fixed without the calibration data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from fairbound.auditing import Verdict, verdict
from fairbound.constraints.constraint import Constraint
from fairbound.integrations.sklearn.corrections import Correction, Scores, decisions
from fairbound.integrations.sklearn.inputs import is_difference

LOSS_DEVIATION = 0.5  # of cross-entropy within a group, on census data
POWER = 0.8  # wanted probability of a certificate


class Certificate(NamedTuple):
    chosen: int | None  # the certified candidate; None where not even the first is
    verdicts: tuple[Verdict, ...]  # of the candidates that were tested


def certify(candidates: Sequence[tuple[Correction, Scores]], level: float = 0.95) -> Certificate:
    """Test corrections in their order, each with its model's scores of the calibration examples."""
    verdicts: list[Verdict] = []
    for correction, scores in candidates:
        verdicts.append(judge(correction, scores, level))
        if verdicts[-1].decision != "holds":
            break
    held = sum(verdict.decision == "holds" for verdict in verdicts)
    return Certificate(held - 1 if held else None, tuple(verdicts))


def judge(correction: Correction, scores: Scores, level: float) -> Verdict:
    """Whether the constraints hold in the population that the examples were drawn from."""
    logits = correction.apply(scores.logits, scores.ratios)
    return verdict(
        list(correction.constraints),
        dict(scores.groups),
        losses=scores.batch(logits).losses,
        predictions=decisions(logits),
        outputs=logits,
        labels=scores.labels,
        weight=scores.weight,
        level=level,
    )


def not_certified(verdict: Verdict) -> Verdict:
    """The verdict on a model that alone would be said to hold, after the test of a stricter one ended the sequence."""
    reason = "the sequence of tests ended at a stricter correction"
    gaps = [replace(gap, decision="undecided", reason=reason, needed=None) for gap in verdict.gaps]
    return replace(verdict, decision="undecided", gaps=tuple(gaps))


class Power(NamedTuple):
    """What calibration data can show of the constraint that is hardest to certify."""

    name: str
    bound: float
    cell: str  # the smallest of its cells
    examples: int  # of it
    probability: float  # that an exactly fair model is certified
    needed: int  # examples of the cell, others in proportion, for a probability of `POWER`

    @property
    def sentence(self) -> str:
        """Where a certificate is unlikely; else empty."""
        if self.probability >= POWER:
            return ""
        return (
            f"A bound of {self.bound:g} on {self.name!r} is hard to certify with {self.examples:,} calibration "
            f"examples of {self.cell!r}: by their number, a model without any difference has a chance of about "
            f"{self.probability:.2f}; about {self.needed:,} of them give one of {POWER:g}."
        )


def certification_power(
    constraints: Sequence[Constraint], groups: Mapping[str, Tensor], labels: Tensor, level: float
) -> Power | None:
    """Of the differences, before any model is trained; None where there are none.

    Standard deviations are guessed: `LOSS_DEVIATION` for losses, that of the labels' share for rates.
    """
    powers: list[Power] = []
    z = float(ndtri(level))
    for constraint in constraints:
        share = (labels == labels.max()).double().mean()
        deviation = LOSS_DEVIATION if constraint.statistic is None else float((share * (1 - share)).sqrt())
        cells = constraint.cells.bind(groups[constraint.by or ""], labels).examples
        counts = torch.tensor([max(len(cell), 1) for cell in cells], dtype=torch.float64)
        M = constraint.contrast.matrix()
        errors = (M.square() @ (deviation**2 / counts)).sqrt()
        for j in is_difference(constraint).nonzero()[:, 0].tolist():
            bound, error = float(constraint.bound[j]), float(errors[j])
            used = torch.where(M[j] != 0, counts, torch.inf)
            k = int(used.argmin())
            sides = 2 if bool((-M[j] == M).all(1).any()) else 1  # A - B and B - A must both be shown to hold
            reach = z + float(ndtri(1 - (1 - POWER) / sides))
            needed = float(counts[k]) * (error * reach / bound) ** 2 if bound > 0 else float("inf")
            probability = max(0.0, 1 - sides * float(ndtr(z - bound / error))) if error > 0 else 1.0
            name, cell = constraint.names[j], constraint.cells.names[k]
            powers.append(Power(name, bound, cell, int(counts[k]), probability, int(min(needed, 1e12)) + 1))
    return min(powers, key=lambda power: power.probability) if powers else None
