"""Outputs that are folders: sharded safetensors, and orbax checkpoints that orbax itself restores."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax
import pytest
from safetensors import safe_open

from converters.checkpoint import PytreeLeaf, TensorInfo, flatten, nest
from converters.errors import CheckpointDamagedError, OutputError, UnsupportedDtypeError
from converters.output import load_pytree, orbax_layout, write_pytree
from converters.output.partial import partial_path

ROOT = Path(__file__).resolve().parents[3]


def arrays():
    rng = np.random.default_rng(0)
    return {
        "params/dense/kernel": rng.standard_normal((48, 20)).astype(np.float32),
        "params/dense/transposed": rng.standard_normal((48, 20)).astype(np.float32).T,
        "params/double": rng.standard_normal(4),
        "params/bfloat16": np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16),
        "params/e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        "params/e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2),
        "buffers/flag": np.array([True, False, True]),
        "buffers/scalar": np.array(-7, dtype=np.int64),
        "buffers/counts": np.arange(7, dtype=np.uint32),
    }


def leaf(path, array):
    return PytreeLeaf(path, TensorInfo(array.shape, array.dtype.name), lambda: array)


def leaves():
    return [leaf(path, array) for path, array in arrays().items()]


def require_equal(tree):
    found = flatten(tree)
    assert found.keys() == arrays().keys()
    for path, array in arrays().items():
        assert found[path].dtype == array.dtype
        assert found[path].shape == array.shape
        assert np.asarray(found[path]).tobytes() == np.ascontiguousarray(array).tobytes()


FOLDERS = pytest.mark.parametrize(
    ("form", "options"), [("safetensors", {"shard_bytes": 50_000}), ("orbax", {})]
)


@FOLDERS
def test_every_bit_comes_back(tmp_path, form, options):
    written = write_pytree(tmp_path / "x", leaves(), form, digests=True, **options)
    require_equal(load_pytree(tmp_path / "x"))
    assert os.listdir(tmp_path) == ["x"]
    assert {leaf.path for leaf in written.leaves} == set(arrays())
    assert all(leaf.sha256 for leaf in written.leaves)
    assert written.nbytes == sum(array.nbytes for array in arrays().values())


def test_shards_are_hugging_faces(tmp_path):
    write_pytree(tmp_path / "x", leaves(), "safetensors", shard_bytes=5000)
    index = json.loads((tmp_path / "x" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays().values())
    names = sorted(set(index["weight_map"].values()))
    assert names == [f"model-{n:05}-of-00004.safetensors" for n in range(1, 5)]
    for name in names:
        with safe_open(tmp_path / "x" / name, framework="pt") as file:
            held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert set(held) == {key for key, file in index["weight_map"].items() if file == name}
        assert len(held) == 1 or sum(array.nbytes for array in held.values()) <= 5000


def test_what_other_formats_do_not_have(tmp_path, refused):
    for form in ("msgpack", "orbax"):
        with refused(OutputError, "--max-shard-size needs safetensors"):
            write_pytree(tmp_path / "x", leaves(), form, shard_bytes=50)
    with refused(OutputError, "above 0"):
        write_pytree(tmp_path / "x", leaves(), "safetensors", shard_bytes=0)
    with refused(OutputError, "only orbax output can be sharded"):
        write_pytree(tmp_path / "x", leaves(), "safetensors", cuts={})


def test_orbax_restores_it(tmp_path, monkeypatch):
    monkeypatch.setattr(orbax_layout, "_CHUNK_BYTES", 1000)  # so that arrays have several chunks
    write_pytree(tmp_path / "x", leaves(), "orbax")
    assert len(list((tmp_path / "x" / "params.dense.kernel").glob("[0-9]*"))) == 4
    require_equal(orbax.PyTreeCheckpointer().restore(tmp_path / "x"))
    with orbax.StandardCheckpointer() as standard:
        require_equal(standard.restore(tmp_path / "x"))
        target = nest((path, np.zeros_like(array)) for path, array in arrays().items())
        require_equal(standard.restore(tmp_path / "x", target))


def test_not_finite_numbers_of_all_chunks_are_counted(tmp_path):
    array = np.zeros((8, 6), np.float32)
    array[:, 1] = np.nan
    written = write_pytree(tmp_path / "x", [leaf("a", array)], "orbax", cuts={"a": (4, 3)})
    assert [(found.path, found.not_finite, found.shape) for found in written.leaves] == [
        ("a", 8, (8, 6))
    ]
    assert len(list((tmp_path / "x" / "a").glob("[0-9]*"))) == 12
    assert np.array_equal(load_pytree(tmp_path / "x")["a"], array, equal_nan=True)


def test_what_orbax_cannot_hold(tmp_path, refused):
    with refused(OutputError, "params/a", "no elements"):
        write_pytree(tmp_path / "x", [leaf("params/a", np.zeros((0, 3)))], "orbax")
    with refused(OutputError, "a.b/c", "the same name"):
        both = [leaf("a/b/c", np.zeros(3)), leaf("a.b/c", np.zeros(3))]
        write_pytree(tmp_path / "x", both, "orbax")
    with refused(UnsupportedDtypeError, "float8_e8m0fnu"):
        array = np.zeros(3, ml_dtypes.float8_e8m0fnu)
        write_pytree(tmp_path / "x", [leaf("a", array)], "orbax")
    assert os.listdir(tmp_path) == []


@FOLDERS
def test_only_an_output_of_ours_is_replaced(tmp_path, refused, form, options):
    precious = tmp_path / "x" / "precious"
    precious.parent.mkdir()
    precious.write_text("text")
    with refused(OutputError, "something else"):
        write_pytree(tmp_path / "x", leaves(), form, overwrite=True, **options)
    assert precious.read_text() == "text"
    write_pytree(tmp_path / "y", [leaf("a", np.zeros(3))], form, **options)
    with refused(OutputError, "exists already"):
        write_pytree(tmp_path / "y", leaves(), form, **options)
    write_pytree(tmp_path / "y", leaves(), form, overwrite=True, **options)
    require_equal(load_pytree(tmp_path / "y"))
    (tmp_path / "file").write_text("text")
    write_pytree(tmp_path / "file", leaves(), form, overwrite=True, **options)
    require_equal(load_pytree(tmp_path / "file"))
    assert sorted(os.listdir(tmp_path)) == ["file", "x", "y"]
    with refused(OutputError, "is a folder"):
        write_pytree(tmp_path / "y", leaves(), "msgpack", overwrite=True)


@FOLDERS
def test_a_folder_that_is_no_pytree(tmp_path, refused, form, options):
    with refused(CheckpointDamagedError, "is not a pytree"):
        load_pytree(tmp_path)


KILLED = """
import os, pathlib, signal, sys
import numpy as np
from converters.checkpoint import PytreeLeaf, TensorInfo
from converters.output import write_pytree

