"""The report: six new loops once, collection on seeds 30 to 34, ablation of own loops on seeds 20 to 24.
Run: OMP_NUM_THREADS=1 PYTHONPATH=src python device/final.py --jobs 16 --out $OUT   (about 7 min on 16 cores; appends rows as they come)"""
from __future__ import annotations
import argparse, csv, json, math, sys, time, warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks" / "untuned")]
try:
    import sklearn  # noqa
except ImportError:
    sys.path.append(str(HERE / "fake"))
try:
    import pydantic  # noqa
except ImportError:
    sys.path.append(str(HERE / "fake_pydantic"))
import torch
import dev
from dev import V, Variant, COLLECTION, LOOPS as OWN, loop_job, evaluate
from fairbound import AdaptivePI, primal
from fairbound.algorithms import SGD, PHRALM, SPBM, SSLALM, DescentAscent, ExactPenalty, NuPI, Penalty

METHODS = {"AdaptivePI": AdaptivePI(), "DescentAscent": DescentAscent(), "PHRALM": PHRALM(), "NuPI": NuPI(), "SSLALM": SSLALM(samples=1, lag=True),
           "SPBM": SPBM(), "ExactPenalty": ExactPenalty(), "Penalty": Penalty(), "SGD": SGD()}
ABLATION = {  # one change each
    "as it is": Variant(), "no noise in the reach": Variant(noise_=0.0), "no joint limit": Variant(norm=0.0), "integral T throughout": Variant(late=1.0),
    "integral 3 T throughout": Variant(early=3.0), "gain 1": Variant(gain=1.0), "gain 4": Variant(gain=4.0), "T 10": Variant(horizon=10.0), "T 40": Variant(horizon=40.0),
    "no integral": Variant(early=1e9, late=1e9), "gains grow with y": Variant(P="g", I="g"),
}
V.update(ABLATION)


def scaled_instance(inst, s):
    if s == 1.0: return inst
    from fairbound.benchmark.problems.scaled import scaled
    from fairbound.constraints.constraint import FunctionConstraint
    from fairbound.constraints.constraint_set import ConstraintSet
    def function(part):
        def fun(batch):
            got = part.on(batch)
            return s * got.value if got.observed is None else (s * got.value, got.observed)
        return replace(part, fun=fun)
    problem = inst.problem
    parts = tuple(function(p) if isinstance(p, FunctionConstraint) else scaled(p, s, problem.loss) for p in problem.constraints.parts)
    return replace(inst, problem=replace(problem, constraint=ConstraintSet(parts)), scale=s * inst.scale)


