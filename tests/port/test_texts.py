"""Texts of a port's files."""

from __future__ import annotations

import dataclasses
import os
import runpy
from pathlib import Path

import torch

from migrate.port import texts


@dataclasses.dataclass
class Config:
    """A configuration of a script, which it saves beside the weights."""

    width: int = 4


class Runs:
    """An object whose reading would run code."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_a_checkpoint_with_a_config_is_read_without_its_code(tmp_path: Path) -> None:
    weights = torch.nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.AdamW(weights.parameters())
    saved = {
        "model": weights.state_dict(),
        "optimizer": optimizer.state_dict(),
        "cfg": Config(),
        "more": Runs(tmp_path / "ran"),
    }
    for name, zipped in (("new.pt", True), ("old.pt", False)):
        file = tmp_path / name
        torch.save(saved, file, _use_new_zipfile_serialization=zipped)
        how = texts.OriginalTexts("net.py:Net", tmp_path, file, weights=True)
        text = texts.test_text("Net", how, 0, True, (), (), (), "linen")
        (tmp_path / "parity.py").write_text(text)
        names = runpy.run_path(str(tmp_path / "parity.py"))
        read = torch.load(file, weights_only=False, pickle_module=names["tensors_only"])
        for key, tensor in weights.state_dict().items():
            assert torch.equal(read["model"][key], tensor)
        assert type(read["cfg"]).__name__ == "Config"
        assert not isinstance(read["cfg"], Config)
        assert not (tmp_path / "ran").exists()
