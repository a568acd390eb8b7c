"""YAML file of the user. Errors in it are reported with key and line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from migrate.assess.errors import AssessError


@dataclass(frozen=True)
class TableEntry:
    """A value of the file, with the way to it.

    Attributes:
        file: the file.
        key: such as "tpu.v5e.spot"; empty for the file itself.
        node: what stands there.
    """

    file: Path
    key: str
    node: yaml.Node

    def wrong(self, what: str, remedy: str) -> NoReturn:
        """Raise the error that names this place."""
        line = self.node.start_mark.line + 1
        raise AssessError(f"{self.file}:{line}: {self.key or 'the file'} {what}", remedy)

    def entries(self) -> Iterator[tuple[str, TableEntry]]:
        """The entries of a table, by name; each name once."""
        if not isinstance(self.node, yaml.MappingNode):
            self.wrong("is not a table", "write names with values")
        seen = set()
        for key, value in self.node.value:
            name = str(key.value)
            entry = TableEntry(self.file, f"{self.key}.{name}".lstrip("."), value)
            if name in seen:
                entry.wrong("stands there twice", "leave one of them out")
            seen.add(name)
            yield name, entry

    def table(self, needed: set[str], allowed: set[str]) -> dict[str, TableEntry]:
        """Return the entries of a table whose names are known."""
        entries = dict(self.entries())
        for name, entry in entries.items():
            if name not in needed | allowed:
                entry.wrong("is not known", f"one of {', '.join(sorted(needed | allowed))}")
        if missing := sorted(needed - set(entries)):
            self.wrong(f"has no {missing[0]}", "add it")
        return entries

    def number(self) -> float:
        """A number that is not negative."""
        value = self.node.value if isinstance(self.node, yaml.ScalarNode) else None
        try:
            number = float(str(value))
        except ValueError:
            self.wrong(f"is not a number ({self._shown()})", "write it as 1.20")
        if not math.isfinite(number) or number < 0:
            self.wrong(f"is {value}", "give a number that is not negative")
        return number

    def numbers(self, count: int) -> list[float]:
        """So many of them, in a list."""
        if not isinstance(self.node, yaml.SequenceNode) or len(self.node.value) != count:
            self.wrong(f"is not a list of {count} numbers", "write it as [2, 0.5]")
        return [TableEntry(self.file, self.key, number).number() for number in self.node.value]

    def text(self) -> str:
        """A text."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            self.wrong("is not a text", "write one")
        return str(self.node.value)

    def _shown(self) -> str:
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else "a table or list"


def read_table(file: Path, shipped: Path) -> TableEntry:
    """The file as it stands.

    Args:
        file: the file.
        shipped: ours of the same form, for the message.

    Raises:
        AssessError: the file cannot be read, or is no YAML.
    """
    remedy = f"a file such as {shipped} has the form"
    try:
        node = yaml.compose(file.read_text(), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text"
        raise AssessError(f"{file}: cannot be read ({reason})", remedy) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        raise AssessError(f"{file}{line}: not YAML ({error.problem})", remedy) from None
    except yaml.YAMLError:
        raise AssessError(f"{file}: not YAML", remedy) from None
    if node is None:
        raise AssessError(f"{file}: is empty", remedy)
    return TableEntry(file, "", node)
