"""What rounding does on another device, and that a run that measures the noise does as much."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from migrate.prove.record.noise import rounding, summation
from migrate.prove.recording import dtypes
from migrate.quick_xla import FLAGS
from tests.frameworks import in_own_process
from tests.prove.record.test_summation import REPLACED, keep_sums

UNIT = 2.0**-24


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REPLACED:
        monkeypatch.setattr(functional, name, getattr(functional, name))
    keep_sums(monkeypatch)
    torch.manual_seed(0)


def images() -> torch.Tensor:
    """What a convolution makes of strokes on black: half of the numbers of a channel are the same one."""
    strokes = torch.zeros(64, 1, 28, 28)
    strokes[:, :, 8:20, 10:14] = torch.rand(64, 1, 12, 4)
    return functional.conv2d(strokes, torch.randn(16, 1, 5, 5) * 0.2, torch.randn(16) * 0.1)


def normalized(batch: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(batch, None, None, None, None, True)


def off(result: torch.Tensor, exact: torch.Tensor) -> float:
    """In units of float32."""
    return ((result.double() - exact).norm() / exact.norm()).item() / UNIT


@pytest.mark.parametrize("run", [3, 4])
def test_a_variance_loses_the_digits_that_it_loses_on_xla(run: int) -> None:
    """Measured on XLA: 310 units, and 1 of torch's own."""
    batch = images()
    exact = normalized(batch.double())
    assert off(normalized(batch), exact) < 10
    rounding.install(run)
    assert 30 < off(normalized(batch), exact) < 30_000
    assert torch.equal(normalized(batch.double()), exact)


def on_xla(batch: torch.Tensor) -> torch.Tensor:
    import torch_xla

    return normalized(batch.to(torch_xla.device())).cpu()


@pytest.mark.xla
def test_xla_is_off_by_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    # As it is compiled for training: with LLVM's optimizations it adds in another order.
    monkeypatch.setenv(FLAGS, "--xla_backend_optimization_level=3")
    batch = images()
    exact = normalized(batch.double())
    there = in_own_process(on_xla, batch)
    rounding.install(3)
    seen, estimate = off(there, exact), off(normalized(batch), exact)
    assert seen / 4 < estimate < seen * 16


def executed_in_step() -> float:
    """Return the executions in a step of a net, in a run of the original that measures its noise."""
    import torch_xla
    from torch_xla.debug.metrics import metric_data

    rounding.install(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(2, 3, 6, 6))
    net.to(torch_xla.device())
    images = torch.randn(2, 3, 6, 6).to(torch_xla.device())
    torch_xla.sync(wait=True)
    before = (metric_data("ExecuteTime") or (0,))[0]
    functional.cross_entropy(net(images), torch.ones_like(images[:, 0, 0, 0]).long()).backward()
    net(images).mean().backward()
    return float((metric_data("ExecuteTime") or (0,))[0] - before)


@pytest.mark.xla
def test_no_value_is_read_in_a_step_on_xla() -> None:
    """`torch_xla.compile(full_graph=True)` raises where the step runs before its end."""
    assert in_own_process(executed_in_step) == 0


