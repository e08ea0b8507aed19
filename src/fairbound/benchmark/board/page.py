"""The board's page: `write_board` writes one HTML file that needs no network, and its numbers beside it.

index.html    what was found, the shares, how soon, held-out data, a part for each method and each problem
data/         shares, solved, records, problems, heldout: CSV, parquet, LaTeX

Tables and figures are in the HTML; where a reader chooses a problem, `board.js` shows its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from fairbound._utils.files import write_text
from fairbound._utils.pages import TableCell, render
from fairbound.benchmark.board.figures import DIVERGED, curves, ends, profiles, scatter
from fairbound.benchmark.board.findings import finding, interval, overall
from fairbound.benchmark.board.results import DECISIONS, PARTS, Board, Curves, InstanceName
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
T = TypeVar("T")


def write_board(boards: Board | Sequence[Board], to: Path | str) -> Path:
    """Write index.html and data/ into a folder: of one board, or of one for each rule set; the path of the page."""
    boards = [boards] if isinstance(boards, Board) else boards
    if not boards:
        raise ValueError("a page needs at least one board; run one first: fairbound board")
    to = Path(to)
    write_text(to / "index.html", page(boards, write_tables(boards, to / "data")))
    return to / "index.html"


def page(boards: Sequence[Board], files: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """The whole page as text; it leads to these files in data/, by name their endings."""
    prefixes = ["", *(f"{slug(board.rules)}-" for board in boards[1:])]
    cards = [card for board in boards for card in board.problems]
    return render(
        "board.html", data=data_line(cards), files=files, version=boards[0].version,
        boards=[_View(board, prefix).view() for board, prefix in zip(boards, prefixes, strict=True)],
        systems=[system_words(system) for board in boards for system in board.systems],
        short=any(board.short for board in boards),
        synthetic=sorted({card.name for card in cards if card.synthetic}),
        provisional=sorted({card.name for card in cards if card.provisional}),
    )  # fmt: skip


def slug(name: str) -> str:
    """
    >>> slug("SSL-ALM (tau = .05)")
    'ssl-alm-tau-05'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# What the template shows ----------------------------------------------------------------------------------------------


def _table(columns: Mapping[str, Sequence[TableCell]]) -> dict[str, Any]:
    """By heading the cells below it."""
    return {"headings": list(columns), "lines": list(zip(*columns.values(), strict=True))}


