"""The methods as someone writes them by hand with tf.GradientTape, for benchmarks/keras_step.py to
compare with.

Each is one class with the equations of its file in fairbound/algorithms, on Keras variables, and
`step` is traced as one `tf.function`. Ghost's is its gradients; nobody writes its subproblems by
hand, so both sides call the same solver.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import torch

from fairbound.algorithms._subproblems import ghost_direction


class HandWritten:
    """A model, its data, and what the methods share."""

    def __init__(
        self, model: Any, X: np.ndarray, y: np.ndarray, bound: float, slack: np.ndarray
    ) -> None:
        self.model, self.bound = model, tf.constant(bound, X.dtype)
        self.X, self.y = tf.constant(X), tf.constant(y)
        self.slack = slack  # where SSL-ALM starts
        self.traced = tf.function(self.step)
        self.prepare()

    def prepare(self) -> None:
        """The method's own state."""

    def step(self, *given: Any) -> None:
        raise NotImplementedError

    def losses(self, rows: Any) -> Any:
        outputs = tf.squeeze(self.model(tf.gather(self.X, rows), training=True), -1)
        return tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.gather(self.y, rows), logits=outputs
        )

    def constraints(self, losses: Any) -> Any:
        """|loss of A - loss of B| <= bound, as two rows; the losses of A are the first half."""
        of_a, of_b = tf.split(losses, 2)
        gap = tf.reduce_mean(of_a) - tf.reduce_mean(of_b)
        return tf.stack([gap - self.bound, -gap - self.bound])

    def objective_and_constraints(self, rows: Any) -> tuple[Any, Any]:
        """The objective's rows come first; each half of the others has as many."""
        losses = self.losses(rows)
        own = tf.shape(losses)[0] // 3
        return tf.reduce_mean(losses[:own]), self.constraints(losses[own:])

    def weights(self) -> np.ndarray:
        return np.concatenate(
            [variable.numpy().ravel() for variable in self.model.trainable_variables]
        )


class SGDHandWritten(HandWritten):
    def step(self, rows: Any) -> None:
        variables, tau = self.model.trainable_variables, 0.05
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses(rows))
        for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(tau * slope)


class DescentAscentHandWritten(HandWritten):
    def prepare(self) -> None:
        self.dual = tf.Variable(tf.zeros(2))

    def step(self, rows: Any) -> None:
        variables, tau, eta = self.model.trainable_variables, 0.05, 0.005
        with tf.GradientTape() as tape:
            f, c = self.objective_and_constraints(rows)
            lagrangian = f + tf.reduce_sum(self.dual * c)
        for variable, slope in zip(variables, tape.gradient(lagrangian, variables), strict=True):
            variable.assign_sub(tau * slope)
        self.dual.assign(tf.nn.relu(self.dual + eta * c))


class SSLALMHandWritten(HandWritten):
    def prepare(self) -> None:
        self.dual = tf.Variable(tf.zeros(2))
        self.s, self.zs = tf.Variable(self.slack), tf.Variable(self.slack)
        self.zx = [tf.Variable(variable) for variable in self.model.trainable_variables]

    def step(self, rows: Any, others: Any) -> None:
        variables, tau, eta, rho, mu, beta = (
            self.model.trainable_variables,
            0.01,
            0.05,
            1.0,
            2.0,
            0.5,
        )
        penalty = self.constraints(self.losses(others)) + self.s
        with tf.GradientTape() as tape:
            f, c = self.objective_and_constraints(rows)
            y = self.dual + eta * (tf.stop_gradient(c) + self.s)
            y = tf.where(tf.norm(y) >= 10.0, tf.zeros_like(y), y)
            w = tf.stop_gradient(y + rho * penalty)
            lagrangian = f + tf.reduce_sum(w * c)
        slopes = tape.gradient(lagrangian, variables)
        s = tf.nn.relu(self.s - tau * (w + mu * (self.s - self.zs)))
        for variable, z, slope in zip(variables, self.zx, slopes, strict=True):
            away = variable - z
            variable.assign_sub(tau * (slope + mu * away))
            z.assign_add(beta * away)
        self.zs.assign_add(beta * (self.s - self.zs))
        self.s.assign(s)
        self.dual.assign(y)


class SwitchingHandWritten(HandWritten):
    def prepare(self) -> None:
        self.k, self.mass = (tf.Variable(tf.zeros((), self.X.dtype)) for _ in range(2))
        self.kept = [tf.Variable(variable) for variable in self.model.trainable_variables]

    def step(self, test: Any, rows: Any, coin: Any) -> None:
        variables, nothing = self.model.trainable_variables, tf.zeros((), self.X.dtype)
        tested = self.constraints(self.losses(test))
        met = tf.reduce_max(tested) <= 0.01 / tf.sqrt(self.k + 1)
        with tf.GradientTape() as tape:
            f, c = self.objective_and_constraints(rows)
            followed = tf.where(met, f, tf.gather(c, tf.argmax(tested)))
        slopes = tape.gradient(followed, variables)
        eta = tf.where(met, nothing + 0.05, nothing + 0.04)
        saved = tf.where(met, eta, nothing)
        self.mass.assign_add(saved)
        for variable, kept, slope in zip(variables, self.kept, slopes, strict=True):
            kept.assign(tf.where(coin * self.mass < saved, variable.value, kept))
            variable.assign_sub(eta * slope)
        self.k.assign_add(1)


class GhostHandWritten(HandWritten):
    """Four mini-batches of a random size a step: one half, both, and the halves of the second."""

    def prepare(self) -> None:
        self.alpha = 0.05
        kind = tf.TensorSpec((None,), tf.int64)  # one trace for all sizes
        self.pieces = tf.function(self.derivatives, input_signature=[kind])
        self.traced = self.step  # the solver is no TensorFlow

    def derivatives(self, rows: Any) -> tuple[Any, Any, Any]:
        """The objective's gradient (n,), the constraints, and the gradient of the gap, which both
        share."""
        variables = self.model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            f, c = self.objective_and_constraints(rows)
            gap = c[0]
        flat = [
            tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(of, variables)], 0)
            for of in (f, gap)
        ]
        return flat[0], c, flat[1]

    def step(self, *given: Any) -> None:
        *batches, weight = given
        found = [[torch.from_numpy(part.numpy()) for part in self.pieces(rows)] for rows in batches]
        g, c, slope = (torch.stack(parts) for parts in zip(*found, strict=True))
        solved = ghost_direction(
            g, c, torch.stack([slope, -slope], 1), tau=1.0, beta=20.0, rho=0.1, lam=0.5
        )
        single, full, odd, even = solved.d.numpy()
        d = self.alpha * (single + weight.numpy() * (full - (odd + even) / 2))
        start = 0
        for variable in self.model.trainable_variables:
            size = int(np.prod(variable.shape))
            variable.assign_add(d[start : start + size].reshape(variable.shape))
            start += size
        self.alpha *= 1 - 0.05 * self.alpha
