"""Names that only some of the replicas bind: `if rank == 0: run_dir = make_run_dir()`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import is_attribute_of_self, is_none, used

if TYPE_CHECKING:
    from migrate.reading.replicas.guards import Guards
    from migrate.reading.values.devices import Placed

# Calls that begin a run of a tracker (`wandb.init()`), and the attributes of its module for that run.
BEGINS = frozenset({"init", "start_run"})
OF_RUN = frozenset({"run", "config", "summary", "active_run"})
# Calls that make a path and do not accept None.
PATHS = ("os.", "pathlib.")


class PartlyBound:
    """Names that a statement must not use if it runs on all replicas.

    A name that is None on the other replicas (`writer = None`, then a writer under `if rank == 0:`) is bound
    there, but its attributes cannot be used.

    Args:
        context: the script.
        guards: the code of the script that runs only on some replicas.
    """

    def __init__(self, context: Placed, guards: Guards) -> None:
        self._context = context
        self._guards = guards

    def guard(
        self, name: cst.Name | cst.Attribute, besides: Collection[cst.CSTNode] = ()
    ) -> cst.If | None:
        """Return the only rank test below which `name` gets a usable value, or None.

        Args:
            name: a name, or an attribute of `self`, where it is used.
            besides: statements that are to run on all replicas, although a rank test is around them.
        """
        first_guard: cst.If | None = None
        sides: set[tuple[int, bool]] = set()
        for binding in self._bindings(name):
            if isinstance(binding, cst.Param):
                return None
            if self._is_none(binding):
                if not self._is_asked(name):
                    return None
                continue
            guard = self._guards.around(binding)
            if not isinstance(guard, cst.If) or self._is_in(binding, besides):
                return None
            if self._context.function_around(guard) is not self._context.function_around(binding):
                return None  # the whole function is run by the first replica
            is_body = self._is_in(binding, (guard.body,))
            sides.add((id(guard), is_body))
            if (id(guard), not is_body) in sides:
                return None  # both branches bind it
            first_guard = first_guard or guard
        return first_guard

    def missing(
        self, name: cst.Name | cst.Attribute, besides: Collection[cst.CSTNode] = ()
    ) -> cst.If | cst.IfExp | cst.FunctionDef | None:
        """Return the node that decides which replicas have a usable `name`, or None if all of them do.

        It is the `if` of `guard`, the test of `writer = SummaryWriter() if rank == 0 else None`, the method
        of some replicas that binds `self.best`, or the answer of `of_run` for the run of a tracker.
        """
        return (
            self.guard(name, besides)
            or self._chosen(name)
            or self._by_method(name)
            or self.of_run(name)
        )

    def _by_method(self, name: cst.Name | cst.Attribute) -> cst.FunctionDef | None:
        """Return a method that only some replicas run, if such methods alone bind the attribute `name`.

        Not a method with `name` in it, nor a constructor: the others have no such object.
        """
        if not is_attribute_of_self(name):
            return None
        methods: list[cst.FunctionDef] = []
        for binding in self._bindings(name):
            if self._is_none(binding):
                if not self._is_asked(name):
                    return None
                continue
            guard = self._guards.around(binding)
            if not isinstance(guard, cst.FunctionDef) or guard.name.value == "__init__":
                return None
            if self._is_in(name, (guard,)):
                return None
            methods.append(guard)
        return methods[0] if methods else None

    def _chosen(self, name: cst.Name | cst.Attribute) -> cst.IfExp | None:
        """Return the expression that makes `name` None on some replicas, if its use does not accept None."""
        if not self._is_asked(name):
            return None
        values = [self._value(binding) for binding in self._bindings(name)]
        chosen = [
            value
            for value in values
            if isinstance(value, cst.IfExp)
            and (is_none(value.body) or is_none(value.orelse))
            and self._guards.asks(value.test)
        ]
        only = all(value is not None and (is_none(value) or value in chosen) for value in values)
        return chosen[0] if chosen and only else None

    def of_run(self, name: cst.Name | cst.Attribute) -> cst.If | cst.FunctionDef | None:
        """Return the `if`, or the function of some replicas, that alone begins the run of a tracker.

        Applies to `wandb` in `wandb.run.dir` if only `if rank == 0: wandb.init()` begins a run; None if all
        replicas begin it.
        """
        asked = self._context.parent(name)
        if not isinstance(name, cst.Name) or not isinstance(asked, cst.Attribute):
            return None
        if asked.value is not name or asked.attr.value not in OF_RUN:
            return None
        begun = [
            self._guards.around(call)
            for call in self._context.all_of(cst.Call)
            if isinstance(call.func, cst.Attribute)
            and call.func.attr.value in BEGINS
            and isinstance(call.func.value, cst.Name)
            and call.func.value.value == name.value
        ]
        tests = [guard for guard in begun if isinstance(guard, cst.If | cst.FunctionDef)]
        return tests[0] if tests and len(tests) == len(begun) else None

    def in_function(
        self, function: cst.FunctionDef, seen: frozenset[int] = frozenset()
    ) -> tuple[cst.Name | cst.Attribute, cst.If] | None:
        """Return a name that `function`, or a function that it runs, needs, with the node that binds it.

        None if all replicas have what the function needs.
        """
        for name in used(function.body):
            guard = self.guard(name)
            if guard is None or self._is_in(guard, (function,)):
                continue
            asked = self._guards.around(name)
            if asked is None or asked is function or not self._is_in(asked, (function,)):
                return name, guard
        seen |= {id(function)}
        for call in self._context.below(function.body, cst.Call):
            for inner in self._context.called(call):
                missing = None if id(inner) in seen else self.in_function(inner, seen)
                if missing is not None:
                    return missing
        return None

    def _bindings(self, name: cst.Name | cst.Attribute) -> list[cst.CSTNode]:
        """Return the locations where a name, or an attribute of `self`, gets a value."""
        context = self._context
        if not is_attribute_of_self(name):
            return [binding.node for binding in context.bindings(name)]
        own = context.class_around(name)
        return [
            target
            for target, _ in context.attributes.get(name.attr.value, ())
            if is_attribute_of_self(target) and context.class_around(target) is own
        ]

    def _is_none(self, binding: cst.CSTNode) -> bool:
        return is_none(self._value(binding))

    def _value(self, binding: cst.CSTNode) -> cst.BaseExpression | None:
        """Return the value that an assignment gives `binding`, if it is an assignment."""
        above = self._context.parent(binding)
        assign = self._context.parent(above) if isinstance(above, cst.AssignTarget) else above
        return assign.value if isinstance(assign, cst.Assign | cst.AnnAssign) else None

    def _is_asked(self, name: cst.CSTNode) -> bool:
        """Whether this use of `name` does not accept None: `name.log_dir`, `name / "last"`, `join(name)`."""
        above = self._context.parent(name)
        if isinstance(above, cst.Arg):
            call = self._context.parent(above)
            called = self._context.qualified_name(call.func) if isinstance(call, cst.Call) else None
            return called is not None and called.startswith(PATHS)
        is_called = isinstance(above, cst.Call) and above.func is name
        return is_called or isinstance(above, cst.Attribute | cst.Subscript | cst.BinaryOperation)

    def _is_in(self, node: cst.CSTNode, statements: Collection[cst.CSTNode]) -> bool:
        wanted = {id(statement) for statement in statements}
        return any(id(above) in wanted for above in (node, *self._context.ancestors(node)))
