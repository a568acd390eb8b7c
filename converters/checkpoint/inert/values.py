"""Known values of Python's standard library as plain data: paths, dates, queues, numbers. No class is
built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from converters.checkpoint.inert.records import Constructor, ForbiddenNameError, Record, Unknown
from converters.checkpoint.inert.unpickler import key_of

_MOST_PARTS = 256  # maximum parts of a path
_LATIN = ("latin1", "latin-1")


def _default_dict(*_: Any) -> dict[Any, Any]:
    return {}


def _pairs(*arguments: Any) -> dict[Any, Any]:
    if not arguments:
        return {}
    (pairs,) = arguments
    if type(pairs) is dict:
        return dict(pairs)
    if not isinstance(pairs, list | tuple):
        raise ValueError("a dict is made of something else than pairs")
    entries = {}
    for pair in pairs:
        key, value = pair
        entries[key_of(key)] = value
    return entries


def _counter(*arguments: Any) -> dict[Any, Any]:
    if arguments and type(arguments[0]) is not dict:
        raise ValueError("a Counter is made of something else than a dict")
    return dict(arguments[0]) if arguments else {}


def _list(*arguments: Any) -> list[Any]:
    """Create a list; a deque also passes its maximum length."""
    if arguments and not isinstance(arguments[0], list | tuple):
        raise ValueError("a list is made of something else than values")
    return list(arguments[0]) if arguments else []


def _tuple(*arguments: Any) -> tuple[Any, ...]:
    return tuple(_list(*arguments))


def _set(*arguments: Any) -> set[Any]:
    return set(map(key_of, _list(*arguments)))


def _frozen_set(*arguments: Any) -> frozenset[Any]:
    return frozenset(_set(*arguments))


def encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Return bytes as protocol 2 writes them: a text and its encoding."""
    if type(text) is not str or encoding not in _LATIN:
        raise ValueError("bytes are encoded as no pickle does")
    return text.encode("latin-1")


def _bytearray(*arguments: Any) -> bytearray:
    if not arguments:
        return bytearray()
    value = arguments[0]
    if type(value) is str:
        return bytearray(encoded(*arguments))
    if type(value) is not bytes:
        raise ValueError("a bytearray is made of something else than bytes")
    return bytearray(value)


def _bytes(*arguments: Any) -> bytes:
    return bytes(_bytearray(*arguments))


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("a complex is made of something else than numbers")
    return complex(real, imaginary)


def _text(value: Any = "") -> str:
    if type(value) is not str:
        raise ValueError("a text is made of something else")
    return value


def _fraction(*parts: Any) -> str:
    if any(type(part) is not int for part in parts):
        return _text(*parts)
    return "/".join(map(str, parts))


def _path(*parts: Any) -> str:
    if len(parts) > _MOST_PARTS or any(type(part) is not str for part in parts):
        raise ValueError("a path is made of something else than texts")
    root = parts[0] if parts and parts[0].startswith("/") else ""
    return "/".join(("", *parts[1:])) if root == "/" else "/".join(parts) or "."


def _date(state: Any) -> str:
    year, month, day = _fields(state, 4)
    return f"{year:04}-{month:02}-{day:02}"


def _datetime(state: Any, *_: Any) -> str:
    year, month, day, *time = _fields(state, 10)
    return f"{year:04}-{month:02}-{day:02}T{_clock(time)}"


def _time(state: Any, *_: Any) -> str:
    return _clock(list(_fixed(state, 6)))


def _fields(state: Any, size: int) -> list[int]:
    """Return the year and the bytes after it."""
    data = _fixed(state, size)
    return [data[0] * 256 + data[1], data[2] & 0x7F, *data[3:]]  # the month contains a flag: fold


def _fixed(state: Any, size: int) -> bytes:
    data = encoded(state) if type(state) is str else state
    if type(data) is not bytes or len(data) != size:
        raise ValueError("a date has another form")
    return data


def _clock(parts: list[int]) -> str:
    hour, minute, second, *rest = parts
    micro = int.from_bytes(bytes(rest), "big")
    return f"{hour & 0x7F:02}:{minute:02}:{second:02}" + (f".{micro:06}" if micro else "")


