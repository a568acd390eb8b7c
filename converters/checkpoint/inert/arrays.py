"""NumPy arrays and numbers in a pickle: arrays become lazy tensors, numbers plain numbers.

https://numpy.org/doc/stable/reference/generated/numpy.ndarray.__reduce__.html; `numpy.core` is `numpy._core`
since NumPy 2.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.inert.records import Buildable, Record
from converters.checkpoint.inert.unpickler import Blob
from converters.checkpoint.inert.values import encoded
from converters.checkpoint.reader import is_shape
from converters.checkpoint.stored import BytesSpan, Span, Storage, StoredTensor, contiguous_strides

_KINDS = {
    "f": {2: "float16", 4: "float32", 8: "float64"},
    "i": {1: "int8", 2: "int16", 4: "int32", 8: "int64"},
    "u": {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"},
    "c": {8: "complex64", 16: "complex128"},
    "b": {1: "bool"},
}
_CODE = re.compile(r"[<>|=]?([A-Za-z])(\d{0,9})")


class StoredArray(StoredTensor):
    """NumPy array in a pickle."""

    __slots__ = ()


class OtherArray:
    """Array that is not a tensor: Python objects, text, dates, or several fields.

    Attributes:
        form: the description.
        items: the elements of an array of objects.
    """

    __slots__ = ("form", "items")

    def __init__(self, form: str, items: Any = None) -> None:
        self.form = form
        self.items = items


class DType(Buildable):
    """NumPy dtype.

    Attributes:
        code: NumPy's code without the byte order ("f4").
        order: the byte order: "<", ">", "|" or "=".
    """

    __slots__ = ("code", "order", "plain")

    def __init__(self, code: Any, *_: Any) -> None:
        matched = _CODE.fullmatch(code) if type(code) is str else None
        if matched is None:
            raise ValueError("a dtype has no name")
        self.code = code.lstrip("<>|=")
        self.order = code[0] if code[0] in "<>|=" else "="
        self.plain = True

    def build(self, state: Any) -> DType:
        """Set the byte order, and whether there are fields."""
        if type(state) is not tuple or len(state) < 5 or type(state[1]) is not str:
            raise ValueError("a dtype has another state")
        self.order = state[1]
        self.plain = state[2] is None and state[3] is None and state[4] is None
        return self

    @property
    def name(self) -> str | None:
        """Name in this project ("float32"); None for a non-numeric type or a foreign byte order."""
        kind, size = self.code[:1], self.code[1:]
        if not self.plain or self.order == ">" or not size:
            return "bool" if self.code == "?" else None
        return _KINDS.get(kind, {}).get(int(size))

    @property
    def shown(self) -> str:
        """Text for messages."""
        return f"{self.order if self.order == '>' else ''}{self.code[:12]}"


class PendingArray(Buildable):
    """Array whose content arrives as its state."""

    __slots__ = ()

    def build(self, state: Any) -> Any:
        """Return the array of (version, shape, dtype, whether in Fortran order, content)."""
        if type(state) is not tuple or not 4 <= len(state) <= 5:
            raise ValueError("an array has another state")
        shape, dtype, fortran, content = state[-4:]
        return _array(shape, dtype, content, fortran=bool(fortran))


def _array(shape: Any, dtype: Any, content: Any, *, fortran: bool) -> Any:
    if not isinstance(dtype, DType) or not is_shape(shape):
        raise ValueError("an array has an impossible shape or type")
    sides = tuple(shape)
    name = dtype.name
    if name is None:
        what = "of Python objects" if dtype.code.startswith("O") else f"of the type {dtype.shown}"
        items = content if type(content) is list else None
        return OtherArray(f"array {what}, {'×'.join(map(str, sides)) or 'scalar'}", items)
    span = _span(content)
    size = numpy_dtype(name, "an array").itemsize
    if math.prod(sides) * size != span.nbytes:
        raise ValueError(f"an array of shape {str(sides)[:80]} has {span.nbytes} bytes")
    return StoredArray(
        Storage(span, 0, span.nbytes, name),
        0,
        sides,
        contiguous_strides(sides, fortran=fortran),
        name,
    )


def _span(content: Any) -> Span:
    if isinstance(content, Blob):
        return content.span
    if type(content) is str:  # from Python 2
        content = encoded(content)
    if not isinstance(content, bytes | bytearray):
        raise ValueError("an array has no content")
    return BytesSpan(memoryview(content))


def _pending(*_: Any) -> PendingArray:
    return PendingArray()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> Any:
    return _array(shape, dtype, content, fortran=order == "F")


def _scalar(dtype: Any, content: Any = b"") -> Any:
    if not isinstance(dtype, DType):
        raise ValueError("a number has no type")
    name = dtype.name
    data = encoded(content) if type(content) is str else content
    if name is None or type(data) is not bytes:
        if dtype.code.startswith("U") and type(data) is bytes:
            return codecs.utf_32_le_decode(data, "replace", True)[0].rstrip("\0")
        return Record(f"numpy scalar {dtype.shown}", ())
    kind = numpy_dtype(name, "a number")
    if len(data) != kind.itemsize:
        raise ValueError("a number has another size than its type")
    return np.frombuffer(data, kind)[0].item()


MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): DType,
    **{
        (f"numpy.{core}.{module}", name): make
        for core in ("core", "_core")
        for module, name, make in (
            ("multiarray", "_reconstruct", _pending),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}
