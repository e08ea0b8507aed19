"""Saves a run in progress, so that a killed run loses a minute and not everything."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import torch

_EVERY_S = 60.0  # a kill costs this, and what it takes to start again


class Checkpoint:
    """Stores the state of a `run`, and what the caller has measured.

    Args:
        path: a file; if it exists, the run goes on from it. Its name must depend on all that
            decides the run.
        measured: returns what the caller has measured so far: numbers, texts, tensors, lists and
            dicts of these.
        restore: receives that when a run goes on.
        every_s: seconds between checkpoints; a shorter run writes none.
    """

    def __init__(
        self,
        path: Path,
        measured: Callable[[], Any],
        restore: Callable[[Any], None],
        every_s: float = _EVERY_S,
    ) -> None:
        self.path, self.measured, self.restore, self.every_s = path, measured, restore, every_s
        self.last = monotonic()

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The saved state of the run, or None if there is no readable file; restores what the
        caller measured."""
        try:
            saved: dict[str, Any] = torch.load(self.path, map_location=device, weights_only=True)
            self.restore(saved["own"])
        # none, or cut off
        except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError):
            return None
        return saved

    @property
    def is_due(self) -> bool:
        return monotonic() - self.last >= self.every_s

    def save(self, state: dict[str, Any]) -> None:
        """Write the file atomically. If the disk refuses it, the checkpoint is lost and the run
        goes on."""
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        with suppress(OSError, RuntimeError):
            torch.save(state | {"own": self.measured()}, part)
            os.replace(part, self.path)
        with suppress(OSError):
            part.unlink(missing_ok=True)
        self.last = monotonic()
