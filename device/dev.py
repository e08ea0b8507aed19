"""Development sweep: variants of AdaptivePI on own loops (not the report loops), the collection and P1 to P6.
Run: OMP_NUM_THREADS=1 PYTHONPATH=src python device/dev.py --jobs 16 --seeds 50 51 52 --out $OUT/dev.csv  (about 4 min on 16 cores)"""
from __future__ import annotations
import argparse, csv, math, sys, time, warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "untuned"))
from report_loops import Run, generator, initial, sample, no_grad   # helpers only
from fairbound import AdaptivePI, Constrained, constraints, primal
from fairbound.algorithms import DescentAscent, PHRALM, Penalty
from fairbound.algorithms.adaptive_pi import State
from fairbound.core import Sizes


@dataclass(frozen=True, kw_only=True)
class Variant(AdaptivePI):
    P: str = "Y"       # Y | s | g (geometric)
    I: str = "Y"
    norm: float = 2.0  # p of the joint norm; 0: none
    clip: float = 1.0
    ahead: float = 0.0
    late: float = 3.0
    early: float = 1.0
    gain: float = 2.0
    noise_: float = 2.0
    cap: float = 0.0  # joint bound on w's noise

    def step(self, state, *values, sizes=None):
        (c,), (y, u, v, n, _, k, equality) = values, state
        Y, r = Sizes(torch.zeros_like(c), torch.zeros_like(c)) if sizes is None else sizes
        tiny = torch.finfo(c.dtype).tiny
        scale = self.horizon * r + self.noise_ * (v / 3).sqrt()
        e = torch.where(r > 0, u / scale.clamp(min=tiny), 0.0).clamp(-self.clip, self.clip)
        pulls = (e > 0) | (y > 0) | (equality > 0)
        if self.norm:
            e = e / torch.linalg.vector_norm(e * pulls, self.norm).clamp(min=self.clip) * self.clip
        G = {"Y": Y, "s": (Y * (Y + y.abs())).sqrt(), "g": Y + y.abs(), "h": Y + 0.5 * y.abs(), "q": Y + 0.25 * y.abs()}
        T_I = torch.clamp(k / 10, self.early * self.horizon, self.late * self.horizon)
        w, y = y + self.gain * G[self.P] * e, y + G[self.I] * e / T_I
        w, y = (torch.where(equality > 0, q, torch.relu(q)) for q in (w, y))
        n = n + 1
        v = v + torch.where(n > 1, ((c - u).square() - v) / (n - 1).clamp(min=1.0, max=50.0), 0.0)
        u = torch.where(n > 1, (u + c) / 2, c)
        force = (y.abs() / Y.clamp(min=tiny) * (Y > 0)).amax() if len(c) else state.force
        return w, State(y, u, v, n, force, k + 1, equality)


V = {
    "now": Variant(),
    "g g": Variant(P="g", I="g"),
    "s s": Variant(P="s", I="s"),
    "g s": Variant(P="g", I="s"),
    "q q": Variant(P="q", I="q"),
    "Y s": Variant(I="s"),
    "s s nonorm": Variant(P="s", I="s", norm=0.0),
    "now nonorm": Variant(norm=0.0),
    "now p4": Variant(norm=4.0),
    "s s p4": Variant(P="s", I="s", norm=4.0),
    "now clip2": Variant(clip=2.0),
    "s s clip2": Variant(P="s", I="s", clip=2.0),
    "now late1": Variant(late=1.0),
    "s s late1": Variant(P="s", I="s", late=1.0),
    "now late6": Variant(late=6.0),
    "g g late1": Variant(P="g", I="g", late=1.0), "g g p4": Variant(P="g", I="g", norm=4.0), "g g nonorm": Variant(P="g", I="g", norm=0.0),
    "h h": Variant(P="h", I="h"), "g g gain1": Variant(P="g", I="g", gain=1.0), "g g T40": Variant(P="g", I="g", horizon=40.0), "g g T10": Variant(P="g", I="g", horizon=10.0),
    "g g late6 early3": Variant(P="g", I="g", late=6.0, early=3.0),
    "DA": DescentAscent(), "PHR": PHRALM(), "Penalty": Penalty(),
}
for eta in (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0):
    V[f"eta{eta:g}"] = DescentAscent(eta=eta)


def mlp(*w, act=nn.ReLU):
    parts = []
    for a, b in zip(w, w[1:]): parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1])


