"""Map locations in a rewritten script to locations in the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from migrate.syntax.origins import origins
from shims._started import stand_in


def at_original(original: Path, rewritten: Path) -> Callable[[str], str]:
    """Map `rewritten.py:line` to the line of the original. Other locations are returned unchanged.

    A line that the rewrite added maps to the line above it.
    """
    lines = origins(original.read_text().splitlines(), rewritten.read_text().splitlines())

    def place(text: str) -> str:
        file, _, line = text.rpartition(":")
        if file != str(rewritten) or not line.isdecimal():
            return text
        near = max((start for start in lines if start <= int(line)), default=0)
        return f"{original}:{lines.get(near, (1, 0))[0]}"

    return place


def at_originals(original: Path, rewritten: Path) -> Callable[[str], str]:
    """Map `rewritten.py:line`, in the script or in a rewritten module, to the line of the original.

    Args:
        original: the script, as the user named it.
        rewritten: its rewritten form, in a folder of its own.
    """
    known = [at_original(original, rewritten)]
    for path, file in stand_in.files(rewritten).items():
        if path.suffix == ".py" and path.is_file():
            here = Path.cwd()
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            known.append(at_original(shown, file))

    def place(text: str) -> str:
        for at in known:
            text = at(text)
        return text

    return place
