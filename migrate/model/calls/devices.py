"""Expressions of a project that name a device: literals, torch calls, the environment, options.

The evaluator follows the device from there through parameters, returns, attributes and files.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.words import ASKS_RANK, RANK_VARIABLES
from migrate.model.calls.kind import DEVICES, Kind
from migrate.model.calls.kinds import (
    NOTHING,
    OF_INDEX,
    DeviceValue,
    OptionsValue,
    Trait,
    Values,
)
from migrate.model.calls.scopes import Scope


class DeviceEvaluator(Protocol):
    """Part of the project's evaluator that this module uses."""

    def values(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return the possible values of an expression."""

    def externals(self, node: ast.expr, scope: Scope) -> frozenset[str]:
        """Return the dotted names from outside of the project that an expression may be."""

    def at_key(self, container: ast.expr, key: str, scope: Scope) -> Values:
        """Return the possible values of the item `key` of an expression."""

    def calls(self) -> Iterable[tuple[ast.Call, Scope]]:
        """Return all calls of the project."""

    def __hash__(self) -> int: ...  # answers are cached for it


CUDA = re.compile(r"cuda(:\d+)?")
XLA = re.compile(r"(?:xla|tpu)(:\d+)?")
CURRENT = names(*torch_cuda.CURRENT)
ACCELERATOR = frozenset({"torch.accelerator.current_accelerator"})
SHIMS_DEVICES = frozenset({"shims.device", "shims.device_type"})
XLA_DEVICES = SHIMS_DEVICES | {"torch_xla.device", "torch_xla.core.xla_model.xla_device"}
DEVICE = frozenset({"torch.device"})
# Calls that make a script's options from a file, a command line or other options.
CONFIGURATIONS = frozenset(
    f"omegaconf.OmegaConf.{name}" for name in ("create", "from_cli", "load", "merge", "structured")
)
COUNTS = names(*torch_cuda.COUNTS)
# Functions that keep a number within bounds.
BOUNDS = frozenset({"int", "max", "min"})
# Text that puts a colon between the two values that fill it.
WITH_INDEX = re.compile(r"(%s:%[sdi]|\{0?\}:\{1?\})")
PARTS_TEXT = frozenset({"partition", "rpartition", "rsplit", "split"})
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod, ast.Pow)
_KINDS = {kind: frozenset([DeviceValue(kind)]) for kind in DEVICES | {Kind.UNKNOWN}}


def named(node: ast.Constant, scope: Scope) -> Values:
    """Return the device whose name is a constant."""
    value = node.value
    if not isinstance(value, str) or len(value) > len("cuda:1234"):
        return NOTHING
    if value == "cpu":
        return _KINDS[Kind.CPU]
    if XLA.fullmatch(value):
        return _KINDS[Kind.XLA]
    if not CUDA.fullmatch(value):
        return NOTHING
    line, offset = node.end_lineno or 0, node.end_col_offset or 0
    place = line, scope.module.column(line, offset)
    return frozenset([DeviceValue(Kind.CUDA, (scope.module.path, place))])


def spelled(node: ast.BinOp | ast.JoinedStr, scope: Scope, evaluator: DeviceEvaluator) -> Values:
    """Return the device of f'cuda:{i}', 'cuda:%d' % i, 'cuda:' + i, the index `rank % count`, `rank * 4`."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str(head)), *rest]):
            whole = head == "cuda" and not rest
            return _KINDS[Kind.CUDA] if whole or head.startswith("cuda:") else NOTHING
        case ast.JoinedStr(values=[ast.FormattedValue(value=first), *rest]):
            colon = rest and isinstance(rest[0], ast.Constant) and rest[0].value == ":"
            return _devices(evaluator.values(first, scope)) if colon or not rest else NOTHING
        case ast.BinOp(left=ast.Constant(value=str(head)), op=ast.Mod() | ast.Add()) if (
            head.startswith("cuda:")
        ):
            return _KINDS[Kind.CUDA]
        case ast.BinOp(op=ast.Mod() | ast.Add()) if (kind := type_with_index(node)) is not None:
            return _devices(evaluator.values(kind, scope))
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod() | ast.Add()):
            return NOTHING
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            if _counts(right, scope, evaluator):
                return _KINDS[Kind.INDEX]
            return _indices(evaluator.values(left, scope)) or _of_index(node, scope, evaluator)
        case ast.BinOp(op=operator) if isinstance(operator, ARITHMETIC):
            return _of_index(node, scope, evaluator)
    return NOTHING


