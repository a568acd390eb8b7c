"""Files of a project: a script with its local imports, or a whole folder; each file is parsed once.

A module outside of the project's folder is external: known by its dotted name only.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from migrate.syntax.interpreter import syntax_tree
from migrate.syntax.notebook.cells import code_of
from migrate.syntax.walk_ast import walk

# Files that mark the folder of a project, as seen from a script in it.
ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
# A script with more local imports than this is part of a library; the rest counts as external.
MOST_MODULES = 500
# Maximum number of folders without modules of their own between a namespace package and its modules.
DEEPEST_NAMESPACE = 3


@dataclass(frozen=True, eq=False)
class SourceModule:
    """File of the project: its path, its bytes, its tree."""

    path: Path
    data: bytes
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return list(walk(self.tree))

    @cached_property
    def import_lines(self) -> tuple[int, ...]:
        """Lines of its import statements."""
        imports = (n for n in self.nodes if isinstance(n, ast.Import | ast.ImportFrom))
        return tuple(node.lineno for node in imports)

    @cached_property
    def definitions(self) -> Mapping[int, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Definitions of its functions by their lines."""
        by_line: dict[int, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                by_line.setdefault(node.lineno, []).append(node)
        return by_line

    @cached_property
    def strings(self) -> frozenset[str]:
        """Text of its strings."""
        values = (node.value for node in self.nodes if isinstance(node, ast.Constant))
        return frozenset(value for value in values if isinstance(value, str))

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the source, in characters; trees count columns in bytes of UTF-8."""
        return [line.decode(errors="replace") for line in self._utf8_lines]

    @cached_property
    def _is_ascii(self) -> bool:
        return self.data.isascii()

    @cached_property
    def _utf8_lines(self) -> list[bytes]:
        return self.data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    def column(self, line: int, offset: int) -> int:
        """Return the column in characters (from 0) for an offset in bytes of the tree."""
        if self._is_ascii:
            return offset
        raw = self._utf8_lines[line - 1] if line <= len(self._utf8_lines) else b""
        return len(raw[:offset].decode(errors="replace"))


class Project:
    """Files of a folder and their imports of one another.

    Args:
        root: the folder; files above it are ignored. None for a source without a location.
        contents: the content of files that are not on disk, or differ there.
        whole: whether all files of the folder are read, so that no other file of the project uses these.
    """

    def __init__(
        self,
        root: Path | None,
        contents: Mapping[Path, bytes] | None = None,
        whole: bool = False,
    ) -> None:
        self.root = root.resolve() if root is not None else None
        self.whole = whole
        self._given = {path.resolve(): data for path, data in (contents or {}).items()}
        self.modules: dict[Path, SourceModule] = {}
        self.unread: dict[Path, str] = {}  # with the reason
        # Cached module locations: the disk does not change while a project is analyzed.
        self._places: dict[tuple[Path, str], Sequence[Path]] = {}
        self._found: dict[tuple[Path, str, int, str], Path | None] = {}
        self._imports: dict[Path, list[Path]] = {}

    @classmethod
    def of_script(
        cls, script: Path, *, root: Path | None = None, data: bytes | None = None
    ) -> Project:
        """Return the script with the local modules that it imports, and those that they import.

        Args:
            script: the file; if it does not exist, `data` stands alone.
            root: the project's folder; by default the folder around the script that looks like one.
            data: the content of the script, if it differs from the disk.
        """
        contents = {script: data} if data is not None else {}
        root = root or (root_of(script) if script.exists() else None)
        return cls.of_scripts(root, [script], contents)

    @classmethod
    def of_scripts(
        cls,
        root: Path | None,
        scripts: Iterable[Path],
        contents: Mapping[Path, bytes] | None = None,
        whole: bool = False,
    ) -> Project:
        """Return `scripts` with the local modules that they import, and those that these import.

        Args:
            root, contents, whole: as for the class.
            scripts: the files.
        """
        project = cls(root, contents, whole)
        waiting = [script.resolve() for script in scripts]
        most = len(waiting) + MOST_MODULES
        while waiting and len(project.modules) < most:
            path = waiting.pop(0)
            if path in project.modules or (module := project.load(path)) is None:
                continue
            waiting.extend(project.imports(module))
        return project

    @classmethod
    def of_files(
        cls, root: Path, files: Iterable[Path], contents: Mapping[Path, bytes] | None = None
    ) -> Project:
        """Return the project of `files`, which all are under `root`: they are the whole project."""
        project = cls(root, contents, whole=True)
        for path in files:
            project.load(path.resolve())
        return project

    def is_same(self, other: Project) -> bool:
        """Whether another project has the same files, in the same order, with the same content."""
        if (self.root, self.whole, self.unread) != (other.root, other.whole, other.unread):
            return False
        files, others = self.modules.values(), other.modules.values()
        return [(m.path, m.data) for m in files] == [(m.path, m.data) for m in others]

    def changed(self, contents: Mapping[Path, bytes]) -> Project:
        """Return the project with other contents of some files; the others are not read again."""
        project = Project(self.root, contents, self.whole)
        for path, module in self.modules.items():
            if path in project._given:
                project.load(path)
            else:
                project.modules[path] = module
                if path in self._imports:
                    project._imports[path] = self._imports[path]
        project.unread |= self.unread
        project._places, project._found = self._places, self._found
        return project

    def load(self, path: Path) -> SourceModule | None:
        """Return the module at `path`; None if it cannot be read or is no Python, see `unread`."""
        if path not in self.modules and path not in self.unread:
            try:
                data = self._given[path] if path in self._given else path.read_bytes()
                data = code_of(data, path)
                self.modules[path] = SourceModule(path, data, _parsed(path, data))
            except (OSError, SyntaxError, ValueError, RecursionError) as error:
                self.unread[path] = str(error) or type(error).__name__
        return self.modules.get(path)

    def imports(self, module: SourceModule) -> Sequence[Path]:
        """Return the files of the project that `module` imports, in any function."""
        if module.path not in self._imports:
            self._imports[module.path] = list(
                dict.fromkeys(self.imported_by(module.path, module.nodes))
            )
        return self._imports[module.path]

    @cached_property
    def importers(self) -> Mapping[Path, set[Path]]:
        """Importers of each file."""
        importers: dict[Path, set[Path]] = {}
        for path, module in self.modules.items():
            for imported in self.imports(module):
                importers.setdefault(imported, set()).add(path)
        return importers

    @property
    def unread_imports(self) -> list[Path]:
        """Files that other files of the project import and that could not be read."""
        return [path for path in self.unread if path in self.importers]

    def imported_by(self, importer: Path, nodes: Iterable[ast.AST]) -> Iterator[Path]:
        """Yield the files of the project that the import statements among `nodes` of a file import."""
        for node in nodes:
            if isinstance(node, ast.Import):
                names = [(alias.name, 0, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                names = [(base, node.level, a.name.strip("*")) for a in node.names]
                names += [(f"{base}.{a.name}".lstrip("."), node.level, "") for a in node.names]
            elif isinstance(node, ast.Call):
                files = map(file_of, self.imported_by_name(importer, node))
                yield from (file for file in files if file is not None)
                continue
            else:
                continue
            for module, level, taken in names:
                parts = module.split(".")
                for length in range(1, len(parts) + 1):
                    name = taken if length == len(parts) else ""
                    place = self.find(importer, ".".join(parts[:length]), level, name)
                    file = place and file_of(place)
                    if file is not None:
                        yield file

    def imported_by_name(self, importer: Path, call: ast.Call) -> list[Path]:
        """Return the modules and packages that `importlib.import_module(f"package.{name}")` may import."""
        match _named_module(call):
            case [name] if name.strip("."):
                place = self.find(importer, name)
                return [place] if place is not None else []
            case ["." | "", after] if len(call.args) > 1 or after.startswith("."):
                package: Path | None = importer.parent if len(call.args) > 1 else None
            case [before, after] if before.endswith(".") and after[:1] in ("", "."):
                package = self.find(importer, before.rstrip("."))
            case _:
                return []
        if package is None or not package.is_dir():
            return []
        places = (self.below(package, f"{entry.stem}{after}") for entry in package.iterdir())
        return sorted({place for place in places if place is not None})

    def find(self, importer: Path, dotted: str, level: int = 0, name: str = "") -> Path | None:
        """Return the file or folder that `import dotted` means in the file `importer`.

        Args:
            importer: the file with the import.
            dotted: the name of a module, without leading dots.
            level: the number of leading dots; 0 for an absolute import.
            name: what is imported from the module, if known. Of several places, one that has it counts.

        Returns:
            The result is a module's file or a package's folder; None for an external module.
        """
        if self.root is None:
            return None
        asked = (importer.parent, dotted, level, name)
        if asked not in self._found:
            self._found[asked] = self._find(importer, dotted, level, name)
        return self._found[asked]

    def _find(self, importer: Path, dotted: str, level: int, name: str) -> Path | None:
        if level:
            base: Path | None = importer.parent
            for _ in range(level - 1):
                base = base.parent if base is not None and base != self.root else None
            return self.below(base, dotted) if base is not None else None
        first, _, rest = dotted.partition(".")
        key = (importer.parent, first)
        if key not in self._places:
            self._places[key] = self._top_level(importer.parent, first)
        places = (self.below(place, rest) for place in self._places[key])
        modules = [place for place in places if place is not None]
        if name and len(modules) > 1:
            # A script `net/net.py` beside `net/__init__.py`: started there, Python finds the script.
            modules.sort(key=lambda place: not self._may_have(place, name))
        return modules[0] if modules else None

    def _may_have(self, place: Path, name: str) -> bool:
        """Whether a module mentions `name` or imports all names of another, or a package has such a part."""
        file = file_of(place)
        if file is None or self.below(place, name) is not None:
            return True
        module = self.modules.get(file)
        try:
            data = module.data if module is not None else self._given.get(file) or file.read_bytes()
        except OSError:
            return True
        return re.search(rb"\b%b\b|import\s*\*" % re.escape(name.encode()), data) is not None

    def below(self, package: Path, dotted: str) -> Path | None:
        """Return the module or package `dotted` in the folder `package`."""
        place = package
        for name in filter(None, dotted.split(".")):
            module = _module_in(place, name) if place.suffix != ".py" else None
            if module is None:
                return None
            place = module
        return place

    def _top_level(self, folder: Path, name: str) -> Sequence[Path]:
        """Return where a script in `folder`, or a package in it, may find the top-level module `name`.

        `sys.path` starts with the folder of the started script, which is unknown for a module. So the nearest
        folder upwards that is no package itself comes first, then the folders above it, then the packages. If
        two have a folder of that name, the one with the rest of the import counts: an application with its
        own `src` is started from the folder of the other one.
        """
        assert self.root is not None
        folders = [folder]
        while folders[-1] != self.root and folders[-1].parent != folders[-1]:
            folders.append(folders[-1].parent)
        folders.append(self.root / "src")
        packages = [place for place in folders if (place / "__init__.py").is_file()]
        plain = [place for place in folders if place not in packages]
        if name in sys.stdlib_module_names:
            packages = []
        modules = [_module_in(place, name) for place in [*plain, *packages]]
        # The folder may be a package itself, whose files import one another by its name.
        is_package = name == self.root.name and (self.root / "__init__.py").is_file()
        modules += [self.root] if is_package and name not in sys.stdlib_module_names else []
        return [place for place in modules if place is not None]


def file_of(place: Path) -> Path | None:
    """Return the file of a module or of a package; None for a package without `__init__.py`."""
    if place.suffix == ".py":
        return place
    file = place / "__init__.py"
    return file if file.is_file() else None


def root_of(script: Path) -> Path:
    """Return the folder of the project that contains `script`, or its own folder."""
    script = script.resolve()
    if "site-packages" in script.parts:
        return script.parent  # an installed library belongs to no project
    for folder in script.parents:
        if any((folder / mark).exists() for mark in ROOT_MARKS):
            return folder
    return script.parent


def is_this_toolkits(package: Path) -> bool:
    """Whether the package is this toolkit's own `shims`, by a file that no other one has."""
    return (package / "_site" / "sitecustomize.py").is_file()


def _named_module(node: ast.Call) -> list[str]:
    """Return the name of the module that `importlib.import_module` gets, cut where a value is put in.

    `f"models.{name}.net"`, `"models." + name + ".net"` and `"models.{}.net".format(name)` give
    `["models.", ".net"]`. The list is empty for other calls and names.
    """
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called not in ("import_module", "__import__") or not node.args:
        return []
    return _cut(node.args[0])


def _cut(name: ast.expr) -> list[str]:
    match name:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            cut = [""]
            for part in parts:
                if isinstance(part, ast.Constant):
                    cut[-1] += str(part.value)
                else:
                    cut.append("")
            return cut
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            before, after = _cut(left) or ["", ""], _cut(right) or ["", ""]
            return [*before[:-1], before[-1] + after[0], *after[1:]]
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return text.split("%s")
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.split(r"\{\w*\}", text)
    return []


def _module_in(folder: Path, name: str) -> Path | None:
    package = folder / name
    if (package / "__init__.py").is_file():
        # A script in a checkout of this toolkit imports its `shims` as the library that it is.
        return None if is_this_toolkits(package) else package
    module = folder / f"{name}.py"
    if module.is_file():
        return module
    return package if package.is_dir() and _has_modules(package) else None


def _has_modules(folder: Path, depth: int = 0) -> bool:
    """Whether a folder without `__init__.py` holds modules, also only in folders below it."""
    below = []
    for path in folder.iterdir():
        if path.suffix == ".py":
            return True
        if path.name.isidentifier() and not path.name.startswith("__"):
            below.append(path)
    return depth < DEEPEST_NAMESPACE and any(
        _has_modules(path, depth + 1) for path in below if path.is_dir()
    )


@lru_cache(maxsize=2000)
def _parsed(path: Path, data: bytes) -> ast.Module:
    """Return the tree of a file. Copies of a file share none: facts are kept by the identity of nodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape sequence in the user's file
        return syntax_tree(data)
