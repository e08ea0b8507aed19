"""Single changes of a problem that users make: other units, another learning rate, smaller
mini-batches.

A method whose defaults are good on a problem should still be good on the changed one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fairbound.benchmark.problems._catalog import Instance
from fairbound.benchmark.problems._scaled import scaled_instance


class Change(NamedTuple):
    """Factors."""

    scale: float = 1.0  # of the constraints
    rate: float = 1.0  # of the primal step; of a method with a step of its own, of that
    batch: float = 1.0  # of the mini-batches, at equal steps
    slack: float = 1.0  # of the targets: little is reached with small steps

    def of(self, instance: Instance) -> Instance:
        """The changed problem; the rate is changed where the method is made."""
        if self.batch != 1.0:
            sizes = {
                name: max(1, round(self.batch * getattr(instance.batch, name)))
                for name in ("objective", "cell")
            }
            instance = replace(instance, batch=replace(instance.batch, **sizes))
        return instance if self.scale == 1.0 else scaled_instance(instance, self.scale)


CHANGES = {
    "": Change(),
    "c x 0.01": Change(scale=0.01),
    "c x 100": Change(scale=100.0),
    "rate x 3": Change(rate=3.0),
    "rate / 3": Change(rate=1 / 3, slack=3.0),
    "batch / 4": Change(batch=0.25),
}
# computed together
STACKS = (("c x 0.01",), ("c x 100",), ("rate x 3", "rate / 3"), ("batch / 4",))
