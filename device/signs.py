"""Which sign fires, on development seeds."""
import sys, warnings, time, pathlib
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import torch
from dev import *
from fairbound.benchmark.problems.catalog import load, reference
from fairbound.training.runner import run as go
torch.set_num_threads(1); warnings.simplefilter("ignore")
for name in sys.argv[1:]:
    t = time.time()
    p = load(name); inst = p.build(0); seeds = [50, 51, 52, 53, 54]
    steps = max(1, round(p.epochs * inst.examples / inst.batch.objective))
    out = go(inst.problem, AdaptivePI(), [inst.sampler(i, s) for i, s in enumerate(seeds)], inst.starts(seeds), steps, primal=primal.Adam(lr=0.01), every=max(1, steps // 100)).result()
    ref = reference(name, inst.source)
    for i, s in enumerate(seeds):
        f, c = evaluate(inst, out.x[i], i)
        gap = (f - ref.loss) / max(abs(ref.start - ref.loss), 1e-12); viol = c / (ref.scale * inst.scale)
        print(name, s, steps, f"gap {gap:.3f} viol {viol:.3f}", out.monitors[i], (out.infeasible[i] or "")[:150], flush=True)
    print(time.time() - t)
