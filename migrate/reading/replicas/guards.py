"""Code that only some replicas run: below `if rank == 0`, after `if rank != 0: return`, or after a raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import (
    FIRST_DECORATOR,
    FIRST_NAME,
    GPU_NAME,
    GROUP_VARIABLES,
    OPTIONS,
    PARALLEL_RANK_NAME,
    RANK_FUNCTION,
    RANK_NAME,
    RANK_VARIABLES,
    words,
)
from migrate.model.calls.kind import Kind
from migrate.syntax.tree import (
    code,
    is_attribute_of_self,
    is_none,
    last_part,
    nodes,
    nodes_of,
    string_value,
)

if TYPE_CHECKING:
    from migrate.reading.values.devices import Placed


# Nodes that keep some replicas from running a piece of code.
Guard = cst.If | cst.FunctionDef | cst.IfExp | cst.BooleanOperation | cst.While | cst.Match

ENVIRONMENT = frozenset({"os.environ.get", "os.getenv"})
# Decorators that make a context manager from a function that yields the value of `with … as value`.
MANAGERS = frozenset({"contextmanager", "asynccontextmanager"})
PROPERTIES = frozenset({"property", "cached_property"})
# `step % rank` and `rank * width` more likely refer to the rank of a matrix.
# Methods of torch's modules, optimizers and schedulers: such a call counts for a class of the script only if
# the object is seen to be an instance of it.
OF_MODULES = words(
    "apply backward buffers children cpu cuda double eval float forward half load_state_dict modules "
    "parameters register_buffer requires_grad_ state_dict step to train type zero_grad"
)
# Nodes around another that may keep it from running.
_TESTS = (cst.If, cst.IfExp, cst.While, cst.BooleanOperation, cst.Match)
_GUARDING = frozenset((*_TESTS, cst.IndentedBlock, cst.Module, cst.FunctionDef))
COMPUTES = (cst.Add, cst.BitAnd, cst.FloorDivide, cst.Modulo, cst.RightShift, cst.Subtract)

# Calls that return the number of dimensions of a tensor, or of a matrix's independent rows.
COUNTS_AXES = frozenset({"dim", "ndim", "ndimension", "matrix_rank"})


class Guards:
    """Guards: the tests that make code run on some replicas only.

    A replica that skips a collective leaves the others waiting for it. Ranks are recognized by facts
    (`context.ranks`, `dist.get_rank()`) and by the names that scripts give them.
    """

    def __init__(self, context: Placed) -> None:
        self._context = context
        self._under_way: set[int] = set()
        self._mentioned: dict[tuple[str, bool], list[cst.Name]] = {}
        self._around: dict[int, Guard | None] = {}
        self._asking: dict[int, bool] = {}  # by test
        self._leaving: dict[
            int, dict[int, cst.If]
        ] = {}  # by block: its `if`s whose branch may leave it

    def around(self, node: cst.CSTNode) -> Guard | None:
        """Return the innermost guard that keeps some replicas from running `node`, or None.

        Returns:
            A guard is an `if` that tests the rank and has `node` in one of its branches. It may also leave
                the function or the turn of the loop before `node`, or raise there on all but the first
                replica. It may have another form (`rank == 0 and node`, `node if rank == 0 else None`,
                `while`, `match`). It may also be a function around `node` that is only called under a guard,
                or whose decorator restricts it (`@rank_zero_only`).
        """
        if self._under_way:
            return self._find_around(node)
        if id(node) not in self._around:
            self._around[id(node)] = self._find_around(node)
        return self._around[id(node)]

    def _find_around(self, node: cst.CSTNode) -> Guard | None:
        below = node
        for above in self._context.ancestors(node):
            if type(above) not in _GUARDING:
                pass
            elif isinstance(above, cst.If | cst.IfExp | cst.While):
                in_branch = below is not above.test
                if in_branch and self.asks(above.test):
                    return above
            elif isinstance(above, cst.BooleanOperation):
                if below is above.right and self.asks(above.left):
                    return above
            elif isinstance(above, cst.Match):
                if below is not above.subject and self.is_index(above.subject):
                    return above
            elif isinstance(above, cst.IndentedBlock | cst.Module):
                left = self._left_before(above.body, below)
                if left is not None and not self._all_stay(left, node):
                    return left
            elif isinstance(above, cst.FunctionDef) and self._only_guarded_calls(above):
                return above
            below = above
        return None

    def around_what_some_hold(self, node: cst.CSTNode) -> Guard | None:
        """Return the test around `node` for an object that only some replicas have: `if writer is not None`.

        It is no rank test itself: the code below it needs the object that the others do not have. `if writer
        is None: return` before `node`, and `writer and node`, are such tests too.
        """
        below = node
        for above in self._context.ancestors(node):
            if type(above) not in _GUARDING:
                pass
            elif isinstance(above, cst.If | cst.IfExp):
                if below is above.body and any(map(self._held_by_some, _parts(above.test))):
                    return above
                if below is above.orelse and self._missing_for_some(above.test):
                    return above
            elif isinstance(above, cst.BooleanOperation) and below is above.right:
                is_and = isinstance(above.operator, cst.And)
                if is_and and any(map(self._held_by_some, _parts(above.left))):
                    return above
            elif isinstance(above, cst.IndentedBlock | cst.Module):
                for statement in self._leaving_in(above.body).values():
                    if statement is below:
                        break
                    missing = _leaves(statement.body) and self._missing_for_some(statement.test)
                    if missing and self._is_before(statement, node):
                        return statement
            below = above
        return None

    def _is_before(self, node: cst.CSTNode, other: cst.CSTNode) -> bool:
        return self._context.position(node).line < self._context.position(other).line

    def _missing_for_some(self, test: cst.BaseExpression) -> bool:
        """Whether `test` holds on a replica without the object: `writer is None`, `not writer`."""
        if isinstance(test, cst.UnaryOperation):
            return isinstance(test.operator, cst.Not) and self._held_by_some(test.expression)
        if not isinstance(test, cst.Comparison):
            return False
        target = test.comparisons[0]
        is_none_ = isinstance(target.operator, cst.Is) and is_none(target.comparator)
        return is_none_ and self._held_by_some(test.left)

    def _held_by_some(self, test: cst.BaseExpression) -> bool:
        """Whether `test` asks for what is None on some replicas: `log = Log() if rank == 0 else None`."""
        if isinstance(test, cst.Comparison):
            target = test.comparisons[0]
            if not isinstance(target.operator, cst.IsNot) or not is_none(target.comparator):
                return False
            test = test.left
        assigned: Sequence[tuple[cst.CSTNode, cst.CSTNode | None]]
        if self._context.place(test) in self._context.calls.held_by_some:
            return True
        if isinstance(test, cst.Attribute):
            assigned = self._context.attributes.get(test.attr.value, [])
        elif isinstance(test, cst.Name):
            nodes = [binding.node for binding in self._context.bindings(test)]
            assigned = list(zip(nodes, self._context.bound_values(test), strict=True))
        else:
            return False
        if any(
            isinstance(value, cst.IfExp)
            and self.asks(value.test)
            and (is_none(value.body) or is_none(value.orelse))
            for _, value in assigned
        ):
            return True
        return any(is_none(value) for _, value in assigned) and any(
            value is not None and not is_none(value) and self.around(place) is not None
            for place, value in assigned
        )

    def asks(self, test: cst.BaseExpression) -> bool:
        """Whether `test` has different results on different replicas.

        `rank == -1`, `rank is None` and `args.gpu is not None` ask whether the run is distributed, so they do
        not count.
        """
        if self._under_way:
            return self._find_asks(test)
        if id(test) not in self._asking:  # each statement below an `if` asks for its test
            self._asking[id(test)] = self._find_asks(test)
        return self._asking[id(test)]

    def _find_asks(self, test: cst.BaseExpression) -> bool:
        if isinstance(test, cst.BooleanOperation):
            return self.asks(test.left) or self.asks(test.right)
        if isinstance(test, cst.UnaryOperation):
            return isinstance(test.operator, cst.Not) and self.asks(test.expression)
        if isinstance(test, cst.Comparison):
            return self._compares(test)
        if isinstance(test, cst.BinaryOperation):
            return self._is_computed(test)  # `rank % 2`
        if isinstance(test, cst.Call):
            if self._context.qualified_name(test.func) in ENVIRONMENT:
                return False  # whether the variable is set: "0" holds, too
            if code(test.func) == "bool" and len(test.args) == 1:
                return self.asks(test.args[0].value)
            if self._is_call_for_rank(test) or self._is_call_for_first(test):
                return True
            return self._is_answer(test)
        if isinstance(test, cst.Name | cst.Attribute):
            last = last_part(test)
            if self._is_of_matrix(test):
                return False
            if (
                RANK_NAME.fullmatch(last)
                or is_of_group(test)
                or FIRST_NAME.fullmatch(last)
                or self._context.ranks.is_rank(test)
            ):
                return True
            return self._is_answer(test) or self._value_asks(test)
        return False

    def is_index(self, node: cst.BaseExpression) -> bool:
        """Whether `node` is the index of the replica, global or on its host."""
        if self._context.values.device(node) is Kind.INDEX:
            return True
        if isinstance(node, cst.Name | cst.Attribute):
            last = last_part(node)
            named = RANK_NAME.fullmatch(last) or GPU_NAME.fullmatch(last)
            return named is not None and not self._is_of_matrix(node)
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.Modulo) and self.is_index(node.left)
        if isinstance(node, cst.Subscript):
            key = node.slice[0].slice
            if self._is_environment(node.value):
                return _is_key(key)
            return _is_option(node.value) and _names_rank(key)
        return isinstance(node, cst.Call) and self._is_call_for_rank(node)

    def _is_of_matrix(self, node: cst.Name | cst.Attribute) -> bool:
        """Whether a value named like a rank is that of a tensor or matrix: `x.dim()`, `rank=4` of a layer."""
        values = self._given_to(node)
        return bool(values) and all(
            value is not None and self._counts_axes(value) for value in values
        )

    def _counts_axes(self, value: cst.CSTNode) -> bool:
        if isinstance(value, cst.Name):
            bound = self._context.bound_values(value)
            return bool(bound) and all(
                isinstance(node, cst.Param) and self._counts_axes(node) for node in bound
            )
        if isinstance(value, cst.Param):  # the index of a replica would be 0, -1 or None
            return isinstance(value.default, cst.Integer) and int(value.default.value, 0) > 0
        if isinstance(value, cst.Call):
            return last_part(value.func) in COUNTS_AXES
        return isinstance(value, cst.Attribute) and value.attr.value in COUNTS_AXES

    def _is_computed(self, node: cst.BaseExpression) -> bool:
        """Whether `node` is computed from the index: `rank // 8`, `rank & 1`, `(rank + 1) % 2`."""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, COMPUTES):
            return False
        if isinstance(node.operator, cst.Add | cst.Subtract) and self.is_index(node.right):
            return True  # `(i - rank) % world_size`
        return self.is_index(node.left) or self._is_computed(node.left)

    def _is_answer(self, node: cst.Name | cst.Attribute | cst.Call) -> bool:
        """Whether `node` is the index that a function of the project returns: `me = place()`."""
        if self._context.values.device(node) is not Kind.INDEX:
            return False
        if isinstance(node, cst.Call):
            return bool(self._context.run_by(node))
        values = self._given_to(node)
        return bool(values) and all(
            isinstance(value, cst.Call) and bool(self._context.run_by(value)) for value in values
        )

    def _given_to(self, node: cst.Name | cst.Attribute) -> list[cst.CSTNode | None]:
        """Return the values that the script assigns to a name, or to an attribute of `self`."""
        if isinstance(node, cst.Name):
            return list(self._context.bound_values(node))
        if is_attribute_of_self(node):
            return [value for _, value in self._context.attributes.get(node.attr.value, ())]
        return []

    def _is_sum(self, node: cst.BaseExpression) -> bool:
        """Whether all values of a name are the index plus something: `node * 8 + local_rank`."""
        if not isinstance(node, cst.Name | cst.Attribute):
            return False
        values = self._given_to(node)
        return bool(values) and all(
            isinstance(value, cst.BinaryOperation)
            and isinstance(value.operator, cst.Add)
            and any(self.is_index(side) for side in (value.left, value.right))
            for value in values
        )

    def _is_environment(self, node: cst.BaseExpression) -> bool:
        return self._context.qualified_name(node) == "os.environ"

    def _is_call_for_rank(self, call: cst.Call) -> bool:
        name = self._context.qualified_name(call.func)
        first = call.args[0].value if call.args else None
        if isinstance(call.func, cst.Name) and call.func.value == "int":
            return first is not None and self.is_index(first)
        if name in ENVIRONMENT:
            return string_value(first) in (RANK_VARIABLES | GROUP_VARIABLES)
        return bool(RANK_FUNCTION.fullmatch(last_part(call.func)))

    def _is_call_for_first(self, call: cst.Call) -> bool:
        if FIRST_NAME.fullmatch(last_part(call.func)):
            return True
        if self._context.place(call) in self._context.calls.firsts:
            return True
        return any(self._returns_first(function) for function in self._context.called(call))

    def _returns_first(self, function: cst.FunctionDef) -> bool:
        if id(function) in self._under_way:
            return False
        self._under_way.add(id(function))
        results: list[cst.CSTNode | None] = [
            r.value for r in self._context.below(function.body, cst.Return)
        ]
        if any(last_part(d.decorator) in MANAGERS for d in function.decorators):
            results = [y.value for y in self._context.below(function.body, cst.Yield)]
        is_first = any(map(self._tells, results))
        self._under_way.discard(id(function))
        return is_first

    def asks_for_a_group(self, test: cst.BaseExpression) -> bool:
        """Whether `test` compares the index of the replica in a group: one replica of each group passes."""
        if any(map(is_of_group, nodes(test))):
            return True
        calls = self._context.calls.group_ranks
        return bool(calls) and any(
            self._context.place(call) in calls for call in self._asked_in(test)
        )

    def _asked_in(self, test: cst.BaseExpression) -> Iterator[cst.Call]:
        """Yield the calls in `test`, and in the values of its names."""
        yield from nodes_of(test, cst.Call)
        for name in self._context.below(test, cst.Name):
            for value in self._context.bound_values(name):
                if isinstance(value, cst.BaseExpression):
                    yield from nodes_of(value, cst.Call)

    def _compares(self, test: cst.Comparison) -> bool:
        if len(test.comparisons) != 1:
            return any(self.is_index(side) for side in _sides(test))
        target = test.comparisons[0]
        left, right = test.left, target.comparator
        if isinstance(target.operator, cst.Is | cst.IsNot):
            return False
        if isinstance(target.operator, cst.In | cst.NotIn):
            values: list[cst.BaseExpression] = [right]
            if isinstance(right, cst.Tuple | cst.List | cst.Set):
                values = [element.value for element in right.elements]
            return self.is_index(left) and not all(_means_none(value) for value in values)
        if self.is_index(right):
            left, right = right, left
        named = [side for side in (left, right) if isinstance(side, cst.Name | cst.Attribute)]
        if any(map(self._is_of_matrix, named)):
            return False
        if any(is_of_group(side) for side in (left, right)):
            return not _means_none(right)
        if any(self._is_computed(side) or self._is_sum(side) for side in (left, right)):
            return True
        if any(map(self._is_share, (left, right))) or any(map(self._is_set_apart, (left, right))):
            return True
        if not self.is_index(left) or _means_none(right):
            return False
        # All indices pass, or none: `rank >= 0`, `rank < 0`.
        orders = isinstance(target.operator, cst.GreaterThanEqual | cst.LessThan)
        return not (orders and isinstance(right, cst.Integer) and right.value == "0")

    def _is_share(self, node: cst.BaseExpression) -> bool:
        """Whether `node` is a multiple of what is seen to be the index: `4 * rank`, `rank / world_size`."""
        if not isinstance(node, cst.BinaryOperation):
            return False
        if not isinstance(node.operator, cst.Multiply | cst.Divide):
            return False
        return any(
            self._is_share(side) or self._context.values.device(side) is Kind.INDEX
            for side in (node.left, node.right)
        )

    def _is_set_apart(self, node: cst.BaseExpression) -> bool:
        """Whether the project gives `node` different constants below a rank test: `kind = "a"`.

        A call has what its function returns below such a test, and a name what such a call gave it.
        """
        if isinstance(node, cst.Call):
            if self._context.place(node) in self._context.calls.returning_apart:
                return True
            return any(map(self._returns_apart, self._context.called(node)))
        if isinstance(node, cst.Attribute) and node.attr.value in self._context.calls.apart:
            return True
        if not isinstance(node, cst.Name | cst.Attribute) or id(node) in self._under_way:
            return False
        assigned: list[tuple[cst.CSTNode, cst.CSTNode | None]]
        if isinstance(node, cst.Name):
            places = [binding.node for binding in self._context.bindings(node)]
            assigned = list(zip(places, self._context.bound_values(node), strict=True))
        else:
            assigned = [*self._context.attributes.get(node.attr.value, ())]
        values = [value for _, value in assigned if value is not None]
        if any(isinstance(value, cst.Call) and self._is_set_apart(value) for value in values):
            return True
        if len(values) < len(assigned) or not all(map(_is_constant, values)):
            return False
        if len(set(map(code, values))) < 2:
            return False
        self._under_way.add(id(node))
        is_apart = any(self._is_below_test(place) for place, _ in assigned)
        self._under_way.discard(id(node))
        return is_apart

    def _returns_apart(self, function: cst.FunctionDef) -> bool:
        """Whether `function` returns different constants, some below a rank test, or a name set so."""
        if id(function) in self._under_way:
            return False
        self._under_way.add(id(function))
        returns = [r for r in self._context.below(function.body, cst.Return) if r.value is not None]
        constants = {
            code(r.value) for r in returns if r.value is not None and _is_constant(r.value)
        }
        differ = len(constants) > 1 and any(
            r.value is not None and _is_constant(r.value) and self._is_below_test(r)
            for r in returns
        )
        is_apart = differ or any(
            isinstance(r.value, cst.Name) and self._is_set_apart(r.value) for r in returns
        )
        self._under_way.discard(id(function))
        return is_apart

    def _is_below_test(self, node: cst.CSTNode) -> bool:
        """Whether `node` stands in a branch of a rank test of its function."""
        below = node
        for above in self._context.ancestors(node):
            if isinstance(above, cst.FunctionDef | cst.Lambda):
                return False
            if isinstance(above, cst.If) and below is not above.test and self.asks(above.test):
                return True
            below = above
        return False

    def _value_asks(self, name: cst.Name | cst.Attribute) -> bool:
        """Whether the script assigns a comparison with the rank to `name`."""
        if isinstance(name, cst.Attribute):
            last = name.attr.value
            asked = any(self._tells(value) for _, value in self._context.attributes.get(last, ()))
            if asked or last in self._context.calls.first or self._is_property(name):
                return True
            return self._is_set_apart(name)
        if any(map(self._tells, self._context.bound_values(name))) or self._is_set_apart(name):
            return True
        if self.told(name) is not None:
            return True
        return any(map(self._is_call_for_first, self._managers(name)))

    def told(self, name: cst.BaseExpression) -> bool | None:
        """Return whether all calls pass a test of the rank, or True, for the parameter `name`.

        None if no call passes a test of the rank, or if `name` is no parameter.
        """
        known = self._context.calls.first_parameters
        if not known or not isinstance(name, cst.Name):
            return None
        owner, parameter = self._context.bound_to(name)
        if not isinstance(owner, cst.FunctionDef) or not isinstance(parameter, cst.Param):
            return None
        return known.get((self._context.position(owner.name).line, name.value))

    def _managers(self, name: cst.Name) -> Iterator[cst.Call]:
        """Yield the context managers whose value is `name`: `with main_only() as name:`."""
        for binding in self._context.bindings(name):
            target = self._context.parent(binding.node)
            item = self._context.parent(target) if isinstance(target, cst.AsName) else None
            if isinstance(item, cst.WithItem) and isinstance(item.item, cst.Call):
                yield item.item

    def _is_property(self, name: cst.Attribute) -> bool:
        """Whether `name` is a property of a class of the script that tests the rank."""
        around = self._context.class_around(name)
        of_self = isinstance(name.value, cst.Name) and name.value.value == "self"
        return any(
            method.name.value == name.attr.value
            and any(last_part(d.decorator) in PROPERTIES for d in method.decorators)
            and (not of_self or self._context.class_around(method) in (around, None))
            and self._returns_first(method)
            for method in self._context.all_of(cst.FunctionDef)
            if method.decorators
        )

    def _tells(self, value: cst.CSTNode | None) -> bool:
        """Whether `value` is the result of a comparison with the rank, or holds one."""
        if isinstance(value, cst.BooleanOperation):
            return self._tells(value.left) or self._tells(value.right)
        if isinstance(value, cst.UnaryOperation):
            return isinstance(value.operator, cst.Not) and (
                self._tells(value.expression) or self.is_index(value.expression)
            )
        if isinstance(value, cst.IfExp):
            return self._tells(value.body) or self._tells(value.orelse)
        if isinstance(value, cst.Call):
            return self._is_call_for_first(value)
        return isinstance(value, cst.Comparison) and self.asks(value)

    def _left_before(self, statements: Sequence[cst.CSTNode], node: cst.CSTNode) -> cst.If | None:
        """Return the `if` before `node` among `statements` whose branch some replicas leave by."""
        leaving = self._leaving_in(statements)
        for statement in statements if leaving else ():
            if statement is node:
                return None
            left = leaving.get(id(statement))
            if left is None or not self.asks(left.test):
                continue
            if not _raises(left.body) or self._is_for_others(left.test):
                return left
        return None

    def _is_for_others(self, test: cst.BaseExpression) -> bool:
        """Whether a rank test lets all replicas but the first pass: `rank != 0`, `not is_main()`."""
        if isinstance(test, cst.UnaryOperation):
            denied = test.expression
            joined = isinstance(denied, cst.BooleanOperation)
            return isinstance(test.operator, cst.Not) and not joined and not self.is_index(denied)
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return False
        target = test.comparisons[0]
        is_zero = isinstance(target.comparator, cst.Integer) and target.comparator.value == "0"
        return is_zero and isinstance(target.operator, cst.NotEqual | cst.GreaterThan)

    def _leaving_in(self, statements: Sequence[cst.CSTNode]) -> dict[int, cst.If]:
        """Return the `if`s among `statements` whose branch leaves the block, by their ids."""
        if id(statements) not in self._leaving:
            self._leaving[id(statements)] = {
                id(statement): statement
                for statement in statements
                if isinstance(statement, cst.If)
                and statement.orelse is None
                and (_leaves(statement.body) or _raises(statement.body))
            }
        return self._leaving[id(statements)]

    def _all_stay(self, left: cst.If, node: cst.CSTNode) -> bool:
        """Whether no replica that reaches `node` has left at `left`: a part of its test is false there.

        Example: `if not sharded and rank != 0: return`, then `if sharded: dist.broadcast(x)`.
        """
        opposites = [
            (name, not holds) for part in _parts(left.test) for name, holds in _asked(part)
        ]
        below = node
        for above in self._context.ancestors(node) if opposites else ():
            if isinstance(above, cst.If) and below is not above.test:
                known = [
                    (name, holds)
                    for part in (_parts(above.test) if below is above.body else [])
                    for name, holds in _asked(part)
                ]
                if below is above.orelse:
                    known = [(name, not holds) for name, holds in _asked(above.test)]
                for name, holds in known:
                    for other, opposite in opposites:
                        alike = name.value == other.value and holds == opposite
                        if alike and len(self._context.bindings(name)) == 1:
                            return True
            if isinstance(above, cst.FunctionDef):
                break
            below = above
        return False

    @cached_property
    def any(self) -> bool:
        """Whether anything in the script may run on some of the replicas only."""
        context = self._context
        branches, tests = context.all_of(cst.If, cst.IfExp), context.all_of(cst.While, cst.Assert)
        return (
            any(self.asks(node.test) for node in (*branches, *tests))
            or any(self.asks(node.left) for node in context.all_of(cst.BooleanOperation))
            or any(self.is_index(node.subject) for node in context.all_of(cst.Match))
            or any(map(self._is_for_first, context.all_of(cst.Decorator)))
        )

    def is_for_first(self, function: cst.FunctionDef) -> bool:
        """Whether a decorator of `function` makes only some replicas run it."""
        return any(map(self._is_for_first, function.decorators))

    def _is_for_first(self, decorator: cst.Decorator) -> bool:
        """Whether only some replicas run the function below `decorator`.

        The decorator is named so, or is a function of the script that calls its argument under a rank test.
        """
        if FIRST_DECORATOR.fullmatch(last_part(decorator.decorator)):
            return True
        named = decorator.decorator
        function = self._context.functions.get(named.value) if isinstance(named, cst.Name) else None
        if function is None or not function.params.params or id(function) in self._under_way:
            return False
        parameter = function.params.params[0].name
        mentions = [
            name
            for name in self._context.below(function.body, cst.Name)
            if name.value == parameter.value
        ]
        self._under_way.add(id(function))
        called = [
            mention
            for mention in mentions
            if isinstance(call := self._context.parent(mention), cst.Call) and call.func is mention
        ]
        is_guarded = bool(called) and all(self.around(mention) is not None for mention in called)
        self._under_way.discard(id(function))
        return is_guarded

    def _only_guarded_calls(self, function: cst.FunctionDef) -> bool:
        if self.is_for_first(function):
            return True
        if id(function) in self._under_way:
            return False
        mentions = [
            mention
            for mention in self.mentions_of(function)
            if self._context.function_around(mention) is not function  # recursion
        ]
        if not mentions:
            return False
        self._under_way.add(id(function))
        is_guarded = all(self._is_guarded_call(mention) for mention in mentions)
        self._under_way.discard(id(function))
        return is_guarded

    def mentions_of(self, function: cst.FunctionDef) -> list[cst.Name]:
        """Return the mentions of a function or method of the script, without its definition.

        `subprocess.run` does not mention the script's `run`, `self.model.train()` does not mention its
        `train`.
        """
        is_method = isinstance(self._context.parent(self._context.parent(function)), cst.ClassDef)
        return [
            mention
            for mention in self._mentions(function.name.value, is_method)
            if mention is not function.name and self._may_mean(mention, function, is_method)
        ]

    def _mentions(self, name: str, of_method: bool) -> list[cst.Name]:
        """Return the mentions of a name that no import gives; for methods without other definitions."""
        if (name, of_method) not in self._mentioned:
            self._mentioned[name, of_method] = [
                mention
                for mention in self._context.references(name)
                if not (of_method and isinstance(self._context.parent(mention), cst.FunctionDef))
                and not self._is_imported(mention)
            ]
        return self._mentioned[name, of_method]

    def _may_mean(self, mention: cst.Name, function: cst.FunctionDef, is_method: bool) -> bool:
        """Whether `mention` may refer to `function`, not to another object's method of that name."""
        above = self._context.parent(mention)
        if not isinstance(above, cst.Attribute) or above.attr is not mention:
            # A method has its bare name in the body of its class alone: a field elsewhere is another thing.
            return not is_method or self._is_in_body_around(mention, function)
        if not is_method or self._is_only_tested(above):
            return False
        call = self._context.parent(above)
        if isinstance(call, cst.Call) and call.func is above and self._context.run_by(call):
            return any(callee is function for callee in self._context.called(call))
        if isinstance(above.value, cst.Name) and above.value.value in ("self", "cls"):
            owner = self._context.parent(self._context.parent(function))
            return self._context.class_around(above) is owner
        return not (
            mention.value in OF_MODULES or self._context.values.kind(above.value) is Kind.MODEL
        )

    def _is_in_body_around(self, mention: cst.Name, function: cst.FunctionDef) -> bool:
        """Whether `mention` stands in the body of the class of `function`, in no function of it."""
        body = self._context.parent(function)
        for above in self._context.ancestors(mention):
            if above is body:
                return True
            if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
                break
        return False

    def _is_only_tested(self, node: cst.CSTNode) -> bool:
        """Whether `node` decides a branch and goes nowhere else, so that nothing calls it there."""
        above = self._context.parent(node)
        if isinstance(above, cst.BooleanOperation):
            if above.left is node and isinstance(above.operator, cst.And):
                return True  # a method would be true, so that the result is the right side
            return self._is_only_tested(above)
        if isinstance(above, cst.UnaryOperation):
            return isinstance(above.operator, cst.Not)
        return isinstance(above, cst.If | cst.IfExp | cst.While | cst.Assert) and above.test is node

    def _is_imported(self, mention: cst.Name) -> bool:
        above = self._context.parent(mention)
        is_part = isinstance(above, cst.Attribute) and above.attr is mention
        return is_part and self._context.qualified_name(above) is not None

    def _is_guarded_call(self, mention: cst.Name) -> bool:
        called: cst.CSTNode = mention
        above = self._context.parent(mention)
        if isinstance(above, cst.Attribute) and above.attr is mention:
            called, above = above, self._context.parent(above)
        is_call = isinstance(above, cst.Call) and above.func is called
        return is_call and self.around(called) is not None


