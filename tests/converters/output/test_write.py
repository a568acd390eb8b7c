"""What is written is the pytree that numpy makes, in bounded pieces, and flax's own bytes in msgpack."""

import hashlib
import math
import os

import ml_dtypes
import numpy as np
import pytest
from flax import serialization

from converters.checkpoint import Checkpoint, PytreeLeaf, TensorInfo, flatten, nest
from converters.errors import NotFiniteError, OutputError
from converters.layers.join import SUM, Concat, Stack
from converters.layers.layout import Flip, Merge, Part, Permute, Split, chain
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.output import leaves_of, load_pytree, units, write_pytree
from converters.output.joined import Joined
from converters.output.msgpack_layout import msgpack_layout
from converters.output.units import boxes, units_of

T = Permute((1, 0))
ROWS = chain([Split(1, (4, 6)), Permute((2, 1, 0)), Merge(0, (6, 4))])  # moves, then joins axes


class InMemory(Checkpoint):
    """A checkpoint of arrays that counts what is held of it."""

    def __init__(self, arrays):
        self.source = "memory"
        self.arrays = arrays
        self.infos = {
            key: TensorInfo(array.shape, array.dtype.name) for key, array in arrays.items()
        }
        self.released = []

    def read(self, key):
        return self.arrays[key]

    def release(self, key):
        self.released.append(key)


def checkpoint(dtype=np.float32):
    rng = np.random.default_rng(1)
    shapes = {
        "a": (48, 24),
        "b": (48, 24),
        "c": (48, 24),
        "conv": (8, 6, 3, 5),
        "bias": (7,),
        "one": (),
        "none": (0, 3),
    }
    return InMemory({k: rng.standard_normal(s).astype(dtype) for k, s in shapes.items()})


PIECES = {
    "params/kept": ([Piece("a")], None),
    "params/scalar": ([Piece("one")], None),
    "params/empty": ([Piece("none")], None),
    "params/bias": ([Piece("bias")], None),
    "params/transposed": ([Piece("a", T)], None),
    "params/rows": ([Piece("a", ROWS)], None),
    "params/heads": ([Piece("a", chain([T, Split(1, (6, 8))]))], None),
    "params/conv": ([Piece("conv", Permute((2, 3, 1, 0)))], None),
    "params/flipped": ([Piece("conv", chain([Permute((2, 3, 0, 1)), Flip((0, 1))]))], None),
    "params/part": ([Piece("a", T, Part(0, 16, 32))], None),
    "params/stack": ([Piece("a", T), Piece("b", T), Piece("c", T)], Stack(0)),
    "params/stack_kept": ([Piece("a"), Piece("b"), Piece("c")], Stack(0)),
    "params/stack_rows": ([Piece("a", ROWS), Piece("b", ROWS)], Stack(0)),
    "params/stack1": ([Piece("a", T), Piece("b", T), Piece("c", T)], Stack(1)),
    "params/stack2": ([Piece("a"), Piece("b")], Stack(2)),
    "params/concat0": ([Piece("a"), Piece("b", part=Part(0, 3, 20)), Piece("c")], Concat(0)),
    "params/concat1": (
        [Piece("a"), Piece("b", part=Part(1, 3, 20)), Piece("c")],
        Concat(1),
    ),
    "params/sum": ([Piece("a", T), Piece("b", T)], SUM),
}


def planned(source):
    found = []
    for path, (pieces, join) in PIECES.items():
        shapes = [piece.shape(source.infos[piece.key].shape) for piece in pieces]
        dtype = source.infos[pieces[0].key].dtype
        made = {} if join is None else {"join": join}
        shape = shapes[0] if join is None else join.shape(shapes)
        found.append(PlannedLeaf(path, TensorInfo(shape, dtype), tuple(pieces), **made))
    return found


def expected(source):
    return {leaf.path: leaf.read(source.read) for leaf in planned(source)}


