"""Rules that may concern a file, decided on its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import ClassVar, Protocol, TypeVar

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry

# Shorter names are parts of many words.
SHORT = 6


def seen_by(words: bytes, entries: Iterable[CatalogueEntry]) -> re.Pattern[bytes]:
    """Return the expression for `words`, and for the names of `entries` without any of them."""
    pattern = re.compile(words)
    parts: list[bytes] = []  # long last parts, which also count within a word
    whole: set[bytes] = set()  # short ones
    for name in sorted((entry.name for entry in entries), key=lambda name: (name.count("."), name)):
        text = name.encode()
        if pattern.search(text) is not None or any(part in text for part in parts):
            continue
        if not whole.isdisjoint(re.findall(rb"\w+", text)):
            continue
        last = name.rpartition(".")[2].encode()
        expression = re.escape(last)
        words += rb"|\b" + expression + rb"\b" if len(last) < SHORT else b"|" + expression
        if len(last) < SHORT:
            whole.add(last)
        else:
            parts.append(last)
    return re.compile(words)


# Every construct that a rule handles contains one of these: torch, the devices, the environment of the
# launchers, the two calls that make a training step, or a name of the catalogue.
WORDS = seen_by(
    rb"torch|cuda|faiss|nccl|sentence_transformers|whisper|pipeline\(|lightning|fastai|accelerat|xla|nvidia"
    rb"|nvml|tensorrt|transformer_engine|attn_implementation|backward|\.step\b|\.to\(|gpu|RANK|WORLD_SIZE|MASTER_|SLURM|OMPI_|migrate:\s*step",
    (entry for entry in catalogue.IMPORTS.values() if entry.code or entry.rule),
)


# Tensors of other frameworks have a `cuda` and a `to` as well; they do not count here.
OTHER_FRAMEWORKS = re.compile(
    rb"^[ \t]*(import|from)[ \t]+(jittor|megengine|mindspore|oneflow|paddle)\b", re.MULTILINE
)


def concerns_rules(data: bytes) -> bool:
    """Return whether `data`, a Python file, holds a word of any rule; otherwise it stays unchanged.

    A file of another framework without any use of torch does not count.
    """
    if WORDS.search(data) is None:
        return False
    return b"torch" in data or OTHER_FRAMEWORKS.search(data) is None


class Worded(Protocol):
    """Rule or hazard.

    Attributes:
        words: a regular expression; a script without a match has nothing to report or edit.
        of_facts: facts of the project about the script, by their names in `ModuleCalls`. If all are empty,
            there is nothing to report or edit.

    Without both every script is inspected; with both either is enough.
    """

    words: ClassVar[str]
    of_facts: ClassVar[tuple[str, ...]]


Asked = TypeVar("Asked", bound=Worded)
# Names imported this way may stand for others, which are spelled elsewhere.
STAR = re.compile(r"import\s*\(?\s*\*")


def concerned(text: str, candidates: Iterable[Asked], calls: object) -> Sequence[Asked]:
    """Return the candidates that have a word in the script, or a fact about it.

    Args:
        text: the script, and the names that other files of its project re-export to it.
        candidates: rules or hazards.
        calls: the facts about the script from its project (`ModuleCalls`).
    """
    is_spelled = _Words.of(text).match
    return [
        candidate
        for candidate in candidates
        if not (candidate.words or candidate.of_facts)
        or any(attrgetter(name)(calls) for name in candidate.of_facts)
        or (candidate.words and is_spelled(candidate.words))
    ]


def spelled(names: Iterable[str]) -> str:
    """Return the expression for uses of the dotted `names`: each contains at least the last part of one."""
    return "|".join(sorted({re.escape(name.rpartition(".")[2]) for name in names}))


def named(names: Iterable[str]) -> str:
    """Return the expression for uses of the dotted `names`, each as a whole word."""
    return rf"\b(?:{spelled(names)})\b"


# Expressions of parts of words; of whole words; whose matches hold no other characters than those of a word.
_PARTS = re.compile(r"\w+(?:\|\w+)*", re.ASCII)
_WHOLE = re.compile(r"\\b\(\?:(\w+(?:\|\w+)*)\)\\b", re.ASCII)
_WITHIN_A_WORD = re.compile(r"(?:\w|\\b|\(\?:|[|)])+", re.ASCII)


class _Words:
    """Words of a script, with what was asked of them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.distinct = dict.fromkeys(re.findall(r"\w+", text))
        self.listed = "\n".join(self.distinct)
        self._by_a_star = STAR.search(text) is not None
        self._known: dict[str, bool] = {}

    @classmethod
    @lru_cache(maxsize=8)  # a script is inspected by rules, then by hazards
    def of(cls, text: str) -> _Words:
        """Return the words of a script."""
        return cls(text)

    def match(self, words: str) -> bool:
        """Whether the script has a match of an expression."""
        if words not in self._known:
            self._known[words] = self._by_a_star or _search(words)(self)
        return self._known[words]


@cache
def _search(words: str) -> Callable[[_Words], bool]:
    """Return the function that searches the words of a script for an expression.

    Long alternatives are slow to match one by one: plain ones are looked up.
    """
    if _PARTS.fullmatch(words):
        parts = words.split("|")
        return lambda script: any(part in script.listed for part in parts)
    if whole := _WHOLE.fullmatch(words):
        names = frozenset(whole[1].split("|"))
        return lambda script: not names.isdisjoint(script.distinct)
    pattern = re.compile(words)
    # A match that lies within a word is one in the list of all words, which is much shorter.
    if _WITHIN_A_WORD.fullmatch(words):
        return lambda script: pattern.search(script.listed) is not None
    return lambda script: pattern.search(script.text) is not None
