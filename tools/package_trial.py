"""What `make package` runs in a clean environment, outside the repository: the installed package at
work.

python -I package_trial.py            # import and a loop: torch, numpy and scipy only
python -I package_trial.py report     # and the command line, an audit with its page, a classifier,
synthetic data
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

import fairbound
from fairbound import Constrained, DescentAscent, constraints


def main(extra: str | None) -> None:
    installed()
    loop()
    if extra:
        commands()
        classifier()
    print(f"torch {torch.__version__}")


def installed() -> None:
    """It is the wheel that is imported, under the version of its metadata."""
    place = Path(fairbound.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"fairbound was imported from {place}"
    assert version("fairbound") == fairbound.__version__


def loop() -> None:
    """A constrained training loop keeps the groups' losses together where plain training does
    not."""
    torch.manual_seed(0)
    group = (torch.rand(600) < 0.3).long()
    X = torch.randn(600, 4)
    y = (
        X.sum(1) * (1 - 2 * group) + torch.randn(600) > 0
    ).float()  # what is right for one group is wrong for the other
    gaps = {}
    for bound in (0.05, 10.0):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fair = Constrained(
            model, constraints.loss_parity(["A", "B"], bound=bound), DescentAscent(eta=0.1)
        )
        for _ in range(300):
            optimizer.zero_grad()
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                model(X)[:, 0], y, reduction="none"
            )
            fair.backward(losses, group)
            optimizer.step()
        gaps[bound] = float((losses[group == 0].mean() - losses[group == 1].mean()).detach().abs())
    assert gaps[0.05] < 0.5 * gaps[10.0], gaps


def commands() -> None:
    """The command line, and an audit with everything that it writes: the templates are in the
    wheel."""
    fairbound_command = str(Path(sys.executable).with_name("fairbound"))

    def run(*words: str) -> str:
        return subprocess.run(
            [fairbound_command, *words], check=True, capture_output=True, text=True
        ).stdout

    assert fairbound.__version__ in run("--version")
    rows = [f"{i % 2},{(i * 7 % 10) / 10},{'ab'[i // 3 % 2]}" for i in range(60)]
    Path("predictions.csv").write_text("\n".join(["y,p,g", *rows]) + "\n")
    run(
        "audit",
        "predictions.csv",
        "--label",
        "y",
        "--score",
        "p",
        "--group",
        "g",
        "--html",
        "a.html",
        "--json",
        "a.json",
    )
    assert "demographic_parity_difference" in json.dumps(json.loads(Path("a.json").read_text()))
    assert "<html" in Path("a.html").read_text()
    assert "synthetic:OK" in run("data", "list")


def classifier() -> None:
    import numpy as np

    from fairbound import FairClassifier
    from fairbound.data import load

    data = load("synthetic:OK").dataset("RAC1P=1")
    X, y, group = (
        data.X.numpy()[:2000],
        data.y.numpy().astype(int)[:2000],
        data.groups["RAC1P"].numpy()[:2000],
    )
    fair = FairClassifier(constraint="demographic_parity", bound=0.1, epochs=2, random_state=0)
    fair.fit(X, y, sensitive_features=group)
    assert np.isin(fair.predict(X), (0, 1)).all()
    assert fair.score(X, y) > 0.65
    print(f"FairClassifier: {fair.verdict_.decision}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