def is_of_group(node: cst.CSTNode) -> bool:
    """Whether `node` is the index in a group of replicas: `tp_rank`, `mpu.get_data_parallel_rank()`."""
    named = node.func if isinstance(node, cst.Call) else node
    return PARALLEL_RANK_NAME.fullmatch(last_part(named)) is not None


def _is_constant(value: cst.CSTNode) -> bool:
    """Whether `value` is a string, a number or a truth value as written."""
    if isinstance(value, cst.Name):
        return value.value in ("True", "False")
    return isinstance(value, cst.SimpleString | cst.BaseNumber)


def _parts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_parts(test.left), *_parts(test.right)]
    return [test]


def _asked(test: cst.BaseExpression) -> list[tuple[cst.Name, bool]]:
    """Return the name that a test asks for, and whether the test requires it to be true."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return [(name, not holds) for name, holds in _asked(test.expression)]
    return [(test, True)] if isinstance(test, cst.Name) else []


def _sides(test: cst.Comparison) -> list[cst.BaseExpression]:
    return [test.left, *(target.comparator for target in test.comparisons)]


def _is_key(index: cst.BaseSlice) -> bool:
    return isinstance(index, cst.Index) and string_value(index.value) in (
        RANK_VARIABLES | GROUP_VARIABLES
    )


def _is_option(node: cst.BaseExpression) -> bool:
    """Whether `node` holds the options of the script by name: `opt` of `opt["rank"]`, `self.cfg["train"]`."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return last_part(node) in OPTIONS


def _names_rank(index: cst.BaseSlice) -> bool:
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    return key is not None and RANK_NAME.fullmatch(key) is not None


def _means_none(node: cst.BaseExpression) -> bool:
    """Whether `node` is a value that no rank has: `-1`, `None`."""
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus)
    return is_none(node) or string_value(node) in ("", "-1")


def _leaves(body: cst.BaseSuite) -> bool:
    """Whether the branch `body` ends by leaving the function or the turn of the loop."""
    return isinstance(_last(body), cst.Return | cst.Continue | cst.Break)


def _raises(body: cst.BaseSuite) -> bool:
    return isinstance(_last(body), cst.Raise)


def _last(body: cst.BaseSuite) -> cst.CSTNode | None:
    last = body.body[-1] if body.body else None
    return last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
