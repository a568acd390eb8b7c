"""Parameters that choose a kernel, of which one is called "cuda": `assert impl in ["ref", "cuda"]`.

Such a "cuda" is the name of an implementation, not a device: its caller and its tests keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import DEVICE_NAME, words
from migrate.syntax.tree import nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

DEVICES = words("auto cpu cuda gpu hip hpu ipu meta mlu mps musa npu rocm tpu xla xpu")


def kernel_names(context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the tests of such parameters, and their defaults."""
    for comparison in context.all_of(cst.Comparison):
        name = _chosen(comparison)
        function = context.function_around(comparison) if name is not None else None
        if name is None or function is None:
            continue
        params = (*function.params.posonly_params, *function.params.params)
        for param in (*params, *function.params.kwonly_params):
            if param.name.value != name:
                continue
            if param.default is not None and string_value(param.default) == "cuda":
                yield param.default
            for other in nodes_of(function.body, cst.Comparison):
                if isinstance(other.left, cst.Name) and other.left.value == name:
                    yield other


def _chosen(comparison: cst.Comparison) -> str | None:
    """Return the name that `comparison` looks up among "cuda" and names of no device, or None."""
    if not isinstance(comparison.left, cst.Name) or len(comparison.comparisons) != 1:
        return None
    if DEVICE_NAME.fullmatch(comparison.left.value) is not None:
        return None
    target = comparison.comparisons[0]
    among = target.comparator
    if not isinstance(target.operator, cst.In | cst.NotIn):
        return None
    if not isinstance(among, cst.List | cst.Tuple | cst.Set):
        return None
    named = {string_value(element.value) for element in among.elements}
    others = {name for name in named if name and name.partition(":")[0] not in DEVICES}
    return comparison.left.value if "cuda" in named and others else None
