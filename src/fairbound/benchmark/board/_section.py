"""What a page says of a board: shares, how soon, held-out data, and a part for every method and
every problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairbound._utils.sentences import counted
from fairbound.benchmark._page import Exhibit, Section, slug
from fairbound.benchmark._stored_study import Card, EntryInfo
from fairbound.benchmark.board._figures import draw_curves, draw_run_ends, profiles, scatter
from fairbound.benchmark.board._findings import overall, problem_finding, share_words
from fairbound.benchmark.board._results import PARTS, Board
from fairbound.benchmark.board._tables import (
    changes_table,
    heldout_table,
    method_table,
    problem_table,
    recorded_tables,
    shares_table,
    solved_table,
)

RULES = {
    "default": "Every method runs with its class's own settings, the same for all problems.",
    "tuned": (
        "Settings are chosen for each problem among 20 points of the entry's own space, drawn by"
        " the board: those whose runs end with the smallest merit, on other seeds than those"
        " counted."
    ),
    "self-tuning": "A method may change its own settings while it runs, within the same budget.",
}


def board_section(board: Board) -> Section:
    default = board.default_problem
    cards = sorted(board.problems, key=lambda card: card is not default)
    methods, problems = (
        _places("method", board.names),
        _places("problem", (card.name for card in board.problems)),
    )
    ends_of = {
        problems[card.name]: (
            f"{card.summary or card.title} ({card.name})",
            draw_run_ends(board, card),
        )
        for card in cards
    }
    sources = dict.fromkeys(card.source for card in board.problems if card.source != "generated")
    size = f"{counted(len(board.problems), 'problem')}, {counted(board.seeds, 'seed')}"
    return Section(
        name=board.name,
        variant=board.rules,
        title=board.title,
        question="Which method for training within bounds?",
        how=f"{board.rules.capitalize()} rules, {counted(board.seeds, 'seed')}",
        origin=RULES.get(board.rules, "") + (f" Data: {', '.join(sources)}." if sources else ""),
        cards=board.problems,
        finding="\n".join([*overall(board), f"{default.name}: {problem_finding(board, default)}"]),
        short=f"{size}; fewer problems, seeds or steps than the whole board" if board.short else "",
        exhibits=_exhibits(
            {
                "scatter": ("As stated and changed", scatter(board)),
                "shares": ("Share of instances solved", shares_table(board)),
                "ends": ("Your problem", _exhibits(ends_of)),
                "changes": ("What each change does", changes_table(board)),
                "speed": ("How soon", profiles(board)),
                "heldout": ("Held-out data: what happens to bounds", heldout_table(board)),
                "solved": ("All problems, all methods", solved_table(board)),
            }
        ),
        recorded=recorded_tables(board),
        on_terminal=("shares",),
        parts=[
            *(_method(board, info, methods[info.name]) for info in board.methods),
            *(_problem(board, card, problems[card.name]) for card in board.problems),
        ],
    )


def _exhibits(shown: Mapping[str, tuple[str, Any]]) -> dict[str, Exhibit]:
    """Exhibits of what there is."""
    return {name: Exhibit(*exhibit) for name, exhibit in shown.items() if exhibit[1]}


def _places(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Name of each one's part of the page, all of them different.

    >>> _places("method", ["NuPI (nu .5)", "NuPI (nu 5)"])
    {'NuPI (nu .5)': 'method-nupi-nu-5', 'NuPI (nu 5)': 'method-nupi-nu-5-2'}
    """
    places: dict[str, str] = {}
    for name in names:
        first = place = f"{kind}-{slug(name)}"
        number = 1
        while place in places.values():
            number += 1
            place = f"{first}-{number}"
        places[name] = place
    return places


def _method(board: Board, info: EntryInfo, name: str) -> Section:
    """Settings, and how it does on each problem."""
    place = board.names.index(info.name)
    shares = {
        f"Solved, {PARTS[part]}": share_words(shares, place)
        for part, shares in board.shares.items()
    }
    return Section(
        name=name,
        title=info.name,
        finding=f"{info.summary}{f' By {info.authors}.' if info.authors else ''}",
        facts={
            "Settings": info.settings,
            "Primal step": "its own" if info.own_step else "the problem's",
        }
        | shares,
        notes=info.chosen,
        exhibits={"problems": Exhibit("By problem", method_table(board, info))},
    )


def _problem(board: Board, card: Card, name: str) -> Section:
    """Section of a problem: its card, and how each method does."""
    measured = any(
        instance.problem == card.name and not instance.change for _, instance in board.curves
    )
    return Section(
        name=name,
        title=card.name,
        cards=[card],
        finding=f"{card.title}.\n{problem_finding(board, card)}",
        facts=_facts(card),
        exhibits=_exhibits(
            {
                "curves": ("Along the budget", draw_curves(board, card) if measured else None),
                "methods": ("By method", problem_table(board, card)),
            }
        ),
    )


def _facts(card: Card) -> dict[str, str]:
    reference = card.reference
    residual = "not known" if reference.residual is None else f"{reference.residual:.1e}"
    kind = "exact solution" if reference.exact else "best found"
    facts = {
        "Class": card.family,
        "Size": f"n = {card.n:,} parameters, m = {card.m:,} constraints ({card.kinds})",
        "Groups": "" if card.groups is None else str(card.groups),
        "Bound": "" if card.bound is None else f"{card.bound:g}",
        "Convex": "yes" if card.convex else "no",
        "Noise": card.noise,
        "Budget": f"{card.steps:,} steps of a method that draws one mini-batch: {card.batch}",
        "Training examples": f"{card.examples:,}",
        "Primal step": card.primal + (f": {card.primal_how}" if card.primal_how else ""),
        "Single changes": ", ".join(card.changes),
        "Reference loss": (
            f"{reference.loss:.6g}"
            f" ({kind}{', provisional: of this board' if card.provisional else ''})"
        ),
        "How the reference was found": reference.how,
        "Largest KKT residual of the reference": residual,
        "Loss at the start": f"{reference.start:.4g}",
        "Scale of constraints": f"{reference.scale:.4g}",
        "Data": card.source,
        "From": card.origin,
        "License": card.license,
    }
    return {name: text for name, text in facts.items() if text}
