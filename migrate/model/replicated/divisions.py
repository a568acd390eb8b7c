"""Data that each replica takes a share of by hand, without padding: `indices[rank::world_size]`.

The shares have different lengths unless the number of samples is a multiple of the number of replicas.
`DistributedSampler` pads them to one length.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.model.calls.kinds import ClassInstance
from migrate.model.calls.rank_tests import is_none, last_part, parents
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.model.replicated.shares import (
    COMPREHENSIONS,
    SHARDING_SAMPLER,
    Bound,
    Share,
    Shares,
    shares_of,
)
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import ValueBinding
    from migrate.model.project.project import SourceModule

LOADERS = re.compile(r"\w*Loader")
RANGES = frozenset({"arange", "range"})
DRAWS = frozenset({"permutation", "randperm"})
# Functions and methods whose result is as long as their argument.
SAME_LENGTH = frozenset({"array", "asarray", "list", "reversed", "sorted", "tensor", "tuple"})
SAME_LENGTH_METHODS = frozenset({"copy", "numpy", "tolist"})
# Functions that cut a list into parts of different lengths, one for each replica.
SPLITS = frozenset({"array_split", "chunk", "tensor_split"})
# Operators of a number that is made a multiple of another number, or is a share of it.
ROUNDS = (ast.Mult, ast.FloorDiv, ast.Mod)
PADS = frozenset({"extend", "pad", "resize", "tile"})
# Hosts of TPUs have 4 or 8 chips: a multiple of 8 has no remainder.
CHIPS = 8
DEEPEST = 8


@lru_cache(maxsize=256)
def may_divide(module: SourceModule) -> bool:
    """Whether a file has an expression that may take a share of data: a stride, a range, a remainder."""
    for node in module.nodes:
        match node:
            case ast.Slice(lower=ast.expr(), upper=upper, step=step):
                if _is_stride(step) or upper is not None:
                    return True
            case ast.Call(func=function, args=args):
                last = last_part(function)
                if last in SPLITS or (last in RANGES and len(args) > 1):
                    return True
            case ast.Compare(left=ast.BinOp(op=ast.Mod())):
                return True
    return False


class Divisions(Shares):
    """Unpadded shares of data in a project.

    `Shares` says whether a value differs between replicas; this class says whether its length does.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        super().__init__(analysis)
        self._ranks = shares_of(analysis)
        self.files: dict[ast.expr, ModuleScope] = {}

    def of(
        self, node: ast.AST | None, scope: Scope, bound: Bound | None = None, depth: int = 0
    ) -> Share | None:
        """Return the division that makes the lengths of `node` differ between replicas, or None."""
        if isinstance(node, ast.expr) and self._divides(node, scope):
            return self._division(node, scope)
        if isinstance(node, ast.Subscript):
            cut = isinstance(node.slice, ast.Slice | ast.Tuple)
            return None if cut else self.of(node.value, scope, bound, depth)
        share = super().of(node, scope, bound, depth)
        return share if share is not None and share.node is not None else None

    def tests(
        self,
        tests: list[ast.expr],
        scope: Scope,
        bound: Bound | None = None,
        depth: int = 0,
    ) -> bool:
        """Whether one of `tests` selects every n-th element: `i % world_size == rank`."""
        compared = (c for test in tests for c in walk(test) if isinstance(c, ast.Compare))
        return any(
            _has_operator(comparison, (ast.Mod,)) and self._ranks.tests([comparison], scope)
            for comparison in compared
        )

    def is_in_all_shares(
        self, test: ast.expr, counter: str, divided: ast.expr, scope: Scope
    ) -> bool:
        """Whether `test` is true in turns only that all replicas reach: `i < len(data) // world_size - 1`.

        Args:
            test: the condition.
            counter: the name that counts the turns.
            divided: the division that makes the share.
            scope: the scope of the condition.
        """
        match test, divided:
            case (
                ast.Compare(left=ast.Name(id=name), ops=[ast.Lt()], comparators=[bound]),
                ast.Subscript(value=data, slice=ast.Slice(step=ast.expr() as step)),
            ) if name == counter:
                values = [(bound, scope)]
                if isinstance(bound, ast.Name | ast.Attribute):
                    values = list(self._values(bound, scope))
                of_all = f"len({ast.unparse(data)}) // {ast.unparse(step)}"
                return bool(values) and all(_is_at_most(value, of_all) for value, _ in values)
        return False

    def _division(self, node: ast.expr, scope: Scope) -> Share:
        self.files[node] = scope.top
        return replace(self._share(node, scope), node=node)

    def _is_rank(self, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
        return False

    def _differs(self, node: ast.expr | None, scope: Scope) -> bool:
        """Whether a number depends on the replica."""
        return node is not None and self._ranks.of(node, scope) is not None

    def _divides(self, node: ast.expr, scope: Scope) -> bool:
        """Whether `node` takes the share of one replica, without code that makes the shares equal."""
        match node:
            case ast.Subscript(value=data, slice=ast.Slice(lower, upper, step)):
                if _is_stride(step):
                    is_equal = self._has_equal_length(data, scope) or (
                        upper is not None and self._is_multiple(upper, scope)
                    )
                    return not is_equal and self._differs(lower, scope)
                return self._is_rounded_up(lower, upper, scope)
            case ast.Subscript(value=data, slice=index):
                return (
                    not isinstance(index, ast.Tuple | ast.Constant)
                    and self._is_split(data, scope)
                    and self._differs(index, scope)
                )
            case ast.Call(func=function, args=[lower, upper, *steps], keywords=[]):
                if last_part(function) not in RANGES or len(steps) > 1:
                    return False
                if steps and _is_stride(steps[0]):
                    return self._differs(lower, scope) and not self._is_multiple(upper, scope)
                return self._is_rounded_up(lower, upper, scope)
        return isinstance(node, COMPREHENSIONS) and any(
            self.tests(generator.ifs, scope) and not self._has_equal_length(generator.iter, scope)
            for generator in node.generators
        )

    def _is_split(self, data: ast.expr, scope: Scope) -> bool:
        """Whether `data` is a list of parts of different lengths: `np.array_split(x, world_size)`."""
        values = [data]
        if isinstance(data, ast.Name):
            bindings = self._evaluator.bindings_of(data.id, scope)
            values = [
                binding.value for binding in bindings if binding.kind == "value" and binding.value
            ]
        return any(
            isinstance(value, ast.Call)
            and last_part(value.func) in SPLITS
            and not (value.args and self._has_equal_length(value.args[0], scope))
            for value in values
        )

    def _is_rounded_up(self, lower: ast.expr | None, upper: ast.expr | None, scope: Scope) -> bool:
        """Whether a contiguous share is shorter on the last replica: its size is rounded up."""
        if lower is None or upper is None:
            return False
        if not (self._differs(lower, scope) and self._differs(upper, scope)):
            return False
        return any(self._rounds_up(side, scope, 0) for side in (lower, upper))

    def _rounds_up(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        for part in walk(node):
            if isinstance(part, ast.Call) and last_part(part.func) == "ceil":
                return True
            if isinstance(part, ast.Name | ast.Attribute) and depth < DEEPEST:
                values = self._values(part, scope)
                if any(self._rounds_up(value, at, depth + 1) for value, at in values):
                    return True
        return False

    def _has_equal_length(self, data: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether the length of a list is visibly made a multiple of the number of replicas."""
        if depth > DEEPEST:
            return False
        match data:
            case ast.Subscript(slice=ast.Slice(step=step)):
                return not _is_stride(step)  # cut; a stride is a share itself
            case ast.BinOp(op=ast.Add()):
                return True  # padded
            case ast.Subscript(value=value):
                return self._has_equal_length(value, scope, depth + 1)
            case ast.Name() | ast.Attribute():
                if _is_made_equal(ast.unparse(data), scope):
                    return True
                values = self._values(data, scope)
                return any(self._has_equal_length(value, at, depth + 1) for value, at in values)
            case ast.Call(func=function, args=args):
                last = last_part(function)
                if last in PADS:
                    return True
                if last in SPLITS:
                    return any(
                        self._is_multiple(argument, scope, depth + 1) for argument in args[1:2]
                    )
                if last in RANGES or last in DRAWS:
                    return any(
                        self._is_multiple(argument, scope, depth + 1) for argument in args[:2]
                    )
                if last in SAME_LENGTH_METHODS and isinstance(function, ast.Attribute):
                    return self._has_equal_length(function.value, scope, depth + 1)
                of = args[:1] if last in SAME_LENGTH else []
                return any(self._has_equal_length(value, scope, depth + 1) for value in of)
        return False

    def _is_multiple(self, number: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether a number of samples is visibly made a multiple of the number of replicas."""
        if depth > DEEPEST:
            return False
        match number:
            case ast.Constant(value=int(value)):
                return value > 0 and value % CHIPS == 0
            case ast.BinOp():
                return _has_operator(number, ROUNDS)
            case ast.Name() | ast.Attribute():
                if _is_made_equal(ast.unparse(number), scope):
                    return True
                values = self._values(number, scope)
                return any(self._is_multiple(value, at, depth + 1) for value, at in values)
            case ast.Call(func=function, args=args):
                last = last_part(function)
                if last == "len":
                    return any(
                        self._has_equal_length(argument, scope, depth + 1) for argument in args
                    )
                return last == "ceil" or any(
                    self._is_multiple(argument, scope, depth + 1) for argument in args
                )
        return False

    def _values(
        self, node: ast.Name | ast.Attribute, scope: Scope
    ) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the values of a name or an attribute; for a parameter, the arguments of calls."""
        bindings: Iterable[ValueBinding] = (
            _reaching(node, scope) or self._evaluator.bindings_of(node.id, scope)
            if isinstance(node, ast.Name)
            else self._evaluator.members_of(node.value, node.attr, scope)
        )
        for binding in bindings:
            if binding.kind == "param" and isinstance(binding.scope, Function):
                yield from self._passed.get((binding.scope, binding.name), ())
            elif binding.kind == "value" and binding.value is not None:
                yield binding.value, binding.scope

    def _name(
        self, node: ast.Name, name: str, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        bindings = [] if bound is not None and name in bound else _reaching(node, scope)
        if not bindings:
            return super()._name(node, name, scope, bound, depth)
        key = scope, f"{name}:{node.lineno}:{node.col_offset}"
        if key in self._under_way or depth > DEEPEST:
            return None
        self._under_way.add(key)
        try:
            shares = (self._bound(binding, bound, depth) for binding in bindings)
            return next((share for share in shares if share is not None), None)
        finally:
            self._under_way.discard(key)
            if not self._under_way:
                self._followed.clear()

    def _bound(self, binding: ValueBinding, bound: Bound | None, depth: int) -> Share | None:
        return None if binding.kind == "element" else super()._bound(binding, bound, depth)

    def _attribute(
        self, node: ast.Attribute, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        text = ast.unparse(node)
        if bound is not None and text in bound:
            return bound[text]
        return super()._attribute(node, scope, bound, depth)

    def _added(self, name: str, scope: Scope, bound: Bound | None, depth: int) -> Share | None:
        if isinstance(scope, Function):
            for call in self._puts(scope).get(name, ()):
                if self._is_divided(call, scope, bound, depth):
                    return self._division(call, scope)
        return super()._added(name, scope, bound, depth)

    def _call(self, call: ast.Call, scope: Scope, bound: Bound | None, depth: int) -> Share | None:
        last = last_part(call.func)
        if last == "len" and call.args:
            return self.of(call.args[0], scope, bound, depth)
        if SHARDING_SAMPLER.fullmatch(last):
            return None  # pads
        if LOADERS.fullmatch(last):
            return self._loaded(call, scope, bound, depth)
        values = self._evaluator.values(call, scope)
        if objects := [value for value in values if isinstance(value, ClassInstance)]:
            shares = (self._of_object(instance, call, scope, bound, depth) for instance in objects)
            return next((share for share in shares if share is not None), None)
        return super()._call(call, scope, bound, depth)

    def _loaded(
        self, call: ast.Call, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        """Return the division of the data that a loader samples from."""
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        data = call.args[0] if call.args else named.get("dataset")
        samplers = [named[name] for name in ("batch_sampler", "sampler") if name in named]
        passed = [sampler for sampler in samplers if not is_none(sampler)]
        if not passed and data is not None:
            passed = [data]
        share = self._first(iter(passed), scope, bound, depth)
        if share is None:
            return None
        drops = named.get("drop_last")
        is_true = isinstance(drops, ast.Constant) and drops.value is True
        return replace(share, batched=True, drops=is_true)

    def _of_object(
        self, instance: ClassInstance, call: ast.Call, scope: Scope, bound: Bound | None, depth: int
    ) -> Share | None:
        """Return the division in the elements, or in the length, of an instance of a project class."""
        methods = (self._evaluator.method(instance.of, name) for name in ("__iter__", "__len__"))
        function = next((method for method in methods if method is not None), None)
        if function is None or depth > DEEPEST:
            return None
        attributes: dict[str, Share | None] = {}
        for init in self._functions(call):
            arguments = self._given(init, call, scope, bound, depth)
            for name, bindings in (init.owner.attributes if init.owner is not None else {}).items():
                values = [
                    binding.value for binding in bindings if binding.scope is init and binding.value
                ]
                share = self._first(iter(values), init, arguments, depth + 1) if values else None
                attributes[f"self.{name}"] = share
        gone_over = [*function.returns, *self._iterated(function)]
        return self._first(iter(gone_over), function, attributes, depth + 1)

    def _given_back(
        self,
        functions: list[Function],
        call: ast.Call,
        scope: Scope,
        bound: Bound | None,
        depth: int,
        index: int | None,
    ) -> Share | None:
        share = super()._given_back(functions, call, scope, bound, depth, index)
        if share is not None:
            return share
        for function in functions:
            if gone_over := self._iterated(function):
                arguments = self._given(function, call, scope, bound, depth)
                share = self._first(iter(gone_over), function, arguments, depth + 1)
                if share is not None:
                    return share
        return None

    def _iterated(self, function: Function) -> list[ast.expr]:
        """Return the iterables of a generator's loops: it yields as many times."""
        if not function.yields:
            return []
        return [
            region.loop.iter
            for region in self._analysis.regions(function.region)
            if isinstance(region.loop, ast.For)
        ]


def _reaching(node: ast.Name, scope: Scope) -> list[ValueBinding]:
    """Return the assignments that may give a name its value at `node`, if its function has several.

    Empty if the name has one binding, or none that surely comes before `node`.
    """
    bindings = [binding for binding in scope.bindings.get(node.id, ()) if binding.value is not None]
    if len(bindings) < 2 or len(bindings) != len(scope.bindings[node.id]):
        return []
    above = parents(scope.module)
    around: dict[ast.AST, ast.AST] = {}  # each ancestor of `node`, with its child on the way
    below: ast.AST = node
    while (holder := above.get(below)) is not None:
        around[holder] = below
        below = holder
    before = [
        binding for binding in bindings if binding.value and _line(binding.value) < _line(node)
    ]
    before.sort(key=lambda binding: _line(binding.value) if binding.value else 0)
    for number, binding in reversed(list(enumerate(before))):
        assigned = above.get(binding.value) if binding.value is not None else None
        holder = above.get(assigned) if isinstance(assigned, ast.Assign) else None
        if holder in around and any(
            isinstance(block, list) and assigned in block and around[holder] in block
            for _, block in ast.iter_fields(holder)
        ):
            return before[number:]
    return []


def _is_at_most(number: ast.expr, limit: str) -> bool:
    """Whether a number is what the text `limit` computes, or that less a constant."""
    match number:
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=int(value))) if value >= 0:
            return _is_at_most(left, limit)
    return ast.unparse(number) == limit


def _line(node: ast.expr) -> int:
    return node.lineno


def _is_stride(step: ast.expr | None) -> bool:
    """Whether a step leaves out elements for other replicas."""
    return step is not None and not (isinstance(step, ast.Constant) and step.value in (None, 1))


def _has_operator(node: ast.AST, operators: tuple[type[ast.operator], ...]) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, operators) for n in walk(node))


def _is_made_equal(name: str, scope: Scope) -> bool:
    """Whether the function of `name` pads or cuts it, or takes the remainder of its length."""
    line = scope.line if isinstance(scope, Function) else 0
    padded = _padded_names(scope.top)
    return any((line, text) in padded for text in (name, f"len({name})"))


@lru_cache(maxsize=64)
def _padded_names(top: ModuleScope) -> frozenset[tuple[int, str]]:
    """Return the names that each function of a file extends in place or takes a remainder of, by its line."""
    names: set[tuple[int, str]] = set()
    above = parents(top.module)
    for node in top.module.nodes:
        match node:
            case ast.AugAssign(target=padded):
                pass
            case ast.Call(func=ast.Attribute(value=padded, attr=method)) if method in PADS:
                pass
            case ast.BinOp(op=ast.Mod(), left=ast.Name() | ast.Attribute() | ast.Call() as padded):
                pass
            case _:
                continue
        around = above.get(node)
        while around is not None and not isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            around = above.get(around)
        names.add((around.lineno if around is not None else 0, ast.unparse(padded)))
    return frozenset(names)
