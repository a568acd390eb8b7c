"""Indexing with a mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.common import method, placed
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import How
from migrate.reading.values.words import BOOLEAN_METHODS, MASK


class BooleanIndex(Hazard):
    """Indexing with a boolean mask has a shape that depends on values.

    **Why.** `x[mask]` is `nonzero` and a gather. Assigning (`x[mask] = 0`) is the same inside: measured on
    torch_xla 2.9, it fetches the mask too and compiles for each number of elements.

    **What to do.** `torch.where(mask, x, 0)` and a sum divided by `mask.sum()` for means;
    `x.masked_fill(mask, 0)` or `torch.where(mask, new, x)` for assignments.
    """

    code = "XLA103"
    name = "boolean-index"
    severity = Severity.WARNING
    nodes = (cst.Subscript, cst.Call)
    examples = (
        example(
            """
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, target):
                    valid = target != -100
                    x[x < 0] = 0  # XLA103
                    x.index_put_((valid,), torch.zeros(()), accumulate=True)  # XLA103
                    return x[valid].mean()  # XLA103
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, target):
                    index = target.argmax(dim=1)
                    x.index_put_((index,), torch.ones(()), accumulate=True)
                    return x[index, 0] + x[:, None].masked_fill(target == 0, 0.0)


            def positive(table: np.ndarray):
                return table[table > 0]
            """
        ),
    )
    mended = example(
        """
        import torch


        class Loss(torch.nn.Module):
            def forward(self, x, target):
                valid = target != -100
                x = x.clamp(min=0)
                return torch.where(valid, x, 0.0).sum() / valid.sum()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one subscript, or one `index_put`, with a mask among its indices."""
        if isinstance(node, cst.Call):
            yield from self._put(node, facts)
            return
        assert isinstance(node, cst.Subscript)
        for element in node.slice:
            index = element.slice
            if not isinstance(index, cst.Index) or isinstance(index.value, cst.BaseNumber):
                continue
            if _is_boolean(index.value, facts):
                assigned = isinstance(facts.context.parent(node), cst.AssignTarget)
                instead = "masked_fill or torch.where" if assigned else "torch.where(mask, x, 0)"
                message = f"a boolean mask as index: a compilation for each number; {instead}"
                yield from placed(self, node, index.value, message, facts)
                return

    def _put(self, node: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield `x.index_put_((mask,), values)`."""
        if method(node) not in ("index_put", "index_put_") or not node.args:
            return
        indices = node.args[0].value
        if not isinstance(indices, cst.Tuple | cst.List):
            return
        for element in indices.elements:
            if _is_boolean(element.value, facts):
                message = "a boolean mask as index: a compilation for each number; torch.where"
                yield from placed(self, node, element.value, message, facts)
                return


def _is_boolean(node: cst.CSTNode, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is plausibly a tensor of truth values: a mask."""
    if depth > 5 or not facts.values.is_tensor(node):
        return False
    if isinstance(node, cst.Comparison):
        return True
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.BitInvert)
    if isinstance(node, cst.BinaryOperation):
        both = isinstance(node.operator, cst.BitAnd | cst.BitOr)
        return both and _is_boolean(node.left, facts, depth + 1)
    if isinstance(node, cst.Call):
        return method(node) in BOOLEAN_METHODS
    if isinstance(node, cst.Name):
        binding = facts.bindings.nearest(node)
        value = binding.value if binding is not None and binding.how is How.VALUE else None
        if value is not None and _is_boolean(value, facts, depth + 1):
            return True
        parameter = facts.bindings.parameter(node) if binding is None else None
        passed = list(facts.bindings.passed(parameter[0], node.value)) if parameter else []
        if passed:
            return any(_is_boolean(one, facts, depth + 1) for one in passed)
        return MASK.search(node.value) is not None
    return False
