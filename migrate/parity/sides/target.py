"""Target: the model that a user names as a side, as in `xla:model.py:build`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.ground.errors import TargetError

_KINDS = ("torch", "xla", "tpu", "linen", "nnx", "jax", "port", "dump")


@dataclass(frozen=True)
class Target:
    """Side as the user named it.

    Attributes:
        kind: "torch", "xla" (the same torch module under torch_xla), "tpu" (the same under torch_tpu),
            "linen", "nnx", "jax" (a plain function, of (params, *inputs) if it has weights), "dump"; ""
            until it is loaded: the kind of the object decides.
        spec: `pkg.module:name`, `file.py:name`, a folder.
        shown: the text of the user.
        start: for a function's weights, the pytree, or a function that returns it; "": unknown.
        method: method of the model to compare instead of its forward; "": the forward.
    """

    kind: str
    spec: str
    shown: str
    start: str = ""
    method: str = ""


def parse_target(text: str) -> Target:
    """Parse `[KIND:]SPEC`.

    Raises:
        TargetError: the kind is unknown, or nothing follows it.
    """
    kind, rest = "", text
    if (match := re.match(r"([a-z]+):(?!:)(.+)", text)) and match[1] in _KINDS:
        kind, rest = match[1], match[2]
    if not rest or (":" not in rest and not Path(rest).exists() and not rest.endswith(".py")):
        raise TargetError(
            f"{text}: names no model",
            "write file.py:factory, pkg.module:factory, or a folder; if its kind is unclear, put "
            "torch:, xla:, tpu:, linen:, nnx:, jax:, port: or dump: before the name",
        )
    return Target(kind, rest, text)
