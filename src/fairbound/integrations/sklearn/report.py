"""What a fit shows: progress while it runs, and afterwards a report in plain English, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fairbound.auditing import Verdict
from fairbound.data.dataset import Split
from fairbound.integrations.sklearn.evaluation import Candidate
from fairbound.integrations.sklearn.splits import DEFAULT_SHARES, has_held_out
from fairbound.metrics.kkt import KKT

WIDTH = 80  # columns


def report(
    split: Split,
    groups: Sequence[str],
    history: Sequence[Mapping[str, Any]],
    decision: str,
    kkt: KKT | None,
    verdict: Verdict | None,
) -> str:
    """Split, runs, decision, KKT residuals and verdict."""
    sections = [_split(split, groups), _runs(history), textwrap.wrap(f"Decision: {decision}", WIDTH)]
    if kkt is not None:
        sections.append(["On the training data:", *str(kkt).splitlines()])
    if verdict is not None:
        title = f"On held-out data, {len(split.calibration):,} examples that nothing else has used:"
        sections.append([title, *str(verdict).splitlines()])
    return "\n\n".join("\n".join(lines) for lines in sections)


def _split(split: Split, groups: Sequence[str]) -> list[str]:
    sizes = ", ".join(f"{len(split.pool(name)):,} {name}" for name in DEFAULT_SHARES)
    if not has_held_out(split):
        sizes = f"all {len(split.train):,} train: too few to hold any out, so there is no verdict"
    return textwrap.wrap(f"Examples: {sizes}. Groups: {', '.join(groups) or 'none were given'}.", WIDTH)


def _runs(history: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["Runs, last evaluation:", f"{'mode':<14} {'step':>9} {'loss':>7} {'accuracy':>9} {'violation':>10}"]
    for last in {entry["mode"]: entry for entry in history}.values():
        numbers = f"{last['loss']:>7.4f} {last['accuracy']:>9.4f} {last['violation']:>10.4f}"
        lines.append(f"{last['mode']:<14} {last['step']:>9,} {numbers}")
    return lines


@contextmanager
def progress(verbose: bool, steps: Callable[[str], int]) -> Iterator[Callable[[Candidate], None]]:
    """A function to call with every candidate: a bar where rich and a terminal are available, else a line each.

    `steps` gives the number of steps of a mode.
    """
    if not verbose:
        yield lambda candidate: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _print_line
        return
    console = Console()
    if not (console.is_terminal or console.is_jupyter):
        yield _print_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        tasks = {}

        def update(candidate: Candidate) -> None:
            mode = candidate.mode
            if mode not in tasks:
                tasks[mode] = bar.add_task(mode, total=steps(mode))
            text = f"{mode}: loss {candidate.loss:.3f}, violation {candidate.violation:.3f}"
            bar.update(tasks[mode], completed=candidate.step, description=text)

        yield update


def _print_line(candidate: Candidate) -> None:
    numbers = f"loss {candidate.loss:.4f}, violation {candidate.violation:.4f}"
    print(f"{candidate.mode}: step {candidate.step}, {numbers}", flush=True)
