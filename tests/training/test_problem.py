"""Problems: estimates against autograd, whole pools, modules, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from methods import bce, classification, network
from torch import nn

from fairbound import (
    BatchSpec,
    Dataset,
    Problem,
    Sampler,
    Split,
    initial_points,
    load_flat,
    make_functional,
    run,
)
from fairbound.algorithms import SGD, SSLALM, StochasticGhost
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.constraints._constraint_set import combine
from fairbound.constraints._notions import demographic_parity, pairwise_loss_parity
from fairbound.data._samplers import SamplerStack
from fairbound.training._functional import zero_last_layer

F64 = torch.float64


def batch_of(sampler: Sampler):
    batch = SamplerStack([sampler], 1, None).block(0, 1)[0]
    return type(batch)(batch.objective[0, 0], batch.cells[0, 0])


def direct(problem: Problem, x: torch.Tensor, batch) -> torch.Tensor:
    """[f, c] of accuracy equality from the definition."""
    data = problem.data
    f = bce(problem.forward(x, data.X[batch.objective]), data.y[batch.objective]).mean()
    a, b = (bce(problem.forward(x, data.X[rows]), data.y[rows]).mean() for rows in batch.cells)
    return torch.stack([f, a - b - 0.01, b - a - 0.01])


def test_estimate_equals_autograd() -> None:
    problem, sampler, x0 = classification()
    x, batch = x0[0], batch_of(sampler)
    e = problem.sample(problem.gather(batch, "fc"))(x)
    expected = direct(problem, x, batch)
    jacobian = torch.autograd.functional.jacobian(lambda point: direct(problem, point, batch), x)
    w = torch.tensor([0.3, -2.0], dtype=F64)
    assert torch.allclose(torch.cat([e.f.reshape(1), e.c]), expected)
    assert torch.allclose(e.grad(f=1.0), jacobian[0])
    assert torch.allclose(e.grad(f=0.5, c=w), 0.5 * jacobian[0] + w @ jacobian[1:])
    assert torch.allclose(e.jac(), jacobian[1:])


def test_what_is_not_read_is_nan_and_costs_no_rows() -> None:
    problem, sampler, x0 = classification()
    batch = batch_of(sampler)
    seen = []
    watched = Problem(
        lambda x, X: (seen.append(len(X)), problem.forward(x, X))[1],
        bce,
        problem.constraint,
        problem.data,
    )
    only_f = watched.sample(watched.gather(batch, "f"))(x0[0])
    only_c = watched.sample(watched.gather(batch, "c"))(x0[0])
    assert seen == [6, 10]  # 6 objective rows; 2 cells of 5
    assert only_f.c.isnan().all()
    assert only_c.f.isnan()
    both = problem.sample(problem.gather(batch, "fc"))(x0[0])
    assert torch.allclose(only_f.grad(f=1.0), both.grad(f=1.0))
    w = torch.ones(2, dtype=F64)
    assert torch.allclose(
        only_c.grad(c=w * torch.tensor([1.0, 0.5])), both.grad(c=w * torch.tensor([1.0, 0.5]))
    )
    assert torch.allclose(only_c.jac(), both.jac())
    # a method that reads what it did not declare cannot go unnoticed
    assert only_f.grad(f=1.0, c=w).isnan().all()
    assert only_f.jac().isnan().all()
    assert only_c.grad(f=1.0).isnan().all()


def test_the_jacobian_takes_one_row_per_cell_not_per_constraint() -> None:
    groups = torch.arange(60) % 5
    data = Dataset(torch.randn(60, 2, dtype=F64), torch.ones(60, dtype=F64))
    constraint = pairwise_loss_parity(5, bound=0.1).bind(groups)  # 20 rows on 5 cells
    problem = Problem(lambda x, X: X @ x, bce, constraint, data)
    sampler = Sampler(Split.all_train(60), constraint.cells, BatchSpec(4, 4))
    e = problem.sample(problem.gather(batch_of(sampler), "fc"))(torch.ones(2, dtype=F64))
    assert e.jac().shape == (20, 2)
    assert torch.linalg.matrix_rank(e.jac()) <= 2
    by_rows = e._replace(cells=None).jac()
    assert torch.allclose(e.jac(), by_rows)


def test_evaluate_equals_the_definition_for_every_run() -> None:
    problem, _, x0 = classification()
    rows = torch.arange(0, 240, 2)
    found = problem.evaluate(x0, rows, at_once=100)
    losses = torch.stack([bce(problem.forward(x, problem.data.X), problem.data.y) for x in x0])
    groups = problem.data.groups["group"]
    chosen = torch.zeros(240, dtype=torch.bool)
    chosen[rows] = True
    assert torch.allclose(found.loss, losses[:, rows].mean(1))
    gap = losses[:, (groups == 0) & chosen].mean(1) - losses[:, (groups == 1) & chosen].mean(1)
    assert torch.allclose(found.c, torch.stack([gap - 0.01, -gap - 0.01], 1))


def test_evaluate_counts_repeated_examples_and_takes_masks() -> None:
    problem, _, x0 = classification()
    losses = bce(problem.forward(x0[0], problem.data.X), problem.data.y)
    rows = torch.tensor([0, 0, 0, 1, 2, 3])  # groups 1, 1, 1, 0, 0, 1
    gap = losses[[1, 2]].mean() - losses[[0, 0, 0, 3]].mean()
    assert torch.allclose(
        problem.evaluate(x0[0], rows).c[0], torch.stack([gap - 0.01, -gap - 0.01])
    )
    mask = torch.arange(240) < 50
    assert torch.equal(problem.evaluate(x0, mask).c, problem.evaluate(x0, torch.arange(50)).c)
    with pytest.raises(ValueError, match=r"no examples.*evaluate"):
        problem.evaluate(x0, torch.arange(0))


def test_evaluate_names_a_cell_without_examples() -> None:
    problem, _, x0 = classification()
    only_first = (problem.data.groups["group"] == 0).nonzero().flatten()
    with pytest.raises(ValueError, match=r"cell '1'.*none"):
        problem.evaluate(x0, only_first)


def test_a_constraint_written_as_a_function() -> None:
    """The norm of the weights and a rate of one group, beside a named notion; Ghost evaluates it
    batch by batch."""
    problem, _, x0 = classification()
    groups = problem.data.groups["group"]
    own = FunctionConstraint(
        lambda batch: torch.stack(
            [batch.parameters[0].square().sum() / 9 - 1, 0.8 - torch.sigmoid(batch.outputs).mean()]
        ),
        ("weight norm", "rate of group 1 at least .8"),
        Cells((Cell("1", 1),)),
    )
    combined = combine(own, demographic_parity(2, bound=0.3)).bind(groups)
    problem = Problem(problem.forward, bce, combined, problem.data)
    sampler = Sampler(Split.all_train(240), combined.cells, BatchSpec(8, 8))
    for method, steps in (
        (SSLALM(tau=0.03, eta=0.1), 400),
        (StochasticGhost(alpha=0.3, p0=0.6, cap=2, decay=0.0), 40),
    ):
        result = run(problem, method, sampler.seeded(0, 1), 2 * x0[:2], steps).result()
        before, after = (problem.evaluate(x, torch.arange(240)).c for x in (2 * x0[:2], result.x))
        assert before[:, 1].min() > 0.1
        assert (after[:, :2] < 0.05).all()


# Modules ------------------------------------------------------------------------------------------


def test_flat_parameters_and_back() -> None:
    module = network()
    forward, x = make_functional(module)
    X = torch.randn(7, 4)
    assert torch.allclose(forward(x, X), module(X).squeeze(-1))
    assert forward.n == 37
    load_flat(module, 2 * x)
    assert torch.equal(make_functional(module)[1], 2 * x)
    with pytest.raises(ValueError, match=r"37 parameters, got.*shape"):
        load_flat(module, x[:5])


def test_the_paper_s_net_has_2753_parameters() -> None:
    """9-64-32-1; the 194 in the paper's text is a miscount."""
    net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    assert make_functional(net)[0].n == 2753


