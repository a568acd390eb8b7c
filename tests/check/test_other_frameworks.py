"""JAX and MLX beside torch: their arrays compile as they do, and a choice of backend imports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file

SCRIPT = """\
import torch
import torch_xla


def score(x, y, backend):
    if {test}:
        import jax

        print(jax)


def keep(x, y, mask):
    import jax.numpy as jnp
    import mlx.core as mx

    x = {made}
    mask = y > 0
    return x[mask]


def main(index):
    model = torch.nn.Linear(3, 3).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in make_loader():
        with torch_xla.step():
            x, y = x.to("xla"), y.to("xla")
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            score(x, y, "torch")
            keep(x, y, None)


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def codes(folder: Path, test: str = "True", made: str = "") -> dict[str, str]:
    script = folder / "train.py"
    text = SCRIPT.format(test=test, made=made or "x")
    if not made:
        text = text.replace("            keep(x, y, None)\n", "")
    script.write_text(text)
    return {hit.code: str(hit.severity) for hit in check_file(script, Config())}


@pytest.mark.parametrize("made", ["jnp.asarray(x)", "mx.array(x)"])
def test_arrays_of_others(tmp_path: Path, made: str) -> None:
    assert "XLA103" not in codes(tmp_path, made=made)


def test_tensors_beside_them(tmp_path: Path) -> None:
    assert "XLA103" in codes(tmp_path, made="x + 1")


@pytest.mark.parametrize(
    ("test", "severity"),
    [
        ('backend == "jax"', "info"),
        ('backend in ("jax", "flax")', "info"),
        ('backend == "torch"', "error"),
        ('backend != "jax"', "error"),
        ("x is None", "error"),
    ],
)
def test_a_choice_of_backend(tmp_path: Path, test: str, severity: str) -> None:
    assert codes(tmp_path, test)["XLA840"] == severity
