"""Read a script: bytes on disk to a concrete syntax tree that can be written back byte for byte."""

from __future__ import annotations

import codecs
import io
import sys
import tokenize
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import libcst as cst

from migrate.errors import MigrateError
from migrate.syntax.interpreter import compiled, syntax_tree
from migrate.syntax.positions import Positions

_OPENING = b"([{"
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}")
_MOST_BRACKETS = 200  # in one another, in CPython


class UnreadableScriptError(MigrateError):
    """The script cannot be read.

    Cause: the path does not exist, is a directory, or may not be read by this user.

    Remedy: pass the path of one or more Python files.
    """


class NotUtf8Error(MigrateError):
    """The script is not encoded as it says.

    Cause: a Python source file is UTF-8 unless its first two lines declare another encoding (PEP 263);
    this one holds bytes that its encoding does not allow.

    Remedy: save the file as UTF-8, or declare its encoding in the first line.
    """


class NotPythonError(MigrateError):
    """The script does not parse as Python 3.

    Cause: a syntax error, or Python 2 source (`print x`, `.cuda(async=True)`).

    Remedy: mend the named line; `python -m py_compile FILE` shows the same place.
    """


@dataclass(frozen=True)
class Source:
    """Script as read: its path, its bytes, its tree."""

    path: Path
    data: bytes
    module: cst.Module

    @property
    def is_notebook(self) -> bool:
        """Whether this is the code of a Jupyter notebook, its cells joined."""
        return self.path.suffix == ".ipynb"

    @cached_property
    def text(self) -> str:
        """Text of the script, a byte order mark included."""
        return self.data.decode(_codec(self.module))

    @cached_property
    def positions(self) -> Positions:
        """Start and end of each node of the tree."""
        return Positions(self.module)

    @cached_property
    def _is_exact(self) -> bool:
        return self.positions.code.encode(self.module.encoding) == self.data

    def render(self, module: cst.Module) -> bytes:
        """Return `module`, an edited form of this source's tree, as bytes in the encoding of the original.

        libcst drops some blank lines at the end of a file; the original's are put back.
        """
        if self._is_exact:
            return self.data if module is self.module else module.bytes
        codec = _codec(self.module)
        edited = module.bytes.decode(codec)
        tail = self.text[len(self.text.rstrip()) :]
        return (edited.rstrip() + tail).encode(codec)


def _codec(module: cst.Module) -> str:
    # libcst names the codec as Python's tokenizer does; "utf-8-sig" adds and removes the mark.
    return module.encoding


def read(path: Path) -> Source:
    """Read and parse the script at `path`.

    Raises:
        UnreadableScriptError, NotUtf8Error, NotPythonError: one line each, with file and position.
    """
    return parse(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """Return the content of the file at `path`.

    Raises:
        UnreadableScriptError: one line, with the reason.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UnreadableScriptError(f"{path}: no such file", "check the path") from None
    except IsADirectoryError:
        raise UnreadableScriptError(
            f"{path}: is a directory",
            "name the Python files in it, or one folder, and -o OUT or --in-place",
        ) from None
    except OSError as error:
        raise UnreadableScriptError(
            f"{path}: {(error.strerror or str(error)).lower()}", "check the file's permissions"
        ) from None


def parse(data: bytes, path: Path) -> Source:
    """Parse `data`, the content of the script at `path`.

    Raises:
        NotUtf8Error, NotPythonError: one line each, with file and position.
        RecursionError: it nests deeper than the stack; see `migrate.syntax.interpreter`.
    """
    decoded(data, path)
    if _may_nest_too_deeply(data):
        require_python(data, path)
    try:
        module = cst.parse_module(data)
    except cst.ParserSyntaxError as error:
        line, column, message = _syntax_error(data, error)
        raise NotPythonError(f"{path}:{line}:{column}: {message}", "fix this line first") from None
    source = Source(path, data, module)
    try:
        as_it_was = source.render(module)
    except RecursionError:
        require_python(data, path)
        raise
    if as_it_was != data:
        raise NotPythonError(
            f"{path}: cannot be written back byte for byte",
            "normalize its line endings and white space first",
        )
    return source


def _may_nest_too_deeply(data: bytes) -> bool:
    """Whether brackets may nest deeper than Python allows, which would crash libcst.

    Brackets in strings and comments are counted too.
    """
    steps = (1 if bracket in _OPENING else -1 for bracket in data.translate(None, _NO_BRACKETS))
    return max(accumulate(steps), default=0) > _MOST_BRACKETS


def require_python(data: bytes, path: Path) -> None:
    """Check that Python itself can compile `data`, the content of the script at `path`.

    Raises:
        NotPythonError: with the position that Python names.
    """
    try:
        compiled(data)
    except (RecursionError, MemoryError):  # the latter of its parser
        what = f"{path}: an expression nests deeper than Python itself compiles"
        raise NotPythonError(what, "split it into several") from None
    except (SyntaxError, ValueError) as error:
        line, column, message = _place(error)
        raise NotPythonError(f"{path}:{line}:{column}: {message}", "fix this line first") from None


def require_this_python(data: bytes, path: Path) -> None:
    """Check that the running Python can compile a script; libcst accepts newer versions.

    Raises:
        NotPythonError: with the position that Python names.
    """
    try:
        require_python(data, path)
    except NotPythonError as error:
        this = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        remedy = f"if the script is for a newer Python than {this}, run migrate with that"
        raise NotPythonError(error.what, remedy) from None


def why_unread(path: Path) -> str:
    """Return why the script at `path` cannot be followed, in one line; empty if it can."""
    try:
        data = read_bytes(path)
        decoded(data, path)
        require_this_python(data, path)
    except MigrateError as error:
        return str(error)
    return ""


def decoded(data: bytes, path: Path) -> str:
    """Return `data`, the content of the script at `path`, as text.

    Raises:
        NotUtf8Error: with the line of the first byte that the script's encoding does not allow.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise NotUtf8Error(f"{path}:1: is UTF-16, not UTF-8", "save the file as UTF-8")
    try:
        codec, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        codec = "utf-8"
        if "unknown encoding" in str(error):
            remedy = "declare an encoding that Python knows"
            raise NotUtf8Error(f"{path}:1: {error}", remedy) from None
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"{path}:{line}: byte 0x{data[error.start]:02x} is not valid {codec}"
        raise NotUtf8Error(what, "save the file as UTF-8") from None


def _syntax_error(data: bytes, error: cst.ParserSyntaxError) -> tuple[int, int, str]:
    """Return line, column (both from 1) and message; those of CPython, which are exact, if it objects too."""
    try:
        syntax_tree(data)
    except (SyntaxError, ValueError) as exact:
        return _place(exact)
    return error.raw_line, error.raw_column + 1, "does not parse as Python 3"


def _place(error: SyntaxError | ValueError) -> tuple[int, int, str]:
    if isinstance(error, SyntaxError):
        return error.lineno or 1, error.offset or 1, error.msg
    return 1, 1, str(error)  # null bytes
