"""Element types: numpy's names, safetensors' codes, and torch tensors as numpy arrays.

A dtype has the name used by numpy and ml_dtypes ("float32", "bfloat16", "float8_e4m3fn", "bool").
Numpy itself has no bfloat16 or float8, so those are converted through an unsigned view of their
bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from converters.errors import MissingDependencyError, UnsupportedDtypeError

# https://github.com/huggingface/safetensors (safetensors/src/tensor.rs, enum Dtype). Types smaller
# than one byte are omitted: numpy cannot address them.
SAFETENSORS_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
DTYPE_NAMES = {code: name for name, code in SAFETENSORS_CODES.items()}

EXTENDED = frozenset(
    {
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
_NATIVE = (frozenset(SAFETENSORS_CODES) | {"complex128"}) - EXTENDED


def is_known(name: str) -> bool:
    """Whether numpy with ml_dtypes has a type of this name."""
    return name in _NATIVE or name in EXTENDED


def numpy_dtype(name: str, where: str) -> np.dtype[Any]:
    """Return numpy's dtype of this name.

    Raises:
        UnsupportedDtypeError: neither numpy nor ml_dtypes has such a type; `where` names the tensor.
        MissingDependencyError: the type needs ml_dtypes, which is not installed.
    """
    if name in _NATIVE:
        return _native(name)
    if name not in EXTENDED:
        raise UnsupportedDtypeError(
            f"{where} has the element type {name}, which cannot be converted exactly",
            "cast it before saving the checkpoint",
        )
    try:
        return _extended(name)
    except ImportError:
        raise MissingDependencyError(
            f"{where} has the element type {name}, which needs the package ml_dtypes",
            "pip install ml_dtypes",
        ) from None


@cache
def _native(name: str) -> np.dtype[Any]:
    return np.dtype(name)


@cache
def _extended(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def torch_dtype_name(tensor: Any) -> str:
    """Return the name of a torch tensor's element type ("torch.bfloat16" → "bfloat16")."""
    return str(tensor.dtype).removeprefix("torch.")


def torch_to_numpy(tensor: Any, where: str) -> np.ndarray[Any, Any]:
    """Return a dense tensor as a numpy array with the same shape and bits, sharing memory if possible.

    Raises:
        UnsupportedDtypeError: its element type has no numpy form; `where` names the tensor.
        MissingDependencyError: the type needs ml_dtypes, which is not installed.
    """
    import torch

    name = torch_dtype_name(tensor)
    dtype = numpy_dtype(name, where)
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if name in EXTENDED:
        bits = torch.uint8 if dtype.itemsize == 1 else torch.uint16
        return dense.view(bits).numpy().view(dtype)
    return dense.numpy()
