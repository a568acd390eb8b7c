"""Which operators of a recording draw random numbers: no two of them give the same."""

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
# Those that torch marks as well, and that draw in training alone, where they have no lowering.
_TRAINED = re.compile(r"aten\.(lstm|gru|rnn_\w+|rrelu\w*|_?scaled_dot_product_\w+)\.")


def draws(name: str, arguments: Sequence[Any]) -> bool:
    """Whether an operator draws, called with these arguments: torch marks those that do."""
    if name in _DROPOUTS:
        return bool(arguments[1]) and bool(arguments[2])
    return _TRAINED.match(name) is None and _marked(name)


def _marked(name: str) -> bool:
    if not name.startswith("aten."):
        return False
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return torch.Tag.nondeterministic_seeded in getattr(found, "tags", ())
