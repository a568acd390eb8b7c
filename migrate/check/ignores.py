"""Comments that silence a hazard on their line: `# migrate: ignore[XLA201]`, `# migrate: ignore`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.check.config import naming
from migrate.reading.script import Script

COMMENT = re.compile(r"#\s*migrate:\s*ignore(?:\[([^\]]*)\])?")


@dataclass(eq=False)
class Ignore:
    """An ignore comment.

    Args:
        comment: the comment's node.
        codes: the codes that it names. Empty if it silences all codes.
    """

    comment: cst.Comment
    codes: tuple[str, ...]
    used: set[str] = field(default_factory=set)

    def covers(self, code: str) -> bool:
        """Whether the comment silences `code`, and remember that it did."""
        named = naming(self.codes, code)
        if self.codes and named is None:
            return False
        self.used.add(named or "")
        return True

    @property
    def unused(self) -> str | None:
        """Description of the unused part of the comment, or None if all of it is used."""
        if not self.codes:
            return None if self.used else "nothing on this line is reported"
        idle = [code for code in self.codes if code not in self.used]
        return f"{', '.join(idle)} is not reported on this line" if idle else None


def ignores(context: Script) -> dict[int, Ignore]:
    """Return the comments of a script by line."""
    ignores = {}
    for node in context.all_of(cst.Comment):
        if match := COMMENT.search(node.value):
            codes = _codes(match[1] or "")
            ignores[context.position(node).line] = Ignore(node, codes)
    return ignores


def _codes(text: str) -> tuple[str, ...]:
    return tuple(code for code in re.split(r"[\s,]+", text.upper()) if code)


def silenced(code: str, lines: Sequence[int], ignores: dict[int, Ignore]) -> bool:
    """Whether a comment on one of `lines` silences `code`."""
    return any(line in ignores and ignores[line].covers(code) for line in lines)
