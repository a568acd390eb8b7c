"""Operators of a recording that draw random numbers: no two of them are the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

_DROPOUTS = {
    "aten.dropout.default",
    "aten.feature_dropout.default",
    "aten.alpha_dropout.default",
    "aten.feature_alpha_dropout.default",
    "aten.native_dropout.default",
}
# Operators that torch also marks, which draw only in training and have no lowering there.
_TRAINED = re.compile(r"aten\.(lstm|gru|rnn_\w+|rrelu\w*|_?scaled_dot_product_\w+)\.")


def draws(name: str, arguments: Sequence[Any]) -> bool:
    """Whether a call of an operator draws random numbers: torch marks the operators that do."""
    if name in _DROPOUTS:
        return bool(arguments[1]) and bool(arguments[2])
    return _TRAINED.match(name) is None and _marked(name)


def _marked(name: str) -> bool:
    if not name.startswith("aten."):
        return False
    attribute: Any = torch.ops
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    return torch.Tag.nondeterministic_seeded in getattr(attribute, "tags", ())