@pytest.mark.parametrize(
    ("torch_tpu", "run", "least"), [(True, 3, 5e-3), (True, 4, 2e-2), (False, 3, 1e-3)]
)
def test_the_gradient_of_a_bias_is_added_up_as_it_is_simulated(
    torch_tpu: bool, run: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured on XLA:CPU: 3.7 % off with torch_tpu; replicas of torch_xla add in float32."""
    monkeypatch.setattr(rounding, "beside_torch_tpu", lambda: torch_tpu)
    bias = torch.zeros(64, dtype=torch.bfloat16, requires_grad=True)
    shape = (32, 28, 64)
    back = torch.randn(shape, dtype=torch.bfloat16)
    exact = back.double().flatten(0, 1).sum(0)

    def gradient() -> torch.Tensor:
        bias.grad = None
        batch, weight = torch.ones(32, 28, 4), torch.ones(64, 4)
        functional.linear(batch.bfloat16(), weight.bfloat16(), bias).backward(back)
        assert bias.grad is not None
        return bias.grad

    assert off(gradient(), exact) * UNIT < 3e-3
    rounding.install(run)
    assert least < off(gradient(), exact) * UNIT < (10 if torch_tpu else 4) * least


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose2d", "linear"])
def test_biases_stand_where_they_stood(name: str) -> None:
    layer = getattr(functional, name)
    batch = {"conv1d": (2, 4, 9), "linear": (2, 5, 4)}.get(name, (2, 4, 9, 9))
    weight = {"conv1d": (6, 4, 3), "linear": (6, 4), "conv2d": (6, 4, 3, 3)}.get(name, (4, 6, 3, 3))
    given = [torch.randn(shape) for shape in (batch, weight, (6,))]
    results = []
    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        inputs = [one.detach().clone().to(dtype).requires_grad_() for one in given]
        result = getattr(functional, name)(*inputs)
        result.sum().backward()
        results.append([result, *(one.grad for one in inputs)])
        rounding.install(3)
    assert layer is not getattr(functional, name)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close([one.float() for one in results[2]], results[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_and_its_gradient_move_by_rounding_and_zeros_stay(dtype: torch.dtype) -> None:
    batch = torch.randn(16, 64, dtype=dtype)
    weight = torch.randn(32, 64, dtype=dtype)
    weight[3] = 0
    results = []
    for _ in range(2):
        given = batch.clone().requires_grad_()
        product = functional.linear(given, weight)
        product.square().sum().backward()
        assert given.grad is not None
        results.append((product.detach(), given.grad))
        rounding.install(3)
    unit = 0.5 * torch.finfo(dtype).eps
    for before, after in zip(*results, strict=True):
        assert 0.2 * unit < off(after, before.double()) * UNIT < 20 * unit
    assert not results[1][0][:, 3].any()


def test_autocast_that_a_proof_switched_off_rounds_as_it_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, weight = torch.randn(16, 64), torch.randn(32, 64)
    before = functional.linear(batch, weight)
    monkeypatch.setattr(dtypes, "_meant", ["float16"])
    rounding.install(3)
    assert off(functional.linear(batch, weight), before.double()) < 20
    rounding.install(3, half=True)
    assert 1e-3 < off(functional.linear(batch, weight), before.double()) * UNIT < 1e-2


def scripted_part(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(functional.conv1d(x, weight), torch.ones(4, 4))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_library_with_scripted_functions_is_imported() -> None:
    """timm scripts some of its activations when it is imported: what is built in has no source."""
    summation.install()
    script = torch.jit.script(scripted_part)
    assert script(torch.ones(2, 3, 6), torch.ones(5, 3, 3)).shape == (2, 5, 4)


def test_traces_and_other_modes_are_left_alone() -> None:
    rounding.install(3)
    layer = nn.Linear(4, 4)
    slopes = torch.func.vmap(torch.func.grad(lambda row: layer(row).square().sum()))
    assert slopes(torch.randn(3, 4)).shape == (3, 4)
    module = nn.BatchNorm1d(4).eval()
    batch = torch.randn(5, 4)
    torch.testing.assert_close(module(batch), batch / (1 + module.eps) ** 0.5)


@pytest.mark.parametrize("run", [6, 7])
def test_weights_walk_by_a_unit_at_each_step_and_alike_on_all_ranks(
    run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Any] = []
    monkeypatch.setattr(rounding, "register_optimizer_step_post_hook", hooks.append)
    rounding.install(run)
    ranks = []
    for _ in range(2):
        rounding.install_in_weights()
        layer = nn.Linear(64, 64)
        nn.init.ones_(layer.weight)
        layer(torch.rand(2, 64)).sum().backward()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
        hooks[-1](optimizer, (), {})
        rounding._off(torch.ones(3), False)  # what a rank draws otherwise
        hooks[-1](optimizer, (), {})
        ranks.append(layer.weight.detach())
    assert torch.equal(*ranks)
    assert 0.2 < off(ranks[0], torch.ones(64, 64).double()) < 4
