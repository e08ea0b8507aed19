"""What a board found, in words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fairbound._utils.sentences import counted, listed
from fairbound.benchmark._stored_study import Card
from fairbound.benchmark.board._results import Board, InstanceName
from fairbound.benchmark.board._scoring import Numbers


def overall(board: Board) -> list[str]:
    """The board in a few sentences."""
    if not board.instances:
        return ["Nothing was measured."]
    unfinished = f"Not finished: {counted(board.missing, 'run')} missing, which count as unsolved."
    sentences = [unfinished] if board.missing else []
    sentences += [_of_part(board, part) for part in board.parts]
    if "SGD" in {method.method for method in board.methods}:
        dropped = board.dropped
        sentences.append(
            f"SGD without constraints solves {listed(list(map(str, dropped)))} in most runs: "
            f"{counted(len(dropped), 'instance')}, left out for every method."
            + ("" if board.counted else " Nothing is left to compare; tighten the bound.")
            if dropped
            else "SGD without constraints solves no instance in most runs, so none is left out."
        )
    else:
        sentences.append("SGD was not run, so instances that it solves may be among them.")
    if len(board.names) > 1 and board.alike:
        sentences.append(
            f"All methods are equal on {counted(len(board.alike), 'instance')} of"
            f" {len(board.counted)}, which separate nothing:"
            f" {listed(list(map(str, board.alike)))}."
        )
    return sentences


def _of_part(board: Board, part: str) -> str:
    shares, names, problems = board.shares[part], board.names, board.instances_of(part)
    instances = sum(map(len, problems.values()))
    what = {
        "stated": f"Of {counted(instances, 'problem')} as stated",
        "changed": (
            f"Of {counted(instances, 'changed instance')} of {counted(len(problems), 'problem')}"
        ),
    }[part]
    first = shares.order[0]
    size = f"{shares.share[first]:.2f} {interval_text(shares.interval[first])}"
    others = [i for i in shares.order[1:] if not shares.apart[first, i]]
    sentence = f"{what}, {names[first]} solves {size}"
    if others:
        group = listed([names[i] for i in (first, *others)])
        sentence = f"{what}, the largest share solved is {size}; {group} cannot be told apart"
    pairs, of = shares.pairs
    apart = f"{pairs} of {counted(of, 'pair')}" if pairs else "No pair"
    return f"{sentence}. {apart} of methods can be told apart."


def problem_finding(board: Board, problem: Card) -> str:
    """How many methods solve one problem, and whether the bound holds on held-out data."""
    instance = InstanceName(problem.name)
    if instance not in board.instances:
        return "Not measured yet."
    if instance in board.dropped:
        return "SGD without constraints solves it in most runs, so it counts for no method."
    solving = [name for name in board.names if board.solved(name, instance).mean() > 0.5]
    words = f"{len(solving)} of {len(board.names)} methods solve it in most runs"
    if solving:
        words += f": {listed(solving, 8)}"
    return f"{words}. {_heldout_words(board, problem)}".strip()


def _heldout_words(board: Board, problem: Card) -> str:
    counts = [
        count for name in board.names if (count := board.decisions(name, problem.name)) is not None
    ]
    if not counts:
        return ""
    total = sum(counts, Counter[str]())
    return (
        f"On held-out data, at 95 % confidence, the bound holds in {total['holds']} of"
        f" {total.total()} runs of all methods, is violated in {total['violated']}, and is"
        f" undecided in {total['undecided']}."
    )


def interval_text(ends: Numbers) -> str:
    """
    >>> interval_text(np.array([-0.004, 0.123])), interval_text(np.array([np.nan, np.nan]))
    ('[0.00, 0.12]', '(one run)')
    """
    if np.isnan(ends).any():
        return "(one run)"
    low, high = (f"{end:.2f}".replace("-0.00", "0.00") for end in ends)
    return f"[{low}, {high}]"
