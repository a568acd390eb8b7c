"""Code cells of a notebook as one module, and the split of that module back into cells."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

from migrate.errors import MigrateError
from migrate.syntax.interpreter import syntax_tree
from migrate.syntax.notebook.magics import Magics, hidden, parses
from migrate.syntax.notebook.text import SUFFIX, Cell, Notebook, parse_notebook
from migrate.syntax.origins import Message, Related

RULE = "notebook"
# The line after each cell; the `x` are added if a notebook has such a name itself.
MARK = re.compile(r"^pass  # __migrate_x*cell_\d+__", re.MULTILINE)


class NotMappedError(Exception):
    """Rules changed the joined cells so that they cannot be split again: a defect of the rules."""


@dataclass(frozen=True)
class Unread:
    """Cell that is no Python.

    Args:
        number: the number of the cell.
        line, column: the position in the cell, from 1.
        why: the message of the parser.
    """

    number: int
    line: int
    column: int
    why: str


@dataclass(frozen=True)
class Cells:
    """Cells of a notebook, joined.

    Args:
        notebook: the notebook.
        code: the cells that parse, in their order, with a line between them that marks the end of each.
        places: for each line of `code`, the cell and the line in it.
        unread: the cells that do not parse; `code` only mentions the names that they may use.
        magics: the hidden texts.
        mark: the prefix of the lines between the cells.
    """

    notebook: Notebook
    code: str
    places: tuple[tuple[int, int], ...]
    unread: tuple[Unread, ...]
    magics: Magics
    mark: str

    def place(self, line: int) -> tuple[int, int]:
        """Return the cell, and the line in it, for a line of the joined code."""
        return self.places[min(max(line, 1), len(self.places)) - 1]

    def in_words(self, message: str) -> Message:
        """Return `message` with lines of the joined code replaced by lines of cells."""

        def in_cell(related: Related) -> Related:
            if related.path is not None or related.cell is not None:
                return related
            cell, line = self.place(related.line)
            return replace(related, line=line, cell=cell)

        return Message.of(message).moved(in_cell)

    def sources(self, code: str) -> dict[int, str]:
        """Return the source of each changed cell, given the joined code as the rules left it.

        Raises:
            NotMappedError: an end of a cell, or a hidden text, is not where it was.
        """
        before, after = self._parts(self.code), self._parts(code)
        if before.keys() != after.keys():
            raise NotMappedError
        changed = {}
        by_number = {cell.number: cell for cell in self.notebook.cells}
        for number, part in after.items():
            if part == before[number]:
                continue
            if sorted(self.magics.numbers(part)) != sorted(self.magics.numbers(before[number])):
                raise NotMappedError
            old = by_number[number].source
            new = _magic_first(_framed(self.magics.put_back(part), old), old)
            if new != old:
                changed[number] = new
        return changed

    def _parts(self, code: str) -> dict[int, str]:
        parts: dict[int, str] = {}
        pieces = re.split(rf"^pass  # {self.mark}(\d+)__\r?\n?", code, flags=re.MULTILINE)
        for text, number in zip(pieces[::2], pieces[1::2], strict=False):
            parts[int(number)] = text
        return parts


def join(notebook: Notebook) -> Cells:
    """Return the code cells of `notebook` as one module."""
    name = "__migrate_"
    while name in notebook.text:
        name += "x"
    magics = Magics(f"{name}magic_")
    parts: list[tuple[Cell, str, list[int]]] = []
    unread: list[Unread] = []
    magics.imported = _imported(notebook, f"{name}magic_")
    for cell in notebook.cells:
        code, numbers = hidden(cell.source, magics)
        if (error := parses(code)) is not None:
            line = numbers[min(max(error.lineno or 1, 1), len(numbers)) - 1]
            unread.append(Unread(cell.number, line, error.offset or 1, error.msg))
            code, numbers = magics.hide(cell.source.rstrip()), [1]
        parts.append((cell, code, numbers))
    mark = f"{name}cell_"
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for cell, code, numbers in parts:
        lines += [*code.split("\n"), f"pass  # {mark}{cell.number}__"]
        places += [(cell.number, number) for number in (*numbers, numbers[-1])]
    return Cells(notebook, "\n".join(lines) + "\n", tuple(places), tuple(unread), magics, mark)


def code_of(data: bytes, path: Path) -> bytes:
    """Return the Python code of the file at `path`: its content, or that of a notebook's cells, joined.

    Empty for a notebook that cannot be read.
    """
    if path.suffix != SUFFIX or MARK.search(data.decode(errors="replace")):
        return data
    try:
        return join(parse_notebook(data, path)).code.encode()
    except MigrateError:
        return b""


def _imported(notebook: Notebook, name: str) -> frozenset[str]:
    """Return the names that the cells import."""
    imported: set[str] = set()
    for cell in notebook.cells:
        code, _ = hidden(cell.source, Magics(name))
        if parses(code) is None:
            for node in ast.walk(syntax_tree(code.encode())):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = (alias.asname or alias.name.split(".")[0] for alias in node.names)
                    imported.update(names)
    return frozenset(imported)


def _framed(new: str, old: str) -> str:
    """Return `new` with the blank lines that `old` begins and ends with."""
    head = old[: len(old) - len(old.lstrip("\n"))]
    tail = old[len(old.rstrip()) :]
    return head + new.lstrip("\n").rstrip() + tail


def _magic_first(new: str, old: str) -> str:
    """Return `new` with the magic of the whole cell, if `old` has one, above what was added."""
    first = old.lstrip().split("\n")[0]
    if not first.startswith("%%") or new.lstrip().startswith("%%"):
        return new
    head, _, rest = new.partition(f"{first}\n")
    return f"{first}\n{head}{rest}"
