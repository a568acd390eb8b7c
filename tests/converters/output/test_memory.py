"""The memory of a conversion does not grow with the checkpoint: 1.2 x the largest tensor + 300 MB at most."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.output import load_pytree

ROOT = Path(__file__).resolve().parents[3]
CHILD = """
import sys
from pathlib import Path
from converters.checkpoint import TensorInfo, open_checkpoint
from converters.layers.layout import UNCHANGED, Permute
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.output import leaves_of, write_pytree

def peak():
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
    return int(status.split()[0]) * 1024

source = open_checkpoint(Path(sys.argv[1]))
planned = []
for number, (key, info) in enumerate(source.infos.items()):
    layout = Permute((1, 0)) if number % 2 else UNCHANGED
    shape = layout.shape(info.shape)
    planned.append(PlannedLeaf(f"params/{key}", TensorInfo(shape, info.dtype), (Piece(key, layout),)))
before = peak()
write_pytree(Path(sys.argv[2]), leaves_of(planned, source), sys.argv[3])
print(before, peak())
"""
MEGA = 10**6


def peaks(tmp_path, form):
    """The peak of a process that converts, before it does and in all."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "in.safetensors", tmp_path / "out", form],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, peak = map(int, done.stdout.split())
    return before, peak


@pytest.mark.parametrize("form", ["safetensors", "msgpack", "orbax"])
@pytest.mark.long_cases("msgpack")
def test_the_peak_is_bounded_by_the_largest_tensor(tmp_path, form):
    # 400 MB, of which every second tensor is transposed.
    side = 3536
    array = np.arange(side * side, dtype=np.uint32).reshape(side, side)
    assert 49 * MEGA < array.nbytes < 51 * MEGA
    arrays = {f"w{number}": array + np.uint32(number) for number in range(8)}
    save_file(arrays, tmp_path / "in.safetensors")
    before, peak = peaks(tmp_path, form)
    assert peak <= 1.2 * array.nbytes + 300 * MEGA
    # Of the checkpoint and the buffers, whatever was imported before.
    assert peak - before <= 1.2 * array.nbytes + 200 * MEGA
    loaded = load_pytree(tmp_path / "out")["params"]
    for number in range(8):
        wanted = arrays[f"w{number}"]
        assert np.array_equal(loaded[f"w{number}"], wanted.T if number % 2 else wanted)


def test_one_large_tensor_stays_within_the_limit(tmp_path):
    """On a quiet machine it takes 245 MB; how soon the kernel takes pages back depends on the load."""
    side = 10_000
    array = np.arange(side * side, dtype=np.uint32).reshape(side, side)
    assert array.nbytes == 400 * MEGA
    save_file({"a": np.zeros(3, np.float32), "b": array}, tmp_path / "in.safetensors")
    before, peak = peaks(tmp_path, "safetensors")
    assert peak - before <= 1.2 * array.nbytes + 300 * MEGA
    assert np.array_equal(load_pytree(tmp_path / "out")["params"]["b"], array.T)
