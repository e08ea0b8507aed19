"""`fairbound audit`: error rates by group and fairness metrics of a file of predictions."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from fairbound._utils.files import check_place, csv_text, is_same_file, write_text
from fairbound._utils.sentences import counted
from fairbound.cli._printing import console, plain, visible, working

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.auditing._audits import Audit
    from fairbound.auditing._comparisons import Comparison
    from fairbound.auditing._headline import Answer
    from fairbound.metrics._intervals import IntervalEstimate

SHOWN = {
    "base_rate": "y = 1",
    "positive_rate": "ŷ = 1",
    "true_positive_rate": "TPR",
    "false_positive_rate": "FPR",
    "positive_predictive_value": "PPV",
    "accuracy": "acc",
}
MAX_INDENTED = 1_000  # groups in a JSON file that is laid out for readers
SMALL_BYTES = 100_000_000  # of files that are audited by one thread


def audit_command(
    file: Annotated[
        str,
        typer.Argument(help="CSV or parquet file with groups, predictions or scores, and labels."),
    ],
    group: Annotated[
        str,
        typer.Option(
            help="Protected columns, e.g. race,sex; in bands: age:25:65; one level: race=1."
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(help="Column of the true labels; without it, selection rates are audited."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="Column of scores (probabilities of label 1, or any scale).")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Scores of at least this are predicted 1.",
            show_default="0.5, for scores between 0 and 1; without labels, above the median",
        ),
    ] = None,
    prediction: Annotated[
        str | None, typer.Option(help="Column of predictions, instead of scores.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help="Column of sample weights.")] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            help=(
                "Label value that counts as 1, where labels are not 0/1, yes/no, ...; all others"
                " count as 0."
            )
        ),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Drop examples that lack a value.")
    ] = False,
    missing: Annotated[
        list[str] | None,
        typer.Option(
            help="Text that marks a missing value in a CSV file, e.g. ?; may be repeated."
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            help="Encoding of a CSV file.", show_default="detected: UTF-8, UTF-16 or latin-1"
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Group that the others are compared to.", show_default="the largest"),
    ] = None,
    min_size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Groups with fewer examples are listed, but compared with no other.",
            show_default="50; without labels, 2 % of the examples",
        ),
    ] = None,
    where: Annotated[
        str, typer.Option(help="Only rows that meet this condition: \"race in ('A', 'B')\".")
    ] = "",
    compare_column: Annotated[
        str | None,
        typer.Option(
            help="Scores or predictions of a second model, in the same file, to compare with."
        ),
    ] = None,
    compare_file: Annotated[
        str | None,
        typer.Option(
            help="A second file with the same columns, e.g. of a later date, to compare with."
        ),
    ] = None,
    compare_threshold: Annotated[
        float | None,
        typer.Option(help="Threshold of the second scores.", show_default="--threshold"),
    ] = None,
    no_intervals: Annotated[
        bool, typer.Option("--no-intervals", help="Omit the intervals, which is quicker.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of threads.", show_default="1 up to 100 MB, else all cores"
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    top: Annotated[
        int, typer.Option(min=1, help="Number of groups to print, the largest first.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Random seed of the intervals.")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write all results to this file; - prints.")
    ] = None,
    html_out: Annotated[
        Path | None, typer.Option("--html", "-o", help="Write a page with figures to this file.")
    ] = None,
    title: Annotated[
        str, typer.Option(help="Title of the page.", show_default="the file's name")
    ] = "",
    csv_out: Annotated[
        Path | None, typer.Option("--csv", help="Write the table of groups to this file.")
    ] = None,
) -> None:
    """Audit a file of predictions: who is flagged or missed wrongly, by group, and every fairness
    metric.

    Every group is compared with --reference, with confidence intervals. The predictions may come
    from any model. Without --label: selection rates and impact ratios, as Local Law 144 of New York
    City asks for them.
    """
    from fairbound.auditing._audited_columns import audit_columns
    from fairbound.auditing._comparisons import compare
    from fairbound.columns._rows import names_in
    from fairbound.data._attributes import one_by_one
    from fairbound.data._readers import MISSING_MARKS, read_columns

    if (score is None) == (prediction is None):
        raise ValueError("give either --score or --prediction: the column that the model made")
    if threshold is not None and score is None:
        raise ValueError("--threshold is for scores (--score); predictions are taken as they are")
    if label is None and html_out is not None:
        raise ValueError("the page is about errors and needs --label; --json and --csv do not")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}")
    outputs = [out for out in (json_out, html_out, csv_out) if out is not None]
    for i, out in enumerate(outputs):
        check_place(out, [file, compare_file])
        if any(is_same_file(out, other) for other in outputs[:i]):
            raise ValueError(f"{out} is named for two outputs; give each its own file")
    if compare_threshold is not None and (score is None or not (compare_column or compare_file)):
        raise ValueError(
            "--compare-threshold is for the scores of --compare-column or --compare-file"
        )
    settings: dict[str, Any] = {
        "label": label,
        "groups": group,
        "weight": weight,
        "positive": positive,
        "drop_missing": drop_missing,
        "min_size": 50 if min_size is None and label is not None else min_size,
        "where": where,
        "reference": reference,
        "level": level,
        "seed": seed,
        "intervals": not no_intervals,
    }
    several = _set_threads(threads, [path for path in (file, compare_file) if path is not None])
    only = [
        name
        for name in (label, score, prediction, weight, compare_column, *names_in(where))
        if name is not None
    ]
    for by in one_by_one(group):
        only += [by, by.partition("=")[0], by.partition(":")[0]]

    def read(path: str) -> Any:
        with working(f"reading {Path(path).name}"):
            marks = (*MISSING_MARKS, *(missing or ()))
            return read_columns(path, missing=marks, encoding=encoding, only=only, threads=several)

    def audited(columns: Any, made: str, path: str, threshold: float | None) -> Audit:
        by = {"prediction": made} if score is None else {"score": made, "threshold": threshold}
        with working(f"auditing {Path(path).name}"):
            return audit_columns(columns, source=Path(path).name, **by, **settings)

    columns, made = read(file), score or prediction or ""
    found = audited(columns, made, file, threshold)
    comparison = None
    if compare_column or compare_file:
        second_file, second = compare_file or file, compare_column or made
        second_columns = columns if compare_file is None else read(compare_file)
        used = threshold if compare_threshold is None else compare_threshold
        names = [
            f"{Path(path).name}: {name}" for path, name in ((file, made), (second_file, second))
        ]
        # what is the same in both goes without saying
        if compare_file is None or compare_column is None:
            names = (
                [made, second]
                if compare_file is None
                else [Path(file).name, Path(second_file).name]
            )
        comparison = compare(
            found, audited(second_columns, second, second_file, used), (names[0], names[1])
        )
    text = ""
    if json_out is not None:
        readable = 2 if len(found.groups) <= MAX_INDENTED else None
        text = json.dumps((comparison or found).to_dict(), indent=readable, allow_nan=False) + "\n"
    to_stdout = str(json_out) == "-"
    # before anything is printed: a pipe that is closed early, such as to head, loses no file
    written = []
    if json_out is not None and not to_stdout:
        write_text(json_out, text)
        written.append(f"All results: {json_out}")
    if csv_out is not None:
        write_text(csv_out, csv_text(*group_table(found)))
        written.append(f"Table of groups: {csv_out}")
    if html_out is not None:
        from fairbound.auditing._page import write_page

        write_page(
            comparison or found,
            html_out,
            heading=title,
            command=" ".join(["fairbound", *map(_quoted, sys.argv[1:])]),
        )
        written.append(f"Page: {html_out}")
    show(found, console(stderr=to_stdout), top)
    if comparison is not None:
        show_comparison(comparison, console(stderr=to_stdout))
    if to_stdout:
        typer.echo(text, nl=False)
    for line in written:
        typer.echo(visible(line), err=to_stdout)


def _quoted(word: str) -> str:
    """A word of a command as one would type it.

    >>> print(_quoted("race in ('A', 'B')"), _quoted("a b"), _quoted("a.csv"))
    "race in ('A', 'B')" 'a b' a.csv
    """
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\') else shlex.quote(word)


def _set_threads(threads: int | None, files: Sequence[str]) -> bool:
    """Threads of torch, and whether files are read by several: small tables are slower with several
    than with one."""
    import torch

    large = sum(Path(path).stat().st_size for path in files if Path(path).is_file()) > SMALL_BYTES
    threads = (os.cpu_count() or 1 if large else 1) if threads is None else threads
    torch.set_num_threads(threads)
    return threads > 1


def group_table(found: Audit) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows of the table of groups, for CSV."""
    from fairbound.metrics._counts import WITHOUT_LABELS
    from fairbound.metrics._reference_gaps import ERROR_RATES, NOT_COMPARED

    compared = ERROR_RATES if found.labeled else WITHOUT_LABELS
    rates = list(found.groups[0].rates) if found.groups else []
    counts = list(found.groups[0].counts) if found.groups else []
    names = [
        *rates,
        *(f"{rate}_{kind}" for rate in compared for kind in ("difference", "ratio")),
    ]
    rows = []
    for group in found.groups:
        gaps = [group.against_reference.get(rate, NOT_COMPARED)[:2] for rate in compared]
        measured = [
            *(group.rates[rate] for rate in rates),
            *(estimate for gap in gaps for estimate in gap),
        ]
        rows.append(
            [
                group.name,
                group.examples,
                *group.counts.values(),
                *(end for three in measured for end in three),
            ]
        )
    return [
        "group",
        "examples",
        *counts,
        *(f"{name}{end}" for name in names for end in ("", "_low", "_high")),
    ], rows


