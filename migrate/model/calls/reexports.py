"""Names that a file reaches through modules of its project: `comm.barrier`, imported in comm.py."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import ModuleScope, ValueBinding, is_main_guard
from migrate.model.project.project import file_of
from migrate.syntax.walk_ast import walk

# The dotted name of an external object, or a module or package of the project.
Target = str | Path
# Maximum number of files through which a name is re-exported.
DEEPEST = 6


class Reexports:
    """Imports of each file of a project, as the other files see them.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._project, self._scopes = analysis.project, analysis.scopes
        self._targets: dict[tuple[Path, str], Target | None] = {}
        self._own: dict[Path, frozenset[str]] = {}
        self._names: dict[Path, Mapping[str, str]] = {}
        self._acting: dict[Path, bool] = {}
        self._taken: dict[Path, set[str]] = defaultdict(set)

    def of_file(self, top: ModuleScope) -> Mapping[str, str]:
        """Return the names of project modules, as a file imports them, that are names from outside.

        `comm.dist` is `torch.distributed` after `import comm`, where comm.py has `import torch.distributed
        as dist`.
        """
        path = top.module.path
        if path not in self._names:
            self._names[path] = dict(self._reached(top))
        return self._names[path]

    @cached_property
    def taken(self) -> Mapping[Path, frozenset[str]]:
        """Names that other files take from each file: `from comm import dist`, `comm.dist`."""
        for top in self._scopes.values():
            self.of_file(top)
        return {path: frozenset(names) for path, names in self._taken.items()}

    def starred(self, top: ModuleScope) -> Mapping[str, str]:
        """Return the project modules that `from module import *` brings, as an import spells them."""
        return {name: spelled for name, spelled, _ in self._starred(top)} if top.stars else {}

    def _starred(self, top: ModuleScope) -> Iterator[tuple[str, str, Path]]:
        chains = _chains(top)
        for star in top.stars:
            place = self._project.find(top.module.path, star.module, star.level)
            if place is None:
                continue
            for name in chains.keys() - top.bindings.keys():
                target = self._exported(place, name)
                if isinstance(target, Path):
                    yield name, f"{_spelled(star)[:-1]}{name}", target

    def kept_imports(self, top: ModuleScope) -> frozenset[str]:
        """Return the names of a file's imports that have to stay, even if nothing in the file uses them.

        Another file takes the name from this one, or the import runs statements of a module of the project.
        """
        path = top.module.path
        imports = set(self.taken.get(path, ()))
        for name, bindings in top.bindings.items():
            for binding in bindings:
                if binding.kind in ("import", "from"):
                    place = self._project.find(path, binding.module, binding.level, binding.name)
                    if place is not None and self._acts(place):
                        imports.add(name)
        return frozenset(imports)

    def _acts(self, place: Path) -> bool:
        """Whether importing a module of the project does more than define names."""
        file = file_of(place)
        top = self._scopes.get(file) if file is not None else None
        if file is None or top is None:
            return False
        if file not in self._acting:
            self._acting[file] = False  # for files that import each other
            self._acting[file] = any(map(_acts, top.module.tree.body)) or any(
                map(self._acts, self._project.imports(top.module))
            )
        return self._acting[file]

    def _reached(self, top: ModuleScope) -> Iterator[tuple[str, str]]:
        chains: Mapping[str, set[tuple[str, ...]]] | None = None
        for scope in (top, *top.functions, *top.classes):
            for name, bindings in scope.bindings.items():
                for binding in bindings:
                    target = self._imported(binding)
                    spelled = _spelled(binding)
                    if isinstance(target, str):
                        if target != spelled:
                            yield spelled, target
                    elif target is not None:
                        chains = _chains(top) if chains is None else chains
                        for chain in chains.get(name, ()):
                            yield from self._along(chain, spelled, target)
        for name, spelled, place in self._starred(top) if top.stars else ():
            chains = _chains(top) if chains is None else chains
            for chain in chains.get(name, ()):
                yield from self._along(chain, spelled, place)

    def _along(
        self, chain: tuple[str, ...], spelled: str, target: Target | None
    ) -> Iterator[tuple[str, str]]:
        """Yield the first name from outside along the attributes `chain` of a module of the project."""
        for name in chain:
            if not isinstance(target, Path):
                return
            spelled, target = f"{spelled}.{name}", self._exported(target, name)
            if isinstance(target, str):
                yield spelled, target

    def _imported(self, binding: ValueBinding, depth: int = 0) -> Target | None:
        """Return what an import binds; None for other statements, and for names the file defines itself."""
        if binding.kind not in ("import", "from"):
            return None
        importer = binding.scope.module.path
        place = self._project.find(importer, binding.module, binding.level, binding.name)
        if place is None:
            return None if binding.level else _spelled(binding)
        if binding.kind == "import":
            return place
        return self._exported(place, binding.name, depth)

    def _exported(self, place: Path, name: str, depth: int = 0) -> Target | None:
        """Return the meaning of `name` in the module or package at `place`."""
        key = place, name
        if key not in self._targets:
            self._targets[key] = None  # for files that import each other
            self._targets[key] = self._looked_up(place, name, depth)
        return self._targets[key]

    def _looked_up(self, place: Path, name: str, depth: int) -> Target | None:
        file = file_of(place)
        top = self._scopes.get(file) if file is not None else None
        if top is None or depth > DEEPEST:
            return self._project.below(place, name)
        bindings = [b for b in top.bindings.get(name, ()) if b.kind in ("import", "from")]
        if bindings and name not in self._own_names(top):
            self._taken[top.module.path].add(name)
            targets = {self._imported(binding, depth + 1) for binding in bindings} - {None}
            return targets.pop() if len(targets) == 1 else None
        if name in top.bindings:
            return None
        return self._project.below(place, name) or self._from_stars(top, name, depth)

    def _from_stars(self, top: ModuleScope, name: str, depth: int) -> Target | None:
        outside = None
        for star in reversed(top.stars):
            place = self._project.find(top.module.path, star.module, star.level)
            if place is None:
                is_of_torch = star.module.partition(".")[0] == "torch"
                outside = outside or (f"{star.module}.{name}" if is_of_torch else None)
            elif (target := self._exported(place, name, depth + 1)) is not None:
                return target
        return outside

    def _own_names(self, top: ModuleScope) -> frozenset[str]:
        """Return the names that a file defines below its last import of the same name."""
        path = top.module.path
        if path not in self._own:
            self._own[path] = frozenset(_defined_last(top.module.tree))
        return self._own[path]


