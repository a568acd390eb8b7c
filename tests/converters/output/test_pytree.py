"""Pytrees on disk: bit for bit through both formats, whole or not there at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from converters.checkpoint import PytreeLeaf, TensorInfo, flatten, nest
from converters.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    OutputError,
    UnsupportedDtypeError,
)
from converters.output import load_pytree, write_pytree

KILLED_WRITE = """
import os, pathlib, signal, sys
import numpy as np
from converters.checkpoint import PytreeLeaf, TensorInfo
from converters.output import write_pytree

info = TensorInfo((100_000,), "float32")
first = PytreeLeaf("params/a", info, lambda: np.ones(100_000, np.float32))
second = PytreeLeaf("params/b", info, lambda: os.kill(os.getpid(), signal.SIGKILL))
write_pytree(pathlib.Path(sys.argv[1]), [first, second], "safetensors")
"""
FORMATS = pytest.mark.parametrize("form", ["safetensors", "msgpack"])


def arrays():
    rng = np.random.default_rng(0)
    return {
        "params/dense/kernel": rng.standard_normal((3, 5)).astype(np.float32),
        "params/dense/transposed": rng.standard_normal((3, 5)).astype(np.float32).T,
        "params/double": rng.standard_normal(4),
        "params/every_bfloat16": np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16),
        "params/every_e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        "params/every_e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2),
        "buffers/flag": np.array([True, False, True]),
        "buffers/scalar": np.array(-7, dtype=np.int64),
        "buffers/empty": np.zeros((0, 3), np.float16),
    }


def leaf(path, array):
    return PytreeLeaf(path, TensorInfo(array.shape, array.dtype.name), lambda: array)


def leaves():
    return [leaf(path, array) for path, array in arrays().items()]


def bits(array):
    return np.ascontiguousarray(array).tobytes()


@FORMATS
def test_every_bit_comes_back(tmp_path, form):
    path = tmp_path / "x"
    write_pytree(path, leaves(), form)
    loaded = flatten(load_pytree(path))
    assert loaded.keys() == arrays().keys()
    for name, array in arrays().items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert bits(loaded[name]) == bits(array)


def test_the_safetensors_library_reads_it(tmp_path):
    path = tmp_path / "x.safetensors"
    write_pytree(path, leaves(), "safetensors")
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "flax"}
        assert set(file.keys()) == set(arrays())
        kernel = file.get_tensor("params/dense/transposed").numpy()
    np.testing.assert_array_equal(kernel, arrays()["params/dense/transposed"])


def test_nest_and_flatten_are_inverse():
    flat = {"params/a/kernel": 1, "params/a/bias": 2, "batch_stats/b/mean": 3}
    assert nest(flat.items()) == {
        "params": {"a": {"kernel": 1, "bias": 2}},
        "batch_stats": {"b": {"mean": 3}},
    }
    assert flatten(nest(flat.items())) == flat


@FORMATS
def test_an_error_while_writing_leaves_nothing(tmp_path, form):
    def fails():
        raise ZeroDivisionError

    stops = PytreeLeaf("params/z", TensorInfo((2,), "float32"), fails)
    with pytest.raises(ZeroDivisionError):
        write_pytree(tmp_path / "x", [*leaves(), stops], form)
    assert list(tmp_path.iterdir()) == []


def test_an_array_that_is_not_as_announced_is_never_completed(tmp_path):
    liar = PytreeLeaf("params/a", TensorInfo((2,), "float32"), lambda: np.ones(3, np.float32))
    with pytest.raises(RuntimeError, match="announced"):
        write_pytree(tmp_path / "x", [liar], "safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_while_writing_leaves_nothing_that_loads(tmp_path, refused):
    script = tmp_path / "killed.py"
    script.write_text(KILLED_WRITE)
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "x.safetensors"
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run(
        [sys.executable, script, output], env=os.environ | {"PYTHONPATH": str(root)}, check=False
    )
    assert run.returncode == -signal.SIGKILL
    left = sorted(folder.iterdir())  # it was killed in the midst of writing
    assert [path.name for path in left] == [".x.safetensors.partial", f"{left[0].name}.journal"]
    assert left[0].stat().st_size > 800_000
    for path in left:
        with refused(CheckpointDamagedError):
            load_pytree(path)
    write_pytree(output, leaves(), "safetensors")  # and it can be run again
    assert "params" in load_pytree(output)


@FORMATS
def test_every_truncation_is_refused(tmp_path, form, refused):
    small = [leaf(path, array) for path, array in arrays().items() if array.size < 20]
    write_pytree(tmp_path / "whole", small, form)
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with refused(CheckpointDamagedError, "cut"):
            load_pytree(path)


def test_what_is_no_pytree(tmp_path, refused):
    with refused(CheckpointNotFoundError, "does not exist"):
        load_pytree(tmp_path / "gone")
    (tmp_path / "number").write_bytes(b"\x07")  # a whole msgpack document
    with refused(CheckpointDamagedError, "not a pytree"):
        load_pytree(tmp_path / "number")


@FORMATS
def test_an_existing_output_is_kept_unless_overwritten(tmp_path, form, refused):
    path = tmp_path / "x"
    path.write_text("precious")
    with refused(OutputError, "exists already"):
        write_pytree(path, leaves(), form)
    assert path.read_text() == "precious"
    write_pytree(path, leaves(), form, overwrite=True)
    assert "params" in load_pytree(path)
    assert os.listdir(tmp_path) == ["x"]


def test_an_output_that_cannot_be(tmp_path, refused):
    with refused(OutputError, "does not exist"):
        write_pytree(tmp_path / "gone" / "x", leaves(), "safetensors")
    with refused(OutputError, "is a folder"):
        write_pytree(tmp_path, leaves(), "safetensors", overwrite=True)
    with refused(OutputError, "cannot be written"):
        write_pytree(tmp_path / ("x" * 300), leaves(), "safetensors")


def test_an_element_type_that_safetensors_lacks(tmp_path, refused):
    array = np.ones(2, np.complex128)
    with refused(UnsupportedDtypeError, "params/a", "complex128", "msgpack"):
        write_pytree(tmp_path / "x", [leaf("params/a", array)], "safetensors")
    write_pytree(tmp_path / "x", [leaf("params/a", array)], "msgpack")
    assert load_pytree(tmp_path / "x")["params"]["a"].dtype == np.complex128
