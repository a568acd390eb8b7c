"""Results of the comparison in bfloat16."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# How many times torch's own error the port's may be.
LIMIT = 1.5
# What rounding the exact result once to bfloat16 can be off: below it nothing is told apart.
ROUNDING = 2.0**-9
# Standard deviations that chance reaches once in a thousand times.
_RARE = 3.09
# Of what a model draws.
SEED = 0
BFLOAT16, MIXED = "bfloat16", "float32 weights, bfloat16"
SETTINGS = (BFLOAT16, MIXED)
# Module path → the dtypes of what its products multiply.
Products = dict[str, set[str]]


def allowed(numbers: int) -> float:
    """Return how many times the original's error the port's may be, in outputs of so many numbers.

    Errors of rounding are drawn as if by chance. In few numbers (a loss) those of two models that are equally
    exact are further apart than `LIMIT`, which is told apart from a fault in 64 numbers and more.
    """
    return max(LIMIT, math.exp(_RARE / math.sqrt(max(numbers, 2) - 1)))


@dataclass(frozen=True)
class NumericsRun:
    """Outputs of a model on one input.

    Attributes:
        outputs: path → array, in float32 or as it is.
        dtypes: path → the dtype that the model gave.
        products: products of the forward pass.
    """

    outputs: dict[str, Any]
    dtypes: dict[str, str]
    products: Products = field(default_factory=dict)


@dataclass(frozen=True)
class Numerics:
    """A comparison in one setting.

    Attributes:
        setting: a setting of `SETTINGS`.
        inputs: the shapes.
        original: relative L2 of the original's worst output in bfloat16 against its own in float64.
        port: error of the port.
        differences: differences of dtypes or infinite values from the original, one line each.
        error: why it could not be compared; "" if it was.
        skipped: why there is nothing to compare: the original does not run in bfloat16; "" if it does.
        limit: how many times the original's error the port's may be.
        output: the output with the largest error; "" if there is only one.
        first: the first module whose error is too large, in words; "" if it was not looked for.
    """

    setting: str
    inputs: str
    original: float = 0.0
    port: float = 0.0
    differences: tuple[str, ...] = ()
    error: str = ""
    skipped: str = ""
    limit: float = LIMIT
    output: str = ""
    first: str = ""

    @property
    def matches(self) -> bool:
        """Whether it speaks for the port, or at least not against it."""
        if self.skipped:
            return True
        return not self.error and not self.differences and self.is_as_near

    @property
    def is_as_near(self) -> bool:
        """Whether the port's error is at most `limit` times the original's, or one rounding."""
        return math.isfinite(self.port) and self.port <= max(self.limit * self.original, ROUNDING)

    @property
    def verdict(self) -> str:
        """The verdict in a few words; `details` says why."""
        if self.skipped:
            return "not tried"
        if self.error:
            return "could not be compared"
        return "match" if self.matches else "differs"

    @property
    def details(self) -> tuple[str, ...]:
        """Differences, or why nothing was compared, one sentence each; none if all matches."""
        if self.skipped or self.error:
            return (self.skipped or self.error,)
        said = list(self.differences[:_SHOWN])
        if len(self.differences) > _SHOWN:
            said.append(f"and {len(self.differences) - _SHOWN} more differences")
        if not self.is_as_near:
            of = f"output {self.output}: " if self.output else ""
            where = f"; the first module that differs: {self.first}" if self.first else ""
            said.insert(
                0,
                f"{of}the port is {self.port:.1e} from float64, the original {self.original:.1e}, and "
                f"{self.limit:.2g} times that is allowed{where}",
            )
        return tuple(said)


_SHOWN = 3


@dataclass(frozen=True)
class Folder:
    """A port on disk.

    Attributes:
        path: the package.
        params: weights of the port, or None.
        unsaved: paths of the arrays that keep their dtype, as no checkpoint has them.
    """

    path: Path
    params: Path | None
    unsaved: tuple[str, ...] = ()
