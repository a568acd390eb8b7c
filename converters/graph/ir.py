"""What a recorded model is: calls of modules, and operators between them.

All of it is frozen; `str` of a `Graph` shows it whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch

# The dtype that stands for whatever a model computes in, where the recording tells dtypes.
COMPUTE = torch.bfloat16


@dataclass(frozen=True)
class Ref:
    """A tensor of the graph, by its number."""

    id: int

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True)
class Held:
    """A parameter or buffer, by its torch name; or a constant that stands in no module."""

    key: str

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Free:
    """A size that depends on the inputs.

    Attributes:
        expression: of the symbols that the sides of the inputs are.
        hint: what it was when the model was recorded.
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
    """A line of the original's source that was running.

    Attributes:
        file: its path.
        line: the number, from 1.
        function: the name of the function it is in.
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
        named: those by name.
        outs: the tensors that it gives.
        single: whether it gives one tensor and no tuple of them.
        frames: where in the source, the outermost first.
    """

    target: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    outs: tuple[int, ...]
    single: bool
    frames: tuple[Frame, ...]

    def __str__(self) -> str:
        given = [_shown(one) for one in self.arguments]
        given += [f"{name}={_shown(value)}" for name, value in self.named.items()]
        outs = ", ".join(f"%{one}" for one in self.outs)
        return f"{outs} = {self.target}({', '.join(given)})"


@dataclass(frozen=True)
class Given:
    """An argument of a call.

    Attributes:
        label: where it stands among the arguments: "[0][1]" is the second positional one,
            "[1]['mask']" the named one `mask`; "" where only the data flow shows it.
        value: what is given, `Ref` or `Held`.
        inside: its number within the call.
    """

    label: str
    value: Ref | Held
    inside: int


@dataclass(frozen=True)
class Taken:
    """A result of a call: its place in what is returned ("[0]"), its numbers within and outside."""

    label: str
    inside: int
    outside: int


@dataclass(frozen=True)
class Call:
    """A call of a module.

    Attributes:
        path: of the module ("layers.0.mlp"); "" for the model itself.
        number: counts the calls of this module from 0.
        given: its arguments.
        taken: its results.
        body: what happens in it.
        frames: where it is called.
        method: the method that is called.
    """

    path: str
    number: int
    given: tuple[Given, ...]
    taken: tuple[Taken, ...]
    body: tuple[Item, ...]
    frames: tuple[Frame, ...]
    method: str = "forward"

    @property
    def is_entry(self) -> bool:
        """Whether it is a further method of the model, which nothing in the model's forward calls."""
        return not self.path and self.number > 0

    @property
    def outs(self) -> tuple[int, ...]:
        """The tensors that it gives, by their numbers outside."""
        return tuple(one.outside for one in self.taken)


@dataclass(frozen=True)
class Apply:
    """A call of a function of the original, which operators were recorded in.

    Attributes:
        frame: a line of the function.
        given: its arguments, `Ref` or `Held`.
        outs: the tensors that it gives.
        body: what happens in it.
        frames: where it is called, and the frame in it.
    """

    frame: Frame
    given: tuple[Any, ...]
    outs: tuple[int, ...]
    body: tuple[Item, ...]
    frames: tuple[Frame, ...]


Item: TypeAlias = "Op | Call | Apply"


@dataclass(frozen=True)
class Entry:
    """How the model, or a further method of it, is called.

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
        constants: tensors that were computed of constants, by name.
        narrow: parameters and buffers that have the dtype that the model computes in, which
            `precision.COMPUTE` stands for; None: the recording does not tell dtypes.
        optional: names of inputs that a caller may leave out.
        maybe: numbers of tensors that are None where an input is left out.
        otherwise: numbers of tensors that are needed only where one is.
        of_mode: names of outputs that only one mode gives → whether it is training.
        methods: further methods of the model. The call of the n-th is in the body of `root`, as a call of
            the model with the number n (from 1).
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
    methods: tuple[Entry, ...] = ()

    def entry(self, number: int) -> Entry:
        """How the model is called: 0 is its forward, others are its further methods."""
        return self.methods[number - 1] if number else Entry("forward", self.inputs, self.outputs)

    def dtype_of(self, key: str, tensor: torch.Tensor) -> torch.dtype:
        """The dtype that a parameter, buffer or constant was recorded with."""
        return COMPUTE if self.narrow is not None and key in self.narrow else tensor.dtype

    def __str__(self) -> str:
        lines = [f"inputs {', '.join(f'{name}=%{number}' for name, number in self.inputs)}"]
        return "\n".join((*lines, *_lines(self.root, self.facts, 0), f"outputs {self.outputs}"))


def references(value: Any) -> Iterator[Ref]:
    """The tensors in an argument."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from references(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from references(one)


def uses(item: Item) -> Iterator[int]:
    """The tensors outside of an item that it needs, as often as it names them."""
    if isinstance(item, Op):
        for one in references((item.arguments, item.named)):
            yield one.id
    else:
        for given in item.given:
            value = given.value if isinstance(given, Given) else given
            if isinstance(value, Ref):
                yield value.id


def held(value: Any) -> Iterator[Held]:
    """The parameters, buffers and constants in an argument."""
    if isinstance(value, Held):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from held(one)
    elif isinstance(value, Mapping):
        yield from held(tuple(value.values()))


def calls(call: Call) -> Iterator[Call]:
    """A call and all within it, the innermost first."""
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
    given = ", ".join(f"%{one.inside}={one.value} {one.label}" for one in call.given)
    yield f"{indent}{call.path or 'the model'} #{call.number} ({given})"
    for item in call.body:
        if isinstance(item, Call):
            yield from _lines(item, facts, depth + 1)
        else:
            shapes = "; ".join(
                f"{facts[one].dtype} [{', '.join(map(str, facts[one].shape))}]" for one in item.outs
            )
            yield f"{indent}  {item}  # {shapes}"
    yield f"{indent}  -> {', '.join(f'%{one.outside}=%{one.inside} {one.label}' for one in call.taken)}"


def size_of(value: Any) -> int | Free:
    """A size of torch's: an integer, or what it is of the inputs' sides."""
    if isinstance(value, int):
        return int(value)
    expression = value.node.expr
    if expression.is_number:
        return int(expression)
    return Free(expression, int(value.node.hint) if value.node.hint is not None else 0)
