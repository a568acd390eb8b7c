"""Sums and losses of a run that measures the noise are rounded as on XLA, one number after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from migrate.prove.record.noise import rounding
from tests.frameworks import in_own_process
from tests.prove.record.test_summation import REPLACED, keep_sums

Reduce = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

REDUCTIONS: dict[str, Reduce] = {
    "mse": lambda x, y: functional.mse_loss(x, y),
    "l1, sum": lambda x, y: functional.l1_loss(x, y, reduction="sum"),
    "binary": lambda x, y: functional.binary_cross_entropy_with_logits(x, y),
    "mean": lambda x, y: (x - y).square().mean(),
    "sum": lambda x, y: torch.sum(x * y),
}


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REPLACED:
        monkeypatch.setattr(functional, name, getattr(functional, name))
    keep_sums(monkeypatch)


def pixels() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 32, 32, 32, generator=draw)
    return x, y


def values(device: str = "cpu") -> dict[str, float]:
    x, y = (tensor.to(device) for tensor in pixels())
    return {name: reduce(x, y).item() for name, reduce in REDUCTIONS.items()}


def errors(reduce: Reduce) -> tuple[float, float]:
    """Return the relative errors before and after the sums are replaced."""
    x, y = pixels()
    exact = reduce(x.double(), y.double()).item()
    before = reduce(x, y).item() / exact - 1
    rounding.install(3)
    return before, reduce(x, y).item() / exact - 1


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_over_many_numbers_is_off_as_on_xla(name: str) -> None:
    before, after = errors(REDUCTIONS[name])
    assert abs(before) < 2e-7
    assert 1e-6 < abs(after) < 1e-5


def test_long_axes_are_summed_in_windows() -> None:
    """Measured on XLA: 1.3e-5 of the loss; one number after the other throughout would be off by 1e-2."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 32, 3, 256, 256, generator=draw)
    exact = functional.mse_loss(x.double(), y.double()).item()
    rounding.install(3)
    assert 5e-6 < abs(functional.mse_loss(x, y).item() / exact - 1) < 3e-5


def on_xla() -> dict[str, float]:
    import torch_xla

    return values(str(torch_xla.device()))


@pytest.mark.xla
@pytest.mark.long
def test_xla_is_off_by_the_same_or_less() -> None:
    """The same with AVX-512 and SSE; less with AVX2, for which XLA adds several numbers at once."""
    there = in_own_process(on_xla)
    x, y = (tensor.double() for tensor in pixels())
    exact = {name: reduce(x, y).item() for name, reduce in REDUCTIONS.items()}
    rounding.install(3)
    here = values()
    assert here.keys() == there.keys()
    for name in here.keys() - {"binary"}:  # XLA's logarithms differ too
        low, high = sorted([here[name], exact[name]])
        assert low * (1 - 5e-7) <= there[name] <= high * (1 + 5e-7), name


def test_gradients_and_other_reductions_stay() -> None:
    x, y = pixels()
    labels = torch.arange(32) % 32
    rows = x[0].clone().requires_grad_()
    results = []
    for _ in range(2):
        loss = functional.cross_entropy(rows, labels, weight=y[0, 0])
        (gradient,) = torch.autograd.grad(loss, rows)
        results.append(
            [
                *(loss.detach(), gradient, torch.zeros(3).mean(), torch.zeros(0).sum()),
                *(x.sum((1, 2)), x.mean(-1, True), torch.mean(x, dim=(0, 2)), x.sum(dim=1)),
                torch.arange(5).sum(),
                functional.mse_loss(x, y, reduction="none"),
                functional.kl_div(x.log(), y, reduction="batchmean"),
                functional.mse_loss(x, x),
                functional.gaussian_nll_loss(x, y, x),
            ]
        )
        rounding.install(3)
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=0)
    assert torch.equal(results[1][1], results[0][1])
