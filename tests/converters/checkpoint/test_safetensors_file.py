"""Safetensors: what is wrong in the header is refused before a tensor is looked at."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from converters.checkpoint import open_checkpoint
from converters.errors import CheckpointDamagedError, UnsupportedDtypeError


def written(path, header, data=b"\0" * 8, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DAMAGED = {
    "an absurd header": ({"a": entry()}, b"", 1 << 62, "a header of 4611686018427387904 bytes"),
    "not text": (b"\xff\xfe", b"", None, "not safetensors"),
    "not JSON": (b'{"a": ', b"", None, "not safetensors"),
    "deep": (b"[" * 100_000, b"", None, "not safetensors"),
    "a list": (b"[1]", b"", None, "its header is not an object"),
    "an entry that is none": ({"a": 3}, b"", None, "the entry of a is none"),
    "half an entry": ({"a": {"dtype": "F32", "shape": [2]}}, b"", None, "the entry of a is none"),
    "a negative side": ({"a": entry(shape=(-2,))}, b"\0" * 8, None, "the entry of a is none"),
    "a fraction": ({"a": entry(shape=(2.0,))}, b"\0" * 8, None, "the entry of a is none"),
    "many sides": ({"a": entry(shape=(1,) * 99)}, b"\0" * 8, None, "the entry of a is none"),
    "an overflow": (
        {"a": entry(shape=(1 << 57, 1 << 57))},
        b"\0" * 8,
        None,
        "the entry of a is none",
    ),
    "nothing of a great length": (
        {"a": entry(shape=(0, 1 << 60), offsets=(0, 0))},
        b"",
        None,
        "the entry of a is none",
    ),
    "another length": ({"a": entry(shape=(3,))}, b"\0" * 8, None, "a has 8 bytes, its shape 12"),
    "backwards": ({"a": entry(offsets=(8, 0))}, b"\0" * 8, None, "the entry of a is none"),
    "beyond the end": ({"a": entry()}, b"\0" * 4, None, "its tensors have 8 bytes, the file 4"),
    "more than tensors": ({"a": entry()}, b"\0" * 9, None, "its tensors have 8 bytes, the file 9"),
    "an overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12, None, "overlap"),
    "the same bytes": ({"a": entry(), "b": entry()}, b"\0" * 8, None, "overlap"),
    "a gap": ({"a": entry(), "b": entry(offsets=(12, 20))}, b"\0" * 20, None, "leave gaps"),
    "two of a name": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"\0" * 2,
        None,
        "'a' is there twice",
    ),
    "a key for terminals": (
        {"\x1b[2Ja": entry()},
        b"\0" * 8,
        None,
        "unprintable characters: '\\x1b[2Ja'",
    ),
    "half a character": (
        b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b"\0" * 8,
        None,
        "unprintable characters",
    ),
    "metadata of numbers": ({"__metadata__": {"a": 3}, "a": entry()}, b"\0" * 8, None, "metadata"),
}


@pytest.mark.parametrize(("header", "data", "length", "part"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(tmp_path, header, data, length, part, refused):
    path = written(tmp_path / "x.safetensors", header, data, length)
    with refused(CheckpointDamagedError, "x.safetensors", part):
        open_checkpoint(path)


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "F6_E3M2", "FLOAT", ""])
def test_types_without_numpy_form_are_refused_by_name(tmp_path, code, refused):
    with refused(UnsupportedDtypeError, f"a has the element type '{code}'"):
        open_checkpoint(written(tmp_path / "x.safetensors", {"a": entry(code)}))


def test_what_the_library_writes_is_read(tmp_path):
    names = ["float32", "bfloat16", "float64", "int8", "uint16", "bool", "float8_e4m3fn"]
    tensors = {name: torch.ones(3, 2).to(getattr(torch, name)) for name in names}
    tensors["empty"] = torch.zeros(0, 4)
    tensors["also empty"] = torch.zeros(4, 0)
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    assert set(checkpoint.infos) == set(tensors)
    assert checkpoint.shared == ()
    for name in names:
        assert checkpoint.read(name).dtype.name == name
        assert checkpoint.read(name).astype(np.float64).tolist() == [[1, 1]] * 3
        checkpoint.release(name)


def test_elements_at_odd_places_are_copied(tmp_path):
    header = {"a": entry("U8", (1,), (0, 1)), "b": entry("F64", (1,), (1, 9))}
    text = json.dumps(header).encode()
    path = written(tmp_path / "x.safetensors", text, b"\x05" + np.float64(2.5).tobytes())
    array = open_checkpoint(path).read("b")
    assert array.tolist() == [2.5]
    assert array.flags.aligned


def test_many_keys_quickly(tmp_path):
    header = {f"layers.{index}.w": entry("U8", (1,), (index, index + 1)) for index in range(20_000)}
    path = written(tmp_path / "x.safetensors", header, b"\0" * 20_000)
    # 0.2 s; a step that compares all with all takes so long that the test is ended.
    assert len(open_checkpoint(path).infos) == 20_000
