"""Values that methods of Accelerate and transformers return: tensors of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

GATHERED = """\
import torch
from accelerate import Accelerator


def main(loader):
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = model(batch).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({{"loss": accelerator.{method}({value}).mean().item()}})
"""
GENERATED = """\
import torch


@torch.no_grad()
def rollout(model, tokenizer, task):
    inputs = tokenizer([task], return_tensors="pt").to("cuda")
    ids = model.generate(**inputs, do_sample=True, max_new_tokens=64)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[ids == tokenizer.eos_token_id] = False
    return ids, mask
"""


def codes(text: str) -> set[tuple[str, int]]:
    found = check_source(parse(text.encode(), Path("script.py")), Config())
    return {(finding.code, finding.line) for finding in found}


@pytest.mark.parametrize("method", ["gather", "gather_for_metrics", "reduce"])
def test_a_gathered_loss_is_read_at_every_step(method: str) -> None:
    assert ("XLA201", 15) in codes(GATHERED.format(method=method, value="loss"))


def test_a_gathered_number_is_not() -> None:
    found = codes(GATHERED.format(method="gather", value="torch.ones(3)"))
    assert "XLA201" not in dict(found)


def test_generated_tokens_are_on_the_device() -> None:
    found = codes(GENERATED)
    assert {("XLA120", 7), ("XLA103", 9)} <= found
