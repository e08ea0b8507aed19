"""The report of a fit: what was done, what it means and which groups it helped or harmed; 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fairbound.integrations.sklearn.corrections import Correction, Scores, decisions

WIDTH = 80
LEVELING_DOWN = (
    "The correction makes the model less sure of some examples and changes no decision at one half: it is leveling "
    "down. A bound on a difference of losses can be met so without helping anybody; rates, or bounded_group_loss, say "
    "more about decisions."
)
MOVED_DECISIONS = (
    "The correction moves decisions: predict_proba are scores that are consistent with predict, no longer "
    "probabilities of the label."
)
ONE_THRESHOLD = (
    "Decisions are moved by one threshold for all examples: the columns that tell the group tell the label too, and no "
    "correction by groups was more accurate within the bounds."
)


class GroupChange(NamedTuple):
    """A group before and after: out-of-fold loss, accuracy and rate of decisions for the last class."""

    name: str
    examples: int
    before: tuple[float, float, float]
    after: tuple[float, float, float]


def group_table(
    before: Scores, after: Scores, correction: Correction, by: str, names: Sequence[str]
) -> tuple[GroupChange, ...]:
    """Every group of a column."""
    corrected = correction.apply(after.logits, after.ratios)
    table = []
    for code, name in enumerate(names):
        rows = (before.groups[by] == code).nonzero()[:, 0]
        numbers = [_numbers(scores, logits, rows) for scores, logits in ((before, before.logits), (after, corrected))]
        table.append(GroupChange(name, len(rows), *numbers))
    return tuple(table)


def _numbers(scores: Scores, logits: torch.Tensor, rows: torch.Tensor) -> tuple[float, float, float]:
    decided, last = decisions(logits), 1 if logits.ndim == 1 else logits.shape[1] - 1
    losses = scores.batch(logits).losses[rows]
    right = (decided == scores.labels)[rows].double()
    return float(losses.mean()), float(right.mean()), float((decided == last)[rows].double().mean())


def write_report(fitted: Any) -> str:
    """Of a fitted estimator."""
    sections = [_data(fitted), *map(_wrapped, getattr(fitted, "notes_", []))]
    if fitted.power_ is not None and fitted.power_.sentence:
        sections.append(_wrapped(fitted.power_.sentence))
    if fitted.leverage_ is not None:
        sections.append(f"What re-weighting the groups can reach, out of fold:\n{fitted.leverage_}")
        sections.append(_wrapped(fitted.leverage_.sentence))
    if fitted.constraints_:
        sections += [_candidates(fitted), _choice(fitted)]
        sections += [_groups(by, table, len(fitted._tables)) for by, table in fitted._tables.items()]
        sections += _meaning(fitted)
    if fitted.verdict_ is not None:
        examples = f"{len(fitted.calibration_):,} calibration examples"
        sections.append(f"On {examples}, which nothing else has used:\n{fitted.verdict_}")
        if not fitted.certified_:
            sections.append(_wrapped(f"Of the strictest candidate: {fitted._first_verdict.sentence}"))
    return "\n\n".join(sections)


def _wrapped(sentence: str) -> str:
    return "\n".join(textwrap.wrap(sentence, WIDTH))


def _data(fitted: Any) -> str:
    groups = "; ".join(
        (f"{by}: " if len(fitted.groups_) > 1 else "") + ", ".join(names) for by, names in fitted.groups_.items()
    )
    held_out = f"{len(fitted.calibration_):,} for calibration" if len(fitted.calibration_) else "none held out"
    return _wrapped(
        f"Examples: {len(fitted.development_):,} for development, {held_out}. Groups: {groups or 'none were given'}. "
        f"Model: {fitted._plain.fitted.note}."
    )


def _candidates(fitted: Any) -> str:
    lines = [f"{'candidates, out of fold':<28} {'violation':>10} {'accuracy':>9} {'loss':>7}"]
    for name, value in fitted.candidates_:
        lines.append(f"{name:<28} {value.violation:>10.4f} {value.accuracy:>9.4f} {value.loss:>7.4f}")
    return "\n".join(lines)


def _choice(fitted: Any) -> str:
    if fitted.certified_:
        level = f"{100 * fitted.level:g} % confidence"
        why = f"the least corrected within its bounds out of fold that is certified, at {level}"
    elif fitted.verdict_ is None:
        why = "chosen on out-of-fold data; there are too few examples for a certificate"
    else:
        why = "chosen on out-of-fold data; none could be certified with these calibration data"
    return _wrapped(f"Choice: {fitted.choice_}, {why}.")


def _groups(by: str, table: Sequence[Any], columns: int) -> str:
    width = min(22, max(5, *(len(row.name) for row in table)))  # the rest takes 58 columns
    title = "group" if columns == 1 else by
    heads = f"{'examples':>8}  {'loss':^15}  {'accuracy':^14}  {'decisions':^14}"
    lines = [f"{title[:width]:<{width}} {heads}"]
    for row in table:
        pairs = [f"{a:.3f} -> {b:.3f}" for a, b in zip(row.before, row.after, strict=True)]
        lines.append(f"{row.name[:width]:<{width}} {row.examples:>8,}  {pairs[0]:>15}  {pairs[1]:>14}  {pairs[2]:>14}")
    rose = [row.name for row in table if row.after[0] > row.before[0] + 5e-4]
    fell = [row.name for row in table if row.after[0] < row.before[0] - 5e-4]
    ends = [f"the loss {verb} for {', '.join(names)}" for verb, names in (("rose", rose), ("fell", fell)) if names]
    lines += textwrap.wrap(f"Unconstrained -> chosen, out of fold: {'; '.join(ends) or 'no loss changed'}.", WIDTH)
    return "\n".join(lines)


def _meaning(fitted: Any) -> list[str]:
    correction = fitted._candidate.correction
    mus = correction.multipliers.split([constraint.m for constraint in fitted.constraints_])
    used = [constraint for constraint, mu in zip(fitted.constraints_, mus, strict=True) if bool(mu.any())]
    moved = bool(correction.threshold) or any(constraint.statistic is not None for constraint in used)
    flattened = any(constraint.statistic is None for constraint in used)
    sentences = {LEVELING_DOWN: flattened, ONE_THRESHOLD: bool(correction.threshold), MOVED_DECISIONS: moved}
    return [_wrapped(sentence) for sentence, is_true in sentences.items() if is_true]
