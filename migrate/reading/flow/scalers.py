"""Gradient scalers of which only the state is saved and loaded."""

from __future__ import annotations

import libcst as cst

from migrate.reading.script import Script
from migrate.reading.tree.tree import keyword, string_value


def only_keeps_state(made: cst.Call, context: Script) -> bool:
    """Whether a scaler is made on the CPU, in a variable of which only the state is saved and loaded."""
    device = made.args[0] if made.args and made.args[0].keyword is None else keyword(made, "device")
    assign = context.parent(made)
    if device is None or string_value(device.value) != "cpu" or not isinstance(assign, cst.Assign):
        return False
    target = assign.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    uses = (context.parent(use) for use in context.references(target.value) if use is not target)
    return all(
        isinstance(use, cst.Attribute) and use.attr.value in ("state_dict", "load_state_dict")
        for use in uses
    )