def show(found: Audit, console: Console, top: int) -> None:
    """The audit as tables of at most 80 columns."""
    from fairbound.auditing._headline import answers

    weighted = ", weighted" if found.weighted else ""
    made = "predictions" if found.threshold is None else f"scores, threshold {found.threshold:g}"
    by = plain(" x ".join(found.attributes))
    counts = f"{counted(found.examples, 'example')}, {counted(len(found.groups), 'group')} by {by}"
    console.print(f"[bold]{plain(found.source)}[/]: {counts}; {made}{weighted}")
    for part in () if found.labeled else (found, *found.parts):
        console.print(_selection_grid(part, top))
        if part.dropped:
            console.print(f"unknown: {counted(part.dropped, 'example')} in no group")
    for answer in answers(found) if found.labeled else ():
        rate = answer.rate.replace("_", " ")
        console.print(
            f"[bold]{answer.title}: {answer.among} who are {answer.fate} ({rate})[/]",
            highlight=False,
        )
        console.print(_answer_grid(found, answer, top))
        console.print(plain(answer.sentence), highlight=False)
    if found.labeled:
        if not answers(found):
            console.print("no error rate is defined here: see the notes")
        console.print(_groups_grid(found, top))
    hidden = len(found.groups) - top
    if hidden > 0:
        console.print(
            f"... and {counted(hidden, 'smaller group')} (--top, --json)", highlight=False
        )
    console.print(_metrics_grid(found))
    if found.pairs:
        console.print("[bold]Groups behind the differences[/] (examples)", highlight=False)
        for line in _pair_lines(found):
            console.print(line, highlight=False)
    ends = (
        f"{100 * found.level:g}% intervals, conservative for gaps" if has_intervals(found) else ""
    )
    console.print(
        f"reference group: {plain(found.reference)}; {ends or 'values only, without intervals'}"
    )
    if any(gap.beyond_chance for group in found.groups for gap in group.against_reference.values()):
        console.print(
            "* beyond chance, with all groups counted; an interval is for one group alone",
            soft_wrap=True,
        )
    for part in found.parts if found.labeled else ():
        console.print(_part_line(part), highlight=False)
    for note in found.notes:
        console.print(f"[yellow]Note:[/] {plain(note)}", highlight=False)


