"""PJRT plugin for the CPU that accepts what torch_tpu passes to libtpu.

A plugin exports `GetPjrtApi`, which returns a static table of functions (pjrt_c_api.h of XLA). The
entry of PJRT_Client_Create is replaced: libtpu's options are dropped, and the client gets one device.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from shims.errors import NotSimulatedError

# pjrt_c_api.h: the size of the table, a pointer, and a version (size, pointer, two ints) come before
# the functions. All are words of 8 bytes.
_VERSION_OFFSET = 32  # in bytes
_FIRST_FUNCTION = 5  # in words
_CLIENT_CREATE = _FIRST_FUNCTION + 10
# The layout that these positions belong to.
API_VERSION = (0, 115)
_TABLE_BYTES = 1144
_INT64 = 1  # PJRT_NamedValue_kInt64


class _NamedValue(ctypes.Structure):
    """PJRT_NamedValue with an integer."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("int64_value", ctypes.c_int64),
        ("value_size", ctypes.c_size_t),
    )


class _CreateArguments(ctypes.Structure):
    """PJRT_Client_Create_Args up to its options."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("create_options", ctypes.POINTER(_NamedValue)),
        ("num_options", ctypes.c_size_t),
    )


_Create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CreateArguments))
# The table points to them for as long as the process lives.
_KEPT: list[Any] = []


def prepare(path: Path) -> None:
    """Load the plugin and replace its PJRT_Client_Create. A second call changes nothing.

    Raises:
        NotSimulatedError: the plugin does not load, or its table has another layout.
    """
    if _KEPT:
        return
    try:
        library = ctypes.CDLL(str(path))
        get_api = library.GetPjrtApi
    except (OSError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise NotSimulatedError(
            f"the PJRT plugin {path} does not load: {reason}", "install the package again"
        ) from error
    get_api.restype = ctypes.POINTER(ctypes.c_void_p)
    table = get_api()
    _require_layout(path, table)
    create = _Create(table[_CLIENT_CREATE])
    option = _NamedValue(
        ctypes.sizeof(_NamedValue),
        None,
        b"cpu_device_count",
        len(b"cpu_device_count"),
        _INT64,
        1,
        1,
    )

    def create_for_cpu(arguments: Any) -> Any:
        arguments.contents.create_options = ctypes.pointer(option)
        arguments.contents.num_options = 1
        return create(arguments)

    replacement = _Create(create_for_cpu)
    _KEPT.extend((library, create, option, replacement))
    table[_CLIENT_CREATE] = ctypes.cast(replacement, ctypes.c_void_p).value


def _require_layout(path: Path, table: Any) -> None:
    address = ctypes.cast(table, ctypes.c_void_p).value
    assert address is not None
    size = ctypes.c_size_t.from_address(address).value
    version = tuple((ctypes.c_int * 2).from_address(address + _VERSION_OFFSET))
    if (size, version) != (_TABLE_BYTES, API_VERSION):
        raise NotSimulatedError(
            f"the PJRT plugin {path} has version {version[0]}.{version[1]} of the interface "
            f"({size} bytes), not {API_VERSION[0]}.{API_VERSION[1]} ({_TABLE_BYTES} bytes)",
            "install the version of constraints-torch-tpu.txt",
        )