def test_initial_points_are_torch_s_own_and_leave_the_global_stream_alone() -> None:
    torch.manual_seed(5)
    expected = make_functional(network())[1]
    torch.manual_seed(9)
    untouched = torch.rand(3)
    torch.manual_seed(9)
    points = initial_points(network, [5, 6])
    assert torch.equal(points[0], expected)
    assert not torch.equal(points[0], points[1])
    assert torch.equal(torch.rand(3), untouched)


def test_a_last_layer_of_0_is_strictly_feasible_for_gaps() -> None:
    """Every group has the loss log 2: c = -bound. The other layers are those of the seed."""
    problem, _, x0 = classification(bound=0.01)
    points = initial_points(network, range(8), feasible="zero-last-layer").to(x0.dtype)
    found = problem.evaluate(points, torch.arange(problem.data.rows))
    assert torch.allclose(found.loss, torch.full_like(found.loss, math.log(2)), rtol=1e-12)
    assert torch.allclose(found.c, torch.full_like(found.c, -0.01), rtol=1e-9)
    assert torch.equal(points[:, :-7], x0[:, :-7])  # 6 weights and a bias
    assert not points[:, -7:].any()


def test_no_last_layer_to_set_to_0_is_a_sentence() -> None:
    normed = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    with pytest.raises(ValueError, match=r"1 \(LayerNorm\), not a Linear"):
        zero_last_layer(normed)
    with pytest.raises(ValueError, match=r"\(NoneType\), not a Linear"):
        zero_last_layer(nn.ReLU())
    frozen = nn.Linear(3, 1)
    frozen.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"bias.*frozen; unfreeze"):
        zero_last_layer(frozen)
    with pytest.raises(ValueError, match=r'"zero-last-layer" or None, got True'):
        initial_points(network, [0], feasible=True)  # type: ignore[arg-type]


