"""Classes of a project whose `load_state_dict` keeps the loaded tensors instead of copying them.

Example: `self.shadow = state["shadow"]` leaves an average of weights where torch.load put it, on the host.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.catalogue.words import words
from migrate.model.calls.kinds import ClassInstance
from migrate.model.calls.rank_tests import last_part, parents
from migrate.model.calls.scopes import ModuleScope, Scope
from migrate.syntax.origins import at_line
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

LOAD = "load_state_dict"
# Calls that make tensors from weights, or take the weights of a model.
MAKES_TENSORS = words(
    "clone deepcopy detach named_parameters ones_like parameters state_dict zeros_like"
)
MOVES = words("copy_ cuda to type_as")
COMPUTES = words("add add_ addcmul_ lerp lerp_ mul mul_ sub sub_")
OF_STATES = words("__init__ load_state_dict state_dict")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class KeptState:
    """Attributes that the `load_state_dict` of a class keeps.

    Args:
        where: the statement, with its file and line.
        computing: the methods that compute with them, and do more than copy them to other tensors.
    """

    where: str
    computing: frozenset[str]


def kept_states(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of a file that load a state into an object that keeps it, each with the location."""
    keeping = _keeping(analysis)
    for call, scope in analysis.evaluator.calls() if keeping else ():
        if scope.module is not top.module or last_part(call.func) != LOAD:
            continue
        if isinstance(call.func, ast.Attribute):
            for path, name in _classes(call.func.value, scope, analysis):
                kept = keeping.get((path, name))
                if kept is not None and not _only_copies(call.func.value, call, scope, kept):
                    yield call, kept.where
                    break


def _only_copies(receiver: ast.expr, call: ast.Call, scope: Scope, kept: KeptState) -> bool:
    """Whether only the function around `call` uses `receiver`, and computes nothing with its tensors.

    `average.load_state_dict(state); average.copy_to(model.parameters())` copies to the device once.
    """
    if not isinstance(receiver, ast.Name):
        return False
    around = [
        node
        for node in scope.module.nodes
        if isinstance(node, FUNCTIONS) and any(child is call for child in walk(node))
    ]
    if not around:
        return False
    above = parents(scope.module)
    for node in walk(around[-1]):
        if isinstance(node, ast.arg) and node.arg == receiver.id:
            return False
        if not isinstance(node, ast.Name) or node.id != receiver.id:
            continue
        use = above.get(node)
        asked = isinstance(use, ast.Attribute) and use.attr not in kept.computing
        if not asked and not isinstance(node.ctx, ast.Store):
            return False
    return True


def _classes(receiver: ast.expr, scope: Scope, analysis: Analysis) -> Iterator[tuple[Path, str]]:
    """Yield the possible classes of `receiver`; for `state["ema"]`, of the values put under that key."""
    values = analysis.evaluator.values(receiver, scope)
    if not values and isinstance(receiver, ast.Subscript):
        key = receiver.slice.value if isinstance(receiver.slice, ast.Constant) else None
        for entry, at in _entries(analysis).get(key, ()) if isinstance(key, str) else ():
            values |= analysis.evaluator.values(entry, at)
    for value in values:
        if isinstance(value, ClassInstance):
            yield value.of.module.path, value.of.name


@lru_cache(maxsize=2)
def _entries(analysis: Analysis) -> dict[str, list[tuple[ast.expr, Scope]]]:
    """Return the values of arguments and assigned dictionaries of a project, by their keys."""
    entries: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
    for call, scope in analysis.evaluator.calls():
        if isinstance(call.func, ast.Name) and call.func.id == "dict":
            for keyword in call.keywords:
                if keyword.arg is not None:
                    entries[keyword.arg].append((keyword.value, scope))
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            _note(value, scope, entries)
    for scope in _scopes(analysis):
        for bindings in scope.bindings.values():
            for binding in bindings:
                _note(binding.value, binding.scope, entries)
    return dict(entries)


def _note(
    value: ast.AST | None, scope: Scope, entries: dict[str, list[tuple[ast.expr, Scope]]]
) -> None:
    if isinstance(value, ast.Dict):
        for key, entry in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                entries[key.value].append((entry, scope))


def _scopes(analysis: Analysis) -> Iterator[Scope]:
    for top in analysis.scopes.values():
        yield from (top, *top.functions)


@lru_cache(maxsize=2)
def _keeping(analysis: Analysis) -> dict[tuple[Path, str], KeptState]:
    """Return the classes that keep the tensors of a state, by file and name."""
    return {
        (path, node.name): KeptState(
            f"`{ast.unparse(statement)}` ({at_line(statement.lineno, path)})",
            frozenset(_computing(node, {_own(target) for target in statement.targets})),
        )
        for path, scope in analysis.scopes.items()
        if LOAD.encode() in scope.module.data
        for node in scope.module.nodes
        if isinstance(node, ast.ClassDef)
        for statement in [_keeps(node)]
        if statement is not None
    }


def _keeps(definition: ast.ClassDef) -> ast.Assign | None:
    """Return the statement of `load_state_dict` that keeps tensors of the state without moving them."""
    method = next((n for n in definition.body if isinstance(n, FUNCTIONS) and n.name == LOAD), None)
    if method is None or len(method.args.args) < 2 or _calls(method) & MOVES:
        return None
    state = method.args.args[1].arg
    tensors = {
        name
        for function in definition.body
        if isinstance(function, FUNCTIONS) and function is not method
        for name, value in _put_on_self(function)
        if _calls(value) & MAKES_TENSORS
    }
    for node in walk(method):
        if isinstance(node, ast.Assign) and _is_of(node.value, state):
            for target in node.targets:
                if _own(target) in tensors:
                    return node
    return None


def _computing(definition: ast.ClassDef, kept: Set[str]) -> Iterator[str]:
    """Yield the methods that use the attributes `kept`, without those that copy and save them."""
    for method in definition.body:
        if not isinstance(method, FUNCTIONS) or method.name in OF_STATES:
            continue
        asks = any(isinstance(node, ast.expr) and _own(node) in kept for node in walk(method))
        computes = any(isinstance(node, ast.BinOp | ast.AugAssign) for node in walk(method))
        if asks and (computes or not _calls(method) & {"copy_"} or _calls(method) & COMPUTES):
            yield method.name


def _put_on_self(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes that a method assigns, directly or in their contents, with the values."""
    for node in walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = _own(target.value if isinstance(target, ast.Subscript) else target)
                if name:
                    yield name, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None and _own(node.target):
            yield _own(node.target), node.value


def _own(target: ast.expr) -> str:
    """Return the attribute of `self` that `target` is; empty for another target."""
    is_own = (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )
    return target.attr if isinstance(target, ast.Attribute) and is_own else ""


def _is_of(value: ast.expr, state: str) -> bool:
    """Whether `value` is taken from the dictionary `state`, directly or nested: `state["shadow"]`."""
    return any(isinstance(node, ast.Name) and node.id == state for node in walk(value))


def _calls(root: ast.AST) -> set[str]:
    return {last_part(node.func) for node in walk(root) if isinstance(node, ast.Call)}
