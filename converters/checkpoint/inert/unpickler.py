"""Unpickler that runs no code: a machine without classes and functions.

A pickle is a program. Only its instructions that create plain values (numbers, text, lists, dicts)
run here. The name of a class or function is looked up in a table. The table answers with a
`Constructor` of this package, with a constructor of records, or with a refusal. Nothing chosen by
the author of the file is ever imported or called.

Python's own unpickler is not used. Even with a restricted `find_class` it takes as much memory as
the file requests, and its instructions set attributes on the objects they receive.

The instructions are those of protocols 0 to 5:
https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from itertools import islice
from mmap import mmap
from typing import Any

from converters.checkpoint.inert.records import (
    Buildable,
    Constructor,
    ForbiddenNameError,
    PickleError,
    Plain,
    Record,
    Unknown,
)
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.stored import BytesSpan, Span

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
_LARGEST_KEY = 1 << 61  # above this, unequal numbers share hashes, and a dict of them takes forever
_LONGEST_KEY = 16
# Numbers in a tuple: with larger ones, tuples of equal hash are easy to find.
_LARGEST_INNER = 1 << 32
_LONGEST_DIGITS = 160
_LARGE = 1 << 20  # bytes; longer values stay in the file
_MOST_MADE = 1 << 22  # containers, their entries and records, together about 256 MB
_PER_TENSOR = 32
_HIGHEST = 1 << 21  # values that are in no container yet; Python's pickler adds them by thousands
_DEEPEST = 1 << 20  # open marks
_LATEST = 64  # memoized values: an object is memoized before its state is created


Find = Callable[[str, str], Any]
Persistent = Callable[[Any], Any]
Spans = Callable[[int, int], Span]


class Blob:
    """Large bytes object that stays in the file.

    Args:
        span: its location.
    """

    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span = span

    def __len__(self) -> int:
        return self.span.nbytes


def no_persistent(_: Any) -> Any:
    """Refuse a persistent id, for pickles without external references."""
    raise PickleError("it refers to something outside of itself")


class Unpickler:
    """Interpreter of one pickle.

    Args:
        data: the bytes of the pickle; only the needed parts of a mapped file are read.
        start: the offset of the pickle.
        find: returns the stand-in for a module and a name; raises ForbiddenNameError.
        persistent: returns the object of a persistent id.
        spans: returns the span of large bytes in `data` by offset and length, to avoid a copy.
        more: additional number of non-tensor values that this pickle may create.

    Attributes:
        at: the end of the pickle, after `load`.
        unknown: the classes that became records, in the order of the pickle.
    """

    def __init__(
        self,
        data: bytes | mmap,
        start: int,
        find: Find,
        persistent: Persistent = no_persistent,
        spans: Spans | None = None,
        more: int = 0,
    ) -> None:
        self.data = data
        self.at = start
        self.unknown: dict[str, None] = {}
        self._find = find
        self._persistent = persistent
        self._spans = spans
        self._made = 0
        self._allowed = _MOST_MADE + more
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._names: dict[bytes, Any] = {}
        self._copied = 0

    def load(self) -> Any:
        """Return the value.

        Raises:
            PickleError: the pickle is invalid.
            ForbiddenNameError: the pickle names something with an effect; nothing was executed.
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
        except RecursionError:
            raise PickleError("its values are nested too deeply") from None
        except (ValueError, TypeError, OverflowError, AttributeError, MemoryError) as error:
            raise PickleError(str(error)[:120] or type(error).__name__) from None

    # Values

    def _push(self, value: Any) -> None:
        self._stack.append(value)
        if len(self._stack) > _HIGHEST:
            raise PickleError("it puts millions of values into one container")

    def _count(self, count: int) -> None:
        """Count created values: one byte of a pickle can create a dict of a hundred bytes.

        Tensors and arrays raise the limit, so that a checkpoint may have any number of them.
        """
        self._made += count
        if self._made > self._allowed:
            raise PickleError("it makes millions of values that are no tensors")

    def _new(self, value: Any, size: int) -> None:
        self._count(size)
        self._stack.append(value)

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data) or count > _LONGEST_TEXT:
            raise PickleError("it ends within a text")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _bytes(self, count: int) -> None:
        """Push bytes; many bytes become a `Blob`."""
        if count <= _LARGE:
            self._push(self._take(count))
            return
        if self.at + count > len(self.data):
            raise PickleError("it ends within a text")
        if self._spans is None:
            span: Span = BytesSpan(memoryview(self.data)[self.at : self.at + count])
        else:
            span = self._spans(self.at, count)
        self._push(Blob(span))
        self.at += count

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _number(self, unpack: Callable[..., tuple[Any, ...]], size: int) -> Any:
        self.at += size
        return unpack(self.data, self.at - size)[0]

    def _line(self, longest: int = _LONGEST_NAME) -> bytes:
        end = self.data.find(b"\n", self.at, self.at + longest)
        if end < 0:
            raise PickleError("it ends within a name")
        line = self.data[self.at : end]
        self.at = end + 1
        return line

    def _byte_array(self) -> None:
        count = self._number(_ULONG, 8)
        if count > _LARGE:
            self._bytes(count)
        else:
            self._new(bytearray(self._take(count)), 1)

    def _integer(self, size: int) -> None:
        if size > _LONGEST_INTEGER:
            raise PickleError(f"it has an integer of {size} bytes")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _text(self, size: int) -> None:
        self._push(self._take(size).decode("utf-8", "surrogatepass"))

    def _old_text(self, size: int) -> None:
        # Python 2 had one kind of string for text and bytes; state dicts name tensors by it.
        if size > _LARGE:
            self._bytes(size)
        else:
            self._push(self._take(size).decode("latin-1"))

    # Values as protocol 0 writes them, in lines of text

    def _line_integer(self) -> None:
        digits = self._line(_LONGEST_DIGITS)
        if digits in (b"00", b"01"):
            self._push(digits == b"01")
        else:
            self._push(int(digits.rstrip(b"L")))

    def _line_text(self) -> None:
        line = self._line(_LONGEST_TEXT)
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise PickleError("a text has no quotes")
        self._push(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))

    def _line_place(self) -> int:
        return int(self._line(_LONGEST_DIGITS))

    # Containers

    def _items(self) -> list[Any]:
        """Pop the values since the last mark."""
        mark = self._marks.pop()
        if mark > len(self._stack):
            raise PickleError("it takes values that it has not made")
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _few(self, count: int) -> None:
        if len(self._stack) < count:
            raise PickleError("it takes values that it has not made")
        self._count(1)
        items = tuple(self._stack[-count:])
        self._stack[-count:] = [items]

    def _tuple(self) -> None:
        items = self._items()
        self._new(tuple(items), 1 + len(items) // 8)

    def _list(self) -> None:
        items = self._items()
        self._new(items, 2 + len(items))

    def _dict(self) -> None:
        items = self._items()
        self._new({}, 2)
        self._fill(items)

    def _mark(self) -> None:
        if len(self._marks) == _DEEPEST:
            raise PickleError("its values are nested too deeply")
        self._marks.append(len(self._stack))

    def _memoize(self) -> None:
        self._count(1)
        self._memo[len(self._memo)] = self._stack[-1]

    def _append(self) -> None:
        value = self._stack.pop()
        self._extend([value])

    def _extend(self, items: list[Any]) -> None:
        self._count(1 + len(items))
        target = self._stack[-1]
        if isinstance(target, Record):
            if target.items is None:
                target.items = []
            target = target.items
        _exactly(list, target).extend(items)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._fill([key, value])

    def _fill(self, items: list[Any]) -> None:
        self._count(len(items))
        target = self._stack[-1]
        if isinstance(target, Record):
            if target.entries is None:
                target.entries = {}
            target = target.entries
        target = _exactly(dict, target)
        if len(items) % 2:
            raise PickleError("a dict has a key without a value")
        for index in range(0, len(items), 2):
            target[key_of(items[index])] = items[index + 1]

    def _add_items(self) -> None:
        items = self._items()
        target = self._stack[-1]
        if isinstance(target, Record):
            self._extend(items)
            return
        self._count(2 * len(items))
        _exactly(set, target).update(map(key_of, items))

    def _frozen_set(self) -> None:
        items = self._items()
        self._new(frozenset(map(key_of, items)), 4 + 2 * len(items))

    # Names and the values created with them

    def _name(self, module: bytes, name: bytes) -> None:
        full = module + b" " + name
        if full not in self._names:
            texts = module.decode("utf-8", "replace"), name.decode("utf-8", "replace")
            self._count(4)
            self._names[full] = self._find(*texts)
        self._push(self._names[full])

    def _global(self) -> None:
        module = self._line()
        self._name(module, self._line())

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise PickleError("a name is not a text")
        if len(name) + len(module) > _LONGEST_NAME:
            raise PickleError("a name is too long")
        self._name(module.encode("utf-8", "replace"), name.encode("utf-8", "replace"))

    def _instance(self) -> None:
        """Create an object in protocol 0: its class by name, and the arguments since the mark."""
        module = self._line()
        self._name(module, self._line())
        constructor = self._stack.pop()
        arguments = tuple(self._items())
        self._push(constructor)
        self._call(arguments)

    def _object(self) -> None:
        """Create an object in protocol 1: the class is the first value since the mark."""
        constructor, *arguments = self._items()
        self._push(constructor)
        self._call(tuple(arguments))

    def _reduce(self) -> None:
        self._call(_exactly(tuple, self._stack.pop()))

    def _new_object(self) -> None:
        keywords = _exactly(dict, self._stack.pop())
        arguments = _exactly(tuple, self._stack.pop())
        if keywords:
            created = self._stack[-1]
            if not isinstance(created, Unknown) or any(type(name) is not str for name in keywords):
                raise PickleError("it makes an object with arguments that it does not take")
            self._keep(Record(created.name, arguments, keywords))
        else:
            self._call(arguments)

    def _call(self, arguments: tuple[Any, ...]) -> None:
        """Call the name on top of the stack with these arguments, and push the result."""
        function = self._stack[-1]
        if isinstance(function, Record):
            # Otherwise the result of a call or an attribute could be called.
            raise ForbiddenNameError(function.name)
        if not isinstance(function, Constructor):
            raise PickleError(f"it calls a {type(function).__name__}")
        if isinstance(function, Unknown):
            result: Any = Record(function.name, arguments)
        else:
            self._copied += len(arguments)
            for argument in arguments:
                if hasattr(argument, "__len__"):
                    self._copied += len(argument)
            if self._copied > _MOST_COPIES * (self.at + _SMALL):
                # Two bytes of a pickle recall a text of any length, which may then be copied.
                raise PickleError("it copies its values again and again")
            try:
                result = function.make(*arguments)
            except (ValueError, TypeError):
                if not isinstance(function, Plain):
                    raise
                result = Record(function.name, arguments)
        self._keep(result)

    def _keep(self, value: Any) -> None:
        """Replace the top of the stack by the created value."""
        if isinstance(value, LazyTensor):
            self._allowed += _PER_TENSOR
        elif type(value) is Record:
            self._count(4)
            self.unknown[value.name] = None
        else:
            self._count(2)
        self._stack[-1] = value

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if type(target) is Record:
            if target.state is not None:
                raise PickleError("it sets the state of an object twice")
            target.state = state
        elif isinstance(target, Buildable):
            self._replace(target, target.build(state))
        elif isinstance(target, LazyTensor):
            # Before torch 0.4 a tensor had flags; in the oldest form the tensor comes with them.
            if type(state) is tuple and len(state) == 4 and isinstance(state[0], LazyTensor):
                self._replace(target, state[0])
        elif isinstance(target, Constructor):  # would set the attributes of a class or module
            raise ForbiddenNameError(target.name)
        elif type(target) is not dict:  # for an OrderedDict it is `_metadata`: versions of modules
            raise PickleError(f"it sets attributes of a {type(target).__name__}")

    def _replace(self, target: Any, value: Any) -> None:
        """Replace the target of a state by the value, also in the memo."""
        self._keep(value)
        if value is not target:
            for key in islice(reversed(self._memo), _LATEST):
                if self._memo[key] is target:
                    self._memo[key] = value

    def _persistent_id(self) -> None:
        self._stack[-1] = self._persistent(self._stack[-1])

    def _protocol(self) -> None:
        version = self._byte()
        if version > 5:
            raise PickleError(f"it has the protocol {version}")

    def _unknown(self) -> None:
        code = self.data[self.at - 1]
        raise PickleError(f"it has the instruction 0x{code:02x}, which no checkpoint contains")


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise PickleError(f"it uses a {type(value).__name__} as a {kind.__name__}")
    return value


def key_of(value: Any, *, inner: bool = False) -> Any:
    """Return the value if it may be a key: its hash must neither recurse deeply nor collide at will.

    Raises:
        PickleError: the value may not be a key.
    """
    kind = type(value)
    if kind is str:
        return value
    if kind in _PLAIN_KEYS:
        largest = _LARGEST_INNER if inner else _LARGEST_KEY
        if kind is int and not -largest < value < largest:
            raise PickleError("a key is a very large number")
        return value
    if kind is Record or isinstance(value, Constructor | LazyTensor):  # hashed by identity
        return value
    if kind in (frozenset, complex) and not inner:  # equal keys stay separate; nobody looks them up
        return Record(kind.__name__, (value,))
    if isinstance(value, tuple) and len(value) <= _LONGEST_KEY and not inner:
        for item in value:
            key_of(item, inner=True)
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
    b"B": lambda m: m._bytes(m._number(_UINT, 4)),
    b"C": lambda m: m._push(m._take(m._byte())),
    b"\x8e": lambda m: m._bytes(m._number(_ULONG, 8)),
    b"\x96": Machine._byte_array,
    b"\x98": lambda m: None,  # READONLY_BUFFER: nothing of this package is written to
    b"I": Machine._line_integer,
    b"L": Machine._line_integer,
    b"F": lambda m: m._push(float(m._line(_LONGEST_DIGITS))),
    b"S": Machine._line_text,
    b"V": lambda m: m._push(codecs.raw_unicode_escape_decode(m._line(_LONGEST_TEXT))[0]),
    b"]": lambda m: m._new([], 1),
    b"l": Machine._list,
    b"d": Machine._dict,
    b"a": Machine._append,
    b"e": lambda m: m._extend(m._items()),
    b")": lambda m: m._push(()),
    b"t": Machine._tuple,
    b"\x85": lambda m: m._few(1),
    b"\x86": lambda m: m._few(2),
    b"\x87": lambda m: m._few(3),
    b"}": lambda m: m._new({}, 2),
    b"s": Machine._set_item,
    b"u": lambda m: m._fill(m._items()),
    b"\x8f": lambda m: m._new(set(), 4),
    b"\x90": Machine._add_items,
    b"\x91": Machine._frozen_set,
    b"\x94": Machine._memoize,
    b"p": lambda m: m._memo.update({m._line_place(): m._stack[-1]}),
    b"g": lambda m: m._push(m._memo[m._line_place()]),
    b"j": lambda m: m._push(m._memo[m._number(_UINT, 4)]),
    b"c": Machine._global,
    b"\x93": Machine._stack_global,
    b"i": Machine._instance,
    b"o": Machine._object,
    b"R": Machine._reduce,
    b"\x81": Machine._reduce,  # a class and its arguments: the same to a Constructor
    b"\x92": Machine._new_object,
    b"b": Machine._build,
    b"P": lambda m: m._push(m._persistent(m._line().decode("latin-1"))),
    b"Q": Machine._persistent_id,
}
for _code, _step in _STEPS_BY_CODE.items():
    _STEPS[_code[0]] = _step
