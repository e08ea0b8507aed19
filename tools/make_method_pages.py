"""Write docs/reference/algorithms/: a page for every method, from its own file, with a plot on
known problems.

    OMP_NUM_THREADS=1 python tools/make_method_pages.py [--no-plots]

A page has the method's docstring, what a step costs, its settings with their comments, and the
plot. Two parts are written by hand and stay: what follows "## Measured", and the LaTeX of every
equation, which stands below the comment with the docstring's plain text.
`tests/algorithms/test_pages.py` tells when a page is older than its file.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.measuring import is_probe
from fairbound.algorithms import ALGORITHMS
from fairbound.core import Algorithm, Draw, MultiplierMethod, Sample
from fairbound.training._contract import trial_step

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "reference" / "algorithms"
sys.path.insert(0, str(ROOT / "benchmarks"))
import defaults  # noqa: E402

BATCH, REPLICATES, STEPS, SHOWN = 4, 16, 4_000, 120
SOLVES = {
    "kkt": "a KKT point",
    "penalty": "the minimizer of a penalized objective",
    None: "a minimizer of f alone",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--no-plots", action="store_true", help="the text alone")
    parser.add_argument("--only", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    PAGES.mkdir(exist_ok=True)
    for name in options.only:
        (PAGES / f"{stem(name)}.md").write_text(page(name))
        if not options.no_plots:
            plot(name)
        print(f"{PAGES.relative_to(ROOT)}/{stem(name)}.md", flush=True)


def stem(name: str) -> str:
    """The name of the method's file."""
    return ALGORITHMS[name].__module__.rsplit("._", 1)[-1]


# The text -----------------------------------------------------------------------------------------


def page(name: str) -> str:
    """Markdown of a method's page."""
    build = ALGORITHMS[name]
    method, module = build(), inspect.getmodule(build)
    title, _, text = str(inspect.getdoc(module)).partition("\n\n")
    return "\n".join(
        [
            f"# {name}",
            "",
            " ".join(title.split("\n")),
            "",
            markdown(text, typeset(name)),
            "",
            f"![distance to the solution of P1 and P4]({stem(name)}.svg)",
            "",
            (
                "Distance to the solution on P1 (convex) and P4 (concave in one direction),"
                f" default settings, mini-batches of {BATCH} with noise: the median of {REPLICATES}"
                " replicates, shaded from their 10 % to their 90 % quantile. Dotted: the largest"
                " violation. Problems and noise: `benchmarks/defaults.py`."
            ),
            "",
            "| a step | |",
            "|---|---|",
            *(f"| {what} | {said} |" for what, said in facts(method).items()),
            "",
            f"| setting of `{name}` | default | |",
            "|---|---|---|",
            *settings(build),
            "",
            (
                "Source:"
                f" [`src/fairbound/algorithms/_{stem(name)}.py`]"
                f"(../../../src/fairbound/algorithms/_{stem(name)}.py)."
                " All methods: [algorithms.md](../algorithms.md)."
            ),
            "",
        ]
    ) + measured(name)


def present(name: str) -> str:
    path = PAGES / f"{stem(name)}.md"
    return path.read_text() if path.exists() else ""


def measured(name: str) -> str:
    """The part of a page that is written by hand: figures, which belong here and not into
    docstrings."""
    _, head, text = present(name).partition("\n## Measured\n")
    return head + text


def typeset(name: str) -> dict[str, str]:
    """LaTeX of the equations, by their plain text in the docstring."""
    return dict(re.findall(r"<!--\n(.*?)\n-->\n\$\$\n(.*?)\n\$\$", present(name), flags=re.DOTALL))


def markdown(text: str, latex: dict[str, str]) -> str:
    """A docstring as Markdown: equations, which are indented by four, in LaTeX; the rest is
    escaped."""
    parts = re.split(r"^((?: {4}.*\n)(?:\n*(?: {4}.*\n))*)", f"{text}\n", flags=re.MULTILINE)
    parts[::2] = [re.sub(r"([<|*])", r"\\\1", part) for part in parts[::2]]
    for i, part in enumerate(parts[1::2]):
        plain = inspect.cleandoc(part)
        if plain not in latex:
            raise ValueError(
                "no LaTeX for this equation; write the comment and $$ ... $$ into the"
                f" page:\n{plain}"
            )
        parts[2 * i + 1] = f"<!--\n{plain}\n-->\n$$\n{latex[plain]}\n$$\n"
    return "".join(parts).rstrip("\n")


