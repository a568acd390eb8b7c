"""The package that drives the TPU in a program, as its imports, calls and strings show."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from migrate.launch.errors import JobError
from migrate.model.project.project import Project, SourceModule

_JAX = frozenset({"jax", "flax", "optax", "orbax"})
_DEVICES = frozenset({"tpu", "tpu:0", "tpu_dist"})


class Framework(StrEnum):
    """The package that drives the TPU."""

    TORCH_XLA = "torch_xla"
    TORCH_TPU = "torch_tpu"
    JAX = "jax"


def framework_of(script: Path, imports: set[str], calls: set[str], project: Project) -> Framework:
    """Return the framework of a program.

    Args:
        script: the file that is run.
        imports: top-level packages that the program imports.
        calls: dotted names of the external functions that it calls.
        project: its files.

    Raises:
        JobError: it has none, or two that exclude each other.
    """
    uses_xla = "torch_xla" in imports
    uses_tpu = shows_torch_tpu(imports, calls)
    if "torch" in imports and not uses_xla:
        uses_tpu = uses_tpu or any(_names_device(module) for module in project.modules.values())
    if uses_xla and uses_tpu:
        raise JobError(
            f"{script.name} imports torch_xla and torch_tpu, which need different versions of torch",
            "remove one of the two imports",
        )
    if uses_xla and imports & _JAX:
        raise JobError(
            f"{script.name} imports torch_xla and JAX, which need different versions of libtpu",
            "launch the two as separate jobs",
        )
    if uses_tpu:
        return Framework.TORCH_TPU
    if uses_xla or "shims" in imports:
        return Framework.TORCH_XLA
    if imports & _JAX:
        return Framework.JAX
    if "torch" in imports:
        raise JobError(
            f"{script.name} imports torch only, and would train on the CPU of each host",
            f"rewrite it first: migrate rewrite {script.name}",
        )
    raise JobError(
        f"{script.name} imports neither torch_xla, torch_tpu, shims nor jax",
        "name the script that trains, or --entry FILE",
    )


def shows_torch_tpu(imports: set[str], calls: set[str]) -> bool:
    """Whether imports or calls show torch_tpu; it loads itself, so a program may have neither."""
    return "torch_tpu" in imports or any(name.startswith("torch.tpu.") for name in calls)


def _names_device(module: SourceModule) -> bool:
    """Whether a torch program uses the name of torch_tpu's device, or of its process group."""
    return any(node.value in _DEVICES for node in _used_constants(module.tree))


def _used_constants(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings of a tree without those that are only compared, or one of several choices."""
    if isinstance(node, ast.Compare | ast.List | ast.Tuple | ast.Set | ast.MatchValue):
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _used_constants(child)
