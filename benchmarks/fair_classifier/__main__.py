"""`FairClassifier` and `FairPostprocessor` beside what others have, on census tables that no choice
has looked at.

    OMP_NUM_THREADS=1 python benchmarks/fair_classifier [--jobs 2] [--tables NC,TN] [--splits 5]
    [--only fairret,...]

Tables, one group column each, not an input: NC, CO, MN by race (two groups), TN, OR by sex, MO by
marital status (married or not). 5 random splits, stratified by group and label: 14,000 training
examples, up to 20,000 test examples. Constants were chosen on OK, VA, KS and AL (`--tables
OK,VA,VA5,KS,AL`), never on those reported.

Every result is a JSON file in `--results`; those of ours carry a hash of their code, so that a
change computes them again and the others not. `--shard 0/2` computes half of the tasks and judges
nothing. Prints every claim with its target, draws the front (`--figure`), and exits with 1 where a
claim is missed or a fit failed.

Needs lightgbm, fairlearn, fairret, error-parity and its solver ecos (requirements.txt beside this
file).
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

# read when numpy and torch are first imported, here and in the pool's processes
os.environ["OMP_NUM_THREADS"] = "1"

import claims
import report
from cache import batches, compute_all, read, tasks
from tables import REPORT


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", default=",".join((*REPORT, "VA5")))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="compute these contestants, by comma; all are judged"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th task from the i-th on")
    parser.add_argument("--results", type=Path, default=Path("results/fair_classifier"))
    parser.add_argument(
        "--code", help="hash of an earlier version of our code, whose results are to be judged"
    )
    parser.add_argument(
        "--figure", type=Path, help="where to draw the front; default: in the results' folder"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the means of every contestant on every table"
    )
    return parser.parse_args()


def version(code: str | None) -> str:
    if code:
        return code
    try:
        from ours import version as own
    except ImportError as missing:
        print(f"without our estimators: {missing}")
        return "none"
    return own()


def main() -> int:
    options = asked()
    options.results.mkdir(parents=True, exist_ok=True)
    only = [name for name in options.only.split(",") if name]
    code = version(options.code)
    tables = options.tables.split(",")
    wanted = tasks(tables, options.splits, only)
    first, step = map(int, options.shard.split("/"))
    todo = [task for task in wanted[first::step] if not task.path(options.results, code).exists()]
    todo = [] if options.code else [task for task in todo if code != "none" or not task.ours]
    failed = 0
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for done in as_completed(
            [pool.submit(compute_all, batch, options.results, code) for batch in batches(todo)]
        ):
            failed += sum(line.startswith("FAILED") for line in done.result())
            print(*done.result(), sep="\n", flush=True)
    if step > 1:
        return int(failed > 0)
    found = read(options.results, tasks(tables, options.splits, []), code)
    if not found:
        print("no results")
        return 1
    results = claims.Results(found)
    judged = list(claims.all_claims(results))
    if options.table:
        print(report.by_table(results) + "\n")
    print(f"{report.over_tables(results)}\n\n{report.claim_lines(judged)}")
    missing = sum(not task.path(options.results, code).exists() for task in wanted)
    hours = sum(one["cpu_s"] for one in found) / 3600
    print(
        f"\n{len(found)} results, {missing} missing, {failed} failed; {hours:.1f} h of CPU time;"
        f" code {code}"
    )
    from figures import draw

    draw(results, options.figure or options.results / "front.png")
    return int(failed > 0 or missing > 0 or any(claim.met is False for claim in judged))


if __name__ == "__main__":
    sys.exit(main())
