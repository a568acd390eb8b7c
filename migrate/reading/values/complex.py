"""Expressions that are complex tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

DEEPEST = 8
MAKES = words(
    "torch.complex torch.polar torch.view_as_complex torch.fft.fft torch.fft.fft2 torch.fft.fftn"
)
MAKES |= words(
    "torch.fft.ifft torch.fft.ifft2 torch.fft.ifftn torch.fft.rfft torch.fft.rfft2 torch.fft.rfftn"
)
TYPES = words("torch.complex64 torch.cfloat torch.complex128 torch.cdouble")
# Functions whose result is real for any argument.
REAL = words("abs angle imag real view_as_real irfft irfft2 irfftn norm size dim shape item")


def is_complex(node: cst.CSTNode | None, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` computes with complex numbers, as far as the function around it shows."""
    if node is None or depth > DEEPEST:
        return False
    if isinstance(node, cst.Imaginary):
        return True
    if isinstance(node, cst.Name):
        assignment = facts.bindings.nearest(node)
        return assignment is not None and is_complex(assignment.value, facts, depth + 1)
    if isinstance(node, cst.Attribute):
        return node.attr.value not in REAL and is_complex(node.value, facts, depth + 1)
    if isinstance(node, cst.Subscript):
        return is_complex(node.value, facts, depth + 1)
    if isinstance(node, cst.UnaryOperation):
        return is_complex(node.expression, facts, depth + 1)
    if isinstance(node, cst.BinaryOperation):
        return any(is_complex(side, facts, depth + 1) for side in (node.left, node.right))
    return isinstance(node, cst.Call) and _is_complex_call(node, facts, depth)


def _is_complex_call(call: cst.Call, facts: Facts, depth: int) -> bool:
    name = facts.names.of(call.func) or ""
    if name in MAKES:
        return True
    if name.startswith("torch.") and name.rpartition(".")[2] not in REAL:
        return any(is_complex(arg.value, facts, depth + 1) for arg in call.args)
    if name or not isinstance(call.func, cst.Attribute) or call.func.attr.value in REAL:
        return False
    if call.func.attr.value == "to" and any(
        facts.names.of(part) in TYPES
        for arg in call.args
        for part in facts.below(arg, cst.Attribute)
    ):
        return True
    return is_complex(call.func.value, facts, depth + 1)
