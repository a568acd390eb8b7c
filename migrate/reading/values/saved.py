"""What a call of `torch.save` saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import bind
from migrate.reading.values.host import is_on_the_cpu
from migrate.reading.values.words import READ_METHODS

if TYPE_CHECKING:
    from migrate.reading.script import Script


PARAMETERS = ("obj", "f", "pickle_module", "pickle_protocol", "_use_new_zipfile_serialization")


def is_of_host(call: cst.Call, context: Script) -> bool:
    """Whether what `call` saves is plainly in the memory of the host: `x.cpu()`, an array, a number."""
    saved = (bind(call, PARAMETERS) or {}).get("obj")
    value = saved.value if saved is not None else None
    if value is None or isinstance(value, cst.BaseNumber | cst.SimpleString | cst.FormattedString):
        return value is not None
    inner = value
    while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
        if inner.func.attr.value in READ_METHODS:
            return True  # also of what holds tensors: `model.cpu().state_dict()`
        inner = inner.func.value
    return is_on_the_cpu(value, context)