class _View:
    """A board as tables of cells, figures and sentences."""

    def __init__(self, board: Board, prefix: str) -> None:
        self.board, self.prefix = board, prefix
        shares = board.shares
        self.order = shares[board.parts[0]].order if shares else list(range(len(board.methods)))  # the largest first
        self.methods = [board.methods[i] for i in self.order]
        self.names = [info.name for info in self.methods]

    def view(self) -> dict[str, Any]:
        board = self.board
        return {
            "rules": board.rules, "rules_words": RULES.get(board.rules, ""), "prefix": self.prefix,
            "seeds": board.seeds, "overall": overall(board), "default": board.default_problem.name,
            "problem_options": {card.name: f"{card.summary or card.title} ({card.name})" for card in board.problems},
            "scatter": scatter(board), "shares": self.shares(), "changes": self.changes(), "map": self.map(),
            "dropped": list(map(str, board.dropped)), "unsolved": list(map(str, board.unsolved)),
            "profiles": profiles(board) if board.families else None, "heldout": self.heldout(),
            "methods": [self.method(info) for info in board.methods],
            "problems": [self.problem(card) for card in board.problems],
        }  # fmt: skip

    def method_cell(self, info: EntryInfo) -> TableCell:
        small = "own step" if info.own_step else ""
        return TableCell(info.name, info.name, small, href=f"#{self.prefix}method-{slug(info.name)}")

    def problem_cell(self, problem: Card, small: str = "") -> TableCell:
        where = f"#{self.prefix}problem-{slug(problem.name)}"
        return TableCell(problem.name, problem.name, small, href=where)

    def shares(self) -> dict[str, Any]:
        """The shares solved of every method, and the differences to the baseline."""
        board, baseline = self.board, self.board.baseline
        columns = {"Method": [self.method_cell(info) for info in self.methods]}
        for part, shares in board.shares.items():
            columns[f"Solved, {PARTS[part]}"] = [_share(shares.share[i], shares.interval[i]) for i in self.order]
            instances = [instance for by_problem in board.instances_of(part).values() for instance in by_problem]
            for target in OTHERS if part == "stated" else ():
                columns[f"within {target:g}"] = [_share(board.share(name, instances, target)) for name in self.names]
            if baseline is not None:
                heading = f"Less {board.names[baseline]}, {PARTS[part]}"
                columns[heading] = [_difference(shares, i, baseline) for i in self.order]
        return _table(columns)

    def changes(self) -> dict[str, Any]:
        """The share solved with every single change."""
        columns = {"Method": [self.method_cell(info) for info in self.methods]} if self.board.changes else {}
        for change, instances in self.board.changes.items():
            columns[f"{change} ({len(instances)})"] = [_share(self.board.share(n, instances)) for n in self.names]
        return _table(columns)

    def map(self) -> dict[str, Any]:
        """How many runs of every method solve every problem, as stated."""
        board, lines = self.board, []
        for card in board.problems:
            instance = InstanceName(card.name)
            if instance in board.instances:
                cells = [
                    (float(board.solved(name, instance).mean()), bool(board.ends(name, instance).size),
                     board.failures.get((name, instance), ""))
                    for name in self.names
                ]  # fmt: skip
                dropped = instance in board.dropped
                lines.append({"name": self.problem_cell(card, card.summary), "dropped": dropped, "cells": cells})
        return {"methods": [self.method_cell(info) for info in self.methods], "lines": lines}

    def heldout(self) -> dict[str, Any]:
        """What happens to bounds on held-out data, over all problems that were tested."""
        tested = [card for card in self.board.problems if any(name == card.name for _, name in self.board.heldout)]
        by_method = {
            info.name: [
                (held, card) for card in tested if (held := self.board.heldout.get((info.name, card.name))) is not None
            ]
            for info in self.methods
        }
        infos = [info for info in self.methods if by_method[info.name]]
        columns = {"Method": [self.method_cell(info) for info in infos]}
        for decision in DECISIONS:
            columns[decision.capitalize()] = []
            for info in infos:
                decisions = [verdict for held, _ in by_method[info.name] for verdict in held.decisions]
                count = decisions.count(decision)
                columns[decision.capitalize()].append(TableCell(f"{count} of {len(decisions)}", float(count)))
        for heading, name in (("Violation / bound, training", "train_violation"), ("held-out", "violation")):
            columns[heading] = []
            for info in infos:
                parts = [getattr(held, name) / card.reference.scale for held, card in by_method[info.name]]
                median = float(np.median(np.concatenate(parts)))
                columns[heading].append(TableCell(f"{median:.2f}", median) if median < DIVERGED else MISSING)
        return _table(columns) | {"problems": [card.name for card in tested]}

    def method(self, info: EntryInfo) -> dict[str, Any]:
        """A method's part: settings, and how it does on each instance."""
        board, name, cards = self.board, info.name, self.board.problems
        i = board.names.index(name)
        facts = {
            f"Solved, {PARTS[part]}": f"{shares.share[i]:.2f} {interval(shares.interval[i])}"
            for part, shares in board.shares.items()
        } | {"Primal step": "its own" if info.own_step else "the problem's"}
        columns = {
            "Problem": [self.problem_cell(card) for card in cards],
            "Runs that solve it": [self._solved_cell(name, InstanceName(card.name)) for card in cards],
            "Merit": [self._merit_cell(name, InstanceName(card.name)) for card in cards],
            **{
                change: [self._solved_cell(name, InstanceName(card.name, change)) for card in cards]
                for change in board.changes
            },
            "Bound on held-out data": [self._verdict_cell(name, card) for card in cards],
        }
        reasons = {str(instance): why for (m, instance), why in board.reasons().items() if m == name}
        where = f"{self.prefix}method-{slug(name)}"
        return _table(columns) | {"id": where, "info": info, "facts": facts, "reasons": reasons}

    def problem(self, info: Card) -> dict[str, Any]:
        """A problem's part: its card, and how each method does."""
        board, names, instance = self.board, self.names, InstanceName(info.name)
        curves_here = {name: runs for (name, where), runs in board.curves.items() if where == instance}
        held_here = {name: held for (name, problem), held in board.heldout.items() if problem == info.name}

        def cells(measured: Mapping[str, T], cell: Callable[[T], TableCell]) -> list[TableCell]:
            return [cell(measured[name]) if name in measured else MISSING for name in names]

        columns = {
            "Method": [self.method_cell(method) for method in self.methods],
            "Runs that solve it": [self._solved_cell(name, instance) for name in names],
            "Merit": [self._merit_cell(name, instance) for name in names],
            "Loss at the end": cells(curves_here, lambda runs: _spread(runs.loss[:, -1])),
            "Violation at the end": cells(curves_here, lambda runs: _spread(runs.violation[:, -1])),
            "CPU ms a step": cells(curves_here, _clock),
        }
        if any(runs.distance is not None for runs in curves_here.values()):
            columns["Error of multipliers"] = cells(curves_here, lambda runs: _spread(runs.multiplier_distance))
        for change in info.changes:
            columns[change] = [self._solved_cell(name, InstanceName(info.name, change)) for name in names]
        if held_here:
            columns |= {
                "Held-out loss": cells(held_here, lambda held: _spread(held.loss)),
                "Held-out violation": cells(held_here, lambda held: _spread(held.violation)),
                "Accuracy": cells(held_here, lambda held: _spread(held.accuracy)),
                "Bound on held-out data": [self._verdict_cell(name, info) for name in names],
            }
        return _table(columns) | {
            "id": f"{self.prefix}problem-{slug(info.name)}", "info": info, "facts": _card(info),
            "finding": finding(board, info), "ends": ends(board, info),
            "curves": curves(board, info) if curves_here else None,
            "reasons": {f"{m}{', ' + one.change if one.change else ''}": why
                        for (m, one), why in board.reasons().items() if one.problem == info.name},
        }  # fmt: skip

    def _solved_cell(self, method: str, instance: InstanceName) -> TableCell:
        if not self.board.ends(method, instance).size:
            why = self.board.failures.get((method, instance), "")
            return TableCell("no runs", 0.0, title=why) if why else MISSING
        solved = self.board.solved(method, instance)
        small = "not counted" if instance in self.board.dropped else ""
        return TableCell(f"{solved.sum():.0f} of {solved.size}", float(solved.mean()), small)

    def _merit_cell(self, method: str, instance: InstanceName) -> TableCell:
        return _spread(self.board.ends(method, instance))

    def _verdict_cell(self, method: str, problem: Card) -> TableCell:
        counts = self.board.decisions(method, problem.name)
        if counts is None:
            return MISSING
        others = f"violated in {counts['violated']}, undecided in {counts['undecided']}"
        return TableCell(f"holds in {counts['holds']} of {sum(counts.values())}", counts["holds"], others)


