"""Process groups that take CPU tensors too, and the collectives that may get such tensors.

Without a backend torch joins gloo, for CPU tensors, and NCCL. The group of XLA takes device tensors only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.catalogue import torch_distributed
from migrate.catalogue.entry import names
from migrate.catalogue.words import words
from migrate.model.calls.devices import kind_of
from migrate.model.calls.kind import ACCELERATORS, Kind
from migrate.model.calls.kinds import MODULES
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope, ValueBinding
from migrate.model.objects.asked import is_module
from migrate.model.objects.objects import KEEPS, objects_of
from migrate.model.processes.meetings import TENSORS
from migrate.model.replicated.constants import constants
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

INIT = names(*torch_distributed.INIT)
MODULE = "torch.distributed."
# Functions of torch that make a tensor on the CPU if they get no device.
MAKERS = words(
    "arange as_tensor empty eye from_numpy full linspace logspace ones rand randint randn randperm "
    "scalar_tensor tensor zeros ByteTensor FloatTensor IntTensor LongTensor Tensor"
)
OF_DATA = words("tensor as_tensor")  # functions that leave a tensor argument where it is
OTHERS = words("group op async_op src dst group_src group_dst input_split_sizes output_split_sizes")
OF_MODULES = re.compile(r"(named_)?(parameters|buffers)")
DEEPEST = 12
ROUNDS = 4
Site = tuple[Path, int]


@dataclass(frozen=True)
class Where:
    """Possible devices of a tensor.

    Attributes:
        host: the code that puts it on the CPU, by file and line.
        device: whether it may be on the device.
        unknown: whether it may come from an unknown source.
    """

    host: frozenset[Site] = frozenset()
    device: bool = False
    unknown: bool = False

    def __or__(self, other: Where) -> Where:
        return Where(
            self.host | other.host, self.device or other.device, self.unknown or other.unknown
        )


NOWHERE = Where()
DEVICE = Where(device=True)
UNKNOWN = Where(unknown=True)


@dataclass(frozen=True)
class CollectiveTensor:
    """Tensor argument of a collective."""

    node: ast.expr
    top: ModuleScope
    where: Where


@lru_cache(maxsize=2)
def given_of(analysis: Analysis) -> Mapping[Path, list[CollectiveTensor]]:
    """Return the tensor arguments of the collectives of each file that may be on the CPU.

    Empty if every group of the project takes GPU tensors only.
    """
    joining = mixed_groups(analysis).values()
    run = frozenset().union(*(run_with(analysis, path) for path in set(joining)))
    tensors: dict[Path, list[CollectiveTensor]] = {}
    for call, scope in analysis.evaluator.calls() if run else ():
        if scope.module.path not in run:
            continue
        for node in _tensors(call, scope, analysis):
            where = _asked(node, scope, analysis)
            if where.host or where.unknown:
                tensors.setdefault(scope.module.path, []).append(
                    CollectiveTensor(node, scope.top, where)
                )
    return tensors


@lru_cache(maxsize=2)
def mixed_groups(analysis: Analysis) -> Mapping[ast.Call, Path]:
    """Return the calls of a project that join a group for CPU tensors too, with their files."""
    return {
        call: scope.module.path
        for call, scope in analysis.evaluator.calls()
        if INIT & analysis.evaluator.externals(call.func, scope)
        and _is_mixed(call, scope, analysis)
    }


@lru_cache(maxsize=64)
def run_with(analysis: Analysis, path: Path) -> frozenset[Path]:
    """Return the files that may run in one process with `path`: those of the programs that import it."""
    project = analysis.project
    programs = closure([path], lambda importer: project.importers.get(importer, ()))
    return frozenset(closure(programs, lambda program: project.imports(project.modules[program])))


def _is_mixed(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        return False
    backend = call.args[0] if call.args else None
    for keyword in call.keywords:
        backend = keyword.value if keyword.arg == "backend" else backend
    return backend is None or any(
        text is None or (isinstance(text, str) and "cpu:" in text)
        for text in constants(backend, scope, analysis)
    )


def _tensors(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[ast.expr]:
    """Yield the tensors that a call passes to a collective of the whole group."""
    for name in analysis.evaluator.externals(call.func, scope):
        parameters = TENSORS.get(name.rpartition(".")[2]) if name.startswith(MODULE) else None
        if parameters is None:
            continue
        arguments = dict(zip(parameters, call.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if "group" in arguments and not _is_mixed_too(arguments["group"], scope, analysis):
            return
        yield from (node for name, node in arguments.items() if name not in OTHERS)


def _is_mixed_too(group: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether `group` is that of all replicas, or one like it, from `new_group` without a backend."""
    if isinstance(group, ast.Constant):
        return group.value is None
    sites = objects_of(analysis).origin(group, scope).sites
    return bool(sites) and all(
        isinstance(call, ast.Call)
        and last_part(call.func) == "new_group"
        and len(call.args) < 3
        and not any(keyword.arg in ("backend", None) for keyword in call.keywords)
        for call in sites
    )


