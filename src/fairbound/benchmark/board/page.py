"""The board's page: `write_board` writes one HTML file that needs no network, and its numbers beside it.

index.html    what was found, the shares, how soon, held-out data, a part for each method and each problem
data/         shares, solved, records, problems, heldout: CSV, parquet, LaTeX

Tables and figures are in the HTML; where a reader chooses a problem, `board.js` shows its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fairbound._utils.files import write_text
from fairbound._utils.pages import TableCell, render
from fairbound.benchmark.board.figures import DIVERGED, curves, ends, profiles, scatter
from fairbound.benchmark.board.findings import DECISIONS, PARTS, Summary, finding, interval, overall
from fairbound.benchmark.board.results import Board, InstanceName
from fairbound.benchmark.board.scoring import TARGET, TARGETS, Numbers
from fairbound.benchmark.board.tables import write_tables
from fairbound.benchmark.report import system_words
from fairbound.benchmark.stored_study import Card, EntryInfo, data_line

RULES = {
    "default": "Every method runs with its class's own settings, the same for all problems.",
    "tuned": "Settings are chosen for each problem among 20 points of the entry's own space, drawn by the board: those "
    "whose runs end with the smallest merit, on other seeds than those counted.",
    "self-tuning": "A method may change its own settings while it runs, within the same budget.",
}
OTHERS = [target for target in TARGETS if target != TARGET]
MISSING = TableCell("—")


def write_board(boards: Board | Sequence[Board], to: Path | str) -> Path:
    """Write index.html and data/ into a folder: of one board, or of one for each rule set; the path of the page."""
    summaries = [Summary(one) for one in ([boards] if isinstance(boards, Board) else boards)]
    if not summaries:
        raise ValueError("a page needs at least one board; run one first: fairbound board")
    to = Path(to)
    write_text(to / "index.html", page(summaries, write_tables(summaries, to / "data")))
    return to / "index.html"


def page(summaries: Sequence[Summary], files: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """The whole page as text; it leads to these files in data/, by name their endings."""
    boards = [one.board for one in summaries]
    prefixes = ["", *(f"{slug(one.rules)}-" for one in boards[1:])]
    views = [_View(one, prefix).view() for one, prefix in zip(summaries, prefixes, strict=True)]
    return render(
        "board.html", data=data_line(one for board in boards for one in board.problems), boards=views, files=files,
        version=boards[0].version, systems=[system_words(one) for board in boards for one in board.systems],
        short=any(one.short for one in boards),
        synthetic=sorted({p.name for b in boards for p in b.problems if p.synthetic}),
        provisional=sorted({p.name for b in boards for p in b.problems if p.provisional}),
    )  # fmt: skip


def slug(name: str) -> str:
    """
    >>> slug("SSL-ALM (tau = .05)")
    'ssl-alm-tau-05'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# What the template shows ----------------------------------------------------------------------------------------------


