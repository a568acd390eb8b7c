"""Texts of a port's files."""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
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


def test_the_test_of_a_file_in_a_package_imports_its_package(tmp_path: Path) -> None:
    folder, port = tmp_path / "pack_of_test" / "deep", tmp_path / "out" / "net"
    folder.mkdir(parents=True)
    port.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder.parent / "sizes.py").write_text("WIDTH = 3\n")
    lines = ("from torch import nn", "from ..sizes import WIDTH", "", "net = nn.Linear(WIDTH, 1)")
    (folder / "net.py").write_text("\n".join(lines))
    how = texts.OriginalTexts(f"{folder / 'net.py'}:net", port, None, weights=False)
    (port / "parity.py").write_text(texts.test_text("Net", how, 0, False, (), (), (), "linen"))
    path = list(sys.path)
    try:
        assert runpy.run_path(str(port / "parity.py"))["original"]().in_features == 3
    finally:
        sys.path[:] = path


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
