"""Reading pickles without running them: a machine that knows no class and no function.

A pickle is a program. Only its instructions that make plain values (numbers, texts, lists, dicts) are run
here; the name of a class or function is given to a table, which answers with a `Constructor` of ours, or
refuses. So nothing that the author of the file chose is ever imported or called, whatever the pickle says.

Python's own unpickler is not used: even with a restricted `find_class` it takes as much memory as the file
says, and its instructions set attributes on what they are given.

The instructions are those of protocols 2 to 5: https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sized
from mmap import mmap
from typing import Any

_INT = struct.Struct("<i").unpack_from
_UINT = struct.Struct("<I").unpack_from
_USHORT = struct.Struct("<H").unpack_from
_ULONG = struct.Struct("<Q").unpack_from
_FLOAT = struct.Struct(">d").unpack_from
_BINPUT, _LONG_BINPUT, _BINGET, _STOP = b"qrh."
_LONGEST_NAME = 1 << 10
_LONGEST_TEXT = 1 << 28
_LONGEST_INTEGER = 64  # bytes; nothing in a checkpoint needs 16
_PLAIN_KEYS = frozenset({str, int, float, bool, bytes, type(None)})
_MOST_COPIES = 4
_SMALL = 1 << 20  # bytes
_LARGEST_KEY = 1 << 61  # beyond, unequal numbers have one hash, and a dict of them takes forever
_LONGEST_KEY = 16


class PickleError(ValueError):
    """The bytes are no complete pickle, or one that no torch.save writes."""


class ForbiddenNameError(Exception):
    """The pickle names a class or function that is not plain data; `str()` is its full name."""


class Constructor:
    """Stands for a class or function that a pickle may name.

    Args:
        name: its full name.
        make: makes the inert value from the arguments; a ValueError or TypeError says that they are
            not those of such a thing.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name = name
        self.make = make