class _View:
    """A board as tables of cells, figures and sentences."""

    def __init__(self, summary: Summary, prefix: str) -> None:
        self.summary, self.board, self.prefix = summary, summary.board, prefix

    def view(self) -> dict[str, Any]:
        board, summary = self.board, self.summary
        return {
            "rules": board.rules, "rules_words": RULES.get(board.rules, ""), "prefix": self.prefix,
            "seeds": board.seeds, "overall": overall(summary), "default": summary.default_problem.name,
            "problem_options": {one.name: f"{one.summary or one.title} ({one.name})" for one in board.problems},
            "scatter": scatter(summary), "shares": self.shares(), "changes": self.changes(), "map": self.map(),
            "dropped": list(map(str, board.dropped)), "unsolved": list(map(str, summary.unsolved)),
            "profiles": profiles(summary) if summary.families else None, "heldout": self.heldout(),
            "methods": [self.method(one) for one in board.methods],
            "problems": [self.problem(one) for one in board.problems],
        }  # fmt: skip

    def method_cell(self, info: EntryInfo) -> TableCell:
        small = "own step" if info.own_step else ""
        return TableCell(info.name, info.name, small, href=f"#{self.prefix}method-{slug(info.name)}")

    def problem_cell(self, problem: Card) -> TableCell:
        where = f"#{self.prefix}problem-{slug(problem.name)}"
        return TableCell(problem.name, problem.name, problem.summary, href=where)

    @property
    def order(self) -> list[int]:
        """Methods with the largest share first."""
        shares = self.summary.shares
        return shares[self.summary.parts[0]].order if shares else list(range(len(self.board.methods)))

    def shares(self) -> dict[str, Any]:
        """The shares solved of every method, and the differences to the baseline."""
        summary, baseline, lines = self.summary, self.summary.baseline, []
        headings = ["Method"]
        for part in summary.parts:
            headings.append(f"Solved, {PARTS[part]}")
            headings += [f"within {target:g}" for target in OTHERS if part == "stated"]
            headings += [] if baseline is None else [f"Less {summary.names[baseline]}, {PARTS[part]}"]
        for i in self.order:
            line = [self.method_cell(self.board.methods[i])]
            for part in summary.parts:
                shares = summary.shares[part]
                line.append(_share(shares.share[i], shares.interval[i]))
                if part == "stated":
                    instances = [one for some in summary.instances(part).values() for one in some]
                    line += [_share(summary.share(summary.names[i], instances, target)) for target in OTHERS]
                if baseline is not None:
                    line.append(_difference(shares, i, baseline))
            lines.append(line)
        return {"headings": headings, "lines": lines}

    def changes(self) -> dict[str, Any]:
        """The share solved with every single change."""
        summary = self.summary
        lines = [
            [self.method_cell(self.board.methods[i])]
            + [_share(summary.share(summary.names[i], instances)) for instances in summary.changes.values()]
            for i in self.order
        ]
        headings = ["Method", *(f"{change} ({len(some)})" for change, some in summary.changes.items())]
        return {"headings": headings, "lines": lines if summary.changes else []}

    def map(self) -> dict[str, Any]:
        """How many runs of every method solve every problem, as stated."""
        lines = []
        for card in self.board.problems:
            instance = InstanceName(card.name)
            if instance in self.board.instances:
                cells = [(self.board.ends(self.summary.names[i], instance), i) for i in self.order]
                dropped = instance in self.board.dropped
                lines.append({"name": self.problem_cell(card), "dropped": dropped, "cells": [
                    (float(self.board.solved(self.summary.names[i], instance).mean()), bool(ends.size),
                     self.board.failures.get((self.summary.names[i], instance), ""))
                    for ends, i in cells
                ]})  # fmt: skip
        return {"methods": [self.method_cell(self.board.methods[i]) for i in self.order], "lines": lines}

    def heldout(self) -> dict[str, Any]:
        """What happens to bounds on held-out data, over all problems that were tested."""
        tested = [card for card in self.board.problems if any(name == card.name for _, name in self.board.heldout)]
        lines = []
        for i in self.order:
            counts = [self.summary.decisions(self.summary.names[i], card.name) for card in tested]
            known = [one for one in counts if one is not None]
            total = {one: sum(some[one] for some in known) for one in DECISIONS}
            if known:
                parts = [
                    (held.train_violation / card.reference.scale, held.violation / card.reference.scale)
                    for card in tested
                    if (held := self.board.heldout.get((self.summary.names[i], card.name))) is not None
                ]
                medians = [float(np.median(np.concatenate(part))) for part in zip(*parts, strict=True)]
                lines.append(
                    [self.method_cell(self.board.methods[i])]
                    + [TableCell(f"{total[one]} of {sum(total.values())}", float(total[one])) for one in DECISIONS]
                    + [TableCell(f"{median:.2f}", median) if median < DIVERGED else MISSING for median in medians]
                )
        headings = ["Method", "Holds", "Violated", "Undecided", "Violation / bound, training", "held-out"]
        return {"headings": headings, "lines": lines, "problems": [card.name for card in tested]}

    def method(self, info: EntryInfo) -> dict[str, Any]:
        """A method's part: settings, and how it does on each instance."""
        summary, name = self.summary, info.name
        facts = {
            f"Solved, {PARTS[part]}": f"{shares.share[i]:.2f} {interval(shares.interval[i])}"
            for part, shares in summary.shares.items()
            for i in [summary.names.index(name)]
        } | {"Primal step": "its own" if info.own_step else "the problem's"}
        lines = [
            [self.problem_cell(one)._replace(small=""), self._solved_cell(name, InstanceName(one.name)),
             self._merit_cell(name, InstanceName(one.name)),
             *(self._solved_cell(name, InstanceName(one.name, change)) for change in summary.changes),
             self._verdict_cell(name, one)]
            for one in self.board.problems
        ]  # fmt: skip
        reasons = {str(instance): why for (m, instance), why in self.board.reasons().items() if m == name}
        return {
            "id": f"{self.prefix}method-{slug(name)}", "info": info, "facts": facts, "reasons": reasons,
            "headings": ["Problem", "Runs that solve it", "Merit", *summary.changes, "Bound on held-out data"],
            "lines": lines,
        }  # fmt: skip

    def problem(self, info: Card) -> dict[str, Any]:
        """A problem's part: its card, and how each method does."""
        instance = InstanceName(info.name)
        heldout = any(name == info.name for _, name in self.board.heldout)
        measured = any(one == instance for _, one in self.board.curves)
        exact = any(runs.distance is not None for (_, one), runs in self.board.curves.items() if one == instance)
        lines = []
        for i in self.order:
            method = self.board.methods[i]
            line = [self.method_cell(method), self._solved_cell(method.name, instance)]
            line += [self._merit_cell(method.name, instance), *self._end_cells(method.name, info)]
            line += [self._multipliers_cell(method.name, instance)] if exact else []
            line += [self._solved_cell(method.name, InstanceName(info.name, change)) for change in info.changes]
            lines.append([*line, *(self._heldout_cells(method.name, info) if heldout else [])])
        headings = ["Method", "Runs that solve it", "Merit", "Loss at the end", "Violation at the end", "CPU ms a step"]
        headings += ["Error of multipliers"] if exact else []
        headings += [*info.changes]
        headings += ["Held-out loss", "Held-out violation", "Accuracy", "Bound on held-out data"] if heldout else []
        return {
            "id": f"{self.prefix}problem-{slug(info.name)}", "info": info, "facts": _card(info),
            "finding": finding(self.summary, info), "headings": headings, "lines": lines,
            "ends": ends(self.summary, info), "curves": curves(self.summary, info) if measured else None,
            "reasons": {f"{m}{', ' + one.change if one.change else ''}": why
                        for (m, one), why in self.board.reasons().items() if one.problem == info.name},
        }  # fmt: skip

    def _solved_cell(self, method: str, instance: InstanceName) -> TableCell:
        ends = self.board.ends(method, instance)
        if not ends.size:
            why = self.board.failures.get((method, instance), "")
            return TableCell("no runs", 0.0, title=why) if why else MISSING
        solved = self.board.solved(method, instance)
        small = "not counted" if instance in self.board.dropped else ""
        return TableCell(f"{solved.sum():.0f} of {solved.size}", float(solved.mean()), small)

    def _merit_cell(self, method: str, instance: InstanceName) -> TableCell:
        ends = self.board.ends(method, instance)
        return _spread(ends) if ends.size else MISSING

    def _end_cells(self, method: str, problem: Card) -> list[TableCell]:
        one = self.board.curves.get((method, InstanceName(problem.name)))
        if one is None:
            return [MISSING] * 3
        milliseconds = one.step_seconds * 1e3
        clock = MISSING if math.isnan(milliseconds) else TableCell(f"{milliseconds:.2g}", milliseconds)
        return [_spread(one.loss[:, -1]), _spread(one.violation[:, -1]), clock]

    def _multipliers_cell(self, method: str, instance: InstanceName) -> TableCell:
        one = self.board.curves.get((method, instance))
        return MISSING if one is None or one.multiplier_distance is None else _spread(one.multiplier_distance)

    def _heldout_cells(self, method: str, problem: Card) -> list[TableCell]:
        held = self.board.heldout.get((method, problem.name))
        if held is None:
            return [MISSING] * 4
        numbers = [_spread(one) for one in (held.loss, held.violation, held.accuracy)]
        return [*numbers, self._verdict_cell(method, problem)]

    def _verdict_cell(self, method: str, problem: Card) -> TableCell:
        counts = self.summary.decisions(method, problem.name)
        if counts is None:
            return MISSING
        others = f"violated in {counts['violated']}, undecided in {counts['undecided']}"
        return TableCell(f"holds in {counts['holds']} of {sum(counts.values())}", counts["holds"], others)


