"""Detection of the launcher that a script expects, from its source and its local imports."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_RANK_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
_RANK_OPTIONS = ("--local_rank", "--local-rank")
# Packages of this project, whose sources name every launcher.
_OWN = frozenset({"shims", "migrate", "converters"})

Style = Literal["environment", "option", "spawn", "alone"]


@dataclass(frozen=True)
class Start:
    """Launch style of a script.

    Attributes:
        style: "environment": one process per rank, with torchrun's variables; "option": the same,
            with the local rank as an option; "spawn": one process, which starts the others;
            "alone": one process, for a script without ranks.
        option: the name of the local rank's option, for the style "option".
    """

    style: Style
    option: str = ""


def find_start(script: Path, search_path: Sequence[str] = ()) -> Start:
    """Determine the launch style from the script and the local modules that it imports.

    A script that supports several styles is started as by torchrun, unless its main block always starts
    the ranks. A script that does not parse is started alone and fails by itself.

    Args:
        script: the script.
        search_path: other folders of its modules, for example from PYTHONPATH. Folders of
            installed packages are ignored: a package's source says nothing about the script.
    """
    signs: set[str] = set()
    roots = [script.resolve().parent]
    roots += [root for entry in search_path if _is_local(root := Path(entry).resolve())]
    for path, tree in _sources(script.resolve(), roots):
        if path == script.resolve() and _always_spawns(tree):
            return Start("spawn")
        signs.update(_signs(tree))
    for option in _RANK_OPTIONS:
        if option in signs:
            return Start("option", option)
    if "environment" in signs:
        return Start("environment")
    # A loop of Process whose function joins as the rank that it was passed.
    if "spawn" in signs or {"process", "ranked group"} <= signs:
        return Start("spawn")
    # "env://" alone also joins a group: torch then reads the variables.
    return Start("environment" if "group" in signs else "alone")


def local_files(script: Path) -> list[Path]:
    """Return the script and all modules beside it that it imports, directly or indirectly."""
    path = script.resolve()
    return [path for path, _ in _sources(path, [path.parent])]


def _is_local(folder: Path) -> bool:
    """Whether a folder holds the user's modules, not the standard library or installed packages."""
    python = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    if any(folder.is_relative_to(library) for library in python) or not folder.is_dir():
        return False
    return next(folder.glob("*.dist-info"), None) is None


def _sources(script: Path, roots: Sequence[Path]) -> Iterator[tuple[Path, ast.Module]]:
    waiting, seen = [script], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an invalid escape, which Python itself reports
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        yield path, tree
        for name in _imports(tree, path, roots):
            if name.partition(".")[0] not in _OWN:
                waiting += _files(name, roots)


def _files(name: str, roots: Sequence[Path]) -> list[Path]:
    """Return the module's file and those of its packages, which run first. The first root with it wins."""
    parts = name.split(".")
    for root in roots:
        base = root.joinpath(*parts)
        matches = [
            file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()
        ]
        if matches:
            packages = [root.joinpath(*parts[:end], "__init__.py") for end in range(1, len(parts))]
            return [*matches, *(file for file in packages if file.is_file())]
    return []


def _imports(tree: ast.Module, path: Path, roots: Sequence[Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = ""
            if node.level:
                package = path.parents[node.level - 1]
                # The longest root, because one root may lie in another.
                inside = [root for root in roots if package.is_relative_to(root)]
                if not inside:
                    continue
                root = max(inside, key=lambda root: len(root.parts))
                prefix = ".".join(package.relative_to(root).parts)
            module = ".".join(filter(None, (prefix, node.module)))
            if module:
                yield module
            yield from (".".join(filter(None, (module, alias.name))) for alias in node.names)


def _always_spawns(tree: ast.Module) -> bool:
    """Whether the script starts its ranks whatever its options and variables say."""
    mains = [
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))
    ]
    return any(
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and _spawns(statement.value)
        for body in (tree.body, *(main.body for main in mains if not _may_exit(main)))
        for statement in body
    )


def _may_exit(block: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("exit", "_exit")
        for node in ast.walk(block)
    )


def _spawns(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name.rpartition(".")[2] in ("spawn", "start_processes") and name != "random.spawn"


def _signs(tree: ast.Module) -> Iterator[str]:
    # A variable that a script only sets does not show that the script reads it.
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
            if _spawns(node):
                yield "spawn"
            options = {keyword.arg for keyword in node.keywords}
            if last == "Process" and "target" in options:
                yield "process"
            if last == "init_process_group":
                yield "group"
                if "rank" in options:
                    yield "ranked group"
        elif (
            isinstance(node, ast.Constant)
            and node.value in _RANK_VARIABLES
            and node.value not in written
        ):
            yield "environment"