@pytest.fixture(params=[None, 256], ids=["slabs of 16 MB", "slabs of 256 bytes"])
def slabs(request, monkeypatch):
    """Slabs of their usual size, and so small that every array has several."""
    if request.param:
        monkeypatch.setattr(units, "SLAB_BYTES", request.param)
        monkeypatch.setattr(units, "_SLAB_LIMIT", 2 * request.param)
        monkeypatch.setattr(units, "_SLAB_ROWS", 3)


@pytest.mark.parametrize("form", ["safetensors", "msgpack"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "complex64"])
def test_every_way_of_making_an_array(tmp_path, slabs, form, dtype):
    source = checkpoint(getattr(ml_dtypes, dtype, dtype))
    written = write_pytree(tmp_path / "x", leaves_of(planned(source), source), form)
    loaded = flatten(load_pytree(tmp_path / "x"))
    wanted = expected(source)
    assert loaded.keys() == wanted.keys() == {leaf.path for leaf in written.leaves}
    for path, array in wanted.items():
        assert loaded[path].dtype == array.dtype
        assert loaded[path].shape == array.shape
        assert loaded[path].tobytes() == np.ascontiguousarray(array).tobytes(), path
    assert set(source.released) == set(source.arrays) - {"none"}
    assert os.listdir(tmp_path) == ["x"]


