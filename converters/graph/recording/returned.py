"""The named tuples and dataclasses in what a model returns, whose values are recorded as tuples and dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ReturnedRecord:
    """A named tuple or dataclass in a result.

    Attributes:
        kind: its class.
        elements: field → what it holds: "tensor", None, a record, a tuple or dict of such, or "other".
    """

    kind: type
    elements: Mapping[str, Any]

    @property
    def is_tuple(self) -> bool:
        """Whether it is a named tuple."""
        return issubclass(self.kind, tuple)

    @property
    def is_whole(self) -> bool:
        """Whether tensors are all that a dataclass holds: the recording keeps no other values of it."""
        return self.is_tuple or all(
            element is None or element == "tensor" or isinstance(element, ReturnedRecord)
            for element in self.elements.values()
        )


def returned(value: Any) -> Any:
    """The structure of a result, with its records (see `ReturnedRecord.elements`)."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, Mapping) or (hasattr(value, "to_tuple") and hasattr(value, "items")):
        return {str(key): returned(element) for key, element in value.items()}
    if hasattr(value, "_fields"):
        return ReturnedRecord(
            type(value), dict(zip(value._fields, map(returned, value), strict=True))
        )
    if isinstance(value, tuple | list):
        return tuple(map(returned, value))
    if is_dataclass(value) and not isinstance(value, type):
        held = {each.name: returned(getattr(value, each.name)) for each in fields(value)}
        return ReturnedRecord(type(value), held)
    return None if value is None else "other"
