"""IPython syntax in code cells: hidden from the parser, and restored unchanged.

`%matplotlib inline`, `!ls`, `files = !ls`, `x?` and whole cells under `%%bash` become calls of made-up
functions. Their arguments are the imported names that the hidden text may use, so an import that only a magic
needs is not unused. The code that `%time` and similar magics run is Python, and stays visible.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from migrate.syntax.interpreter import syntax_tree

# Cell magics whose text is Python that runs in the notebook; the text of others stays unchanged.
RUN_PYTHON = frozenset({"capture", "debug", "memit", "prun", "time", "timeit", "wandb"})
# Line magics that run the Python after them and their options.
RUN_LINE = re.compile(r"%(?:time|timeit|prun|memit)\b(?:\s+-\w+(?:\s+\d+)?)*[ \t]+")
CELL_MAGIC = re.compile(r"\s*%%([^\s]+)[^\n]*")
ASSIGNED = re.compile(r"[ \t]*[A-Za-z_][\w., \t\[\]'\"*]*=[ \t]*(?=[%!])")
HELP = re.compile(r"[ \t]*(?:\?.*|%{0,2}[A-Za-z_*][\w.*\[\]'\"]*\?{1,2}[ \t]*)$")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# In a shell line only `{name}` and `$name` are Python's.
IN_SHELL = re.compile(r"[{$]\s*([A-Za-z_]\w*)")
SHELLS = frozenset({"bash", "sh", "script", "system", "cmd", "!", "sx"})
STRING = re.compile(r"(\"\"\"|'''|\"|')")


@dataclass
class Magics:
    """Hidden texts of a notebook, by number.

    Args:
        name: the prefix of the made-up functions' names; nothing in the notebook has it.
        texts: each text as written in its cell.
        imported: the names that the notebook imports.
    """

    name: str
    texts: list[str] = field(default_factory=list)
    imported: frozenset[str] = frozenset()

    def hide(self, text: str) -> str:
        """Return the call that stands for `text`."""
        self.texts.append(text)
        shell = text.lstrip().startswith("!") or _cell_magic(text) in SHELLS
        words = IN_SHELL.findall(text) if shell else IDENTIFIER.findall(text)
        names = [name for name in dict.fromkeys(words) if name in self.imported]
        return f"{self.name}{len(self.texts) - 1}__({', '.join(names)})"

    def numbers(self, code: str) -> list[int]:
        """Return the numbers of the hidden texts in `code`, in their order."""
        return [int(number) for number in re.findall(rf"{self.name}(\d+)__\(", code)]

    def put_back(self, code: str) -> str:
        """Return `code` with the hidden texts in their places."""
        call = re.compile(rf"{self.name}(\d+)__\([^()]*\)(; )?")

        def text(match: re.Match[str]) -> str:
            hidden = self.texts[int(match[1])]
            # `%time` of a removed statement
            alone = RUN_LINE.fullmatch(hidden) and not match[2]
            return f"{hidden}pass" if alone else hidden

        return call.sub(text, code)


def _cell_magic(source: str) -> str:
    match = CELL_MAGIC.match(source)
    return match[1] if match else ""


def parses(code: str) -> SyntaxError | None:
    """Return why `code` is no Python 3, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape sequence in the user's cell
        try:
            syntax_tree(code.encode())
        except SyntaxError as error:
            return error
        except (ValueError, RecursionError) as error:
            return SyntaxError(str(error))
    return None


def hidden(source: str, magics: Magics) -> tuple[str, list[int]]:
    """Return the cell `source` as Python, and for each line of it the line of the cell, from 1."""
    magic = CELL_MAGIC.match(source)
    if magic is not None and magic[1] not in RUN_PYTHON:
        return magics.hide(source.rstrip()), [1]
    if magic is None and parses(source) is None:
        return source, list(range(1, len(source.split("\n")) + 1))
    lines, numbers = [], []
    for number, line, starts in _logical_lines(source):
        lines.append(_hidden_line(line, magics) if starts else line)
        numbers.append(number)
    return "\n".join(lines), numbers


def _logical_lines(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines with their numbers, and whether a statement may start there.

    A magic that continues on the next line with a backslash is one line.
    """
    lines = source.split("\n")
    at, depth, quote = 0, 0, ""
    goes_on = False
    while at < len(lines):
        number, line, starts = at + 1, lines[at], not (depth or quote or goes_on)
        if starts and _is_magic(line):
            while line.endswith("\\") and at + 1 < len(lines):
                at += 1
                line += f"\n{lines[at]}"
        else:
            depth, quote = _open(line, depth, quote)
            goes_on = line.endswith("\\") and not quote
        yield number, line, starts
        at += 1


def _is_magic(line: str) -> bool:
    bare = line.lstrip(" \t")
    return (
        bare.startswith(("%", "!", "?"))
        or ASSIGNED.match(line) is not None
        or (HELP.fullmatch(line) is not None)
    )


def _hidden_line(line: str, magics: Magics) -> str:
    if not _is_magic(line):
        return line
    bare = line.lstrip(" \t")
    indentation = line[: len(line) - len(bare)]
    if runs := RUN_LINE.match(bare):
        statement = bare[runs.end() :]
        if parses(statement) is None:
            return f"{indentation}{magics.hide(runs[0])}; {statement}"
    assigned = ASSIGNED.match(line)
    if assigned is not None and not bare.startswith(("%", "!")):
        return assigned[0] + magics.hide(line[assigned.end() :])
    return indentation + magics.hide(bare)


def _open(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Return the open brackets and the open triple quote after `line`."""
    at = 0
    while at < len(line):
        if quote:
            if line[at] == "\\":
                at += 2
                continue
            if line.startswith(quote, at):
                at, quote = at + len(quote), ""
                continue
            at += 1
            continue
        character = line[at]
        if character == "#":
            break
        if match := STRING.match(line, at):
            quote = match[0]
            at += len(quote)
            continue
        depth += (character in "([{") - (character in ")]}")
        at += 1
    # A string in single quotes ends with its line, unless a backslash carries it on.
    return max(0, depth), quote if len(quote) == 3 else ""