@dataclass(frozen=True)
class TracePath:
    """Path that leads to an expression, with the answers of one search so far.

    Attributes:
        nodes: the expressions in progress, whose answers depend on this one.
        known: the answers, by expression, scope and number of expressions in progress. Without them an
            expression is followed once for each way that leads to it.
        before: the answers of the previous round, which stand for those of the expressions in progress.
    """

    nodes: frozenset[int]
    known: dict[tuple[int, int, int], Where]
    before: Mapping[tuple[int, int], Where]


def _asked(node: ast.expr, scope: Scope, analysis: Analysis) -> Where:
    """Return the possible devices of a tensor, in rounds, until recursive answers have settled."""
    before: dict[tuple[int, int], Where] = {}
    answer = NOWHERE
    for _ in range(ROUNDS):
        known: dict[tuple[int, int, int], Where] = {}
        answer = _where(node, scope, analysis, TracePath(frozenset(), known, before))
        after: dict[tuple[int, int], Where] = {}
        for (of, at, _), where in known.items():
            after[of, at] = after.get((of, at), NOWHERE) | where
        if after == before:
            break
        before = after
    return answer


def _where(node: ast.expr, scope: Scope, analysis: Analysis, way: TracePath) -> Where:
    place = id(node), id(scope)
    if id(node) in way.nodes:
        return way.before.get(place, NOWHERE)
    if len(way.nodes) > DEEPEST:
        return UNKNOWN
    asked = *place, len(way.nodes)
    if asked not in way.known:
        further = TracePath(way.nodes | {id(node)}, way.known, way.before)
        way.known[asked] = _follow(node, scope, analysis, further)
    return way.known[asked]


def _follow(node: ast.expr, scope: Scope, analysis: Analysis, way: TracePath) -> Where:
    match node:
        case ast.Constant():
            return NOWHERE
        case ast.Name():
            return _of_name(node, scope, analysis, way)
        case ast.Attribute(value=receiver, attr=name):
            if is_module(receiver, scope, analysis):
                members = list(analysis.evaluator.members_of(receiver, name, scope))
                assigned = [
                    member
                    for member in members
                    if member.kind == "value" and member.value is not None
                ]
                if not assigned:
                    return DEVICE  # a weight, a buffer, or a value kept from the forward pass
                return _union(
                    _where(member.value, member.scope, analysis, way)
                    for member in assigned
                    if member.value
                )
            members = list(analysis.evaluator.members_of(receiver, name, scope))
            if members:
                return _union(
                    _where(member.value, member.scope, analysis, way)
                    if member.kind == "value" and member.value is not None
                    else UNKNOWN
                    for member in members
                )
            if isinstance(receiver, ast.Name) and receiver.id in ("self", "cls"):
                return UNKNOWN
            return _where(receiver, scope, analysis, way)  # x.data, x.grad, x.T
        case ast.Subscript(value=container):
            return _where(container, scope, analysis, way)
        case ast.IfExp(body=one, orelse=other):
            return _union(_where(part, scope, analysis, way) for part in (one, other))
        case ast.BinOp(left=one, right=other):
            return _computed(_where(part, scope, analysis, way) for part in (one, other))
        case ast.UnaryOp(operand=part) | ast.Starred(value=part) | ast.NamedExpr(value=part):
            return _where(part, scope, analysis, way)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return _union(_where(part, scope, analysis, way) for part in parts)
        case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
            return _where(part, scope, analysis, way)
        case ast.Call():
            return _of_call(node, scope, analysis, way)
    return UNKNOWN


