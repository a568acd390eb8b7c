"""A torch module of the script's own lines: its modules are children, its batch is the input."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from migrate.train.watch.functions import PortedFunction, outputs, run
from migrate.train.watch.values import Held, changed, held_modules, is_data, leaves, names

STEP = "Step"
_SELF = "migrate_step"


@dataclass(frozen=True)
class Bound:
    """Values of the free names of a slice.

    Attributes:
        data: nested data with tensors, by name: the batch.
        modules: modules by name.
        objects: objects that hold modules, by name.
        constants: everything else, by name.
    """

    data: Mapping[str, Any]
    modules: Mapping[str, nn.Module]
    objects: Mapping[str, Any]
    constants: Mapping[str, Any]
    inputs: Mapping[tuple[str, tuple[Any, ...]], str] = field(default_factory=dict)


def class_name(update: str) -> str:
    """Name of a step's class: that of the update of several, `actor_loss`, as a class has it."""
    words = re.split(r"[^0-9A-Za-z]+", update)
    return "".join(word[:1].upper() + word[1:] for word in words) + STEP


def bind(free: Sequence[str], values: Mapping[str, Any]) -> Bound:
    """Sort the values of free names by what they are to a step."""
    data: dict[str, Any] = {}
    modules: dict[str, nn.Module] = {}
    objects: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name in free:
        value = values[name]
        if isinstance(value, nn.Module):
            modules[name] = value
        elif is_data(value):
            data[name] = value
        elif next(held_modules(value), None) is not None:
            objects[name] = value
        else:
            constants[name] = value
    return Bound(data, modules, objects, constants, names(data))


