"""Reader of `.npz`: named arrays in a zip archive, each mapped unless it is compressed.

An array of Python objects is a pickle: it is refused by name and never opened. The format of an
array: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from converters.checkpoint.lazy import LazyTensor, TensorsCheckpoint
from converters.checkpoint.mapped_file import extent
from converters.checkpoint.reader import COPY_AGAIN, is_shape
from converters.checkpoint.stored import (
    FileSpan,
    InflatedSpan,
    Span,
    Storage,
    StoredTensor,
    contiguous_strides,
)
from converters.checkpoint.zip_archive import Member, ZipArchive
from converters.errors import (
    CheckpointDamagedError,
    CheckpointHoldsCodeError,
    NotAStateDictError,
    UnsupportedDtypeError,
)

SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # NumPy's own limit
_TYPE = re.compile(r"(?P<order>[<>|=])(?P<kind>[biufc])(?P<size>[0-9]{1,2})")
_TEXT_TYPE = re.compile(r"[<>|=][SUmM][0-9]*(\[.*\])?")
# A Python literal, of which NumPy writes this form only.
_HEADER = re.compile(
    r"\{ *'descr': *(?:'(?P<type>[^']*)'|(?P<fields>\[.*\])), *'fortran_order': *(?P<fortran>True|False), *"
    r"'shape': *\((?P<shape>[0-9L, ]*)\),? *\}\s*",
    re.DOTALL,
)
_SIDE = re.compile(r"[0-9]{1,20}L?")  # Python 2 appended an L
_NUMBERS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_NAMES = frozenset(
    {"bool8", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def open_npz(archive: ZipArchive) -> TensorsCheckpoint:
    """Return the arrays of an archive as a state dict; arrays of text or dates are in `others`.

    Raises:
        CheckpointDamagedError: a member is not an array, or is incomplete.
        CheckpointHoldsCodeError: an array holds Python objects.
        UnsupportedDtypeError: an array's element type has no torch form.
        NotAStateDictError: there is no array.
    """
    source = str(archive.file.path)
    tensors: dict[str, LazyTensor] = {}
    others: dict[str, str] = {}
    for name, member in archive.members.items():
        key = name.removesuffix(SUFFIX)
        array = _array(archive, member, f"{source}: {key[:160]}")
        if isinstance(array, str):
            others[key] = array
        else:
            tensors[key] = array
    archive.file.rest()
    if not tensors:
        raise NotAStateDictError(f"{source} holds no arrays of numbers", "save the weights in it")
    return TensorsCheckpoint(source, tensors, others=others)


def _array(archive: ZipArchive, member: Member, where: str) -> LazyTensor | str:
    if not member.name.endswith(SUFFIX):
        raise CheckpointDamagedError(f"{where} is not an array of NumPy", COPY_AGAIN)
    span: Span
    if member.stored:
        start = archive.content_start(member)
        span = FileSpan(archive.file, start, member.size)
        head = archive.file.copy(start, start + min(member.size, _LONGEST_HEADER))
    else:
        span = InflatedSpan(archive, member)
        head = archive.inflated_start(member, _LONGEST_HEADER)
    fields, start = _header(head, where)
    descr, shape = fields["descr"], fields["shape"]
    matched = _TYPE.fullmatch(descr) if isinstance(descr, str) else None
    if matched is None:
        return _other_type(descr, shape, where)
    bits = int(matched["size"]) * 8
    name = f"{_NUMBERS[matched['kind']]}{bits}"
    if name not in _NAMES:
        raise _unsupported(where, descr)
    dtype = name.replace("bool8", "bool")
    length = extent(shape, bits // 8)
    if start + length != member.size:
        raise CheckpointDamagedError(
            f"{where} has {member.size - start} bytes, its shape {length}", COPY_AGAIN
        )
    kind = SwappedTensor if matched["order"] == ">" and bits > 8 else StoredTensor
    strides = contiguous_strides(shape, fortran=fields["fortran_order"])
    return kind(Storage(span, start, length, dtype), 0, shape, strides, dtype)


class SwappedTensor(StoredTensor):
    """Tensor whose elements have their most significant byte first in the file."""

    def read(self) -> np.ndarray[Any, Any]:
        """Return its values in this machine's byte order."""
        return super().read().byteswap()


def _header(head: bytes, where: str) -> tuple[dict[str, Any], int]:
    """Return the fields of an array's header, and the offset of its elements."""
    version = head[len(_MAGIC)] if head.startswith(_MAGIC) and len(head) > 12 else 0
    if version not in (1, 2, 3):
        raise CheckpointDamagedError(f"{where} is not an array of NumPy", COPY_AGAIN)
    begin = 10 if version == 1 else 12
    end = begin + int.from_bytes(head[8:begin], "little")
    if end > len(head):
        raise CheckpointDamagedError(f"{where} announces a header of {end} bytes", COPY_AGAIN)
    matched = _HEADER.fullmatch(head[begin:end].decode("latin-1"))
    sides = (
        [side.strip() for side in matched["shape"].split(",") if side.strip()] if matched else []
    )
    shape = tuple(int(side.rstrip("L")) for side in sides if _SIDE.fullmatch(side))
    if matched is None or len(shape) != len(sides) or not is_shape(shape):
        raise CheckpointDamagedError(f"{where} has a damaged header", COPY_AGAIN)
    fields = {
        "descr": matched["type"] if matched["type"] is not None else matched["fields"],
        "fortran_order": matched["fortran"] == "True",
        "shape": shape,
    }
    return fields, end


def _other_type(descr: Any, shape: tuple[int, ...], where: str) -> str:
    if isinstance(descr, str) and _TEXT_TYPE.fullmatch(descr):
        return f"array of texts or dates {'×'.join(map(str, shape)) or 'scalar'}"
    if isinstance(descr, str) and descr.rstrip("48").endswith("O"):  # Python 2 wrote |O8
        raise CheckpointHoldsCodeError(
            f"{where} is an array of Python objects, which is a pickle: nothing was executed",
            "save arrays of numbers only, one for each tensor",
        )
    raise _unsupported(where, descr)


def _unsupported(where: str, descr: Any) -> UnsupportedDtypeError:
    shown = ascii(descr)[:80] if isinstance(descr, str) else "of several fields"
    nameless = "V" in shown
    return UnsupportedDtypeError(
        f"{where} has the element type {shown}, which cannot be converted"
        + " (NumPy saves bfloat16 and float8 so, and forgets which they are)" * nameless,
        "save it as safetensors, or cast it first",
    )
