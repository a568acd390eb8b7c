"""Facts about a script for the hazards, in addition to those for the rewrite rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import TypeVar

import libcst as cst

from migrate.catalogue.launchers import LAUNCHERS
from migrate.catalogue.target import XLA, Target
from migrate.catalogue.words import RANKS
from migrate.reading.names.bindings import Bindings
from migrate.reading.names.names import Names, names_of
from migrate.reading.replicas.guards import Guards
from migrate.reading.script import Script
from migrate.reading.steps.in_step import StepCode
from migrate.reading.values.entries import StepFunction
from migrate.reading.values.values import Values
from migrate.syntax.tree import dotted

Node = TypeVar("Node", bound=cst.CSTNode)

EXPORTS = frozenset({"torch.onnx.export", "torch.jit.save"})
RUNTIMES = frozenset({"onnx", "onnxruntime", "tensorrt", "torch_tensorrt", "coremltools"})


class Facts:
    """Facts about a script, collected before any hazard inspects it.

    Args:
        context: the script as the rewrite rules see it.
        entries: the functions, by the lines of their `def`, that steps of other files run.
    """

    def __init__(self, context: Script, entries: Mapping[int, StepFunction] | None = None) -> None:
        self.context = context
        self.entries = entries or {}
        self.target: Target = XLA
        self._imported: dict[int, list[str]] = {}  # by the id of the statement

    def on(self, target: Target) -> Facts:
        """Return the same facts for the hazards of `target`."""
        if target == self.target:
            return self
        facts = copy(self)
        facts.target = target
        return facts

    @property
    def bindings(self) -> Bindings:
        """Values of each name, parameter and attribute of `self`."""
        return self.values.bindings

    @cached_property
    def steps(self) -> StepCode:
        """Code that runs inside of a training step."""
        return StepCode(self.context, self.entries)

    @cached_property
    def values(self) -> Values:
        """Kinds of the script's expressions: devices, tensors, modules."""
        if not self.entries:
            return self.context.values
        return Values(self.context, self.context.ranks, self.entries)

    def imported(self, statement: cst.CSTNode) -> list[str]:
        """Return the dotted names that an import statement imports; none for another node."""
        if id(statement) not in self._imported:
            self._imported[id(statement)] = _imported(statement)
        return self._imported[id(statement)]

    def below(self, root: cst.CSTNode, kind: type[Node]) -> Sequence[Node]:
        """Return the nodes of a type at and below `root`, in the order of the source: as `Parsed.below`."""
        return self.context.below(root, kind)

    @property
    def guards(self) -> Guards:
        """Code that only some replicas run."""
        return self.context.guards

    @cached_property
    def calls(self) -> Sequence[cst.Call]:
        """Every call of the script."""
        return self.context.all_of(cst.Call)

    @cached_property
    def called(self) -> frozenset[str]:
        """The qualified names of everything imported that the script calls."""
        names = (self.names.of(call.func) for call in self.calls)
        return frozenset(name for name in names if name is not None)

    @cached_property
    def launches(self) -> bool:
        """Whether the script starts its own replicas."""
        return not self.called.isdisjoint(LAUNCHERS)

    @cached_property
    def sets_ranks(self) -> frozenset[str]:
        """Variables that shims, or all scripts that import this one, set in the environment of replicas."""
        by_shims = not self.called.isdisjoint({"shims.launch", "shims.launch_script"})
        if by_shims or self.context.portable:
            return RANKS
        return self.context.calls.ranks_set

    @cached_property
    def names(self) -> Names:
        """The imported names of the script."""
        return names_of(self.context)

    @cached_property
    def exports(self) -> bool:
        """Whether the script exports a model: to ONNX, TensorRT, Core ML, or with torch.jit.save."""
        return not self.called.isdisjoint(EXPORTS) or not self.names.roots.isdisjoint(RUNTIMES)

    @property
    def uses_xla(self) -> bool:
        """Whether the script is written for torch_xla already."""
        return "torch_xla" in self.names.roots


@lru_cache(maxsize=2)  # the last ones: rules and hazards inspect one script after another
def facts_of(context: Script) -> Facts:
    """Return the facts about a script that no step of another file leads into."""
    return Facts(context)


def _imported(node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Import):
        return [alias.evaluated_name for alias in node.names]
    if isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
        module = dotted(node.module)
        if isinstance(node.names, cst.ImportStar):
            return [module]
        return [f"{module}.{alias.evaluated_name}" for alias in node.names]
    return []
