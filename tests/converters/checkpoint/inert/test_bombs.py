"""Files that are small and would make much: each is refused, or read in seconds and little memory."""

import argparse
import io
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from converters.checkpoint import open_checkpoint
from converters.checkpoint.formats.torch_names import find_name
from converters.checkpoint.inert.records import PickleError, Record
from converters.checkpoint.inert.unpickler import Unpickler
from converters.errors import CheckpointDamagedError, ConversionError
from tests.waiting import LIMIT

RECORD = b"cm\nRecord\n)\x81"


def load(data):
    return Unpickler(data, 0, find_name).load()


def test_records_nested_deeply_are_read():
    depth = 200_000
    read = load(b"\x80\x02" + (RECORD + b"}X\x01\0\0\0a") * depth + b"N" + b"sb" * depth + b".")
    for _ in range(depth):
        assert type(read) is Record
        read = read.state["a"]
    assert read is None


def test_ten_thousand_levels_in_a_checkpoint(tmp_path):
    data = pickle.dumps({"w": np.ones((2, 3)), "x": argparse.Namespace(a=77)}, 2)
    assert data.count(b"K\x4d") == 1
    deep = (RECORD + b"}X\x01\0\0\0a") * 10_000 + b"N" + b"sb" * 10_000
    path = tmp_path / "x.pkl"
    path.write_bytes(data.replace(b"K\x4d", deep))
    checkpoint = open_checkpoint(path)
    assert list(checkpoint.infos) == ["w"]
    assert checkpoint.unbuilt == ("argparse.Namespace", "m.Record")


MEASURED = """
import resource, sys
from pathlib import Path
import torch
from converters.checkpoint import open_checkpoint
from converters.errors import ConversionError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

before = peak()
try:
    open_checkpoint(Path(sys.argv[1]))
except ConversionError as error:
    print(error)
print("MB", peak() - before)
"""


def entries():
    """A record of ten million entries."""
    keys = b"".join(b"J" + number.to_bytes(4, "little") + b"N" for number in range(100_000))
    return b"\x80\x02" + RECORD + b"(" + keys * 100 + b"u."


BOMBS = {
    "a record of ten million entries": entries,
    "ten million records": lambda: b"\x80\x02cm\nR\nq\0" + b"h\0)\x81" * 10_000_000 + b".",
    "ten million dicts": lambda: b"\x80\x02" + b"}" * 10_000_000 + b".",
    "ten million sets": lambda: b"\x80\x04" + b"\x8f" * 10_000_000 + b".",
    "ten million tuples": lambda: b"\x80\x02K\x01" + b"\x85" * 10_000_000 + b".",
    "ten million marks": lambda: b"\x80\x02" + b"(" * 10_000_000 + b".",
    "ten million memories": lambda: b"\x80\x04N" + b"\x94" * 10_000_000 + b".",
    "the arguments of a million calls": lambda: b"\x80\x02cm\nR\nq\0(" + b"N" * 1_000_000 + b"tq\x010"
    + b"h\0h\x01R0" * 1_000_000 + b".",
    "the state of a million records": lambda: b"\x80\x02cm\nR\nq\0(" + b"N" * 100_000 + b"lq\x010"
    + b"h\0)\x81h\x01b0" * 1_500_000 + b".",
    "lists that double": lambda: b"\x80\x02]q\0" + (b"]q\x01(" + b"h\0" * 200 + b"eq\0") * 200_000 + b".",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("make", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_in_little_memory(tmp_path, make):
    path = tmp_path / "x.pkl"
    path.write_bytes(make())
    command = [sys.executable, "-c", MEASURED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    *said, megabytes = done.stdout.splitlines()
    assert said, "it was read"
    assert int(megabytes.split()[1]) < 700


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1 << 40,), "f4"), ((1 << 20, 1 << 20), "f8"), ((1 << 62,), "i1")]
)
def test_an_array_that_claims_terabytes_is_refused(shape, dtype):
    class Claims:
        def __reduce__(self):
            build, start, (version, _, *rest) = np.ones(3, dtype).__reduce__()
            return build, start, (version, shape, *rest)

    with pytest.raises(PickleError, match="an array"):
        load(pickle.dumps(Claims()))


def test_an_array_of_objects_claims_nothing():
    array = np.array([1, 2, None], dtype=object)
    build, start, (version, _, *rest) = array.__reduce__()

    class Claims:
        def __reduce__(self):
            return build, start, (version, (1 << 50,), *rest)

    assert load(pickle.dumps(Claims())).items == [1, 2, None]


def test_a_nested_file_holds_no_other(tmp_path):
    inner = pickle.dumps({"a": torch.ones(2)})
    call = b"\x80\x04\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93"
    legacy = io.BytesIO()
    torch.save({"a": 1}, legacy, _use_new_zipfile_serialization=False)
    for data in (inner, call + b"B" + len(inner).to_bytes(4, "little") + inner + b"\x85R."):
        path = tmp_path / "x.pkl"
        path.write_bytes(call + b"B" + len(data).to_bytes(4, "little") + data + b"\x85R.")
        with pytest.raises(CheckpointDamagedError, match=r"not of torch\.save|has no storage"):
            open_checkpoint(path)


def test_a_nested_file_is_not_read_again_and_again():
    legacy = io.BytesIO()
    torch.save(list(range(10_000)), legacy, _use_new_zipfile_serialization=False)
    data = legacy.getvalue()
    from converters.checkpoint.formats.legacy_file import find

    call = b"\x80\x02ctorch.storage\n_load_from_bytes\nq\0B" + len(data).to_bytes(4, "little")
    again = call + data + b"q\x01" + b"0h\0h\x01\x85R" * 1000 + b"."
    with pytest.raises(PickleError, match="copies its values"):
        Unpickler(again, 0, find).load()


def test_a_deflated_pickle_is_small(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + b"}" * (1 << 25) + b".")
    with pytest.raises(ConversionError):
        open_checkpoint(tmp_path / "x.pt")


def test_tuples_of_one_hash_are_no_keys():
    """The hash of a tuple is no secret: with numbers of 61 bits any number of them have the same."""
    with pytest.raises(PickleError, match="very large number"):
        load(pickle.dumps({(1, 1 << 40): 1}, 2))
    assert load(pickle.dumps({(1, 1 << 20): 1}, 2)) == {(1, 1 << 20): 1}


def test_a_state_is_set_once():
    with pytest.raises(PickleError, match="twice"):
        load(b"\x80\x02" + RECORD + b"}b}b.")