def has_intervals(found: Audit) -> bool:
    return any(estimate.low is not None for estimate in found.metrics.values())


def _answer_grid(found: Audit, answer: Answer, top: int) -> Grid:
    """An error rate of every group that is compared, against the reference group."""
    grid = Grid(box=None, padding=(0, 1, 0, 0))
    grid.add_column("group", overflow="fold")
    for heading in ("rate, %", "difference, points", "ratio"):
        level = f" [{100 * found.level:g}%]" if has_intervals(found) else ""
        grid.add_column(plain(heading + level), justify="right", no_wrap=True)
    for group, gap in answer.lines[: top + 1]:
        rate = _ended(group.rates[answer.rate], ".1f", 100)
        if gap is None:
            grid.add_row(plain(group.name), rate, "reference", "")
            continue
        star = "*" if gap.beyond_chance else ""
        grid.add_row(
            plain(group.name),
            rate,
            _ended(gap.difference, "+.1f", 100) + star,
            _ended(gap.ratio, ".2f"),
        )
    return grid


def _selection_grid(found: Audit, top: int) -> Grid:
    """Selection rates and impact ratios by group, for an audit without labels."""
    from fairbound.metrics._reference_gaps import NOT_COMPARED

    by = plain(" x ".join(found.attributes))
    title = f"Selection rates and impact ratios by {by}"
    grid = Grid(
        box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", title_style="bold"
    )
    grid.add_column("group", overflow="fold")
    level = plain(f" [{100 * found.level:g}%]") if has_intervals(found) else ""
    for heading in ("examples", "selected", f"rate, %{level}", f"impact ratio{level}"):
        grid.add_column(heading, justify="right")
    for group in sorted(found.groups, key=lambda group: -group.examples)[:top]:
        gap = group.against_reference.get("positive_rate", NOT_COMPARED)
        ratio = _ended(gap.ratio, ".3f")
        if group.name == found.reference:
            ratio = "1.000 (reference)"
        elif group not in found.compared:
            ratio = "small: not compared"
        grid.add_row(
            plain(group.name),
            f"{group.examples:,}",
            f"{group.counts['selected']:,.0f}",
            _ended(group.rates["positive_rate"], ".1f", 100),
            ratio,
        )
    return grid


