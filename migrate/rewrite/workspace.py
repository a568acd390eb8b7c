"""A script that is being rewritten: what is known of it, and the means by which the rules write into it."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import libcst as cst

from migrate.reading.calls.facts import ModuleCalls
from migrate.reading.script import Script
from migrate.reading.tree.source import Source
from migrate.rewrite.edits.definitions import Definitions
from migrate.rewrite.edits.imports import Imports
from migrate.rewrite.options import DEFAULT, Options
from migrate.rewrite.styles.vocabulary import Vocabulary, vocabulary_of


class Workspace(Script):
    """A script that is being rewritten.

    Args:
        source: the script as read.
        calls: what its calls run, where the project that it is a part of has been looked at; else the
            local modules that it imports are read when that is asked for.
        options: how the script is to be rewritten.
    """

    def __init__(
        self, source: Source, calls: ModuleCalls | None = None, options: Options = DEFAULT
    ) -> None:
        super().__init__(source, calls)
        self.options = options
        self.imports = Imports(self.module)
        self.definitions = Definitions(self.module)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """How the chosen style spells the device, the launch, the step and the like."""
        return vocabulary_of(self)

    @property
    def portable(self) -> bool:
        """Whether the script is to run on CUDA, the CPU and a TPU, by `shims`."""
        return self.options.style == "portable"

    @cached_property
    def quote(self) -> str:
        """The quotation mark that most string literals of the script use."""
        marks = Counter(
            string.quote for string in self.all_of(cst.SimpleString) if len(string.quote) == 1
        )
        return "'" if marks["'"] > marks['"'] else '"'

    def string(self, value: str, like: cst.CSTNode | None = None) -> cst.SimpleString:
        """Return a string literal in the script's own quotation marks, or those of the literal `like`."""
        quote = self.quote
        if isinstance(like, cst.SimpleString) and len(like.quote) == 1:
            quote = like.quote
        return cst.SimpleString(f"{quote}{value}{quote}")
