"""accelerate needs nothing of ours: `accelerator.backward(fair.loss(...))` equals the plain loop
bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate", reason="accelerate is not installed: make test-trainers")

from accelerate import Accelerator
from trainer_loops import METHOD, PARITY, bce, end, loader, network, optimizer_of, plain_loop

from fairbound import SGD, Constrained, Penalty


class Loop:
    def __init__(self, accumulate: int = 1, method: Any = METHOD) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        model = network()
        parts = self.accelerator.prepare(model, optimizer_of(model), loader())
        self.model, self.optimizer, self.loader = parts
        self.fair = Constrained(self.model, PARITY, method)
        self.accelerator.register_for_checkpointing(self.fair)

    def train(self, epochs: int) -> Loop:
        for _ in range(epochs):
            for X, y, group in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(self.fair.loss(bce(self.model(X), y), group))
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            with torch.no_grad():
                self.fair.loss(bce(self.model(X), y), group)
        return self


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "method", [METHOD, Penalty(), SGD()], ids=lambda method: type(method).__name__
)
def test_it_equals_the_plain_loop(accumulate: int, method: Any) -> None:
    loop = Loop(accumulate, method).train(3)
    assert end(loop.model, loop.fair).equals(plain_loop(3, accumulate, method))
    assert loop.fair.steps == 24 // accumulate


def test_a_resumed_loop_is_the_same(tmp_path: Path) -> None:
    first = Loop(accumulate=2).train(1)
    first.accelerator.save_state(str(tmp_path))
    second = Loop(accumulate=2)
    with torch.no_grad():
        torch._foreach_zero_(list(second.model.parameters()))
    second.accelerator.load_state(str(tmp_path))
    second.train(2)
    assert end(second.model, second.fair).equals(plain_loop(3, accumulate=2))
