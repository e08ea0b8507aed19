"""What a board found, in numbers and in words: rankings by track and by problem, and which method is for which problem.

Every figure and sentence of the board's page, and every table beside it, is made from a `Summary`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairbound.benchmark.board.results import Board
from fairbound.benchmark.board.scoring import BASELINE, MIDDLE, Numbers, Ranking, Speed, rank_methods, speed, track_hits
from fairbound.benchmark.problems.catalog import TRACKS
from fairbound.benchmark.stored_study import Card

BY_EPOCHS = ("solve", "many", "known", "robust")  # tracks that score along the way; the others score the end
DECISIONS = ("holds", "violated", "undecided")


@dataclass(frozen=True, eq=False)
class Summary:
    """A board with its rankings."""

    board: Board

    @cached_property
    def tracks(self) -> list[str]:
        """Those with a problem and something measured."""
        measured = {"heldout": self.board.heldout, "shift": self.board.shift, "robust": self.board.robust}
        return [one for one in TRACKS if self.board.on(one) and measured.get(one, self.board.curves)]

    @cached_property
    def rankings(self) -> dict[str, Ranking]:
        return {track: rank_methods(self.board, track) for track in self.tracks}

    @cached_property
    def speeds(self) -> dict[str, dict[str, Speed]]:
        """To the middle target, (.1, .3), by track and method."""
        baseline = next((one.name for one in self.board.methods if one.method == BASELINE), BASELINE)
        return {
            track: speed(
                {
                    method.name: [self.middle_hits(method.name, one.name, track) for one in self.board.on(track)]
                    for method in self.board.methods
                },
                [one.epochs for one in self.board.on(track)],
                baseline,
            )
            for track in self.tracks
            if track in BY_EPOCHS
        }

    @cached_property
    def by_problem(self) -> dict[str, Ranking]:
        """On each problem alone, by its first track: over seeds."""
        return {
            one.name: rank_methods(self.board, self.first_track(one), [one.name])
            for one in self.board.problems
            if self.first_track(one)
        }

    def first_track(self, problem: Card) -> str:
        """What a problem is mainly for; empty where nothing of it was measured."""
        return next((one for one in self.tracks if one in problem.tracks), "")

    def middle_hits(self, method: str, problem: str, track: str) -> Numbers:
        """(R,) epochs to the middle target."""
        found = track_hits(self.board, track, method, problem)
        if found is None:
            return np.empty(0)
        return found[:, MIDDLE[0] if track == "known" else 4 * MIDDLE[0] + MIDDLE[1]]

    def decisions(self, method: str, problem: str) -> dict[str, int] | None:
        """How often the bound holds on held-out data, is violated, or neither is certain."""
        found = self.board.heldout.get((method, problem))
        return None if found is None else {one: Counter(found.decisions)[one] for one in DECISIONS}

    @cached_property
    def default_problem(self) -> Card:
        """Two groups and a bound of .02 where that was measured on held-out data."""
        heldout = [one for one in self.board.problems if any(name == one.name for _, name in self.board.heldout)]
        two = [one for one in heldout if one.groups == 2 and one.bound is not None and math.isclose(one.bound, 0.02)]
        return [*two, *heldout, *self.board.problems][0]


# In words -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Finding:
    """About one problem."""

    label: str  # of the kind: "2 groups, bound 0.02"
    best: tuple[str, ...]  # that cannot be told apart, the largest score first; empty where nothing is reached
    score: str
    sentence: str  # who is first, and is the difference to the second real?
    difference: str  # to the second, in short
    heldout: str  # does it hold on held-out data?
    verdict: str  # the same in short
    verdict_counts: str
    safest: str = ""  # keeps the bound most often on held-out data


def finding(summary: Summary, problem: Card) -> Finding:
    """Which method is for this problem, is the difference to the second real, does it hold on held-out data?"""
    board, ranking = summary.board, summary.by_problem.get(problem.name)
    label = problem.summary or problem.title
    names = [one.name for one in board.methods]
    if ranking is None or ranking.score.max() <= 0.0:
        heldout, verdict, counts = _heldout_words(summary, problem, ())
        measured = any(name == problem.name for _, name in board.curves)
        sentence = f"{label}: {'no method reaches a target within the budget' if measured else 'not measured yet'}."
        return Finding(
            label=label, best=(), score="0", sentence=sentence, difference="", heldout=heldout, verdict=verdict,
            verdict_counts=counts,
        )  # fmt: skip
    order = sorted(range(len(names)), key=lambda i: (-ranking.score[i], i))
    top = order[0]
    best = tuple(names[i] for i in order if ranking.rank[i] == 1)
    score = f"{ranking.score[top]:.2f} {interval(ranking.interval[top])}"
    does = {
        "heldout": "meets most targets on held-out data", "shift": "meets most targets in other populations",
        "known": "comes close to the exact solution first",
    }.get(summary.first_track(problem), "reaches a feasible point with a small loss first")  # fmt: skip
    sentence, difference = f"{label}: {names[top]} {does} (score {score}).", ""
    if len(order) > 1:
        second = order[1]
        apart = bool(ranking.difference_interval[top, second, 0] > 1e-12)
        judged = not np.isnan(ranking.difference_interval[top, second]).any()
        significant = "significant" if apart else "not significant" if judged else "not to be judged"
        size = f"{ranking.difference[top, second]:.2f} {interval(ranking.difference_interval[top, second])}"
        sentence += (
            f" The difference to the second, {names[second]} ({ranking.score[second]:.2f}), is {significant}: {size}."
        )
        answer = "yes" if apart else "not significantly" if judged else "one run"
        difference = f"{answer}, by {ranking.difference[top, second]:.2f}; second is {names[second]}"
        if len(best) > len(order) / 2:
            sentence += f" No method stands out: {len(best)} of {len(order)} cannot be told apart."
        elif len(best) > 2:
            sentence += f" {listed(best)} cannot be told apart."
    heldout, verdict, counts = _heldout_words(summary, problem, best)
    return Finding(
        label=label, best=best, score=score, sentence=sentence, difference=difference, heldout=heldout,
        verdict=verdict, verdict_counts=counts, safest=_safest(summary, problem),
    )  # fmt: skip


def best_words(about: Finding, methods: int) -> str:
    """The best of so many methods, in short."""
    if not about.best:
        return "none reaches a target"
    if len(about.best) > methods / 2:
        return f"no method stands out ({len(about.best)} of {methods} cannot be told apart)"
    return listed(about.best)


def _safest(summary: Summary, problem: Card) -> str:
    found = {one.name: summary.decisions(one.name, problem.name) for one in summary.board.methods}
    holds = {name: one["holds"] for name, one in found.items() if one is not None}
    return max(holds, key=lambda name: holds[name]) if holds and max(holds.values()) else ""


def _heldout_words(summary: Summary, problem: Card, best: Sequence[str]) -> tuple[str, str, str]:
    """A sentence, and in short the share of splits in which it holds, and the other decisions."""
    found = {one.name: summary.decisions(one.name, problem.name) for one in summary.board.methods}
    known = {name: one for name, one in found.items() if one is not None}
    if not known:
        return "Held-out data were not evaluated for this problem.", "not measured", ""
    most = _safest(summary, problem) or next(iter(known))
    first = next((name for name in best if name in known), most)
    counts, splits = known[first], sum(known[first].values())
    others = f"violated in {counts['violated']}, undecided in {counts['undecided']}"
    losses = {name: float(summary.board.heldout[name, problem.name].loss.mean()) for name in (first, most)}
    words = (
        f"On held-out data, at 95 % confidence, {first} is shown to keep the bound in {counts['holds']} of {splits} "
        f"splits and to break it in {counts['violated']}; in {counts['undecided']} the examples are too few to say "
        f"(mean loss {losses[first]:.3f})."
    )
    if known[most]["holds"] > counts["holds"]:
        words += (
            f" {most} keeps it most often, in {known[most]['holds']} of {sum(known[most].values())}, at a mean loss of "
            f"{losses[most]:.3f}."
        )
    if known[most]["holds"] <= splits / 2:
        words += " No method keeps it in most splits: do not rely on any of them for new data without a check."
    elif counts["holds"] <= splits / 2:
        words += f" Do not rely on {first} for the bound on new data without a check."
    return words, f"holds in {counts['holds']} of {splits}", others


def overall(summary: Summary) -> str:
    """The board in a sentence or two: its first track."""
    if not summary.tracks:
        return "Nothing was measured."
    track = summary.tracks[0]
    ranking, names = summary.rankings[track], [one.name for one in summary.board.methods]
    order = ranking.order
    best = [names[i] for i in order if ranking.rank[i] == 1]
    size = len(summary.board.on(track))
    words = (
        f"Over {size} {'problem' if size == 1 else 'problems'}, {best[0]} has the largest score "
        f"({ranking.score[order[0]]:.2f} {interval(ranking.interval[order[0]])})"
    )
    if len(best) > 1:
        return f"{words}; {listed(best)} share rank 1: they cannot be told apart."
    if len(order) > 1:
        return f"{words}, significantly more than every other method; next is {names[order[1]]} "\
            f"({ranking.score[order[1]]:.2f})."  # fmt: skip
    return f"{words}."


def interval(ends: Numbers) -> str:
    """
    >>> interval(np.array([-0.004, 0.123])), interval(np.array([math.nan, math.nan]))
    ('[0.00, 0.12]', '(one run)')
    """
    if np.isnan(ends).any():
        return "(one run)"
    low, high = (f"{end:.2f}".replace("-0.00", "0.00") for end in ends)
    return f"[{low}, {high}]"


def listed(names: Sequence[str], most: int = 5) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(list("abcdefgh"), 3)
    ('a, b and c', 'a, b, c and 5 others')
    """
    if len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def epochs_words(epochs: float) -> str:
    """
    >>> epochs_words(3.14159), epochs_words(42.3), epochs_words(math.inf)
    ('3.1', '42', '—')
    """
    return "—" if not math.isfinite(epochs) else f"{epochs:.1f}" if epochs < 9.95 else f"{epochs:.0f}"
