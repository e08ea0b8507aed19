"""A Keras model as a function of flat parameters: derivatives, shapes, precision, and every trap as
a sentence."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, jacrev, vmap

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")

import keras
import keras_twins as twins
from keras import layers

from fairbound import SSLALM, constraints, make_functional, report_kkt, run
from fairbound.constraints._batch import MiniBatch
from fairbound.integrations.keras import KerasForward, as_module, write_weights
from fairbound.integrations.keras import make_functional as of_keras

BACKEND = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="about TensorFlow")


def small(*more: Any, outputs: int = 1, **of_last: Any) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, "tanh"), *more, layers.Dense(outputs, **of_last)]
    )


def inputs(rows: int = 7) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))


# What it computes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_are_the_model_s(outputs: int) -> None:
    model = small(outputs=outputs)
    forward, x = of_keras(model)
    found = forward(x, inputs())
    own = keras.ops.convert_to_numpy(model(inputs().numpy()))
    assert found.shape == ((7,) if outputs == 1 else (7, 3))
    assert np.allclose(found.numpy(), own.reshape(found.shape), atol=1e-6)
    assert (forward.n, x.shape) == (model.count_params(), (model.count_params(),))


def test_derivatives_are_those_of_differences() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="float64"),
            layers.Dense(5, "tanh", dtype="float64"),
            layers.Dense(3, dtype="float64"),
        ]
    )
    forward, x = of_keras(model)
    rows, weight = (
        inputs().double(),
        torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    )
    x.requires_grad_()
    (found,) = torch.autograd.grad(forward(x, rows), x, weight)
    at = x.detach()
    # the others multiply in float32
    step, tolerance = (1e-6, 1e-7) if BACKEND == "tensorflow" else (1e-2, 1e-3)

    def total(point: torch.Tensor) -> torch.Tensor:
        return (forward(point, rows) * weight).sum()

    for i in range(0, len(at), 7):
        unit = torch.zeros_like(at)
        unit[i] = step
        assert found[i] == pytest.approx(
            float(total(at + unit) - total(at - unit)) / (2 * step), abs=tolerance
        )


def test_transforms_go_one_point_after_another() -> None:
    """Measurements of several runs, and whoever uses torch.func on it."""
    forward, x = of_keras(small())
    points, rows = torch.stack([x, 1.1 * x]), inputs()
    many = vmap(forward, (0, None))(points, rows)
    assert torch.allclose(many, torch.stack([forward(point, rows) for point in points]))

    def loss(point: torch.Tensor) -> torch.Tensor:
        return forward(point, rows).square().sum()

    slopes = vmap(grad(loss))(points)
    for point, slope in zip(points, slopes, strict=True):
        leaf = point.clone().requires_grad_()
        assert torch.allclose(torch.autograd.grad(loss(leaf), leaf)[0], slope, atol=1e-5)
    assert jacrev(lambda point: forward(point, rows))(x).shape == (7, forward.n)


@pytest.mark.skipif(BACKEND == "torch", reason="torch differentiates its own twice")
def test_second_derivatives_are_refused() -> None:
    forward, x = of_keras(small())
    x.requires_grad_()
    (slope,) = torch.autograd.grad(forward(x, inputs()).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        slope.sum().backward()


def test_slices_of_a_larger_vector() -> None:
    """Memory that is not aligned as TensorFlow asks ends the process, if it is handed over as it
    is."""
    forward, x = of_keras(small())
    longer = torch.cat([torch.zeros(1), x, torch.zeros(3)])
    wide = torch.randn(9, 11, generator=torch.Generator().manual_seed(2))
    for start in range(3):
        assert torch.allclose(
            forward(longer[1:-3], wide[start:, start : start + 4]),
            forward(x, wide[start:, start : start + 4].clone()),
        )


def test_a_point_that_is_changed_in_place_is_read_anew() -> None:
    forward, x = of_keras(small())
    for unaligned in (False, True):
        point = torch.cat([torch.zeros(1), x])[1:] if unaligned else x.clone()
        before = forward(point, inputs()).clone()
        point.mul_(2.0)
        assert not torch.allclose(forward(point, inputs()), before)
        assert torch.allclose(forward(point, inputs()), forward(2 * x, inputs()))


def test_no_rows_and_one_row() -> None:
    forward, x = of_keras(small())
    assert forward(x, inputs(0)).shape == (0,)
    assert forward(x, inputs(1)).shape == (1,)


@on_tensorflow
def test_other_numbers_of_rows_need_no_other_trace() -> None:
    forward, x = of_keras(small())
    calls = []
    layer = forward.model.layers[0]
    plain = layer.call
    layer.call = lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs)
    forward, x = KerasForward(forward.model), x.requires_grad_()
    traced = len(calls)
    for rows in (1, 2, 3, 50, 51, 700):
        forward(x, inputs(rows)).sum().backward()
    assert len(calls) - traced <= 1, "one trace for the rows' precision at most"


def test_whole_numbers_as_inputs() -> None:
    keras.utils.set_random_seed(1)
    words = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(10, 4),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    forward, x = of_keras(words)
    rows = torch.tensor([[1, 2, 3], [4, 5, 9]], dtype=torch.int32)
    own = keras.ops.convert_to_numpy(words(rows.numpy()))[:, 0]
    assert np.allclose(forward(x, rows).numpy(), own, atol=1e-6)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(forward(x, rows).sum(), x)
    assert (slope[:40].view(10, 4) != 0).any(1).tolist() == [
        i in (1, 2, 3, 4, 5, 9) for i in range(10)
    ]


def test_images_and_convolutions() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(2, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    forward, x = of_keras(model)
    rows = torch.randn(5, 6, 6, 1, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    (slope,) = torch.autograd.grad(forward(x, rows).sum(), x)
    assert slope.abs().min() > 0


def test_frozen_layers_stay_and_are_read_as_they_are() -> None:
    model = small()
    model.layers[0].trainable = False
    forward, x = of_keras(model)
    assert forward.n == 6
    before = forward(x, inputs())
    model.layers[0].kernel.assign(2 * keras.ops.convert_to_numpy(model.layers[0].kernel))
    assert not torch.allclose(forward(x, inputs()), before)
    assert torch.allclose(
        forward(x, inputs()),
        torch.tensor(keras.ops.convert_to_numpy(model(inputs().numpy())))[:, 0],
    )


def test_mixed_precision_keeps_float32_weights() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, "tanh", dtype="mixed_bfloat16"), layers.Dense(1)]
    )
    forward, x = of_keras(model)
    assert x.dtype == torch.float32
    x.requires_grad_()
    (slope,) = torch.autograd.grad(forward(x, inputs()).sum(), x)
    assert slope.dtype == torch.float32
    assert slope.abs().max() > 0


def test_weights_go_back_into_the_model() -> None:
    model = small()
    forward, x = of_keras(model)
    write_weights(model, 2 * x)
    assert torch.equal(of_keras(model)[1], 2 * x)
    assert np.allclose(
        keras.ops.convert_to_numpy(model(inputs().numpy()))[:, 0], forward(2 * x, inputs()).numpy()
    )
    with pytest.raises(ValueError, match=r"31 weights, got.*\(3,\)"):
        write_weights(model, torch.zeros(3))


# What it refuses ----------------------------------------------------------------------------------


def test_a_model_without_weights() -> None:
    with pytest.raises(ValueError, match=r"no weights.*keras.Input\(shape\)"):
        KerasForward(keras.Sequential([layers.Dense(1)]))


def test_a_model_that_is_frozen() -> None:
    model = small()
    model.trainable = False
    with pytest.raises(ValueError, match=r"layer .*frozen"):
        KerasForward(model)


def test_a_torch_module() -> None:
    with pytest.raises(TypeError, match=r"a keras.Model, got Linear"):
        KerasForward(torch.nn.Linear(2, 1))


def test_several_inputs_or_outputs() -> None:
    a, b = keras.Input((2,)), keras.Input((2,))
    joined = layers.Dense(1)(layers.Concatenate()([a, b]))
    with pytest.raises(ValueError, match=r"2 inputs.*one tensor"):
        KerasForward(keras.Model([a, b], joined))
    with pytest.raises(ValueError, match="has 2 outputs"):
        KerasForward(keras.Model(a, [layers.Dense(1)(a), layers.Dense(1)(a)]))


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (lambda: layers.BatchNormalization(name="bn"), r"bn \(BatchNormalization\)"),
        (lambda: layers.Dropout(0.5, name="off"), r"off \(Dropout\)"),
        (lambda: layers.GaussianNoise(0.5, name="noise"), r"noise \(GaussianNoise\)"),
        (
            lambda: keras.Sequential([layers.Dense(5), layers.Dropout(0.5, name="in")]),
            r"in \(Dropout\)",
        ),
    ],
)
def test_layers_with_state(layer: Any, named: str) -> None:
    model = small(layer())
    with pytest.raises(ValueError, match=rf"training {named} of .*as_in_prediction=True") as caught:
        KerasForward(model)
    assert "fairbound.integrations.keras.Constrained" in str(caught.value)
    forward = KerasForward(model, as_in_prediction=True)
    _, x = of_keras(model, as_in_prediction=True)
    own = keras.ops.convert_to_numpy(model(inputs().numpy(), training=False))[:, 0]
    assert np.allclose(forward(x, inputs()).numpy(), own, atol=1e-6)


def test_state_that_cannot_change_is_no_obstacle() -> None:
    """Frozen BatchNormalization, a dropout of nothing, and Normalization with its constants."""
    scale = layers.Normalization()
    scale.adapt(inputs(50).numpy())
    frozen = layers.BatchNormalization()
    frozen.trainable = False
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), scale, layers.Dense(5), frozen, layers.Dropout(0.0), layers.Dense(1)]
    )
    assert KerasForward(model).n == 31


class Subclassed(keras.Model):
    """A model that does not say what it takes, and draws numbers that Keras does not know of, if
    asked."""

    def __init__(self, noise: bool = False) -> None:
        super().__init__()
        self.hidden, self.out, self.noise = layers.Dense(5, "tanh"), layers.Dense(1), noise

    def call(self, rows: Any, training: bool = False) -> Any:
        found = self.out(self.hidden(rows))
        return 2 * found if self.noise and training else found


def test_a_subclass_of_model_needs_rows_to_try() -> None:
    model = Subclassed()
    model(np.zeros((2, 4), "float32"))
    with pytest.raises(ValueError, match=r"input shape .* inputs="):
        KerasForward(model)
    assert KerasForward(model, inputs().numpy()).n == 31
    odd = Subclassed(noise=True)
    odd(np.zeros((2, 4), "float32"))
    with pytest.raises(ValueError, match="training its outputs"):
        KerasForward(odd, inputs().numpy())


@pytest.mark.parametrize("change", [lambda x: x[1:], lambda x: x[None], lambda x: x.double()])
def test_another_x(change: Any) -> None:
    forward, x = of_keras(small())
    with pytest.raises(ValueError, match=r"31 weights.*torch.float32, got x"):
        forward(change(x), inputs())


def test_first_rows_of_zeros_are_no_obstacle() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, use_bias=False)])
    rows = torch.cat([torch.zeros(5, 4), inputs(1)])
    assert KerasForward(model, rows).n == 4


class Stuck(keras.layers.Layer):
    """Its weight is built but never used."""

    def build(self, shape: Any) -> None:
        self.unused = self.add_weight(shape=(3,))

    def call(self, rows: Any) -> Any:
        return rows[:, :1]


def test_weights_that_move_nothing() -> None:
    with pytest.raises(ValueError, match=r"not depend.*weights"):
        KerasForward(keras.Sequential([keras.Input((4,)), Stuck()]))


def test_another_precision_than_the_rows() -> None:
    forward, x = of_keras(small())
    of = twins.problem(twins.in_torch, torch.float64)
    with pytest.raises(ValueError, match=r"X is torch.float64.*torch.float32"):
        run(type(of)(forward, of.loss, of.constraint, of.data), SSLALM(), twins.sampler(of), x, 2)


# As a torch module --------------------------------------------------------------------------------


def test_a_module_is_copied_and_saved_with_its_model() -> None:
    model = small()
    module = as_module(model)
    with torch.no_grad():
        module.weights.mul_(2.0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.allclose(other(inputs()), module(inputs()), atol=1e-6)
        with torch.no_grad():
            other.weights.zero_()
        other.keras_model()
        assert not other(inputs()).any()
        assert module(inputs()).any()
        assert keras.ops.convert_to_numpy(model(inputs().numpy())).any()
    assert module.double()(inputs().double()).dtype == torch.float64


def test_a_report_of_a_keras_model() -> None:
    data = twins.people(rows=200)
    module = as_module(twins.network())

    def evaluate(rows: torch.Tensor) -> MiniBatch:
        return MiniBatch(twins.bce(module(data.X[rows]), data.y[rows]), data.groups["group"][rows])

    found = report_kkt(
        module, constraints.pairwise_loss_parity(2, bound=0.01), [torch.arange(200)], evaluate
    )
    x = module.weights.detach().requires_grad_()
    loss = twins.bce(twins.in_torch(x, data.X), data.y).mean()
    assert found.loss == pytest.approx(float(loss), abs=1e-5)
    assert found.gradient == pytest.approx(float(torch.autograd.grad(loss, x)[0].norm()), rel=1e-4)


@pytest.mark.skipif(BACKEND != "torch", reason="about Keras' torch backend")
def test_a_keras_module_on_torch_goes_through_ours() -> None:
    """torch.func.functional_call would change nothing: our `functional` of a torch module is the
    wrong door."""
    model = small()
    forward, x = make_functional(model)
    assert torch.equal(forward(x, inputs()), forward(2 * x, inputs())), (
        "this works now: say so in docs/guides/keras.md"
    )
    right, x = of_keras(model)
    assert not torch.equal(right(x, inputs()), right(2 * x, inputs()))
