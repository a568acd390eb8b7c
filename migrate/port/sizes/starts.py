"""Initial values that `init` draws at another size, beside those of new models of the original."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from migrate.port.initialization import drawn_there
from migrate.port.sizes.question import SizeQuestion
from migrate.port.sizes.results import SecondSize

# New models of each side: more of small ones, as each has few elements.
_BUILDS, _BUILDS_OF_SMALL, _SMALL = 4, 16, 20_000


def starts_apart(question: SizeQuestion, second: SecondSize) -> Mapping[str, str]:
    """Return the arrays that start otherwise than the original's: path → how they differ.

    Args:
        question: the port and its original.
        second: the size.
    """
    total = sum(parameter.numel() for parameter in question.base.module.parameters())
    images = all(array.dtype.kind == "f" for array in second.inputs.values())
    example = [array.shape for array in second.inputs.values()] if images else None
    with tempfile.TemporaryDirectory() as scratch:
        return drawn_there(
            question.folder,
            question.port,
            _BUILDS if total > _SMALL else _BUILDS_OF_SMALL,
            second,
            question.folder.name,
            example,
            Path(scratch),
            (),
        )
