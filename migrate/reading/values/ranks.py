"""Flow of the replica index: CUDA scripts use it as the device (`model.to(rank)`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.launchers import LAUNCHERS, PROCESS
from migrate.catalogue.words import ASKS_RANK, RANK_VARIABLES
from migrate.reading.values.environment import environment_name
from migrate.reading.values.process_loops import process_loop
from migrate.syntax.tree import (
    bind,
    code,
    is_attribute_of_self,
    keyword,
    nodes_of,
    string_value,
)

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed


class Ranks:
    """Names that hold the replica index, followed from the launched worker through direct calls.

    The index is the first parameter of a launched function, `dist.get_rank()`,
    `int(os.environ['LOCAL_RANK'])` and the option `--local_rank`. It is followed into functions and classes
    of the same script where it is passed by name, and through assignments (`gpu = rank`, `self.gpu_id =
    gpu_id`). A parameter that also gets another value in some call, and a name that is assigned more than
    once, are not followed: what cannot be decided is left alone.
    """

    def __init__(self, context: Parsed) -> None:
        self._context = context
        self._workers = self._launched()
        self._parameters: set[tuple[int, str]] = set()  # (id of the function, name)
        self._attributes: set[tuple[int, str]] = set()  # (id of the class, attribute)
        self._calls = self._calls_by_callee()
        self._kept: frozenset[str] = frozenset()
        self._kept = self._keep()
        for worker in self._workers:
            if worker.params.params:
                self._parameters.add((id(worker), worker.params.params[0].name.value))
        while self._spread():
            pass

    def is_rank(self, node: cst.CSTNode | None) -> bool:
        """Whether the expression `node` is the replica index, or the index modulo the device count."""
        if type(node) is cst.Name:
            return self._name_is_rank(node)
        if type(node) is cst.BinaryOperation and isinstance(node.operator, cst.Modulo):
            return self.is_rank(node.left)  # rank % torch.cuda.device_count()
        if type(node) is cst.Call:
            return self._is_asked(node)
        if is_attribute_of_self(node):
            return (id(self._context.class_around(node)), node.attr.value) in self._attributes
        if type(node) is cst.Attribute:
            return code(node) in self._kept
        return False

    def _is_asked(self, call: cst.Call) -> bool:
        """Whether `call` asks for the index: `dist.get_rank()`, `int(os.environ['LOCAL_RANK'])`."""
        if self._context.qualified_name(call.func) in ASKS_RANK:
            return True
        if len(call.args) != 1 or code(call.func) != "int":
            return False
        asked = call.args[0].value
        strings = nodes_of(asked, cst.SimpleString)
        return isinstance(asked, cst.Subscript | cst.Call) and any(
            environment_name(string, self._context) in RANK_VARIABLES for string in strings
        )

    def _keep(self) -> frozenset[str]:
        """Return the attributes of options, such as `args.gpu`, that are only assigned an index."""
        values: dict[str, list[cst.BaseExpression]] = defaultdict(list)
        for node in self._context.all_of(cst.Assign):
            for target in node.targets:
                attribute = target.target
                if isinstance(attribute, cst.Attribute) and not is_attribute_of_self(attribute):
                    values[code(attribute)].append(node.value)
        kept = {"args.local_rank"} if self._declares_local_rank() else set()
        for _ in range(2):  # `args.rank` from the environment, then `args.gpu` from `args.rank`
            self._kept = frozenset(kept)
            kept |= {
                name for name, expressions in values.items() if all(map(self.is_rank, expressions))
            }
        return frozenset(kept)

    def _declares_local_rank(self) -> bool:
        return any(
            string_value(node) in ("--local_rank", "--local-rank")
            for node in self._context.all_of(cst.SimpleString, cst.ConcatenatedString)
        )

    def _launched(self) -> list[cst.FunctionDef]:
        """Return the functions of this script that it launches."""
        workers = []
        for call in self._context.all_of(cst.Call):
            name = self._context.qualified_name(call.func)
            first = None
            if name in LAUNCHERS:
                first = keyword(call, "fn") or (call.args[0] if call.args else None)
            elif name in PROCESS and process_loop(call, self._context) is not None:
                first = keyword(call, "target")
            if first is not None:
                worker = self._context.functions.get(code(first.value))
                if worker is not None:
                    workers.append(worker)
        return workers

    def _calls_by_callee(self) -> dict[int, list[tuple[cst.Call, cst.FunctionDef]]]:
        """Return the calls of each function of the script; the calls of a class count for its `__init__`."""
        callees = dict(self._context.functions)
        for method in self._context.all_of(cst.FunctionDef):
            if method.name.value == "__init__":
                *_, outermost, _ = (method, *self._context.ancestors(method))  # last, the module
                if isinstance(outermost, cst.ClassDef):
                    callees[outermost.name.value] = method
        calls: dict[int, list[tuple[cst.Call, cst.FunctionDef]]] = defaultdict(list)
        for node in self._context.all_of(cst.Call):
            if isinstance(node.func, cst.Name):
                callee = callees.get(node.func.value)
                if callee is not None:
                    calls[id(callee)].append((node, callee))
        return calls

    def _spread(self) -> bool:
        """Follow the index one step further; return whether a new name was found."""
        before = len(self._parameters) + len(self._attributes)
        launched = {id(worker) for worker in self._workers}
        for key, calls in self._calls.items():
            names = [parameter.name.value for parameter in calls[0][1].params.params]
            is_method = names[:1] == ["self"]
            bound = [bind(call, names[is_method:]) for call, _ in calls]
            for name in names[is_method:]:
                args = [b.get(name) if b is not None else None for b in bound]
                everywhere = all(arg is not None and self.is_rank(arg.value) for arg in args)
                if everywhere and key not in launched:
                    self._parameters.add((key, name))
        self._spread_to_attributes()
        return len(self._parameters) + len(self._attributes) > before

    def _spread_to_attributes(self) -> None:
        """Follow `self.gpu_id = gpu_id` if it is the attribute's only assignment in its class."""
        values: dict[tuple[int, str], list[cst.BaseExpression]] = defaultdict(list)
        times: Counter[tuple[int, str]] = Counter()
        for target in filter(is_attribute_of_self, self._context.targets):
            key = (id(self._context.class_around(target)), target.attr.value)
            times[key] += 1
            assign = self._context.parent(self._context.parent(target))
            if isinstance(assign, cst.Assign):
                values[key].append(assign.value)
        for key, assigned in values.items():
            if times[key] == 1 and self.is_rank(assigned[0]):
                self._attributes.add(key)

    def _name_is_rank(self, name: cst.Name) -> bool:
        owner, value = self._context.bound_to(name)
        if isinstance(value, cst.Param):
            return (id(owner), name.value) in self._parameters
        return value is not None and owner is not self._context.module and self.is_rank(value)
