"""What a script draws on its device is the same on both sides of a proof."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import Proof, prove
from migrate.prove.record import seeds
from migrate.prove.settings import SEED, Settings
from shims import activate
from tests.waiting import LIMIT

DRAWING = """
import torch
import torch.nn as nn
from torch import randn

def noise(x, generator):
    device = x.device
    rows = torch.randperm(6, device=device)
    wide = torch.randn_like(x.t()).t()
    kept = torch.empty(6, 1, device=device).bernoulli_(0.8)
    chosen = torch.multinomial(torch.ones(8, device=device), 3)
    coins = torch.bernoulli(torch.full((6, 8), 0.5, device=device))
    drawn = randn(6, 8, device=device) + torch.rand(6, 8, device=device, generator=generator)
    drawn += torch.randint(0, 9, (6, 1), device=device) + torch.rand_like(x).half().float()
    drawn += torch.normal(x.detach(), 0.5) + torch.normal(0.0, 1.0, (6, 8), device=device)
    drawn = drawn + torch.nn.functional.gumbel_softmax(x.detach()) + coins
    drawn.t().add_(torch.empty(8, 6, device=device).exponential_())
    wide.t().mul_(torch.empty(6, 8, device=device).t().uniform_())
    return (wide + drawn * kept)[rows] * chosen.float().sum()

def masked(x):
    return x * torch.empty_like(x).bernoulli_(0.5)

def train(device, seed_device, checkpoint):
    torch.manual_seed(1)
    seed_device(5)
    generator = torch.Generator(device='cpu').manual_seed(3)
    with torch.device(device):
        body = nn.Linear(8, 8)
    nn.init.trunc_normal_(body.weight, std=0.1)
    rnn = nn.LSTM(8, 8, num_layers=2, dropout=0.5).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *rnn.parameters()], lr=1e-4)
    for step in range(2):
        x = body(torch.randn(6, 8).to(device))
        x = checkpoint(masked, x, use_reentrant=True)
        x = rnn(nn.functional.dropout(x, 0.25))[0]
        with torch.random.fork_rng():
            torch.manual_seed(7)
            x = x + torch.randn_like(x)
        loss = (x + noise(x, generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        SYNC
"""
ORIGINAL = f"""{DRAWING.replace("SYNC", "pass")}
from torch.utils.checkpoint import checkpoint
train('cuda', torch.cuda.manual_seed, checkpoint)
"""
REWRITTEN = f"""{DRAWING.replace("SYNC", "torch_xla.sync()")}
import torch_xla
from torch_xla.utils.checkpoint import checkpoint
train('xla', torch_xla.manual_seed, checkpoint)
"""


def proved(folder: Path, **settings: bool) -> Proof:
    original, rewritten = folder / "train.py", folder / "train_xla.py"
    original.write_text(ORIGINAL)
    rewritten.write_text(REWRITTEN)
    return prove(original, rewritten, replicas=1, settings=Settings(timeout=LIMIT, **settings))


@pytest.mark.xla
@pytest.mark.long
def test_draws_on_the_device_are_equal(tmp_path: Path) -> None:
    proof = proved(tmp_path)
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert proof.max_loss_difference is not None
    assert proof.max_loss_difference < 1e-6
    assert any(note.startswith("dropout with p=0.5 was switched off") for note in proof.notes)


@pytest.mark.long
def test_without_it_they_are_not(tmp_path: Path) -> None:
    assert proved(tmp_path, deterministic=False).verdict is ProofVerdict.DIFFERS


@pytest.mark.parametrize(
    ("chosen", "expected"), [("", [0, 0]), ("1", [1, 1]), ("0,1", [0, 0]), ("3,2", [3, 2])]
)
def test_a_gpu_that_a_process_has_chosen_has_the_seed_of_its_number(
    chosen: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    generators = (torch.Generator(), torch.Generator())
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(seeds, "_by_script", [])
    monkeypatch.setenv(activate.BACKEND, "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    for generator in generators:
        generator.manual_seed(SEED)
    seeds.spread_chosen()
    assert [generator.initial_seed() - SEED for generator in generators] == expected
