"""The real pretrained model there and back, its optimizer's state too."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from converters import convert, plan
from converters.checkpoint import open_checkpoint
from converters.optimizer.convert import convert_optimizer, optimizer_to_torch
from converters.reverse import to_torch


def test_there_and_back(minilm_folder, tmp_path):
    done = convert(minilm_folder, output=tmp_path / "minilm.flax.safetensors")
    back = to_torch(done.output, output=tmp_path / "back.safetensors")
    assert back.counts["divided"] == 0
    original = open_checkpoint(minilm_folder)
    restored = open_checkpoint(tmp_path / "back.safetensors")
    assert list(restored.infos) == list(original.infos)
    assert dict(restored.infos) == dict(original.infos)
    for key in original.infos:
        assert np.array_equal(
            restored.read(key).reshape(-1).view(np.uint8),
            original.read(key).reshape(-1).view(np.uint8),
        ), key


@pytest.mark.long
def test_its_optimizer_there_and_back(minilm_folder, tmp_path):
    model = AutoModel.from_pretrained(minilm_folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    path = tmp_path / "opt.safetensors"
    state = optimizer.state_dict()
    made = plan(minilm_folder)
    done = convert_optimizer(state, plan=made, model=model, output=path)
    assert done.arrays == 2 * len(state["state"]) + 1
    back = optimizer_to_torch(path)
    assert back["param_groups"] == state["param_groups"]
    for position, entries in state["state"].items():
        for name, value in entries.items():
            assert torch.equal(back["state"][position][name], value)