# each: (steps, build(seed)), data fixed
def d_task(unit, bound, width, lr):  # two heads on a narrow linear trunk
    def build(seed):
        g = generator(301); x = torch.randn(5000, 10, generator=g)
        q = x @ torch.linalg.qr(torch.randn(10, 4, generator=g)).Q
        a = q[:, 0] * q[:, 1] + torch.sin(2 * q[:, 0]); b = torch.cos(2 * q[:, 2]) + q[:, 3].abs() * q[:, 2]
        a, b = (t / t.std() + 0.1 * torch.randn(5000, generator=g) for t in (a - a.mean(), b - b.mean()))
        rng = generator(seed)
        with initial(seed): trunk, ha, hb = nn.Linear(10, width), mlp(width, 40, 40, 1), mlp(width, 40, 40, 1)
        model = nn.ModuleList([trunk, ha, hb])
        def vals(i):
            h = trunk(x[i]); return F.mse_loss(ha(h)[:, 0], a[i]), unit * (F.mse_loss(hb(h)[:, 0], b[i]) - bound).reshape(1)
        opt = torch.optim.Adam(model.parameters(), lr=lr)
        return Run(model, opt, lambda k: vals(sample(rng, 5000, 96)), no_grad(lambda: vals(torch.arange(5000))))
    return build


def d_gap(opt_name, per):  # the gap of two groups' losses, through few examples
    def build(seed):
        g = generator(309); n = 4000; x = torch.randn(n, 12, generator=g); s = (torch.rand(n, generator=g) < 0.3).long()
        y = ((x @ torch.randn(12, generator=g) / 2 + torch.where(s > 0, 1.5, 0.4) * torch.randn(n, generator=g) * torch.where(s > 0, 1.0, 0.5)) > 0).float()
        A, B = (s == 1).nonzero()[:, 0], (s == 0).nonzero()[:, 0]
        rng = generator(seed)
        with initial(seed): model = mlp(12, 32, 1, act=nn.Tanh)
        def vals(i, a, b):
            l = lambda i: F.binary_cross_entropy_with_logits(model(x[i])[:, 0], y[i])
            return l(i), (l(a) - l(b) - 0.1).reshape(1)
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) if opt_name == "sgd" else torch.optim.Adam(model.parameters(), lr=3e-3)
        return Run(model, opt, lambda k: vals(sample(rng, n, 32), A[sample(rng, len(A), per)], B[sample(rng, len(B), per)]), no_grad(lambda: vals(torch.arange(n), A, B)))
    return build


def d_classes(m, bound, per, hard):
    def build(seed):
        g = generator(302 + m); share = torch.logspace(0, -hard, m); share = share / share.sum()
        centers = torch.randn(m, 6, generator=g); wid = 0.5 + 0.5 * torch.rand(m, generator=g)
        x = centers[:, None] + wid[:, None, None] * torch.randn(m, 500, 6, generator=g)
        rng = generator(seed)
        with initial(seed): model = mlp(6, 40, m)
        def vals(x):
            y = torch.arange(m).repeat_interleave(x.shape[1])
            l = F.cross_entropy(model(x.flatten(0, 1)), y, reduction="none").reshape(m, -1).mean(1)
            return share @ l, l - bound
        opt = torch.optim.Adam(model.parameters(), lr=5e-3)
        return Run(model, opt, lambda k: vals(torch.take_along_dim(x, sample(rng, 500, m * per).reshape(m, per, 1), 1)), no_grad(lambda: vals(x)))
    return build


def d_strong(z, noise, opt_name):  # logistic regression; the mean score of a set is bounded where it needs a force of about z
    def build(seed):
        g = generator(303); x = torch.randn(4000, 20, generator=g); wtrue = torch.randn(20, generator=g)
        y = (x @ wtrue + torch.randn(4000, generator=g) > 0).float()
        d = F.normalize(wtrue, dim=0)
        rng = generator(seed)
        with initial(seed): model = mlp(20, 32, 1, act=nn.Tanh)
        def vals(i, small):
            o = model(x[i])[:, 0]; gap = (o * (2 * y[i] - 1)).mean()
            return F.binary_cross_entropy_with_logits(o, y[i]), ((gap / small) ** 2 - (0.25 / small) ** 2 if False else (gap.square() - 0.05) / z).reshape(1)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if opt_name == "sgd" else torch.optim.Adam(model.parameters(), lr=3e-3)
        return Run(model, opt, lambda k: vals(sample(rng, 4000, noise), 1.), no_grad(lambda: vals(torch.arange(4000), 1.)))
    return build


def d_kl(seed):  # fine-tuning near a reference
    g = generator(304); x = torch.randn(6000, 8, generator=g)
    with initial(305): ref, other = mlp(8, 40, 4, act=nn.SiLU), mlp(8, 40, 4, act=nn.SiLU)
    with torch.no_grad():
        p = (6 * ref(x)).log_softmax(1); y = (6 * ref(x) + 14 * other(x) ).argmax(1)
    rng = generator(seed)
    with initial(seed): model = mlp(8, 40, 4, act=nn.SiLU)
    with torch.no_grad():
        model.load_state_dict(ref.state_dict())
        for q in list(model.parameters())[-2:]: q *= 6
    def vals(i):
        l = model(x[i]).log_softmax(1)
        return F.nll_loss(l, y[i]), (F.kl_div(l, p[i], log_target=True, reduction="batchmean") - 0.1).reshape(1)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Run(model, opt, lambda k: vals(sample(rng, 6000, 64)), no_grad(lambda: vals(torch.arange(6000))))


