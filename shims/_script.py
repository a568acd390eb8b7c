"""How a script expects to be started, found by reading its source and that of its local imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_RANK_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
_RANK_OPTIONS = ("--local_rank", "--local-rank")

Style = Literal["environment", "option", "spawn", "alone"]


@dataclass(frozen=True)
class Start:
    """How to start a script.

    Attributes:
        style: "environment": a process for each rank, with torchrun's variables; "option": that,
            and the local rank as an option; "spawn": one process, which starts the others;
            "alone": one process, as the script knows no ranks.
        option: the option that takes the local rank, for the style "option".
    """

    style: Style
    option: str = ""


def find_start(script: Path) -> Start:
    """Read the script, and the local modules that it imports, for signs of its launcher.

    A script that can be started in several ways is started as by torchrun. One that no longer
    parses as a whole is left to fail by itself: "alone".
    """
    signs: set[str] = set()
    for tree in _sources(script):
        signs.update(_signs(tree))
    for option in _RANK_OPTIONS:
        if option in signs:
            return Start("option", option)
    if "environment" in signs:
        return Start("environment")
    if "spawn" in signs:
        return Start("spawn")
    # Groups are also joined by "env://" alone: the variables are then read by torch.
    return Start("environment" if "group" in signs else "alone")


def _sources(script: Path) -> Iterator[ast.Module]:
    waiting, seen = [script.resolve()], set()
    root = script.resolve().parent
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        yield tree
        for name in _imports(tree, path, root):
            base = root.joinpath(*name.split("."))
            waiting += [
                file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()
            ]


def _imports(tree: ast.Module, path: Path, root: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = ""
            if node.level:
                package = path.parents[node.level - 1]
                if not package.is_relative_to(root):
                    continue
                prefix = ".".join(package.relative_to(root).parts)
            module = ".".join(filter(None, (prefix, node.module)))
            if module:
                yield module
            yield from (".".join(filter(None, (module, alias.name))) for alias in node.names)


def _signs(tree: ast.Module) -> Iterator[str]:
    # Names of variables that a script only sets are no sign that it reads them.
    written = {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            if last == "add_argument":
                for arg in node.args:
                    if isinstance(arg, ast.Constant) and arg.value in _RANK_OPTIONS:
                        yield str(arg.value)
            if last in ("spawn", "start_processes") and name not in ("random.spawn",):
                yield "spawn"
            if last == "init_process_group":
                yield "group"
        elif (
            isinstance(node, ast.Constant)
            and node.value in _RANK_VARIABLES
            and node.value not in written
        ):
            yield "environment"
