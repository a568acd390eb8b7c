"""Values that depend on the replica: a rank, a share of a list, a file of the share.

`files[rank::world]` is a share, and so is `name` in `for name in files[rank::world]`. The value is followed
through variables, attributes, loops, functions and files of the project.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.catalogue.words import (
    GPU_NAME,
    GROUP_VARIABLES,
    KEEPING,
    LOADER,
    RANK_FUNCTION,
    RANK_NAME,
    RANK_VARIABLES,
    SAFETENSORS_SAVES,
)
from migrate.model.calls.callers import callers_of
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import DeviceValue, External
from migrate.model.calls.rank_tests import last_part, parents
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope, ValueBinding
from migrate.model.objects.parts import passed_nodes
from migrate.model.processes.meetings import EQUALIZE
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

DEEPEST = 12
DEEPEST_HANDLER = 3
SAVES = SAFETENSORS_SAVES | {"torch.save"}
ITEMS = (ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List, ast.Set, ast.BoolOp, ast.UnaryOp)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
# Samplers of torch, and similar ones of projects, that give each replica a share of the data.
SHARDING_SAMPLER = re.compile(
    r"Distributed\w*Sampler|\w*DistributedSampler|split_between_processes"
)
# Classes whose objects are made from their arguments.
HOLDING = re.compile(
    r"DataLoader|\w*Loader|Subset|Path|PurePath|PosixPath|IterableDataset"
    r"|(SubsetRandom|Sequential|Random|WeightedRandom|Batch)Sampler"
)
# Arguments that place a value, and functions with the same result on all replicas.
PLACING = frozenset({"device", "device_id", "device_ids", "map_location", "output_device"})
SAME = re.compile(
    r"(torch\.(cuda|device|distributed|nn|optim|amp|manual_seed|backends)|torch_xla|random|logging|wandb)\b"
)
SIZES = frozenset({"hasattr", "isinstance", "len", "sum", "type"})
MOVES = frozenset({"cuda", "to", "xla"})
DEVICE_TEXT = re.compile(r"(cuda|gpu|xla|npu)\b")


@dataclass(frozen=True)
class Share:
    """Reason why a value differs between the replicas.

    Args:
        text: the expression that divides, as written in the script.
        line: its line.
        path: its file.
        by_loop: whether a loop iterates over a share, so that replicas may take different numbers of turns.
        by_name: whether only the name of a loader says so.
        mixed: whether other calls of the function around it pass a value that is the same on all replicas.
        by_error: whether it runs in an exception handler, possibly on one replica alone.
        node: the expression itself, if it divides data by hand (`migrate.model.replicated.divisions`).
        batched: whether a loader makes batches of the share.
        drops: whether that loader leaves out an incomplete last batch.
    """

    text: str
    line: int
    path: Path
    by_loop: bool = False
    by_name: bool = False
    mixed: bool = False
    by_error: bool = False
    node: ast.expr | None = None
    batched: bool = False
    drops: bool = False


Bound = Mapping[str, Share | None]  # arguments of a call for the parameters of a function


class Shares:
    """Values of a project that depend on the replica.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._passed = passed_nodes(analysis)
        self._filled: dict[Scope, dict[str, list[ast.Call]]] = {}
        self._names: dict[tuple[Scope, str], Share | None] = {}
        self._under_way: set[tuple[Scope, str]] = set()
        # Cache within one search. Without it, a name is followed once for each way that leads to it.
        self._followed: dict[Hashable, Share | None] = {}

    def of(
        self, node: ast.AST | None, scope: Scope, bound: Bound | None = None, depth: int = 0
    ) -> Share | None:
        """Return why the expression `node` differs between replicas; None if no reason is known.

        Args:
            node: the expression.
            scope: the scope of the expression.
            bound: the arguments of a call for the parameters of `scope`, if known.
            depth: number of functions entered.
        """
        match node:
            case ast.Name(id=name):
                return self._name(node, name, scope, bound, depth)
            case ast.Attribute():
                return self._attribute(node, scope, bound, depth)
            case ast.Call():
                return self._call(node, scope, bound, depth)
            case ast.Subscript(value=of, slice=index):
                if ast.unparse(of) == "os.environ":
                    key = index.value if isinstance(index, ast.Constant) else ""
                    return self._share(node, scope) if _is_rank_variable(key) else None
                divided = self.of(index, scope, bound, depth)
                if divided is not None and isinstance(index, ast.Slice | ast.Tuple):
                    return self._share(node, scope)
                return divided or self.of(of, scope, bound, depth)
            case ast.BinOp() if _names_device(node.left):
                return None
            case ast.JoinedStr(values=[ast.Constant() as first, *_]) if _names_device(first):
                return None
            case ast.IfExp(body=body, orelse=orelse):
                return self.of(body, scope, bound, depth) or self.of(orelse, scope, bound, depth)
            case ast.BinOp() | ast.Slice() | ast.Starred() | ast.Await() | ast.NamedExpr():
                return self._first(ast.iter_child_nodes(node), scope, bound, depth)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope, bound, depth)
            case _ if isinstance(node, ITEMS):
                return self._first(ast.iter_child_nodes(node), scope, bound, depth)
        return None

    def _first(
        self, nodes: Iterator[ast.AST], scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        shares = (self.of(node, scope, bound, depth) for node in nodes)
        return next((share for share in shares if share is not None), None)

    def _share(self, node: ast.expr, scope: Scope) -> Share:
        return Share(ast.unparse(node), node.lineno, scope.module.path)

    def _comprehension(
        self, node: ast.expr, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        """Return the division of the elements: in the iterable, or in a test that keeps some of them."""
        assert isinstance(node, COMPREHENSIONS)
        for generator in node.generators:
            if self.tests(generator.ifs, scope, bound, depth):
                return self._share(node, scope)
            if (share := self.of(generator.iter, scope, bound, depth)) is not None:
                return share
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return self._first(iter(parts), scope, bound, depth)

    def tests(
        self,
        tests: list[ast.expr],
        scope: Scope,
        bound: Bound | None = None,
        depth: int = 0,
    ) -> bool:
        """Whether one of `tests` compares with a value that depends on the replica."""
        compared = (c for test in tests for c in walk(test) if isinstance(c, ast.Compare))
        return any(
            self._first(iter((c.left, *c.comparators)), scope, bound, depth) is not None
            for c in compared
        )

    def _is_rank(self, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
        """Whether a name or an attribute is the rank, by its spelling."""
        if isinstance(node, ast.Attribute):
            return bool(RANK_NAME.fullmatch(node.attr) or GPU_NAME.fullmatch(node.attr))
        return RANK_NAME.fullmatch(node.id) is not None and not _are_constant(
            list(self._evaluator.bindings_of(node.id, scope))
        )

    def _name(
        self, node: ast.Name, name: str, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        if bound is not None and name in bound:
            return bound[name]
        if self._is_rank(node, scope):
            return self._share(node, scope)
        key = scope, name
        if key in self._under_way or depth > DEEPEST:
            return None
        if bound is None and key in self._names:
            return self._names[key]
        followed = *key, depth, _signature(bound)
        if followed in self._followed:
            return self._followed[followed]
        self._under_way.add(key)
        try:
            share = self._named(name, scope, bound, depth)
        finally:
            self._under_way.discard(key)
        if share is not None:
            self._followed.clear()  # values made from this name may differ now
        if self._under_way:
            self._followed[followed] = share
        else:
            self._followed.clear()
            if bound is None:
                self._names[key] = share
        return share

    def _named(self, name: str, scope: Scope, bound: Bound | None, depth: int) -> Share | None:
        bindings = list(self._evaluator.bindings_of(name, scope))
        if self._is_equal(name, scope):
            return None
        for binding in bindings:
            if _counts(name, binding):
                start = self.of(_start_of(binding), binding.scope, bound, depth)
                if start is not None:
                    return start
                continue
            if (share := self._bound(binding, bound, depth)) is not None:
                return share
        return self._added(name, scope, bound, depth)

    def _bound(self, binding: ValueBinding, bound: Bound | None, depth: int) -> Share | None:
        scope, value = binding.scope, binding.value
        if binding.kind == "param" and isinstance(scope, Function):
            if (scope, binding.name) in self._evaluator.passed and any(
                isinstance(value, DeviceValue) and value.kind is Kind.INDEX
                for value in self._evaluator.passed[scope, binding.name]
            ):
                return Share(binding.name, scope.line, scope.module.path)
            passed = self._passed.get((scope, binding.name), ())
            shares = (self.of(arg, at, None, depth + 1) for arg, at in passed)
            return next((share for share in shares if share is not None), None)
        if value is None:
            return None
        if binding.kind == "element":
            return self._element(value, scope, bound, depth)
        if binding.kind == "item":
            return self._item(value, binding.index, scope, bound, depth)
        return self.of(value, scope, bound, depth) if binding.kind == "value" else None

    def _element(
        self, value: ast.expr, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        """Return why the elements of `value` differ between replicas."""
        share = self.of(value, scope, bound, depth)
        if share is None and self._is_unknown_loader(value, scope):
            share = replace(self._share(value, scope), by_name=True)
        return replace(share, by_loop=True) if share is not None else None

    def _is_unknown_loader(self, value: ast.expr, scope: Scope) -> bool:
        """Whether `value` is a loader by its name, and its origin is unknown."""
        named = isinstance(value, ast.Name | ast.Attribute) and LOADER.search(last_part(value))
        if not named:
            return False
        assert isinstance(value, ast.Name | ast.Attribute)
        if isinstance(value, ast.Attribute):
            return not list(self._evaluator.members_of(value.value, value.attr, scope))
        bindings = list(self._evaluator.bindings_of(value.id, scope))
        return all(b.kind == "param" and (b.scope, b.name) not in self._passed for b in bindings)

    def _item(
        self, value: ast.expr, index: int, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        """Return why the element number `index` of a tuple differs."""
        if isinstance(value, ast.Tuple | ast.List) and index < len(value.elts):
            return self.of(value.elts[index], scope, bound, depth)
        if isinstance(value, ast.Call):
            functions = self._functions(value)
            if functions and depth <= DEEPEST:
                return self._returned(functions, value, scope, bound, depth, index)
        return self.of(value, scope, bound, depth)

    def _added(self, name: str, scope: Scope, bound: Bound | None, depth: int) -> Share | None:
        """Return why values put into `name` in its function differ: `mine.append(file)`."""
        if not isinstance(scope, Function):
            return None
        for call in self._puts(scope).get(name, ()):
            if self._is_divided(call, scope, bound, depth):
                return self._share(call, scope)
            for arg in call.args:
                if (share := self.of(arg, scope, bound, depth)) is not None:
                    return share
        return None

    def _puts(self, scope: Function) -> dict[str, list[ast.Call]]:
        """Return the calls in a function that put a value into a name, or make names equal."""
        if scope not in self._filled:
            puts: dict[str, list[ast.Call]] = defaultdict(list)
            for region in self._analysis.regions(scope.region):
                for call, _ in region.calls:
                    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
                    if isinstance(receiver, ast.Name) and last_part(call.func) in KEEPING:
                        puts[receiver.id].append(call)
            self._filled[scope] = puts
        return self._filled[scope]

    def _is_divided(self, call: ast.Call, scope: Scope, bound: Bound | None, depth: int) -> bool:
        """Whether a replica test around `call`, in its function, lets only some replicas run it."""
        above = parents(scope.module)
        node = above.get(call)
        while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(node, ast.If) and self.tests([node.test], scope, bound, depth):
                return True
            node = above.get(node)
        return False

    def _is_equal(self, name: str, scope: Scope) -> bool:
        """Whether a collective of the function gives `name` the same value on all replicas."""
        if not isinstance(scope, Function):
            return False
        return any(
            last_part(call.func) in EQUALIZE
            and any(
                isinstance(n, ast.Name) and n.id == name for a in call.args[:1] for n in walk(a)
            )
            for region in self._analysis.regions(scope.region)
            for call, _ in region.calls
        )

    def _attribute(
        self, node: ast.Attribute, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        if self._is_rank(node, scope):
            return self._share(node, scope)
        key = scope, ast.unparse(node)
        if key in self._under_way or depth > DEEPEST:
            return None
        followed = *key, depth, _signature(bound)
        if followed not in self._followed:
            self._followed[followed] = self._of_member(node, key, scope, bound, depth)
        share = self._followed[followed]
        if share is not None or not self._under_way:
            self._followed.clear()
        return share

    def _of_member(
        self,
        node: ast.Attribute,
        key: tuple[Scope, str],
        scope: Scope,
        bound: Bound | None,
        depth: int,
    ) -> Share | None:
        self._under_way.add(key)
        try:
            members = list(self._evaluator.members_of(node.value, node.attr, scope))
            for binding in members:
                if (share := self._bound(binding, None, depth + 1)) is not None:
                    return share
            holder = node.value
            if members or not isinstance(holder, ast.Name) or holder.id == "self":
                return None
            bindings = self._evaluator.bindings_of(holder.id, scope)
            if any(binding.kind == "element" for binding in bindings):
                return self.of(holder, scope, bound, depth)
            return None
        finally:
            self._under_way.discard(key)

    def _functions(self, call: ast.Call) -> list[Function]:
        ran = self._analysis.running.get(call)
        return ran.functions if ran is not None else []

    def _call(self, call: ast.Call, scope: Scope, bound: Bound | None, depth: int) -> Share | None:
        last = last_part(call.func)
        if last in SIZES or last in EQUALIZE:
            return None
        if last in ("get", "getenv") and call.args:
            key = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
            if _is_rank_variable(key) and "env" in ast.unparse(call.func):
                return self._share(call, scope)
        if RANK_FUNCTION.fullmatch(last) or SHARDING_SAMPLER.fullmatch(last):
            return self._share(call, scope)
        values = self._evaluator.values(call.func, scope)
        names = [value.name for value in values if isinstance(value, External)]
        if any(SAME.match(name) for name in names):
            return None
        if functions := self._functions(call):
            if any(isinstance(value, Class) for value in values) or depth > DEEPEST:
                return None
            return self._returned(functions, call, scope, bound, depth)
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if last in MOVES:
            return self.of(receiver, scope, bound, depth)
        if last[:1].isupper() and not HOLDING.fullmatch(last):
            return None
        args = list(call.args)
        if last == "enumerate":
            args = args[:1]
        args += [k.value for k in call.keywords if k.arg not in PLACING]
        of_object = None if any(names) else receiver
        parts = [*args, *([of_object] if of_object is not None else [])]
        return self._first(iter(parts), scope, bound, depth)

    def _returned(
        self,
        functions: list[Function],
        call: ast.Call,
        scope: Scope,
        bound: Bound | None,
        depth: int,
        index: int | None = None,
    ) -> Share | None:
        """Return why the result of a call of project functions differs."""
        followed = call, index, depth, _signature(bound)
        if followed not in self._followed:
            self._followed[followed] = self._given_back(functions, call, scope, bound, depth, index)
        return self._followed[followed]

    def _given_back(
        self,
        functions: list[Function],
        call: ast.Call,
        scope: Scope,
        bound: Bound | None,
        depth: int,
        index: int | None,
    ) -> Share | None:
        for function in functions:
            arguments = self._given(function, call, scope, bound, depth)
            for value in function.returns:
                share = (
                    self.of(value, function, arguments, depth + 1)
                    if index is None
                    else self._item(value, index, function, arguments, depth + 1)
                )
                if share is not None:
                    return share
        return None

    def _given(
        self, function: Function, call: ast.Call, scope: Scope, bound: Bound | None, depth: int
    ) -> dict[str, Share | None]:
        """Return the arguments of `call` for the parameters of `function`, which it runs."""
        return {
            passed.name: self.of(
                passed.node, passed.scope, bound if passed.scope is scope else None, depth + 1
            )
            for passed in self._analysis.passed[call]
            if passed.to is function and passed.node is not None
        }


def _signature(bound: Bound | None) -> Hashable:
    return None if bound is None else frozenset(bound.items())


def _counts(name: str, binding: ValueBinding) -> bool:
    """Whether `name` counts the turns of a loop: `for name, file in enumerate(files, start)`."""
    value = binding.value
    if binding.kind != "element" or not isinstance(value, ast.Call):
        return False
    loop = parents(binding.scope.module).get(value)
    target = loop.target if isinstance(loop, ast.For | ast.comprehension) else None
    if last_part(value.func) != "enumerate" or not isinstance(target, ast.Tuple):
        return False
    first = target.elts[0]
    return isinstance(first, ast.Name) and first.id == name


def _start_of(binding: ValueBinding) -> ast.expr | None:
    """Return the number from which `enumerate` counts, if the call passes one."""
    assert isinstance(binding.value, ast.Call)
    return next(iter((*binding.value.args[1:], *(k.value for k in binding.value.keywords))), None)


def _are_constant(bindings: list[ValueBinding]) -> bool:
    """Whether a name is only bound to constants: `rank = 0`."""
    return bool(bindings) and all(isinstance(binding.value, ast.Constant) for binding in bindings)


def _is_rank_variable(key: object) -> bool:
    return key in RANK_VARIABLES | GROUP_VARIABLES


def _names_device(node: ast.AST) -> bool:
    """Whether `node` is the start of the name of a device: `f"cuda:{rank}"`."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and DEVICE_TEXT.match(text) is not None


def divided_saves(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.Call, Share]]:
    """Yield the calls of torch.save in a file whose path depends on the replica."""
    if b"save" not in top.module.data:
        return
    for call, scope in analysis.calls_in(top):
        paths = list(_paths(call, scope, analysis)) if _may_save(call, scope) else []
        values = analysis.evaluator.values(call.func, scope) if paths else ()
        if any(isinstance(value, External) and value.name in SAVES for value in values):
            error = handler_of(call, scope, analysis)
            if error is not None:
                yield call, error
                continue
            shares = [shares_of(analysis).of(path, at) for path, at in paths]
            share = next((share for share in shares if share is not None), None)
            if share is not None:
                share = replace(share, mixed=None in shares)
                yield call, _in_loops(share, call, scope, analysis)


def handler_of(call: ast.Call, scope: Scope, analysis: Analysis, depth: int = 0) -> Share | None:
    """Return the handler that runs `call` on one replica alone: an `except` around it or all its callers.

    An interrupt reaches all replicas.
    """
    above = parents(scope.module)
    node = above.get(call)
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(node, ast.ExceptHandler):
            kinds = ast.unparse(node.type) if node.type is not None else ""
            if "KeyboardInterrupt" in kinds or "SystemExit" in kinds:
                return None
            text = f"except {kinds}".strip()
            return Share(text, node.lineno, scope.module.path, by_error=True)
        node = above.get(node)
    callers = callers_of(analysis).get(scope, ()) if isinstance(scope, Function) else ()
    handlers = [
        handler_of(caller, at, analysis, depth + 1)
        for caller, at in (callers if depth < DEEPEST_HANDLER else ())
    ]
    return handlers[0] if handlers and all(share is not None for share in handlers) else None


def _paths(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the path of a save, with its scope; for `save(*args, **kwargs)`, the paths of the callers."""
    path = _path(call)
    if not any(isinstance(arg, ast.Starred) for arg in call.args):
        if path is not None:
            yield path, scope
        return
    if isinstance(scope, Function) and scope.arguments.vararg is not None and not scope.parameters:
        for caller, at in callers_of(analysis).get(scope, ()):
            passed = _path(caller)
            if passed is not None:
                yield passed, at


def _may_save(call: ast.Call, scope: Scope) -> bool:
    return last_part(call.func) == "save" or b"safetensors" in scope.module.data


def _path(call: ast.Call) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg in ("f", "filename")), None)
    return named or (call.args[1] if len(call.args) > 1 else None)


def _in_loops(share: Share, call: ast.Call, scope: Scope, analysis: Analysis) -> Share:
    """Return `share`, marked as by a loop if a loop around `call` iterates over a share."""
    above = parents(scope.module)
    node = above.get(call)
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(node, ast.For) and shares_of(analysis).of(node.iter, scope) is not None:
            return replace(share, by_loop=True)
        if isinstance(node, ast.While) and shares_of(analysis).tests([node.test], scope):
            return replace(share, by_loop=True)
        node = above.get(node)
    return share


@lru_cache(maxsize=2)
def shares_of(analysis: Analysis) -> Shares:
    """Return the values of a project that depend on the replica, computed on demand."""
    return Shares(analysis)
