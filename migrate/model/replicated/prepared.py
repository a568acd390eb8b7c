"""Batches for a model that Accelerate prepared, from a loader that it did not prepare.

On several GPUs the model is wrapped in DistributedDataParallel with device ids, which moves its inputs. On
XLA Accelerate wraps nothing: only a prepared loader moves its batches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.model.calls.kinds import MOVES_INPUTS, External
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, ModuleScope, Scope, ValueBinding
from migrate.model.objects.parts import passed_nodes
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

DEEPEST = 24
LOADER = re.compile(r"(torch|torchdata)\.(\w+\.)*\w*DataLoader$")
MOVING = frozenset({"cuda", "send_to_device", "to", "to_device"})
# Functions that yield the batches of their first argument; `zip` yields those of each.
WRAPPERS = frozenset({"chain", "enumerate", "islice", "iter", "next", "tqdm", "trange", "zip"})
OF_CONTAINERS = frozenset({"get", "items", "pop", "values"})
Made = tuple[ast.Call, Scope]


def unprepared_batches(
    analysis: Analysis, top: ModuleScope
) -> Iterator[tuple[ast.Call, str, Path, int]]:
    """Yield the calls of prepared models with a batch of an unprepared loader.

    Returns:
        Each has the name of the batch, and the file and the line of its loader.
    """
    loaders = _Loaders(analysis)
    for call, scope in analysis.calls_in(top):
        if MOVES_INPUTS not in analysis.evaluator.values(call.func, scope):
            continue
        for arg in (*call.args, *(keyword.value for keyword in call.keywords)):
            name = _base(arg)
            source = loaders.of_batch(name, scope) if name is not None else None
            if name is not None and source is not None:
                loader, at = source
                yield call, name.id, at.module.path, loader.lineno
                break


def _base(arg: ast.expr) -> ast.Name | None:
    """Return the name in `x`, `*x`, `batch["x"]`, `batch.x`; None for anything else."""
    while isinstance(arg, ast.Starred | ast.Subscript | ast.Attribute):
        arg = arg.value
    return arg if isinstance(arg, ast.Name) else None


class _Loaders:
    """Search for the loader of a batch.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._passed = passed_nodes(analysis)
        self._generators: dict[Function, bool] = {}
        self._under_way: set[tuple[int, int]] = set()

    def of_batch(self, name: ast.Name, scope: Scope, depth: int = 0) -> Made | None:
        """Return the unprepared loader whose batch `name` is, or is a part of, or None.

        A batch that the script moves itself does not count.
        """
        bindings = list(self._evaluator.bindings_of(name.id, scope))
        if depth > DEEPEST or any(_is_moved(binding.value) for binding in bindings):
            return None
        if self._moves_itself(name.id, scope):
            return None
        for binding in bindings:
            value, at = binding.value, binding.scope
            loader = None
            if binding.kind == "element" and value is not None:
                loader = self._loader(value, at, depth + 1)
            elif binding.kind == "param":
                parts = ((_base(arg), s) for arg, s in self._arguments(binding))
                batches = (self.of_batch(n, s, depth + 1) for n, s in parts if n is not None)
                loader = next((batch for batch in batches if batch is not None), None)
            elif isinstance(value, ast.Call) and last_part(value.func) == "next":
                loader = self._loader(value, at, depth + 1)
            elif (of := _base(value) if value is not None else None) is not None:
                loader = self.of_batch(of, at, depth + 1) if of.id != name.id else None
            if loader is not None:
                return loader
        return None

    def _moves_itself(self, name: str, scope: Scope) -> bool:
        """Whether `name` is moved in place: `batch.to(device)`, `batch[key] = batch[key].to(device)`."""
        for root in scope.roots:
            for region in self._analysis.regions(root):
                for call, _ in region.calls:
                    if isinstance(call.func, ast.Attribute) and call.func.attr in MOVING:
                        of = _base(call.func.value)
                        if of is not None and of.id == name:
                            return True
        return False

    def _functions(self, call: ast.Call) -> list[Function]:
        ran = self._analysis.running.get(call)
        return ran.functions if ran is not None else []

    def _arguments(self, binding: ValueBinding) -> Iterator[tuple[ast.expr, Scope]]:
        if isinstance(binding.scope, Function):
            yield from self._passed.get((binding.scope, binding.name), ())

    def _loader(self, node: ast.expr, scope: Scope, depth: int) -> Made | None:
        """Return the code that makes the loader `node`, if nothing passes it to Accelerate."""
        key = id(node), id(scope)
        if depth > DEEPEST or key in self._under_way:
            return None
        self._under_way.add(key)
        try:
            return self._made_by(node, scope, depth)
        finally:
            self._under_way.discard(key)

    def _made_by(self, node: ast.expr, scope: Scope, depth: int) -> Made | None:
        match node:
            case ast.Call():
                return self._called(node, scope, depth)
            case ast.Name(id=name):
                bindings = list(self._evaluator.bindings_of(name, scope))
            case ast.Attribute(value=of, attr=name):
                bindings = list(self._evaluator.members_of(of, name, scope))
            case ast.Subscript(value=of):
                return self._loader(of, scope, depth + 1)
            case ast.DictComp(value=part) | ast.ListComp(elt=part) | ast.GeneratorExp(elt=part):
                return self._loader(part, scope, depth + 1)
            case ast.Dict(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                loaders = (self._loader(part, scope, depth + 1) for part in parts)
                return next((loader for loader in loaders if loader is not None), None)
            case _:
                return None
        if any(self._is_prepared(binding) for binding in bindings):
            return None
        bound = (self._bound(binding, depth + 1) for binding in bindings)
        return next((loader for loader in bound if loader is not None), None)

    def _is_prepared(self, binding: ValueBinding) -> bool:
        """Whether Accelerate, or an unknown function, returns the loader."""
        value = binding.value
        if binding.kind not in ("value", "item") or not isinstance(value, ast.Call):
            return False
        if self._functions(value):
            return False
        return last_part(value.func) not in WRAPPERS and not self._is_loader(value, binding.scope)

    def _bound(self, binding: ValueBinding, depth: int) -> Made | None:
        value, scope = binding.value, binding.scope
        if binding.kind == "param":
            loaders = (self._loader(arg, at, depth + 1) for arg, at in self._arguments(binding))
            return next((loader for loader in loaders if loader is not None), None)
        if value is None:
            return None
        if binding.kind == "item" and isinstance(value, ast.Call):
            return self._called(value, scope, depth, binding.index)
        if binding.kind == "item" and isinstance(value, ast.Tuple | ast.List):
            inside = binding.index < len(value.elts)
            return self._loader(value.elts[binding.index], scope, depth + 1) if inside else None
        return self._loader(value, scope, depth + 1)

    def _called(
        self, call: ast.Call, scope: Scope, depth: int, index: int | None = None
    ) -> Made | None:
        if self._is_loader(call, scope):
            return call, scope
        if isinstance(call.func, ast.Attribute) and call.func.attr in OF_CONTAINERS:
            return self._loader(call.func.value, scope, depth + 1)
        functions = self._functions(call)
        if last_part(call.func) in WRAPPERS or any(map(self._hands_on, functions)):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            loaders = (self._loader(arg, scope, depth + 1) for arg in arguments)
            return next((loader for loader in loaders if loader is not None), None)
        for function in functions:
            for value in function.returns:
                part = value
                if index is not None and isinstance(value, ast.Tuple) and index < len(value.elts):
                    part = value.elts[index]
                if (loader := self._loader(part, function, depth + 1)) is not None:
                    return loader
        return None

    def _hands_on(self, function: Function) -> bool:
        """Whether a function is a generator that moves nothing: `MetricLogger.log_every`."""
        if function not in self._generators:
            nodes = [node for around in function.definitions for node in walk(around)]
            yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)
            self._generators[function] = yields and not any(
                isinstance(node, ast.Call) and last_part(node.func) in MOVING for node in nodes
            )
        return self._generators[function]

    def _is_loader(self, call: ast.Call, scope: Scope) -> bool:
        values = self._evaluator.values(call.func, scope)
        return any(isinstance(v, External) and LOADER.match(v.name) for v in values)


def _is_moved(value: ast.expr | None) -> bool:
    """Whether `value` moves something: `x.to(device)`, `{k: v.to(device) for …}`, `send_to_device(x, d)`."""
    return value is not None and any(
        isinstance(node, ast.Call) and last_part(node.func) in MOVING for node in walk(value)
    )
