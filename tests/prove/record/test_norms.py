"""The norms of the original: as accurate as on an accelerator, on the CPU too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import prove
from migrate.prove.record import norms
from migrate.prove.settings import Settings
from tests.waiting import LIMIT

# Called by the names that torch has at the time.
NORMS: dict[str, Callable[[Any], Any]] = {
    "vector_norm": lambda x: torch.linalg.vector_norm(x),
    "vector_norm of a dimension": lambda x: torch.linalg.vector_norm(x, 2, 0),
    "linalg.norm": lambda x: torch.linalg.norm(x),
    "torch.norm": lambda x: torch.norm(x),
    "method": lambda x: x.norm(2),
    "foreach": lambda x: torch._foreach_norm([x, torch.ones(2)])[0],
    "foreach, order named": lambda x: torch._foreach_norm([x], ord=2)[0],
}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    for module, name in (
        (torch.linalg, "vector_norm"),
        (torch.linalg, "norm"),
        (torch, "_foreach_norm"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    return torch.randn(4_000_000, generator=torch.Generator().manual_seed(0))


def off(norm: Callable[[Any], Any], tensor: torch.Tensor) -> float:
    return abs(norm(tensor).item() / tensor.double().square().sum().sqrt().item() - 1)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_accurate(name: str, large: torch.Tensor) -> None:
    assert off(NORMS[name], large) > 1e-5, "torch has mended its kernel: norms.py can go"
    norms.install()
    assert off(NORMS[name], large) < 2e-7
    assert NORMS[name](large).dtype == torch.float32


def test_other_orders_types_and_gradients_stay(large: torch.Tensor) -> None:
    norms.install()
    few = torch.tensor([3.0, -4.0], requires_grad=True)
    assert torch.linalg.vector_norm(few, float("inf")).item() == 4.0
    assert torch.linalg.vector_norm(few, dtype=torch.float64).dtype == torch.float64
    assert torch._foreach_norm([few], 1)[0].item() == 7.0
    torch.linalg.vector_norm(few).backward()
    assert few.grad is not None
    assert few.grad.tolist() == pytest.approx([0.6, -0.8])
    assert torch.linalg.vector_norm(torch.ones(4, dtype=torch.float64)).item() == 2.0


CLIPPED = """
import torch
import torch.nn as nn

def train(device):
    torch.manual_seed(1)
    words = nn.Embedding(60000, 32).to(device)
    head = nn.Linear(32, 60000, bias=False).to(device)
    both = [*words.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(both, lr=0.5)
    for step in range(2):
        text = torch.randint(60000, (64,)).to(device)
        loss = nn.functional.cross_entropy(head(words(text)), text)
        loss.backward()
        nn.utils.clip_grad_norm_(both, MOST)
        optimizer.step()
        optimizer.zero_grad()
        SYNC
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("most", "verdict", "said"),
    [("0.1", ProofVerdict.MATCH, "agree"), ("0.1001", ProofVerdict.DIFFERS, "gradient norm")],
)
def test_clipping_of_a_large_vocabulary(
    most: str, verdict: ProofVerdict, said: str, tmp_path: Path
) -> None:
    before, after = tmp_path / "train.py", tmp_path / "train_xla.py"
    before.write_text(CLIPPED.replace("MOST", "0.1").replace("SYNC", "") + "train('cuda')\n")
    program = CLIPPED.replace("MOST", most).replace("SYNC", "torch_xla.sync()")
    after.write_text(f"import torch_xla\n{program}train('xla')\n")
    proof = prove(before, after, replicas=1, settings=Settings(timeout=LIMIT))
    assert proof.verdict is verdict, proof.message
    assert said in proof.message
