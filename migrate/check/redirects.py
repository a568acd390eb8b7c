"""Former names of codes. A comment, a configuration or `--explain` may still use them."""

from __future__ import annotations

from collections.abc import Iterable

# Former code of a construct, by its present code.
_BEFORE = {
    "XLA419": "XLA404",  # apex-amp
    "XLA420": "XLA404",  # apex-optimizers
    "XLA802": "XLA801",  # cuda-memory
    "XLA813": "XLA801",  # rng, for the random state of CUDA
    "XLA827": "XLA801",  # set-device
    "XLA828": "XLA801",  # cuda-streams
    "XLA832": "XLA801",  # cuda-timing
    "XLA833": "XLA801",  # typed-tensors
}

# Code of a name that `--explain` accepted before a rule replaced it.
OLD_NAMES = {
    "activation-checkpoint": "XLA808",
    "backend-check": "XLA703",
    "compile-backend": "XLA806",
    "device-ids": "XLA824",
    "device-type": "XLA702",
    "foreach-clip": "XLA812",
    "framework": "XLA411",
    "gone-from-torch-xla": "XLA819",
    "half-array": "XLA870",
    "half-precision": "XLA502",
    "load": "XLA817",
    "optimizer-before-move": "XLA805",
    "point-to-point": "XLA207",
    "reduce-average": "XLA810",
    "seed": "XLA813",
    "weight-tie": "XLA818",
}


def names_code(named: str, code: str) -> bool:
    """Whether a code or prefix from the user means `code`."""
    return code.startswith(named) or _BEFORE.get(code) == named


def naming(codes: Iterable[str], code: str) -> str | None:
    """Return the first code of a comment that means `code`, or None."""
    return next((named for named in codes if names_code(named, code)), None)
