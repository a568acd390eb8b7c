"""What importing the package brings in."""

import subprocess
import sys

import converters

HEAVY = ["torch", "jax", "flax", "transformers", "migrate", "shims"]


def imported_after(statement, heavy=HEAVY):
    script = f"{statement}\nimport sys\nprint(*(m for m in {heavy} if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_importing_converters_is_light():
    heavy = [*HEAVY, "numpy"]
    assert imported_after("import converters, converters.errors, converters.atomic", heavy) == []


def test_the_check_above_can_fail():
    assert imported_after("import torch") == ["torch"]
    assert imported_after("from converters import convert", ["numpy"]) == ["numpy"]


def test_every_name_is_there():
    names = ", ".join(converters.__all__)
    assert imported_after(f"from converters import {names}; assert callable(convert)") == []
    assert converters.convert is converters.conversion.convert


def test_a_safetensors_pytree_is_read_without_torch_or_jax(tmp_path):
    statement = (
        "import pathlib, numpy as np\n"
        "from converters import load_pytree\n"
        "from converters.checkpoint import PytreeLeaf, TensorInfo\n"
        "from converters.output import write_pytree\n"
        f"path = pathlib.Path({str(tmp_path / 'x')!r})\n"
        "leaf = PytreeLeaf('params/a', TensorInfo((2,), 'float32'), lambda: np.ones(2, np.float32))\n"
        "write_pytree(path, [leaf], 'safetensors')\n"
        "assert load_pytree(path)['params']['a'].tolist() == [1, 1]"
    )
    assert imported_after(statement) == []
