"""What a fit did, in words and tables of 80 columns: rows, runs, decision, training rows, verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairbound.auditing import Verdict
from fairbound.integrations.sklearn.splits import Parts
from fairbound.metrics.kkt import KKT

WIDTH = 80


def report(
    parts: Parts,
    groups: Sequence[str],
    history: Sequence[Mapping[str, Any]],
    decision: str,
    kkt: KKT | None,
    verdict: Verdict | None,
) -> str:
    """All of it."""
    sections: list[list[str]] = [_rows(parts, groups), _runs(history), textwrap.wrap(f"Decision: {decision}", WIDTH)]
    if kkt is not None:
        sections.append(["On the rows that trained:", *str(kkt).splitlines()])
    if verdict is not None:
        rows = f"For people not seen, from {verdict.examples:,} rows that nothing else has used:"
        sections.append([rows, *str(verdict).splitlines()])
    return "\n\n".join("\n".join(lines) for lines in sections)


def _rows(parts: Parts, groups: Sequence[str]) -> list[str]:
    named = {
        "train": parts.train,
        "dual": parts.dual,
        "validation": parts.validation,
        "calibration": parts.calibration,
    }
    sizes = ", ".join(f"{len(rows):,} {name}" for name, rows in named.items())
    where = sizes if parts.kept_aside else f"all {len(parts.train):,} train: too few to keep any aside, so no verdict"
    return textwrap.wrap(f"MiniBatch: {where}. Groups: {', '.join(groups) or 'none were given'}.", WIDTH)


def _runs(history: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["Runs, at their last looks:", f"{'mode':<14} {'step':>9} {'loss':>7} {'accuracy':>9} {'violation':>10}"]
    for one in _last(history):
        figures = f"{one['loss']:>7.4f} {one['accuracy']:>9.4f} {one['violation']:>10.4f}"
        lines.append(f"{one['mode']:<14} {one['step']:>9,} {figures}")
    return lines


def _last(history: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({one["mode"]: one for one in history}.values())
