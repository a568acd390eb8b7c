"""The banner at the top of each page: the verdict, what it rests on, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["fine", "open", "wrong"]


@dataclass(frozen=True)
class Banner:
    """The verdict of a page.

    Attributes:
        state: "fine"; "wrong"; "open" where the question is not decided or a person has to look.
        verdict: the verdict in a few words.
        finding: one sentence that says what was found.
        next_step: one sentence that says what to do. Text in backticks is shown as code.
    """

    state: State
    verdict: str
    finding: str
    next_step: str

    @property
    def mark(self) -> str:
        """The symbol of the state."""
        return {"fine": "✓", "wrong": "✗", "open": "!"}[self.state]


def sentence(text: str) -> str:
    """Return `text` as a sentence: with a capital, unless it begins with a name, and a full stop."""
    first = text.split(" ", 1)[0]
    is_name = any(letter in "._/`" or letter.isdigit() or letter.isupper() for letter in first)
    capital = text if is_name else text[:1].upper() + text[1:]
    return capital if capital.endswith((".", "!", "?")) else capital + "."


def joined(names: list[str]) -> str:
    """Return names as people list them: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