def d_l2(seed):  # a budget on the sum of squares
    g = generator(306); x = torch.randn(6000, 16, generator=g); y = torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2] + 0.2 * torch.randn(6000, generator=g)
    rng = generator(seed)
    with initial(seed): model = mlp(16, 64, 64, 1)
    ps = [p for p in model.parameters() if p.ndim == 2]
    def vals(i):
        return F.mse_loss(model(x[i])[:, 0], y[i]), (sum(p.square().sum() for p in ps) - 15.).reshape(1)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Run(model, opt, lambda k: vals(sample(rng, 6000, 64)), no_grad(lambda: vals(torch.arange(6000))))


def d_sphere(seed):  # embeddings of length 1 with given overlaps
    g = generator(307); target = torch.randn(12, 12, generator=g); target = target + target.T
    rng = generator(seed)
    with initial(seed): E = nn.Parameter(0.5 * torch.randn(12, 4))
    m = nn.ParameterList([E])
    i, j = torch.triu_indices(12, 12, 1)
    def vals(s, eps):
        G = E @ E.T
        return (G[i[s], j[s]] - target[i[s], j[s]] - eps).square().mean(), E.square().sum(1) - 1
    opt = torch.optim.Adam([E], lr=0.01)
    return Run(m, opt, lambda k: vals(sample(rng, len(i), 16), 0.3 * torch.randn(16, generator=rng)), no_grad(lambda: vals(torch.arange(len(i)), 0.)), torch.ones(12, dtype=torch.bool))


def d_ode(seed):  # physics: u' = -3 u + cos 4t in a sine network, data of another constant
    g = generator(308); t = 3 * torch.rand(150, generator=g)
    u = torch.exp(-t) + 0.3 * torch.sin(4 * t) + 0.05 * torch.randn(150, generator=g)
    rng = generator(seed)
    with initial(seed): a, b, c_ = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1)
    model = nn.ModuleList([a, b, c_])
    def net(t):
        h, d = t[:, None], torch.ones_like(t)[:, None]
        for l in (a, b):
            h, d = torch.tanh(l(h)), d @ l.weight.T
            d = (1 - h * h) * d
        return c_(h)[:, 0], (d @ c_.weight.T)[:, 0]
    def vals(s):
        fit = net(t)[0]; v, dv = net(s)
        return F.mse_loss(fit, u), ((dv + 3 * v - torch.cos(4 * s)).square().mean() - 0.02).reshape(1)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Run(model, opt, lambda k: vals(3 * torch.rand(48, generator=rng)), no_grad(lambda: vals(torch.linspace(0, 3, 200))))


LOOPS = {
    "task tight": (1000, d_task(100.0, 0.25, 2, 1e-2)),
    "task loose": (1000, d_task(0.1, 0.5, 3, 5e-3)),
    "gap adam": (1000, d_gap("adam", 8)), "gap sgd": (1000, d_gap("sgd", 16)),
    "classes10": (1000, d_classes(10, 0.75, 8, 1.3)),
    "classes20": (1200, d_classes(20, 1.35, 6, 1.0)),
    "strong20 sgd": (1000, d_strong(20.0, 64, "sgd")),
    "strong adam": (1000, d_strong(1.0, 32, "adam")),
    "kl": (1000, d_kl), "l2": (1000, d_l2), "sphere": (1000, d_sphere), "ode": (1500, d_ode),
}


def worst(run):
    f, c = run.evaluate()
    v = c.clamp(min=0) if run.equality is None else c.abs()
    return float(f), float(v.max()), float(v[v > 0].mean()) if (v > 0).any() else 0.0


