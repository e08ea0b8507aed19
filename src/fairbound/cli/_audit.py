"""`fairbound audit`: error rates by group and fairness metrics of a file of predictions."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairbound._utils.files import check_place, is_same_file, write_text
from fairbound.cli._printing import console, print_body, working
from fairbound.reports._words import visible

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.auditing._audits import Audit

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
    decimal: Annotated[
        str | None,
        typer.Option(
            help="What begins the decimals in a CSV file.", show_default="detected: . or ,"
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
    from fairbound.auditing._tables import groups_table, report, report_comparison, write_page
    from fairbound.columns._read import MISSING_MARKS, read_columns
    from fairbound.columns._rows import names_in
    from fairbound.columns._specs import one_by_one

    if (score is None) == (prediction is None):
        raise ValueError("give either --score or --prediction: the column that the model made")
    if threshold is not None and score is None:
        raise ValueError("--threshold is for scores (--score); predictions are taken as they are")
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
            return read_columns(
                path,
                missing=marks,
                encoding=encoding,
                decimal=decimal,
                only=only,
                threads=several,
            )

    def audited(columns: Any, made: str, path: str, threshold: float | None) -> Audit:
        by = {"prediction": made} if score is None else {"score": made, "threshold": threshold}
        with working(f"auditing {Path(path).name}"):
            return audit_columns(columns, source=Path(path).name, **by, **settings)

    columns, made = read(file), score or prediction or ""
    first = audited(columns, made, file, threshold)
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
            first, audited(second_columns, second, second_file, used), (names[0], names[1])
        )
    text = ""
    if json_out is not None:
        readable = 2 if len(first.groups) <= MAX_INDENTED else None
        text = json.dumps((comparison or first).to_dict(), indent=readable, allow_nan=False) + "\n"
    to_stdout = str(json_out) == "-"
    # before anything is printed: a pipe that is closed early, such as to head, loses no file
    written = []
    if json_out is not None and not to_stdout:
        write_text(json_out, text)
        written.append(f"All results: {json_out}")
    if csv_out is not None:
        write_text(csv_out, groups_table(first).to_csv())
        written.append(f"Table of groups: {csv_out}")
    if html_out is not None:
        write_page(
            comparison or first,
            html_out,
            heading=title,
            command=" ".join(["fairbound", *map(_quoted, sys.argv[1:])]),
        )
        written.append(f"Page: {html_out}")
    print_body(report(first, top), console(stderr=to_stdout))
    if comparison is not None:
        print_body(report_comparison(comparison), console(stderr=to_stdout))
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
