"""Arrays of numpy.savez: mapped or inflated, in every order; never a pickle."""

import io
import os
import random
import zipfile

import numpy as np
import pytest

from converters.checkpoint import open_checkpoint
from converters.errors import (
    CheckpointDamagedError,
    CheckpointHoldsCodeError,
    NotAStateDictError,
    UnsupportedDtypeError,
)

ARRAYS = {
    "layer.weight": np.arange(15, dtype=np.float32).reshape(3, 5),
    "fortran": np.asfortranarray(np.arange(15.0).reshape(3, 5)),
    "big": np.arange(4, dtype=">i4"),
    "half": np.ones(3, np.float16),
    "complex": np.array([1 + 2j, 3j], np.complex64),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 3)),
    "scalar": np.float32(7),
}


class Code:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read(tmp_path, save):
    save(tmp_path / "x.npz", **ARRAYS)
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert list(checkpoint.infos) == list(ARRAYS)
    for key, array in ARRAYS.items():
        read = checkpoint.read(key)
        np.testing.assert_array_equal(read, array)
        assert read.dtype.isnative
        assert read.dtype.name == checkpoint.infos[key].dtype
        checkpoint.release(key)


def test_texts_and_dates_are_told(tmp_path):
    np.savez(
        tmp_path / "x.npz", w=np.ones(2), name=np.array("x"), day=np.array(["2026-11-21"], "M8[D]")
    )
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert list(checkpoint.infos) == ["w"]
    assert checkpoint.others == {
        "name": "array of texts or dates scalar",
        "day": "array of texts or dates 1",
    }


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_objects_are_refused_and_not_run(tmp_path, save, refused):
    canary = tmp_path / "canary"
    save(tmp_path / "x.npz", w=np.ones(2), x=np.array([Code(canary)], dtype=object))
    with refused(CheckpointHoldsCodeError, "x.npz: x", "Python objects", "nothing was executed"):
        open_checkpoint(tmp_path / "x.npz")
    assert not canary.exists()
    np.load(tmp_path / "x.npz", allow_pickle=True)["x"]
    assert canary.exists()  # the file is indeed loaded


@pytest.mark.parametrize(
    "array", [np.zeros(2, "V2"), np.zeros(2, [("a", "f4")]), np.zeros(2, np.longdouble)]
)
def test_types_that_torch_lacks_are_refused(tmp_path, array, refused):
    np.savez(tmp_path / "x.npz", x=array)
    with refused(UnsupportedDtypeError, "x.npz: x has the element type"):
        open_checkpoint(tmp_path / "x.npz")


def test_no_numbers(tmp_path, refused):
    np.savez(tmp_path / "x.npz", x=np.array("text"))
    with refused(NotAStateDictError, "no arrays of numbers"):
        open_checkpoint(tmp_path / "x.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_thirty_cuts(tmp_path, save, refused):
    save(tmp_path / "whole.npz", **ARRAYS)
    whole = (tmp_path / "whole.npz").read_bytes()
    chance = random.Random(2)
    for _ in range(30):
        (tmp_path / "cut.npz").write_bytes(whole[: chance.randrange(1, len(whole))])
        with refused(CheckpointDamagedError, "cut.npz"):
            open_checkpoint(tmp_path / "cut.npz")


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "has 8 bytes, its shape 12"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "damaged header"),
        ("{'descr': '<f4', 'fortran_order': 1, 'shape': (2,), }", "damaged header"),
        ("__import__('os').system('true')", "damaged header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1 1" * 3000 + "x), }", "damaged"),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1" * 9000 + "), }",
            "damaged header",
        ),
        ("(" * 9000, "damaged header"),
    ],
)
def test_damaged_headers(tmp_path, header, part, refused):
    text = header.encode()
    array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 8
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", array)
    with refused(CheckpointDamagedError, "x.npz: x", part):
        open_checkpoint(tmp_path / "x.npz")


def test_a_member_that_is_no_array(tmp_path, refused):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with refused(CheckpointDamagedError, "readme.txt is not an array"):
        open_checkpoint(tmp_path / "x.npz")


def test_an_array_whose_content_changed_is_refused(tmp_path, refused):
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros(1000, np.float32))
    content = bytearray(file.getvalue())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        content[archive.infolist()[0].header_offset + 60 + 20] ^= 0x55
    (tmp_path / "x.npz").write_bytes(content)
    with refused(CheckpointDamagedError, "x.npz"):
        open_checkpoint(tmp_path / "x.npz").read("x")