def _union(parts: Iterable[Where]) -> Where:
    whole = NOWHERE
    for part in parts:
        whole |= part
    return whole


def _computed(operands: Iterable[Where]) -> Where:
    """Return the possible devices of a result of a tensor function, whose tensors are all on one device."""
    whole = _union(operands)
    return DEVICE if whole.device else whole


def _of_name(node: ast.Name, scope: Scope, analysis: Analysis, way: TracePath) -> Where:
    bindings = _reaching(list(analysis.evaluator.bindings_of(node.id, scope)), node, scope)
    where = NOWHERE if bindings else UNKNOWN
    for binding in bindings:
        if binding.kind == "param" and isinstance(binding.scope, Function):
            where |= _of_parameter(binding.scope, node.id, analysis, way)
        elif binding.value is not None and binding.kind in ("value", "item", "element"):
            where |= _element_of(binding.value, binding.kind, binding.scope, analysis, way)
        else:
            where |= UNKNOWN
    for kept, at in _kept(analysis).get((id(scope), node.id), ()):
        where |= _where(kept, at, analysis, way)
    return where


def _of_parameter(function: Function, name: str, analysis: Analysis, way: TracePath) -> Where:
    """Return the possible devices of the arguments that calls pass; NOWHERE if nothing calls it."""
    arguments = objects_of(analysis).arguments(function, name)
    default, _ = function.declared.get(name, (None, []))
    passed = [
        (argument.node, argument.scope) for argument in arguments if argument.node is not None
    ]
    where = _union(_where(node, scope, analysis, way) for node, scope in passed)
    if default is not None:
        where |= _where(default, function.parent or function, analysis, way)
    elif not passed and function.name in _called_names(analysis):
        where |= UNKNOWN
    return where


@lru_cache(maxsize=2)
def _called_names(analysis: Analysis) -> frozenset[str]:
    """Return the last parts of the names of all callees in a project."""
    return frozenset(last_part(call.func) for call, _ in analysis.evaluator.calls())


def _reaching(bindings: list[ValueBinding], node: ast.Name, scope: Scope) -> list[ValueBinding]:
    """Return the bindings that may decide: after `x = x.cuda()` only that binding."""
    again = [
        binding
        for binding in bindings
        if binding.scope is scope
        and binding.kind == "value"
        and binding.value is not None
        and (binding.value.lineno, binding.value.col_offset) < (node.lineno, node.col_offset)
        and any(isinstance(n, ast.Name) and n.id == node.id for n in walk(binding.value))
    ]
    if any(node is n for b in bindings if b.value is not None for n in walk(b.value)):
        return [b for b in bindings if b not in again] or bindings  # within `x = x.cuda()`
    return again[-1:] or bindings


def _element_of(
    value: ast.expr, kind: str, scope: Scope, analysis: Analysis, way: TracePath
) -> Where:
    """Return the devices of `value`, or of the elements that a loop or an assignment takes from it."""
    called = value.func if isinstance(value, ast.Call) else None
    if kind == "element" and isinstance(called, ast.Name) and called.id in ("enumerate", "zip"):
        assert isinstance(value, ast.Call)
        return _union(_where(part, scope, analysis, way) for part in value.args)
    return _where(value, scope, analysis, way)