def _timedelta(*parts: Any) -> float:
    """Return the seconds."""
    if any(type(part) is not int for part in parts) or len(parts) > 3:
        raise ValueError("a timedelta has another form")
    days, seconds, micros = (*parts, 0, 0, 0)[:3]
    return days * 86400 + seconds + micros / 1e6


def _reconstructed(cls: Any, base: Any, state: Any) -> Record:
    """Create an object as protocols 0 and 1 do: its class, the built-in base class, its content."""
    if not isinstance(cls, Constructor):
        raise ValueError("an object has no class")
    kind = base.name if isinstance(base, Constructor) else ""
    if kind.endswith(".tuple") and type(state) is tuple:
        return Record(cls.name, state)
    record = Record(cls.name, () if state is None else (state,))
    if kind.endswith(".dict") and type(state) is dict:
        record.arguments, record.entries = (), state
    elif kind.endswith(".list") and type(state) is list:
        record.arguments, record.items = (), state
    return record


def _new_object(cls: Any, *arguments: Any) -> Any:
    if not isinstance(cls, Constructor):
        raise ValueError("an object has no class")
    return cls.make(*arguments)


def _new_object_by_name(cls: Any, arguments: Any, keywords: Any) -> Any:
    if not isinstance(cls, Unknown) or type(arguments) is not tuple or type(keywords) is not dict:
        raise ValueError("an object has no class")
    return Record(cls.name, arguments, keywords)


def _attribute(*arguments: Any) -> Record:
    """Return the record of a `getattr`, used by Python 3.11.0 to 3.11.4 for enum members, and by all
    for methods.

    The methods belong to hooks. Neither is ever called: a pickle that calls one is refused by name.

    Raises:
        ForbiddenNameError: any other use of getattr reaches for code.
    """
    match arguments:
        case (Unknown() | Record(reached=False)) as owner, str(name) if _may_be_member(name):
            record = Record(f"{owner.name}.{name}", ())
            record.reached = True
            return record
    raise ForbiddenNameError("builtins.getattr")


def _may_be_member(name: str) -> bool:
    """Whether the name can be an enum member, not an attribute of every class."""
    return name.isidentifier() and not name.startswith("__") and not hasattr(type, name)


_PATHS = tuple(f"{pure}{system}Path" for pure in ("", "Pure") for system in ("Posix", "Windows"))
_PLAIN_BUILTINS: dict[str, Callable[..., Any]] = {
    "complex": _complex,
    "dict": _pairs,
    "frozenset": _frozen_set,
    "list": _list,
    "set": _set,
    "str": _text,
    "tuple": _tuple,
}
# Unknown arguments of these lose only themselves.
PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "Counter"): _counter,
    ("collections", "defaultdict"): _default_dict,
    ("collections", "deque"): _list,
    ("datetime", "date"): _date,
    ("datetime", "datetime"): _datetime,
    ("datetime", "time"): _time,
    ("datetime", "timedelta"): _timedelta,
    ("decimal", "Decimal"): _text,
    ("fractions", "Fraction"): _fraction,
    **{
        (module, name): make
        for name, make in _PLAIN_BUILTINS.items()
        for module in ("builtins", "__builtin__")
    },
    **{  # "_local" is from Python 3.13
        (module, name): _path for module in ("pathlib", "pathlib._local") for name in _PATHS
    },
}
_BUILTINS: dict[str, Callable[..., Any]] = {
    "bytearray": _bytearray,
    "bytes": _bytes,
    "getattr": _attribute,
}
MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _pairs,  # the container of named tensors
    ("_codecs", "encode"): encoded,
    **{
        (module, name): make
        for name, make in _BUILTINS.items()
        for module in ("builtins", "__builtin__")
    },
    **{
        (module, name): make
        for name, make in {
            "_reconstructor": _reconstructed,
            "__newobj__": _new_object,
            "__newobj_ex__": _new_object_by_name,
        }.items()
        for module in ("copyreg", "copy_reg")
    },
}