def test_frozen_parameters_stay_as_they_are() -> None:
    problem, sampler, _ = classification(torch.float32)
    module = network()
    module[0].weight.requires_grad_(False)
    kept = module[0].weight.clone()
    forward, x = make_functional(module)
    assert x.shape == (37 - 24,)
    result = run(
        Problem(forward, bce, problem.constraint, problem.data), SGD(), sampler, x, 20
    ).result()
    load_flat(module, result.x[0])
    assert torch.equal(module[0].weight, kept)
    assert not torch.equal(make_functional(network())[1][:13], result.x[0])


def test_random_operations_inside_a_model_are_a_sentence() -> None:
    problem, sampler, x0 = classification()
    noisy = Problem(
        lambda x, X: nn.functional.dropout(problem.forward(x, X), 0.5),
        bce,
        problem.constraint,
        problem.data,
    )
    with pytest.raises(ValueError, match="draws random numbers"):
        run(noisy, SGD(), sampler.seeded(0, 1), x0[:2], 5)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False), nn.Dropout(0.3)]
)
def test_layers_with_state_are_refused_in_stacked_runs(layer: nn.Module) -> None:
    problem, sampler, _ = classification(torch.float32)
    module = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 1))
    forward, x = make_functional(module)
    stateful = Problem(forward, bce, problem.constraint, problem.data)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match=rf"{type(layer).__name__}.*eval mode"):
        run(stateful, SGD(), sampler.seeded(0, 1), x, 5)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    module.eval()
    if isinstance(layer, nn.BatchNorm1d) and not layer.track_running_stats:
        return  # it mixes the rows of a batch in eval mode too; the caller has been told
    assert torch.isfinite(run(stateful, SGD(), sampler.seeded(0, 1), x, 5).result().x).all()


# What is refused ----------------------------------------------------------------------------------


def test_bad_datasets_are_sentences() -> None:
    X, y = torch.randn(5, 2), torch.ones(5)
    X[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"X has 1 NaN.*\(columns WKHP; .*row 3\)"):
        Dataset(X, y, names=["AGEP", "WKHP"])
    X = torch.randn(5, 2)
    with pytest.raises(ValueError, match=r"5 rows.*has 4"):
        Dataset(X, y[:4])
    with pytest.raises(ValueError, match=r"'sex' has shape"):
        Dataset(X, y, {"sex": torch.zeros(3, dtype=torch.long)})
    with pytest.raises(ValueError, match="whole numbers"):
        Dataset(X, y, {"sex": torch.zeros(5)})
    with pytest.raises(ValueError, match="no rows"):
        Dataset(X[:0], y[:0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"loss": lambda out, y: bce(out, y).mean()},
            r"must be per example; 3 examples gave shape \(\)",
        ),
        (
            {"loss": lambda out, y: (out[:, None] - y) ** 2},
            r"must be per example; 3 examples gave shape \(3, 3\)",
        ),
        ({"forward": lambda x, X: (X @ x[:4]).sum()}, "one output per example"),
        (
            {"forward": lambda x, X: X @ x[:9]},
            r"the model does not accept these arguments \(\(37,\) float64, \(3, 4\)",
        ),
        (
            {"loss": lambda out, y: bce(out[:, None], y)},
            r"the loss does not accept these arguments \(\(3,\) float64",
        ),
    ],
)
def test_bad_shapes_are_sentences(change: dict, sentence: str) -> None:
    problem, sampler, x0 = classification()
    parts = {
        "forward": problem.forward,
        "loss": bce,
        "constraint": problem.constraint,
        "data": problem.data,
    } | change
    with pytest.raises(ValueError, match=sentence):
        run(Problem(**parts), SGD(), sampler, x0[0], 5)


def test_wrong_precision_length_or_function_value_is_a_sentence() -> None:
    problem, sampler, x0 = classification()
    with pytest.raises(ValueError, match=r"torch.float64.*torch.float32; use data.to"):
        run(problem, SGD(), sampler, x0[0].float(), 5)
    with pytest.raises(ValueError, match=r"37 parameters.*starting point"):
        run(problem, SGD(), sampler, x0[0][:5], 5)
    own = FunctionConstraint(
        lambda batch: batch.parameters[0][:3], ("a", "b"), problem.constraint.cells
    )
    with pytest.raises(ValueError, match="values of shape"):
        run(Problem(problem.forward, bce, own, problem.data), SSLALM(), sampler, x0[0], 5)
