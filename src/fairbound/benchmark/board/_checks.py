"""`fairbound check`: is an entry what it says? Its card, coverage, checksums, and whether its
results recompute.

The results of a sample of problems are computed again, as they are and in other coordinates that a
salt gives (`problems._salted`). All of it in processes of their own (`limits`); this one runs
nothing of the entry. What a method file imports is warned of and not policed: entries are code of
their authors.

A board shows the results that were computed again, from the checker's own store, and marks entries
of which some were not. No check finds a method that looks its step size up by the numbers of
variables and constraints: it may.
"""

from __future__ import annotations

import ast
import hashlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fairbound.benchmark._fingerprint import code_hash, file_hash
from fairbound.benchmark._plan import board_runs
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_study as load_study
from fairbound.benchmark._task import data_checksum
from fairbound.benchmark.board._entry_folder import MANIFEST, METHOD, EntryFolder
from fairbound.benchmark.board._limits import Limits, run_limited
from fairbound.benchmark.problems._catalog import load_problem, reference
from fairbound.benchmark.problems._salted import can_be_salted

PROBLEM_SAMPLE = 3  # problems that are computed again
PLAIN_IMPORTS = {
    "__future__",
    "abc",
    "collections",
    "dataclasses",
    "enum",
    "fairbound",
    "functools",
    "itertools",
    "math",
    "numpy",
    "operator",
    "statistics",
    "torch",
    "typing",
}
# calls that reach beyond the method
REACHING = {"open", "exec", "eval", "compile", "__import__", "input"}
# Largest differences, as parts of the way from the start to the reference loss and of the
# constraints' scale
OTHER_MACHINE = 1e-3  # within the first half of the points: rounding has not grown yet
LATER = 0.05  # at the other points: of the median over runs, beyond the spread of the runs
# the median over points and runs, of losses and of violations beyond the spread of the runs
SALTED = 0.05


@dataclass
class CheckResult:
    """What was found: an entry is accepted where nothing refuses it."""

    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    recomputed: list[str] = field(default_factory=list)  # problems

    @property
    def accepted(self) -> bool:
        return not self.refusals


@dataclass(frozen=True)
class EntryTask:
    """A task of an entry, by its place: what makes the method of the file runs in the process that
    computes it."""

    folder: Path
    problem: str
    number: int  # among the tasks of the problem: `plan.board_runs`
    salt: str = ""

    def complete(self, store: Store, advanced: Any) -> float:
        tasks = [task for task in EntryFolder(self.folder).tasks() if task.problem == self.problem]
        return replace(tasks[self.number], salt=self.salt).complete(store, advanced)


def check(
    path: Path,
    *,
    salt: str,
    sample: int = PROBLEM_SAMPLE,
    limits: Limits | None = None,
    store: Store | None = None,
) -> CheckResult:
    """Check an entry's folder; `salt` should be drawn after the entry was sent. What is computed
    again goes to `store`."""
    folder, found = EntryFolder(path), CheckResult()
    problems = folder.problems  # a wrong card is refused in its own words
    found.warnings += list(warnings_of(path / METHOD))
    results = _intact(folder, found)
    if found.refusals:
        return found
    wanted = _covered(folder, problems, results, found)
    if found.refusals:
        return found
    manifest = (path / MANIFEST).read_bytes()
    drawn = random.Random(hashlib.sha256(manifest + salt.encode()).digest()).sample(
        sorted(problems), k=len(problems)
    )
    for name in drawn[:sample]:
        again = _recomputed(folder, name, wanted[name], salt, limits or Limits(), found)
        if store is not None:
            store.put_many(again)
    return found


