"""A `tf.GradientTape` loop with `integrations.keras.Constrained` is the torch loop with
`fairbound.Constrained`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from own_method import Optimistic

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")

import keras
import keras_twins as twins

if keras.backend.backend() != "tensorflow":
    pytest.skip("about TensorFlow's tape", allow_module_level=True)

import tensorflow as tf
from keras import layers

import fairbound
from fairbound import SSLALM, DescentAscent, StochasticGhost, SwitchingSubgradient, constraints
from fairbound.core import Algorithm
from fairbound.integrations.keras import Constrained, MiniBatch, make_functional

DATA = twins.people()
X, Y, GROUP = DATA.X.numpy(), DATA.y.numpy(), DATA.groups["group"].numpy()
WIDTHS = (9, 8, 1)
PARITY = {
    "loss": lambda: constraints.pairwise_loss_parity(["A", "B"], bound=0.02),
    "rates": lambda: constraints.equal_opportunity(["A", "B"], bound=0.02),
    "norm": lambda: {
        "gap": constraints.loss_parity(["A", "B"], bound=0.02),
        "norm": constraints.weight_norm(1.0),
    },
}


def batches(steps: int, size: int = 32) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(len(X), size=size) for _ in range(steps)]


def taped(model: Any, rows: np.ndarray, persistent: bool = False) -> MiniBatch:
    with tf.GradientTape(persistent=persistent) as tape:
        outputs = model(X[rows], training=True)[:, 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=Y[rows], logits=outputs)
    return MiniBatch(losses, GROUP[rows], Y[rows], outputs, tape=tape)


def step(fair: Constrained, rows: MiniBatch, optimizer: Any, **more: Any) -> None:
    found = fair.gradients(
        rows.tape, rows.losses, rows.groups, labels=rows.labels, outputs=rows.outputs, **more
    )
    optimizer.apply_gradients(zip(found, fair.model.trainable_variables, strict=True))


class Twin:
    """The torch loop: flat weights, `fairbound.Constrained`, SGD."""

    def __init__(self, x0: torch.Tensor, limit: Any, method: Algorithm[Any], lr: float) -> None:
        self.x = torch.nn.Parameter(x0.clone())
        self.fair = fairbound.Constrained([self.x], limit, method)
        self.optimizer = torch.optim.SGD([self.x], lr=lr)

    def rows(self, rows: np.ndarray) -> fairbound.MiniBatch:
        outputs = twins.in_torch(self.x, DATA.X[rows], WIDTHS)
        return fairbound.MiniBatch(
            twins.bce(outputs, DATA.y[rows]), torch.from_numpy(GROUP[rows]), DATA.y[rows], outputs
        )

    def step(self, backward: Callable[[], Any]) -> None:
        self.optimizer.zero_grad()
        backward()
        self.optimizer.step()


METHODS: dict[str, Algorithm[Any]] = {
    "descent-ascent": DescentAscent(eta=0.1),
    "SSL-ALM, one draw": SSLALM(samples=1, tau=0.1),
    "SSL-ALM": SSLALM(tau=0.1),
    "SSw": SwitchingSubgradient(eta_f=0.1, eta_c=0.1, eps=0.05),
    "a user's own": Optimistic(),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", PARITY)
def test_a_tape_loop_is_the_torch_loop(name: str, kind: str) -> None:
    method, model = METHODS[name], twins.network(widths=WIDTHS)
    _, x0 = make_functional(model)
    fair, twin = Constrained(model, PARITY[kind](), method), Twin(x0, PARITY[kind](), method, 0.1)
    optimizer = keras.optimizers.SGD(0.1)
    for rows, others in zip(batches(30), batches(31)[1:], strict=True):
        further = [taped(model, others)._replace(tape=None)] * (method.draws - 1)
        step(fair, taped(model, rows), optimizer, extra_batches=further)
        with torch.no_grad():
            second = [twin.rows(others)] * (method.draws - 1)
        twin.step(
            lambda rows=rows, second=second: twin.fair.backward(
                twin.rows(rows), extra_batches=second
            )
        )
    now = make_functional(model)[1]
    assert (now - x0).abs().max() > 0.01
    assert torch.allclose(now, twin.x.detach(), atol=1e-5)
    assert fair.multipliers == pytest.approx(twin.fair.multipliers, abs=1e-5)
    assert fair.constraints == pytest.approx(twin.fair.constraints, abs=1e-5)
    assert (fair.steps, fair.skipped, fair.infeasible) == (30, 0, twin.fair.infeasible)
    assert fair.primal_step == pytest.approx(twin.fair.primal_step)
    fair.load_output()
    twin.fair.load_output()
    assert torch.allclose(make_functional(model)[1], twin.x.detach(), atol=1e-5)


def test_ghost_asks_for_rows_itself() -> None:
    model = twins.network(widths=WIDTHS)
    _, x0 = make_functional(model)
    method, limit = StochasticGhost(cap=2), PARITY["loss"]
    fair, twin = Constrained(model, limit(), method), Twin(x0, limit(), method, 0.05)
    optimizer = keras.optimizers.SGD(0.05)
    mine, theirs = np.random.default_rng(1), np.random.default_rng(1)

    def rows(rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.integers(len(X), size=32 * size)

    for _ in range(4):
        found = fair.gradients_closure(lambda size: taped(model, rows(mine, size), persistent=True))
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        twin.step(lambda: twin.fair.backward_closure(lambda size: twin.rows(rows(theirs, size))))
    assert torch.allclose(make_functional(model)[1], twin.x.detach(), atol=1e-4)
    with pytest.raises(ValueError, match=r"once.*tf.GradientTape\(persistent=True\)"):
        fair.gradients_closure(lambda size: taped(model, rows(mine, size)))


def test_the_report_is_the_twin_s() -> None:
    model = twins.network(widths=WIDTHS)
    fair = Constrained(model, PARITY["rates"](), DescentAscent(eta=0.1))
    optimizer = keras.optimizers.SGD(0.1)
    for rows in batches(5):
        step(fair, taped(model, rows), optimizer)
    halves = [np.arange(0, 1000), np.arange(1000, 2000)]
    found = fair.report(halves, lambda rows: taped(model, rows, persistent=True))
    x = torch.nn.ParameterList([torch.nn.Parameter(make_functional(model)[1])])
    outputs = twins.in_torch(x[0].detach(), DATA.X, WIDTHS)
    assert found.loss == pytest.approx(float(twins.bce(outputs, DATA.y).mean()), abs=1e-5)
    assert found.multipliers == pytest.approx(fair.multipliers)
    twin = fairbound.report_kkt(
        x,
        PARITY["rates"](),
        [torch.arange(2000)],
        lambda rows: fairbound.MiniBatch(
            twins.bce(twins.in_torch(x[0], DATA.X, WIDTHS), DATA.y),
            DATA.groups["group"],
            DATA.y,
            twins.in_torch(x[0], DATA.X, WIDTHS),
        ),
        multipliers=fair.multipliers,
    )
    assert found.stationarity == pytest.approx(twin.stationarity, rel=1e-3)
    assert found.exact == pytest.approx(twin.exact, abs=1e-5)


def test_several_columns_of_groups_and_weights() -> None:
    model = twins.network(widths=WIDTHS)
    both = [
        constraints.pairwise_loss_parity(["A", "B"], bound=0.0, by="race"),
        constraints.bounded_group_loss(2, bound=0.1, by="sex"),
    ]
    fair = Constrained(model, both, DescentAscent())
    rows = taped(model, np.arange(40))
    columns = {"race": GROUP[:40], "sex": tf.constant(np.arange(40) % 2)}
    fair.gradients(
        rows.tape, rows.losses, columns, weight=np.ones(40), objective=np.arange(40) < 20
    )
    losses = rows.losses.numpy()
    assert fair.last_step is not None
    assert float(fair.last_step.loss) == pytest.approx(losses[:20].mean(), abs=1e-6)
    assert fair.constraints["loss of 0 <= 0.1"] == pytest.approx(losses[::2].mean() - 0.1, abs=1e-6)


def test_a_step_that_is_not_finite_gives_zeros() -> None:
    model = twins.network(widths=WIDTHS)
    fair = Constrained(model, PARITY["loss"](), DescentAscent())
    fine, bad = taped(model, np.arange(32)), taped(model, np.arange(32))
    fair.gradients(fine.tape, fine.losses, fine.groups)
    before = fair.multipliers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with bad.tape:
            spoilt = bad.losses * np.nan
        found = fair.gradients(bad.tape, spoilt, bad.groups)
    assert all(float(tf.reduce_max(tf.abs(part))) == 0 for part in found)
    assert [part.shape for part in found] == [v.shape for v in model.trainable_variables]
    assert (fair.skipped, fair.steps, fair.multipliers) == (1, 1, before)
    assert any("was skipped" in str(warning.message) for warning in caught)


def test_a_mini_batch_without_a_group() -> None:
    model = twins.network(widths=WIDTHS)
    fair = Constrained(model, PARITY["loss"](), DescentAscent(eta=1.0))
    step(fair, taped(model, np.arange(64)), keras.optimizers.SGD(0.0))
    before = fair.multipliers
    step(fair, taped(model, np.flatnonzero(GROUP == 0)[:16]), keras.optimizers.SGD(0.0))
    assert fair.multipliers == before
    assert (fair.steps, fair.skipped) == (2, 0)


def test_a_saved_loop_goes_on() -> None:
    def build() -> tuple[Any, Constrained, Any]:
        model = twins.network(widths=WIDTHS)
        return (
            model,
            Constrained(model, PARITY["loss"](), SSLALM(samples=1, tau=0.1)),
            keras.optimizers.SGD(0.1),
        )

    model, fair, optimizer = build()
    for rows in batches(6):
        step(fair, taped(model, rows), optimizer)
    resumed, other, again = build()
    resumed.set_weights(model.get_weights())
    other.load_state_dict(fair.state_dict())
    for rows in batches(3):
        step(fair, taped(model, rows), optimizer)
        step(other, taped(resumed, rows), again)
    assert other.steps == 9
    assert torch.allclose(make_functional(resumed)[1], make_functional(model)[1], atol=1e-6)
    assert other.multipliers == pytest.approx(fair.multipliers)


def test_dropout_batch_norm_and_two_inputs_are_the_loop_s_own_affair() -> None:
    keras.utils.set_random_seed(0)
    a, b = keras.Input((4,)), keras.Input((5,))
    hidden = layers.Dropout(0.3)(
        layers.BatchNormalization()(layers.Dense(8)(layers.Concatenate()([a, b])))
    )
    model = keras.Model([a, b], layers.Dense(1)(hidden))
    fair = Constrained(model, PARITY["loss"](), DescentAscent())
    moving = model.layers[-3].moving_mean.numpy().copy()
    with tf.GradientTape() as tape:
        outputs = model([X[:64, :4], X[:64, 4:]], training=True)[:, 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=Y[:64], logits=outputs)
    found = fair.gradients(tape, losses, GROUP[:64])
    assert len(found) == len(model.trainable_variables)
    assert max(float(tf.reduce_max(tf.abs(part))) for part in found) > 0
    assert not np.allclose(model.layers[-3].moving_mean.numpy(), moving)


def test_half_precision_losses() -> None:
    """Of a mixed policy; torch takes no bfloat16 from numpy."""
    found = {}
    for policy in ("mixed_bfloat16", "float32"):
        keras.utils.set_random_seed(0)
        dense = [layers.Dense(8, "tanh", dtype=policy), layers.Dense(1, dtype=policy)]
        model = keras.Sequential([keras.Input((9,)), *dense])
        fair = Constrained(model, PARITY["rates"](), DescentAscent())
        with tf.GradientTape() as tape:
            outputs = model(X[:64], training=True)[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(
                labels=tf.cast(Y[:64], outputs.dtype), logits=outputs
            )
        kernel, *_ = fair.gradients(tape, losses, GROUP[:64], labels=Y[:64], outputs=outputs)
        assert outputs.dtype == ("bfloat16" if "mixed" in policy else "float32")
        found[policy] = kernel.numpy()
    assert np.allclose(
        found["mixed_bfloat16"], found["float32"], atol=0.02 * np.abs(found["float32"]).max()
    )


def test_embeddings_whose_gradient_is_sparse() -> None:
    keras.utils.set_random_seed(0)
    words = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(20, 4),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    fair = Constrained(words, PARITY["loss"](), DescentAscent())
    rows = np.random.default_rng(0).integers(10, size=(64, 3))
    with tf.GradientTape() as tape:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=Y[:64], logits=words(rows, training=True)[:, 0]
        )
    table, *_ = fair.gradients(tape, losses, GROUP[:64])
    assert (np.abs(table.numpy()).max(1) > 0).tolist() == [i < 10 for i in range(20)]


def test_what_is_wrong_is_said() -> None:
    model = twins.network(widths=WIDTHS)
    fair = Constrained(model, PARITY["loss"](), DescentAscent())
    rows = taped(model, np.arange(32))
    with pytest.raises(ValueError, match=r"losses.*per-example losses"):
        fair.gradients(rows.tape, tf.reduce_mean(rows.losses), rows.groups)
    with tf.GradientTape() as empty:
        pass
    with pytest.raises(ValueError, match=r"no path.*weights"):
        fair.gradients(empty, rows.losses, rows.groups)
    with pytest.raises(ValueError, match=r"SSLALM.*2 independent mini-batches"):
        Constrained(model, PARITY["loss"](), SSLALM()).gradients(
            rows.tape, rows.losses, rows.groups
        )
    with pytest.raises(
        TypeError,
        match=(r"fairbound.integrations.keras.MiniBatch\(losses, .*, got fairbound.constraints"),
    ):
        Constrained(model, PARITY["loss"](), SSLALM()).gradients(
            rows.tape, rows.losses, rows.groups, extra_batches=[fairbound.MiniBatch(torch.ones(3))]
        )
    with pytest.raises(ValueError, match=r"groups.*numbered.*float64"):
        fair.gradients(rows.tape, rows.losses, rows.groups * 1.0)
    with pytest.raises(ValueError, match=r"groups.*numbered.*<U1.*np.unique"):
        fair.gradients(rows.tape, rows.losses, np.array(["A", "B"])[rows.groups])
    with pytest.raises(RuntimeError, match=r"torch, outside.*TensorFlow's graphs"):
        tf.function(lambda: fair.gradients(rows.tape, rows.losses, rows.groups), autograph=False)()
    with pytest.raises(ValueError, match="no weights yet"):
        Constrained(keras.Sequential([layers.Dense(1)]), PARITY["loss"](), DescentAscent())


def test_layers_frozen_after_it_was_built_are_told() -> None:
    model = keras.Sequential([layers.Input((9,)), layers.Dense(8), layers.Dense(1)])
    fair = Constrained(model, PARITY["loss"](), DescentAscent())
    step(fair, taped(model, batches(1)[0]), keras.optimizers.SGD(0.1))
    model.layers[0].trainable = False
    with pytest.raises(ValueError, match=r"89 trainable.* 9 now"):
        step(fair, taped(model, batches(1)[0]), keras.optimizers.SGD(0.1))