@lru_cache(maxsize=2)  # before the rewrite and after it
def reexports_of(analysis: Analysis) -> Reexports:
    """Return the imports of each file of a project, as the other files see them."""
    return Reexports(analysis)


def _spelled(binding: ValueBinding) -> str:
    """Return the dotted name of an import, relative ones after their dots."""
    return "." * binding.level + ".".join(filter(None, (binding.module, binding.name)))


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement of a module does more than import and define."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef() | ast.Pass():
            return False
        case ast.AsyncFunctionDef() | ast.Expr(value=ast.Constant()):
            return False
        case ast.Assign(targets=targets, value=value):
            is_named = all(isinstance(target, ast.Name) for target in targets)
            return not is_named or any(isinstance(node, ast.Call) for node in walk(value))
        case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
            return any(isinstance(node, ast.Call) for node in walk(value))
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=last):
            inside = [
                *body,
                *orelse,
                *last,
                *(line for handler in handlers for line in handler.body),
            ]
            return any(map(_acts, inside))
        case ast.If(test=test) if is_main_guard(test):
            return False
        case ast.If(body=body, orelse=orelse):
            return any(map(_acts, (*body, *orelse)))
    return True


def _chains(top: ModuleScope) -> Mapping[str, set[tuple[str, ...]]]:
    """Return the attributes that a file uses of each name: `("dist", "barrier")` of `comm`."""
    chains: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for node in top.module.nodes:
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name):
            chains[node.id].add(tuple(reversed(names)))
    return chains


def _defined_last(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module's own statements define, without an import of them further down.

    A definition in another block, as below `except ImportError:`, is a substitute for the import; so is None.
    """
    defined: dict[str, bool] = {}
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined[name] = True
            case ast.ClassDef(name=name):
                defined[name] = True
            case ast.Assign(value=ast.Constant(value=None)):
                pass
            case ast.Assign(targets=targets):
                defined |= {target.id: True for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                defined[name] = True
            case _:
                defined |= dict.fromkeys(_imported_in(statement), False)
    yield from (name for name, is_defined in defined.items() if is_defined)


def _imported_in(statement: ast.AST) -> Iterator[str]:
    """Yield the bindings of the imports in a statement, without those in its functions and classes."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
