"""What a user names as a side: `xla:model.py:build`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.ground.errors import TargetError

_KINDS = ("torch", "xla", "linen", "nnx", "jax", "port", "dump")


@dataclass(frozen=True)
class Target:
    """A side as the user named it.

    Attributes:
        kind: "torch", "xla" (the same torch module under torch_xla), "linen", "nnx", "jax" (a plain
            function, of (params, *inputs) if it is given weights), "dump"; "" until it is loaded: what the
            object is decides.
        spec: `pkg.module:name`, `file.py:name`, a folder.
        shown: what the user wrote.
        start: of a function's weights: the pytree, or a function that gives it; "": nobody knows.
        method: of the model, which is compared in place of its forward; "": the forward.
    """

    kind: str
    spec: str
    shown: str
    start: str = ""
    method: str = ""


def parse_target(text: str) -> Target:
    """Read `[KIND:]SPEC`.

    Raises:
        TargetError: no such kind, or nothing after it.
    """
    kind, rest = "", text
    if (match := re.match(r"([a-z]+):(?!:)(.+)", text)) and match[1] in _KINDS:
        kind, rest = match[1], match[2]
    if not rest or (":" not in rest and not Path(rest).exists() and not rest.endswith(".py")):
        raise TargetError(
            f"{text}: names no model",
            "write file.py:factory, pkg.module:factory, or a folder; if its kind is unclear, put "
            "torch:, xla:, linen:, nnx:, jax:, port: or dump: before the name",
        )
    return Target(kind, rest, text)
