"""Two processes of a trainer, each on half of every mini-batch, are one process on the whole.

Both processes run every trainer once (this file, as a script), and the tests compare what they
left.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

for package in ("lightning", "transformers", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed: make test-trainers")

import lightning as L  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from trainer_loops import (  # noqa: E402
    METHOD,
    PARITY,
    bce,
    end,
    examples,
    network,
    optimizer_of,
    plain_loop,
)
from transformers import PreTrainedConfig, PreTrainedModel, TrainingArguments  # noqa: E402
from transformers.modeling_outputs import SequenceClassifierOutput  # noqa: E402

from fairbound import Constrained  # noqa: E402
from fairbound.integrations.lightning import ConstrainedCallback  # noqa: E402
from fairbound.integrations.transformers import ConstrainedTrainer  # noqa: E402

HALF = 16  # examples of one process in a mini-batch of 32


def with_accelerate(folder: Path) -> tuple[nn.Module, Constrained]:
    accelerator = Accelerator(cpu=True)
    inner = network()
    model, optimizer, loader = accelerator.prepare(
        inner, optimizer_of(inner), DataLoader(examples(), HALF)
    )
    fair = Constrained(model, PARITY, METHOD)
    for _ in range(2):
        for X, y, group in loader:
            accelerator.backward(fair.loss(bce(model(X), y), group))
            optimizer.step()
            optimizer.zero_grad()
    return inner, fair


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.fair = Constrained(self, PARITY, METHOD)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        X, y, group = batch
        return self.fair.loss(bce(self.net(X), y), group)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.net)

    def configure_callbacks(self) -> list[L.Callback]:
        return [ConstrainedCallback(self.fair)]


def with_lightning(folder: Path) -> tuple[nn.Module, Constrained]:
    module = Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        **quiet,
    )
    every_other = DistributedSampler(examples(), 2, int(os.environ["RANK"]), shuffle=False)
    trainer.fit(module, DataLoader(examples(), HALF, sampler=every_other))
    return module.net, module.fair


class Wrapped(PreTrainedModel):
    """The network of the plain loop, as a model of Transformers."""

    def __init__(self) -> None:
        super().__init__(PreTrainedConfig())
        self.net = network()

    def forward(self, X: Tensor) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=self.net(X)[:, None])


class Columns(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(examples())

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return dict(zip(("X", "labels", "group"), examples()[i], strict=True))


class InOrder(ConstrainedTrainer):
    def example_losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return bce(outputs.logits[:, 0], labels)

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.accelerator.prepare(
            DataLoader(self.train_dataset, HALF, collate_fn=self.data_collator)
        )  # type: ignore[no-any-return]


def with_transformers(folder: Path) -> tuple[nn.Module, Constrained]:
    args = TrainingArguments(
        str(folder),
        num_train_epochs=2,
        max_grad_norm=0,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        ddp_backend="gloo",
    )
    model = Wrapped()
    fair = Constrained(model, PARITY, METHOD)
    optimizer = optimizer_of(model)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    InOrder(
        model=model, args=args, fair=fair, train_dataset=Columns(), optimizers=(optimizer, constant)
    ).train()
    return model.net, fair


TRAINERS = {
    "accelerate": with_accelerate,
    "transformers": with_transformers,
    "lightning": with_lightning,
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("processes")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launch, __file__, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: [torch.load(folder / f"{name}{rank}.pt") for rank in (0, 1)] for name in TRAINERS}


@pytest.mark.parametrize("name", TRAINERS)
def test_two_processes_are_one(ends: dict[str, list[Any]], name: str) -> None:
    alone = plain_loop(2)
    for weights, multipliers, steps in ends[name]:
        assert steps == alone.steps == 16
        assert torch.allclose(weights, alone.weights, atol=1e-6)
        assert multipliers == pytest.approx(alone.multipliers, abs=1e-6)
    assert max(alone.multipliers.values()) > 0.01


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, train in TRAINERS.items():
        torch.save(
            tuple(end(*train(Path(sys.argv[1])))),
            Path(sys.argv[1]) / f"{name}{os.environ['RANK']}.pt",
        )
    # what holds a DDP model also holds gloo's threads: alive at exit, they may abort the process
    gc.collect()
    distributed.destroy_process_group()
