"""The classes of a port, before they are source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Class:
    """A class of the port.

    Attributes:
        name: of the original, with a number where it has several forms.
        origin: the original class.
        fields: name → type, beside the configuration.
        configured: whether it reads the configuration, or something below it does.
        setup: what its `setup` does.
        methods: name → arguments, statements and result.
        typed: whether it has the fields `dtype`, `param_dtype` and `precision`.
        takes_mode: whether its methods are told by `deterministic` whether the model is trained.
        refuses: whether it raises an error in training, which the port lacks.
    """

    name: str
    origin: type
    fields: dict[str, str]
    configured: bool
    setup: list[ast.stmt]
    methods: dict[str, Method]
    typed: bool = False
    takes_mode: bool = False
    refuses: bool = False


@dataclass
class Method:
    """A forward.

    Attributes:
        arguments: names of the tensors that it takes.
        sizes: names of sizes that come after them.
        body: statements.
        result: what it returns.
        labels: where its results stand in what the original returns, where it is a call that says so.
        optional: arguments and sizes that not every call gives; they are named in calls, and None by default.
        absent: places of results that may be None.
        maybe: names of values in it that may be None.
        nullable: arguments that every call gives, and that may be None.
        spared: those of them that whoever calls the model may leave out: they are None by default.
        of: the method of the original that it is.
        doc: the first sentence of the docstring.
        comments: the comments on the lines of its head.
        kinds: argument → its annotation, if it is no tensor.
        result_kinds: place of a result → its annotation, if it is no tensor.
    """

    arguments: tuple[str, ...]
    sizes: tuple[str, ...]
    body: list[ast.stmt]
    result: ast.expr
    labels: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    absent: frozenset[int] = frozenset()
    maybe: frozenset[str] = frozenset()
    nullable: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    of: str = "forward"
    doc: str = ""
    comments: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    result_kinds: Mapping[int, str] = field(default_factory=dict)

    def parameters(self) -> list[str]:
        """Names of arguments and sizes in their order: first what every call gives."""
        left_out = self.optional | self.spared
        return sorted((*self.arguments, *self.sizes), key=lambda name: name in left_out)


@dataclass(frozen=True)
class Model:
    """All classes, those that others use first, and the values of the configuration.

    Attributes:
        classes: the classes.
        settings: name in the configuration → value.
        sources: name in the configuration → what the original calls it, and paths of modules that have it.
        options: further fields of the configuration, which are no sizes of the original.
        instances: path of a module of the original → name of its class.
        order: the original's names of settings, as its constructor or configuration has them.
        layer_sizes: path of a layer of the original → its attribute → expression of settings, where the
            arrangement of its weights depends on it.
    """

    classes: tuple[Class, ...]
    settings: Mapping[str, Any]
    sources: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    instances: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    layer_sizes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Sizes that a port fixes to one value: its source does not follow another value, or no one has
    tried it.

    Attributes:
        values: settings and the only value that each may have; those that the source does not read become
            fields of the configuration too.
        axes: (input, axis) → the only size that it may have.
        lifted: texts of bounds that are not asserted.
        lengths: sequences among the settings that may have another number of entries.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[tuple[str, int], int] = field(default_factory=dict)
    lifted: frozenset[str] = frozenset()
    lengths: frozenset[str] = frozenset()