def flat(bound: Bound, data: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of the data by the step's names of its inputs."""
    return {
        bound.inputs[root, path]: tensor
        for root, value in data.items()
        for path, tensor in leaves(value)
    }


def children(bound: Bound, called: Sequence[nn.Module], text: str = "") -> dict[str, nn.Module]:
    """Modules of a step by name: those that the statements name, and those that they call.

    A module that an object has by two names (`self.model`, `self.raw_model`) has the one in `text`.
    """
    named = {name.strip("_") or name: module for name, module in bound.modules.items()}
    every = [item for value in bound.objects.values() for item in held_modules(value)]
    every = sorted(every, key=lambda item: f".{item[0]}" not in text)
    run = _innermost([*named.values(), *(module for _, module in every)], called)
    for name, module in every:
        known = any(module is other for other in named.values())
        if not known and any(module is other for other in run):
            named.setdefault(name.strip("_") or name, module)
    # A loss module without parameters is code, not a child.
    return {
        name: without_wrapper(module)
        for name, module in named.items()
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    }


def _innermost(held: Sequence[nn.Module], called: Sequence[nn.Module]) -> list[nn.Module]:
    """Held modules that are called; for a call inside of a method, `critic.value(x)`, the method's module."""
    result = []
    for module in called:
        around = [h for h in held if any(module is inner for inner in h.modules())]
        result += sorted(around, key=lambda h: sum(1 for _ in h.modules()))[:1]
    return result


def without_wrapper(value: Any) -> Any:
    """The module that a wrapper for several ranks or devices has; other values as they are."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return value.module if isinstance(value, wrappers) else value


def build(
    bound: Bound,
    text: str,
    result: str,
    namespace: Mapping[str, Any],
    modules: Mapping[str, nn.Module],
    file: Path,
    functions: Sequence[PortedFunction] = (),
    title: str = STEP,
    forms: Sequence[str] = (),
) -> nn.Module:
    """Write the step's class into a file, and make it.

    Args:
        bound: values of the statements' free names.
        text: the statements.
        result: the expression of the loss.
        namespace: global names of the script.
        modules: children by name.
        file: receives the source, so that the compiler finds the lines.
        functions: functions of the script that become methods.
        title: name of the class.
        forms: further methods with the same statements.
    """
    inputs = list(bound.inputs.values())
    body = [
        f"{name} = {_SELF}.rebuilt({name!r}, locals())"
        for name in bound.data
        if _nested(bound, name)
    ]
    for (name, path), argument in bound.inputs.items():
        if not path and name != argument:
            body.append(f"{name} = {argument}")
    body += [f"{name} = {_SELF}.named({name!r})" for name in (*bound.modules, *bound.objects)]

    lines = ["import torch", "", "", f"class {title}(StepBase):"]
    begins: list[int] = []
    for name in ("forward", *forms):
        lines += [f"    def {name}({', '.join((_SELF, *inputs))}):"]
        lines += [f"        {line}" for line in body]
        begins.append(len(lines) + 1)
        lines += textwrap.indent(text, "        ").split("\n") if text else []
        lines += [f"        return {result}", ""]
    lines += [line for function in functions for line in _method(function)]
    source = "\n".join(lines)
    file.write_text(source)
    globals_of_step = {
        **namespace,
        **bound.constants,
        "StepBase": StepBase,
        "__name__": "__main__",
    }
    exec(compile(source, str(file), "exec"), globals_of_step)
    step: StepBase = globals_of_step[title]()
    step.begins = tuple(begins)
    for name, module in modules.items():
        setattr(step, name, module)
    step.bindings = StepBindings(
        bound,
        dict(bound.modules),
        {n: Held(v) for n, v in bound.objects.items()},
        {function.method: function for function in functions},
    )
    return step


def _method(function: PortedFunction) -> list[str]:
    inputs = list(function.inputs.values())
    tensors = ", ".join(f"{name!r}: {name}" for name in inputs)
    return [
        f"    def {function.method}({', '.join((_SELF, *inputs))}):",
        f"        return {_SELF}.called({function.method!r}, {{{tensors}}})",
        "",
    ]


@dataclass
class StepBindings:
    """Objects that a step's statements name; a deep copy of a step copies the modules among them."""

    bound: Bound
    modules: dict[str, nn.Module]
    objects: dict[str, Held]
    functions: dict[str, PortedFunction] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> StepBindings:
        import copy

        modules = {name: copy.deepcopy(module, memo) for name, module in self.modules.items()}
        objects = {name: copy.deepcopy(held, memo) for name, held in self.objects.items()}
        return StepBindings(self.bound, modules, objects, self.functions)


class StepBase(nn.Module):
    """Base of the class that is written: it finds what the statements name."""

    bindings: StepBindings
    # Lines of its file on which the statements begin, in each form.
    begins: tuple[int, ...] = ()
    # Whether its modules stay in the modes that they have.
    fixed = False

    def train(self, mode: bool = True) -> StepBase:
        """Set the mode of all modules, unless they stay in their own."""
        if not self.fixed:
            super().train(mode)
        return self

    def position(self, line: int, positions: Sequence[str], otherwise: str) -> str:
        """Position in the script of a line of the step's file.

        Args:
            line: the line.
            positions: position of each line of the statements.
            otherwise: position of the backward, for lines that are no statement of the script.
        """
        at = line - max((begin for begin in self.begins if begin <= line), default=line + 1)
        return positions[at] if 0 <= at < len(positions) else otherwise

    def named(self, name: str) -> Any:
        """The module or object of a name."""
        bindings = self.__dict__["bindings"]
        return bindings.modules[name] if name in bindings.modules else bindings.objects[name].value

    def called(self, method: str, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Tensors that a function of the script gives: a tuple of them, if there are several."""
        function = self.__dict__["bindings"].functions[method]
        answer = outputs(run(function, tensors, dict(self.named_children()), self.named))
        assert answer is not None
        _, results = answer
        return results[0] if len(results) == 1 else tuple(results)

    def rebuilt(self, name: str, values: Mapping[str, Any]) -> Any:
        """The nested data of a name, with these inputs for its tensors."""
        bound = self.__dict__["bindings"].bound
        return changed(bound.data[name], lambda path, tensor: values[bound.inputs[name, path]])


def _nested(bound: Bound, name: str) -> bool:
    return any(root == name and path for root, path in bound.inputs)