class Record:
    """An inert stand-in for an object: its arguments and its state, plain values both."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None


Find = Callable[[str, str], Any]
Persistent = Callable[[Any], Any]


def no_persistent(_: Any) -> Any:
    """For pickles that refer to nothing outside of themselves."""
    raise PickleError("it refers to something outside of itself")


class Unpickler:
    """Runs one pickle.

    Args:
        data: bytes that hold it; of a mapped file only what it needs is read.
        start: where it begins.
        find: a module's name and a name in it → what stands for it. It raises ForbiddenNameError.
        persistent: what the pickle calls a persistent id → the object.

    Attributes:
        at: after `load`, where the pickle has ended.
    """

    def __init__(
        self, data: bytes | mmap, start: int, find: Find, persistent: Persistent = no_persistent
    ) -> None:
        self.data = data
        self.at = start
        self._find = find
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._names: dict[bytes, Any] = {}
        self._copied = 0

    def load(self) -> Any:
        """The value.

        Raises:
            PickleError: it cannot be.
            ForbiddenNameError: it names what is not plain data; nothing was executed.
        """
        data, stack, memo = self.data, self._stack, self._memo
        try:
            while True:
                code = data[self.at]
                self.at += 1
                if code == _BINPUT:  # these three are half of all instructions
                    memo[self._byte()] = stack[-1]
                elif code == _LONG_BINPUT:
                    memo[self._number(_UINT, 4)] = stack[-1]
                elif code == _BINGET:
                    stack.append(memo[self._byte()])
                elif code == _STOP:
                    return stack.pop()
                else:
                    _STEPS[code](self)
        except (PickleError, ForbiddenNameError):
            raise
        except (IndexError, struct.error):
            raise PickleError("it ends, or takes values that it has not made") from None
        except KeyError as error:
            raise PickleError(f"it uses {str(error)[:40]}, which it has not made") from None
        except (ValueError, TypeError, OverflowError, AttributeError, MemoryError) as error:
            raise PickleError(str(error)[:120] or type(error).__name__) from None

    # Values

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data) or count > _LONGEST_TEXT:
            raise PickleError("it ends within a text")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _number(self, unpack: Callable[..., tuple[Any, ...]], size: int) -> Any:
        self.at += size
        return unpack(self.data, self.at - size)[0]

    def _line(self) -> bytes:
        end = self.data.find(b"\n", self.at, self.at + _LONGEST_NAME)
        if end < 0:
            raise PickleError("it ends within a name")
        line = self.data[self.at : end]
        self.at = end + 1
        return line

    def _integer(self, size: int) -> None:
        if size > _LONGEST_INTEGER:
            raise PickleError(f"it has an integer of {size} bytes")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _text(self, size: int) -> None:
        self._push(self._take(size).decode("utf-8", "surrogatepass"))

    def _old_text(self, size: int) -> None:
        # Python 2 had one kind of string for texts and bytes; state dicts name tensors by it.
        self._push(self._take(size).decode("latin-1"))

    # Containers

    def _items(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        mark = self._marks.pop()
        if mark > len(self._stack):
            raise PickleError("it takes values that it has not made")
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _few(self, count: int) -> None:
        if len(self._stack) < count:
            raise PickleError("it takes values that it has not made")
        items = tuple(self._stack[-count:])
        self._stack[-count:] = [items]

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _append(self) -> None:
        value = self._stack.pop()
        _exactly(list, self._stack[-1]).append(value)

    def _appends(self) -> None:
        items = self._items()
        _exactly(list, self._stack[-1]).extend(items)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _exactly(dict, self._stack[-1])[_key(key)] = value

    def _set_items(self) -> None:
        items = self._items()
        target = _exactly(dict, self._stack[-1])
        if len(items) % 2:
            raise PickleError("a dict has a key without a value")
        for index in range(0, len(items), 2):
            target[_key(items[index])] = items[index + 1]

    def _add_items(self) -> None:
        items = self._items()
        _exactly(set, self._stack[-1]).update(map(_key, items))

    # Names and what is made with them

    def _name(self, module: bytes, name: bytes) -> None:
        full = module + b" " + name
        if full not in self._names:
            texts = module.decode("utf-8", "replace"), name.decode("utf-8", "replace")
            self._names[full] = self._find(*texts)
        self._push(self._names[full])

    def _global(self) -> None:
        module = self._line()
        self._name(module, self._line())

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise PickleError("a name is not a text")
        self._name(module.encode("utf-8", "replace"), name.encode("utf-8", "replace"))

    def _instance(self) -> None:
        module = self._line()  # protocol 0 made objects so; whatever it names is refused by it
        self._name(module, self._line())
        raise PickleError("it makes an object as torch.save never does")

    def _reduce(self) -> None:
        arguments = _exactly(tuple, self._stack.pop())
        for argument in arguments:
            if isinstance(argument, Sized):
                self._copied += len(argument)
        if self._copied > _MOST_COPIES * (self.at + _SMALL):
            # Two bytes of a pickle recall a text of any length, which may then be copied.
            raise PickleError("it copies its values again and again")
        function = self._stack[-1]
        if not isinstance(function, Constructor):
            raise PickleError(f"it calls a {type(function).__name__}")
        self._stack[-1] = function.make(*arguments)

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict:  # of an OrderedDict it is `_metadata`: versions of modules
            raise PickleError(f"it sets attributes of a {type(target).__name__}")

    def _persistent_id(self) -> None:
        self._stack[-1] = self._persistent(self._stack[-1])

    def _protocol(self) -> None:
        version = self._byte()
        if not 2 <= version <= 5:
            raise PickleError(f"it has the protocol {version}")

    def _unknown(self) -> None:
        code = self.data[self.at - 1]
        raise PickleError(f"it has the instruction 0x{code:02x}, which torch.save does not write")


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise PickleError(f"it uses a {type(value).__name__} as a {kind.__name__}")
    return value


def _key(value: Any, *, inner: bool = False) -> Any:
    """The value, if it may be a key: hashing it must neither recurse deeply nor collide at will."""
    kind = type(value)
    if kind is str:
        return value
    if kind in _PLAIN_KEYS or kind is Record:
        if kind is int and not -_LARGEST_KEY < value < _LARGEST_KEY:
            raise PickleError("a key is a very large number")
        return value
    if isinstance(value, tuple) and len(value) <= _LONGEST_KEY and not inner:
        for item in value:
            _key(item, inner=True)
        return value
    raise PickleError(f"a key is a {kind.__name__}")


Machine = Unpickler
_STEPS: list[Callable[[Unpickler], Any]] = [Machine._unknown] * 256
_STEPS_BY_CODE: dict[bytes, Callable[[Unpickler], Any]] = {
    b"\x80": Machine._protocol,
    b"\x95": lambda m: m._number(_ULONG, 8),  # FRAME: lengths that only a stream needs
    b"(": Machine._mark,
    b"0": lambda m: m._stack.pop(),
    b"1": lambda m: m._items(),
    b"2": lambda m: m._push(m._stack[-1]),
    b"N": lambda m: m._push(None),
    b"\x88": lambda m: m._push(True),
    b"\x89": lambda m: m._push(False),
    b"J": lambda m: m._push(m._number(_INT, 4)),
    b"K": lambda m: m._push(m._byte()),
    b"M": lambda m: m._push(m._number(_USHORT, 2)),
    b"\x8a": lambda m: m._integer(m._byte()),
    b"\x8b": lambda m: m._integer(m._number(_UINT, 4)),
    b"G": lambda m: m._push(m._number(_FLOAT, 8)),
    b"X": lambda m: m._text(m._number(_UINT, 4)),
    b"\x8c": lambda m: m._text(m._byte()),
    b"\x8d": lambda m: m._text(m._number(_ULONG, 8)),
    b"T": lambda m: m._old_text(m._number(_UINT, 4)),
    b"U": lambda m: m._old_text(m._byte()),
    b"B": lambda m: m._push(m._take(m._number(_UINT, 4))),
    b"C": lambda m: m._push(m._take(m._byte())),
    b"\x8e": lambda m: m._push(m._take(m._number(_ULONG, 8))),
    b"\x96": lambda m: m._push(bytearray(m._take(m._number(_ULONG, 8)))),
    b"]": lambda m: m._push([]),
    b"a": Machine._append,
    b"e": Machine._appends,
    b")": lambda m: m._push(()),
    b"t": lambda m: m._push(tuple(m._items())),
    b"\x85": lambda m: m._few(1),
    b"\x86": lambda m: m._few(2),
    b"\x87": lambda m: m._few(3),
    b"}": lambda m: m._push({}),
    b"s": Machine._set_item,
    b"u": Machine._set_items,
    b"\x8f": lambda m: m._push(set()),
    b"\x90": Machine._add_items,
    b"\x91": lambda m: m._push(frozenset(map(_key, m._items()))),
    b"\x94": lambda m: m._memo.update({len(m._memo): m._stack[-1]}),
    b"j": lambda m: m._push(m._memo[m._number(_UINT, 4)]),
    b"c": Machine._global,
    b"\x93": Machine._stack_global,
    b"i": Machine._instance,
    b"R": Machine._reduce,
    b"\x81": Machine._reduce,  # a class and its arguments: the same to a Constructor
    b"b": Machine._build,
    b"Q": Machine._persistent_id,
}
for _code, _step in _STEPS_BY_CODE.items():
    _STEPS[_code[0]] = _step