def type_with_index(node: ast.expr) -> ast.expr | None:
    """Return the device type in an expression that joins a type and an index by a colon, or None.

    `kind + ":" + str(rank)`, `"%s:%d" % (kind, rank)`, `"{}:{}".format(kind, rank)`.
    """
    match node:
        case ast.BinOp(left=ast.BinOp(left=first, op=ast.Add(), right=joint), op=ast.Add()):
            return first if _begins_with_colon(joint) else type_with_index(node.left)
        case ast.BinOp(left=first, op=ast.Add(), right=joint):
            return first if _begins_with_colon(joint) else None
        case ast.BinOp(
            left=ast.Constant(value=str(text)), op=ast.Mod(), right=ast.Tuple(elts=[first, _])
        ):
            return first if WITH_INDEX.fullmatch(text) else None
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"), args=[first, _]
        ):
            return first if WITH_INDEX.fullmatch(text) else None
    return None


def _begins_with_colon(node: ast.expr) -> bool:
    match node:
        case (
            ast.Constant(value=str(text))
            | ast.JoinedStr(values=[ast.Constant(value=str(text)), *_])
        ):
            return text.startswith(":")
        case ast.BinOp(left=left):
            return _begins_with_colon(left)
    return False


def type_before_colon(node: ast.expr) -> ast.expr | None:
    """Return the device from which a call separates the type: `device` of `device.split(":")`."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=device, attr=method), args=[ast.Constant(value=":"), *_]
        ) if method in PARTS_TEXT:
            return device
    return None


def _counts(node: ast.expr, scope: Scope, evaluator: DeviceEvaluator) -> bool:
    """Whether `node` is the number of GPUs, also within bounds: `max(1, torch.cuda.device_count())`."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args) if name in BOUNDS:
            return any(_counts(arg, scope, evaluator) for arg in args)
        case ast.BoolOp(values=values):
            return any(_counts(value, scope, evaluator) for value in values)
        case ast.Call(func=function):
            return bool(evaluator.externals(function, scope) & COUNTS)
    return False


def _of_index(node: ast.BinOp, scope: Scope, evaluator: DeviceEvaluator) -> Values:
    """Return the number computed from an index: `rank * 4`, `base + rank`."""
    sides = (node.left, node.right)
    computed = any(follows_from_index(evaluator.values(side, scope)) for side in sides)
    return frozenset([OF_INDEX]) if computed else NOTHING


def follows_from_index(values: Values) -> bool:
    """Whether one of `values` is the index of a GPU or a replica, or is computed from one."""
    return OF_INDEX in values or bool(_indices(values))


def of_call(call: ast.Call, scope: Scope, evaluator: DeviceEvaluator) -> Values:
    """Return the device that `call` gets from torch, the environment or the command line."""
    function = call.func
    if isinstance(function, ast.Attribute):
        devices = _of_method(call, function, scope, evaluator)
        if devices:
            return devices
    elif isinstance(function, ast.Name) and function.id in ("int", "str") and call.args:
        values = evaluator.values(call.args[0], scope)
        of_index = values & {OF_INDEX} if function.id == "int" else NOTHING
        return _devices(values) | of_index
    names = evaluator.externals(function, scope)
    if not names:
        return NOTHING
    if names & DEVICE:
        return _made(call, scope, evaluator)
    if names & ACCELERATOR:
        return _KINDS[Kind.CUDA]
    if names & CONFIGURATIONS:
        return frozenset([OptionsValue(scope.module.path)])
    if names & XLA_DEVICES:
        return _KINDS[Kind.XLA]
    if names & (CURRENT | ASKS_RANK):
        return _KINDS[Kind.INDEX]
    if names & {"os.getenv", "os.environ.get"} and call.args:
        if getattr(call.args[0], "value", None) in RANK_VARIABLES:
            return _KINDS[Kind.INDEX]
        defaults = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "default")]
        return by_default(_union(evaluator.values(default, scope) for default in defaults))
    return NOTHING


def of_environment(
    container: ast.expr, key: str, scope: Scope, evaluator: DeviceEvaluator
) -> Values:
    """Return the index value of `os.environ["LOCAL_RANK"]`."""
    if key in RANK_VARIABLES and "os.environ" in evaluator.externals(container, scope):
        return _KINDS[Kind.INDEX]
    return NOTHING


