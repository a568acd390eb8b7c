"""Stand-ins for the names in a pickle: an inert object, a record, or a refusal.

torch's names have inert stand-ins, at least those that `torch.load(weights_only=True)` allows by
default, https://github.com/pytorch/pytorch/blob/v2.9.1/torch/_weights_only_unpickler.py
(`_get_allowed_globals`). Known values of Python and NumPy become plain data. Names with an effect
end the read, and every other name creates records. A tensor that is not dense becomes an
`OtherTensor`, which is refused by name if it is a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from converters.checkpoint.dtypes import is_known, numpy_dtype
from converters.checkpoint.inert import arrays, values
from converters.checkpoint.inert.effects import has_effect
from converters.checkpoint.inert.records import (
    Buildable,
    Constructor,
    ForbiddenNameError,
    PickleError,
    Plain,
    Unknown,
)
from converters.checkpoint.reader import is_shape
from converters.checkpoint.stored import Storage, StoredTensor


class OtherTensor(NamedTuple):
    """Tensor that cannot be converted; `form` describes it ("a sparse tensor")."""

    form: str


class Named(NamedTuple):
    """Named constant of torch: a dtype, a device, a layout, a type of tensors."""

    kind: str
    name: str


# torch.FloatStorage → float32. Dtypes without a numpy form have storages too.
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QUInt8Storage": "quint8",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}
_WITHOUT_NUMPY = {  # name → bytes per element of its storage
    "quint8": 1,
    "qint8": 1,
    "qint32": 4,
    "quint4x2": 1,
    "quint2x4": 1,
    "complex32": 4,
    "bits8": 1,
    "bits16": 2,
    "bits1x8": 1,
    "bits2x4": 1,
    "bits4x2": 1,
    "float4_e2m1fn_x2": 1,
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
}
_TENSOR_TYPES = frozenset(
    f"{kind}Tensor"
    for kind in (
        "Double Float Half BFloat16 Long Int Short Char Byte Bool".split()  # noqa: SIM905
    )
)
_PYTHON_2 = {"xrange": "range", "unicode": "str", "long": "int"}
_SCHEMES = frozenset(
    {
        "per_tensor_affine",
        "per_tensor_symmetric",
        "per_channel_affine",
        "per_channel_symmetric",
        "per_channel_affine_float_qparams",
    }
)


def find_name(module: str, name: str) -> Any:
    """Return the stand-in of `module.name` in a pickle.

    Raises:
        ForbiddenNameError: the name has an effect when called.
    """
    stand_in = _TABLE.get((module, name))
    if stand_in is None:
        stand_in = _torch_name(module, name)
    if stand_in is not None:
        return stand_in
    if has_effect(module, name):
        raise ForbiddenNameError(f"{module}.{name}")
    if module == "__builtin__":  # protocols up to 2 use Python 2's names
        module, name = "builtins", _PYTHON_2.get(name, name)
    return Unknown(f"{module}.{name}")


def _torch_name(module: str, name: str) -> Any:
    if module == "torch" and (is_known(name) or name in _WITHOUT_NUMPY):
        return Named("dtype", name)
    if module in ("torch", "torch.cuda", "torch.storage") and name in _STORAGES:
        return Named("storage", _STORAGES[name])
    if module == "torch" and name in _SCHEMES:
        return Named("quantization", name)
    places = ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse")
    if module in places and name in _TENSOR_TYPES:
        return Constructor(f"{module}.{name}", _pending)
    return None


def described_storage(identifier: Any) -> tuple[str, str, int, int]:
    """Return key, element type, byte count and bytes per element of a storage, from its persistent id.

    Raises:
        PickleError: the id is not a storage's.
    """
    if type(identifier) is not tuple or len(identifier) < 5 or identifier[0] != "storage":
        raise PickleError("it refers to something else than a storage")
    _, kind, key, _, count = identifier[:5]
    if not isinstance(kind, Named) or kind.kind != "storage" or type(key) is not str:
        raise PickleError("it refers to something else than a storage")
    if type(count) is not int or not 0 <= count < 1 << 62:
        raise PickleError("a storage has an impossible size")
    size = _WITHOUT_NUMPY.get(kind.name) or numpy_dtype(kind.name, "a storage").itemsize
    return key, kind.name, count * size, size


# Constructors of the names


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Any:
    metadata = rest[2] if len(rest) > 2 else None
    return _dense(storage, offset, shape, strides, None, metadata)


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Any:
    _, _, dtype, *more = rest
    if not (isinstance(dtype, Named) and dtype.kind == "dtype"):
        raise ValueError("a tensor has no element type")
    return _dense(storage, offset, shape, strides, dtype.name, more[0] if more else None)


def _dense(
    storage: Any, offset: Any, shape: Any, strides: Any, dtype: str | None, metadata: Any
) -> Any:
    if not isinstance(storage, Storage):
        raise ValueError("a tensor has no storage")
    dtype = dtype or storage.dtype
    if dtype in _WITHOUT_NUMPY:
        return OtherTensor(f"a tensor of the element type {dtype}")
    flags = metadata if isinstance(metadata, dict) else {}
    return StoredTensor(
        storage,
        offset,
        shape,
        strides,
        dtype,
        conjugated=flags.get("conj") is True,
        negated=flags.get("neg") is True,
    )


class _PendingTensor(Buildable):
    """Tensor of torch before 0.1.12, which is created first and receives its content later."""

    __slots__ = ()

    def build(self, state: Any) -> Any:
        storage, offset, shape, strides = state
        return _dense(storage, offset, shape, strides, None, None)


def _pending(*_: Any) -> _PendingTensor:
    return _PendingTensor()


def _first(data: Any, *_: Any) -> Any:
    return data


def _from_cpu(data: Any, dtype: Any, *_: Any) -> Any:
    if not isinstance(data, StoredTensor) or dtype != Named("dtype", data.info.dtype):
        return OtherTensor("a tensor that another device cast")
    return data


def _of_type(rebuild: Any, kind: Any, arguments: Any, *_: Any) -> Any:
    if not isinstance(rebuild, Constructor) or not isinstance(arguments, tuple):
        raise ValueError("a tensor is made of something else")
    if isinstance(kind, Unknown):
        return OtherTensor("a tensor of a class of its own")
    return rebuild.make(*arguments)


def _other(form: str) -> Callable[..., OtherTensor]:
    return lambda *_: OtherTensor(form)


def _size(sides: Any = ()) -> tuple[int, ...]:
    if not is_shape(sides):
        raise ValueError("a torch.Size is none")
    return tuple(sides)


def _named(kind: str) -> Callable[..., Named]:
    def make(*arguments: Any) -> Named:
        return Named(
            kind, " ".join(str(item)[:40] for item in arguments if type(item) in (str, int))
        )

    return make


_UTILS: dict[str, Callable[..., Any]] = {
    "_rebuild_tensor": _tensor,
    "_rebuild_tensor_v2": _tensor,
    "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _first,
    "_rebuild_parameter_with_state": _first,
    "_rebuild_qtensor": _other("a quantized tensor"),
    "_rebuild_sparse_tensor": _other("a sparse tensor"),
    "_rebuild_nested_tensor": _other("a nested tensor"),
    "_rebuild_meta_tensor_no_storage": _other("a tensor without data (meta device)"),
    "_rebuild_wrapper_subclass": _other("a tensor of a class of its own"),
    "_rebuild_device_tensor_from_numpy": _other("a tensor of another device, kept as NumPy's"),
    "_rebuild_device_tensor_from_cpu_tensor": _from_cpu,
}
# TorchScript's wrappers of lists and dicts, which record the type of the entries.
_SCRIPTED = (
    "restore_type_tag",
    *(f"build_{kind}list" for kind in ("int", "double", "bool", "tensor")),
)
_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    **values.MAKERS,
    **arrays.MAKERS,
    ("torch", "Size"): _size,
    ("torch", "device"): _named("device"),
    ("torch.serialization", "_get_layout"): _named("layout"),
    ("torch.nn.parameter", "Parameter"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    **{("torch._utils", name): make for name, make in _UTILS.items()},
    **{("torch.jit._pickle", name): _first for name in _SCRIPTED},
}
_TABLE: dict[tuple[str, str], Any] = {
    **{place: Constructor(".".join(place), make) for place, make in _MAKERS.items()},
    **{place: Plain(".".join(place), make) for place, make in values.PLAIN.items()},
    ("torch", "Tensor"): Named("type", "torch.Tensor"),
    ("numpy", "ndarray"): Named("type", "numpy.ndarray"),
    ("torch.storage", "UntypedStorage"): Named("storage", "uint8"),
    ("torch.storage", "TypedStorage"): Named("storage", "uint8"),
}