def warnings_of(file: Path) -> Iterator[str]:
    """What a method has no need of."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            if module.split(".")[0] not in PLAIN_IMPORTS:
                yield (
                    f"{file.name}, line {node.lineno}: it imports {module}, which may reach files"
                    " or the network"
                )
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in REACHING
        ):
            yield (
                f"{file.name}, line {node.lineno}: it calls {node.func.id}(), which reaches beyond"
                " the method"
            )


# What is there ------------------------------------------------------------------------------------


def _intact(folder: EntryFolder, found: CheckResult) -> list[StoredResult]:
    """The results whose files are those of the manifest."""
    manifest, store = folder.manifest(), folder.store
    if manifest["fairbound"] != version("fairbound"):
        found.refusals.append(
            f"it was computed by fairbound {manifest['fairbound']}, and this is"
            f" {version('fairbound')}: results of different versions are not compared; compute it"
            " again"
        )
    kept = []
    for key, digest in manifest["results"].items():
        data = store.file(key)
        if data is None:
            found.refusals.append(f"the result {key[:12]} of its manifest is missing or damaged")
        elif hashlib.sha256(data).hexdigest() != digest:
            found.refusals.append(
                f"the result {key[:12]} was changed after the manifest was written"
            )
        else:
            kept.append(store.get(key))
    return [one for one in kept if one is not None]


def _covered(
    folder: EntryFolder,
    problems: Sequence[str],
    results: Sequence[StoredResult],
    found: CheckResult,
) -> dict[str, list[list[StoredResult]]]:
    """All results that the board asks for, by problem and for every task, named as this fairbound
    names them."""
    board, method = load_study("board"), file_hash(folder.path / METHOD)
    by_run = {
        tuple(one.settings.get(name) for name in ("problem", "kind", "change", "seed")): one
        for one in results
        if "salt" not in one.settings
    }
    wanted: dict[str, list[list[StoredResult]]] = {}
    for name in problems:
        for kind, runs in board_runs(board, load_problem(name)):
            data = data_checksum(name, board.splits if kind == "heldout" else 1)
            own = {run: by_run.get((name, kind, run.change, run.seed)) for run in runs}
            missing = [
                str(run.seed) + (f" ({run.change})" if run.change else "")
                for run, one in own.items()
                if not one
            ]
            stored = [one for one in own.values() if one is not None]
            place = f"{name}{', held-out data' if kind == 'heldout' else ''}"
            if missing:
                seeds = f"seed{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
                found.refusals.append(
                    f"{place}: {seeds} of {len(runs)} missing; `fairbound enter` computes them"
                )
            elif any(one.settings.get("method file") != method for one in stored):
                found.refusals.append(f"{place}: its results are of another {METHOD}")
            elif any(one.made.get("code") != code_hash() for one in stored):
                found.refusals.append(f"{place}: its results are of another code of fairbound")
            elif any(one.settings["data"] != data for one in stored):
                found.refusals.append(
                    f"{place}: its results are of other data than those found here"
                )
            else:
                wanted.setdefault(name, []).append(stored)
    return wanted


# What recomputes ----------------------------------------------------------------------------------


def _recomputed(
    folder: EntryFolder,
    name: str,
    wanted: list[list[StoredResult]],
    salt: str,
    limits: Limits,
    found: CheckResult,
) -> list[StoredResult]:
    """What was computed again."""
    found.recomputed.append(name)
    recomputed: list[StoredResult] = []
    for number, stored in enumerate(wanted):
        plain = EntryTask(folder.path.resolve(), name, number)
        again = _results(plain, stored, limits, found)
        if again is None:
            break
        recomputed += again
        why = result_difference(stored, again, _scales(name, stored))
        if why:
            found.refusals.append(f"{name}: its results do not recompute: {why}")
            break
        if (
            number == 0
            and can_be_salted(load_problem(name).build())
            and "failure" not in stored[0].tables
        ):
            other = _results(replace(plain, salt=salt), stored, limits, found)
            if other is not None and (
                why := salted_difference(stored, other, _scales(name, stored))
            ):
                found.refusals.append(
                    f"{name}: its results do not recompute in other coordinates of the variables"
                    f" (salt {salt}): {why}; so the method knows more of the problem than the"
                    " estimates that it is given"
                )
    return recomputed


def _results(
    task: EntryTask, stored: Sequence[StoredResult], limits: Limits, found: CheckResult
) -> list[StoredResult] | None:
    """Compute results again, in the order of the stored ones."""
    with tempfile.TemporaryDirectory(prefix="fairbound-") as folder:
        sentence = run_limited(task, Path(folder), limits)
        if sentence is not None:
            found.refusals.append(f"{task.problem}: computed again, {sentence}")
            return None
        by_run = {
            (one.settings["change"], one.settings["seed"]): one for one in Store(folder).results()
        }
    return [by_run[one.settings["change"], one.settings["seed"]] for one in stored]


def _scales(name: str, stored: Sequence[StoredResult]) -> tuple[float, float]:
    known = reference(name, stored[0].settings["source"])
    if known is None:
        return 1.0, load_problem(name).scale or 1.0
    return max(abs(known.start - known.loss), 1e-12), known.scale


def result_difference(
    stored: Sequence[StoredResult], again: Sequence[StoredResult], scales: tuple[float, float]
) -> str:
    """Why results are not those that were computed again: to the bit on the same kind of machine,
    else at every point of every column of numbers."""
    elsewhere = False
    for one, other in zip(stored, again, strict=True):
        mine, theirs = _columns(one), _columns(other)
        if one.settings != other.settings:
            return f"seed {one.settings['seed']}: its settings or its steps are others"
        if mine.keys() != theirs.keys():
            return (
                f"seed {one.settings['seed']}: a run that failed is given as one that did not, or"
                " the reverse"
            )
        same_machine = all(one.made.get(key) == other.made.get(key) for key in ("device", "torch"))
        differ = [name for name in mine if not _equal(mine[name], theirs[name])]
        if differ and same_machine:
            return (
                f"seed {one.settings['seed']}: {', '.join(differ)} differ on the same kind of"
                " machine"
            )
        elsewhere |= bool(differ)
    return _difference_elsewhere(stored, again, scales) if elsewhere else ""


def _difference_elsewhere(
    stored: Sequence[StoredResult], again: Sequence[StoredResult], scales: tuple[float, float]
) -> str:
    """Describe a difference from another kind of machine, or from results that say so: early points
    run by run; later ones, where rounding has grown, by their medians over runs."""
    loss, violation = scales
    sizes = {"records.loss": loss, "heldout.loss": loss}
    sizes |= {f"{table}.violation": violation for table in ("records", "heldout")}
    # distances, accuracies and shares of examples are in units of 1
    sizes["records.mean_violation"] = violation
    mine, theirs = [_columns(one) for one in stored], [_columns(one) for one in again]
    for name in [name for name, column in mine[0].items() if column.dtype.kind in "fiu"]:
        a, b = (np.stack([one[name] for one in runs]).astype(float) for runs in (mine, theirs))
        if a.shape != b.shape:
            return f"{name} has another number of points"
        if name == "end.multipliers":  # their units are the problem's
            continue
        with np.errstate(invalid="ignore"):
            apart = np.where(
                (a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b)
            ) / sizes.get(name, 1.0)
            beyond = np.abs(np.median(a, 0) - np.median(b, 0)) - np.nan_to_num(a.std(0) + b.std(0))
        early = apart[:, : a.shape[1] // 2] if name.startswith("records.") else apart[:, :0]
        later = np.where((apart == 0).all(0), 0.0, beyond / sizes.get(name, 1.0))
        for differences, allowed in ((early, OTHER_MACHINE), (later, LATER)):
            if not (differences <= allowed).all():
                return (
                    f"{name.partition('.')[2]} differs by {np.nanmax(differences):.2g} of its scale"
                )
    return ""


def _equal(a: Any, b: Any) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")


def _columns(result: StoredResult) -> dict[str, Any]:
    return {
        f"{table}.{name}": column
        for table, columns in result.tables.items()
        for name, column in columns.items()
    }


def salted_difference(
    stored: Sequence[StoredResult], other: Sequence[StoredResult], scales: tuple[float, float]
) -> str:
    """Why a method does not do in other coordinates what it does in the stated ones."""
    if any("failure" in one.tables for one in other):
        return str(other[0].tables["failure"]["sentence"][0])
    for what, scale in zip(("loss", "violation"), scales, strict=True):
        a, b = (
            np.stack([one.tables["records"][what] for one in runs]).astype(float)
            for runs in (stored, other)
        )
        with np.errstate(invalid="ignore"):
            # rounding that grows makes other runs of the same kind
            spread = np.nan_to_num(a.std(0) + b.std(0))
            apart = np.abs(np.median(a, 0) - np.median(b, 0)) - spread
        middle = float(np.median(np.nan_to_num(apart, nan=0.0, posinf=np.inf))) / scale
        if middle > SALTED:
            return f"{what} differs by {middle:.2g} of its scale at the median of its points"
    return ""
