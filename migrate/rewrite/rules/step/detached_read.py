"""`value = tensor.item()`: a read that can be deferred, while its tensor stays in the step."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from migrate.catalogue.words import READ_METHODS
from migrate.reading.flow.dataflow import is_view
from migrate.syntax.tree import bound_call, code, keyword, last_part, nodes, string_value


@dataclass(frozen=True)
class TensorRead:
    """`value = tensor.item()`: the tensor stays in the step, the read of it comes below the block.

    Args:
        call: the call that reads.
        name: the variable that gets the value.
        deep: the number of calls in `call` before the tensor: two in `tensor.cpu().numpy()`.
    """

    call: cst.Call
    name: str
    deep: int = field(default=1, kw_only=True)

    @property
    def tensor(self) -> cst.BaseExpression:
        """The tensor that is read."""
        return _below(self.call, self.deep)

    @property
    def edited(self) -> cst.CSTNode:
        """The node that becomes the tensor in the step."""
        return self.call

    @property
    def names_a_tensor(self) -> bool:
        """Whether there already is a tensor that is read, and nothing is computed for it."""
        return is_view(self.tensor)

    def kept(self, updated: cst.CSTNode) -> cst.BaseExpression | cst.BaseStatement:
        """Return what the variable is in the step: a copy, since the tensor may be changed later."""
        assert isinstance(updated, cst.Call)
        tensor = _below(updated, self.deep)
        if not self.names_a_tensor:
            return tensor
        detached = cst.Call(cst.Attribute(tensor, cst.Name("detach")))
        return cst.Call(cst.Attribute(detached, cst.Name("clone")))

    @property
    def below(self) -> str:
        """The statement below the block."""
        read = code(self.call).removeprefix(code(self.tensor))
        return f"{self.name} = {self.name}{read}"


def as_read(node: cst.CSTNode) -> TensorRead | None:
    """Return the read that a statement `value = tensor.item()` is, or None for any other statement."""
    bound = bound_call(node)
    if bound is None:
        return None
    target, call = bound
    if call.args:
        return None
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in READ_METHODS:
        return None
    if call.lpar:
        return None
    deep = _first_read(call)
    return TensorRead(call, target.value, deep=deep) if deep else None


def _below(call: cst.BaseExpression, deep: int) -> cst.BaseExpression:
    """Return what the methods of `deep` calls in a row are called on."""
    for _ in range(deep):
        assert isinstance(call, cst.Call)
        assert isinstance(call.func, cst.Attribute)
        call = call.func.value
    return call


def _first_read(call: cst.Call) -> int:
    """Return how many calls in a row come with the first that reads: two in `x.mean().cpu().numpy()`.

    None, 0, where what they are given may be another value below the step.
    """
    count, fixed = 1, True
    under: cst.BaseExpression = call
    deep = 0
    while isinstance(under, cst.Call) and isinstance(under.func, cst.Attribute):
        deep += 1
        fixed = fixed and not under.lpar and all(_is_fixed(arg.value) for arg in under.args)
        if under.func.attr.value in READ_METHODS or _goes_to_the_cpu(under):
            if not fixed:
                return 0
            count = deep
        under = under.func.value
    return count


def _goes_to_the_cpu(call: cst.Call) -> bool:
    """Whether `call` is `x.to("cpu", …)`."""
    place = keyword(call, "device") or (call.args[0] if call.args else None)
    return last_part(call.func) == "to" and place is not None and string_value(place.value) == "cpu"


def _is_fixed(value: cst.BaseExpression) -> bool:
    """Whether `value` is the same wherever it stands: a number, a text, `torch.uint8`."""
    if isinstance(value, cst.BaseNumber | cst.SimpleString | cst.UnaryOperation):
        return all(not isinstance(node, cst.Name) for node in nodes(value))
    if isinstance(value, cst.Attribute):
        return isinstance(value.value, cst.Name) and value.value.value in ("np", "numpy", "torch")
    return isinstance(value, cst.Name) and value.value in ("False", "None", "True")
