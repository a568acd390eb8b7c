"""Tensors of its models that a project broadcasts over the replicas."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.model.calls.rank_tests import last_part, parents
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.project.project import SourceModule

# Words in the code that makes an infinite tensor.
INFINITE = (
    r"(?i)\binf\b|\binfinity\b|\b[np]inf\b|\binfty\b|generate_square_subsequent_mask"
    r"|\btri[lu]?\b.*\blog_?\(|\blog\(.*\btri[lu]?\b"
)
NAMES_INFINITE = re.compile(INFINITE.encode())
PARAMETERS, BUFFERS, STATE, WRAPPED = "parameters", "buffers", "state", "buffers of the wrapped"
ALL = frozenset({PARAMETERS, BUFFERS, STATE})
WRAPPER = "DistributedDataParallel"
BROADCASTS = frozenset({"broadcast", "collective_broadcast"})
SEND_ALL = frozenset({"broadcast_master_param", "_sync_module_states", "_sync_params_and_buffers"})
# Methods that yield the tensors of a model.
OF_MODEL = {
    "parameters": frozenset({PARAMETERS}),
    "named_parameters": frozenset({PARAMETERS}),
    "buffers": frozenset({BUFFERS, STATE}),
    "named_buffers": frozenset({BUFFERS, STATE}),
    "state_dict": frozenset({PARAMETERS, STATE}),
}
DEEPEST = 4


@lru_cache(maxsize=2)
def broadcast_parts(analysis: Analysis) -> frozenset[str]:
    """Return which tensors of a model the files of the project broadcast.

    BUFFERS: all buffers. WRAPPED: those of a model under DistributedDataParallel. STATE: those in the state
    dict.
    """
    modules = [scope.module for scope in analysis.scopes.values()]
    return frozenset(part for module in modules for part in _of_module(module, modules))


def _of_module(module: SourceModule, modules: Sequence[SourceModule]) -> Iterator[str]:
    has_wrapper = WRAPPER.encode() in module.data
    if not has_wrapper and b"broadcast" not in module.data:
        return
    aliases = {
        alias.asname or alias.name
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == WRAPPER
    } | {WRAPPER}
    if has_wrapper and _hands_on(module, aliases):
        yield from {PARAMETERS, WRAPPED}
    above: dict[ast.AST, ast.AST] = {}
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = last_part(node.func)
        if has_wrapper and name in aliases:
            yield from {PARAMETERS} if _without_buffers(node) else {PARAMETERS, WRAPPED}
        elif name in SEND_ALL:
            yield from ALL
        elif name in BROADCASTS:
            above = above or parents(module)
            yield from _Loops(modules, above).sends(node)


def _hands_on(module: SourceModule, aliases: Set[str]) -> bool:
    """Whether the wrapping class gets another name, or is passed to a function: `partial(DDP, …)`."""
    apart: list[ast.AST] = []
    for node in module.nodes:
        if isinstance(node, ast.Call):
            apart.append(node.func)
            if last_part(node.func) in ("isinstance", "issubclass", "hasattr"):
                apart += [part for arg in node.args for part in walk(arg)]
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            apart += walk(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            apart += walk(node.returns)
        elif isinstance(node, ast.Compare):  # type(net) is DDP
            apart += walk(node)
    ids = {id(node) for node in apart}
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and last_part(node) in aliases
        and id(node) not in ids
        for node in module.nodes
    )


def _without_buffers(call: ast.Call) -> bool:
    """Whether `broadcast_buffers=False` is passed."""
    return any(
        keyword.arg == "broadcast_buffers"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in call.keywords
    )


class _Loops:
    """Loops that broadcast the tensors of a model one after the other.

    Args:
        modules: the files of the project.
        above: the parent of each node of the file with the loop.
    """

    def __init__(self, modules: Sequence[SourceModule], above: dict[ast.AST, ast.AST]) -> None:
        self._modules = modules
        self._above = above

    def sends(self, call: ast.Call) -> Iterator[str]:
        """Yield the iterables of the loops around the broadcast `call`."""
        node: ast.AST = call
        over: list[ast.expr] = list(call.args[:1])
        while node in self._above and not isinstance(node, ast.FunctionDef):
            node = self._above[node]
            if isinstance(node, ast.For):
                over.append(node.iter)
            elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
                over += [generator.iter for generator in node.generators]
        function = node if isinstance(node, ast.FunctionDef) else None
        for value in over:
            yield from self._parts(value, function)

    def _parts(
        self, value: ast.expr, function: ast.FunctionDef | None, depth: int = 0
    ) -> Iterator[str]:
        """Yield the tensors of a model that `value` yields, directly or by a name of `function`."""
        for node in walk(value):
            if isinstance(node, ast.Call):
                yield from OF_MODEL.get(last_part(node.func), ())
            elif isinstance(node, ast.Name) and function is not None and depth < DEEPEST:
                for source in self._bound(node.id, function):
                    yield from self._parts(source, function, depth + 1)
                for passed in self._passed(node.id, function):
                    yield from self._parts(passed, None)

    def _bound(self, name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
        for node in walk(function):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                yield node.value

    def _passed(self, name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
        """Yield the values that calls of the project pass for the parameter `name` of `function`."""
        names = [parameter.arg for parameter in function.args.args]
        if name not in names:
            return
        index = names.index(name) - (names[0] in ("self", "cls"))
        for module in self._modules:
            for call in module.nodes:
                if not isinstance(call, ast.Call) or last_part(call.func) != function.name:
                    continue
                yield from call.args[index : index + 1]
                yield from (keyword.value for keyword in call.keywords if keyword.arg == name)
