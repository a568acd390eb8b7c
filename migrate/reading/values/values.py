"""Kinds of a script's expressions: devices and their indices, tensors and their devices, modules.

Nothing is executed and no types are known. Names are followed through their bindings, calls through the
functions that they run and the documented results of torch, parameters through their arguments and uses, also
in other files of the project. A kind that is not plausible is unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import libcst as cst

from migrate.catalogue import words as v
from migrate.catalogue.entry import names
from migrate.catalogue.torch_other import DATA_LOADERS
from migrate.model.calls.devices import (
    ACCELERATOR,
    BOUNDS,
    COUNTS,
    CUDA,
    CURRENT,
    DEVICE,
    PARTS_TEXT,
    WITH_INDEX,
    XLA_DEVICES,
)
from migrate.model.calls.kind import (
    ACCELERATORS,
    DEVICES,
    LOADERS,
    PLACED,
    TENSORS,
    Kind,
    held,
    joined,
)
from migrate.reading.names.bindings import Assignment, Bindings, How, Put, passed_for
from migrate.reading.names.parsed import Parsed
from migrate.reading.values.counted_items import counted_items
from migrate.reading.values.entries import StepFunction
from migrate.reading.values.ranks import Ranks
from migrate.syntax.tree import (
    bind,
    code,
    container,
    dotted,
    is_attribute_of_self,
    keyword,
    last_part,
    nodes_of,
    string_value,
)
from migrate.syntax.walk import kinds_of

FORWARDS = frozenset({"forward", "training_step"})
# Kinds that other files may make, or pass.
ASKED = cst.Name | cst.Attribute | cst.Subscript | cst.Call
# Kinds that unpacking or indexing ends.
_ENDS_EXPRESSION = frozenset(
    {cst.Lambda, *kinds_of(cst.BaseStatement), *kinds_of(cst.BaseSmallStatement)}
)
HOLDERS = LOADERS | {Kind.MODEL, Kind.OPTIMIZER}
MADE_LOADERS = names(*DATA_LOADERS)
DEVICE_LOADERS = frozenset(
    {
        "torch_xla.distributed.parallel_loader.MpDeviceLoader",
        "torch_xla.distributed.parallel_loader.ParallelLoader",
    }
)
# Methods and functions of torch that register a function to run in forward or backward passes.
HOOKS = re.compile(r"register_(module_)?(forward(_pre)?|(full_)?backward(_pre)?)_hook")
EMPTIES = frozenset({"OrderedDict", "deque", "dict", "list", "set"})
DEEPEST = 60
_ENVIRONMENT = frozenset(f"os.environ[{q}{name}{q}]" for name in v.RANK_VARIABLES for q in "'\"")


class Values:
    """Kinds of the expressions of one script, computed on demand.

    A device may be chosen in one of several locations. Of all values that the script assigns to its name or
    attribute, the deciding one counts; this includes the default of the command-line option of that name, and
    arguments from other functions and files. A tensor moves: the last assignment to the name counts.

    Args:
        context: the script.
        ranks: the names that hold the index of the replica.
        entries: the functions, by the lines of their `def`, that steps of other files run.
    """

    def __init__(
        self, context: Parsed, ranks: Ranks, entries: Mapping[int, StepFunction] | None = None
    ) -> None:
        self._context = context
        self._ranks = ranks
        self._entries = entries or {}
        self._known: dict[int, Kind] = {}
        self._devices: dict[int, Kind] = {}
        self._under_way: set[int] = set()
        self._met: set[int] = set()  # expressions in progress that the current one follows from
        self._provisional: list[
            int
        ] = []  # answers that hold only while other expressions are in progress
        self._pending: set[int] = set()

    @cached_property
    def bindings(self) -> Bindings:
        """Values of the script's variables."""
        return Bindings(self._context)

    def kind(self, node: cst.CSTNode | None) -> Kind:
        """Return the plausible kind of the expression `node`; None counts as a host value."""
        if node is None:
            return Kind.HOST
        key = id(node)
        if key in self._known:
            return self._known[key]
        if key in self._pending or len(self._pending) > DEEPEST:
            return Kind.UNKNOWN  # a value that depends on itself, or on too many others
        self._pending.add(key)
        try:
            kind = self._of(node)
        finally:
            self._pending.discard(key)
        if isinstance(node, cst.Subscript | cst.Call) and kind in (Kind.UNKNOWN, Kind.HOST):
            kind = self._in_the_project(node, kind)
        if isinstance(node, cst.Call) and kind is Kind.UNKNOWN and self._makes_optimizer(node):
            kind = Kind.OPTIMIZER
        if kind is Kind.UNKNOWN and self._is_model_of_project(node):
            kind = Kind.MODEL
        self._known[key] = kind
        return kind

    def on_device(self, node: cst.CSTNode | None) -> bool:
        """Whether `node` is plausibly a device tensor."""
        return self.kind(node) is Kind.ON_DEVICE

    def is_tensor(self, node: cst.CSTNode | None) -> bool:
        """Whether `node` is plausibly a tensor on any device."""
        return self.kind(node) in TENSORS

    def device(self, node: cst.CSTNode | None) -> Kind:
        """Return the device that `node` names; unknown if it is no device or not plain to see.

        A non-device is not followed here: a name may have many values that follow from each other.
        """
        if node is None:
            return Kind.UNKNOWN
        key = id(node)
        if key in self._under_way:
            self._met.add(key)  # the name is assigned from itself
        elif key not in self._devices:
            self._under_way.add(key)
            around, self._met = self._met, set()
            device = self._device_of(node)
            undecided = device in (Kind.UNKNOWN, Kind.CPU)
            if isinstance(node, cst.FormattedString) or (isinstance(node, ASKED) and undecided):
                device = self._in_the_project(node, device)
            self._devices[key] = device if device in DEVICES else Kind.UNKNOWN
            self._under_way.discard(key)
            self._met = around | (self._met - {key})
            if self._met and device not in DEVICES:
                self._provisional.append(key)  # asked for by itself, it may be one
            if not self._under_way:
                for provisional in self._provisional:
                    del self._devices[provisional]
                self._provisional.clear()
                self._met.clear()
                return device if device in DEVICES else Kind.UNKNOWN
        return self._devices.get(key, Kind.UNKNOWN)

    def _device_of(self, node: cst.CSTNode) -> Kind:
        if type(node) is cst.Name:
            return self._of_named(node)
        if type(node) is cst.Attribute:
            return self._device_of_attribute(node)
        if isinstance(node, cst.IfExp):
            return joined((self.device(node.body), self.device(node.orelse)))
        if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
            return self._of_string(node)
        if isinstance(node, cst.FormattedString):
            return self._of_formatted(node)
        if names_cuda(node):
            return Kind.CUDA
        first = type_with_index(node)
        if first is not None and self.device(first) in (Kind.CUDA, Kind.XLA):
            return Kind.CUDA
        if isinstance(node, cst.Call):
            return self._device_of_call(node) or Kind.UNKNOWN
        if isinstance(node, cst.BinaryOperation):
            return Kind.INDEX if self._is_index(node) else Kind.UNKNOWN
        if isinstance(node, cst.Subscript):
            index = node.slice[0].slice
            if isinstance(index, cst.Index) and code(index.value) == "0":
                return self.device(_type_before_colon(node.value))
            return Kind.INDEX if code(node) in _ENVIRONMENT else Kind.UNKNOWN
        return Kind.UNKNOWN

    def _device_of_attribute(self, node: cst.Attribute) -> Kind:
        if node.attr.value in ("device", "type"):
            return self._of_device_part(node)
        if node.attr.value == "index":
            return Kind.INDEX if self._is_index_of_device(node) else Kind.UNKNOWN
        return self._of_named(node)

    def _of_device_part(self, node: cst.Attribute) -> Kind:
        """Return the device of `x.to("xla").device`, or of `device.type`."""
        if node.attr.value == "type":
            device = self.device(node.value)
            return device if device in DEVICES - {Kind.INDEX} else self._of_named(node)
        if isinstance(node.value, cst.Call):
            return Kind.XLA if self.is_move(node.value) else Kind.UNKNOWN  # a probe
        return self._of_named(node)

    def _is_index_of_device(self, node: cst.Attribute) -> bool:
        """Whether `node` is the index of a GPU: `device.index`, `x.device.index`.

        `torch.device("cuda").index` is None, and `device.index(...)` is a method of a string.
        """
        above = self._context.parent(node)
        if isinstance(above, cst.Call) and above.func is node:
            return False
        device = node.value
        placed = isinstance(device, cst.Attribute) and device.attr.value == "device"
        owner = self.kind(cst.ensure_type(device, cst.Attribute).value) if placed else None
        if owner in (Kind.ON_DEVICE, Kind.MODEL):
            return True
        if self.device(device) is not Kind.CUDA:
            return False
        values = self.given_to(device) if isinstance(device, cst.Name | cst.Attribute) else [device]
        return not values or not all(map(self._has_no_index, values))

    def _has_no_index(self, value: cst.BaseExpression) -> bool:
        """Whether `value` is `torch.device("cuda")`, or another device that surely has no index."""
        if isinstance(value, cst.IfExp):
            return self._has_no_index(value.body) and self._has_no_index(value.orelse)
        if not isinstance(value, cst.Call) or len(value.args) != 1:
            return False
        first = value.args[0].value
        chosen = [first.body, first.orelse] if isinstance(first, cst.IfExp) else [first]
        return self._context.qualified_name(value.func) in DEVICE and all(
            (text := string_value(node)) is not None and ":" not in text for node in chosen
        )

    def is_surely_cpu(self, node: cst.CSTNode | None) -> bool:
        """Whether `node` is the CPU, whatever the user chooses: a default does not count."""
        if string_value(node) == "cpu":
            return True
        if isinstance(node, cst.Call) and self._context.qualified_name(node.func) in DEVICE:
            first = keyword(node, "type") or (node.args[0] if node.args else None)
            return first is not None and self.is_surely_cpu(first.value)
        if not isinstance(node, cst.Name):
            return False
        _, value = self._context.bound_to(node)
        return not isinstance(value, cst.Param | cst.Name) and self.is_surely_cpu(value)

    def is_move(self, call: cst.Call) -> bool:
        """Whether `call` moves its receiver to an accelerator: `x.to(rank)`, `x.cuda()`, `x.to('xla')`."""
        if not isinstance(call.func, cst.Attribute):
            return False
        if call.func.attr.value == "cuda":
            # A method of this name that the project defines has its own meaning.
            own = any(callee.name == "cuda" for callee in self._context.run_by(call))
            return self._context.qualified_name(call.func) is None and not own
        if call.func.attr.value not in ("to", "to_empty"):
            return False
        arg = device_argument(call)
        if arg is not None and isinstance(arg.value, cst.Integer):
            return True  # x.to(0)
        return arg is not None and self.device(arg.value) in ACCELERATORS

    def by_itself(self, call: cst.Call) -> Kind | None:
        """Return the result of `call` that does not depend on receiver and arguments, or None."""
        if is_host_method(call):
            return Kind.HOST
        func = call.func
        if isinstance(func, cst.Name) and func.value in v.HOST_BUILTINS | v.DESCRIBING:
            return None if self._context.bindings(func) else Kind.HOST
        if self.is_move(call):
            return Kind.ON_DEVICE
        device = keyword(call, "device")
        if device is not None and not self.is_surely_cpu(device.value):
            return Kind.ON_DEVICE
        return None

    def made(self, call: cst.Call) -> Kind | None:
        """Return the device of the tensors that `call` makes from numbers, or loads; None if not plain."""
        place = place_of_load(call)
        if place is not None:
            return Kind.HOST if self.is_surely_cpu(place) else None
        name = self._context.qualified_name(call.func) or ""
        if not name.startswith("torch.") or name.rpartition(".")[2] not in v.MADE_ON_HOST:
            return None
        if name.startswith("torch.cuda."):
            return Kind.ON_DEVICE
        return self.by_itself(call) or Kind.HOST

    def given_to(self, node: cst.Name | cst.Attribute) -> list[cst.BaseExpression]:
        """Return the values that the script assigns to the name or attribute `node`, including defaults.

        In `device = torch.device(device)` the argument is the earlier value of the name.
        """
        if isinstance(node, cst.Name):
            values: list[cst.BaseExpression] = []
            own = self._assigned_around(node)
            for value in self._context.bound_values(node):
                plain = value.default if isinstance(value, cst.Param) else value
                if plain is not None and plain is not own:
                    values.append(plain)
            return values
        return self.assigned(node) or self._options.get(node.attr.value, [])

    def _assigned_around(self, node: cst.Name) -> cst.Call | None:
        """Return the call that contains `node` and whose result an assignment binds, outside of loops.

        In a loop the name may already hold that result.
        """
        below: cst.CSTNode = node
        for above in self._context.ancestors(node):
            if type(above) is cst.Assign or type(above) is cst.AnnAssign:
                if isinstance(below, cst.Call) and self._context.loop_around(above) is None:
                    return below
                return None
            if type(above) in _ENDS_EXPRESSION:
                return None
            below = above
        return None

    def assigned(self, node: cst.Attribute) -> list[cst.BaseExpression]:
        """Return the values assigned to the attribute `node` of `self`, in the class around it."""
        return [
            value
            for target, value in self._context.attributes.get(node.attr.value, ())
            if value is not None and self._key(target) == self._key(node)
        ]

    def option_defaults(self, name: str) -> list[cst.BaseExpression]:
        """Return the defaults of the command-line option that the parsed arguments hold as `name`."""
        return self._options.get(name, [])

    def _key(self, node: cst.Attribute) -> tuple[int, str]:
        owner = self._context.class_around(node) if is_attribute_of_self(node) else None
        return id(owner), dotted(node)

    @cached_property
    def _options(self) -> dict[str, list[cst.BaseExpression]]:
        """Defaults of the command-line options, by the attribute that holds them."""
        options: dict[str, list[cst.BaseExpression]] = defaultdict(list)
        for node in self._context.all_of(cst.Call):
            if is_option(node):
                default = keyword(node, "default")
                if default is not None:
                    for name in option_names(node):
                        options[name].append(default.value)
        return options

    def _in_the_project(self, node: cst.CSTNode, here: Kind) -> Kind:
        """Return the device of `node` by the arguments from other functions and files, otherwise `here`."""
        devices = self._context.calls.devices
        if not devices:
            return here
        kind = devices.get(self._context.place(node), here)
        return here if kind is Kind.CPU else kind

    def calls_model(self, call: cst.Call) -> bool:
        """Whether `call` runs a module: by the origin of the callee, or by its name if that is unknown."""
        if self._is_model_of_project(call.func):
            return True
        if isinstance(call.func, cst.Subscript):
            return self._is_item_a_model(call.func)
        if self.computes_by_method(call):
            return True
        named = v.CALLED_MODEL.fullmatch(last_part(call.func)) is not None
        return named and not self.only_asks(call)

    def only_asks(self, call: cst.Call) -> bool:
        """Whether a function of the script that is named like a model only asks about its argument.

        Example: `get_module(model)`, which returns `model.module` if there is one.
        """
        functions = self._context.called(call)
        return bool(functions) and all(
            function.name.value == last_part(call.func)
            and all(
                code(inner.func) in v.DESCRIBING
                for inner in self._context.below(function.body, cst.Call)
            )
            for function in functions
        )

    def computes_by_method(self, call: cst.Call) -> bool:
        """Whether `call` is `model.encode_text(x)`: a computing method of a module, not its forward."""
        func = call.func
        if not isinstance(func, cst.Attribute) or not v.COMPUTES.fullmatch(func.attr.value):
            return False
        of = func.value
        if isinstance(of, cst.Name) and of.value in ("self", "cls"):
            return False  # the code of the function decides
        named = v.CALLED_MODEL.fullmatch(last_part(container(of)).removesuffix("s"))
        kind = self.kind(of)
        only = kind is Kind.UNKNOWN and v.COMPUTES_ONLY.fullmatch(func.attr.value)
        return kind is Kind.MODEL or named is not None or bool(only)

    def generates(self, call: cst.Call) -> bool:
        """Whether `call` is `model.generate(ids, max_length=9)` of transformers."""
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "generate":
            return False
        if not v.OF_GENERATION & {
            arg.keyword.value for arg in call.args if arg.keyword is not None
        }:
            return False
        if self._context.called(call) or self._context.run_by(call):
            return False  # a method of the project
        model = func.value
        if v.CALLED_MODEL.fullmatch(last_part(model)) or self.kind(model) is Kind.MODEL:
            return True
        values = self.given_to(model) if isinstance(model, cst.Name | cst.Attribute) else ()
        return any(map(self._is_made_by_transformers, values))

    def _is_made_by_transformers(self, value: cst.BaseExpression) -> bool:
        """Whether a class of transformers makes `value`: `AutoModel.from_pretrained(name).to(device)`."""
        while isinstance(value, cst.Call):
            if (self._context.qualified_name(value.func) or "").startswith("transformers."):
                return True
            value = value.func.value if isinstance(value.func, cst.Attribute) else value.func
        return False

    def _is_item_a_model(self, item: cst.Subscript) -> bool:
        """Whether `models["encoder"]` is a module: by what the container holds, otherwise by its name."""
        if self.kind(item) is Kind.MODEL:
            return True
        named = last_part(container(item)).removesuffix("s")
        return v.CALLED_MODEL.fullmatch(named) is not None

    def _makes_optimizer(self, call: cst.Call) -> bool:
        positions = self._context.calls.optimizers.created
        return bool(positions) and self._context.place(call) in positions

    def _is_model_of_project(self, node: cst.CSTNode) -> bool:
        """Whether other functions and files show that `node` is a module."""
        models = self._context.calls.models
        return bool(models) and isinstance(node, ASKED) and self._context.place(node) in models

    def _of(self, node: cst.CSTNode) -> Kind:
        rule = _RULES.get(type(node))
        return rule(self, node) if rule is not None else Kind.UNKNOWN

    def _of_string(self, node: cst.CSTNode) -> Kind:
        if names_cuda(node):
            return Kind.CUDA
        return {"xla": Kind.XLA, "tpu": Kind.XLA, "cpu": Kind.CPU}.get(
            string_value(node) or "", Kind.HOST
        )

    def _of_formatted(self, node: cst.FormattedString) -> Kind:
        """Whether the text is a device: `f"{accelerator}:{rank}"` is one if `accelerator` names one."""
        if names_cuda(node):
            return Kind.CUDA
        if len(node.parts) < 2:
            return Kind.HOST
        first, second = node.parts[:2]
        if not isinstance(first, cst.FormattedStringExpression):
            return Kind.HOST
        colon = isinstance(second, cst.FormattedStringText) and second.value == ":"
        accelerator = colon and self.device(first.expression) in (Kind.CUDA, Kind.XLA)
        return Kind.CUDA if accelerator else Kind.HOST

    def _of_subscript(self, node: cst.Subscript) -> Kind:
        if code(node) in _ENVIRONMENT:
            return Kind.INDEX
        if self._is_setting_of_group(node):
            return Kind.HOST
        if self._is_number_taken(node):
            return Kind.HOST
        kind = held([self.kind(node.value)])
        index = node.slice[0].slice
        key = string_value(index.value) if isinstance(index, cst.Index) else None
        if kind is Kind.UNKNOWN and key is not None and isinstance(node.value, cst.Name):
            put = {self.kind(value) for value in self.bindings.put_by_others(node.value, key)}
            return Kind.ON_DEVICE if Kind.ON_DEVICE in put else kind
        if kind is Kind.TENSOR and isinstance(node.value, cst.Name):
            parts = [part for part in self.bindings.put_into(node.value) if part.key == key]
            if key is not None and parts:
                return held(self.kind(part.value) for part in parts)
            if key in self._counted_items:  # `state["step"]` of an optimizer of the script's own
                return Kind.HOST
        if kind in HOLDERS and not is_attribute_of_self(node.value):  # self.layers[i]
            return Kind.UNKNOWN
        return kind

    @cached_property
    def _counted_items(self) -> frozenset[str]:
        return counted_items(self._context)

    def _is_setting_of_group(self, node: cst.Subscript) -> bool:
        """Whether `node` is a number of an optimizer's group: `group["lr"]`, `opt.param_groups[0]["lr"]`."""
        first = node.slice[0].slice
        key = string_value(first.value) if isinstance(first, cst.Index) else None
        return key is not None and key != "params" and self.is_group(node.value)

    def is_group(self, group: cst.BaseExpression) -> bool:
        """Whether `group` is a group of an optimizer: one of `opt.param_groups`."""
        if isinstance(group, cst.Subscript):
            return last_part(group.value) == "param_groups"
        if not isinstance(group, cst.Name):
            return False
        binding = self.bindings.nearest(group)
        return (
            binding is not None
            and binding.value is not None
            and binding.how in (How.ELEMENT, How.VALUE, How.PART)
            and any(last_part(part) == "param_groups" for part in _parts_of(binding.value))
        )

    def _of_binary(self, node: cst.BinaryOperation) -> Kind:
        if names_cuda(node):
            return Kind.CUDA
        if self._is_index(node):
            return Kind.INDEX
        if isinstance(node.left, cst.BaseString):
            return Kind.HOST  # "%d" % x
        return held((self.kind(node.left), self.kind(node.right)))

    def _is_index(self, node: cst.BinaryOperation) -> bool:
        """Whether `node` is the index of a GPU: `rank % torch.cuda.device_count()`."""
        counts = isinstance(node.operator, cst.Modulo) and self._counts_devices(node.right)
        return counts or self._ranks.is_rank(node)

    def _counts_devices(self, node: cst.BaseExpression) -> bool:
        """Whether `node` is the number of GPUs, or bounds it: `max(1, torch.cuda.device_count())`."""
        if isinstance(node, cst.Call) and code(node.func) in BOUNDS:
            return any(self._counts_devices(arg.value) for arg in node.args)
        if isinstance(node, cst.BooleanOperation):
            return self._counts_devices(node.left) or self._counts_devices(node.right)
        return is_device_count(node, self._context)

    def _of_unary(self, node: cst.UnaryOperation) -> Kind:
        not_ = isinstance(node.operator, cst.Not)
        return Kind.HOST if not_ else held([self.kind(node.expression)])

    def _of_boolean(self, node: cst.BooleanOperation) -> Kind:
        return held((self.kind(node.left), self.kind(node.right)))

    def _of_choice(self, node: cst.IfExp) -> Kind:
        return joined((self.kind(node.body), self.kind(node.orelse)))

    def _of_elements(self, node: cst.Tuple | cst.List | cst.Set | cst.Dict) -> Kind:
        return held(self.kind(element.value) for element in node.elements)

    def _of_comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> Kind:
        return held([self.kind(node.elt)])

    def _of_dict_comprehension(self, node: cst.DictComp) -> Kind:
        return held([self.kind(node.value)])

    def _of_comparison(self, node: cst.Comparison) -> Kind:
        if asks_no_value(node):
            return Kind.HOST
        compared = (node.left, *(target.comparator for target in node.comparisons))
        return held(self.kind(side) for side in compared)

    def _of_attribute(self, node: cst.Attribute) -> Kind:
        kind = self._of_part(node)
        if kind in PLACED:
            return kind
        device = self.device(node)
        return held([kind]) if device is Kind.UNKNOWN else device

    def _of_part(self, node: cst.Attribute) -> Kind:
        """Return the kind of the attribute `node` by the kind of its object."""
        name = node.attr.value
        if name in v.DESCRIBES:
            return Kind.HOST
        if name == "grad" and updates(self._context.class_around(node), self._context):
            return Kind.ON_DEVICE
        if is_attribute_of_self(node):
            return self._of_self(node)
        if name in v.KEPT_TENSORS:
            return self._kept_for_backward(node)
        if name == "size" and not isinstance(self._context.parent(node), cst.Call):
            return Kind.HOST  # attribute of an array or an image; for a tensor it is a method
        base = held([self.kind(node.value)])
        if self._context.declared_tensor(node) is not None:
            return Kind.ON_DEVICE if base in PLACED or self._is_given(node.value) else Kind.TENSOR
        if base in TENSORS:
            return Kind.UNKNOWN if v.NUMBER.search(name) else base  # `images.image_sizes`
        if base in LOADERS or base in (Kind.HOST, Kind.OPTIMIZER):
            return Kind.HOST
        if base is Kind.MODEL:
            return Kind.MODEL if name == "module" else Kind.UNKNOWN
        named = v.MODEL.fullmatch(name) is not None and not self._is_function(node)
        return Kind.MODEL if named else Kind.UNKNOWN

    def _is_given(self, node: cst.BaseExpression) -> bool:
        """Whether `node` is a parameter of a forward: a step gives it the batch."""
        parameter = self.bindings.parameter(node) if isinstance(node, cst.Name) else None
        return parameter is not None and is_forward(parameter[0], self._context)

    def _kept_for_backward(self, node: cst.Attribute) -> Kind:
        """Return the kind of `ctx.saved_tensors`: on the device, unless some may be on the host."""
        around = self._context.class_around(node)
        calls = nodes_of(around, cst.Call) if around is not None else ()
        kept = [arg for c in calls if last_part(c.func) == "save_for_backward" for arg in c.args]
        may_be_of_host = any(arg.star or self.kind(arg.value) is Kind.HOST for arg in kept)
        return Kind.ON_DEVICE if kept and not may_be_of_host else Kind.UNKNOWN

    def _of_self(self, node: cst.Attribute) -> Kind:
        assigned = self.assigned(node)
        kinds = {self.kind(value) for value in assigned}
        if any(map(_is_empty, assigned)):  # modules that are added later
            kinds |= {self._of_parts(self.bindings.put_into(node))} & {Kind.MODEL}
        host = bool(kinds) and kinds <= DEVICES | {Kind.HOST}
        kind = held(kinds) if kinds & PLACED or host else Kind.UNKNOWN
        if kind not in PLACED and self._is_placed_buffer(node):
            return Kind.ON_DEVICE
        named = (
            kind is Kind.UNKNOWN
            and v.MODEL.fullmatch(node.attr.value) is not None
            and not self._is_function(node)
        )
        return Kind.MODEL if named else kind

    def is_buffer(self, node: cst.Attribute) -> bool:
        """Whether `node` is a buffer of the module around it, and surely a tensor."""
        if not is_attribute_of_self(node) or not self._is_placed_buffer(node):
            return False
        key = (id(self._context.class_around(node)), node.attr.value)
        return key not in self._missing_buffers

    def _is_placed_buffer(self, node: cst.Attribute) -> bool:
        """Whether `node` is a buffer of the module around it, which moves to the device with the module."""
        function = self._context.function_around(node)
        built = function is not None and function.name.value == "__init__"
        return not built and (*self._key(node)[:1], node.attr.value) in self._buffers

    @cached_property
    def _buffers(self) -> frozenset[tuple[int, str]]:
        """Names of the buffers that the script's classes register, with the id of the class."""
        return frozenset(key for key, _ in self._registered())

    @cached_property
    def _missing_buffers(self) -> frozenset[tuple[int, str]]:
        """Buffers that are None at first, or that are assigned another value by name."""
        none = {key for key, value in self._registered() if value is None or code(value) == "None"}
        return frozenset(
            none
            | {
                (id(self._context.class_around(target)), name)
                for name, assigned in self._context.attributes.items()
                for target, _ in assigned
            }
        )

    def _registered(self) -> Iterator[tuple[tuple[int, str], cst.BaseExpression | None]]:
        """Yield each registered buffer with its kind."""
        for call in self._context.all_of(cst.Call):
            if isinstance(call.func, cst.Attribute) and dotted(call.func) == "self.register_buffer":
                name = string_value(call.args[0].value) if call.args else None
                tensor = keyword(call, "tensor") or (call.args[1] if len(call.args) > 1 else None)
                if name is not None:
                    key = (id(self._context.class_around(call)), name)
                    yield key, tensor.value if tensor is not None else None

    def _of_name(self, node: cst.Name) -> Kind:
        if node.value in ("True", "False", "None"):
            return Kind.HOST
        kind = self._of_variable(node)
        if kind in PLACED:
            return kind
        device = self.device(node)
        return held([kind]) if device is Kind.UNKNOWN else device

    def _of_variable(self, node: cst.Name) -> Kind:
        """Return the kind of the name `node` by its last binding."""
        binding = self.bindings.nearest(node)
        kind = Kind.UNKNOWN
        if binding is not None:
            kind = self._of_binding(binding)
            if kind in TENSORS and self._may_count(node, binding):
                return Kind.HOST
            if kind is Kind.HOST and binding.how is How.VALUE and _is_empty(binding.value):
                kind = self._of_parts(self.bindings.put_into(node))
            elif kind is Kind.UNKNOWN:  # what another branch assigns may be known
                others = {self._of_binding(other) for other in self.bindings.reaching(node)}
                kind = joined(others & TENSORS or (kind,))
            if kind is Kind.UNKNOWN and self._moves_each_entry(node):
                kind = Kind.ON_DEVICE
        elif (parameter := self.bindings.parameter(node)) is not None:
            kind = self._of_parameter(*parameter)
        elif (name := self._context.named(node)) is not None:
            return Kind.HOST if name.split(".")[0] in v.HOST_ROOTS else Kind.UNKNOWN
        named = kind is Kind.UNKNOWN and v.MODEL.fullmatch(node.value)
        return Kind.MODEL if named and not self._is_function(node) else kind

    def _moves_each_entry(self, node: cst.Name) -> bool:
        """Whether a loop moves what `node` holds: `for key in x: x[key] = x[key].to(device)`."""
        for part in self.bindings.put_into(node):
            above = self._context.ancestors(part.value)
            around = next(
                (a for a in above if isinstance(a, cst.If | cst.For | cst.FunctionDef)), None
            )
            if part.key is not None or not isinstance(around, cst.For):
                continue
            func = part.value.func if isinstance(part.value, cst.Call) else None
            entry = func.value if isinstance(func, cst.Attribute) else None
            is_entry = isinstance(entry, cst.Subscript) and entry.value.deep_equals(node)
            is_element = (
                isinstance(entry, cst.Name)
                and code(around.iter) == f"{node.value}.items()"
                and code(around.target).endswith(f" {entry.value}")
            )
            if (is_entry or is_element) and self.kind(part.value) is Kind.ON_DEVICE:
                return True
        return False

    def _is_function(self, node: cst.Name | cst.Attribute) -> bool:
        """Whether `node` is a function of the project, whatever its name: `self.make_model(config)`."""
        bindings = self._context.bindings(node) if isinstance(node, cst.Name) else []
        if any(isinstance(binding.node, cst.FunctionDef) for binding in bindings):
            return True
        call = self._context.parent(node)
        if not isinstance(call, cst.Call) or call.func is not node:
            return False
        return any(definition.name == last_part(node) for definition in self._context.run_by(call))

    def _of_parts(self, parts: Iterable[Put]) -> Kind:
        """Return the kind of a container that was empty and was filled with `parts`."""
        kinds = {self.kind(part.value) for part in parts}
        if kinds & TENSORS:
            return Kind.TENSOR
        return Kind.MODEL if Kind.MODEL in kinds else Kind.HOST

    def _of_named(self, node: cst.Name | cst.Attribute) -> Kind:
        """Return the device of `node` by all its assignments, or by its name."""
        if self._ranks.is_rank(node):
            return Kind.INDEX
        values = self.given_to(node)
        types = self._types_before_colon(node) if isinstance(node, cst.Name) else []
        device = joined(self.device(value) for value in (*values, *types))
        if device in DEVICES:
            return device
        if isinstance(node, cst.Name):
            passed = [self.device(value) for value in passed_for(node, self._context)]
            if passed and all(kind in (Kind.CUDA, Kind.XLA) for kind in passed):
                return joined(passed)
        named = v.INDEX_NAME.fullmatch(last_part(node)) and self._may_be_index(node, values)
        return Kind.INDEX if named else Kind.UNKNOWN

    def _types_before_colon(self, node: cst.Name) -> list[cst.BaseExpression]:
        """Return `device` if `node` is the first part of `device.split(":")`."""
        parts = (
            _type_before_colon(binding.value)
            for binding in self.bindings.given(node)
            if binding.how is How.PART and not binding.index
        )
        return [part for part in parts if part is not None]

    def _may_be_index(
        self, node: cst.Name | cst.Attribute, values: Iterable[cst.BaseExpression]
    ) -> bool:
        """Whether nothing contradicts that `node`, which is named like an index, is one."""
        if self._context.qualified_name(node) is not None:
            return False
        if isinstance(node, cst.Name) and any(
            isinstance(self._context.parent(mention), cst.For | cst.CompFor)
            for mention in self._context.mentions(node)
        ):
            return False
        named = (self._context.qualified_name(value) or "" for value in values)
        return not any(name.startswith("torch.") for name in named)  # rank = torch.bfloat16

    def _of_binding(self, binding: Assignment) -> Kind:
        if binding.how is How.COUNTER or self._is_key(binding):
            return Kind.HOST
        kind = self.kind(binding.value)
        if binding.how is How.VALUE:
            return kind
        if binding.how is How.PART and self._is_number_returned(binding):
            return Kind.HOST
        if binding.how is How.ELEMENT and self._is_of_parameters(binding.value):
            return Kind.ON_DEVICE
        kind = held([kind])
        is_element = binding.how is How.ELEMENT and binding.value is not None
        if is_element and kind is Kind.UNKNOWN and self._yields_batches(binding):
            return Kind.TENSOR
        if binding.how is How.ADDED:
            kind = held((kind, self.kind(binding.before)))
            return Kind.UNKNOWN if kind is Kind.HOST else kind
        if binding.how is How.ELEMENT and kind in LOADERS:
            return Kind.ON_DEVICE if kind is Kind.DEVICE_LOADER else Kind.TENSOR
        if binding.how is How.PART and kind in HOLDERS:
            return Kind.UNKNOWN
        return kind

    def _is_key(self, binding: Assignment) -> bool:
        """Whether a name is a key of a mapping: `for name in model.state_dict()`."""
        if binding.how is not How.ELEMENT or binding.index is not None or binding.value is None:
            return False
        return self.gives_keys(binding.value)

    def gives_keys(self, iterated: cst.CSTNode) -> bool:
        """Whether a loop over `iterated` gets keys: of a dictionary, or what it looks up there."""
        values: list[cst.CSTNode | None] = [iterated]
        if isinstance(iterated, cst.Name):
            values = [assignment.value for assignment in self.bindings.reaching(iterated)]
        if values and all(map(self._gives_keys, values)):
            return True
        loop = self._context.parent(iterated)
        if not isinstance(loop, cst.For | cst.CompFor) or not isinstance(loop.target, cst.Name):
            return False
        run = loop.body if isinstance(loop, cst.For) else self._context.parent(loop)
        return any(
            part.value.deep_equals(iterated) and code(part.slice[0]) == loop.target.value
            for part in (nodes_of(run, cst.Subscript) if run is not None else ())
        )

    def _gives_keys(self, mapping: cst.CSTNode | None) -> bool:
        """Whether who iterates over a value gets keys: over a dictionary, or what a call returns.

        The name of a call decides only where no function of the project is known to run.
        """
        if isinstance(mapping, cst.Dict | cst.DictComp):
            return True
        if not isinstance(mapping, cst.Call):
            return False
        if self._context.run_by(mapping):
            functions = self._context.called(mapping)
            returned = [value for f in functions for value in self.bindings.returns.get(id(f), [])]
            return bool(returned) and all(
                isinstance(value, cst.Dict | cst.DictComp) for value in returned
            )
        return last_part(mapping.func) in v.GIVES_KEYS

    def _is_number_returned(self, binding: Assignment) -> bool:
        """Whether a name is a host number in each tuple that functions of the script return.

        A number read from a tensor does not count.
        """
        elements = self.returned_elements(binding)
        if elements or not isinstance(binding.value, cst.Call):
            return self._are_numbers(elements)
        functions = self._context.run_by(binding.value)  # of another file
        return bool(functions) and all(binding.index in function.sizes for function in functions)

    def _are_numbers(self, elements: Collection[cst.BaseExpression]) -> bool:
        """Whether all elements that functions return are host numbers, and none is read from a tensor."""
        return bool(elements) and all(
            self.kind(element) is Kind.HOST and not self._is_read_from_tensor(element)
            for element in elements
        )

    def _is_number_taken(self, node: cst.Subscript) -> bool:
        """Whether `pair[1]` or `out["count"]` is a host number in what functions of the script return.

        The tuple may be an element of a list: `[pair[1] for pair in [counted(x) for x in inputs]]`. Nothing
        in the script may put another value at the key of a dictionary.
        """
        index = node.slice[0].slice
        if len(node.slice) != 1 or not isinstance(index, cst.Index):
            return False
        key = string_value(index.value)
        if key is not None:
            of = node.value if isinstance(node.value, cst.Name) else None
            put = self.bindings.put_into(of) if of is not None else ()
            if self.bindings.is_put(key) or any(part.key is None for part in put):
                return False
            taken = [self._returned_as(call, key) for call in self._calls_behind(node.value)]
        elif isinstance(index.value, cst.Integer):
            place = int(index.value.value)
            taken = [self._returned_at(call, place) for call in self._calls_behind(node.value)]
        else:
            return False
        return bool(taken) and all(self._are_numbers(elements) for elements in taken)

    def _returned_as(self, call: cst.Call, key: str) -> list[cst.BaseExpression]:
        """Return what is at `key` of each dictionary that `call` returns, if all are written out."""
        functions = self._context.called(call)
        returned = [value for f in functions for value in self.bindings.returns.get(id(f), [])]
        elements: list[cst.BaseExpression] = []
        for value in returned:
            parts = value.elements if isinstance(value, cst.Dict) else ()
            named = [
                part.value
                for part in parts
                if isinstance(part, cst.DictElement) and string_value(part.key) == key
            ]
            if len(named) != 1 or not all(isinstance(part, cst.DictElement) for part in parts):
                return []
            elements += named
        return elements

    def _calls_behind(self, node: cst.CSTNode | None) -> list[cst.Call]:
        """Return the calls whose result `node` is; empty if it may be anything else."""
        if isinstance(node, cst.Call):
            return [node]
        if not isinstance(node, cst.Name) or self.bindings.parameter(node) is not None:
            return []
        calls: list[cst.Call] = []
        for assignment in self.bindings.reaching(node):
            values: list[cst.BaseExpression | None] = []
            if assignment.how is How.VALUE:
                values = [assignment.value]
            elif assignment.how is How.ELEMENT and assignment.index is None:
                values = list(self._listed(assignment.value))
            if not values or not all(isinstance(value, cst.Call) for value in values):
                return []
            calls += [cst.ensure_type(value, cst.Call) for value in values]
        return calls

    def _listed(self, node: cst.BaseExpression | None) -> Iterator[cst.BaseExpression | None]:
        """Yield the elements of a list that is written out; None for one that is not plain to see."""
        match node:
            case cst.ListComp(elt=element):
                yield element
            case cst.List(elements=elements) | cst.Tuple(elements=elements):
                yield from (element.value for element in elements)
            case cst.Name() if not self.bindings.put_into(node):
                for assignment in self.bindings.reaching(node):
                    if assignment.how is How.VALUE and not isinstance(assignment.value, cst.Name):
                        yield from self._listed(assignment.value)
                    else:
                        yield None
            case _:
                yield None

    def returned_elements(self, binding: Assignment) -> list[cst.BaseExpression]:
        """Return the element that a name gets of each tuple that functions of the script return.

        Empty if the name gets no such element, or one of the functions returns something else.
        """
        call = binding.value
        if binding.index is None or not isinstance(call, cst.Call):
            return []
        return self._returned_at(call, binding.index, binding.count)

    def _returned_at(
        self, call: cst.Call, index: int, count: int | None = None
    ) -> list[cst.BaseExpression]:
        """Return element number `index` of each tuple that `call` returns, if all are plain tuples.

        Args:
            call: the call of functions of the script.
            index: of the element, from 0.
            count: the length of the tuples; None for any that is long enough.
        """
        functions = self._context.called(call)
        returned = [value for f in functions for value in self.bindings.returns.get(id(f), [])]
        if all(
            isinstance(value, cst.Tuple)
            and (len(value.elements) == count if count is not None else index < len(value.elements))
            and all(isinstance(element, cst.Element) for element in value.elements)
            for value in returned
        ):
            return [cst.ensure_type(value, cst.Tuple).elements[index].value for value in returned]
        return []

    def _is_read_from_tensor(self, value: cst.CSTNode, depth: int = 3) -> bool:
        """Whether `value` is computed with `.item()` or a similar read."""
        if any(last_part(call.func) in v.READS for call in self._context.below(value, cst.Call)):
            return True
        values = (
            assignment.value
            for name in (nodes_of(value, cst.Name) if depth else ())
            for assignment in self.bindings.reaching(name)
            if assignment.how is How.VALUE
        )
        return any(
            value is not None and self._is_read_from_tensor(value, depth - 1) for value in values
        )

    def _is_of_parameters(self, value: cst.CSTNode | None) -> bool:
        """Whether `value` is `group["params"]` in the class of an optimizer."""
        if not isinstance(value, cst.Subscript) or len(value.slice) != 1:
            return False
        index = value.slice[0].slice
        if not isinstance(index, cst.Index) or string_value(index.value) != "params":
            return False
        return updates(self._context.class_around(value), self._context)

    def _may_count(self, node: cst.Name, binding: Assignment) -> bool:
        """Whether a loop over what a method yields counts with `node`: `for step, x in log.watch(loader)`."""
        target = binding.loop.target if binding.loop is not None else None
        call = binding.value
        return (
            isinstance(target, cst.Tuple)
            and code(target.elements[0].value) == node.value
            and isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and v.COUNTER.fullmatch(node.value) is not None
        )

    def _yields_batches(self, binding: Assignment) -> bool:
        """Whether the iterable of a loop yields batches: the loop trains, or the name says so."""
        steps, loop = self._context.calls.step_loops, binding.loop
        if loop is not None and self._context.position(loop).line in steps:
            return True
        return binding.value is not None and bool(v.LOADER.search(_last_name(binding.value)))

    def _of_parameter(self, function: cst.FunctionDef, parameter: cst.Param) -> Kind:
        name = parameter.name.value
        if self._is_self(function, parameter):
            return Kind.UNKNOWN
        forward = is_forward(function, self._context) or self._is_given_gradients(function, name)
        forward = forward or _is_given_weight(function, self._context)
        forward = forward or _is_given_by_hook(function, parameter, self._context)
        forward = forward and (id(function), name) not in self._flags
        if parameter.annotation is not None:
            annotation = code(parameter.annotation.annotation).strip("'\"")
            if "Tensor" in annotation and not annotation.startswith(("Callable", "np.")):
                placed = forward or Kind.ON_DEVICE in self._handed(function, name)
                return Kind.ON_DEVICE if placed else Kind.TENSOR
            if v.OPEN_MAPPING.fullmatch(annotation):
                kinds = self._handed(function, name) | self._given_by_callers(function, name)
                return joined(kinds) if kinds & PLACED else Kind.HOST
            if v.PLAIN_ANNOTATION.search(annotation):
                return Kind.HOST
            return Kind.MODEL if annotation.endswith("Module") else Kind.UNKNOWN
        if isinstance(parameter.default, cst.BaseNumber | cst.BaseString):
            return Kind.HOST
        if isinstance(parameter.default, cst.Name) and parameter.default.value in ("True", "False"):
            return Kind.HOST
        used = self.bindings.used.get((id(function), name), set())
        if forward and (used & v.IN_A_FORWARD):
            return Kind.ON_DEVICE
        if self.is_given_numbers(function, name):
            return Kind.HOST
        if forward and parameter.default is None and not v.NUMBER.search(name):
            return Kind.ON_DEVICE
        kinds = self._handed(function, name)
        if kinds & PLACED:
            return joined(kinds)
        return Kind.TENSOR if used & v.ONLY_TENSORS else Kind.UNKNOWN

    @cached_property
    def _flags(self) -> frozenset[tuple[int, str]]:
        """Functions, by id, and names that Python compares with True or False: `if augment == True:`."""
        flags: set[tuple[int, str]] = set()
        for comparison in self._context.all_of(cst.Comparison):
            compared = [target.comparator for target in comparison.comparisons]
            named = isinstance(comparison.left, cst.Name) and len(compared) == 1
            if named and code(compared[0]) in ("True", "False"):
                below: cst.CSTNode = comparison
                above = self._context.parent(below)
                while isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
                    below, above = above, self._context.parent(above)
                if isinstance(above, cst.If | cst.IfExp | cst.While) and above.test is below:
                    function = self._context.function_around(comparison)
                    flags.add((id(function), code(comparison.left)))
        return frozenset(flags)

    def _handed(self, function: cst.FunctionDef, name: str) -> set[Kind]:
        """Return the kind of a parameter by the calls of this file, and by the steps of others."""
        kinds = {self.kind(value) for value in self.bindings.passed(function, name)}
        entry = self._entries.get(self._context.position(function.name).line)
        kinds.update(entry.kinds(function, name) if entry is not None else ())
        return kinds

    def is_handed_host(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether all known calls of `function` pass a host value for the parameter `name`."""
        return self._handed(function, name) == {Kind.HOST}

    def _given_by_callers(self, function: cst.FunctionDef, name: str) -> set[Kind]:
        """Return the calls of `function` in this file; for a `forward`, also those of the object."""
        names = [parameter.name.value for parameter in function.params.params]
        is_method = names[:1] == ["self"]
        kinds: set[Kind] = set()
        for call, before in self.bindings.callers(function):
            bound = bind(call, names[is_method + before :])
            if bound is not None and name in bound:
                kinds.add(self.kind(bound[name].value))
        return kinds

    def _is_self(self, function: cst.FunctionDef, parameter: cst.Param) -> bool:
        """Whether `parameter` is `self` of a method, in a class other than a tensor's."""
        around = self._context.class_around(function)
        if around is None or all(statement is not function for statement in around.body.body):
            return False
        if not function.params.params or function.params.params[0] is not parameter:
            return False
        if any(
            last_part(decorator.decorator) == "staticmethod" for decorator in function.decorators
        ):
            return False
        bases = (self._context.qualified_name(base.value) for base in around.bases)
        return not any((base or "").endswith(("Tensor", "Parameter")) for base in bases)

    def is_given_numbers(self, function: cst.FunctionDef, name: str, depth: int = 4) -> bool:
        """Whether every known call of `function` passes a Python number for the parameter `name`."""
        if depth <= 0:
            return False
        names = [parameter.name.value for parameter in function.params.params]
        is_method = names[:1] == ["self"]
        passed = []
        for call, before in self.bindings.callers(function):
            bound = bind(call, names[is_method + before :])
            if bound is None:
                return False
            if name in bound:
                passed.append(self.is_number(bound[name].value, depth))
        entry = self._entries.get(self._context.position(function.name).line)
        if entry is not None:
            passed += entry.numbers(function, name)
        return bool(passed) and all(passed)

    def is_number(self, node: cst.CSTNode | None, depth: int = 4) -> bool:
        """Whether `node` is plainly a Python number: a literal, a size, a counter, or computed from these."""
        if type(node) is cst.Name:
            if node.value in ("True", "False"):
                return True
            return depth > 0 and self._is_number_name(node, depth - 1)
        if isinstance(node, cst.BaseNumber):
            return True
        if isinstance(node, cst.UnaryOperation):
            return self.is_number(node.expression, depth)
        if isinstance(node, cst.BinaryOperation):
            return self.is_number(node.left, depth) and self.is_number(node.right, depth)
        if isinstance(node, cst.IfExp):
            return self.is_number(node.body, depth) and self.is_number(node.orelse, depth)
        if isinstance(node, cst.Attribute):
            if is_attribute_of_self(node) and depth:
                assigned = self.assigned(node)
                return bool(assigned) and all(self.is_number(v, depth - 1) for v in assigned)
            return node.attr.value == "ndim"
        if isinstance(node, cst.Subscript):
            return _is_shape(node.value)
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Name):
                # `int` of a tensor gives a number too, but that read is reported at its own location.
                return node.func.value in v.MAKES_NUMBER and not self._context.bindings(node.func)
            return last_part(node.func) in ("dim", "numel") or (
                last_part(node.func) == "size" and bool(node.args)
            )
        return False

    def _is_number_name(self, node: cst.Name, depth: int) -> bool:
        parameter = self.bindings.parameter(node)
        if parameter is not None and len(self._context.bindings(node)) == 1:
            return self.is_given_numbers(parameter[0], parameter[1].name.value, depth)
        reaching = self.bindings.reaching(node)
        return bool(reaching) and all(
            assignment.how is How.COUNTER
            or (assignment.how is How.VALUE and self.is_number(assignment.value, depth))
            or (
                assignment.how is How.ADDED
                and self.is_number(assignment.value, depth)
                and self._is_number_before(assignment, depth)
            )
            or (assignment.how is How.PART and self._is_part_number(assignment, depth))
            for assignment in reaching
        )

    def _is_number_before(self, assignment: Assignment, depth: int) -> bool:
        """Whether the name in `name += value` is a number before, without other additions."""
        if assignment.before is None or depth <= 0:
            return False
        earlier = [
            other for other in self.bindings.given(assignment.before) if other.how is not How.ADDED
        ]
        parameter = self.bindings.parameter(assignment.before)
        if parameter is not None:
            return self.is_given_numbers(parameter[0], parameter[1].name.value, depth - 1)
        return bool(earlier) and all(
            other.how is How.COUNTER
            or (other.how is How.VALUE and self.is_number(other.value, depth - 1))
            for other in earlier
        )

    def _is_part_number(self, assignment: Assignment, depth: int) -> bool:
        """Whether a name of `h, w = x.shape[-2:]`, or of `h, w = h // 2, w // 2`, is a number."""
        value = assignment.value
        if isinstance(value, cst.Tuple | cst.List):
            return all(self.is_number(element.value, depth) for element in value.elements)
        return _is_shape(value.value if isinstance(value, cst.Subscript) else value)

    def _is_given_gradients(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether `name` is a gradient that the backward pass of a torch.autograd.Function gets."""
        around = self._context.class_around(function)
        if function.name.value != "backward" or around is None:
            return False
        bases = (self._context.qualified_name(base.value) for base in around.bases)
        first = function.params.params[:1]
        of_context = any(parameter.name.value == name for parameter in first)
        return not of_context and not v.AUTOGRAD_FUNCTIONS.isdisjoint(bases)

    def _of_call(self, call: cst.Call) -> Kind:
        if names_cuda(call):
            return Kind.CUDA
        named = self._device_of_call(call)
        if named is not None:
            return named
        name = self._context.named(call.func)
        if name is not None:
            return self._of_function(name, call)
        if isinstance(call.func, cst.Name):
            return self._of_plain_call(call.func.value, call)
        if isinstance(call.func, cst.Attribute):
            callee = self._callee(call, call.func.attr.value)
            if callee is not None:
                return self._returned(callee)
            return self._of_method(call.func, call)
        return Kind.ON_DEVICE if self.kind(call.func) is Kind.MODEL else Kind.UNKNOWN

    def _device_of_call(self, call: cst.Call) -> Kind | None:
        """Return the device that `call` asks torch, the environment or Python for."""
        name = self._context.qualified_name(call.func) or dotted(call.func)
        if name in DEVICE or name == "str":
            first = keyword(call, "type") or (call.args[0] if call.args else None)
            literal = first is not None and isinstance(first.value, cst.Integer)
            kind = Kind.INDEX if literal else self.device(first.value if first else None)
            return Kind.CUDA if kind is Kind.INDEX and name in DEVICE else _or_none(kind)
        if name in ACCELERATOR:
            return Kind.CUDA
        if name in XLA_DEVICES:
            return Kind.XLA
        if name in CURRENT or self._ranks.is_rank(call) or self._asks_tensor(call):
            return Kind.INDEX
        first_value = call.args[0].value if call.args else None
        bounded = [arg.value for arg in call.args] if name in BOUNDS else []
        if any(self.device(value) is Kind.INDEX for value in bounded):
            return Kind.INDEX
        asks = name in ("os.getenv", "os.environ.get")
        return Kind.INDEX if asks and string_value(first_value) in v.RANK_VARIABLES else None

    def _asks_tensor(self, call: cst.Call) -> bool:
        """Whether `call` is `x.get_device()` of a tensor."""
        func = call.func
        named = isinstance(func, cst.Attribute) and func.attr.value == "get_device"
        return (
            named and not call.args and self.is_tensor(cst.ensure_type(func, cst.Attribute).value)
        )

    def _of_plain_call(self, name: str, call: cst.Call) -> Kind:
        callee = self._callee(call, name)
        if callee is not None:
            chosen = self._chosen(callee, call)
            return self._returned(callee) if chosen is None else chosen
        if name == "enumerate" and call.args and not self._context.bindings(call.func):
            return self._as_loader(call)
        if name in self.bindings.classes:
            bases = [base.value for base in self.bindings.classes[name].bases]
            named = [self._context.qualified_name(base) or code(base) for base in bases]
            is_module = any(v.MODULE_BASE.match(base) for base in named)
            return Kind.MODEL if is_module else Kind.UNKNOWN
        if not self._context.bindings(call.func):
            if name == "dict":
                return held(self.kind(arg.value) for arg in call.args)
            if name in v.HOST_BUILTINS:
                return Kind.HOST
            if name == "filter":
                return held([self.kind(call.args[1].value if len(call.args) == 2 else None)])
            if name in v.FIRST_ARGUMENT:
                return held([self.kind(call.args[0].value if call.args else None)])
        if self.kind(call.func) is Kind.MODEL:
            kinds = {self.kind(arg.value) for arg in call.args}
            return Kind.ON_DEVICE if kinds - {Kind.HOST} - DEVICES else Kind.UNKNOWN
        return Kind.UNKNOWN

    def _callee(self, call: cst.Call, name: str) -> cst.FunctionDef | None:
        """Return the function or method `name` that is called; None for a class or an object."""
        return next(
            (function for function in self._context.called(call) if function.name.value == name),
            None,
        )

    def _of_function(self, name: str, call: cst.Call) -> Kind:
        """Return the kind of an imported function's result."""
        root, _, _ = name.partition(".")
        last = name.rpartition(".")[2]
        if v.HANDING_ON.fullmatch(name):
            return joined(self.kind(arg.value) for arg in call.args)
        if root in v.HOST_ROOTS:  # of functools: a function whose result is unknown
            return Kind.UNKNOWN if root == "functools" else Kind.HOST
        if v.MAKES_MODEL.match(name):
            return Kind.MODEL
        if name == "shims.on_host":
            return Kind.HOST
        if name in DEVICE_LOADERS:
            return Kind.DEVICE_LOADER
        if name in MADE_LOADERS:
            return Kind.LOADER
        if name in v.EINOPS:
            return held([self.kind(call.args[0].value if call.args else None)])
        if root != "torch":
            handed = self._handed_back(call)
            return self._as_loader(call) if handed is None else handed  # tqdm(loader)
        if v.TORCH_OPTIMIZER.fullmatch(name):
            return Kind.OPTIMIZER
        kind = self.made(call)
        if kind is not None:
            return kind
        if last == "Parameter":
            return Kind.ON_DEVICE
        if last in v.PLAIN or name.startswith(v.PLAIN_MODULES):
            return Kind.HOST
        if name.startswith("torch.nn.utils.rnn"):
            return held(self.kind(arg.value) for arg in call.args[:1])
        if name.startswith(("torch.nn.utils.", "torch.nn.init.")) and "clip_grad" not in name:
            return Kind.UNKNOWN
        if "clip_grad_norm" in name:
            return Kind.ON_DEVICE
        kinds = {self.kind(arg.value) for arg in call.args}
        placed = keyword(call, "device") is not None or not kinds & TENSORS
        if last in v.MADE_OF_TENSORS and placed:
            return self.by_itself(call) or Kind.HOST
        if kinds == {Kind.HOST} and _of_parts(call):
            return Kind.HOST  # torch.cat([times, torch.zeros(1)])
        if kinds & TENSORS:
            return joined(kinds & TENSORS)
        # Functions that take a tensor and return one, whatever made the argument.
        tells = last in v.ASK_TENSORS | v.EXTREMES
        return Kind.TENSOR if tells and Kind.UNKNOWN in kinds else Kind.UNKNOWN

    def _of_method(self, func: cst.Attribute, call: cst.Call) -> Kind:
        method = func.attr.value
        base = held([self.kind(func.value)])
        if base is Kind.MODEL:
            if method in v.MODULE_TENSORS or method == "state_dict":
                return Kind.ON_DEVICE
            if method in v.MODULE_METHODS or method in ("items", "values"):
                return Kind.MODEL
        if method == "generate" and self.generates(call):
            return Kind.ON_DEVICE
        if base is Kind.OPTIMIZER:
            return Kind.ON_DEVICE if method == "state_dict" else Kind.HOST
        if base is Kind.DEVICE_LOADER:
            return base  # para_loader.per_device_loader(device)
        if method in ("to", "cuda"):
            return self._moved(method, base, call)
        if is_host_method(call):
            return Kind.HOST
        if method == "scale":  # of a gradient scaler, whatever its name: the loss stays where it is
            scaled = held(self.kind(arg.value) for arg in call.args)
            if scaled in TENSORS or v.SCALER.fullmatch(_last_name(func.value)):
                return scaled
        if base in TENSORS or base is Kind.HOST:
            return base
        if self.kind(func) is Kind.MODEL:  # self.layer(x), model.module(x)
            return Kind.ON_DEVICE
        if method in v.OVER_REPLICAS and call.args and self.kind(call.args[0].value) in TENSORS:
            return self.kind(call.args[0].value)  # accelerator.gather(loss)
        return Kind.UNKNOWN

    def _handed_back(self, call: cst.Call) -> Kind | None:
        """Return the kind of a tensor that a function of another file is given and hands back, or None."""
        kinds = set()
        for definition in self._context.run_by(call):
            for index, arg in enumerate(call.args):
                key = arg.keyword.value if arg.keyword is not None else index + definition.bound
                if not arg.star and key in definition.handed_back:
                    kinds.add(self.kind(arg.value))
        return joined(kinds) if kinds and kinds <= TENSORS else None

    def _as_loader(self, call: cst.Call) -> Kind:
        """Return the kind of the result of `call`, which is unknown except that it may wrap a loader."""
        kinds = {self.kind(arg.value) for arg in call.args} & LOADERS
        return joined(kinds) if kinds else Kind.UNKNOWN

    def _moved(self, method: str, base: Kind, call: cst.Call) -> Kind:
        if method == "cuda":
            return Kind.ON_DEVICE
        first = keyword(call, "device") or (call.args[0] if call.args else None)
        if first is None:
            return base
        text = code(first.value)
        if text.startswith("cpu") or self.is_surely_cpu(first.value):
            return Kind.HOST
        says_device = any(word in text for word in ("dev", "cuda", "xla", "gpu"))
        return Kind.ON_DEVICE if says_device or self.device(first.value) in ACCELERATORS else base

    def _chosen(self, function: cst.FunctionDef, call: cst.Call) -> Kind | None:
        """Return the result of `call` to a function that returns one of its parameters, or None.

        Example: `default(width, 0)`; the arguments of other calls do not affect this one.
        """
        names = [parameter.name.value for parameter in function.params.params]
        values = list(self.bindings.returns.get(id(function), []))
        bound = bind(call, names)
        if not values or not names or bound is None:
            return None
        passed: list[cst.BaseExpression | None] = []
        while values:
            value = values.pop()
            if isinstance(value, cst.IfExp):
                values += value.body, value.orelse
                continue
            calls = isinstance(value, cst.Call) and not value.args
            name = value.func if isinstance(value, cst.Call) and calls else value
            if not isinstance(name, cst.Name) or name.value not in names:
                return None
            if len(self._context.bindings(name)) != 1:
                return None
            arg = bound.get(name.value)
            argument = None if arg is None else arg.value
            if calls:  # `d() if isfunction(d) else d`
                if isinstance(argument, cst.Lambda):
                    passed.append(argument.body)
            elif not isinstance(argument, cst.Lambda):
                passed.append(argument)
        return joined(self.kind(value) for value in passed) if passed else None

    def _returned(self, function: cst.FunctionDef) -> Kind:
        values = self.bindings.returns.get(id(function), [])
        return joined(self.kind(value) for value in values)


def _parts_of(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield `value` and the value that it numbers or indexes: `x` of `enumerate(x)` and `x[0]`."""
    yield value
    if isinstance(value, cst.Call):
        yield from (arg.value for arg in value.args)
    elif isinstance(value, cst.Subscript):
        yield value.value


def asks_no_value(comparison: cst.Comparison) -> bool:
    """Whether the result is a bool without reading a tensor: `x is y`, `x != None`, `key == "meta"`."""
    return any(
        isinstance(target.operator, cst.Is | cst.IsNot | cst.In | cst.NotIn)
        or isinstance(target.comparator, cst.BaseString)
        or (isinstance(target.comparator, cst.Name) and target.comparator.value == "None")
        for target in comparison.comparisons
    )


def _of_parts(call: cst.Call) -> bool:
    """Whether `call` joins the tensors in its argument; the later contents of a list are unknown."""
    first = call.args[0].value if call.args else None
    parts = first.elements if isinstance(first, cst.List | cst.Tuple) else ()
    return bool(parts) and all(isinstance(part.value, cst.Name | cst.Call) for part in parts)


def _is_empty(value: cst.BaseExpression | None) -> bool:
    """Whether `value` is an empty container: `{}`, `[]`, `defaultdict(list)`."""
    if isinstance(value, cst.Dict | cst.List):
        return not value.elements
    if not isinstance(value, cst.Call):
        return False
    last = last_part(value.func)
    return last == "defaultdict" or (last in EMPTIES and not value.args)


def _of_plain(_: Values, __: cst.CSTNode) -> Kind:
    return Kind.HOST


_RULES: dict[type[cst.CSTNode], Callable[[Values, Any], Kind]] = {
    cst.Attribute: Values._of_attribute,
    cst.BinaryOperation: Values._of_binary,
    cst.BooleanOperation: Values._of_boolean,
    cst.Call: Values._of_call,
    cst.Comparison: Values._of_comparison,
    cst.ConcatenatedString: Values._of_string,
    cst.Dict: Values._of_elements,
    cst.DictComp: Values._of_dict_comprehension,
    cst.Float: _of_plain,
    cst.FormattedString: Values._of_formatted,
    cst.GeneratorExp: Values._of_comprehension,
    cst.IfExp: Values._of_choice,
    cst.Imaginary: _of_plain,
    cst.Integer: _of_plain,
    cst.Lambda: _of_plain,
    cst.List: Values._of_elements,
    cst.ListComp: Values._of_comprehension,
    cst.Name: Values._of_name,
    cst.Set: Values._of_elements,
    cst.SetComp: Values._of_comprehension,
    cst.SimpleString: Values._of_string,
    cst.Subscript: Values._of_subscript,
    cst.Tuple: Values._of_elements,
    cst.UnaryOperation: Values._of_unary,
}


def names_cuda(node: cst.CSTNode | None) -> bool:
    """Whether `node` spells a CUDA device: 'cuda', 'cuda:0', f'cuda:{i}', 'cuda:%d' % i."""
    if type(node) is cst.Name or type(node) is cst.Attribute:
        return False
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


def type_with_index(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the device type in `kind + ":" + str(rank)` and similar, as the analysis of calls sees it."""
    if type(node) is not cst.BinaryOperation and type(node) is not cst.Call:
        return None
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        if _begins_with_colon(node.right):
            return node.left
        return type_with_index(node.left)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        filled, text = node.right, string_value(node.left)
        parts = (
            [element.value for element in filled.elements] if isinstance(filled, cst.Tuple) else []
        )
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        text = string_value(node.func.value) if node.func.attr.value == "format" else None
        parts = [arg.value for arg in node.args]
    else:
        return None
    return parts[0] if len(parts) == 2 and WITH_INDEX.fullmatch(text or "") else None


def _type_before_colon(node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """Return `device` of `device.split(":")`, and of other methods that split a text."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or not node.args:
        return None
    parts = node.func.attr.value in PARTS_TEXT and string_value(node.args[0].value) == ":"
    return node.func.value if parts else None


def _begins_with_colon(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.FormattedString) and node.parts:
        first = node.parts[0]
        return isinstance(first, cst.FormattedStringText) and first.value.startswith(":")
    return (string_value(node) or "").startswith(":")


def is_forward(function: cst.CSTNode | None, context: Parsed) -> bool:
    """Whether `function` is the forward of a module, or the `__call__` of a loss that is no module."""
    if not isinstance(function, cst.FunctionDef):
        return False
    around = context.class_around(function)
    if around is not None and function.name.value == "__call__":
        return v.LOSS_CLASS.search(around.name.value) is not None
    if function.name.value not in FORWARDS or around is None or not around.bases:
        return False
    # A data pipeline or an autograd.Function has a `forward` too, but is no module. A cache of a sequence's
    # past is used to generate.
    if v.CACHE.fullmatch(around.name.value):
        return False
    names = [context.qualified_name(base.value) or "" for base in around.bases]
    return not any("autograd" in name or "Transform" in name for name in names)


def is_hook(function: cst.FunctionDef, context: Parsed) -> bool:
    """Whether a function is registered to run in the forward or backward passes of a module."""
    return (function.name.value, _is_method(function, context)) in _hooks_of(context)


def _is_method(function: cst.FunctionDef, context: Parsed) -> bool:
    return isinstance(context.parent(context.parent(function)), cst.ClassDef)


@lru_cache(maxsize=2)  # the last ones: rules and hazards inspect one script after another
def _hooks_of(context: Parsed) -> frozenset[tuple[str, bool]]:
    """Return the names of the functions that a script registers as hooks, and whether they are methods."""
    if "_hook(" not in context.source.text:
        return frozenset()
    return frozenset(
        (last_part(arg.value), isinstance(arg.value, cst.Attribute))
        for call in context.all_of(cst.Call)
        if HOOKS.fullmatch(last_part(call.func))
        for arg in call.args[:1]
    )


def _is_given_by_hook(function: cst.FunctionDef, parameter: cst.Param, context: Parsed) -> bool:
    """Whether `parameter` is given what a module gets or returns: not the module, which comes first."""
    params = function.params.params[_is_method(function, context) :]
    return any(param is parameter for param in params[1:]) and is_hook(function, context)


def _is_given_weight(function: cst.FunctionDef, context: Parsed) -> bool:
    """Whether `function` is a parametrization's `right_inverse`, which gets the weight of a module."""
    around = context.class_around(function) if function.name.value == "right_inverse" else None
    if around is None or not isinstance(around.body, cst.IndentedBlock):
        return False
    return any(is_forward(method, context) for method in around.body.body)


def is_update(function: cst.CSTNode | None, context: Parsed) -> bool:
    """Whether `function` is the `step` of an optimizer's class."""
    if not isinstance(function, cst.FunctionDef) or function.name.value != "step":
        return False
    return updates(context.class_around(function), context)


def updates(around: cst.ClassDef | None, context: Parsed) -> bool:
    """Whether a class of the script derives from a torch optimizer."""
    seen: set[int] = set()
    waiting = [around]
    while waiting:
        checked = waiting.pop()
        if checked is None or id(checked) in seen:
            continue
        seen.add(id(checked))
        for base in checked.bases:
            if (context.qualified_name(base.value) or "").startswith("torch.optim."):
                return True
            if isinstance(base.value, cst.Name):
                bound = (binding.node for binding in context.bindings(base.value))
                waiting += [node for node in bound if isinstance(node, cst.ClassDef)]
    return False


def is_host_method(call: cst.Call) -> bool:
    """Whether `call` is a method whose result is on the host: `x.item()`, `x.type()`, not `x.type(y)`."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in v.TO_HOST:
        return False
    return call.func.attr.value != "type" or not call.args


def place_of_load(call: cst.Call) -> cst.BaseExpression | None:
    """Return the target device of `call`, if it is `torch.load(path, map_location=…)` or similar."""
    place = keyword(call, "map_location")
    return place.value if place is not None and v.LOADS.search(last_part(call.func)) else None


def device_argument(call: cst.Call) -> cst.Arg | None:
    """Return the argument of `x.to(…)` that may be a device."""
    named = keyword(call, "device")
    if named is not None:
        return named
    first = call.args[0] if call.args else None
    return first if first is not None and first.keyword is None and not first.star else None


def _is_shape(node: cst.CSTNode | None) -> bool:
    """Whether `node` is `x.shape` or `x.size()`."""
    if isinstance(node, cst.Call):
        return last_part(node.func) == "size" and not node.args
    return isinstance(node, cst.Attribute) and node.attr.value == "shape"


def is_option(call: cst.Call) -> bool:
    """Whether `call` declares a command-line option: `parser.add_argument('--device', …)`."""
    is_add = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
    return is_add and bool(option_names(call))


def option_names(call: cst.Call) -> list[str]:
    """Return the attributes that may hold the value of a declared option."""
    flags = [string_value(arg.value) for arg in call.args if arg.keyword is None]
    return [flag.lstrip("-").replace("-", "_") for flag in flags if flag]


def is_device_count(node: cst.CSTNode | None, context: Parsed) -> bool:
    """Whether `node` counts the GPUs of this host."""
    return isinstance(node, cst.Call) and context.qualified_name(node.func) in COUNTS


def _or_none(kind: Kind) -> Kind | None:
    return None if kind is Kind.UNKNOWN else kind


def _last_name(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Call | cst.Subscript):
        node = node.func if isinstance(node, cst.Call) else node.value
    return last_part(node)
