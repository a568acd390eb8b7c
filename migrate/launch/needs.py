"""Packages that a program imports and that its hosts would not install."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Installed by the job's wheel.
_OWN = frozenset({"migrate", "shims", "converters"})


def missing_packages(
    files: Iterable[Path], imports: Iterable[str], pins: Iterable[str], requirements: Path
) -> list[str]:
    """Return the packages that the program imports and that no requirement of the job brings.

    Args:
        files: the files of the program.
        imports: top-level packages that they import, without those that may be missing.
        pins: the job's own requirements.
        requirements: the program's requirements.txt, which need not exist.
    """
    lines = requirements.read_text().splitlines() if requirements.is_file() else []
    if any(line.strip().startswith(("-r", "-e", "git+", "http", ".", "/")) for line in lines):
        return []  # what these bring is not known here
    local = {name for path in files for name in (path.stem, path.parent.name)}
    installed = _closure(_distribution(line) for line in [*pins, *lines])
    others = set(imports) - local - _OWN - sys.stdlib_module_names
    unknown = sorted(name for name in others if _normal(name) not in installed)
    if not unknown:
        return []
    known = metadata.packages_distributions()  # reads all that is installed here
    return [
        name
        for name in unknown
        if not {_normal(other) for other in known.get(name, ())} & installed
    ]


def needed_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a file imports, without those in a `try` or for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not isinstance(node, ast.Try):
            yield from needed_imports(node)


def _distribution(line: str) -> str:
    match = _NAME.match(line.strip())
    return _normal(match[0]) if match else ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _closure(names: Iterable[str]) -> set[str]:
    """Return distributions with all that they need, as far as they are installed here."""
    waiting, result = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in result or not name:
            continue
        result.add(name)
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        waiting += [_distribution(line) for line in needed if "extra ==" not in line]
    return result
