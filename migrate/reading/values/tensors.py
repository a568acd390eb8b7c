"""Which expressions are plausibly tensors on the device.

Nothing is executed and no types are known: names are followed through the assignments above them, calls
by what torch says they return, parameters by what is passed and by how they are used. What is not
plausible is unknown, and hazards that need a tensor say nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import libcst as cst

from migrate.reading.names.bindings import Bindings, Given, How
from migrate.reading.names.names import Names
from migrate.reading.project.entries import Entry, Kind
from migrate.reading.script import Script
from migrate.reading.steps.in_step import Steps
from migrate.reading.tree.tree import code, is_attribute_of_self, keyword, last_part, string_value
from migrate.reading.values import words as v
from migrate.reading.values.device_values import is_host_method
from migrate.reading.values.devices import is_accelerator

ORDER = (Kind.DEVICE, Kind.TENSOR, Kind.MODEL, Kind.UNKNOWN, Kind.HOST)
TENSORS = (Kind.DEVICE, Kind.TENSOR)


def _joined(kinds: Iterable[Kind]) -> Kind:
    return min(kinds, key=ORDER.index, default=Kind.HOST)


class Tensors:
    """The kinds of the expressions of one script, worked out when asked for.

    Args:
        context, bindings, steps, names: the script.
        entries: the functions, by the lines of their `def`, that steps of other files run.
    """

    def __init__(
        self,
        context: Script,
        bindings: Bindings,
        steps: Steps,
        names: Names,
        entries: Mapping[int, Entry],
    ) -> None:
        self._entries = entries
        self._names = names
        self._context = context
        self._bindings = bindings
        self._steps = steps
        self._known: dict[int, Kind] = {}
        self._pending: set[int] = set()

    def kind(self, node: cst.CSTNode | None) -> Kind:
        """Return what the expression `node` plausibly is."""
        if node is None:
            return Kind.HOST
        key = id(node)
        if key in self._known:
            return self._known[key]
        if key in self._pending or len(self._pending) > 60:
            return Kind.UNKNOWN  # a value that depends on itself, or on too much
        self._pending.add(key)
        try:
            found = self._of(node)
        finally:
            self._pending.discard(key)
        self._known[key] = found
        return found

    def on_device(self, node: cst.CSTNode | None) -> bool:
        """Whether `node` is plausibly a tensor on the device."""
        return self.kind(node) is Kind.DEVICE

    def is_tensor(self, node: cst.CSTNode | None) -> bool:
        """Whether `node` is plausibly a tensor, wherever it lies."""
        return self.kind(node) in TENSORS

    def is_boolean(self, node: cst.CSTNode, depth: int = 0) -> bool:
        """Whether `node` is plausibly a tensor of truth values: a mask."""
        if depth > 5 or not self.is_tensor(node):
            return False
        if isinstance(node, cst.Comparison):
            return True
        if isinstance(node, cst.UnaryOperation):
            return isinstance(node.operator, cst.BitInvert)
        if isinstance(node, cst.BinaryOperation):
            both = isinstance(node.operator, cst.BitAnd | cst.BitOr)
            return both and self.is_boolean(node.left, depth + 1)
        if isinstance(node, cst.Call):
            method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
            return method in v.BOOLEAN_METHODS
        if isinstance(node, cst.Name):
            binding = self._bindings.nearest(node)
            value = binding.value if binding is not None and binding.how is How.VALUE else None
            if value is not None and self.is_boolean(value, depth + 1):
                return True
            if v.MASK.search(node.value) is None:
                return False
            parameter = self._bindings.parameter(node) if binding is None else None
            passed = list(self._bindings.passed(parameter[0], node.value)) if parameter else []
            return not passed or any(self.is_boolean(one, depth + 1) for one in passed)
        return False

    def _of(self, node: cst.CSTNode) -> Kind:
        if isinstance(node, cst.Name):
            return self._of_name(node)
        if isinstance(node, cst.Attribute):
            return self._of_attribute(node)
        if isinstance(node, cst.Subscript):
            found = self.kind(node.value)
            return Kind.UNKNOWN if found is Kind.MODEL and not self._is_self(node) else found
        if isinstance(node, cst.Call):
            return self._of_call(node)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.left, cst.BaseString):
                return Kind.HOST  # "%d" % x
            return _joined((self.kind(node.left), self.kind(node.right)))
        if isinstance(node, cst.UnaryOperation):
            not_ = isinstance(node.operator, cst.Not)
            return Kind.HOST if not_ else self.kind(node.expression)
        if isinstance(node, cst.Comparison):
            return self._of_comparison(node)
        if isinstance(node, cst.BooleanOperation):
            return _joined((self.kind(node.left), self.kind(node.right)))
        if isinstance(node, cst.IfExp):
            return _joined((self.kind(node.body), self.kind(node.orelse)))
        if isinstance(node, cst.Tuple | cst.List | cst.Set):
            return _joined(self.kind(element.value) for element in node.elements)
        if isinstance(node, cst.ListComp | cst.GeneratorExp | cst.SetComp):
            return self.kind(node.elt)
        if isinstance(node, cst.Dict):
            return _joined(
                self.kind(e.value) for e in node.elements if isinstance(e, cst.BaseDictElement)
            )
        if isinstance(node, cst.BaseNumber | cst.BaseString | cst.Lambda):
            return Kind.HOST
        return Kind.UNKNOWN

    def _is_self(self, node: cst.Subscript) -> bool:
        return is_attribute_of_self(node.value)  # self.layers[i]

    def _of_comparison(self, node: cst.Comparison) -> Kind:
        for target in node.comparisons:
            if isinstance(target.operator, cst.Is | cst.IsNot | cst.In | cst.NotIn):
                return Kind.HOST
            if isinstance(target.comparator, cst.BaseString):
                return Kind.HOST
        return _joined(
            (self.kind(node.left), *(self.kind(target.comparator) for target in node.comparisons))
        )

    def _of_attribute(self, node: cst.Attribute) -> Kind:
        name = node.attr.value
        if name in v.DESCRIBES:
            return Kind.HOST
        if is_attribute_of_self(node):
            return self._of_self(node)
        if name == "size" and not isinstance(self._context.parent(node), cst.Call):
            return Kind.HOST  # of an array or an image; a tensor is asked with a call
        base = self.kind(node.value)
        if base in TENSORS:
            return Kind.UNKNOWN if v.NUMBER.search(name) else base  # `images.image_sizes`
        if base is Kind.HOST:
            return Kind.HOST
        if base is Kind.MODEL:
            return Kind.MODEL if name == "module" else Kind.UNKNOWN
        return Kind.MODEL if v.MODEL.fullmatch(name) else Kind.UNKNOWN

    def _of_self(self, node: cst.Attribute) -> Kind:
        around = self._context.class_around(node)
        kinds = {
            self.kind(value)
            for target, value in self._context.attributes.get(node.attr.value, ())
            if value is not None
            and is_attribute_of_self(target)
            and self._context.class_around(target) is around
        }
        for kind in ORDER[:3]:
            if kind in kinds:
                return kind
        if kinds == {Kind.HOST}:
            return Kind.HOST
        return Kind.MODEL if v.MODEL.fullmatch(node.attr.value) else Kind.UNKNOWN

    def _of_name(self, node: cst.Name) -> Kind:
        if node.value in ("True", "False", "None"):
            return Kind.HOST
        binding = self._bindings.nearest(node)
        if binding is not None:
            found = self._of_binding(binding)
            if found is not Kind.UNKNOWN:
                return found
        elif (parameter := self._bindings.parameter(node)) is not None:
            found = self._of_parameter(*parameter)
            if found is not Kind.UNKNOWN:
                return found
        elif (name := self._names.of(node)) is not None:
            return Kind.HOST if name.split(".")[0] in v.HOST_ROOTS else Kind.UNKNOWN
        return Kind.MODEL if v.MODEL.fullmatch(node.value) else Kind.UNKNOWN

    def _of_binding(self, binding: Given) -> Kind:
        if binding.how is How.COUNTER:
            return Kind.HOST
        found = self.kind(binding.value)
        if binding.how is How.ELEMENT and found is Kind.UNKNOWN and binding.value is not None:
            in_step_loop = binding.loop is not None and binding.loop in self._steps.loops
            if in_step_loop or v.LOADER.search(_last_name(binding.value)):
                return Kind.TENSOR
        if binding.how is How.ADDED and found is Kind.HOST:
            return Kind.UNKNOWN
        if binding.how in (How.PART, How.ELEMENT) and found is Kind.MODEL:
            return Kind.MODEL if binding.how is How.ELEMENT else Kind.UNKNOWN
        return found

    def _of_parameter(self, function: cst.FunctionDef, parameter: cst.Param) -> Kind:
        name = parameter.name.value
        forward = self._steps.is_forward(function)
        if parameter.annotation is not None:
            annotation = code(parameter.annotation.annotation).strip("'\"")
            if "Tensor" in annotation and not annotation.startswith(("Callable", "np.")):
                return Kind.DEVICE if forward else Kind.TENSOR
            if v.PLAIN_ANNOTATION.search(annotation):
                return Kind.HOST
            return Kind.MODEL if annotation.endswith("Module") else Kind.UNKNOWN
        if isinstance(parameter.default, cst.BaseNumber | cst.BaseString):
            return Kind.HOST
        if isinstance(parameter.default, cst.Name) and parameter.default.value in ("True", "False"):
            return Kind.HOST
        used = self._bindings.used.get((id(function), name), set())
        if forward and (used & v.IN_A_FORWARD):
            return Kind.DEVICE
        if forward and parameter.default is None and not v.NUMBER.search(name):
            return Kind.DEVICE
        kinds = {self.kind(value) for value in self._bindings.passed(function, name)}
        entry = self._entries.get(self._context.position(function.name).line)
        kinds.update(entry.kinds(function, name) if entry is not None else ())
        for kind in ORDER[:3]:
            if kind in kinds:
                return kind
        return Kind.TENSOR if used & v.ONLY_TENSORS else Kind.UNKNOWN

    def _of_call(self, call: cst.Call) -> Kind:
        name = self._names.of(call.func)
        if name is not None:
            return self._of_function(name, call)
        if isinstance(call.func, cst.Name):
            return self._of_plain_call(call.func.value, call)
        if isinstance(call.func, cst.Attribute):
            callee = self._callee(call, call.func.attr.value)
            if callee is not None:
                return self._returned(callee)
            return self._of_method(call.func, call)
        return Kind.DEVICE if self.kind(call.func) is Kind.MODEL else Kind.UNKNOWN

    def _of_plain_call(self, name: str, call: cst.Call) -> Kind:
        callee = self._callee(call, name)
        if callee is not None:
            return self._returned(callee)
        if name in self._bindings.classes:
            bases = [base.value for base in self._bindings.classes[name].bases]
            named = [self._context.qualified_name(base) or code(base) for base in bases]
            is_module = any(one.startswith("torch.nn.") or "Module" in one for one in named)
            return Kind.MODEL if is_module else Kind.UNKNOWN
        if not self._context.bindings(call.func):
            if name in v.HOST_BUILTINS:
                return Kind.HOST
            if name in v.FIRST_ARGUMENT:
                return self.kind(call.args[0].value) if call.args else Kind.HOST
        if self.kind(call.func) is Kind.MODEL:
            kinds = [self.kind(arg.value) for arg in call.args]
            return Kind.DEVICE if set(kinds) - {Kind.HOST} else Kind.UNKNOWN
        return Kind.UNKNOWN

    def _callee(self, call: cst.Call, name: str) -> cst.FunctionDef | None:
        """Return the function or method `name` that is called; None for a class or an object."""
        return next((one for one in self._context.called(call) if one.name.value == name), None)

    def _of_function(self, name: str, call: cst.Call) -> Kind:
        """Return what an imported function returns."""
        root, _, _ = name.partition(".")
        last = name.rpartition(".")[2]
        if root in v.HOST_ROOTS:
            deep = name in ("copy.deepcopy", "copy.copy") and call.args
            return self.kind(call.args[0].value) if deep else Kind.HOST
        if name.startswith(v.MODEL_MAKERS):
            return Kind.MODEL
        if root != "torch":
            return Kind.UNKNOWN
        if last in v.FACTORIES:
            return self._made(name, call)
        if last == "Parameter":
            return Kind.DEVICE
        if name == "torch.compile" or last in ("DistributedDataParallel", "DataParallel"):
            return Kind.MODEL
        if last in v.PLAIN or name.startswith(v.PLAIN_MODULES):
            return Kind.HOST
        if name.startswith("torch.nn.") and last[:1].isupper():
            return Kind.MODEL
        if name.startswith("torch.nn.utils.rnn"):
            return _joined(self.kind(arg.value) for arg in call.args[:1])
        if name.startswith(("torch.nn.utils.", "torch.nn.init.")) and "clip_grad" not in name:
            return Kind.UNKNOWN
        if "clip_grad_norm" in name:
            return Kind.DEVICE
        kinds = {self.kind(arg.value) for arg in call.args}
        return next((kind for kind in ORDER if kind in kinds and kind in TENSORS), Kind.UNKNOWN)

    def _made(self, name: str, call: cst.Call) -> Kind:
        if name.startswith("torch.cuda."):
            return Kind.DEVICE
        device = keyword(call, "device")
        if device is None:
            return Kind.HOST
        return Kind.HOST if string_value(device.value) == "cpu" else Kind.DEVICE

    def _of_method(self, func: cst.Attribute, call: cst.Call) -> Kind:
        method = func.attr.value
        base = self.kind(func.value)
        if base is Kind.MODEL:
            if method in v.MODULE_TENSORS or method == "state_dict":
                return Kind.DEVICE
            if method in v.MODULE_METHODS:
                return Kind.MODEL
        if method in ("to", "cuda"):
            return self._moved(method, base, call)
        if is_host_method(call):
            return Kind.HOST
        if base in TENSORS or base is Kind.HOST:
            return base
        if self.kind(func) is Kind.MODEL:  # self.layer(x), model.module(x)
            return Kind.DEVICE
        return Kind.UNKNOWN

    def _moved(self, method: str, base: Kind, call: cst.Call) -> Kind:
        if method == "cuda":
            return Kind.DEVICE
        first = keyword(call, "device") or (call.args[0] if call.args else None)
        if first is None:
            return base
        text = code(first.value).strip("'\"")
        if text.startswith("cpu") or 'device("cpu")' in text or "device('cpu')" in text:
            return Kind.HOST
        says_device = "dev" in text or "cuda" in text or "xla" in text or "gpu" in text
        return Kind.DEVICE if says_device or is_accelerator(first.value, self._context) else base

    def _returned(self, function: cst.FunctionDef) -> Kind:
        values = self._bindings.returns.get(id(function), [])
        kinds = {self.kind(value) for value in values}
        return next((kind for kind in ORDER if kind in kinds), Kind.HOST)


def _last_name(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Call | cst.Subscript):
        node = node.func if isinstance(node, cst.Call) else node.value
    return last_part(node)
