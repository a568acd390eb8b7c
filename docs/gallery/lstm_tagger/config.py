"""The sizes of Tagger."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaggerConfig:
    """The sizes of Tagger."""

    vocabulary: int = 100
    embedding: int = 24
    hidden: int = 20
    tags: int = 9