def leaf(number):
    def read():
        if number == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((100, 1000), number, np.float32).T
    return PytreeLeaf(f"params/{number}", TensorInfo((1000, 100), "float32"), read)

options = {"shard_bytes": 10**6} if sys.argv[2] == "safetensors" else {}
leaves = [leaf(n) for n in range(9)]
done = write_pytree(pathlib.Path(sys.argv[1]), leaves, sys.argv[2], resume=True, **options)
print(done.resumed)
"""


@pytest.mark.parametrize("form", ["safetensors", "orbax"])
def test_a_kill_leaves_nothing_that_loads_and_is_resumed(tmp_path, refused, form):
    def run(output, killed):
        return subprocess.run(
            [sys.executable, "-c", KILLED, output, form, str(killed)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run(tmp_path / "x", 7).returncode == -signal.SIGKILL
    assert not (tmp_path / "x").exists()
    for path in [partial_path(tmp_path / "x"), *partial_path(tmp_path / "x").glob("*")]:
        with refused(CheckpointDamagedError):
            load_pytree(path)
    resumed = run(tmp_path / "x", 99)
    assert int(resumed.stdout) > 0
    assert int(run(tmp_path / "whole", 99).stdout) == 0
    assert sorted(os.listdir(tmp_path)) == ["whole", "x"]
    files = sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file())
    for path in files:
        same = tmp_path / "x" / path.relative_to(tmp_path / "whole")
        assert same.read_bytes() == path.read_bytes()
    assert len(files) == len([path for path in (tmp_path / "x").rglob("*") if path.is_file()])