def facts(method: Algorithm[Any]) -> dict[str, str]:
    """What a step costs and needs: what the method declares, and what a trial step finds."""
    # far more than a method that measures samples
    x, m, seen = torch.zeros(100_000), 2, trial_step(method)
    leaves = torch.utils._pytree.tree_leaves(method.init(x, m, None))
    vectors = sum(leaf.numel() // len(x) for leaf in leaves)
    random = method.batch_size_probs is not None
    loop = "on flat vectors, in one process"
    if seen.several_gradients:
        loop += "; several gradients of one mini-batch"
    alone = False
    if isinstance(method, MultiplierMethod):
        loop, alone = "one backward pass into `.grad`, in any number of processes", method.row_wise
    return {
        "kind": "`MultiplierMethod`" if isinstance(method, MultiplierMethod) else "`Algorithm`",
        "mini-batches" + (", two of them halves of another" if random else ""): str(method.draws),
        "evaluated for": ", ".join(method.evaluates),
        "passes of each through the model": ", ".join(map(str, seen.passes)),
        "vectors of the model's size in the state (2 constraints)": str(vectors),
        "tends to": SOLVES[method.solves],
        "in a training loop": loop,
        "very many groups": (
            "yes, each constraint is treated alone" if alone else "up to 10,000 constraints"
        ),
    }


def settings(build: type[Algorithm[Any]]) -> list[str]:
    source = inspect.getsource(build).replace("# noqa: RUF009  (frozen)", "#")
    rows = []
    for field in fields(build):  # type: ignore[arg-type]
        comment = re.search(rf"^    {field.name}: .*?#(.*)$", source, re.M)
        what = comment[1].strip().replace("|", "\\|") if comment else ""
        rows.append(
            f"| `{field.name}` | {'' if field.default is MISSING else f'`{field.default}`'} |"
            f" {what} |"
        )
    return rows


# The plot -----------------------------------------------------------------------------------------


def path(method: Algorithm[Any], problem: defaults.Known) -> tuple[Tensor, Tensor, Tensor]:
    """Steps (T,), distances (T, replicates) and violations (T, replicates)."""
    generator = torch.Generator().manual_seed(0)
    width = defaults.N + problem.m + problem.m * defaults.N

    probs = torch.tensor(method.batch_size_probs or (1.0,), dtype=torch.float64)

    def draw(noises: Tensor, level: Tensor) -> Draw:
        # X1, X and its halves, of BATCH 2^level examples each
        if method.batch_size_probs is not None:
            halves = noises[2:] * 2.0 ** (-level / 2)
            noises = torch.cat([noises[:1], halves.mean(0, keepdim=True), halves])
        return Draw.of(*(sampled(problem, noise) for noise in noises), weight=1 / probs[level])

    def step(x: Tensor, state: Any, noises: Tensor, level: Tensor, **when: bool) -> Any:
        d, new = method.update(x, state, draw(noises, level), **when)
        return x + d, new

    def noise(draws: int) -> Tensor:
        return BATCH**-0.5 * torch.randn(
            REPLICATES, draws, width, dtype=torch.float64, generator=generator
        )

    x = problem.start.expand(REPLICATES, -1)
    state = torch.func.vmap(lambda x, own: method.init(x, problem.m, sampled(problem, own)(x)))(
        x, noise(1)[:, 0]
    )
    shown = sorted({round(STEPS ** (i / SHOWN)) for i in range(SHOWN + 1)})
    found = []
    for k in range(1, STEPS + 1):
        level = torch.multinomial(probs, REPLICATES, replacement=True, generator=generator)
        when = {"probe": is_probe(k - 1, problem.m)} if isinstance(method, MultiplierMethod) else {}
        stepped = torch.func.vmap(partial(step, **when))
        x, state = stepped(x, state, noise(method.draws), level)
        if k in shown:
            worst = torch.func.vmap(lambda point: problem.at(point).c.max().clamp(min=0.0))(x)
            found.append(((x - problem.x).norm(dim=1), worst))
    distance, violation = (torch.stack(part) for part in zip(*found, strict=True))
    return torch.tensor(shown), distance, violation


def sampled(problem: defaults.Known, noise: Tensor) -> Sample:
    one = torch.ones((), dtype=torch.float64)
    return defaults.sample(problem, one, one, noise)


def plot(name: str) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.8), sharey=True, constrained_layout=True)
    known = {problem.name: problem for problem in defaults.known_problems()}
    for axis, label in zip(axes, ("P1", "P4"), strict=True):
        method = ALGORITHMS[name]()
        steps, distance, violation = path(method, known[label])
        probs = method.batch_size_probs
        # of a random batch size: its mean
        draws = 1 + sum(2 ** (i + 1) * p for i, p in enumerate(probs or ()))
        draws = draws if probs else sum(trial_step(method).passes)
        examples = steps * BATCH * draws
        low, middle, high = distance.nan_to_num(nan=1e9).quantile(
            torch.tensor([0.1, 0.5, 0.9]).double(), dim=1
        )
        axis.plot(examples, middle, color="#1b6ca8", label="distance to the solution")
        axis.fill_between(examples, low, high, color="#1b6ca8", alpha=0.2, linewidth=0)
        axis.plot(
            examples,
            violation.nan_to_num(nan=1e9).median(1)[0],
            ":",
            color="#b3541e",
            label="largest violation",
        )
        axis.set(xscale="log", yscale="log", ylim=(1e-3, 10), xlabel="examples", title=label)
        axis.grid(alpha=0.3)
    axes[0].legend(loc="lower left", fontsize=8, frameon=False)
    figure.savefig(PAGES / f"{stem(name)}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