def loop_job(variant, loop, scale, seed):
    torch.set_num_threads(1); warnings.simplefilter("ignore")
    steps, build = LOOPS[loop]
    run = build(seed)
    t = time.process_time()
    if variant.startswith("ref"):  # portfolio: ALM on means, cosine; or unconstrained
        _, rho, long = variant.split()
        rho, long = float(rho), int(long)
        f0, _, _ = worst(run); n = steps * long; lr = run.optimizer.param_groups[0]["lr"]; u = y = torch.zeros(())
        for k in range(n):
            if long > 1: run.optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * k / n))
            f, c = run.batch(k); w = y + rho * u
            if run.equality is None: w = w.clamp(min=0)
            run.optimizer.zero_grad(); (f + (w * c).sum()).backward(); nn.utils.clip_grad_norm_(run.model.parameters(), 10.0); run.optimizer.step()
            u = u + 0.1 * (c.detach() - u); y = y + rho * u / 50
            if run.equality is None: y = y.clamp(min=0)
        return (variant, loop, scale, seed, *worst(run), f0, 0.0, time.process_time() - t)
    m = len(run.evaluate()[1]); names = [f"c{i}" for i in range(m)]
    fair = Constrained(run.model, constraints.given(*names, equality=run.equality is not None), V[variant])
    for k in range(steps):
        run.optimizer.zero_grad(); f, c = run.batch(k)
        if not f.isfinite(): break
        fair.backward(f.reshape(1), values=dict(zip(names, scale * c))); run.optimizer.step()
    force = float(max(fair.forces.values())) if hasattr(V[variant], "horizon") else 0.0
    return (variant, loop, scale, seed, *worst(run), force, bool(fair.infeasible), time.process_time() - t)


COLLECTION = "digits-parity grid-world helmholtz least-squares-500-groups least-squares-groups many-classes neyman-pearson orthogonal qcqp two-moons weight-norms hs10 hs26 hs27 hs28 hs35 hs39 hs40 hs48 hs6 hs7 hs71 p1 p2 p3 p4 p5".split()


def problem_job(variant, name, instance, seeds, lr=0.01, most=10**9):
    from fairbound.benchmark.problems.catalog import load, reference
    from fairbound.training.runner import run as go
    torch.set_num_threads(1); warnings.simplefilter("ignore")
    t = time.process_time()
    p = load(name); inst = p.build(instance); ref = reference(name, inst.source)
    steps = min(most, max(1, round(p.epochs * inst.examples / inst.batch.objective)))
    try:
        out = go(inst.problem, V[variant], [inst.sampler(i, s) for i, s in enumerate(seeds)], inst.starts(seeds), steps, primal=primal.Adam(lr=lr), every=max(1, steps // 100)).result()
    except ValueError as e:
        return [(variant, name, instance, s, math.nan, math.nan, 0, 0, str(e)[:30], 0) for s in seeds]
    rows = []
    for i, s in enumerate(seeds):
        f, c = evaluate(inst, out.x[i], i)
        gap = (f - ref.loss) / max(abs(ref.start - ref.loss), 1e-12); viol = c / (ref.scale * inst.scale)
        rows.append((variant, name, instance, s, gap, viol, steps, out.monitors[i].get("force", 0.0), bool(out.infeasible[i]), (time.process_time() - t) / len(seeds)))
    return rows


def evaluate(inst, x, run):
    ev = inst.problem.evaluate(x, inst.splits[run % len(inst.splits)].train) if hasattr(inst.problem, "evaluate") else None
    return float(ev.loss), float(inst.violation(ev.c).max())


def job(args):
    kind, *rest = args
    try:
        return kind, ([loop_job(*rest)] if kind == "loop" else problem_job(*rest))
    except Exception as e:
        return kind, [(*rest[:3], "ERROR", repr(e)[:200])]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--jobs", type=int, default=16); ap.add_argument("--seeds", type=int, nargs="+", default=[50, 51, 52])
    ap.add_argument("--variants", nargs="+", default=[v for v in V]); ap.add_argument("--pvariants", nargs="*", default=["now", "g g", "s s", "q q", "g g nonorm", "g g p4", "now nonorm"]); ap.add_argument("--loops", nargs="*", default=list(LOOPS))
    ap.add_argument("--scales", nargs="+", type=float, default=[1.0])
    ap.add_argument("--problems", nargs="*", default=COLLECTION); ap.add_argument("--instances", type=int, nargs="+", default=[0]); ap.add_argument("--most", type=int, default=10**9)
    ap.add_argument("--refs", action="store_true"); ap.add_argument("--out", type=Path, default=Path("/tmp/dev.csv"))
    o = ap.parse_args()
    jobs = []
    if o.refs:
        jobs += [("loop", f"ref {rho} {long}", l, 1.0, s) for l in o.loops for s in (0,) for rho, long in [(0., 1), (0., 3)] + [(r, 3) for r in (1e-4, 1e-3, 0.01, 0.1, 1., 10., 100.)]]
    jobs += [("problem", v, p, i, o.seeds, 0.01, o.most) for p in o.problems for v in o.pvariants if not v.startswith("eta") for i in o.instances]
    jobs += [("loop", v, l, sc, s) for l in o.loops for v in o.variants for sc in o.scales for s in o.seeds]
    with ProcessPoolExecutor(o.jobs, get_context("spawn")) as pool, o.out.open("a") as file:
        w = csv.writer(file)
        for fut in as_completed([pool.submit(job, j) for j in jobs]):
            kind, rows = fut.result()
            for r in rows: w.writerow((kind, *r))
            file.flush()
