"""Fields of objects: `args.world_size`, `cfg["world_size"]`."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from migrate.syntax.tree import string_value


@dataclass(frozen=True)
class ObjectField:
    """A place on an object.

    Attributes:
        root: the name of the object: `hp` of `hp["train"]["gpus"]`.
        word: what the last step to it is called: `gpus`.
        steps: how many there are: 2.
    """

    root: str
    word: str
    steps: int = 1


@dataclass(frozen=True, eq=False)
class Counted:
    """A number of processes that is given a place on an object.

    Attributes:
        node: the assignment `args.gpus = n`, or `"gpus": n` of a dictionary.
        target: the place, as `args.gpus` or `options["gpus"]`.
        value: the assigned value.
    """

    node: cst.Assign | cst.DictElement
    target: cst.BaseExpression
    value: cst.BaseExpression

    @property
    def place(self) -> ObjectField:
        """The field of the object, as returned by `kept_on`."""
        place = kept_on(self.target)
        assert place is not None
        return place


def kept_on(node: cst.CSTNode | None) -> ObjectField | None:
    """Return the field that `node` reads or assigns, or None if it is no field or has a variable index."""
    word, inner = _last_step(node)
    if word is None:
        return None
    steps = 1
    while not isinstance(inner, cst.Name):
        further, inner = _last_step(inner)
        if further is None:
            return None
        steps += 1
    return ObjectField(inner.value, word, steps)


def _last_step(node: cst.CSTNode | None) -> tuple[str | None, cst.CSTNode | None]:
    """Return the word of the last step of `node`, and what it is taken from."""
    if isinstance(node, cst.Attribute):
        return node.attr.value, node.value
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        index = node.slice[0].slice
        return (string_value(index.value) if isinstance(index, cst.Index) else None), node.value
    if isinstance(node, cst.Call) and node.args:
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value == "get":
            return string_value(node.args[0].value), func.value
        if isinstance(func, cst.Name) and func.value == "getattr" and len(node.args) > 1:
            return string_value(node.args[1].value), node.args[0].value
    return None, None
