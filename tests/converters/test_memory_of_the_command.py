"""What `migrate weights` needs beside the largest tensor: the process that writes has no framework in it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from converters import errors
from converters.errors import ConversionError

LIMIT = 300e6
COMMAND = """
import json, sys
from pathlib import Path
from migrate.cli import commands
try:
    commands(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
# Not getrusage: its maximum begins with that of the process which started this one.
(most,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
peak = int(most.split()[1]) * 1024
heavy = {"torch", "jax", "flax", "transformers"} & set(sys.modules)
print(json.dumps([code, peak, sorted(heavy)]), file=sys.stderr)
"""


def measured(*args: str | Path) -> tuple[int, float, list[str]]:
    """The exit code of a command, the bytes that its process took at most, and what it imported."""
    command = [sys.executable, "-c", COMMAND, *map(str, args)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    code, peak, heavy = json.loads(ran.stderr.splitlines()[-1])
    return code, peak, heavy


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    save_file({"head.weight": np.ones((3, 4), "f4"), "head.bias": np.ones(3, "f4")}, path)
    return path


def test_a_small_checkpoint_takes_little(checkpoint: Path, tmp_path: Path) -> None:
    out, mapping = tmp_path / "out.safetensors", tmp_path / "mapping.yaml"
    arguments = ("weights", checkpoint, "-o", out, "--save-mapping", mapping)
    code, peak, heavy = measured(*arguments)
    assert (code, heavy) == (0, [])
    assert peak <= 1.2 * 48 + LIMIT
    # What a mapping file says needs no other process either; the refusal of one comes back whole.
    assert measured("weights", checkpoint, "-o", out, "--force", "--mapping", mapping)[0] == 0
    arguments = ("weights", tmp_path / "missing.safetensors", "-o", out, "--force")
    assert measured(*arguments)[0] == 2


@pytest.mark.parametrize(
    "error",
    [
        errors.CheckpointNotFoundError("nothing\nthere", "look"),
        errors.MappingFileError("map.yaml", ["a", "b"], "mend it"),
        errors.RefusedKeysError("net.pt", 3, (), "say more"),
    ],
)
def test_an_error_comes_out_of_another_process_as_it_went_in(error: ConversionError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
