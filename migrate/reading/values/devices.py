"""Which expressions name a device, and which calls move a value to one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

import libcst as cst

from migrate.reading.calls.devices import (
    ACCELERATOR,
    COUNTS,
    CUDA,
    CURRENT,
    DEVICE,
    XLA_DEVICES,
)
from migrate.reading.calls.kinds import Kind
from migrate.reading.names.parsed import Parsed
from migrate.reading.replicas.ranks import Ranks
from migrate.reading.tree.tree import (
    code,
    dotted,
    is_attribute_of_self,
    keyword,
    nodes_of,
    string_value,
)
from migrate.reading.values.arguments import passed_for
from migrate.reading.values.words import INDEX_NAME, RANK_VARIABLES

__all__ = ["ACCELERATOR", "CURRENT", "DEVICE", "Devices", "Kind"]


# Calls that restore a checkpoint, and the position of their argument `map_location`.
LOADERS = {
    "torch.load": 1,
    "torch.serialization.load": 1,
    "torch.jit.load": 1,
    "torch.hub.load_state_dict_from_url": 2,
    "torch.utils.model_zoo.load_url": 2,
}
# Calls whose first argument is a device.
TAKE_A_DEVICE = frozenset({"torch.set_default_device", "torch.nn.Module.to_empty"})


ASKED = cst.Name | cst.Attribute | cst.Subscript | cst.Call
# Of several values the one that decides what is to be done.
_ORDER = (Kind.CUDA, Kind.INDEX, Kind.XLA, Kind.UNKNOWN, Kind.CPU)


def names_cuda(node: cst.CSTNode | None) -> bool:
    """Whether `node` spells a CUDA device: 'cuda', 'cuda:0', f'cuda:{i}', 'cuda:%d' % i."""
    if isinstance(node, cst.FormattedString) and node.parts:
        first = node.parts[0]
        text = first.value if isinstance(first, cst.FormattedStringText) else ""
        return text.startswith("cuda:") or (text == "cuda" and len(node.parts) == 1)
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, cst.Modulo | cst.Add):
            return (string_value(node.left) or "").startswith("cuda:")
        return False
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        is_format = node.func.attr.value == "format"
        return is_format and (string_value(node.func.value) or "").startswith("cuda:")
    value = string_value(node)
    return value is not None and CUDA.fullmatch(value) is not None


class Devices:
    """What the expressions of one script name, followed through its assignments.

    A name or an attribute (`args.device`, `self.device`) is what the script assigns to it, the default of
    the command-line option of that name, or the device that all calls of the script pass; without any of
    these, names such as `local_rank` and `gpu` are the index of a GPU and everything else is unknown.
    """

    def __init__(self, context: Placed) -> None:
        self._context = context
        self._known: dict[int, Kind] = {}

    def kind(self, node: cst.CSTNode | None) -> Kind:
        """Return what the expression `node` names."""
        if node is None:
            return Kind.UNKNOWN
        if id(node) not in self._known:
            self._known[id(node)] = Kind.UNKNOWN  # where the name is assigned from itself
            found = self._find(node)
            if found in (Kind.UNKNOWN, Kind.CPU) and isinstance(node, ASKED):
                found = self._in_the_project(node, found)
            self._known[id(node)] = found
        return self._known[id(node)]

    def is_moved_to(self, string: cst.SimpleString) -> bool:
        """Whether `string` is what some move in the project is given as its device, whatever way it takes."""
        end = self._context.end(string)
        return (end.line, end.column) in self._context.calls.spelled_devices

    def _in_the_project(self, node: cst.CSTNode, here: Kind) -> Kind:
        """Return what `node` names by what other functions and files hand to it."""
        end = self._context.end(node)
        found = self._context.calls.devices.get((end.line, end.column), here)
        return here if found is Kind.CPU else found

    def _find(self, node: cst.CSTNode) -> Kind:
        if names_cuda(node):
            return Kind.CUDA
        value = string_value(node)
        if value is not None:
            return {"xla": Kind.XLA, "cpu": Kind.CPU}.get(value, Kind.UNKNOWN)
        if isinstance(node, cst.IfExp):
            return _decisive([self.kind(node.body), self.kind(node.orelse)])
        if isinstance(node, cst.FormattedString):
            return self._of_formatted(node)
        if isinstance(node, cst.Call):
            return self._of_call(node)
        if self._context.ranks.is_rank(node):
            return Kind.INDEX
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
            return Kind.INDEX if is_device_count(node.right, self._context) else Kind.UNKNOWN
        if isinstance(node, cst.Subscript):
            return Kind.INDEX if code(node) in _ENVIRONMENT else Kind.UNKNOWN
        if isinstance(node, cst.Name | cst.Attribute):
            return self._of_name(node)
        return Kind.UNKNOWN

    def _of_formatted(self, node: cst.FormattedString) -> Kind:
        """`f"{accelerator}:{rank}"` is a device where `accelerator` is the name of one."""
        if len(node.parts) < 2:
            return Kind.UNKNOWN
        first, second = node.parts[:2]
        if not isinstance(first, cst.FormattedStringExpression):
            return Kind.UNKNOWN
        colon = isinstance(second, cst.FormattedStringText) and second.value == ":"
        accelerator = colon and self.kind(first.expression) in (Kind.CUDA, Kind.XLA)
        return Kind.CUDA if accelerator else Kind.UNKNOWN

    def _of_call(self, call: cst.Call) -> Kind:
        name = self._context.qualified_name(call.func) or dotted(call.func)
        if name in DEVICE or name == "str":
            first = keyword(call, "type") or (call.args[0] if call.args else None)
            if first is None:
                return Kind.UNKNOWN
            literal = isinstance(first.value, cst.Integer)
            kind = Kind.INDEX if literal else self.kind(first.value)
            return Kind.CUDA if kind is Kind.INDEX and name in DEVICE else kind
        if name in ACCELERATOR:
            return Kind.CUDA
        if name in XLA_DEVICES:
            return Kind.XLA
        if name in CURRENT or self._context.ranks.is_rank(call):
            return Kind.INDEX
        if name == "int" and call.args:
            return self._as_index(call.args[0].value)
        if name in {"os.getenv", "os.environ.get"} and call.args:
            return (
                Kind.INDEX if string_value(call.args[0].value) in RANK_VARIABLES else Kind.UNKNOWN
            )
        return Kind.UNKNOWN

    def _as_index(self, node: cst.BaseExpression) -> Kind:
        return Kind.INDEX if self.kind(node) is Kind.INDEX else Kind.UNKNOWN

    def _of_name(self, node: cst.Name | cst.Attribute) -> Kind:
        last = node.attr.value if isinstance(node, cst.Attribute) else node.value
        if isinstance(node, cst.Attribute):
            if last == "device" and isinstance(node.value, cst.Call):
                return Kind.XLA if is_move(node.value, self._context) else Kind.UNKNOWN  # a probe
            if last == "type" and self.kind(node.value) in (Kind.CUDA, Kind.XLA, Kind.CPU):
                return self.kind(node.value)
        values = self.values(node)
        if values:
            found = _decisive(self.kind(value) for value in values)
            if found is not Kind.UNKNOWN:
                return found
        if isinstance(node, cst.Name):
            passed = [self.kind(value) for value in passed_for(node, self._context)]
            if passed and all(kind in (Kind.CUDA, Kind.XLA) for kind in passed):
                return _decisive(passed)
        by_name = INDEX_NAME.fullmatch(last) is not None and self._may_be_index(node, values)
        return Kind.INDEX if by_name else Kind.UNKNOWN

    def _may_be_index(
        self, node: cst.Name | cst.Attribute, values: Iterable[cst.BaseExpression]
    ) -> bool:
        """Whether nothing contradicts that `node`, which is named like an index, is one."""
        if self._context.qualified_name(node) is not None:
            return False
        if isinstance(node, cst.Name) and self._is_loop_variable(node):
            return False
        named = (self._context.qualified_name(value) or "" for value in values)
        return not any(name.startswith("torch.") for name in named)  # rank = torch.bfloat16

    def is_load_location(self, name: cst.CSTNode) -> bool:
        """Whether the script uses the variable `name` for nothing but `torch.load(…, map_location=name)`."""
        if not isinstance(name, cst.Name):
            return False
        is_read = False
        for mention in self._context.mentions(name):
            use = self._context.parent(mention)
            if not isinstance(use, cst.AssignTarget):
                if not self._is_map_location(use):
                    return False
                is_read = True
        return is_read

    def says_where_to_load(self, node: cst.CSTNode) -> bool:
        """Whether `node` is a part of a `map_location`, also of one that is kept in a variable."""
        for above in self._context.ancestors(node):
            if isinstance(above, cst.Arg) and self._is_map_location(above):
                return True
            if isinstance(above, cst.Assign):
                return self.is_load_location(above.targets[0].target)
            if isinstance(above, cst.BaseStatement):
                return False
        return False

    def _is_map_location(self, arg: cst.CSTNode | None) -> bool:
        call = self._context.parent(arg)
        if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call):
            return False
        position = LOADERS.get(self._context.qualified_name(call.func) or "")
        if arg.keyword is not None:
            return position is not None and arg.keyword.value == "map_location"
        return position is not None and call.args.index(arg) == position

    @cached_property
    def are_used(self) -> bool:
        """Whether the script has anything to do with an accelerator."""
        packages = (
            "torch.accelerator.",
            "torch.cuda.",
            "torch.distributed.",
            "torch.multiprocessing.spawn",
            "torch_xla.",
        )
        # Also scripts that have to do with none get these, from other rules.
        added = ("torch_xla.core.xla_model.save", "torch_xla.utils.checkpoint")
        names = (
            self._context.qualified_name(node) or ""
            for node in self._context.all_of(cst.Attribute, cst.Name)
            if not isinstance(self._context.parent(node), cst.Attribute)
        )
        if any(name.startswith(packages) and not name.startswith(added) for name in names):
            return True
        # Where another file moves the model, its loop still gets its step here.
        return self._context.moves_to_accelerator or self._context.calls.run_on_accelerator

    def _is_loop_variable(self, name: cst.Name) -> bool:
        return any(
            isinstance(self._context.parent(mention), cst.For | cst.CompFor)
            for mention in self._context.mentions(name)
        )

    def values(self, node: cst.Name | cst.Attribute) -> list[cst.BaseExpression]:
        """Return what the script assigns to the name or attribute `node`, defaults included."""
        if isinstance(node, cst.Name):
            found: list[cst.BaseExpression] = []
            for value in self._context.bound_values(node):
                plain = value.default if isinstance(value, cst.Param) else value
                if plain is not None:
                    found.append(plain)
            return found
        assigned = [
            value
            for target, value in self._context.attributes.get(node.attr.value, ())
            if value is not None and self._key(target) == self._key(node)
        ]
        return assigned or self._options.get(node.attr.value, [])

    def _key(self, node: cst.Attribute) -> tuple[int, str]:
        owner = self._context.class_around(node) if is_attribute_of_self(node) else None
        return id(owner), dotted(node)

    @cached_property
    def _options(self) -> dict[str, list[cst.BaseExpression]]:
        """The defaults of the command-line options, by the attribute that holds them."""
        found: dict[str, list[cst.BaseExpression]] = defaultdict(list)
        for node in self._context.all_of(cst.Call):
            if is_option(node):
                default = keyword(node, "default")
                if default is not None:
                    for name in option_names(node):
                        found[name].append(default.value)
        return found


_ENVIRONMENT = frozenset(f"os.environ[{q}{name}{q}]" for name in RANK_VARIABLES for q in "'\"")


def _decisive(kinds: Iterable[Kind]) -> Kind:
    found = set(kinds)
    if Kind.UNKNOWN in found:
        found.discard(Kind.INDEX)  # an index, or something else
    return next((kind for kind in _ORDER if kind in found), Kind.UNKNOWN)


def is_option(call: cst.Call) -> bool:
    """Whether `call` declares a command-line option: `parser.add_argument('--device', …)`."""
    is_add = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
    return is_add and bool(option_names(call))


def option_names(call: cst.Call) -> list[str]:
    """Return the attributes under which the value of a declared option may be found."""
    flags = [string_value(arg.value) for arg in call.args if arg.keyword is None]
    return [flag.lstrip("-").replace("-", "_") for flag in flags if flag]


def is_device_count(node: cst.CSTNode | None, context: Placed) -> bool:
    """Whether `node` counts the GPUs of this host."""
    return isinstance(node, cst.Call) and context.qualified_name(node.func) in COUNTS


def is_accelerator(node: cst.CSTNode | None, context: Placed) -> bool:
    """Whether the expression `node` is, or may be, an accelerator, CUDA or XLA, also by way of a name.

    `"cuda" if torch.cuda.is_available() else "cpu"` is one: the script means to train on it.
    """
    return context.devices.kind(node) in (Kind.CUDA, Kind.INDEX, Kind.XLA)


def device_argument(call: cst.Call) -> cst.Arg | None:
    """Return the argument of `x.to(…)` that may be a device."""
    named = keyword(call, "device")
    if named is not None:
        return named
    first = call.args[0] if call.args else None
    return first if first is not None and first.keyword is None and not first.star else None


def is_move(call: cst.Call, context: Placed) -> bool:
    """Whether `call` moves its receiver to an accelerator: `x.to(rank)`, `x.cuda()`, `x.to('xla')`."""
    if not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value == "cuda":
        return context.qualified_name(call.func) is None and not _is_own(call.func, context)
    if call.func.attr.value != "to":
        return False
    arg = device_argument(call)
    if arg is not None and isinstance(arg.value, cst.Integer):
        return True  # x.to(0)
    return arg is not None and is_accelerator(arg.value, context)


def _is_own(method: cst.Attribute, context: Placed) -> bool:
    """Whether `C().cuda` is a method of a class of the script that inherits from nothing."""
    made: cst.CSTNode | None = method.value
    if isinstance(made, cst.Name):
        made = context.bound_to(made)[1]
    name = made.func if isinstance(made, cst.Call) else None
    return isinstance(name, cst.Name) and any(
        function.name.value == method.attr.value
        for one in context.module.body
        if isinstance(one, cst.ClassDef) and one.name.value == name.value and not one.bases
        for function in one.body.body
        if isinstance(function, cst.FunctionDef)
    )


def moves(root: cst.CSTNode, context: Placed) -> Iterator[cst.Call]:
    """Yield the calls at and below `root` that move a value to an accelerator."""
    return (call for call in nodes_of(root, cst.Call) if is_move(call, context))


def pins(call: cst.Call, context: Placed) -> bool:
    """Whether `call` is `x.pin_memory()`, of a tensor."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "pin_memory" or call.args:
        return False
    return context.qualified_name(func) is None and context.devices.are_used


class Placed(Parsed):
    """A script with what is known of its devices, and of the ranks that it uses as devices."""

    @cached_property
    def ranks(self) -> Ranks:
        """Which names hold the index of the replica: the device of the CUDA script."""
        return Ranks(self)

    @cached_property
    def devices(self) -> Devices:
        """Which expressions name a device."""
        return Devices(self)

    @cached_property
    def moves_to_accelerator(self) -> bool:
        """Whether the script moves anything to an accelerator: else it trains on the CPU by intent."""
        return any(is_move(call, self) for call in self.all_of(cst.Call))
