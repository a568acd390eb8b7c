"""Functions after which device work stays pending, and grows with each call unless a step ends.

A read (`.cpu()`, `.item()`) runs the graph of one value. What the next call starts from stays pending: the
seed of the device after a draw, and a tensor that an object keeps. Each call then compiles a longer graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import lru_cache

from migrate.catalogue.drawing import MAKERS, SAMPLERS
from migrate.catalogue.words import MOVES, TO_HOST
from migrate.draws import LIKES
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import callers_of, reaching
from migrate.model.calls.devices import is_surely_cpu, may_be_accelerator
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, Scope
from migrate.model.objects.programs import programs_of
from migrate.model.objects.sampling import ends_graph, is_model, trains
from migrate.syntax.walk_ast import walk

DEEPEST = 8  # expressions and variables between a tensor and what is computed from it
NUMBERS = frozenset({"bool", "float", "int", "len", "range", "str"})
MOVED = MOVES | {"contiguous", "eval", "requires_grad_", "train", "xla"}
MADE_FIRST = frozenset({"__init__", "__post_init__", "reset", "setup"})


@dataclass(frozen=True)
class Growing:
    """Device work that a call leaves pending.

    Attributes:
        cause: what the next call starts from, with its function: `torch.randn` (Agent.plan in agent.py).
        reads: whether the call also reads a value.
    """

    cause: str
    reads: bool


@lru_cache(maxsize=2)
def growing_calls(analysis: Analysis) -> dict[ast.Call, Growing]:
    """Return the calls that run functions of the project which leave more work pending with each call."""
    functions = [f for top in analysis.scopes.values() for f in top.functions]
    own = {f: cause for f in functions if (cause := _cause(f, analysis))}
    if not own:
        return {}
    readers = programs_of(analysis).readers
    reading = reaching(analysis, {f: True for f in readers if isinstance(f, Function)})
    loud = reaching(
        analysis,
        {f: True for f in functions if ends_graph(f, analysis) or trains(f, analysis)},
    )
    growing = {f: cause for f, cause in reaching(analysis, own).items() if f not in loud}
    calls = {}
    for top in analysis.scopes.values():
        for call, _ in analysis.calls_in(top):
            for function in analysis.running[call].functions:
                if function in growing:
                    calls[call] = Growing(growing[function], function in reading)
    return calls


def _cause(function: Function, analysis: Analysis) -> str:
    """Return by what the work of `function` grows from call to call; empty for nothing."""
    owner = f"{function.owner.name}." if function.owner is not None else ""
    # A rewrite moves lines, so the message names the function.
    where = f"{owner}{function.name} in {function.module.path.name}"
    for region in analysis.regions(function.region):
        for call, scope in region.calls:
            if _draws(call, scope, analysis):
                return f"`{ast.unparse(call.func)}` ({where}) draws on the device"
    if function.owner is None or _makes_first(function, analysis):
        return ""
    name = next(_kept(function, function.owner, analysis), "")
    return f"`self.{name}` ({where}) is computed from its own last value" if name else ""


def _makes_first(function: Function, analysis: Analysis, depth: int = 3) -> bool:
    """Whether `function` only makes the first state of an object: a constructor, or a method for it alone."""
    if function.owner is None or function.name in MADE_FIRST:
        return function.owner is not None
    callers = [scope for _, scope in callers_of(analysis).get(function, ())]
    return bool(callers) and all(
        isinstance(caller, Function) and depth > 0 and _makes_first(caller, analysis, depth - 1)
        for caller in callers
    )


def _draws(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` draws on an accelerator: on such a device, or like a tensor that is moved to one."""
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return False
    names = analysis.evaluator.externals(call.func, scope)
    last = last_part(call.func)
    if not any(name.startswith("torch.") for name in names):
        return False
    device = next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
    if device is not None and last in MAKERS | LIKES:
        return _is_accelerator(device, scope, analysis)
    is_like = last in LIKES | SAMPLERS and bool(call.args)
    return is_like and _is_on_device(call.args[0], scope, analysis)


