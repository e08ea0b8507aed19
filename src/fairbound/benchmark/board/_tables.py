"""The tables of a board's page, and all that was recorded as frames. Methods stand in the order of
their shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from fairbound._utils.sentences import counted, listed
from fairbound.benchmark._results import DECISIONS, decided, mean_std
from fairbound.benchmark._stored_study import Card, EntryInfo
from fairbound.benchmark.board._results import PARTS, Board, InstanceName, MethodInstance
from fairbound.benchmark.board._scoring import TARGET, TARGETS, Numbers, target_of
from fairbound.benchmark.problems._changes import CHANGES
from fairbound.reports._table import SHORT, WHOLE, ReportTable, frame_of

MEASURED = ("train_loss", "train_violation", "loss", "violation", "accuracy")
DIVERGED = 1e6  # a loss or a violation beyond it, or not finite
DIFFERENCE = "{:+z.2f}"
_COUNTS = dict.fromkeys(("runs", *DECISIONS), WHOLE)
SOLVED = (
    "Solved: at the end of the budget at most 0.1 of the way to the reference's loss is left, and"
    " no constraint is violated by more than 0.1 of its bound; within 0.3 and within 0.03 ask less"
    " and more."
)
INTERVALS = (
    "In brackets: 95 % intervals over problems and seeds. Each pair of methods is compared at 95 %:"
    " if all were equal, about one pair in twenty would differ by chance."
)


def shares_table(board: Board) -> ReportTable | None:
    """The shares solved of every method, and the differences to the baseline."""
    if not board.shares:
        return None
    order, names, baseline = board.order, board.ranked, board.baseline
    columns: dict[str, Any] = {"method": pd.Series(names)}
    formats = {}
    for part, shares in board.shares.items():
        columns[PARTS[part]] = _with_ends(shares.share[order], shares.interval[order])
        if baseline is not None:
            less = _with_ends(
                shares.difference[order, baseline], shares.difference_interval[order, baseline]
            )
            less.loc[order.index(baseline)] = np.nan
            heading = (
                f"less {board.names[baseline]}{'' if part == 'stated' else f', {PARTS[part]}'}"
            )
            columns[heading], formats[heading] = less, DIFFERENCE
    stated = [
        instance for of_problem in board.instances_of("stated").values() for instance in of_problem
    ]
    for target in TARGETS if stated else ():
        if target != TARGET:
            columns[f"within {target:g}"] = pd.Series(
                [board.share(name, stated, target) for name in names]
            )
    own = [method.name for method in board.methods if method.own_step]
    notes = (
        SOLVED,
        INTERVALS,
        *(
            [f"With a step of their own, not the problem's primal step: {listed(own, len(own))}."]
            if own
            else []
        ),
        *_without_runs(board),
    )
    return ReportTable(
        f"Share of instances solved, {board.rules} rules",
        frame_of(columns),
        notes,
        digits=2,
        formats=formats,
    )


def _with_ends(values: Numbers, ends: Numbers) -> pd.DataFrame:
    return pd.DataFrame({"value": values, "from": ends[:, 0], "to": ends[:, 1]})


def _without_runs(board: Board) -> Iterator[str]:
    refused = Counter(method for method, _ in board.reasons())
    if refused:
        some = listed(
            [f"{method} on {counted(count, 'instance')}" for method, count in refused.items()],
            len(refused),
        )
        yield f"Never feasible, or not run: {some}; the methods' parts of the page say why."


def changes_table(board: Board) -> ReportTable | None:
    """The share solved with every single change."""
    if not board.changes:
        return None
    columns = {
        f"{change} ({len(instances)})": pd.Series(
            [board.share(name, instances) for name in board.ranked]
        )
        for change, instances in board.changes.items()
    }
    notes = (
        (
            "In brackets: the number of problems that count. c: the constraints in another unit."
            " rate: of the primal step; of a method with a step of its own, of that. batch: smaller"
            " mini-batches, as many steps."
        ),
    )
    frame = frame_of({"method": pd.Series(board.ranked)} | columns)
    return ReportTable("Share solved with every change", frame, notes, digits=2)


def solved_table(board: Board) -> ReportTable:
    """The share of runs of every method that solve every problem, as stated."""
    cards = [card for card in board.problems if InstanceName(card.name) in board.instances]
    columns: dict[str, Any] = {
        "problem": pd.Series([card.name for card in cards], dtype=object),
        "counts": pd.Series(
            ["no" if InstanceName(card.name) in board.dropped else "yes" for card in cards]
        ),
    }
    for name in board.ranked:
        columns[name] = pd.Series(
            [_share(board, name, InstanceName(card.name)) for card in cards], dtype=float
        )
    sgd = "because SGD without constraints solves them in most runs"
    provisional = sorted(card.name for card in board.problems if card.provisional)
    synthetic = sorted(card.name for card in board.problems if card.synthetic)
    listings = {
        f"Left out, {sgd}": list(map(str, board.dropped)),
        "Solved by no run of any method": list(map(str, board.unsolved)),
        "Provisional references, the best of this board, so that merits move when a method is"
        " added": provisional,
        "Synthetic data, which describe no real persons": synthetic,
    }
    notes = [
        f"{words} ({len(names)}): {'; '.join(names)}." for words, names in listings.items() if names
    ]
    title = "Share of runs that solve each problem as stated"
    return ReportTable(title, frame_of(columns), tuple(notes), digits=1, shaded=True)


def heldout_table(board: Board) -> ReportTable | None:
    """What happens to bounds on held-out data, over all problems that were tested."""
    if not board.heldout:
        return None
    splits = pd.concat(_splits(board))
    scales = splits["problem"].map({card.name: card.reference.scale for card in board.problems})
    tested = [card.name for card in board.problems if card.name in set(splits["problem"])]
    columns = {decision: splits["decision"] == decision for decision in DECISIONS}
    by_method = pd.DataFrame(columns).groupby(splits["method"], sort=False)
    counts = {"runs": by_method.size()} | {
        decision: by_method[decision].sum() for decision in DECISIONS
    }
    parts = {"violation, training": "train_violation", "violation, held out": "violation"}
    medians = {
        name: (splits[of] / scales).fillna(np.inf).groupby(splits["method"]).median()
        for name, of in parts.items()
    }
    lines = pd.DataFrame(counts | medians).reindex(
        [name for name in board.ranked if name in counts["runs"]]
    )
    notes = (
        (
            f"Runs on random splits of {listed(tested, len(tested))}: how often the bound is"
            " shown to hold, or to be violated, by a 95 % confidence interval on the held-out"
            " examples; undecided: these are too few to tell."
        ),
        "Violation: the median of the largest violation, in units of the bound.",
        "This is no ranking: a method that learned nothing keeps every bound.",
    )
    frame = frame_of(dict(lines.rename_axis("method").reset_index().items()))
    return ReportTable("Verdicts on held-out data", frame, notes, digits=2, formats=_COUNTS)


def method_table(board: Board, method: EntryInfo) -> ReportTable:
    """How a method does on every problem."""
    name = method.name
    columns = {"problem": pd.Series([card.name for card in board.problems], dtype=object)}
    columns |= _of_cells(
        board, [(name, InstanceName(card.name)) for card in board.problems], list(board.changes)
    )
    reasons = [
        f"On {instance} {why}."
        for (other, instance), why in board.reasons().items()
        if other == name
    ]
    return _of_part(f"{name} on every problem", columns, reasons)


def problem_table(board: Board, card: Card) -> ReportTable:
    """How every method does on a problem."""
    cells = [(name, InstanceName(card.name)) for name in board.ranked]
    curves = [board.curves.get(cell) for cell in cells]
    held = [board.heldout.get((name, card.name)) for name in board.ranked]
    columns = {"method": pd.Series(board.ranked)} | _of_cells(board, cells, card.changes)
    columns["loss"] = means_and_stds(None if one is None else one.loss[:, -1] for one in curves)
    columns["violation"] = means_and_stds(
        None if one is None else one.violation[:, -1] for one in curves
    )
    columns["CPU ms a step"] = pd.Series(
        [np.nan if one is None else 1e3 * one.step_seconds for one in curves]
    )
    if any(one is not None and one.distance is not None for one in curves):
        columns["error of multipliers"] = means_and_stds(
            None if one is None else one.multiplier_distance for one in curves
        )
    if any(one is not None for one in held):
        for heading, of in (
            ("held-out loss", "loss"),
            ("held-out violation", "violation"),
            ("accuracy", "accuracy"),
        ):
            columns[heading] = means_and_stds(
                None if one is None else getattr(one, of) for one in held
            )
    reasons = [
        f"{name}{f', {instance.change}' if instance.change else ''}: {why}."
        for (name, instance), why in board.reasons().items()
        if instance.problem == card.name
    ]
    ends = {
        cell[0]: one.loss[:, -1] for cell, one in zip(cells, curves, strict=True) if one is not None
    }
    lost = {name: int((~(np.abs(losses) < DIVERGED)).sum()) for name, losses in ends.items()}
    diverged = [f"{name} ({count} of {ends[name].size})" for name, count in lost.items() if count]
    notes = [f"Diverged, and left out of means: {', '.join(diverged)}."] if diverged else []
    return _of_part(f"Every method on {card.name}", columns, [*notes, *reasons])


def _of_cells(
    board: Board, cells: Sequence[MethodInstance], changes: Iterable[str]
) -> dict[str, Any]:
    """Columns that the tables of a method and of a problem share."""
    counts = [board.decisions(name, instance.problem) for name, instance in cells]
    columns: dict[str, Any] = {
        "runs": pd.Series([board.ends(*cell).size for cell in cells]),
        "solved": pd.Series([_share(board, *cell) for cell in cells]),
        "merit": means_and_stds(board.ends(*cell) for cell in cells),
    }
    for change in changes:
        changed = [(name, InstanceName(instance.problem, change)) for name, instance in cells]
        columns[change] = pd.Series([_share(board, *cell) for cell in changed])
    if any(counts):
        columns["held-out bound"] = pd.Series(
            [count and decided(count) for count in counts], dtype=object
        )
    return columns


def _of_part(title: str, columns: Mapping[str, Any], notes: Sequence[str]) -> ReportTable:
    shares = dict.fromkeys(["solved", *filter(None, CHANGES)], "{:.2f}")
    formats = dict.fromkeys(columns, SHORT) | shares | {"runs": WHOLE}
    words = (
        "Solved, and each change: the share of runs. Others: at the end of runs, mean ± standard"
        " deviation."
    )
    return ReportTable(title, frame_of(columns), (words, *notes), formats=formats)


def _share(board: Board, method: str, instance: InstanceName) -> float:
    """Share of runs that solve an instance; NaN without runs."""
    return (
        float(board.solved(method, instance).mean())
        if board.ends(method, instance).size
        else np.nan
    )


def means_and_stds(runs: Iterable[Numbers | None]) -> pd.DataFrame:
    """A line (mean, std) for each, over runs that did not diverge.

    >>> means_and_stds([np.array([1.0, 3.0]), np.array([2.0]), None]).to_numpy().tolist()
    [[2.0, 1.4142135623730951], [2.0, 0.0], [nan, nan]]
    """
    known = [
        np.empty(0) if values is None else values[np.abs(values) < DIVERGED] for values in runs
    ]
    places = np.repeat(np.arange(len(known)), [values.size for values in known])
    long = pd.DataFrame({"place": places, "value": np.concatenate(known)})
    return mean_std(long.groupby("place"))["value"].reindex(range(len(known)))


# All that was recorded ----------------------------------------------------------------------------


def recorded_tables(board: Board) -> dict[str, pd.DataFrame]:
    """runs, records, problems and splits, where there are any."""
    frames = {
        "runs": _runs(board),
        "records": _records(board),
        "problems": _problems(board),
        "splits": _splits(board),
    }
    there = {name: list(some) for name, some in frames.items()}
    return {name: pd.concat(some, ignore_index=True) for name, some in there.items() if some}


def _runs(board: Board) -> Iterator[pd.DataFrame]:
    """Merits at the end, the target, and whether the instance counts."""
    for method, one in product(board.names, board.instances):
        merits, target = board.ends(method, one), target_of(CHANGES[one.change].slack)
        if merits.size:
            yield pd.DataFrame(
                {
                    "method": method,
                    "problem": one.problem,
                    "change": one.change,
                    "run": range(merits.size),
                    "merit": merits,
                    "target": target,
                    "solved": merits <= target,
                    "counts": one in board.counted,
                }
            )


def _records(board: Board) -> Iterator[pd.DataFrame]:
    """Everything that was measured along the way, with the merit."""
    for (method, instance), one in board.curves.items():
        (runs, points), distance = one.loss.shape, board.distance(method, instance)
        yield pd.DataFrame(
            {
                "problem": instance.problem,
                "change": instance.change,
                "method": method,
                "run": np.repeat(range(runs), points),
                "budget": np.tile(one.share, runs),
                "loss": one.loss.ravel(),
                "violation": one.violation.ravel(),
                "mean_violation": one.mean_violation.ravel(),
                "distance": np.nan if distance is None else distance.ravel(),
                "merit": board.merits(method, instance).ravel(),
            }
        )


def _problems(board: Board) -> Iterator[pd.DataFrame]:
    """What merits are measured with."""
    for card in board.problems:
        one = card.reference
        yield pd.DataFrame(
            [
                {
                    "problem": card.name,
                    "class": card.family,
                    "reference": one.loss,
                    "start": one.start,
                    "scale": one.scale,
                    "exact": one.exact,
                    "how": one.how,
                    "primal": card.primal,
                }
            ]
        )


def _splits(board: Board) -> Iterator[pd.DataFrame]:
    """The ends of runs on random splits."""
    for (method, problem), held in board.heldout.items():
        numbers = {name: getattr(held, name) for name in MEASURED}
        split = range(len(held.decisions))
        yield pd.DataFrame(
            {"problem": problem, "method": method, "split": split}
            | numbers
            | {"decision": held.decisions}
        )
