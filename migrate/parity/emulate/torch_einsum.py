"""`einsum` of two tensors as one batched matmul, in plain torch."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

_TWO_OPERANDS = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]*)")


def einsum_by_bmm(equation: str, a: Any, b: Any) -> Any:
    """Compute the einsum of two tensors as one product; None if the equation is not one product.

    Ellipses, diagonals (a label twice in a term), and equations without an arrow are not supported.
    """
    match = _TWO_OPERANDS.fullmatch(equation.replace(" ", ""))
    if match is None or any(len(set(term)) != len(term) for term in match.groups()):
        return None
    of_a, of_b, out = match.groups()
    sizes = dict(zip(of_a + of_b, (*a.shape, *b.shape), strict=True))
    a, of_a = _summed(a, of_a, of_b + out)
    b, of_b = _summed(b, of_b, of_a + out)
    batch = [label for label in of_a if label in of_b and label in out]
    inner = [label for label in of_a if label in of_b and label not in out]
    rows = [label for label in of_a if label not in of_b]
    columns = [label for label in of_b if label not in of_a]

    def laid(tensor: Any, labels: str, *groups: list[str]) -> Any:
        order = [labels.index(label) for group in groups for label in group]
        shape = [math.prod(sizes[label] for label in group) for group in groups]
        return tensor.permute(order).reshape(shape)

    product = torch.bmm(laid(a, of_a, batch, rows, inner), laid(b, of_b, batch, inner, columns))
    labels = [*batch, *rows, *columns]
    product = product.reshape([sizes[label] for label in labels])
    return product.permute([labels.index(label) for label in out])


def _summed(tensor: Any, labels: str, needed: str) -> tuple[Any, str]:
    """Sum a tensor over the labels that only it has."""
    gone = [axis for axis, label in enumerate(labels) if label not in needed]
    if gone:
        tensor = tensor.sum(gone)
    return tensor, "".join(label for label in labels if label in needed)