def _ended(estimate: IntervalEstimate, form: str, scale: float = 1.0) -> str:
    from fairbound.auditing._text import ends

    return (
        "-"
        if estimate.value is None
        else plain(f"{scale * estimate.value:{form}} {ends(estimate, form, scale)}".rstrip())
    )


def _groups_grid(found: Audit, top: int) -> Grid:
    from fairbound.metrics._intervals import UNDEFINED

    grid = Grid(
        box=None, padding=(0, 1, 0, 0), title="Groups", title_justify="left", title_style="bold"
    )
    grid.add_column("group", overflow="fold")
    grid.add_column("examples", justify="right")
    for rate, short in SHOWN.items():
        known = rate == "positive_rate" and has_intervals(found)
        grid.add_column(f"{short} [{100 * found.level:g}%]" if known else short, justify="right")
    scored = [
        name
        for name in ("auc", "loss")
        if any(getattr(group, name) is not None for group in found.groups)
    ]
    for name in scored:
        grid.add_column("AUC" if name == "auc" else name, justify="right")
    for group in sorted(found.groups, key=lambda group: -group.examples)[:top]:
        shown = [
            (
                _ended(group.rates[rate], ".2f")
                if rate == "positive_rate"
                else _value(group.rates[rate], 3)
            )
            for rate in SHOWN
        ]
        more = [_value(getattr(group, name) or UNDEFINED, 3) for name in scored]
        grid.add_row(plain(group.name), f"{group.examples:,}", *shown, *more)
    return grid


def _metrics_grid(found: Audit) -> Grid:
    from fairbound.auditing._text import explained, why_undefined

    grid = Grid(
        box=None, padding=(0, 1, 0, 0), title="Metrics", title_justify="left", title_style="bold"
    )
    grid.add_column("metric", no_wrap=True)
    grid.add_column("value", justify="right")
    if has_intervals(found):
        grid.add_column(f"{100 * found.level:g}% interval", justify="right")
    grid.add_column("defined by", overflow="fold")
    for name, estimate in found.metrics.items():
        ends = [_interval(estimate)] if has_intervals(found) else []
        source = why_undefined(found, name) if estimate.value is None else explained(name)[1]
        grid.add_row(name, _value(estimate), *ends, source)
    return grid


def _pair_lines(found: Audit) -> Iterator[str]:
    """The two groups behind each difference, with their examples."""
    for name, pair in found.pairs.items():
        # the groups of its difference, or nearly so; all are in the JSON and the page
        if not name.endswith("_ratio"):
            high = f"{pair.high_value:.3f} {plain(pair.high)} ({pair.high_examples:,})"
            low = f"{pair.low_value:.3f} {plain(pair.low)} ({pair.low_examples:,})"
            yield f"{name}: {pair.of.replace('_', ' ')} {high} to {low}"


def show_comparison(found: Comparison, console: Console) -> None:
    """The metrics of both, and their change."""
    words = f"{plain(found.names[0])} (first) and {plain(found.names[1])} (second)"
    grid = Grid(
        box=None,
        padding=(0, 1, 0, 0),
        title=f"Comparison: {words}",
        title_justify="left",
        title_style="bold",
    )
    grid.add_column("metric", overflow="fold")
    for column in ("first", "second", "change", f"{100 * found.first.level:g}% interval"):
        grid.add_column(column, justify="right")
    for name, change in found.metrics.items():
        both = [_value(audit.metrics[name]) for audit in (found.first, found.second)]
        grid.add_row(
            name, *both, "-" if change.value is None else f"{change.value:+.4f}", _interval(change)
        )
    console.print(grid)
    for side, missing in enumerate((found.only_first, found.only_second)):
        if missing:
            words = ", ".join(map(plain, missing[:5])) + (", ..." if len(missing) > 5 else "")
            console.print(f"only in {plain(found.names[side])}: {words}", highlight=False)
    console.print(
        "intervals of changes are those of independent samples; on the same examples they are wide"
    )


def _part_line(part: Audit) -> str:
    shown = ("demographic_parity_difference", "equalized_odds_difference")
    numbers = ", ".join(
        f"{name} {_value(part.metrics[name])} {_interval(part.metrics[name])}" for name in shown
    )
    return (
        f"by {plain(part.attributes[0])} alone ({counted(len(part.groups), 'group')}):"
        f" {plain(numbers)}"
    )


def _value(estimate: IntervalEstimate, digits: int = 4) -> str:
    return "-" if estimate.value is None else f"{estimate.value:.{digits}f}"


def _interval(estimate: IntervalEstimate) -> str:
    return "" if estimate.low is None else f"{estimate.low:.3f} to {estimate.high:.3f}"
