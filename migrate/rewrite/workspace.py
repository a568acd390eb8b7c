"""A script that is being rewritten: what is known of it, and the means by which the rules write into it."""

from __future__ import annotations

from functools import cached_property

from migrate.model.facts import ModuleCalls
from migrate.reading.script import Script
from migrate.rewrite.edits.definitions import Definitions
from migrate.rewrite.edits.imports import Imports
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.styles.vocabulary import Vocabulary, vocabulary_of
from migrate.syntax.source import Source


class Workspace(Script):
    """A script that is being rewritten.

    Args:
        source: the script as read.
        calls: what its calls run, where the project that it is a part of has been looked at; else the
            local modules that it imports are read when that is asked for.
        options: how the script is to be rewritten.
    """

    def __init__(
        self, source: Source, calls: ModuleCalls | None = None, options: RewriteOptions = DEFAULT
    ) -> None:
        super().__init__(source, calls)
        self.options = options
        self.imports = Imports(self.module, self._stars)
        self.definitions = Definitions(self.module)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The chosen style's words for the device, the launch, the step and the like."""
        return vocabulary_of(self, self.imports, self.options.style)

    @property
    def portable(self) -> bool:
        """Whether the script is to run on CUDA, the CPU and a TPU, by `shims`."""
        return self.options.style == "portable"
