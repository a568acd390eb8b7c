"""Representation of a recorded model: calls of modules, and the operators in them.

All classes are frozen; `str` of a `Graph` prints it in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch

# Stands for the dtype that the model computes in, where the recording follows dtypes.
COMPUTE = torch.bfloat16
# Call numbers reserved for each further method of a model.
CALLS = 100_000


@dataclass(frozen=True)
class Ref:
    """A tensor of the graph, by its number."""

    id: int

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True)
class Held:
    """A parameter or buffer, by its torch name, or a constant outside all modules."""

    key: str

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Free:
    """A size that depends on the inputs.

    Attributes:
        expression: its formula in the symbols of the inputs' sizes.
        hint: its value when the model was recorded.
    """

    expression: sympy.Expr
    hint: int

    def __str__(self) -> str:
        return str(self.expression)


@dataclass(frozen=True)
class Fact:
    """The shape of a tensor (integers, or `Free`), and its torch dtype."""

    shape: tuple[int | Free, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Frame:
    """A running line of the original's source.

    Attributes:
        file: path of the file.
        line: line number, from 1.
        function: name of the function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Op:
    """An operator.

    Attributes:
        target: its name ("aten.add.Tensor").
        arguments: `Ref`, `Held`, `Free`, numbers, text, dtypes, tuples of these.
        named: keyword arguments.
        outs: numbers of the tensors that it returns.
        single: whether it returns one tensor instead of a tuple.
        frames: source lines that run it, the outermost first.
    """

    target: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    outs: tuple[int, ...]
    single: bool
    frames: tuple[Frame, ...]

    def __str__(self) -> str:
        arguments = [_shown(argument) for argument in self.arguments]
        arguments += [f"{name}={_shown(value)}" for name, value in self.named.items()]
        outs = ", ".join(f"%{out}" for out in self.outs)
        return f"{outs} = {self.target}({', '.join(arguments)})"


@dataclass(frozen=True)
class Given:
    """An argument of a call.

    Attributes:
        label: its position in the arguments: "[0][1]" is the second positional argument,
            "[1]['mask']" the keyword argument `mask`; "" if only the data flow shows it.
        value: the passed `Ref` or `Held`.
        inside: its number within the call.
    """

    label: str
    value: Ref | Held
    inside: int


@dataclass(frozen=True)
class Taken:
    """A result of a call: its position in the returned value ("[0]"), its numbers inside and
    outside.
    """

    label: str
    inside: int
    outside: int


@dataclass(frozen=True)
class Call:
    """A call of a module.

    Attributes:
        path: path of the module ("layers.0.mlp"); "" for the model itself.
        number: number of the call among the calls of this module, from 0.
        arguments: its arguments.
        taken: its results.
        body: the calls and operators in it.
        frames: source lines that make the call.
        method: the called method.
    """

    path: str
    number: int
    arguments: tuple[Given, ...]
    taken: tuple[Taken, ...]
    body: tuple[Item, ...]
    frames: tuple[Frame, ...]
    method: str = "forward"

    @property
    def is_entry(self) -> bool:
        """Whether it is a further method of the model that nothing in the model's forward calls."""
        return not self.path and self.number > 0

    @property
    def outs(self) -> tuple[int, ...]:
        """The tensors that it returns, by their numbers outside."""
        return tuple(result.outside for result in self.taken)


@dataclass(frozen=True)
class Apply:
    """A call of a function of the original, with the operators recorded in it.

    Attributes:
        frame: a line of the function.
        arguments: its arguments, `Ref` or `Held`.
        outs: numbers of the tensors that it returns.
        body: the calls and operators in it.
        frames: source lines that make the call, and the frame in the function.
    """

    frame: Frame
    arguments: tuple[Any, ...]
    outs: tuple[int, ...]
    body: tuple[Item, ...]
    frames: tuple[Frame, ...]


