"""Plain values of results, as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain_value(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinities as strings, sets as sorted lists.

    Args:
        value: a number of Python or numpy, a string, or containers of these.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(plain_value(item) for item in value)
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number


def finite(number: float | None) -> float | None:
    """Return a measured number, or None if it is NaN or infinite."""
    return number if number is not None and math.isfinite(number) else None