def _card(info: Card) -> dict[str, str]:
    reference = info.reference
    residual = "not known" if reference.residual is None else f"{reference.residual:.1e}"
    kind = "exact solution" if reference.exact else "best found"
    facts = {
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
    return {name: text for name, text in facts.items() if text}


def _share(share: float, ends: Numbers | None = None) -> TableCell:
    if math.isnan(share):
        return MISSING
    return TableCell(f"{share:.2f}", float(share), "" if ends is None else interval(ends))


def _difference(shares: Any, i: int, baseline: int) -> TableCell:
    if i == baseline:
        return MISSING
    difference = float(shares.difference[i, baseline])
    return TableCell(f"{difference:+.2f}", difference, interval(shares.difference_interval[i, baseline]))


def _clock(runs: Curves) -> TableCell:
    milliseconds = runs.step_seconds * 1e3
    return MISSING if math.isnan(milliseconds) else TableCell(f"{milliseconds:.2g}", milliseconds)


def _spread(values: Numbers | None) -> TableCell:
    values = np.empty(0) if values is None else values
    known = values[np.abs(values) < DIVERGED]
    if not known.size:
        return MISSING
    lost = f", {values.size - known.size} diverged" if known.size < values.size else ""
    return TableCell(f"{known.mean():.4g}", float(known.mean()), f"± {known.std():.2g}{lost}")
