"""Calls to the hardware in each style and for each target: torch_xla, torch_tpu and shims.

A rule gets the code of a call from `context.vocabulary`, if both styles have one. If a style needs more than
another call (a barrier with a tag, a removed scaler), the rule branches on `context.portable`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import libcst as cst

if TYPE_CHECKING:
    from migrate.reading.script import Script
    from migrate.rewrite.edits.imports import Imports
    from migrate.rewrite.options import RewriteOptions

Word = Literal[
    "launch",
    "rank",
    "local rank",
    "world size",
    "local world size",
    "is first",
    "is first here",
    "step",
    "wait",
    "sync",
    "seed",
    "barrier",
    "save",
    "checkpoint activations",
    "memory",
]


class Name(NamedTuple):
    """Import location of a word.

    Args:
        module: the dotted name of the module.
        alias: the usual alias of the module in an import, or None.
        text: the text after the module, with parentheses if the word is a query.
    """

    module: str
    alias: str | None
    text: str


class Vocabulary(ABC):
    """The words of one style, for one script.

    Args:
        context: the script, for its replicas and its quotation marks.
        imports: present and future imports of the script.
    """

    names: ClassVar[Mapping[Word, Name]]
    device_name: ClassVar[str] = "xla"  # the type of the device, for torch
    group_backend: ClassVar[str] = "xla"  # of the process group

    def __init__(self, context: Script, imports: Imports) -> None:
        self._context = context
        self._imports = imports

    def write(self, word: Word) -> str:
        """Return the source text of `word`, and import its module in the rewritten script."""
        name = self.names[word]
        return f"{self._imports.require(name.module, name.alias)}.{name.text}"

    def expression(self, word: Word) -> cst.BaseExpression:
        """Return `write(word)` as an expression."""
        return cst.parse_expression(self.write(word))

    def say(self, word: Word) -> str:
        """Return `word` in full, for a message, without an import."""
        name = self.names[word]
        return f"{name.module}.{name.text}"

    @abstractmethod
    def device(self, at: cst.CSTNode, like: cst.CSTNode | None = None) -> cst.BaseExpression:
        """Return an expression for the device of the replica.

        Args:
            at: where the expression will stand. That code may run before the replicas are launched.
            like: literal whose quotation marks are used.
        """

    @abstractmethod
    def device_type(self, like: cst.CSTNode | None = None) -> cst.BaseExpression:
        """Return an expression for the type of the device, a string. It may run anywhere."""

    @property
    @abstractmethod
    def device_said(self) -> str:
        """Device, for a message."""

    @property
    @abstractmethod
    def inert(self) -> str:
        """Help text of an option that no longer has an effect."""


class NativeVocabulary(Vocabulary):
    """The words of torch_xla 2.9."""

    names: ClassVar[Mapping[Word, Name]] = {
        "launch": Name("torch_xla", None, "launch"),
        "rank": Name("torch_xla.runtime", "xr", "global_ordinal()"),
        "local rank": Name("torch_xla.runtime", "xr", "local_ordinal()"),
        "world size": Name("torch_xla.runtime", "xr", "world_size()"),
        "local world size": Name("torch_xla.runtime", "xr", "local_device_count()"),
        "is first": Name("torch_xla.core.xla_model", "xm", "is_master_ordinal(local=False)"),
        "is first here": Name("torch_xla.core.xla_model", "xm", "is_master_ordinal()"),
        "step": Name("torch_xla", None, "step()"),
        "wait": Name("torch_xla", None, "sync(wait=True)"),
        "sync": Name("torch_xla", None, "sync()"),
        "seed": Name("torch_xla", None, "manual_seed"),
        "barrier": Name("torch_xla.core.xla_model", "xm", "rendezvous"),
        "save": Name("torch_xla.core.xla_model", "xm", "save"),
        "checkpoint activations": Name("torch_xla.utils.checkpoint", None, "checkpoint"),
        "memory": Name("torch_xla.core.xla_model", "xm", "get_memory_info()"),
    }
    device_said = "'xla'"
    inert = "no effect on a TPU"

    def device(self, at: cst.CSTNode, like: cst.CSTNode | None = None) -> cst.BaseExpression:
        """Return the string, which starts no runtime."""
        return self._context.string(self.device_name, like=like)

    def device_type(self, like: cst.CSTNode | None = None) -> cst.BaseExpression:
        """Return the same string."""
        return self._context.string(self.device_name, like=like)


class TpuVocabulary(NativeVocabulary):
    """The words of torch_tpu 0.2. Its device is one of torch's accelerators, and ranks stay torch's own."""

    names: ClassVar[Mapping[Word, Name]] = {
        "rank": Name("torch.distributed", "dist", "get_rank()"),
        "local rank": Name("torch.distributed", "dist", "get_node_local_rank()"),
        "world size": Name("torch.distributed", "dist", "get_world_size()"),
        "wait": Name("torch", None, "accelerator.synchronize()"),
        "sync": Name("torch", None, "accelerator.synchronize()"),
        "seed": Name("torch", None, "manual_seed"),
        "barrier": Name("torch.distributed", "dist", "barrier()"),
        "save": Name("torch", None, "save"),
        "checkpoint activations": Name("torch.utils.checkpoint", None, "checkpoint"),
        "memory": Name("torch", None, "accelerator.get_memory_info()"),
    }
    device_name = "tpu"
    group_backend = "tpu_dist"
    device_said = "'tpu'"


class PortableVocabulary(Vocabulary):
    """The words of `shims`, which run on CUDA, the CPU and a TPU."""

    names: ClassVar[Mapping[Word, Name]] = {
        "launch": Name("shims", None, "launch"),
        "rank": Name("shims", None, "rank()"),
        "local rank": Name("shims", None, "local_rank()"),
        "world size": Name("shims", None, "world_size()"),
        "local world size": Name("shims", None, "local_world_size()"),
        "is first": Name("shims", None, "is_main()"),
        "is first here": Name("shims", None, "local_rank() == 0"),
        "step": Name("shims", None, "step()"),
        "wait": Name("shims", None, "synchronize()"),
        "sync": Name("shims", None, "synchronize()"),
        "seed": Name("shims", None, "manual_seed"),
        "barrier": Name("shims", None, "barrier"),
        "save": Name("shims", None, "save"),
        "checkpoint activations": Name("shims", None, "checkpoint_activations"),
        "memory": Name("shims", None, "memory()"),
    }
    device_said = "shims.device()"
    inert = "no effect: shims finds the ranks"

    def device(self, at: cst.CSTNode, like: cst.CSTNode | None = None) -> cst.BaseExpression:
        """Return the device. Where the replicas may not run yet, return its type, which starts no runtime."""
        if self._runs_in_a_replica(at):
            return self._asked("device")
        return self._asked("device_type")

    def device_type(self, like: cst.CSTNode | None = None) -> cst.BaseExpression:
        """Return a query that starts no runtime."""
        return self._asked("device_type")

    def _asked(self, name: str) -> cst.BaseExpression:
        return cst.parse_expression(f"{self._imports.require('shims')}.{name}()")

    def _runs_in_a_replica(self, at: cst.CSTNode) -> bool:
        """Whether `at` runs only when the replicas run. For a module's function this is assumed."""
        from migrate.reading.replicas.launch import Style

        launch = self._context.launch
        if launch.style is Style.MODULE or launch.in_replica(at):
            return not self._is_default(at)
        around = self._context.function_around(at)
        if around is None or self._is_default(at):
            return False
        return launch.style is Style.NONE or self._context.class_around(around) is not None

    def _is_default(self, at: cst.CSTNode) -> bool:
        """Whether `at` runs when a function or a class is defined: a default, a decorator."""
        below: cst.CSTNode = at
        for above in self._context.ancestors(at):
            if isinstance(above, cst.FunctionDef | cst.Lambda):
                return below is not above.body
            if isinstance(above, cst.Decorator):
                return True
            below = above
        return False


def vocabulary_of(context: Script, imports: Imports, options: RewriteOptions) -> Vocabulary:
    """Return the vocabulary for the style and target of `options`, for the script `context`."""
    if options.style == "portable":
        return PortableVocabulary(context, imports)
    targets = {"torch_xla": NativeVocabulary, "torch_tpu": TpuVocabulary}
    return targets[options.config.target](context, imports)
