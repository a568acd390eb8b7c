"""Conditions that each replica decides by a value of its own: its loss, its accuracy on its share of data.

The search follows the value to the condition through variables, attributes, functions and files. A value that
went through a collective (`dist.all_reduce(t)`, a function that calls it) is the same on all replicas. Names
(`val_loss`) count if nothing else is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import METRIC, READ_METHODS
from migrate.model.calls.kind import Kind
from migrate.model.processes.meetings import EQUALIZE
from migrate.model.pure import leaves, same_everywhere
from migrate.reading.names.bindings import passed_for
from migrate.reading.names.scopes import NameBinding
from migrate.reading.replicas.options import PLAIN, same_on_all
from migrate.reading.values.collectives import OF_XLA, called
from migrate.reading.values.device_values import has_gradients
from migrate.syntax.tree import code, keyword, last_part, nodes_of, string_value
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script

Condition = cst.If | cst.While | cst.IfExp
# Names of functions that make a value the same on all replicas; they count if nothing else is known.
REDUCES = re.compile(
    r".*(all_?reduce|gather|broadcast|synchroni[sz]e).*|(.*_)?(reduce|sync)(_.*)?|compute",
    re.IGNORECASE,
)
# Libraries whose functions and objects with such names do so.
REDUCING_LIBRARIES = frozenset(
    {
        "accelerate",
        "colossalai",
        "composer",
        "deepspeed",
        "detectron2",
        "fairscale",
        "fvcore",
        "horovod",
        "ignite",
        "lightning",
        "lightning_fabric",
        "mmcv",
        "mmengine",
        "pytorch_lightning",
        "timm",
        "torcheval",
        "torchmetrics",
    }
)
KEEPS = frozenset({"add", "append", "extend", "update"})  # methods that put a value into an object
GIVE_WEIGHTS = frozenset({"buffers", "named_parameters", "parameters", "state_dict"})
OF_WEIGHTS = GIVE_WEIGHTS | {"grad"}
SAME_CALLS = frozenset({"hasattr", "isinstance", "len", "range", "type"})
DEEPEST = 12


@dataclass(frozen=True)
class OwnCondition:
    """Condition that each replica decides by its own value.

    Args:
        condition: the condition.
        value: the part of its test that differs per replica.
        unfollowed: a call whose name alone suggests that it makes the value the same on all replicas, or
            None.
        call: the call below the condition that leads to the node, through functions; None if the node itself
            is below the condition.
    """

    condition: Condition
    value: cst.CSTNode
    unfollowed: cst.Call | None = None
    call: cst.Call | None = None


def decided_alone(
    node: cst.CSTNode, context: Script, *, callers: bool = True
) -> OwnCondition | None:
    """Return the condition around `node` that each replica decides by its own value.

    Conditions by which a statement before `node` leaves count.

    Args:
        node: the node.
        context: the script.
        callers: whether conditions around the calls of the function with `node` count, too.
    """
    return _Alone(context, callers=callers).around(node, 0)


def own_value(value: cst.BaseExpression, context: Script) -> cst.CSTNode | None:
    """Return the part of `value` that differs per replica, or None if nothing shows it."""
    return _own(context).part_of(value)


def made_equal(
    value: cst.BaseExpression, context: Script, within: cst.CSTNode | None = None
) -> bool:
    """Whether `value` is seen to be the same on all replicas: from options and counters, or by a collective.

    The collective may be in a function that computes the value.

    Args:
        value: the expression.
        context: the script.
        within: code that all replicas are to run, also if they do not run it today.
    """
    own = _own(context, trusts_names=False)
    if own.part_of(value) is not None:
        return False
    calls = nodes_of(value, cst.Call)
    if not all(code(call.func) in PLAIN or own.is_equal(call) for call in calls):
        return False
    return all(
        same_on_all(name, context) or (own.is_equal(name) and _bound_by_all(name, context, within))
        for name in leaves(value)
    )


def _bound_by_all(
    name: cst.Name | cst.Attribute, context: Script, within: cst.CSTNode | None
) -> bool:
    """Whether no test of the rank keeps a replica from a statement that binds `name`."""
    nodes = (
        [binding.node for binding in context.bindings(name)]
        if isinstance(name, cst.Name)
        else [target for target, _ in context.attributes.get(name.attr.value, ())]
    )
    return all(
        context.guards.around(node) is None
        or any(above is within for above in context.ancestors(node))
        for node in nodes
    )


def _unfollowed(condition: Condition, context: Script) -> OwnCondition | None:
    """Return a condition whose value is the same on all replicas only by the name of a call."""
    strict = _own(context, trusts_names=False)
    value = strict.part_of(condition.test)
    if value is None or not strict.doubted:
        return None
    line = context.position(condition).line
    calls = sorted(strict.doubted, key=lambda call: context.position(call).line)
    before = [call for call in calls if context.position(call).line <= line]
    return OwnCondition(condition, value, (before or calls)[-1])


@lru_cache(maxsize=4)  # the last ones: each save of a script asks
def _own(context: Script, *, trusts_names: bool = True) -> _Own:
    return _Own(context, trusts_names=trusts_names)


class _Alone:
    def __init__(self, context: Script, *, callers: bool) -> None:
        self._context = context
        self._callers = callers
        self._seen: set[int] = set()

    def around(self, node: cst.CSTNode, depth: int) -> OwnCondition | None:
        below = node
        for above in self._context.ancestors(node):
            for condition in self._conditions(above, below):
                if not self._context.guards.asks(condition.test):
                    value = own_value(condition.test, self._context)
                    if value is not None:
                        return OwnCondition(condition, value)
                    if (alone := _unfollowed(condition, self._context)) is not None:
                        return alone
            if isinstance(above, cst.FunctionDef):
                return self._calls(above, depth) if self._callers else None
            below = above
        return None

    def _conditions(self, above: cst.CSTNode, below: cst.CSTNode) -> Iterator[Condition]:
        """Yield the conditions by which `above` decides whether its part `below` runs."""
        if isinstance(above, Condition) and below is not above.test:
            yield above
        if isinstance(above, cst.IndentedBlock):
            for statement in above.body:
                if statement is below:
                    return
                if isinstance(statement, cst.If) and _leaves(statement):
                    yield statement

    def _calls(self, function: cst.FunctionDef, depth: int) -> OwnCondition | None:
        if id(function) in self._seen or depth > DEEPEST:
            return None
        self._seen.add(id(function))
        for mention in self._context.guards.mentions_of(function):
            call: cst.CSTNode = mention
            above = self._context.parent(mention)
            if isinstance(above, cst.Attribute) and above.attr is mention:
                call, above = above, self._context.parent(above)
            if isinstance(above, cst.Call) and above.func is call:
                ran = self._context.called(above)
                if not ran or any(callee is function for callee in ran):
                    outer = self.around(above, depth + 1)
                    if outer is not None:
                        return replace(outer, call=outer.call or above)
        return None


class _Own:
    """Search for values of a script that differ per replica.

    A value differs if any value that it is computed from differs. One search visits each value once, however
    many ways lead to it.

    Args:
        context: the script.
        trusts_names: whether a call that is not followed makes values equal by its name.

    Attributes:
        doubted: the calls that would make values equal, if names were trusted.
    """

    def __init__(self, context: Script, *, trusts_names: bool = True) -> None:
        self._context = context
        self._trusts_names = trusts_names
        self.doubted: list[cst.Call] = []
        self._depth = 0
        self._seen: set[int] = set()  # visited for the current question
        # Values that earlier searches found to be equal on all replicas.
        self._equal: set[int] = set()
        self._own: dict[int, cst.CSTNode] = {}
        self._are_equal: dict[tuple[int, int], bool] = {}
        self._equalizing: dict[int, bool] = {}
        self._reduced: dict[int, dict[str, list[cst.Call]]] = {}
        self._called_on: dict[int, dict[str, list[cst.Call]]] = {}

    def part_of(self, value: cst.CSTNode | None) -> cst.CSTNode | None:
        """Return the part of `value` that differs per replica."""
        self._seen = set()
        part = self.of(value)
        if part is None:
            # No visited value differs. Otherwise a cycle may have led back to the value that does.
            self._equal |= self._seen
        return part

    def of(self, value: cst.CSTNode | None) -> cst.CSTNode | None:
        if value is None:
            return None
        if (known := self._own.get(id(value))) is not None:
            return known
        if id(value) in self._seen or id(value) in self._equal or self._depth > 8 * DEEPEST:
            return None
        self._seen.add(id(value))
        if isinstance(value, cst.BaseExpression) and self._is_same(value):
            return None
        part = self._part(value)
        if part is not None:
            self._own[id(value)] = part
        return part

    def _part(self, value: cst.CSTNode) -> cst.CSTNode | None:
        self._depth += 1
        try:
            if isinstance(value, cst.Call):
                return self._call(value)
            if isinstance(value, cst.Name):
                return value if self._name(value) else None
            if isinstance(value, cst.Attribute):
                return self._attribute(value)
            if isinstance(value, cst.Lambda | cst.BaseCompoundStatement):
                return None
            if isinstance(value, cst.Subscript) and (entries := self._entries(value)):
                return value if any(self.of(entry) is not None for entry in entries) else None
            if isinstance(value, cst.Comparison) and any(
                isinstance(target.operator, cst.Is | cst.IsNot) for target in value.comparisons
            ):
                return value.left if self._is_there_for_some(value.left) else None
            parts = (self.of(child) for child in children(value))
            return next((part for part in parts if part is not None), None)
        finally:
            self._depth -= 1

    def _is_same(self, value: cst.BaseExpression) -> bool:
        """Whether `value` asks for counters and for options that the script does not set."""
        asked = leaves(value)
        return bool(asked) and same_everywhere(value) and not any(map(self._is_set, asked))

    def _is_set(self, node: cst.Name | cst.Attribute) -> bool:
        return isinstance(node, cst.Attribute) and node.attr.value in self._context.attributes

    def _call(self, call: cst.Call) -> cst.CSTNode | None:
        if self._equalizes(call) or last_part(call.func) in SAME_CALLS or self._of_weights(call):
            return None
        ran = self._context.run_by(call)
        here = self._context.called(call)
        if any(self._returns_own(function) for function in here):
            return call
        if ran and len(here) < len(ran) and self._context.effects.reads(call):
            return call
        values = [arg.value for arg in call.args]
        method = call.func if isinstance(call.func, cst.Attribute) else None
        known = self._context.qualified_name(call.func) is not None
        if method is not None and not known:
            values.append(method.value)
        for part in values:
            if (own := self.of(part)) is not None:
                return own
        reads = method is not None and method.attr.value in READ_METHODS and not known
        if reads and method is not None and not self.is_equal(method.value):
            return call
        return None

    def _returns_own(self, function: cst.FunctionDef) -> bool:
        if id(function) in self._own:
            return True
        if id(function) in self._seen or id(function) in self._equal:
            return False
        self._seen.add(id(function))
        for result in self._context.below(function.body, cst.Return):
            if self.of(result.value) is not None or self._decided(result):
                self._own[id(function)] = function
                return True
        return False

    def _name(self, name: cst.Name) -> bool:
        if self._is_reduced(name, name.value):
            return False
        bindings = self._context.bindings(name)
        if any(self._gives_own(binding, name) for binding in bindings):
            return True
        if self._holds_own(name):
            return True
        on_device = self._context.values.on_device(name) or has_gradients(name, self._context)
        if on_device and not self.is_equal(name):
            return True
        if bindings and not all(self._is_unknown(binding, name) for binding in bindings):
            return False
        values = [self._given(binding.node) for binding in bindings]
        if values and all(isinstance(value, cst.BaseNumber) for value in values):
            return False
        if self._context.values.kind(name) is Kind.MODEL:
            return False  # `score_model` is no score
        return bool(bindings) and METRIC.fullmatch(name.value) is not None

    def _gives_own(self, binding: NameBinding, name: cst.Name) -> bool:
        node = binding.node
        if isinstance(node, cst.Param):
            return any(self.of(value) is not None for value in passed_for(name, self._context))
        value = self._given(node)
        return value is not None and (self.of(value) is not None or self._decided(node))

    def _is_there_for_some(self, value: cst.BaseExpression) -> bool:
        """Whether each replica decides the value of the name `value` by itself, or by its rank."""
        if self._context.place(value) in self._context.calls.held_by_some:
            return True  # by a test of the rank in another file
        if isinstance(value, cst.Attribute):
            return any(
                self._decided(target)
                for target, _ in self._context.attributes.get(value.attr.value, ())
            )
        if not isinstance(value, cst.Name):
            return False
        for binding in self._context.bindings(value):
            if not isinstance(binding.node, cst.Param):
                if self._decided(binding.node):
                    return True
            elif any(map(self._is_there_for_some, passed_for(value, self._context))):
                return True
        return False

    def _entries(self, node: cst.Subscript) -> list[cst.BaseExpression]:
        """Return the values that the script puts under the key of `node`; empty if there may be others.

        For `state = dict(loss=loss, step=0)`, `state["step"]` is the 0 and any value written there later.
        """
        key, holder = key_of(node), node.value
        if key is None or not isinstance(holder, cst.Name):
            return []
        bindings = self._context.bindings(holder)
        spelled = [entry_of(self._given(binding.node), key) for binding in bindings]
        entries = [entry for entry in spelled if entry is not None]
        if len(entries) < len(spelled):
            return []
        for mention in self._context.mentions(holder):
            above = self._context.parent(mention)
            if isinstance(above, cst.Subscript) and key_of(above) == key:
                target = self._context.parent(above)
                statement = (
                    self._context.parent(target) if isinstance(target, cst.AssignTarget) else target
                )
                if isinstance(statement, cst.Assign | cst.AugAssign):
                    entries.append(statement.value)
        return entries

    def _is_unknown(self, binding: NameBinding, name: cst.Name) -> bool:
        """Whether the value that `binding` gives `name` is unknown."""
        node = binding.node
        if isinstance(node, cst.Param):
            return not passed_for(name, self._context) and not isinstance(
                node.default,
                cst.BaseNumber | cst.SimpleString,  # `loss_fn="L1"` is a setting
            )
        value = self._given(node)
        if value is None or isinstance(value, cst.BaseNumber | cst.UnaryOperation):
            return True
        if self.is_equal(value) or _is_flag(value):
            return False
        calls = list(nodes_of(value, cst.Call))
        if any(map(self._equalizes, calls)) or any(map(self._of_weights, calls)):
            return False
        return any(not self._context.run_by(c) and not self._is_plain(c) for c in calls)

    def _is_plain(self, call: cst.Call) -> bool:
        """Whether `call` is a Python function that only computes: `float(x)`, `math.sqrt(x)`."""
        name = self._context.qualified_name(call.func) or code(call.func)
        return name.startswith(("math.", "os.", "time.")) or name in (
            *SAME_CALLS,
            *("abs", "bool", "dict", "float", "int", "list", "max", "min", "round", "sum"),
        )

    def _given(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """Return the value of the assignment that binds `node`."""
        for above in self._context.within_statement(node):
            if isinstance(above, cst.Assign):
                return _part_for(node, above)
            if isinstance(above, cst.AnnAssign | cst.AugAssign | cst.NamedExpr):
                return above.value
        return None

    def _decided(self, node: cst.CSTNode) -> bool:
        """Whether a test of the rank, or of a value that differs per replica, decides whether `node` runs."""
        below = node
        for above in self._context.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                return False
            in_branch = isinstance(above, cst.If | cst.IfExp) and below is not above.test
            if isinstance(above, cst.If | cst.IfExp) and in_branch:
                test = above.test
                if self._context.guards.asks(test) or self.of(test) is not None:
                    return True
            below = above
        return False

    def _attribute(self, node: cst.Attribute) -> cst.CSTNode | None:
        named = node.attr.value
        if self._is_reduced(node, code(node)):
            return None
        assigned = self._context.attributes.get(named, ())
        for target, value in assigned:
            stated = value if value is not None else self._given(target)
            if stated is not None and (self.of(stated) is not None or self._decided(target)):
                return node
        if isinstance(node.value, cst.Name) and node.value.value != "self":
            if self.of(node.value) is not None:
                return node
        elif self._holds_own(node):
            return node
        if same_everywhere(node):
            return None
        known = [v for _, v in assigned if not isinstance(v, cst.BaseNumber | cst.UnaryOperation)]
        return node if not known and METRIC.fullmatch(named) and named != "val" else None

    def _holds_own(self, node: cst.Name | cst.Attribute) -> bool:
        """Whether a value that differs per replica is put into `node`: `losses.update(loss.item())`."""
        text = code(node)
        around = self._context.function_around(node) or self._context.module
        if id(around) not in self._called_on:
            self._called_on[id(around)] = self._methods(around)
        calls = self._called_on[id(around)].get(text, ())
        if any(self._equalizes(call) for call in calls):
            return False
        return any(
            last_part(call.func) in KEEPS
            and any(self.of(arg.value) is not None for arg in call.args)
            for call in calls
        )

    def _methods(self, root: cst.CSTNode) -> dict[str, list[cst.Call]]:
        calls: dict[str, list[cst.Call]] = {}
        for call in self._context.below(root, cst.Call):
            if isinstance(call.func, cst.Attribute):
                calls.setdefault(code(call.func.value), []).append(call)
        return calls

    def _equalizes(self, call: cst.Call) -> bool:
        """Whether the result of `call`, or its argument, is the same on all replicas afterwards."""
        if id(call) not in self._equalizing:
            self._equalizing[id(call)] = self._makes_equal(call)
        return self._equalizing[id(call)]

    def _makes_equal(self, call: cst.Call) -> bool:
        name = called(call, self._context)
        if name is not None:
            return name in EQUALIZE
        known = self._context.qualified_name(call.func) or ""
        if known.startswith("torch_xla.core.xla_model."):
            return known.rpartition(".")[2] in OF_XLA
        if self._context.run_by(call):
            return self._context.effects.meets(call)
        if known == "torch_xla.sync" or known.startswith(("torch.", "functools.", "numpy.")):
            return False
        if REDUCES.fullmatch(last_part(call.func)) is None:
            return False
        if self._trusts_names or self._libraries(call.func) & REDUCING_LIBRARIES:
            return True
        self.doubted.append(call)
        return False

    def _libraries(self, node: cst.CSTNode | None, depth: int = DEEPEST // 2) -> set[str]:
        """Return the libraries of a function, or of the calls that made the object of a method."""
        name = self._context.qualified_name(node)
        if name is not None:
            return {name.split(".")[0]}
        if not depth:
            return set()
        match node:
            case cst.Call():
                return self._libraries(node.func, depth - 1)
            case cst.Subscript():
                return self._libraries(node.value, depth - 1)
            case cst.Name():
                values = [
                    value
                    for binding in self._context.bindings(node)
                    for value in (
                        passed_for(node, self._context)
                        if isinstance(binding.node, cst.Param)
                        else [self._given(binding.node)]
                    )
                ]
            case cst.Attribute(value=cst.Name(value="self")):
                values = [value for _, value in self._context.attributes.get(node.attr.value, ())]
            case cst.Attribute():
                return self._libraries(node.value, depth - 1)
            case _:
                return set()
        return {library for value in values for library in self._libraries(value, depth - 1)}

    def _is_reduced(self, node: cst.CSTNode, text: str) -> bool:
        """Whether a collective of the function makes `text` the same on all replicas."""
        around = self._context.function_around(node) or self._context.module
        if id(around) not in self._reduced:
            reduced: dict[str, list[cst.Call]] = {}
            for call, target in self._made_equal(around):
                reduced.setdefault(target, []).append(call)
            self._reduced[id(around)] = reduced
        calls = self._reduced[id(around)].get(text, ())
        return any(self._may_precede(call, node) for call in calls)

    def _may_precede(self, call: cst.Call, node: cst.CSTNode) -> bool:
        """Whether `call` may have run before `node` gets its value.

        A call below `node` may have run in an earlier turn of a loop, unless the turn sets `node` above.
        """
        at = self._context.position(node).line
        if self._context.position(call).line <= at:
            return True
        above = {id(ancestor) for ancestor in self._context.ancestors(call)}
        for loop in self._context.ancestors(node):
            if isinstance(loop, cst.FunctionDef):
                return False
            if isinstance(loop, cst.For | cst.While) and id(loop) in above:
                first = self._context.position(loop).line
                bindings = self._context.bindings(node) if isinstance(node, cst.Name) else ()
                lines = (self._context.position(binding.node).line for binding in bindings)
                return not any(first <= line < at for line in lines)
        return False

    def _made_equal(self, around: cst.CSTNode) -> Iterator[tuple[cst.Call, str]]:
        """Yield the collectives of a function, with the text of what each makes the same on all replicas."""
        for call in self._context.below(around, cst.Call):
            if not self._equalizes(call):
                continue
            first_only = called(call, self._context) is not None
            values = [arg.value for arg in (call.args[:1] if first_only else call.args)]
            if isinstance(call.func, cst.Attribute) and not first_only:
                values.append(call.func.value)
            assigned = self._context.parent(call)
            if isinstance(assigned, cst.Assign):  # `loss = reduce(loss.to(device))`
                values += [target.target for target in assigned.targets]
            for part in values:
                yield call, code(part)
                if isinstance(part, cst.List | cst.Tuple):
                    yield from ((call, code(element.value)) for element in part.elements)

    def is_equal(self, value: cst.BaseExpression, depth: int = DEEPEST // 2) -> bool:
        """Whether `value` is computed from what a collective, or the averaging of gradients, made equal."""
        key = id(value), depth
        if key not in self._are_equal:
            self._are_equal[key] = self._is_of_equal(value, depth)
        return self._are_equal[key]

    def _is_of_equal(self, value: cst.BaseExpression, depth: int) -> bool:
        if any(
            self._equalizes(c) or self._of_weights(c) for c in self._context.below(value, cst.Call)
        ):
            return True
        for name in nodes_of(value, cst.Name) if depth else ():
            if self._is_reduced(name, name.value):
                return True
            values = (
                self._given(binding.node) or self._iterated(binding.node)
                for binding in self._context.bindings(name)
            )
            if any(value is not None and self.is_equal(value, depth - 1) for value in values):
                return True
        return False

    def _iterated(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """Return what the loop or comprehension that binds `node` iterates over."""
        for above in self._context.within_statement(node):
            if isinstance(above, cst.For | cst.CompFor):
                return above.iter
        return None

    def _of_weights(self, call: cst.Call) -> bool:
        """Whether `call` gives weights, or computes with weights or gradients; all replicas have the same."""
        if last_part(call.func) in GIVE_WEIGHTS:
            return True
        return any(
            isinstance(part, cst.Attribute) and part.attr.value in OF_WEIGHTS
            for arg in call.args
            for part in self._context.below(arg, cst.Attribute)
        )


def _part_for(node: cst.CSTNode, assign: cst.Assign) -> cst.BaseExpression:
    """Return the value that `node` gets of an assignment: `a, b = 0, 1` gives each name its own."""
    value = assign.value
    for target in assign.targets:
        if not isinstance(target.target, cst.Tuple) or not isinstance(value, cst.Tuple):
            continue
        names, values = target.target.elements, value.elements
        starred = any(isinstance(part, cst.StarredElement) for part in (*names, *values))
        for name, part in zip(names, values, strict=False):
            if name.value is node and len(names) == len(values) and not starred:
                return part.value
    return value


def key_of(node: cst.Subscript) -> str | None:
    """Return the key that `node` looks up in a dictionary."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return string_value(index.value) if isinstance(index, cst.Index) else None


def entry_of(value: cst.BaseExpression | None, key: str) -> cst.BaseExpression | None:
    """Return the value under `key` in the dictionary literal `value`."""
    if isinstance(value, cst.Dict):
        for element in value.elements:
            if isinstance(element, cst.DictElement) and string_value(element.key) == key:
                return element.value
    if isinstance(value, cst.Call) and code(value.func) == "dict":
        arg = keyword(value, key)
        return None if arg is None else arg.value
    return None


def _is_flag(value: cst.BaseExpression) -> bool:
    """Whether `value` is a setting that is True or False: `settings.get("fast", False)`."""
    if not isinstance(value, cst.Call) or last_part(value.func) not in ("get", "pop", "getattr"):
        return False
    default = value.args[-1].value if len(value.args) > 1 else None
    return isinstance(default, cst.Name) and default.value in ("True", "False")


def _leaves(statement: cst.If) -> bool:
    last = statement.body.body[-1] if statement.body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, cst.Return | cst.Continue | cst.Break | cst.Raise)
