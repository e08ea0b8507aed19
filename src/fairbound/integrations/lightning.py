"""Constrained training with Lightning: `training_step` returns `fair.loss(losses, groups)`, a
callback does the rest.

    class Classifier(LightningModule):
        def __init__(self):
            ...
            self.fair = Constrained(self, constraints.pairwise_loss_parity(["A", "B"], bound=0.02))

        def training_step(self, batch, batch_idx):
            X, y, group = batch
            return self.fair.loss(cross_entropy(self.net(X), y, reduction="none"), group)

        def configure_callbacks(self):
            return [ConstrainedCallback(self.fair)]

With manual optimization the same loss goes to `self.manual_backward`; a method that has no such
loss (SSL-ALM) calls `self.fair.backward(losses, group)` in its place.
"""

from __future__ import annotations

from typing import Any

from fairbound._utils.optional import need

need("lightning", "lightning", "fairbound.integrations.lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

from fairbound.integrations.torch._constrained import Constrained  # noqa: E402


class ConstrainedCallback(Callback):
    """The method's state in Lightning's checkpoints, its figures in the logs, and the model as the
    strategy wrapped it.

    Args:
        fair: the `Constrained` whose `loss` the module returns.
        log: whether constraints, multipliers and forces are logged, every `log_every_n_steps`
            optimizer steps.
    """

    def __init__(self, fair: Constrained, *, log: bool = True) -> None:
        if not isinstance(fair, Constrained):
            raise TypeError(
                f"ConstrainedCallback takes a fairbound.Constrained, got {type(fair).__name__}"
            )
        self.fair, self.logs = fair, log
        self._logged = 0  # optimizer steps at the last record

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.fair.prepare(trainer.strategy.model, getattr(trainer.precision_plugin, "scaler", None))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log after optimizer steps only."""
        step = trainer.global_step
        if self.logs and step != self._logged and step % trainer.log_every_n_steps == 0:
            self._logged = step
            self.log_dict(self.fair.log_values())

    def state_dict(self) -> dict[str, Any]:
        return self.fair.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.fair.load_state_dict(state_dict)
