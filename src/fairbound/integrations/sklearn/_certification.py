"""The certified choice among corrections (Angelopoulos et al. 2021, "Learn then Test":
fixed-sequence testing).

Candidates come in an order that was fixed without the calibration data, from the most corrected to
the uncorrected model. In that order each is tested on the calibration data, which nothing else has
used; the first whose verdict is not "holds" ends the sequence, and the last one before it is
certified. A violating model is certified only if the test of the first violating candidate fails,
so P(the certified model violates) <= 1 - level, however many are tested. The sequence may end
anywhere that was fixed without the calibration data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fairbound.auditing import Verdict, verdict
from fairbound.integrations.sklearn._corrections import Correction, ScoredExamples, decisions


class Certificate(NamedTuple):
    chosen: int | None  # the certified candidate; None where not even the first is
    verdicts: tuple[Verdict, ...]  # of the candidates that were tested


def certify(
    candidates: Sequence[tuple[Correction, ScoredExamples]], level: float = 0.95
) -> Certificate:
    """Test corrections in their order, each with its model's scores of the calibration examples."""
    verdicts: list[Verdict] = []
    for correction, scores in candidates:
        verdicts.append(judge(correction, scores, level))
        if verdicts[-1].decision != "holds":
            break
    held = sum(verdict.decision == "holds" for verdict in verdicts)
    return Certificate(held - 1 if held else None, tuple(verdicts))


def judge(correction: Correction, scores: ScoredExamples, level: float) -> Verdict:
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
    """The verdict on a model that alone would be said to hold, after the test of a stricter one
    ended the sequence."""
    reason = "the sequence of tests ended at a stricter correction"
    unknown: dict[str, Any] = {
        "decision": "undecided",
        "reason": reason,
        "needed": None,
        "needed_between": None,
    }
    return replace(
        verdict, decision="undecided", gaps=tuple(replace(gap, **unknown) for gap in verdict.gaps)
    )
