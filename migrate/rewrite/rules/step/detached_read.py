"""`value = tensor.item()`: a read whose tensor can stay in the step while the host looks at it later."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from migrate.catalogue.words import READ_METHODS
from migrate.reading.flow.dataflow import is_view


@dataclass(frozen=True)
class Read:
    """`value = tensor.item()`: the tensor stays in the step, the read of it comes below the block.

    Args:
        call: the call that reads.
        name: the variable that gets the value.
    """

    call: cst.Call
    name: str

    @property
    def tensor(self) -> cst.BaseExpression:
        """What is read."""
        assert isinstance(self.call.func, cst.Attribute)
        return self.call.func.value

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
        assert isinstance(updated.func, cst.Attribute)
        tensor = updated.func.value
        if not self.names_a_tensor:
            return tensor
        detached = cst.Call(cst.Attribute(tensor, cst.Name("detach")))
        return cst.Call(cst.Attribute(detached, cst.Name("clone")))

    @property
    def below(self) -> str:
        """The statement below the block."""
        assert isinstance(self.call.func, cst.Attribute)
        return f"{self.name} = {self.name}.{self.call.func.attr.value}()"


def as_read(node: cst.CSTNode) -> Read | None:
    """Return the read that a statement `value = tensor.item()` is; None for any other statement."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    assign = node.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target, call = assign.targets[0].target, assign.value
    if not isinstance(target, cst.Name) or not isinstance(call, cst.Call) or call.args:
        return None
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in READ_METHODS:
        return None
    return Read(call, target.value)
