"""XLA110: host numbers in a dictionary that a function of the script returns: `out["count"]`."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

SCRIPT = """
import torch


def forward(model, x):
    loss = model(x).square().mean()
    return {"loss": loss, "count": x.shape[0], "scale": SCALE}


def main():
    model = torch.nn.Linear(4, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        out = forward(model, torch.randn(8, 4).to("xla"))
        BEFORE
        if TEST:
            print("many")
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


def lines(tmp_path: Path, test: str, before: str = "pass", scale: str = "2.0") -> int:
    script = tmp_path / "script.py"
    text = SCRIPT.replace("TEST", test).replace("BEFORE", before).replace("SCALE", scale)
    script.write_text(text)
    return len(check_paths([script], Config(select=("XLA110",))).findings)


@pytest.mark.parametrize("test", ['out["count"] > 4', 'out["scale"] != 1.0'])
def test_a_number_is_known_to_python(tmp_path: Path, test: str) -> None:
    """The function returns one dictionary, with a size or a constant at that key: nothing is read."""
    assert lines(tmp_path, test) == 0


@pytest.mark.parametrize(
    ("test", "before", "scale"),
    [
        ('out["loss"] > 4', "pass", "2.0"),
        ('out["scale"] > 4', "pass", "loss * 2"),
        ('out["scale"] > 4', "pass", "loss.item()"),
        ('out["scale"] > 4', 'out["scale"] = out["loss"]', "2.0"),
        ('out["scale"] > 4', 'out["scale"] += out["loss"]', "2.0"),
        ('out["scale"] > 4', "out.update(scale=out['loss'])", "2.0"),
        ('out["scale"] > 4', "for key in ('scale',):\n            out[key] = out['loss']", "2.0"),
    ],
)
def test_a_tensor_at_the_key_is_reported(
    tmp_path: Path, test: str, before: str, scale: str
) -> None:
    assert lines(tmp_path, test, before, scale) == 1
