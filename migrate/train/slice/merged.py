"""A script and modules of its folder as one source: a trainer in another file is read like the script."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.train.errors import TrainError
from migrate.train.slice.text import ScriptText, first_line

# Beginnings of what a name that is imported is bound to.
_IMPORTED = ("import ", "from ")
# Names that mean another thing in a module than in the script that it becomes a part of.
_OF_MODULE = ("__file__", "__name__", "__spec__", "__package__")


@dataclass(frozen=True)
class MergedText(ScriptText):
    """Script with the definitions of its modules in place of their imports.

    Attributes:
        origins: file and line of each line.
    """

    origins: tuple[tuple[str, int], ...] = ()

    def position(self, line: int) -> tuple[str, int]:
        """File and line that a line comes from."""
        return self.origins[line - 1]


def merged(script: ScriptText, modules: Sequence[Path], same: Collection[str] = ()) -> MergedText:
    """Put modules in place of the statements that import them.

    Args:
        script: the script.
        modules: files of its folder or of a folder below, each imported by the script or by another of them.
        same: names with one value in all of these files when the script ran: two files may import such a
            name from different places.

    Raises:
        TrainError: a module is imported in a form that cannot be replaced, or two files use one name for
            different things.
    """
    folder = Path(script.name).resolve().parent
    names = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in modules}
    parts = _ModuleParts(script, folder, names, same)
    lines = list(parts.of_file(Path(script.name).resolve(), script))
    parts.require_apart()
    missing = [path for path in modules if path not in parts.files]
    if missing:
        raise TrainError(
            f"{missing[0]}: trains, but {script.name} does not import it at its top level by "
            "`from module import name`",
            "import the trainer so, or name the script that has the training loop itself",
        )
    # `from __future__` comes first in a file.
    future = [line for line in lines if line[2].startswith("from __future__ ")]
    rest = [line for line in lines if line not in future]
    docstring = _docstring_end(rest)
    ordered = [*rest[:docstring], *dict.fromkeys(future), *rest[docstring:]]
    source = "\n".join(text for _, _, text in ordered) + "\n"
    return MergedText(
        script.name, source, origins=tuple((file, number) for file, number, _ in ordered)
    )


def _docstring_end(lines: Sequence[tuple[str, int, str]]) -> int:
    tree = ast.parse("\n".join(text for _, _, text in lines))
    first = tree.body[0] if tree.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 0) if first is not None and is_text else 0


class _ModuleParts:
    """Lines of the files, module by module in the order of their imports."""

    def __init__(
        self, script: ScriptText, folder: Path, names: dict[str, Path], same: Collection[str]
    ) -> None:
        self._same = same
        self._script, self._folder, self._names = script, folder, names
        self.files: list[Path] = []
        self._bound: dict[str, tuple[Path, str]] = {}
        self._clash: tuple[str, Path, Path] | None = None

    def of_file(self, path: Path, text: ScriptText) -> Iterator[tuple[str, int, str]]:
        """Yield file, line and text of each line of a file, with modules in place of their imports."""
        self.files.append(path)
        is_script = len(self.files) == 1
        gone: dict[int, list[tuple[str, int, str]]] = {}
        for node in text.tree.body:
            if isinstance(node, ast.ImportFrom) and (module := self._module(node, path)):
                place = self._names[module]
                inner: list[tuple[str, int, str]] = []
                if place not in self.files:
                    own = ScriptText(self._shown(place), place.read_text())
                    self._require_plain(own)
                    inner = list(self.of_file(place, own))
                for alias in node.names:
                    if alias.name == "*":
                        raise TrainError(
                            f"{text.at(node.lineno)}: imports all names of a module that trains",
                            "name what it imports",
                        )
                    if alias.asname and alias.asname != alias.name:
                        inner.append((text.name, node.lineno, f"{alias.asname} = {alias.name}"))
                gone |= {line: [] for line in range(node.lineno, (node.end_lineno or 0) + 1)}
                gone[node.lineno] = inner
            elif not is_script and _is_main(node):
                gone |= {line: [] for line in range(node.lineno, (node.end_lineno or 0) + 1)}
            else:
                self._bind(node, path)
        for number, line in enumerate(text.lines, 1):
            yield from gone.get(number, [(text.name, number, line)])

    def _module(self, node: ast.ImportFrom, path: Path) -> str:
        """Name of the module that a statement imports from, if it is one of those."""
        if node.level:
            folder = path.parent
            for _ in range(node.level - 1):
                folder = folder.parent
            target = folder.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            return next((name for name, known in self._names.items() if known == target), "")
        return node.module if node.module in self._names else ""

    def _shown(self, path: Path) -> str:
        return str(Path(self._script.name).parent / path.relative_to(self._folder))

    def _require_plain(self, text: ScriptText) -> None:
        for node in ast.walk(text.tree):
            if isinstance(node, ast.Name) and node.id in _OF_MODULE:
                if any(_is_main(s) and node in ast.walk(s) for s in text.tree.body):
                    continue
                raise TrainError(
                    f"{text.at(node.lineno)}: the module that trains reads {node.id}",
                    "name the script that has the training loop itself",
                )

    def _bind(self, node: ast.stmt, path: Path) -> None:
        """Note what a statement binds in the module; two files must not bind a name to different things."""
        for name, meaning in _bindings(node):
            before = self._bound.setdefault(name, (path, meaning))
            imported = all(text.startswith(_IMPORTED) for text in (meaning, before[1]))
            if imported and name in self._same:
                continue
            if before[0] != path and before[1] != meaning and self._clash is None:
                self._clash = (name, before[0], path)

    def require_apart(self) -> None:
        """Report a name that two files use.

        Raises:
            TrainError: there is one.
        """
        if self._clash is not None:
            name, first, second = self._clash
            raise TrainError(
                f"{self._shown(second)}: trains, and has the name {name}, which {self._shown(first)} uses "
                "for another thing",
                "rename one of them",
            )


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _bindings(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield each name that a statement binds, and what it is bound to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            yield name, f"import {alias.name if alias.asname else name}"
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"from {node.module} import {alias.name}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, f"definition {id(node)}"
    else:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id, f"line {first_line(node)} {ast.unparse(node)}"
