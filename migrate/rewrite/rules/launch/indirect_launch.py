"""A launch in a function that receives the worker and the number of processes: `run(fn, world_size)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from migrate.reading.names.bindings import calls_of, passed_for
from migrate.reading.values.devices import is_device_count
from migrate.rewrite.edits.branch import removed_with_comment
from migrate.rewrite.edits.nodes import argument, insert_first, with_args
from migrate.rewrite.rule import Edit, Rule
from migrate.rewrite.rules.collectives.init_process_group import in_rendezvous_argument
from migrate.rewrite.rules.launch.launching import only_counts, with_aliases
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, elements, nodes


@dataclass(frozen=True)
class IndirectLaunch:
    """Rewrite of the number of processes that a launching function receives.

    Attributes:
        launcher: the function that launches.
        calls: the calls of the launcher, each with the argument that is the number.
        workers: the functions that these calls pass.
        passed: the element of the launch's `args=(…)` that passes the number on, or None.
        position: the position of the worker's parameter for the number.
    """

    context: Workspace
    launcher: cst.FunctionDef
    parameter: cst.Param
    calls: tuple[tuple[cst.Call, cst.Arg], ...]
    workers: tuple[cst.FunctionDef, ...]
    passed: cst.BaseElement | None
    position: int

    def edits(self, rule: Rule) -> Iterator[Edit]:
        """Yield the edits by which each worker asks for the number, and callers no longer pass it."""
        name = self.parameter.name.value
        at = self.launcher.params.params.index(self.parameter)
        yield rule.edit(
            self.launcher,
            lambda updated: _without_parameter(updated, at),
            f"{self.launcher.name.value}: `{name}` is not passed: the launcher counts the devices",
            consumes=[self.parameter],
        )
        for call, arg in self.calls:
            yield _without_argument(rule, call, arg)
        if self.passed is not None:
            for worker in self.workers:
                yield self._asks(rule, worker)
        for statement in self._counting():
            text = code(statement.test) if isinstance(statement, cst.If) else code(statement)
            message = f"remove `{text}`: the launcher counts the devices"
            yield removed_with_comment(rule, statement, [name], message, self.context)

    def _asks(self, rule: Rule, worker: cst.FunctionDef) -> Edit:
        parameter = worker.params.params[self.position]
        name = parameter.name.value
        uses = [
            mention
            for mention in self.context.references(name)
            if mention is not parameter.name and self.context.bound_to(mention)[0] is worker
        ]
        needed = any(not in_rendezvous_argument(use, self.context) for use in uses)
        ask = f"{name} = {self.context.vocabulary.write('world size')}" if needed else ""

        def replace(updated: cst.FunctionDef) -> cst.FunctionDef:
            updated = _without_parameter(updated, self.position)
            return insert_first(updated, cst.parse_statement(ask)) if ask else updated

        message = f"{worker.name.value}: `{name}` is asked of the runtime, not passed"
        return rule.edit(worker, replace, message, consumes=[parameter])

    def _counting(self) -> list[cst.CSTNode]:
        """Return the statements of the callers that only count, because the count is no longer needed."""
        gone: list[cst.CSTNode] = []
        for _, arg in self.calls:
            counts = with_aliases(_only_counts(arg, self.calls, self.context) or [], self.context)
            gone += [count for count in counts if not any(count is other for other in gone)]
        return gone


def _only_counts(
    arg: cst.Arg, calls: Sequence[tuple[cst.Call, cst.Arg]], context: Workspace
) -> list[cst.CSTNode] | None:
    """Return the statements about the number that `arg` passes, or None if they do more than to count."""
    value = arg.value
    if isinstance(value, cst.Integer | cst.Attribute) or is_device_count(value, context):
        return []
    if not isinstance(value, cst.Name):
        return None  # n_gpus // 2: not as many as there are devices
    owner, _ = context.bound_to(value)
    inside = {id(node) for _, argument in calls for node in nodes(argument)}
    mentions = [
        mention
        for mention in context.mentions(value)
        if isinstance(mention, cst.Name)
        and id(mention) not in inside
        and context.bound_to(mention)[0] is owner
    ]
    return only_counts(mentions, context)


def indirect_launch(
    call: cst.Call, bound: Mapping[str, cst.Arg], context: Workspace
) -> IndirectLaunch | None:
    """Return how `call` launches what its function is given, or None if it launches anything else.

    Args:
        call: the launching call.
        bound: its arguments, by the names of the parameters.
        context: the script.
    """
    launcher = context.function_around(call)
    fn, count = bound["fn"].value, bound["nprocs"].value if "nprocs" in bound else None
    if launcher is None or not isinstance(fn, cst.Name) or not isinstance(count, cst.Name):
        return None
    parameter = _parameter(count, launcher, context)
    if parameter is None or _parameter(fn, launcher, context) is None:
        return None
    passed_on = {id(node) for node in nodes(call)}
    mentions = [m for m in context.references(count.value) if m is not parameter.name]
    if any(context.bound_to(m)[0] is launcher and id(m) not in passed_on for m in mentions):
        return None
    passed = [e for e in _elements(bound) if e.value.deep_equals(count)]
    position = _elements(bound).index(passed[0]) + 1 if passed else 0
    workers = _workers(fn, position, context)
    names = [parameter.name.value for parameter in launcher.params.params]
    calls = [
        (call, (bind(call, names) or {}).get(count.value)) for call in calls_of(launcher, context)
    ]
    if not workers or len(passed) > 1 or not calls or any(arg is None for _, arg in calls):
        return None
    call_arguments = tuple((call, arg) for call, arg in calls if arg is not None)
    if any(_only_counts(arg, call_arguments, context) is None for _, arg in call_arguments):
        return None
    element = passed[0] if passed else None
    return IndirectLaunch(context, launcher, parameter, call_arguments, workers, element, position)


def _elements(bound: Mapping[str, cst.Arg]) -> list[cst.BaseElement]:
    return elements(bound["args"]) if "args" in bound else []


def _parameter(name: cst.Name, function: cst.FunctionDef, context: Workspace) -> cst.Param | None:
    """Return the parameter of `function` without a default that `name` is."""
    owner, value = context.bound_to(name)
    if owner is not function or not isinstance(value, cst.Param) or value.default is not None:
        return None
    return value if any(value is parameter for parameter in function.params.params) else None


def _workers(fn: cst.Name, position: int, context: Workspace) -> tuple[cst.FunctionDef, ...]:
    """Return the functions that are launched as `fn`, if each has a parameter at `position` to lose."""
    functions: list[cst.FunctionDef] = []
    passed = passed_for(fn, context)
    for value in passed:
        worker = context.functions.get(value.value) if isinstance(value, cst.Name) else None
        if worker is None or isinstance(worker.params.star_arg, cst.Param):
            return ()
        parameters = worker.params.params
        if position >= len(parameters) or parameters[position].default is not None:
            return ()
        mentions = [m for m in context.mentions(worker.name) if m is not worker.name]
        if any(not any(m is argument for argument in passed) for m in mentions):
            return ()
        if not any(worker is function for function in functions):
            functions.append(worker)
    return tuple(functions)


def _without_parameter(function: cst.FunctionDef, at: int) -> cst.FunctionDef:
    parameters = list(function.params.params)
    last_comma = parameters[-1].comma
    del parameters[at]
    if parameters and at == len(parameters):
        parameters[-1] = parameters[-1].with_changes(comma=last_comma)
    return function.with_changes(params=function.params.with_changes(params=parameters))


def _without_argument(rule: Rule, call: cst.Call, arg: cst.Arg) -> Edit:
    at = call.args.index(arg)
    return rule.edit(
        call,
        lambda updated: with_args(updated, [a for i, a in enumerate(updated.args) if i != at]),
        f"`{argument(arg)}` is asked of the runtime, not passed",
        consumes=[arg],
    )
