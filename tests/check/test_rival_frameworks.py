"""JAX and TensorFlow in the process that uses torch_xla, through whatever files."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file

TRAIN = """\
{head}
import torch
import torch_xla


def main(index):
    model = torch.nn.Linear(2, 1).to("xla")
    {body}


if __name__ == "__main__":
    torch_xla.launch(main)
"""
FILES = {
    "data.py": "import jax.numpy as jnp\n\n\ndef load():\n    return jnp.zeros(3)\n",
    "lazy.py": "def export(x):\n    import jax\n\n    return jax.device_get(x)\n",
    "through.py": "import data\n",
    "typed.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import jax\n\n\n"
        "def show(x: jax.Array):\n    print(x)\n"
    ),
    "trees.py": "import optax\n",
    "frames.py": "import tensorflow as tf\n",
    "quiet.py": 'import os\n\nos.environ["JAX_PLATFORMS"] = "cpu"\n\nimport jax\n',
    "optional.py": "try:\n    import jax\nexcept ImportError:\n    jax = None\n",
}


def found(folder: Path, head: str, body: str = "print(model)") -> list[tuple[int, str, str]]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    script = folder / "train.py"
    script.write_text(TRAIN.format(head=head, body=body))
    findings = check_file(script, Config())
    return [(one.line, one.message, str(one.severity)) for one in findings if one.code == "XLA840"]


@pytest.mark.parametrize(
    ("head", "body", "line", "where"),
    [
        ("import jax", "print(model)", 1, ""),
        ("from flax import serialization", "print(model)", 1, ""),
        ("import data", "print(model)", 1, "leads to data.py,"),
        ("import through", "print(model)", 1, "leads to data.py,"),
        ("import trees", "print(model)", 1, "leads to trees.py,"),
        ("import frames", "print(model)", 1, "leads to frames.py,"),
        ("import lazy", "lazy.export(model)", 8, "export (lazy.py)"),
        ("from lazy import export", "export(model)", 8, "export (lazy.py)"),
        ("import os", "import jax", 8, ""),
    ],
)
def test_the_import_is_reported_where_the_program_leads_to_it(
    tmp_path: Path, head: str, body: str, line: int, where: str
) -> None:
    ((at, message, severity),) = found(tmp_path, head, body)
    assert at == line
    assert where in message
    assert severity == "error"


@pytest.mark.parametrize(
    "head",
    [
        "import lazy",
        "import typed",
        "import quiet",
        'import os\n\nos.environ["JAX_PLATFORMS"] = "cpu"\nimport data',
    ],
)
def test_what_the_process_does_not_import_or_keeps_on_the_host_is_right(
    tmp_path: Path, head: str
) -> None:
    assert found(tmp_path, head) == []


def test_an_optional_import_is_information(tmp_path: Path) -> None:
    ((_, _, severity),) = found(tmp_path, "import optional")
    assert severity == "info"
