"""The board's page: `write_board` writes one HTML file that needs no network, and its numbers beside it.

index.html    what was found, the ranking, a heat map, a part for each method and each problem
data/         scores, hits, records, heldout, shift: CSV, parquet, LaTeX

Tables and figures are in the HTML; where a reader chooses a problem, a track or a target, `board.js` shows its part.
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
from fairbound.benchmark.board.figures import DIVERGED, curves, ends, profile
from fairbound.benchmark.board.findings import (
    BY_EPOCHS,
    DECISIONS,
    Finding,
    Summary,
    best_words,
    epochs_words,
    finding,
    interval,
    overall,
)
from fairbound.benchmark.board.results import Board
from fairbound.benchmark.board.scoring import LOSS_TARGETS, MIDDLE, VIOLATION_TARGETS, Numbers, track_hits
from fairbound.benchmark.board.tables import write_tables
from fairbound.benchmark.problems.catalog import TRACKS
from fairbound.benchmark.report import system_words
from fairbound.benchmark.stored_study import Card, EntryInfo, data_line

TRACK_NAMES = {
    "solve": "Solve", "known": "Known answers", "heldout": "Held-out", "many": "Many constraints",
    "robust": "Robust defaults", "shift": "Shift",
}  # fmt: skip
RULES = {
    "default": "Every method runs with its class's own settings, the same for all problems.",
    "tuned": "Settings are chosen for each problem among 20 points of the entry's own space, drawn by the board, on "
    "other seeds than those scored.",
    "self-tuning": "A method may change its own settings while it runs, within the same budget.",
}
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
    views = [_board_view(one, prefix) for one, prefix in zip(summaries, prefixes, strict=True)]
    return render(
        "board.html", data=data_line(one for board in boards for one in board.problems), boards=views, files=files,
        tracks=TRACKS, version=boards[0].version,
        systems=[system_words(one) for board in boards for one in board.systems],
        short=any(one.short for one in boards), loss_targets=LOSS_TARGETS, violation_targets=VIOLATION_TARGETS,
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


def _board_view(summary: Summary, prefix: str) -> dict[str, Any]:
    board = summary.board
    found = {one.name: finding(summary, one) for one in board.problems}
    view = _View(summary, prefix, found)
    tracks = [view.track(one) for one in summary.tracks]
    return {
        "rules": board.rules, "rules_words": RULES.get(board.rules, ""), "prefix": prefix, "seeds": board.seeds,
        "short": board.short, "overall": overall(summary), "default": summary.default_problem.name,
        "problem_options": {one.name: f"{found[one.name].label} ({one.name})" for one in board.problems},
        "track_options": {one["name"]: f"{one['title']}: {one['question']}" for one in tracks},
        "choices": view.choices(), "tracks": tracks, "heat": view.heat(),
        "methods": [view.method(i, one) for i, one in enumerate(board.methods)],
        "problems": [view.problem(one) for one in board.problems],
    }  # fmt: skip


class _View:
    """Tables of a board, as cells."""

    def __init__(self, summary: Summary, prefix: str, findings: Mapping[str, Finding]) -> None:
        self.summary, self.board, self.prefix, self.findings = summary, summary.board, prefix, findings

    def method_cell(self, name: str) -> TableCell:
        return TableCell(name, name, href=f"#{self.prefix}method-{slug(name)}")

    def problem_cell(self, problem: Card) -> TableCell:
        words = self.findings[problem.name].label
        return TableCell(problem.name, problem.name, words, href=f"#{self.prefix}problem-{slug(problem.name)}")

    def choices(self) -> dict[str, Any]:
        """Which method for which problem; tables with groups and bounds first."""
        lines = []
        for one in sorted(self.board.problems, key=lambda p: (p.groups is None, p.groups or 0, p.bound or 0.0)):
            about = self.findings[one.name]
            where = f"#{self.prefix}problem-{slug(one.name)}"
            kind = TableCell(about.label, about.label, f"{one.title} ({one.name})", href=where)
            best = TableCell(best_words(about, len(self.board.methods)), ", ".join(about.best) or None)
            real, _, to = about.difference.partition(", ")
            verdict = TableCell(about.verdict, about.verdict, about.verdict_counts)
            score, _, ends = about.score.partition(" ")
            lines.append([kind, best, verdict, TableCell(real or "—", real or None, to), TableCell(score, score, ends),
                          TableCell(one.family, one.family)])  # fmt: skip
        headings = ["Problem", "Best methods", "Bound on held-out data", "Better than the second?", "Score", "Family"]
        return {"headings": headings, "lines": lines}

    def track(self, track: str) -> dict[str, Any]:
        """The ranking on a track, with the scores of the other tracks."""
        ranking, others = self.summary.rankings[track], [one for one in self.summary.tracks if one != track]
        speeds = self.summary.speeds.get(track)
        lines = []
        for i in ranking.order:
            name = self.board.methods[i].name
            low, high = ranking.rank_range[i]
            line = [TableCell(str(ranking.rank[i]), float(ranking.rank[i])), self.method_cell(name),
                    _score(ranking.score[i], ranking.interval[i])]  # fmt: skip
            if speeds is not None:
                one = speeds[name]
                line += [
                    TableCell(f"{one.reached:.0%}", one.reached),
                    _epochs(one.epochs),
                    MISSING if math.isnan(one.speed_up) else TableCell(f"{one.speed_up:.1f} x", one.speed_up),
                ]
            if track == "heldout":
                line += self._decision_shares(name)
            line += [TableCell(f"{ranking.first[i]:.0%}", float(ranking.first[i])),
                     TableCell(f"{low} to {high}" if low < high else str(low), float(low))]  # fmt: skip
            there = [float(self.summary.rankings[other].score[i]) for other in others]
            line += [TableCell(f"{score:.2f}", score) for score in there]
            lines.append(line)
        headings = ["Rank", "Method", "Score"]
        headings += ["Reached (.1, .3)", "Epochs to it", "Speed-up"] if speeds is not None else []
        headings += [one.capitalize() for one in DECISIONS] if track == "heldout" else []
        headings += ["P(first)", "Rank range", *(TRACK_NAMES[one] for one in others)]
        profiles = self._profiles(track) if speeds is not None else {}
        return {
            "name": track, "title": TRACK_NAMES[track], "question": TRACKS[track], "headings": headings,
            "lines": lines, "problems": [one.name for one in self.board.on(track)],
            "profiles": profiles, "targets": {words: words for words in profiles},
        }  # fmt: skip

    def _profiles(self, track: str) -> dict[str, Any]:
        """How soon targets are reached: all of them, the middle one and the tightest; of known answers, distances."""
        targets: dict[str, int | None] = {"all targets": None}
        for i in (MIDDLE[0], len(LOSS_TARGETS) - 1):
            words = f"loss within {LOSS_TARGETS[i]:g}, violation within {VIOLATION_TARGETS[i]:g}"
            targets |= {f"distance within {LOSS_TARGETS[i]:g}": i} if track == "known" else {words: 5 * i}
        return {words: profile(self.summary, track, target) for words, target in targets.items()}

    def _decision_shares(self, method: str) -> list[TableCell]:
        found = [self.summary.decisions(method, one.name) for one in self.board.on("heldout")]
        known = [one for one in found if one is not None]
        runs = sum(sum(one.values()) for one in known)
        counts = {one: sum(counts[one] for counts in known) for one in DECISIONS}
        return [TableCell(f"{counts[one] / runs:.0%}", counts[one] / runs) if runs else MISSING for one in DECISIONS]

    def heat(self) -> dict[str, Any]:
        """Median epochs to each of the 16 targets, a line for each problem."""
        order = self.summary.rankings[self.summary.tracks[0]].order if self.summary.tracks else []
        lines = []
        for one in self.board.problems:
            track = self.summary.first_track(one)
            if track in BY_EPOCHS:
                names = [self.board.methods[i].name for i in order]
                cells = [(self._heat_words(name, one.name, track), self._why(name, one.name)) for name in names]
                lines.append({"name": self.problem_cell(one), "last": one.epochs, "cells": cells})
        return {"methods": [self.method_cell(self.board.methods[i].name) for i in order], "lines": lines}

    def _heat_words(self, method: str, problem: str, track: str) -> list[str]:
        hits = track_hits(self.board, track, method, problem)
        if hits is None:
            return [epochs_words(math.inf)] * 16
        medians = np.median(hits, axis=0)
        return [epochs_words(epochs) for epochs in np.repeat(medians, 16 // len(medians))]

    def _why(self, method: str, problem: str) -> str:
        return self.board.failures.get((method, problem), "")

    def method(self, at: int, info: EntryInfo) -> dict[str, Any]:
        """A method's part: settings, and how it does on each problem."""
        facts = {
            TRACK_NAMES[track]: f"rank {ranking.rank[at]}, score {ranking.score[at]:.2f} "
            f"{interval(ranking.interval[at])}"
            for track, ranking in self.summary.rankings.items()
        }
        lines = []
        for one in self.board.problems:
            rank, score = self._on_problem(at, one)
            lines.append([self.problem_cell(one)._replace(small=""), rank, score, *self._speed_cells(info.name, one),
                          self._verdict_cell(info.name, one)])  # fmt: skip
        headings = ["Problem", "Rank there", "Score", "Reached (.1, .3)", "Epochs to it", "Bound on held-out data"]
        return {
            "id": f"{self.prefix}method-{slug(info.name)}", "info": info, "facts": facts,
            "headings": headings, "lines": lines,
            "reasons": {p: why for (m, p), why in self.board.reasons().items() if m == info.name},
        }  # fmt: skip

    def problem(self, info: Card) -> dict[str, Any]:
        """A problem's part: its card, and how each method does."""
        ranking = self.summary.by_problem.get(info.name)
        order = ranking.order if ranking is not None else range(len(self.board.methods))
        heldout = any(name == info.name for _, name in self.board.heldout)
        measured = any(name == info.name for _, name in self.board.curves)
        lines = []
        for i in order:
            name = self.board.methods[i].name
            line = [*self._on_problem(i, info)]
            line.insert(1, self.method_cell(name))
            line += [*self._speed_cells(name, info), *self._end_cells(name, info)]
            line += self._answer_cells(name, info) if "known" in info.tracks else []
            lines.append([*line, *(self._heldout_cells(name, info) if heldout else [])])
        headings = ["Rank", "Method", "Score", "Reached (.1, .3)", "Epochs to it", "Loss at the end",
                    "Violation at the end", "CPU ms a step"]  # fmt: skip
        headings += ["Distance to x*", "Error of multipliers"] if "known" in info.tracks else []
        headings += ["Held-out loss", "Held-out violation", "Accuracy", "Bound on held-out data"] if heldout else []
        return {
            "id": f"{self.prefix}problem-{slug(info.name)}", "info": info, "facts": _card(info),
            "finding": self.findings[info.name], "headings": headings, "lines": lines,
            "elsewhere": self._elsewhere(info, [self.board.methods[i].name for i in order]),
            "ends": ends(self.summary, info, self.findings[info.name]),
            "curves": curves(self.summary, info) if measured else None,
            "reasons": {m: why for (m, p), why in self.board.reasons().items() if p == info.name},
        }  # fmt: skip

    def _on_problem(self, at: int, problem: Card) -> tuple[TableCell, TableCell]:
        ranking = self.summary.by_problem.get(problem.name)
        why = self._why(self.board.methods[at].name, problem.name)
        if why:
            return MISSING, TableCell("no runs", 0.0, title=why)
        if ranking is None:
            return MISSING, MISSING
        return (
            TableCell(str(ranking.rank[at]), float(ranking.rank[at])),
            _score(ranking.score[at], ranking.interval[at]),
        )

    def _speed_cells(self, method: str, problem: Card) -> list[TableCell]:
        track = self.summary.first_track(problem)
        epochs = self.summary.middle_hits(method, problem.name, track) if track in BY_EPOCHS else np.empty(0)
        if not epochs.size:
            return [MISSING, MISSING]
        reached = np.isfinite(epochs)
        return [TableCell(f"{reached.sum()} of {reached.size}", float(reached.mean())), _epochs(float(_median(epochs)))]

    def _end_cells(self, method: str, problem: Card) -> list[TableCell]:
        one = self.board.curves.get((method, problem.name))
        if one is None:
            return [MISSING] * 3
        milliseconds = one.step_seconds * 1e3
        clock = MISSING if math.isnan(milliseconds) else TableCell(f"{milliseconds:.2g}", milliseconds)
        return [_spread(one.loss[:, -1]), _spread(one.violation[:, -1]), clock]

    def _answer_cells(self, method: str, problem: Card) -> list[TableCell]:
        one = self.board.curves.get((method, problem.name))
        if one is None:
            return [MISSING] * 2
        distance = None if one.distance is None else one.distance[:, -1]
        return [MISSING if found is None else _spread(found) for found in (distance, one.multiplier_distance)]

    def _elsewhere(self, problem: Card, order: Sequence[str]) -> dict[str, Any] | None:
        """The largest violation in every other population, and the loss below it."""
        found = {name: self.board.shift[name, problem.name] for name in order
                 if (name, problem.name) in self.board.shift}  # fmt: skip
        if not found:
            return None
        lines = [
            [self.method_cell(name)]
            + [TableCell(f"{far:.3g}", float(far), f"loss {loss:.3g}") if math.isfinite(far) else MISSING
               for far, loss in zip(ends.violation.mean(0), ends.loss.mean(0), strict=True)]
            for name, ends in found.items()
        ]  # fmt: skip
        return {"headings": ["Method", *next(iter(found.values())).populations], "lines": lines}

    def _heldout_cells(self, method: str, problem: Card) -> list[TableCell]:
        ends = self.board.heldout.get((method, problem.name))
        if ends is None:
            return [MISSING] * 4
        numbers = [_spread(one) for one in (ends.loss, ends.violation, ends.accuracy)]
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
        "Minimizes": info.title, "Size": f"n = {info.n:,} parameters, m = {info.m:,} constraints ({info.kinds})",
        "Groups": "" if info.groups is None else str(info.groups),
        "Bound": "" if info.bound is None else f"{info.bound:g}",
        "Convex": "yes" if info.convex else "no", "Noise": info.noise,
        "Budget": f"{info.epochs:g} epochs of {info.examples:,} examples; mini-batch {info.batch}",
        "Reference loss": f"{reference.loss:.6g} ({kind}{', provisional: of this board' if info.provisional else ''})",
        "How the reference was found": reference.how, "Largest KKT residual of the reference": residual,
        "Loss at the start": f"{reference.start:.4g}", "Scale of constraints": f"{reference.scale:.4g}",
        "Data": info.source, "From": info.origin, "License": info.license,
        "Transformed instances": ", ".join(info.transformations), "Tracks": ", ".join(info.tracks),
    }  # fmt: skip
    return {name: text for name, text in found.items() if text}


def _score(score: float, ends: Numbers) -> TableCell:
    return TableCell(f"{score:.2f}", float(score), interval(ends))


def _epochs(epochs: float) -> TableCell:
    return TableCell(epochs_words(epochs), epochs if math.isfinite(epochs) else None)


def _spread(values: Numbers) -> TableCell:
    known = values[np.abs(values) < DIVERGED]
    if not known.size:
        return MISSING
    lost = f", {values.size - known.size} diverged" if known.size < values.size else ""
    return TableCell(f"{known.mean():.4g}", float(known.mean()), f"± {known.std():.2g}{lost}")


def _median(epochs: Numbers) -> float:
    return float(np.median(epochs)) if epochs.size else math.inf