def of_option(path: Path, name: str, evaluator: DeviceEvaluator) -> Values:
    """Return the default of the command-line option `name`, as the file `path` declares it.

    If the file does not declare it, use the declaration in any file of the project.
    """
    options = options_of(evaluator).get(name, [])
    here = [pair for pair in options if pair[1].module.path == path]
    return by_default(
        _union(evaluator.values(default, scope) for default, scope in here or options)
    )


@lru_cache(maxsize=2)
def options_of(evaluator: DeviceEvaluator) -> dict[str, list[tuple[ast.expr, Scope]]]:
    """Return the defaults of the options of a project's command lines, by the attribute that holds them."""
    options: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
    for call, scope in evaluator.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            flags = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
            flags += [
                k.value.value
                for k in call.keywords
                if k.arg == "dest" and isinstance(k.value, ast.Constant)
            ]
            for default in (k.value for k in call.keywords if k.arg == "default"):
                for flag in flags:
                    options[str(flag).lstrip("-").replace("-", "_")].append((default, scope))
    return options


def by_default(values: Values) -> Values:
    """Return `values`, with the devices among them marked as replaceable defaults."""
    return frozenset(
        replace(value, by_default=True) if isinstance(value, DeviceValue) else value
        for value in values
    )


def is_surely_cpu(values: Values) -> bool:
    """Whether `values` are only the CPU, whatever a user chooses."""
    return bool(values) and all(
        isinstance(value, DeviceValue) and value.kind is Kind.CPU and not value.by_default
        for value in values
    )


def kind_of(values: Values) -> Kind:
    """Return the deciding device among `values`.

    If a call passes an unknown value, the answer is unknown. A value that may be something other than an
    index is no index. A device decides before an index does, on XLA as on CUDA: rules treat rewritten code
    like the original.
    """
    kinds = {value.kind for value in values if isinstance(value, DeviceValue)}
    if Kind.UNKNOWN in kinds:
        return Kind.UNKNOWN
    if any(not isinstance(value, DeviceValue | Trait) for value in values):
        kinds.discard(Kind.INDEX)
    order = (Kind.CUDA, Kind.XLA, Kind.INDEX, Kind.CPU)
    return next((kind for kind in order if kind in kinds), Kind.UNKNOWN)


def may_be_accelerator(values: Values) -> bool:
    """Whether one of `values` is an accelerator."""
    kinds = (Kind.CUDA, Kind.INDEX, Kind.XLA)
    return any(isinstance(value, DeviceValue) and value.kind in kinds for value in values)


def _of_method(
    call: ast.Call, function: ast.Attribute, scope: Scope, evaluator: DeviceEvaluator
) -> Values:
    if function.attr == "parse_args":
        return frozenset([OptionsValue(scope.module.path)])
    if function.attr == "format" and isinstance(function.value, ast.Constant):
        text = function.value.value
        is_cuda = isinstance(text, str) and text.startswith("cuda:")
        first = type_with_index(call)
        if first is not None:
            return _devices(evaluator.values(first, scope))
        return _KINDS[Kind.CUDA] if is_cuda else NOTHING
    if function.attr == "get" and call.args and isinstance(call.args[0], ast.Constant):
        key = call.args[0].value
        if isinstance(key, str) and not evaluator.externals(function.value, scope):
            item = evaluator.at_key(function.value, key, scope)
            return item | _union(evaluator.values(default, scope) for default in call.args[1:])
    return NOTHING


def _made(call: ast.Call, scope: Scope, evaluator: DeviceEvaluator) -> Values:
    """Return the value of `torch.device(…)`: for an index, a CUDA device."""
    first = next((k.value for k in call.keywords if k.arg == "type"), None)
    first = call.args[0] if call.args else first
    if isinstance(first, ast.Constant) and isinstance(first.value, int):
        return _KINDS[Kind.CUDA]
    devices = _devices(evaluator.values(first, scope))
    index = _indices(devices)
    return (devices - index) | _KINDS[Kind.CUDA] if index else devices


def _devices(values: Values) -> Values:
    return frozenset(value for value in values if isinstance(value, DeviceValue))


def _indices(values: Values) -> Values:
    return frozenset(v for v in values if isinstance(v, DeviceValue) and v.kind is Kind.INDEX)


def _union(sets: Iterable[Values]) -> Values:
    return frozenset().union(*sets)
