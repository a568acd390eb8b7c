"""Sizes that a port holds to one value: its source does not follow another, or nobody has tried it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What the classes of a port refuse.

    Attributes:
        values: settings and the only value that each may have; those that the source does not read become
            fields of the configuration too.
        axes: (input, axis) → the only size that it may have.
        lifted: texts of bounds that are not asserted.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[tuple[str, int], int] = field(default_factory=dict)
    lifted: frozenset[str] = frozenset()
