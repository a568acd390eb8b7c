"""Jupyter notebook as text: the locations of the sources of code cells, and their replacement.

A notebook is JSON. All text except the source of a changed cell stays byte for byte: the text is cut at the
spans of those sources, and is never written anew as a whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate.errors import MigrateError
from migrate.syntax.source import NotUtf8Error, read_bytes

SUFFIX = ".ipynb"
_SPACE = re.compile(r"[ \t\r\n]*")
# One character of a JSON string as it is written: an escape, a pair of surrogates, or itself.
_WRITTEN = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]",
    re.DOTALL,
)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_decode = json.JSONDecoder().raw_decode


class InvalidNotebookError(MigrateError):
    """The file is no notebook that can be worked on.

    Cause: it is no JSON, has a format before 4, holds no code, or its code is not Python.

    Remedy: open the notebook in Jupyter and save it, which writes the current format.
    """


class NoCodeError(InvalidNotebookError):
    """The notebook holds no code.

    Cause: all its cells are text.

    Remedy: name a notebook with code cells.
    """


@dataclass(frozen=True)
class Cell:
    """Code cell.

    Args:
        number: its index among all cells, of any kind, from 1.
        source: its code.
        start, end: the span of the JSON value of its source in the text.
    """

    number: int
    source: str
    start: int
    end: int


@dataclass(frozen=True)
class Notebook:
    """Notebook as read: its path, its bytes, its text, its code cells."""

    path: Path
    data: bytes
    text: str
    cells: tuple[Cell, ...]

    def with_sources(self, sources: Mapping[int, str]) -> bytes:
        """Return the notebook with other code in some cells, by number; the rest is unchanged."""
        parts, at = [], 0
        for cell in self.cells:
            new = sources.get(cell.number, cell.source)
            if new != cell.source:
                written = _exchanged(self.text[cell.start : cell.end], new, self.text)
                parts += [self.text[at : cell.start], written]
                at = cell.end
        parts.append(self.text[at:])
        mark = codecs.BOM_UTF8 if self.data.startswith(codecs.BOM_UTF8) else b""
        return mark + "".join(parts).encode()

    def file_line(self, number: int, line: int) -> int:
        """Return the line of the file in which line `line` of cell `number` is written, from 1."""
        cell = next(cell for cell in self.cells if cell.number == number)
        written = _written_lines(self.text[cell.start : cell.end])
        offsets = [offset for _, _, offset in written]
        offset = offsets[min(line, len(offsets)) - 1] if offsets else 0
        return self.text.count("\n", 0, cell.start + offset) + 1


def read_notebook(path: Path) -> Notebook:
    """Read the notebook at `path`.

    Raises:
        UnreadableScriptError, NotUtf8Error, InvalidNotebookError: one line each.
    """
    return parse_notebook(read_bytes(path), path)


def parse_notebook(data: bytes, path: Path) -> Notebook:
    """Return the notebook at `path`, whose content is `data`.

    Raises:
        NotUtf8Error, InvalidNotebookError: one line each.
    """
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotUtf8Error(
            f"{path}:{line}: is not UTF-8", "save the notebook with Jupyter"
        ) from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"{path}:{error.lineno}:{error.colno}: is not JSON ({error.msg})"
        raise InvalidNotebookError(what, "restore the notebook from a copy") from None
    except RecursionError:
        what = f"{path}: is nested too deeply for a notebook"
        raise InvalidNotebookError(what, "save it with Jupyter") from None
    _check(content, path)
    cells = tuple(_cells(text, content["cells"]))
    if not cells:
        raise NoCodeError(f"{path}: has no code cells", "name a notebook with code")
    return Notebook(path, data, text, cells)


def _check(content: Any, path: Path) -> None:
    """Raise InvalidNotebookError if `content` is no notebook of Python code in format 4."""
    if not isinstance(content, dict) or not ({"nbformat", "cells", "worksheets"} & content.keys()):
        raise InvalidNotebookError(f"{path}: JSON, but not a notebook", "name a Jupyter notebook")
    version = content.get("nbformat", 4)
    if "worksheets" in content or not isinstance(version, int) or version < 4:
        raise InvalidNotebookError(
            f"{path}: is in notebook format {version}",
            "open and save it with Jupyter, or: jupyter nbconvert --to notebook --inplace",
        )
    cells = content.get("cells")
    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        what = f"{path}: its cells are not those of a notebook"
        raise InvalidNotebookError(what, "restore the notebook from a copy")
    language = _language(content.get("metadata"))
    if language and not language.lower().startswith(("python", "ipython")):
        raise InvalidNotebookError(f"{path}: its code is {language}", "name a notebook of Python")


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict) or "cell_type" not in cell:
        return False
    source = cell.get("source", "")
    lines = source if isinstance(source, list) else [source]
    return all(isinstance(line, str) for line in lines)


def _language(metadata: Any) -> str:
    """Return the language of the notebook's kernel; empty if it is not given."""
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return str(part[name])
    return ""


