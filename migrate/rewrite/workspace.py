"""Script during its rewrite: facts about it, and the tools with which rules edit it."""

from __future__ import annotations

from functools import cached_property

from migrate.catalogue.target import TPU, Target
from migrate.model.facts import ModuleCalls
from migrate.reading.replicas.for_cuda import guarded
from migrate.reading.script import Script
from migrate.rewrite.edits.definitions import Definitions
from migrate.rewrite.edits.imports import Imports
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.styles.vocabulary import Vocabulary, vocabulary_of
from migrate.syntax.source import Source


class Workspace(Script):
    """A script that is being rewritten.

    Args:
        source: the parsed script.
        calls: functions that its calls run, if its project is already analyzed. Otherwise the local modules
            that it imports are read on demand.
        options: options of the rewrite.
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
        """Code for the device, the launch, the step and the like in the chosen style."""
        return vocabulary_of(self, self.imports, self.options)

    @property
    def target(self) -> Target:
        """The package that drives the TPU."""
        return self.options.config.target

    @property
    def for_torch_tpu(self) -> bool:
        """Whether the rewritten script runs on a TPU by torch_tpu."""
        return self.target == TPU

    @cached_property
    def for_cuda(self) -> frozenset[int]:
        """Ids of the nodes for CUDA alone. For torch_tpu, which has counterparts, there are none."""
        return frozenset() if self.for_torch_tpu else guarded(self)

    @property
    def portable(self) -> bool:
        """Whether the rewritten script runs on CUDA, the CPU and a TPU, by `shims`."""
        return self.options.style == "portable"
