"""Lightning: its two kinds of optimization equal the plain loop bit for bit, and so does a resumed
run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("lightning", reason="Lightning is not installed: make test-trainers")

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from trainer_loops import (
    METHOD,
    PARITY,
    bce,
    end,
    examples,
    loader,
    network,
    optimizer_of,
    plain_loop,
    scalars,
)

from fairbound import SGD, SSLALM, Constrained, DescentAscent, Penalty
from fairbound.integrations.lightning import ConstrainedCallback


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


class Automatic(L.LightningModule):
    def __init__(self, method: Any = METHOD) -> None:
        super().__init__()
        self.net = network()
        self.fair = Constrained(self, PARITY, method)

    def losses(self, batch: list[Tensor]) -> Tensor:
        X, y, _ = batch
        return bce(self.net(X), y)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = self.fair.loss(self.losses(batch), batch[2])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("validation loss", self.fair.loss(self.losses(batch), batch[2]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.net)

    def configure_callbacks(self) -> list[L.Callback]:
        return [ConstrainedCallback(self.fair)]


class Manual(Automatic):
    def __init__(self, accumulate: int = 1) -> None:
        super().__init__()
        self.automatic_optimization, self.accumulate = False, accumulate

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx) / self.accumulate)
        if (batch_idx + 1) % self.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


class NotFinite(Automatic):
    """The third mini-batch of the first epoch."""

    def losses(self, batch: list[Tensor]) -> Tensor:
        spoilt = self.trainer.training and (
            self.trainer.current_epoch,
            self.trainer.fit_loop.batch_idx,
        ) == (0, 2)
        return super().losses(batch) * (torch.nan if spoilt else 1.0)


class Augmented(Automatic):
    """A method that is more than a loss: manual optimization, with `fair.backward`."""

    def __init__(self) -> None:
        super().__init__(SSLALM(samples=1))
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.fair.backward(self.losses(batch), batch[2])
        optimizer.step()


def fit(
    module: L.LightningModule, epochs: int = 3, resume: str | Path | None = None, **given: Any
) -> L.Trainer:
    settings = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "max_epochs": epochs,
    } | given
    trainer = L.Trainer(**settings, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, loader(), loader(), ckpt_path=resume)
    return trainer


@pytest.mark.parametrize(
    "method", [METHOD, Penalty(), SGD()], ids=lambda method: type(method).__name__
)
def test_automatic_optimization_equals_the_plain_loop(method: Any) -> None:
    """Validation, the sanity check included, comes in between."""
    module = Automatic(method)
    fit(module)
    assert end(module.net, module.fair).equals(plain_loop(3, method=method))
    assert module.fair.steps == 24
    assert isinstance(method, DescentAscent) == any(
        value > 0.01 for value in module.fair.multipliers.values()
    )


def test_accumulation_equals_the_plain_loop() -> None:
    module = Automatic()
    fit(module, accumulate_grad_batches=2)
    assert end(module.net, module.fair).equals(plain_loop(3, accumulate=2))
    assert module.fair.steps == 12


@pytest.mark.parametrize("accumulate", [1, 2])
def test_manual_optimization_equals_the_plain_loop(accumulate: int) -> None:
    module = Manual(accumulate)
    fit(module)
    assert end(module.net, module.fair).equals(plain_loop(3, accumulate))


def test_a_method_that_is_more_than_a_loss_runs_in_manual_optimization() -> None:
    module = Augmented()
    fit(module)
    assert end(module.net, module.fair).equals(plain_loop(3, method=SSLALM(samples=1)))


def test_a_loss_that_is_not_finite_skips_its_step() -> None:
    module = NotFinite()
    with pytest.warns(RuntimeWarning, match="step 3 was skipped"):
        fit(module)
    assert module.fair.skipped == 1
    assert end(module.net, module.fair).equals(plain_loop(3, without=(2,)))


def test_a_scaler_that_skips_a_step_moves_nothing() -> None:
    """Lightning's own mixed precision with a GradScaler, whose first scale is too large for half
    precision."""
    module, scaler = (
        Automatic(),
        torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=10**6),
    )
    fit(module, epochs=2, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    skipped = round(24 - math.log2(scaler.get_scale()))
    assert skipped > 0
    assert (module.fair.steps, module.fair.skipped) == (16 - skipped, 0)


def test_a_scaler_sees_a_loss_that_is_not_finite() -> None:
    module, scaler = NotFinite(), torch.amp.GradScaler("cpu", init_scale=8.0)
    with pytest.warns(RuntimeWarning, match="step 3 was skipped"):
        fit(module, epochs=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    assert scaler.get_scale() == 4.0
    assert (module.fair.steps, module.fair.skipped) == (7, 1)
    assert all(p.isfinite().all() for p in module.parameters())


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
    first = Automatic()
    fit(first, epochs=1, enable_checkpointing=True, callbacks=[saves], accumulate_grad_batches=2)
    second = Automatic()
    fit(second, resume=tmp_path / "step=4.ckpt", accumulate_grad_batches=2)
    assert end(second.net, second.fair).equals(plain_loop(3, accumulate=2))
    kept = torch.load(tmp_path / "step=4.ckpt", weights_only=True)["callbacks"][
        "ConstrainedCallback"
    ]
    assert kept["steps"] == 4


def test_constraints_and_multipliers_are_logged(tmp_path: Path) -> None:
    module = Automatic()
    logger = CSVLogger(tmp_path)
    fit(module, logger=logger, log_every_n_steps=4)
    heads, *records = [
        line.split(",") for line in (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    ]
    at = heads.index("multiplier/A - mean")
    logged = [float(record[at]) for record in records if record[at]]
    assert len(logged) == 6
    assert logged[-1] == pytest.approx(module.fair.multipliers["A - mean"])
    assert "constraint/mean - B" in heads


def test_tensorboard_shows_what_the_default_method_did(tmp_path: Path) -> None:
    """Constraints, multipliers and forces, by Lightning's default logger, read back from its
    file."""
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: make test-trainers")
    module = Automatic(None)
    fit(module, logger=TensorBoardLogger(tmp_path), log_every_n_steps=4)
    curves = scalars(tmp_path)
    logged = module.fair.log_values()
    assert {name.partition("/")[0] for name in logged} == {"constraint", "multiplier", "force"}
    assert logged.keys() <= curves.keys()
    for name, value in logged.items():
        assert len(curves[name]) == 6
        assert curves[name][-1] == pytest.approx(value, rel=1e-6)


def test_several_constraints_are_logged_by_their_largest() -> None:
    fair = Constrained(network(), PARITY, METHOD)
    fair.loss(fair.model(examples().tensors[0]).square(), examples().tensors[2]).backward()  # type: ignore[operator]
    optimizer_of(fair.model).step()  # type: ignore[arg-type]
    assert fair.log_values(most=3) == {
        "constraint/largest": max(fair.constraints.values()),
        "multiplier/largest": max(fair.multipliers.values()),
    }


def test_the_fair_of_another_model_is_refused() -> None:
    module = Automatic()
    module.fair = Constrained(nn.Linear(5, 1), PARITY, METHOD)
    with pytest.raises(ValueError, match=r"parameter 'weight'.*trained"):
        fit(module)


def test_the_callback_takes_a_constrained() -> None:
    with pytest.raises(TypeError, match=r"a fairbound.Constrained, got Sequential"):
        ConstrainedCallback(network())  # type: ignore[arg-type]