def _cells(text: str, contents: list[dict[str, Any]]) -> Iterator[Cell]:
    """Yield the code cells, with the spans of their sources in `text`."""
    top = dict(_members(text, _after_space(text, 0)))
    spans = _items(text, top["cells"][0])
    for number, ((start, _), content) in enumerate(zip(spans, contents, strict=True), 1):
        members = dict(_members(text, start))  # the last value of a repeated key counts, as in JSON
        if content["cell_type"] == "code" and "source" in members:
            source = content["source"]
            joined = source if isinstance(source, str) else "".join(source)
            yield Cell(number, joined, *members["source"])


def _members(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the keys of the JSON object that starts at `at`, with the spans of their values."""
    at = _after_space(text, at + 1)
    while text[at] != "}":
        key, at = _decode(text, at)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _decode(text, start)
        yield key, (start, end)
        at = _after_space(text, end)
        at = _after_space(text, at + 1) if text[at] == "," else at


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the elements of the JSON array that starts at `at`."""
    at = _after_space(text, at + 1)
    while text[at] != "]":
        _, end = _decode(text, at)
        yield at, end
        at = _after_space(text, end)
        at = _after_space(text, at + 1) if text[at] == "," else at


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _exchanged(value: str, new: str, text: str) -> str:
    """Return the JSON of the code `new` in the form, a string or a list of lines, of `value`.

    Unchanged lines stay as written, escapes included, also if their indentation changes.
    """
    known: dict[str, str] = {}
    bare: dict[str, str] = {}
    for line, written, _ in _written_lines(value):
        known.setdefault(line, written)
        bare.setdefault(line.lstrip(" \t"), _without_indentation(line, written))
    ascii_only = re.search(r"\\u[0-9a-fA-F]{4}", value) is not None or text.isascii()

    def write(line: str) -> str:
        code = line.lstrip(" \t")
        if line in known:
            return known[line]
        written = bare.get(code) or json.dumps(code, ensure_ascii=ascii_only)[1:-1]
        return json.dumps(line[: len(line) - len(code)])[1:-1] + written

    lines = [write(line) for line in _LINE.findall(new)]
    if value.startswith('"'):
        return f'"{"".join(lines)}"'
    spans = list(_items(value, 0))
    if not spans:
        return json.dumps(_LINE.findall(new), ensure_ascii=ascii_only)
    head, tail = value[: spans[0][0]], value[spans[-1][1] :]
    between = value[spans[0][1] : spans[1][0]] if len(spans) > 1 else f",{head[1:] or ' '}"
    return head + between.join(f'"{line}"' for line in lines) + tail


def _without_indentation(line: str, written: str) -> str:
    """Return `written`, the JSON of `line`, without that of its indentation."""
    count = len(line) - len(line.lstrip(" \t"))
    pieces = _WRITTEN.findall(written)
    return "".join(pieces[count:])


def _written_lines(value: str) -> list[tuple[str, str, int]]:
    """Return the lines of a source, each as text, as written, and with its offset in `value`."""
    spans = [(0, len(value))] if value.startswith('"') else list(_items(value, 0))
    lines: list[tuple[str, str, int]] = []
    line, written, offset = "", "", None
    for start, end in spans:
        for match in _WRITTEN.finditer(value, start + 1, end - 1):
            offset = match.start() if offset is None else offset
            character = json.loads(f'"{match[0]}"', strict=False)
            line, written = line + character, written + match[0]
            if character == "\n":
                lines.append((line, written, offset))
                line, written, offset = "", "", None
    if offset is not None:
        lines.append((line, written, offset))
    return lines


# A cell that writes a script of its own.
WRITES = re.compile(
    r"\s*%%(?:writefile|file)[ \t]+(?!-a\b|--append\b)['\"]?([^\s'\"]+\.py)['\"]?[ \t]*\n"
)


def written_scripts(notebook: Notebook) -> Iterator[tuple[Cell, str]]:
    """Yield the cells that write a script of their own, `%%writefile train.py`, with its text."""
    for cell in notebook.cells:
        if match := WRITES.match(cell.source):
            yield cell, cell.source[match.end() :]
