"""Meaning of each line of a job's files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from migrate.launch.launchers.launcher import JobFile

_CONTINUED = re.compile(r"\s*\\$")


@dataclass(frozen=True)
class Meaning:
    """A line of a file, and what it is for."""

    number: int
    line: str
    text: str


def explain(file: JobFile) -> Iterator[Meaning]:
    """Yield the meaning of each line that is not empty.

    A line has the meaning of its key, else of the comment above it, else of the line before. Pages in
    Markdown explain themselves.
    """
    if file.name.endswith(".md"):
        return
    text, is_comment = "", False
    for number, line in enumerate(file.text.splitlines(), 1):
        words = line.strip()
        if not words or words in "{}":
            is_comment = False
            continue
        if words.startswith("#!"):
            yield Meaning(number, line, "The program that runs this file.")
        elif words.startswith("#"):
            said = words.lstrip("# ")
            text = f"{text} {said}" if is_comment else said
        else:
            text = _by_key(words, file) or text
            yield Meaning(number, line, text)
        is_comment = words.startswith("#") and not words.startswith("#!")


def _by_key(words: str, file: JobFile) -> str:
    """Return the meaning of the longest key that a line begins with."""
    line = _CONTINUED.sub("", words).removeprefix("- ").lstrip("'\"")
    keys = [key for key in file.meanings if re.match(rf"{re.escape(key)}(?![\w-])", line)]
    return file.meanings[max(keys, key=len)] if keys else ""
