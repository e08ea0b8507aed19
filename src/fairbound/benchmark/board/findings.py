"""What a board found, in numbers and in words. Its page, its tables and the terminal are made from a `Summary`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairbound.benchmark.board.results import Board, InstanceName
from fairbound.benchmark.board.scoring import TARGET, Numbers, Shares, bootstrap, reached
from fairbound.benchmark.problems.changes import CHANGES
from fairbound.benchmark.stored_study import Card

BASELINE = "DescentAscent"  # with which every method is compared
DECISIONS = ("holds", "violated", "undecided")
PARTS = {"stated": "as stated", "changed": "changed"}  # of the instances


@dataclass(frozen=True, eq=False)
class Summary:
    """A board with its shares."""

    board: Board

    @cached_property
    def names(self) -> list[str]:
        return [method.name for method in self.board.methods]

    def instances(self, part: str) -> dict[str, list[InstanceName]]:
        """Those that count, by problem."""
        by_problem: dict[str, list[InstanceName]] = {}
        for instance in self.board.counted:
            if bool(instance.change) == (part == "changed"):
                by_problem.setdefault(instance.problem, []).append(instance)
        return by_problem

    @cached_property
    def parts(self) -> list[str]:
        """Those with an instance that counts."""
        return [part for part in PARTS if self.instances(part)]

    @cached_property
    def shares(self) -> dict[str, Shares]:
        """Of the instances that are solved, by part."""
        return {part: bootstrap(self._runs(list(self.instances(part).values()))) for part in self.parts}

    def _runs(self, problems: Sequence[Sequence[InstanceName]]) -> list[list[list[Numbers]]]:
        return [[[self.board.solved(name, one) for one in problem] for problem in problems] for name in self.names]

    def share(self, method: str, instances: Sequence[InstanceName], target: float = TARGET) -> float:
        """Of instances that a method solves; the mean over problems, then over their instances."""
        by_problem: dict[str, list[float]] = {}
        for one in instances:
            by_problem.setdefault(one.problem, []).append(float(self.board.solved(method, one, target).mean()))
        return float(np.mean([np.mean(shares) for shares in by_problem.values()])) if by_problem else math.nan

    @cached_property
    def changes(self) -> dict[str, list[InstanceName]]:
        """Those that were measured, with the instances that count."""
        found = {change: [one for one in self.board.counted if one.change == change] for change in CHANGES if change}
        return {change: instances for change, instances in found.items() if instances}

    @cached_property
    def baseline(self) -> int | None:
        """The method with which the others are compared."""
        places = [i for i, method in enumerate(self.board.methods) if method.method == BASELINE]
        return places[0] if places else None

    @cached_property
    def alike(self) -> list[InstanceName]:
        """Instances on which all methods have the same share: they separate nothing."""
        return [
            one for one in self.board.counted if len({self.board.solved(name, one).mean() for name in self.names}) == 1
        ]

    @cached_property
    def unsolved(self) -> list[InstanceName]:
        """Those that no run of any method solves."""
        return [one for one in self.board.counted if not any(self.board.solved(name, one).any() for name in self.names)]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """Classes of problems, with those that count as they are stated."""
        found: dict[str, list[str]] = {}
        for name in self.instances("stated"):
            found.setdefault(self.board.problem(name).family, []).append(name)
        return dict(sorted(found.items()))

    def profile(self, method: str, problems: Sequence[str], shares: Numbers) -> Numbers:
        """The share of (problem, target, run) that is reached within these shares of the budget."""
        lines = []
        for name in problems:
            curves = self.board.curves.get((method, InstanceName(name)))
            if curves is None:
                lines.append(np.zeros(len(shares)))
                continue
            hits = reached(self.board.merits(method, InstanceName(name)), curves.share)
            lines.append((hits[..., None] <= shares).mean((0, 1)))
        return np.asarray(np.mean(lines, axis=0))

    def decisions(self, method: str, problem: str) -> dict[str, int] | None:
        """How often the bound holds on held-out data, is violated, or neither is certain."""
        held = self.board.heldout.get((method, problem))
        return None if held is None else {one: Counter(held.decisions)[one] for one in DECISIONS}

    @cached_property
    def default_problem(self) -> Card:
        """Two groups and a bound of 0.02 where that was measured on held-out data."""
        heldout = [one for one in self.board.problems if any(name == one.name for _, name in self.board.heldout)]
        two = [one for one in heldout if one.groups == 2 and one.bound is not None and math.isclose(one.bound, 0.02)]
        return [*two, *heldout, *self.board.problems][0]


# In words -------------------------------------------------------------------------------------------------------------


def overall(summary: Summary) -> list[str]:
    """The board in a few sentences."""
    if not summary.parts:
        return ["Nothing was measured."]
    unfinished = f"Not finished: {count(summary.board.missing, 'run')} missing, which count as unsolved."
    sentences = [unfinished] if summary.board.missing else []
    sentences += [_of_part(summary, part) for part in summary.parts]
    if "SGD" in {method.method for method in summary.board.methods}:
        dropped = summary.board.dropped
        sentences.append(
            f"SGD without constraints solves {listed(list(map(str, dropped)))} in most runs: "
            f"{count(len(dropped), 'instance')}, which count for no method."
            if dropped
            else "SGD without constraints solves no instance in most runs, so none is left out."
        )
    else:
        sentences.append("SGD was not run, so instances that it solves may be among them.")
    if len(summary.names) > 1 and summary.alike:
        sentences.append(
            f"All methods are equal on {count(len(summary.alike), 'instance')} of {len(summary.board.counted)}, which "
            f"separate nothing: {listed(list(map(str, summary.alike)))}."
        )
    return sentences


def _of_part(summary: Summary, part: str) -> str:
    shares, names, problems = summary.shares[part], summary.names, summary.instances(part)
    instances = sum(map(len, problems.values()))
    what = {
        "stated": f"Of {count(instances, 'problem')} as stated",
        "changed": f"Of {count(instances, 'changed instance')} of {count(len(problems), 'problem')}",
    }[part]
    first = shares.order[0]
    size = f"{shares.share[first]:.2f} {interval(shares.interval[first])}"
    others = [i for i in shares.order[1:] if not shares.apart[first, i]]
    sentence = f"{what}, {names[first]} solves {size}"
    if others:
        group = listed([names[i] for i in (first, *others)])
        sentence = f"{what}, the largest share solved is {size}; {group} cannot be told apart"
    pairs, of = shares.pairs
    return f"{sentence}. {pairs} of {count(of, 'pair')} of methods can be told apart."


def finding(summary: Summary, problem: Card) -> str:
    """How many methods solve one problem, and whether the bound holds on held-out data."""
    instance = InstanceName(problem.name)
    if instance not in summary.board.instances:
        return "Not measured yet."
    if instance in summary.board.dropped:
        return "SGD without constraints solves it in most runs, so it counts for no method."
    solving = [name for name in summary.names if summary.board.solved(name, instance).mean() > 0.5]
    words = f"{len(solving)} of {len(summary.names)} methods solve it in most runs"
    return f"{words}{f': {listed(solving, 8)}' if solving else ''}. {_heldout_words(summary, problem)}".strip()


def _heldout_words(summary: Summary, problem: Card) -> str:
    counts = [counted for name in summary.names if (counted := summary.decisions(name, problem.name)) is not None]
    if not counts:
        return ""
    total = {one: sum(some[one] for some in counts) for one in DECISIONS}
    return (
        f"On held-out data, at 95 % confidence, the bound holds in {total['holds']} of {sum(total.values())} runs "
        f"of all methods, is violated in {total['violated']}, and is undecided in {total['undecided']}."
    )


def count(number: int, what: str) -> str:
    """
    >>> count(1, "problem"), count(3, "problem")
    ('1 problem', '3 problems')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
