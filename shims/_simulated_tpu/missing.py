"""Operators that torch_tpu does not implement, by the errors that they raise."""

from __future__ import annotations

import re

_NOT_IMPLEMENTED = re.compile(r"operator '(?P<operator>[^']+)' is not implemented for TPU")


def missing_operator(error: BaseException) -> str:
    """Return the operator that torch_tpu does not implement, if that is the error; else ""."""
    match = _NOT_IMPLEMENTED.search(str(error))
    return match["operator"] if match else ""
