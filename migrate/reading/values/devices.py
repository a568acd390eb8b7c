"""Device use of a script: calls that move a value to a device, and strings that say where to load."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from migrate.catalogue.launchers import SPAWN
from migrate.model.calls.devices import ACCELERATOR, CURRENT, DEVICE
from migrate.model.calls.kind import ACCELERATORS, Kind
from migrate.reading.names.parsed import Parsed
from migrate.reading.values.ranks import Ranks
from migrate.reading.values.values import (
    Values,
    device_argument,
    is_device_count,
    is_option,
    names_cuda,
    option_names,
    type_with_index,
)
from migrate.syntax.tree import code, keyword

__all__ = [
    "ACCELERATOR",
    "CURRENT",
    "DEVICE",
    "Devices",
    "Kind",
    "device_argument",
    "is_device_count",
    "is_option",
    "names_cuda",
    "option_names",
    "type_with_index",
]

# Calls that restore a checkpoint, and the position of their argument `map_location`.
LOADERS = {
    "torch.load": 1,
    "torch.serialization.load": 1,
    "torch.jit.load": 1,
    "torch.hub.load_state_dict_from_url": 2,
    "torch.utils.model_zoo.load_url": 2,
}
GENERATOR = "torch.Generator"
# Calls whose first argument is a device.
TAKE_A_DEVICE = frozenset({"torch.set_default_device", "torch.nn.Module.to_empty"})


class Devices:
    """Device use of a script."""

    def __init__(self, context: Placed) -> None:
        self._context = context

    def kind(self, node: cst.CSTNode | None) -> Kind:
        """Return the device that the expression `node` names; unknown if it is no device."""
        return self._context.values.device(node)

    def is_moved_to(self, literal: cst.SimpleString | cst.Integer) -> bool:
        """Whether `literal` becomes the device of some move in the project, in any way."""
        return self._context.place(literal) in self._context.calls.spelled_devices

    def is_load_location(self, name: cst.CSTNode) -> bool:
        """Whether the script uses the variable `name` only for `torch.load(…, map_location=name)`."""
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
        """Whether `node` is a part of a `map_location`, also of one kept in a variable."""
        for above in self._context.within_statement(node):
            if isinstance(above, cst.Arg) and self._is_map_location(above):
                return True
            if isinstance(above, cst.Assign):
                return self.is_load_location(above.targets[0].target)
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
    def by_default(self) -> bool:
        """Whether the script creates its tensors and modules on an accelerator by default."""
        for call in self._context.all_of(cst.Call):
            name = self._context.qualified_name(call.func) if call.args else None
            if name == "torch.set_default_device" and self.kind(call.args[0].value) in ACCELERATORS:
                return True
            if name == "torch.set_default_tensor_type" and "cuda" in code(call.args[0].value):
                return True
        return False

    @cached_property
    def are_used(self) -> bool:
        """Whether the script uses an accelerator at all."""
        packages = (
            "torch.accelerator.",
            "torch.cuda.",
            "torch.distributed.",
            "torch_xla.",
        )
        # Other rules add these also to scripts that use no accelerator.
        added = ("torch_xla.core.xla_model.save", "torch_xla.utils.checkpoint")
        names = (
            self._context.qualified_name(node) or ""
            for node in self._context.all_of(cst.Attribute, cst.Name)
            if not isinstance(self._context.parent(node), cst.Attribute)
        )
        if any(
            name in SPAWN or (name.startswith(packages) and not name.startswith(added))
            for name in names
        ):
            return True
        # If another file moves the model, the loop still gets its step here.
        calls = self._context.calls
        return self._context.moves_to_accelerator or calls.run_on_accelerator or calls.distributed


def is_accelerator(node: cst.CSTNode | None, context: Placed) -> bool:
    """Whether the expression `node` is, or may be, an accelerator (CUDA or XLA), also through a name.

    `"cuda" if torch.cuda.is_available() else "cpu"` counts: the script means to train on it.
    """
    return context.devices.kind(node) in ACCELERATORS


def makes_generator(call: cst.Call, context: Placed) -> bool:
    """Whether `call` creates a torch generator, also by a project class that derives from it."""
    if context.qualified_name(call.func) == GENERATOR:
        return True
    return context.place(call) in context.calls.generators


def device_of_generator(call: cst.Call, context: Placed) -> cst.Arg | None:
    """Return the device of the generator that `call` creates; None if it is that of another generator."""
    first = 0
    if context.qualified_name(call.func) != GENERATOR:
        callee, around = code(call.func), context.class_around(call)
        partial = context.qualified_name(call.func) == "functools.partial"
        unbound = callee.endswith(".__init__") and not callee.startswith("super(")
        first = 1 if partial or unbound or callee.endswith(".__new__") else 0
        own = (around.name.value, "cls", "type(self)", "self.__class__") if around else ()
        copied = callee in own
    else:
        copied = False
    arg = keyword(call, "device")
    if arg is None and len(call.args) > first:
        arg = call.args[first]
        if arg.star or arg.keyword is not None:
            return None
    if arg is None or (copied and code(arg.value) == "self.device"):
        return None
    return arg


def is_move(call: cst.Call, context: Placed) -> bool:
    """Whether `call` moves its receiver to an accelerator: `x.to(rank)`, `x.cuda()`, `x.to('xla')`."""
    return context.values.is_move(call)


def moves(root: cst.CSTNode, context: Placed) -> Iterator[cst.Call]:
    """Yield the calls at and below `root` that move a value to an accelerator."""
    return (call for call in context.below(root, cst.Call) if is_move(call, context))


def pins(call: cst.Call, context: Placed) -> bool:
    """Whether `call` is `x.pin_memory()` of a tensor, or of a container of tensors that a library makes."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "pin_memory":
        return False
    if any(arg.keyword is None for arg in call.args):
        return False  # a function that pins what it gets
    if context.qualified_name(func) is not None or code(func.value) in ("self", "super()"):
        return False
    if any(definition.name == "pin_memory" for definition in context.run_by(call)):
        return False  # a method of the project
    if context.devices.are_used or context.values.is_tensor(func.value):
        return True
    # A library's object: a replay buffer's batch, a TensorDict. Only a class of this file may mean otherwise.
    return all(function.name.value != "pin_memory" for function in context.all_of(cst.FunctionDef))


class Placed(Parsed):
    """Script with the facts about its devices, and about the ranks that it uses as devices."""

    @cached_property
    def ranks(self) -> Ranks:
        """Names that hold the index of the replica: the device of the CUDA script."""
        return Ranks(self)

    @cached_property
    def values(self) -> Values:
        """Kinds of its expressions: devices, tensors, modules."""
        return Values(self, self.ranks)

    @cached_property
    def devices(self) -> Devices:
        """Device use of the script."""
        return Devices(self)

    @cached_property
    def moves_to_accelerator(self) -> bool:
        """Whether the script moves anything to an accelerator: otherwise it trains on the CPU by intent."""
        return any(is_move(call, self) for call in self.all_of(cst.Call))
