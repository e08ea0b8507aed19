"""A Keras model
================

Its losses on two groups stay within a bound: in one call, and in a `tf.GradientTape` loop.
"""

import keras
import numpy as np
import tensorflow as tf

from fairbound import AdaptivePI, constraints
from fairbound.algorithms.schedules import Linear
from fairbound.integrations.keras import Constrained, fit

BOUND, STEPS, BATCH = 0.02, 1500, 128
rng = np.random.default_rng(0)


def examples(count):
    group = (rng.random(count) < 0.3).astype(int)  # 0 is A, 1 is B
    X = rng.normal(size=(count, 5)).astype("float32")
    # B follows another rule
    y = (X.sum(1) - 2 * group * X[:, 0] + rng.normal(size=count) > 0).astype("float32")
    return X, y, group


def network():
    keras.utils.set_random_seed(0)
    # logits
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    )


def show(name, model):
    for which, (X, y, group) in (
        ("gap on training examples", train),
        ("gap on held-out examples", test),
    ):
        logits = model.predict(X, verbose=0)[:, 0]
        losses = np.logaddexp(0, logits) - y * logits
        print(f"{name:10} {which}: {losses[group == 1].mean() - losses[group == 0].mean():+.3f}")


train, test = examples(4000), examples(20_000)
X, y, group = train
decaying = keras.optimizers.schedules.PolynomialDecay(0.2, STEPS, 0.01)
print(f"bound: {BOUND:.3f}")

plain = network()
plain.compile(keras.optimizers.SGD(decaying), keras.losses.BinaryCrossentropy(from_logits=True))
plain.fit(X, y, batch_size=BATCH, epochs=STEPS * BATCH // len(X), verbose=0)
show("plain", plain)

model, names = network(), np.array(["A", "B"])
method = AdaptivePI(tau=Linear(0.2, STEPS))  # the default, with a learning rate that decays
print(fit(model, X, y, sensitive_features=names[group], bound=BOUND, method=method, steps=STEPS))
show("fit", model)

model, optimizer = network(), keras.optimizers.SGD(decaying)
fair = Constrained(model, constraints.pairwise_loss_parity(names, bound=BOUND))
# optional: ten times faster than an eager pass
forward = tf.function(lambda X: model(X, training=True)[:, 0])
for _ in range(STEPS):
    batch = rng.integers(len(X), size=BATCH)
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(y[batch], forward(X[batch]))
    # in place of tape.gradient(the mean loss, ...)
    gradients = fair.gradients(tape, losses, group[batch])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
show("tape loop", model)