def _is_accelerator(device: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    values = analysis.evaluator.values(device, scope)
    if may_be_accelerator(values):
        return True
    is_of_tensor = isinstance(device, ast.Attribute) and device.attr == "device"
    if not is_of_tensor or is_surely_cpu(values):
        return False
    assert isinstance(device, ast.Attribute)
    return _is_on_device(device.value, scope, analysis)


def _is_on_device(node: ast.AST, scope: Scope, analysis: Analysis, depth: int = DEEPEST) -> bool:
    """Whether `node` is computed from a tensor that is made on an accelerator, moved there, or by a model."""
    if depth <= 0 or _is_of_host(node):
        return False
    if isinstance(node, ast.Call):
        devices = [keyword.value for keyword in node.keywords if keyword.arg == "device"]
        if (
            programs_of(analysis).is_move(node, scope)
            or is_model(node, scope, analysis)
            or any(may_be_accelerator(analysis.evaluator.values(d, scope)) for d in devices)
        ):
            return True
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        origins = analysis.evaluator.origins(node, scope)
        values = [(o.value, o.scope) for o in origins if o.value is not None]
        values = [item for item in values if not _is_read_since(item, values, node, scope)]
        if any(_is_on_device(value, at, analysis, depth - 1) for value, at in values):
            return True
    return any(
        _is_on_device(part, scope, analysis, depth - 1) for part in ast.iter_child_nodes(node)
    )


def _is_read_since(
    bound: tuple[ast.expr, Scope],
    values: list[tuple[ast.expr, Scope]],
    node: ast.expr,
    scope: Scope,
) -> bool:
    """Whether a read makes `node` a number between the value `bound` and its use: `t = t.tolist()`."""
    value, at = bound
    return at is scope and any(
        other_at is scope and value.lineno < other.lineno < node.lineno and _is_of_host(other)
        for other, other_at in values
    )


def _is_of_host(node: ast.AST) -> bool:
    """Whether `node` is a number or an array, whatever it is computed from: `x.item()`, `len(x)`."""
    if isinstance(node, ast.Call):
        last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        to = node.args[0] if last == "to" and node.args else None
        is_read = last in TO_HOST or (isinstance(to, ast.Constant) and to.value == "cpu")
        return is_read or (isinstance(node.func, ast.Name) and node.func.id in NUMBERS)
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "ndim", "dtype")


def _kept(function: Function, owner: Class, analysis: Analysis) -> Iterator[str]:
    """Yield the attributes that `function` computes on the device from their own last values."""
    parts = (node for definition in function.definitions for node in walk(definition))
    added = {ast.unparse(node.target) for node in parts if isinstance(node, ast.AugAssign)}
    for name, bindings in list(owner.attributes.items()):
        values = [(b.value, b.scope) for b in bindings if b.value is not None]
        own = [value for value, at in values if at is function]
        derived = _derived(name, function) if own else frozenset()
        kept = f"self.{name}" in added or any(_continues(v, name, derived) for v in own)
        if kept and any(_is_on_device(value, at, analysis) for value, at in values):
            yield name


def _derived(attribute: str, function: Function) -> frozenset[str]:
    """Return the variables that `function` computes from `self.attribute`, directly or not."""
    derived: set[str] = set()
    before = -1
    while before < len(derived):
        before = len(derived)
        for name, bindings in list(function.bindings.items()):
            values = (binding.value for binding in bindings if binding.value is not None)
            if any(_continues(value, attribute, derived) for value in values):
                derived.add(name)
    return frozenset(derived)


def _continues(value: ast.expr, attribute: str, derived: Set[str]) -> bool:
    """Whether `value` is computed on the device from `self.attribute` or a name of `derived`.

    A move of what is there computes nothing: `self.model = self.model.to(self.device)`.
    """
    if _is_of_host(value):
        return False
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in MOVED
    ):
        value = value.func.value
    if ast.unparse(value) == f"self.{attribute}":
        return False
    return any(
        (isinstance(node, ast.Name) and node.id in derived)
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{attribute}")
        for node in walk(value)
    )
