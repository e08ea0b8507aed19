"""The report of a fit: what was done, what it costs, and every group's rates before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fairbound._utils.files import write_text
from fairbound._utils.sentences import counted, listing
from fairbound.auditing import Audit, Comparison, audit, compare
from fairbound.auditing._tables import comparison_page, measured_cell, verdict_table
from fairbound.integrations.sklearn._corrections import (
    TOLERANCE,
    Correction,
    ScoredExamples,
    decisions,
)
from fairbound.integrations.sklearn._membership import probabilities
from fairbound.reports._page import PageSection, as_text
from fairbound.reports._table import Measured, ReportTable
from fairbound.reports._words import confidence, estimate

# smallest selection rate over the largest: below, US agencies look closer (29 CFR 1607.4 D)
FOUR_FIFTHS = 0.8
_RATES = {  # those of the audit, and their short names
    "positive_rate": "selection rate",
    "true_positive_rate": "true positives",
    "false_positive_rate": "false positives",
    "positive_predictive_value": "precision",
}
PACKAGES = ("fairbound", "torch", "scikit-learn", "numpy")
LEVELING_DOWN = (
    "The correction makes the model less sure of some examples and changes no decision at one half:"
    " it is leveling down. A bound on a difference of losses can be met so without helping anybody;"
    " rates, or bounded_group_loss, say more about decisions."
)
MOVED_DECISIONS = (
    "The correction moves decisions: predict_proba are scores that are consistent with predict, no"
    " longer probabilities of the label."
)


class SearchNotes(NamedTuple):
    """What the search for candidates has to say."""

    is_constant: bool  # whether the chosen one is
    constant: int  # candidates that are left out because they are
    small: tuple[str, ...]  # cells without a margin
    beyond: tuple[str, float] | None  # a candidate that costs too much accuracy, and how much
    certifiable: bool  # whether that one could be certified


class Predictions(NamedTuple):
    """What the unconstrained and the chosen model predict for examples that have trained
    neither."""

    labels: Tensor  # (N,) bool: of the positive class
    groups: dict[str, Tensor]  # (N,) by column
    weight: Tensor | None  # (N,)
    # (N,) the probability of the positive class; of several classes, 1 where it is decided
    before: Tensor
    after: Tensor
    right: Tensor  # (N, 2) whether the decision is right, before and after

    @staticmethod
    def of(
        before: ScoredExamples, after: ScoredExamples, correction: Correction, positive: int
    ) -> Predictions:
        corrected = correction.apply(after.logits, after.ratios)
        columns = []
        for logits in (before.logits, corrected):
            columns.append(
                probabilities(logits)[:, 1]
                if logits.ndim == 1
                else (logits.argmax(1) == positive).double()
            )
        right = (decisions(before.logits) == before.labels, decisions(corrected) == before.labels)
        labels = before.labels == (1 if corrected.ndim == 1 else positive)
        return Predictions(
            labels,
            dict(before.groups),
            before.weight,
            columns[0],
            columns[1],
            torch.stack(right, 1),
        )

    def comparison(self, by: str, names: Sequence[str], title: str, level: float) -> Comparison:
        """The audits of both models, by one column of groups."""
        given: dict[str, Any] = {
            "weights": self.weight,
            "names": names,
            "attributes": [by],
            "level": level,
        }
        first, second = (
            audit(
                self.labels.long(),
                self.groups[by],
                scores=scores,
                threshold=0.5,
                draws=2_000,
                **given,
            )
            for scores in (self.before, self.after)
        )
        return compare(first, second, ("unconstrained", title))

    def cost(self, level: float) -> str:
        """The accuracy that is lost, with its interval."""
        weight = np.ones(len(self.labels)) if self.weight is None else self.weight.numpy()
        lost = np.asarray(self.right[:, 0], float) - np.asarray(self.right[:, 1], float)
        mean = float(np.average(lost, weights=weight))
        half = float(
            ndtri((1 + level) / 2) * np.sqrt(((weight * (lost - mean)) ** 2).sum()) / weight.sum()
        )
        return estimate(mean, mean - half, mean + half, "{:.3f}".format)

    def changed(self, by: str, group: int) -> str:
        """How many decisions of a group become positive and negative."""
        inside = self.groups[by] == group
        before, after = self.before[inside] > 0.5, self.after[inside] > 0.5
        return (
            f"{int((~before & after).sum()):,} to positive, {int((before & ~after).sum()):,} to"
            " negative"
        )


def write_report(fitted: Any, html: str | Path | None = None) -> str:
    """The report of a fitted estimator as text.

    Args:
        fitted: the estimator.
        html: a file for the audit's page about the first column of groups, with the report on top.
    """
    predictions, warnings, facts = fitted._predictions, [*_warnings(fitted)], [*_facts(fitted)]
    comparisons = [
        predictions.comparison(*column, fitted.choice_, fitted.level)
        for column in fitted.groups_.items()
    ]
    verdict = [*_verdict(fitted)]
    if html is not None:
        by, names = next(iter(fitted.groups_.items()))
        changed = [
            f"Changed decisions of {name}: {predictions.changed(by, code)}."
            for code, name in enumerate(names)
        ]
        notes = (*changed, *_side_effects(comparisons[0]), *_meaning(fitted), *facts)
        # the page adds it
        of_page = replace(comparisons[0], notes=tuple(note.removesuffix(".") for note in notes))
        untested = ["There is no verdict: no examples were held out for calibration."]
        opening = (
            PageSection(title="Do the constraints hold?", body=[*warnings, *(verdict or untested)]),
            PageSection(title="Candidates", body=[_choice(fitted), _candidates(fitted)]),
        )
        write_text(
            html, comparison_page(of_page, heading="Before and after the bound", opening=opening)
        )
    body: list[Any] = [*warnings, *facts]
    if fitted.constraints_:
        body += [_candidates(fitted), _choice(fitted)]
        for comparison in comparisons:
            body += [_groups(fitted, comparison), *_side_effects(comparison)]
        body += _meaning(fitted)
    return "\n\n".join(as_text([part]) for part in (*body, *verdict))


def _verdict(fitted: Any) -> Iterator[Any]:
    """The verdict of every constraint on examples that were held out."""
    verdict = fitted.verdict_
    if verdict is None:
        return
    examples = f"{len(fitted.calibration_):,} calibration examples, which nothing else has used"
    yield replace(verdict_table(verdict.gaps, verdict.level), title=f"On {examples}")
    yield verdict.sentence
    if not fitted.certified_ and fitted._first_verdict.sentence != verdict.sentence:
        yield f"Of the strictest candidate: {fitted._first_verdict.sentence}"


def _warnings(fitted: Any) -> Iterator[str]:
    """What a reader must know first."""
    search, value = fitted._search, fitted._candidate.value
    if fitted.allow_constant and search.is_constant:
        yield (
            "This is nearly a constant rule: a class is decided for less than a tenth as often as"
            " without the bound."
        )
    if fitted.constraints_ and value.violation > TOLERANCE:
        yield (
            f"No correction within `max_accuracy_loss={fitted.max_accuracy_loss:g}` keeps the bound"
            f" out of fold: it is exceeded by {value.violation:.3f}, the least for its accuracy."
        )
    if search.constant:
        yield (
            f"Left out: {counted(search.constant, 'candidate')} with the same decision for nearly"
            " everybody; `allow_constant=True` admits such rules."
        )
    if search.beyond is not None and not fitted.certified_:
        name, lost = search.beyond
        does = "could be certified" if search.certifiable else "keeps the bound out of fold"
        yield (
            f"{name!r} {does}, and costs {lost:.3f} of accuracy:"
            f" `max_accuracy_loss={lost + 0.005:.2f}` admits it."
        )


def _facts(fitted: Any) -> Iterator[str]:
    """Data, model, settings."""
    groups = "; ".join(
        (f"{by}: " if len(fitted.groups_) > 1 else "") + ", ".join(names)
        for by, names in fitted.groups_.items()
    )
    held_out = (
        f"{len(fitted.calibration_):,} for calibration"
        if len(fitted.calibration_)
        else "none held out"
    )
    yield (
        f"Examples: {len(fitted.development_):,} for development, {held_out}. Groups:"
        f" {groups or 'none were given'}. Positive class: {fitted.positive_class_}. Model:"
        f" {fitted._plain.fitted.note}."
    )
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    settings = ", ".join(
        f"{name}={getattr(fitted, name)!r}"
        for name in (
            "constraint",
            "bound",
            "group_at_prediction",
            "max_accuracy_loss",
            "level",
            "calibration",
        )
    )
    yield f"Settings: {settings}; seed {fitted.seed_}; {versions}; data {fitted.data_hash_}."
    yield from getattr(fitted, "notes_", [])
    if fitted._search.small:
        yield (
            f"Too few examples to tell a violation from chance: {listing(fitted._search.small)}."
            " Their rates are shrunk toward those of everybody, and the bound is not tightened for"
            " them."
        )


def _choice(fitted: Any) -> str:
    level = confidence(fitted.level)
    if fitted.certified_:
        why = (
            f"the least corrected within its bounds out of fold that is certified, at {level}"
            " confidence"
        )
    elif fitted.verdict_ is None:
        why = "chosen on out-of-fold data; there are too few examples for a certificate"
    else:
        why = "chosen on out-of-fold data; none could be certified with these calibration data"
    return (
        f"Choice: {fitted.choice_}, {why}. It costs {fitted._predictions.cost(fitted.level)} of"
        f" accuracy ({level})."
    )


def _candidates(fitted: Any) -> ReportTable:
    rows = [
        {
            "candidate": Measured(name, note="chosen" if name == fitted.choice_ else ""),
            "violation": value.violation,
            "accuracy": value.accuracy,
            "loss": value.loss,
        }
        for name, value in fitted.candidates_
    ]
    return ReportTable.of_rows("Candidates, out of fold", rows)


def _groups(fitted: Any, comparison: Comparison) -> ReportTable:
    """Rates of every group before and after, and how many of its decisions changed."""
    (by,) = comparison.first.attributes
    groups = zip(comparison.first.groups, comparison.second.groups, strict=True)
    rows, notes = [], []
    for code, (before, after) in enumerate(groups):
        for rate, name in _RATES.items():
            rows.append(
                {
                    by: before.name if rate == next(iter(_RATES)) else "",
                    "rate": name,
                    "unconstrained": measured_cell(before.rates[rate]),
                    "chosen": measured_cell(after.rates[rate]),
                }
            )
        notes.append(
            f"{before.name}: {counted(before.examples, 'example')}; decisions changed:"
            f" {fitted._predictions.changed(by, code)}."
        )
    return ReportTable.of_rows(f"Groups by {by}", rows, notes=tuple(notes), digits=3)


def _side_effects(compared: Comparison) -> Iterator[str]:
    """Ratio of the selection rates, differences that grew, and whose loss rose."""
    before, after = (
        found.metrics["demographic_parity_ratio"] for found in (compared.first, compared.second)
    )
    if after.value is not None:
        below = " It is below four fifths." if after.value < FOUR_FIFTHS else ""
        yield (
            f"Smallest selection rate over the largest: {estimate(*before)} before,"
            f" {estimate(*after)} after.{below}"
        )
    for rate, name in _RATES.items():
        first, second = (_difference(found, rate) for found in (compared.first, compared.second))
        if (
            first is not None
            and second is not None
            and (second[0] > first[0] + 0.01 or first[1] != second[1])
        ):
            yield (
                f"Difference of {name}: {first[0]:.3f} ({first[1]}) before, {second[0]:.3f}"
                f" ({second[1]}) after."
            )
    for verb, sign in (("rose", 1), ("fell", -1)):
        changed = {
            name: changes["loss"].value
            for name, changes in compared.groups.items()
            if "loss" in changes
        }
        names = [name for name, change in changed.items() if sign * (change or 0.0) > 5e-4]
        if names:
            everybody = len(names) == len(compared.groups)
            whose = "every group" if everybody else listing(map(repr, names))
            yield f"The loss {verb} for {whose}."


def _difference(found: Audit, rate: str) -> tuple[float, str] | None:
    """The largest difference of two groups, and who they are."""
    known = {
        group.name: group.rates[rate].value
        for group in found.groups
        if group.rates[rate].value is not None
    }
    if len(known) < 2:
        return None
    low, *_, high = sorted(known, key=lambda name: known[name] or 0.0)
    return (known[high] or 0.0) - (known[low] or 0.0), f"{high} - {low}"


def _meaning(fitted: Any) -> list[str]:
    mus = fitted._candidate.correction.multipliers.split(
        [constraint.m for constraint in fitted.constraints_]
    )
    used = [
        constraint
        for constraint, mu in zip(fitted.constraints_, mus, strict=True)
        if bool(mu.any())
    ]
    moved = any(constraint.statistic is not None for constraint in used)
    flattened = any(constraint.statistic is None for constraint in used)
    return [
        sentence
        for sentence, is_true in ((LEVELING_DOWN, flattened), (MOVED_DECISIONS, moved))
        if is_true
    ]
