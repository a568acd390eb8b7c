"""How a script expects to be started, found by reading its source and that of its local imports."""

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
# Packages that are part of this project name every launcher.
_OWN = frozenset({"shims", "migrate", "converters"})

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


def find_start(script: Path, search_path: Sequence[str] = ()) -> Start:
    """Read the script, and the local modules that it imports, for signs of its launcher.

    A script that can be started in several ways is started as by torchrun. One that no longer
    parses as a whole is left to fail by itself: "alone".

    Args:
        script: the script.
        search_path: where else it finds modules, for example from PYTHONPATH. Folders of installed
            packages among them are left out: what a package could do is no sign.
    """
    signs: set[str] = set()
    roots = [script.resolve().parent]
    roots += [root for entry in search_path if _is_local(root := Path(entry).resolve())]
    for _, tree in _sources(script.resolve(), roots):
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


def local_files(script: Path) -> list[Path]:
    """The script, and the modules beside it that it imports, by whatever way."""
    path = script.resolve()
    return [path for path, _ in _sources(path, [path.parent])]


def _is_local(folder: Path) -> bool:
    """Whether a folder holds the user's modules: not Python's own, and nothing installed by pip."""
    python = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    if any(folder.is_relative_to(own) for own in python) or not folder.is_dir():
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
                warnings.simplefilter(
                    "ignore"
                )  # an invalid escape, of which Python will say so itself
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        yield path, tree
        for name in _imports(tree, path, roots):
            if name.partition(".")[0] not in _OWN:
                waiting += _files(name, roots)


def _files(name: str, roots: Sequence[Path]) -> list[Path]:
    """The module's file, and those of its packages, which run before it; the first root has it."""
    parts = name.split(".")
    for root in roots:
        base = root.joinpath(*parts)
        found = [file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()]
        if found:
            packages = [root.joinpath(*parts[:end], "__init__.py") for end in range(1, len(parts))]
            return [*found, *(file for file in packages if file.is_file())]
    return []


def _imports(tree: ast.Module, path: Path, roots: Sequence[Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = ""
            if node.level:
                package = path.parents[node.level - 1]
                # The longest root: one may lie in another.
                inside = [root for root in roots if package.is_relative_to(root)]
                if not inside:
                    continue
                root = max(inside, key=lambda root: len(root.parts))
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
