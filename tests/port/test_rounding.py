"""A port whose error in bfloat16 is too large is written with layers that round once."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.port.pipeline import PortOptions, port_model
from migrate.progress import no_progress

_NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 32)

    def forward(self, x):
        return torch.sigmoid(4 * self.fc(x))
"""


@pytest.mark.long
def test_a_port_that_rounds_too_often_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_NET)
    options = PortOptions(
        tmp_path, "net", ("x=float32[64,16]",), comparisons=frozenset({"bfloat16"})
    )
    done = port_model(f"{tmp_path}/net.py:Net", options, "", no_progress)
    assert [one.verdict for one in done.numerics] == ["match", "match"]
    assert all(one.port <= 1.05 * one.original for one in done.numerics)
    source = (done.folder / "modeling.py").read_text()
    assert "self.fc = DenseRoundedOnce(" in source
    assert "rounded_once(jax.nn.sigmoid)" in source
    assert "times the original's" in (done.folder / "README.md").read_text()