@lru_cache(maxsize=2)
def _kept(analysis: Analysis) -> Mapping[tuple[int, str], list[tuple[ast.expr, Scope]]]:
    """Return the values put into the variables of each function: `parts.append(x)`."""
    values: dict[tuple[int, str], list[tuple[ast.expr, Scope]]] = {}
    for call, scope in analysis.evaluator.calls():
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in KEEPS or not call.args:
            continue
        if isinstance(func.value, ast.Name):
            values.setdefault((id(scope), func.value.id), []).append((call.args[-1], scope))
    return values


def _of_call(call: ast.Call, scope: Scope, analysis: Analysis, way: TracePath) -> Where:
    here = Where(host=frozenset([(scope.module.path, call.lineno)]))
    function = call.func
    ran = analysis.running.get(call)
    if is_module(function, scope, analysis):
        return DEVICE
    if isinstance(function, ast.Attribute) and OF_MODULES.fullmatch(function.attr):
        return DEVICE
    values = analysis.evaluator.values(call, scope)
    if any(value in MODULES for value in values):
        return DEVICE
    functions = ran.functions if ran is not None else []
    names, last = analysis.evaluator.externals(function, scope), last_part(function)
    if any(name.startswith("torch.") for name in names) and last in MAKERS:
        return _of_maker(call, last, scope, analysis, way) or here
    if any(name.startswith("torch.nn.") and last[:1].isupper() for name in names):
        return DEVICE  # a parameter or a module, which moves with the model
    if isinstance(function, ast.Attribute) and not names and not functions:
        if last == "cpu":
            return here
        if last == "cuda":
            return DEVICE
        if last in ("to", "type_as", "to_empty") and (placed := _placed(call, scope, analysis)):
            return here if placed is Kind.CPU else DEVICE
        if last.startswith("new_") and "device" in {keyword.arg for keyword in call.keywords}:
            return DEVICE
        return _where(function.value, scope, analysis, way)
    called = analysis.evaluator.values(function, scope)
    if any(isinstance(value, Class) for value in called) or any("DataLoader" in n for n in names):
        return UNKNOWN
    if functions:
        return _union(
            _where(value, function, analysis, way)
            for function in functions
            for value in function.returns
        )
    device = next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
    if device is not None:
        return here if _kind(device, scope, analysis) is Kind.CPU else DEVICE
    if any(name.startswith("torch.") for name in names) and call.args:
        return _computed(_where(arg, scope, analysis, way) for arg in call.args)
    return UNKNOWN


def _of_maker(
    call: ast.Call, last: str, scope: Scope, analysis: Analysis, way: TracePath
) -> Where | None:
    """Return the device on which a torch call makes its tensor; None for the CPU."""
    device = next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
    if device is not None:
        return None if _kind(device, scope, analysis) is Kind.CPU else DEVICE
    if _sets_default(analysis):
        return DEVICE
    if last in OF_DATA and call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
        data = _where(call.args[0], scope, analysis, way)
        return data if data.device and not data.host else None
    return None


def _placed(call: ast.Call, scope: Scope, analysis: Analysis) -> Kind | None:
    """Return the device that `x.to(…)` moves to; None if it only converts."""
    arguments = [
        *call.args[:1],
        *(keyword.value for keyword in call.keywords if keyword.arg == "device"),
    ]
    if not arguments:
        return None
    kind = _kind(arguments[0], scope, analysis)
    if kind is Kind.CPU or kind in ACCELERATORS:
        return kind
    dtype = ast.unparse(arguments[0])
    return None if "dtype" in dtype or dtype.startswith("torch.") else Kind.CUDA


def _kind(device: ast.expr, scope: Scope, analysis: Analysis) -> Kind:
    return kind_of(analysis.evaluator.values(device, scope))


@lru_cache(maxsize=2)
def _sets_default(analysis: Analysis) -> bool:
    """Whether a file of the project sets the default device for new tensors."""
    words = (b"set_default_device", b"set_default_tensor_type")
    return any(word in scope.module.data for scope in analysis.scopes.values() for word in words)