def test_a_part_of_a_join_is_what_numpy_cuts_from_it():
    source = checkpoint()
    for leaf in planned(source):
        whole = leaf.read(source.read)
        if not whole.size:
            continue
        joined = Joined(leaf, source)
        assert joined.shape == whole.shape
        cuts = [slice(side // 3, side - side // 4) for side in whole.shape]
        assert np.array_equal(joined[tuple(cuts)], whole[tuple(cuts)])


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("shape", [(), (5,), (40, 30), (3, 40, 30), (2, 2, 100), (7, 1, 3, 50)])
def test_slabs_cover_the_bytes_once_and_in_order(slabs, shape, contiguous):
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    end = 0
    for start, box in boxes(shape, 4, contiguous=contiguous):
        part = np.asarray(array[box])
        assert start == end
        assert part.reshape(-1)[0] == start // 4
        assert array[box].size == 0 or np.ptp(part) == part.size - 1
        end += part.nbytes
    assert end == array.nbytes


def test_no_copy_is_made_of_what_only_joins_axes():
    source = checkpoint()
    for leaf in leaves_of(planned(source), source):
        if leaf.path in ("params/rows", "params/heads", "params/stack_rows"):
            for unit in units_of(leaf):
                array = unit.open()
                assert any(np.shares_memory(array, held) for held in source.arrays.values())


def test_flax_writes_the_same_msgpack(tmp_path):
    source = checkpoint()
    leaves = leaves_of(planned(source), source)
    many = [
        PytreeLeaf(f"many/{'k' * (8 * n)}{n}", leaves[0].info, leaves[0].read) for n in range(40)
    ]
    write_pytree(tmp_path / "x", [*leaves, *many], "msgpack")
    tree = nest((leaf.path, leaf.read()) for leaf in [*leaves, *many])
    assert (tmp_path / "x").read_bytes() == serialization.msgpack_serialize(tree)


@pytest.mark.parametrize("size", [1, 8, 120, 255, 256, 65_500, 65_536, 70_000])
def test_flax_writes_the_same_for_every_size(tmp_path, size):
    array = np.arange(size, dtype=np.uint8)
    leaf = PytreeLeaf("a", TensorInfo((size,), "uint8"), lambda: array)
    write_pytree(tmp_path / "x", [leaf], "msgpack")
    assert (tmp_path / "x").read_bytes() == serialization.msgpack_serialize({"a": array})


def test_flax_cuts_large_arrays_in_the_same_chunks(tmp_path, monkeypatch, slabs):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 1001)
    monkeypatch.setattr(
        "converters.output.write.msgpack_layout",
        lambda leaves, **given: msgpack_layout(leaves, **given, chunk_bytes=1001),
    )
    source = checkpoint()
    leaves = leaves_of(planned(source), source)
    write_pytree(tmp_path / "x", leaves, "msgpack")
    tree = nest((leaf.path, np.array(leaf.read(), order="C")) for leaf in leaves)
    assert (tmp_path / "x").read_bytes() == serialization.msgpack_serialize(tree)
    loaded = flatten(load_pytree(tmp_path / "x"))
    assert all(np.array_equal(loaded[path], array) for path, array in expected(source).items())


def test_a_cast_on_the_way(tmp_path, slabs):
    source = checkpoint()
    wanted = [
        PlannedLeaf(leaf.path, TensorInfo(leaf.info.shape, "bfloat16"), leaf.pieces, leaf.join)
        for leaf in planned(source)
    ]
    leaves = leaves_of(wanted, source, cast=True)
    write_pytree(tmp_path / "x", leaves, "safetensors")
    loaded = flatten(load_pytree(tmp_path / "x"))
    for path, array in expected(source).items():
        assert loaded[path].dtype == ml_dtypes.bfloat16
        assert np.array_equal(loaded[path], array.astype(ml_dtypes.bfloat16))
    assert all(leaf.read().dtype == ml_dtypes.bfloat16 for leaf in leaves)
    with pytest.raises(RuntimeError, match="announced"):
        write_pytree(tmp_path / "y", leaves_of(wanted, source), "safetensors")


def test_what_is_not_finite_is_counted_or_fails(tmp_path, slabs, refused):
    source = checkpoint()
    source.arrays["a"][3, 5] = np.nan
    source.arrays["b"][0, :2] = -np.inf
    leaves = leaves_of(planned(source), source)
    written = write_pytree(tmp_path / "x", leaves, "safetensors")
    counted = {leaf.path: leaf.not_finite for leaf in written.not_finite}
    assert counted == {
        path: int((~np.isfinite(array)).sum())
        for path, array in expected(source).items()
        if not np.isfinite(array).all()
    }
    assert len(counted) > 5
    with refused(NotFiniteError, "y is not written", "params/concat0", "more"):
        write_pytree(tmp_path / "y", leaves, "safetensors", fail_on_not_finite=True)
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("form", ["safetensors", "msgpack"])
def test_digests_and_progress(tmp_path, form, slabs):
    source = checkpoint()
    seen = []
    written = write_pytree(
        tmp_path / "x",
        leaves_of(planned(source), source),
        form,
        digests=True,
        progress=lambda done, total: seen.append((done, total)),
    )
    for leaf in written.leaves:
        array = np.array(expected(source)[leaf.path], order="C")
        assert leaf.sha256 == hashlib.sha256(array.tobytes()).hexdigest()
        assert (leaf.shape, leaf.dtype, leaf.nbytes) == (array.shape, "float32", array.nbytes)
    assert seen == sorted(seen)
    assert seen[-1] == (written.nbytes, written.nbytes)


def test_a_disk_without_room_is_told_at_once(tmp_path, refused):
    read = []
    huge = PytreeLeaf("a", TensorInfo((10**5, 10**7), "float32"), lambda: read.append(1))
    for form in ("safetensors", "msgpack", "orbax"):
        with refused(OutputError, "x needs 4000.", "are free"):
            write_pytree(tmp_path / "x", [huge], form)
    assert os.listdir(tmp_path) == []
    assert read == []


def test_two_conversions_to_one_output(tmp_path, refused):
    source = checkpoint()
    leaves = leaves_of(planned(source), source)

    def meanwhile(done, total):
        with refused(OutputError, "another conversion is writing"):
            write_pytree(tmp_path / "x", leaves, "safetensors")

    write_pytree(tmp_path / "x", leaves, "safetensors", progress=meanwhile)
    assert os.listdir(tmp_path) == ["x"]
