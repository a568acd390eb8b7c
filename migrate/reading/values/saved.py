"""What a call of `torch.save` saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import bind

if TYPE_CHECKING:
    from migrate.reading.script import Script


PARAMETERS = ("obj", "f", "pickle_module", "pickle_protocol", "_use_new_zipfile_serialization")


def is_on_cpu(call: cst.Call, context: Script) -> bool:
    """Whether what `call` saves is plainly in the memory of the host: `x.cpu()`, an array."""
    saved = (bind(call, PARAMETERS) or {}).get("obj")
    value = saved.value if saved is not None else None
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value in ("cpu", "numpy", "tolist", "item"):
            return True
        value = value.func.value
    return isinstance(value, cst.BaseNumber | cst.SimpleString | cst.FormattedString)