Item: TypeAlias = "Op | Call | Apply"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of the model's forward or of a further method.

    Attributes:
        method: its name in the original.
        inputs: names and numbers of its inputs.
        outputs: a pytree of `Ref`, `Held` and plain values.
    """

    method: str
    inputs: tuple[tuple[str, int], ...]
    outputs: Any


@dataclass(frozen=True)
class Graph:
    """A recorded model.

    Attributes:
        inputs: names and numbers of its inputs.
        root: the call of the model.
        outputs: a pytree of `Ref`, `Held` and plain values.
        facts: number of a tensor → its shape and dtype.
        fixed: inputs that hold for the values of the recording only, and these: nested lists.
        constants: tensors that were computed of constants, or that a forward makes from numbers, by name.
        narrow: parameters and buffers that have the dtype that the model computes in, which
            `precision.COMPUTE` stands for; None: the recording does not tell dtypes.
        optional: names of inputs that a caller may leave out.
        maybe: numbers of tensors that are None where an input is left out.
        otherwise: numbers of tensors that are needed only where one is.
        of_mode: names of outputs that only one mode gives → whether it is training.
        methods: further methods of the model. The call of the n-th is in the body of `root`, as a call of
            the model with the number n (from 1).
        named: names of values that no line of the original names: a cache, an entry of a cache.
        kinds: their annotations.
    """

    inputs: tuple[tuple[str, int], ...]
    root: Call
    outputs: Any
    facts: Mapping[int, Fact]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    narrow: frozenset[str] | None = None
    optional: tuple[str, ...] = ()
    maybe: frozenset[int] = frozenset()
    otherwise: frozenset[int] = frozenset()
    of_mode: Mapping[str, bool] = field(default_factory=dict)
    methods: tuple[Signature, ...] = ()
    named: Mapping[int, str] = field(default_factory=dict)
    kinds: Mapping[int, str] = field(default_factory=dict)

    def entry(self, number: int) -> Signature:
        """Inputs and outputs of the method with this number: 0 is the forward."""
        return (
            self.methods[number - 1] if number else Signature("forward", self.inputs, self.outputs)
        )

    def dtype_of(self, key: str, tensor: torch.Tensor) -> torch.dtype:
        """The recorded dtype of a parameter, buffer or constant."""
        return COMPUTE if self.narrow is not None and key in self.narrow else tensor.dtype

    def __str__(self) -> str:
        lines = [f"inputs {', '.join(f'{name}=%{number}' for name, number in self.inputs)}"]
        return "\n".join((*lines, *_lines(self.root, self.facts, 0), f"outputs {self.outputs}"))


def references(value: Any) -> Iterator[Ref]:
    """The tensors in an argument."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for element in value:
            yield from references(element)
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from references(element)


def uses(item: Item) -> Iterator[int]:
    """The outside tensors that an item uses, once for each use."""
    if isinstance(item, Op):
        for reference in references((item.arguments, item.named)):
            yield reference.id
    else:
        for argument in item.arguments:
            value = argument.value if isinstance(argument, Given) else argument
            if isinstance(value, Ref):
                yield value.id


def held(value: Any) -> Iterator[Held]:
    """The parameters, buffers and constants in an argument."""
    if isinstance(value, Held):
        yield value
    elif isinstance(value, tuple | list):
        for element in value:
            yield from held(element)
    elif isinstance(value, Mapping):
        yield from held(tuple(value.values()))


def calls(call: Call) -> Iterator[Call]:
    """A call and all calls within it, innermost first."""
    for item in call.body:
        if isinstance(item, Call):
            yield from calls(item)
    yield call


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return str(value) if isinstance(value, Ref | Held | Free) else repr(value)


def _lines(call: Call, facts: Mapping[int, Fact], depth: int) -> Iterator[str]:
    indent = "  " * depth
    arguments = ", ".join(
        f"%{argument.inside}={argument.value} {argument.label}" for argument in call.arguments
    )
    yield f"{indent}{call.path or 'the model'} #{call.number} ({arguments})"
    for item in call.body:
        if isinstance(item, Call):
            yield from _lines(item, facts, depth + 1)
        else:
            shapes = "; ".join(
                f"{facts[out].dtype} [{', '.join(map(str, facts[out].shape))}]" for out in item.outs
            )
            yield f"{indent}  {item}  # {shapes}"
    yield f"{indent}  -> {', '.join(f'%{out.outside}=%{out.inside} {out.label}' for out in call.taken)}"


def size_of(value: Any) -> int | Free:
    """A size of torch: an integer, or its formula in the inputs' sizes."""
    if isinstance(value, int):
        return int(value)
    expression = value.node.expr
    if expression.is_number:
        return int(expression)
    return Free(expression, int(value.node.hint) if value.node.hint is not None else 0)
