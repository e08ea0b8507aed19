import sys, warnings, pathlib
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import torch
from dev import *
from fairbound.benchmark.problems.catalog import load, reference
from fairbound.training.runner import run as go
torch.set_num_threads(1); warnings.simplefilter("ignore")
name, upto = sys.argv[1], [int(a) for a in sys.argv[2:]]
p = load(name); inst = p.build(0); seeds = [50, 51, 52, 53, 54]
print(inst.batch, inst.examples, p.epochs)
for steps in upto:
    out = go(inst.problem, AdaptivePI(), [inst.sampler(i, s) for i, s in enumerate(seeds)], inst.starts(seeds), steps, primal=primal.Adam(lr=0.01), every=max(1, steps // 100)).result()
    for i in range(5):
        ev = inst.problem.evaluate(out.x[i], inst.splits[i % len(inst.splits)].train)
        print(steps, i, "x", [round(v, 2) for v in out.x[i].tolist()][:6], "f", round(float(ev.loss), 3), "c", [round(v, 3) for v in ev.c.flatten().tolist()][:5], "y", None if out.multipliers is None else [round(v, 2) for v in out.multipliers[i].flatten().tolist()][:5], out.monitors[i])