def collection(method, name, s, seeds):
    from fairbound.benchmark.problems.catalog import load, reference
    from fairbound.training.runner import run as go
    from fairbound.benchmark.problems import catalog
    if not hasattr(catalog, "read_all"):  # the census tables are not among these problems, and need pandas
        catalog.read_all = catalog._read
        catalog._read = lambda path: () if path.suffix == ".toml" else catalog.read_all(path)
    t = time.process_time()
    p = load(name); inst = p.build(0); ref = reference(name, inst.source); inst = scaled_instance(inst, s)
    steps = max(1, round(p.epochs * inst.examples / inst.batch.objective))
    try:
        out = go(inst.problem, METHODS[method], [inst.sampler(i, k) for i, k in enumerate(seeds)], inst.starts(seeds), steps, primal=primal.Adam(lr=0.01),
                 every=max(1, steps // 100), compile=False).result()
    except (ValueError, NotImplementedError) as e:
        return [("collection", method, name, s, k, math.nan, math.nan, "", f"refused: {e}"[:60], 0.0) for k in seeds]
    rows = []
    for i, k in enumerate(seeds):
        f, c = evaluate(inst, out.x[i], i)
        rows.append(("collection", method, name, s, k, (f - ref.loss) / max(abs(ref.start - ref.loss), 1e-12), c / (ref.scale * inst.scale), out.monitors[i].get("force", ""),
                     (out.infeasible[i] or "")[:60], (time.process_time() - t) / len(seeds)))
    return rows


def report(entry, loop, setting, seed):
    import harness
    harness.ENTRIES["Penalty"] = Penalty()
    _, r = harness.compute(harness.Job(entry, loop, setting, seed))
    return [("report", entry, loop, setting, seed, *r)]


def job(args):
    torch.set_num_threads(1); warnings.simplefilter("ignore")
    kind, *rest = args
    try:
        if kind == "report": return report(*rest)
        if kind == "collection": return collection(*rest)
        return [("own", *loop_job(*rest))]
    except Exception as e:
        return [("ERROR", kind, *map(str, rest), __import__("traceback").format_exc()[-300:])]


if __name__ == "__main__":
    import harness
    ap = argparse.ArgumentParser()
    ap.add_argument("--jobs", type=int, default=16); ap.add_argument("--out", type=Path, required=True); ap.add_argument("--parts", nargs="+", default=["report", "collection", "others", "ablation"])
    ap.add_argument("--trial", action="store_true", help="a handful of jobs on other seeds")
    o = ap.parse_args(); begin = time.time()
    names = [l.name for l in harness.LOOPS]; entries = [m for m in METHODS if m != "SGD"]
    first = list(harness.SETTINGS)[:3]; later = list(harness.SETTINGS)[3:]
    jobs = {"report": [("report", e, l, "c x1", s) for l in names for e in [*entries, *harness.TUNED] for s in harness.SEEDS]
                      + [("report", e, l, st, s) for st in harness.SETTINGS if st != "c x1" for l in names for e in entries for s in harness.SEEDS],
            "collection": [("collection", "AdaptivePI", n, s, [30, 31, 32, 33, 34]) for s in (1.0, 0.01, 100.0) for n in COLLECTION],
            "ablation": [("own", f"ref {r} {long}", l, 1.0, 0) for l in OWN for r, long in [(0., 1), (0., 3)] + [(r, 3) for r in (1e-4, 1e-3, 0.01, 0.1, 1., 10., 100.)]]
                        + [("own", v, l, 1.0, s) for v in ABLATION for l in OWN for s in (20, 21, 22, 23, 24)],
            "others": [("collection", m, n, 1.0, [30, 31, 32, 33, 34]) for m in METHODS if m != "AdaptivePI" for n in COLLECTION]}
    todo = [j for part in o.parts for j in jobs.get(part, [])]
    if o.trial:
        todo = [("collection", "AdaptivePI", n, s, [50]) for n in ("hs40", "two-moons", "weight-norms", "many-classes") for s in (1.0, 100.0)] + [("own", "gain 4", "kl", 1.0, 50)]
    o.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(o.jobs, get_context("spawn")) as pool, (o.out / "rows.csv").open("a") as file:
        w = csv.writer(file)
        def run(todo):
            for fut in as_completed([pool.submit(job, j) for j in todo]):
                for r in fut.result(): w.writerow(r)
                file.flush()
        run([j for j in todo if j[0] == "report"])
        if "report" in o.parts and not o.trial:  # the chosen eta at the other settings
            store = harness.Store(o.out / "none" / "results.csv")
            for r in csv.reader((o.out / "rows.csv").open()):
                if r[0] == "report": store.results[harness.Job(r[1], r[2], r[3], int(r[4]))] = harness.Result(*map(float, r[5:8]))
            todo += [("report", harness.chosen_eta(store, l, harness.SEEDS), l, st, s) for l in names for st in harness.SETTINGS if st != "c x1" for s in harness.SEEDS]
            run(todo[-72:] + [j for j in todo[:-72] if j[0] != "report"])
        else:
            run([j for j in todo if j[0] != "report"])
    (o.out / "done.json").write_text(json.dumps({"seconds": time.time() - begin}))
