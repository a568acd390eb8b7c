"""What `--try` changes of torch code, in the process that runs it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from migrate.fit.lowered.changed import change
from tests.fit.nets import Block, Blocks, Net


@pytest.fixture(autouse=True)
def calls_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is changed is undone."""
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)


def _gradients(net: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net(torch.randn(4, 256)).square().mean().backward()
    return [one.grad.clone() for one in net.parameters() if one.grad is not None]


def test_blocks_run_again_for_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    net, ran = Blocks(), []
    forward = Block.forward

    def counted(block: Block, x: torch.Tensor) -> torch.Tensor:
        ran.append(block)
        return forward(block, x)

    monkeypatch.setattr(Block, "forward", counted)
    wanted = _gradients(net)
    assert len(ran) == 4
    net.zero_grad()
    made = change("remat")
    assert not made()
    found = _gradients(net)
    assert made()
    assert len(ran) == 4 + 2 * 4
    assert all(map(torch.equal, found, wanted))
    with torch.no_grad():  # nothing is kept there
        net(torch.randn(4, 256))
    assert len(ran) == 4 + 2 * 4 + 4


def test_a_net_without_blocks_is_as_it_was() -> None:
    made = change("remat")
    _gradients(Net())
    assert not made()


def test_mixed_precision_is_that_of_xla() -> None:
    made = change("bf16")
    try:
        Net()(torch.randn(4, 256))
        assert torch.is_autocast_enabled("xla")
        assert torch.get_autocast_dtype("xla") == torch.bfloat16
        assert made()
    finally:
        torch.set_autocast_enabled("xla", False)
        torch.set_autocast_cache_enabled(True)