def _card(info: Card) -> dict[str, str]:
    reference = info.reference
    residual = "not known" if reference.residual is None else f"{reference.residual:.1e}"
    kind = "exact solution" if reference.exact else "best found"
    found = {
        "Minimizes": info.title, "Class": info.family,
        "Size": f"n = {info.n:,} parameters, m = {info.m:,} constraints ({info.kinds})",
        "Groups": "" if info.groups is None else str(info.groups),
        "Bound": "" if info.bound is None else f"{info.bound:g}",
        "Convex": "yes" if info.convex else "no", "Noise": info.noise,
        "Budget": f"{info.steps:,} steps of a method that draws one mini-batch: {info.batch}",
        "Training examples": f"{info.examples:,}",
        "Primal step": info.primal + (f": {info.primal_how}" if info.primal_how else ""),
        "Single changes": ", ".join(info.changes),
        "Reference loss": f"{reference.loss:.6g} ({kind}{', provisional: of this board' if info.provisional else ''})",
        "How the reference was found": reference.how, "Largest KKT residual of the reference": residual,
        "Loss at the start": f"{reference.start:.4g}", "Scale of constraints": f"{reference.scale:.4g}",
        "Data": info.source, "From": info.origin, "License": info.license,
    }  # fmt: skip
    return {name: text for name, text in found.items() if text}


def _share(share: float, ends: Numbers | None = None) -> TableCell:
    if math.isnan(share):
        return MISSING
    return TableCell(f"{share:.2f}", float(share), "" if ends is None else interval(ends))


def _difference(shares: Any, i: int, baseline: int) -> TableCell:
    if i == baseline:
        return MISSING
    difference = float(shares.difference[i, baseline])
    return TableCell(f"{difference:+.2f}", difference, interval(shares.difference_interval[i, baseline]))


def _spread(values: Numbers) -> TableCell:
    known = values[np.abs(values) < DIVERGED]
    if not known.size:
        return MISSING
    lost = f", {values.size - known.size} diverged" if known.size < values.size else ""
    return TableCell(f"{known.mean():.4g}", float(known.mean()), f"± {known.std():.2g}{lost}")
