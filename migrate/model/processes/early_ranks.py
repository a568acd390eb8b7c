"""Files that read the rank while they are imported, and their importers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.words import CLUSTER, RANKS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import reaching
from migrate.model.calls.kinds import ClassInstance, Value
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, ModuleScope, Region, Scope
from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import children

NAMES = RANKS | CLUSTER.keys()
PROPERTIES = ("property", "cached_property", "classproperty")
# A file without any of these words reads none of them from the environment.
WORDS = (b"environ", b"getenv")


@lru_cache(maxsize=2)
def importing_ranks(analysis: Analysis) -> frozenset[Path]:
    """Return the files that read the rank from the environment when imported, or import such a file.

    A process that `torch_xla.launch` starts has imported them before its rank is in the environment.
    """
    modules = {scope.module.path: scope.module for scope in analysis.scopes.values()}
    if not any(word in module.data for module in modules.values() for word in WORDS):
        return frozenset()
    early = {path: list(early_nodes(module.tree)) for path, module in modules.items()}
    reads = _Reads(analysis)
    paths = {
        scope.module.path
        for scope in analysis.scopes.values()
        if reads.at_import(scope, early[scope.module.path])
    }
    if not paths:
        return frozenset()
    imports = {
        path: set(analysis.project.imported_by(path, nodes)) - {path}
        for path, nodes in early.items()
    }
    before = -1
    while before < len(paths):
        before = len(paths)
        paths |= {path for path, files in imports.items() if files & paths}
    return frozenset(paths)


def early_nodes(tree: ast.AST, *, guard: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes that run while a file is imported, or while the body of a function runs.

    Args:
        tree: the file, or the definition of the function.
        guard: whether the file is the script that is run: its main guard counts then.
    """
    for node in children(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for part in _run_by_definition(node):
                yield part
                yield from early_nodes(part, guard=guard)
            continue
        if isinstance(node, ast.If) and _is_apart(node.test, guard):
            continue
        yield node
        yield from early_nodes(node, guard=guard)


def _run_by_definition(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
) -> Iterator[ast.expr]:
    """Yield the decorators and the defaults of a function: its definition runs them."""
    if not isinstance(node, ast.Lambda):
        yield from node.decorator_list
    yield from node.args.defaults
    yield from (default for default in node.args.kw_defaults if default is not None)


def _is_apart(test: ast.expr, guard: bool) -> bool:
    """Whether `test` holds in the script alone, or for a checker of types."""
    text = ast.unparse(test)
    return ("__name__" in text and not guard) or text.endswith("TYPE_CHECKING")


class _Reads:
    """Functions of a project that read a rank of the environment, directly or through calls.

    Args:
        analysis: the project.

    Attributes:
        functions: the functions that read a rank.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        # Functions that read any variable passed to them: `def setting(name): …`.
        self._by_name: dict[Function, bool] = {}
        first: dict[Function, bool] = {}
        for scope in analysis.scopes.values():
            if not any(word in scope.module.data for word in WORDS):
                continue
            aliases = _aliases(scope.module)
            for function, body in _bodies(scope):
                if any(_reads(node, aliases) for node in body):
                    first[function] = True
                elif any(_reads_by_name(node, aliases) for node in body):
                    self._by_name[function] = True
        self._by_name = dict.fromkeys(reaching(analysis, self._by_name), True)
        for scope in analysis.scopes.values() if self._by_name else ():
            for function in scope.functions:
                if any(self._asks_by_name(call) for call, _ in self._calls(function.region)):
                    first[function] = True
        self.functions = frozenset(reaching(analysis, first))

    def at_import(self, scope: ModuleScope, early: list[ast.AST]) -> bool:
        """Whether the nodes that run when a file is imported read a rank."""
        aliases = _aliases(scope.module)
        if any(_reads(node, aliases) for node in early):
            return True
        names = any(isinstance(n, ast.Constant) and n.value in NAMES for n in early)
        if names and any(_reads_by_name(node, aliases) for node in early):
            return True  # for name in ("RANK", "WORLD_SIZE"): print(os.environ[name])
        run = {id(node) for node in early}
        calls = [(c, at) for c, at in self._calls(scope.region) if id(c) in run]
        return any(self._runs(call, at) or self._asks_by_name(call) for call, at in calls) or any(
            isinstance(node, ast.Name | ast.Attribute | ast.Call)
            and self._runs_by_name(node, scope)
            for node in early
            if self.functions
        )

    def _runs(self, call: ast.Call, at: Scope) -> bool:
        """Whether `call` runs a function that reads a rank, or makes an object whose fields do."""
        if not self.functions.isdisjoint(self._analysis.running[call].functions):
            return True
        return any(
            not self.functions.isdisjoint(self._factories(value))
            for value in (self._analysis.evaluator.values(call.func, at) if self.functions else ())
            if isinstance(value, Class)
        )

    def _factories(self, of: Class) -> Iterator[Value]:
        """Yield the functions that make the fields of a data class: `field(default_factory=…)`."""
        for binding in (binding for bindings in of.bindings.values() for binding in bindings):
            if isinstance(binding.value, ast.Call):
                for keyword in binding.value.keywords:
                    if keyword.arg == "default_factory":
                        yield from self._analysis.evaluator.values(keyword.value, binding.scope)

    def _runs_by_name(self, node: ast.Name | ast.Attribute | ast.Call, scope: ModuleScope) -> bool:
        """Whether `node` is a property that reads a rank, or a decorator that does."""
        evaluator = self._analysis.evaluator
        if isinstance(node, ast.Attribute):
            for value in evaluator.values(node.value, scope):
                if isinstance(value, ClassInstance):
                    method = evaluator.method(value.of, node.attr)
                    if method in self.functions and method.is_a(*PROPERTIES):
                        return True
        decorates = any(node in function.decorators for function in scope.functions)
        return decorates and not self.functions.isdisjoint(evaluator.values(node, scope))

    def _asks_by_name(self, call: ast.Call) -> bool:
        """Whether `call` passes the name of a rank to a function that reads the variable of that name."""
        passed = (*call.args, *(keyword.value for keyword in call.keywords))
        named = any(isinstance(arg, ast.Constant) and arg.value in NAMES for arg in passed)
        return named and any(f in self._by_name for f in self._analysis.running[call].functions)

    def _calls(self, root: Region) -> Iterator[tuple[ast.Call, Scope]]:
        for region in self._analysis.regions(root):
            yield from region.calls


def _bodies(top: ModuleScope) -> Iterator[tuple[Function, list[ast.AST]]]:
    """Yield the functions of a file, each with the nodes of its body."""
    for function in top.functions:
        body: list[ast.stmt] = []
        if function.name == "<lambda>":
            body = [ast.Expr(value) for value in function.returns]
        elif function.definition is not None:
            body = function.definition.body
        yield function, list(early_nodes(ast.Module(body, [])))


def _reads(node: ast.AST, aliases: frozenset[str]) -> bool:
    """Whether `node` reads a variable that torchrun sets: by an item, a method, or `in`."""
    asked = _asked(node, aliases)
    return isinstance(asked, ast.Constant) and asked.value in NAMES


def _reads_by_name(node: ast.AST, aliases: frozenset[str]) -> bool:
    """Whether `node` reads an environment variable whose name is a variable of the script."""
    asked = _asked(node, aliases)
    return asked is not None and not isinstance(asked, ast.Constant)


def _asked(node: ast.AST, aliases: frozenset[str]) -> ast.expr | None:
    """Return the name of the environment variable that `node` reads or tests."""
    match node:
        case ast.Subscript(value=of, slice=name, ctx=ast.Load()):
            return name if _is_environment(of, aliases) else None
        case ast.Call(func=ast.Attribute(value=of, attr="get" | "pop"), args=[name, *_]) if (
            _is_environment(of, aliases)
        ):
            return name
        case ast.Call(func=asked, args=[name, *_]):
            return name if last_part(asked) == "getenv" else None
        case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[of]):
            return name if _is_environment(of, aliases) else None
    return None


def _aliases(module: SourceModule) -> frozenset[str]:
    """Return the names under which a file keeps the environment: `env = os.environ`."""
    aliases = set()
    for node in module.nodes:
        if isinstance(node, ast.Assign) and any(
            _is_environment(inner, frozenset()) for inner in _of_copy(node.value)
        ):
            aliases |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(aliases)


def _of_copy(value: ast.expr) -> Iterator[ast.expr]:
    """Yield `value`, and the value that it copies: `x.copy()`, `dict(x)`."""
    yield value
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr="copy")):
            yield inner
        case ast.Call(func=ast.Name(id="dict"), args=[inner]):
            yield inner


def _is_environment(node: ast.expr, aliases: frozenset[str]) -> bool:
    if isinstance(node, ast.Name) and node.id in aliases:
        return True
    return last_part(node) == "environ"
