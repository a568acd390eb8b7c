"""Arrays as a compiled program writes them, `bf16[8,1000]{1,0:T(8,128)(2,1)S(1)}`, and the room they take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>[^\]]*)\](?:\{(?P<layout>[^}]*)\})?")
_TILE = re.compile(r"T\(([\d,*]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
HBM = 0  # the memory space that a layout without S(…) names


@dataclass(frozen=True)
class HloArray:
    """An array of a compiled program.

    Attributes:
        dtype: XLA's dtype ("bf16").
        shape: lengths of the sides.
        order: the axes, from the most minor one; as many as sides.
        tile: the sides of the first tile, the most minor one last; () where it is not tiled.
        space: memory space: 0 is HBM, 1 VMEM, 5 the host's memory, others small memories of the chip.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = HBM

    @property
    def of(self) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape, regardless of the layout."""
        return self.dtype, self.shape

    @property
    def bits(self) -> int:
        """Bits of an element."""
        if self.dtype in _BITS:
            return _BITS[self.dtype]
        match = re.search(r"\d+", self.dtype)
        return int(match[0]) if match else 0

    @property
    def size(self) -> int:
        """Bytes of its elements, without padding."""
        return math.ceil(math.prod(self.shape) * self.bits / 8)

    @property
    def padded(self) -> int:
        """Bytes that it takes: each of the most minor sides is rounded up to its tile's."""
        sides = [self.shape[axis] for axis in self.order]  # the most minor one first
        tile = list(reversed(self.tile))
        sides += [1] * (len(tile) - len(sides))
        for place, side in enumerate(tile):
            sides[place] = math.ceil(sides[place] / side) * side
        return math.ceil(math.prod(sides) * self.bits / 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


# The result of an instruction: an array, or a tuple of results.
Result = HloArray | tuple["Result", ...]


def leaves(result: Result) -> Iterator[HloArray]:
    """The arrays of a result, in order."""
    if isinstance(result, HloArray):
        yield result
    else:
        for part in result:
            yield from leaves(part)


def read_result(text: str, start: int = 0) -> tuple[Result, int]:
    """Read a result that begins at `start`, and give it with the place after it.

    Raises:
        ValueError: there is none.
    """
    while text[start] == " ":
        start += 1
    if text.startswith("/*", start):  # /*index=5*/
        return read_result(text, text.index("*/", start) + 2)
    if text[start] != "(":
        match = _ARRAY.match(text, start)
        if match is None:
            raise ValueError(f"no array at {text[start : start + 40]!r}")
        return _array(match), match.end()
    parts: list[Result] = []
    start += 1
    while text[start] != ")":
        part, start = read_result(text, start)
        parts.append(part)
        while text[start] in ", ":
            start += 1
    return tuple(parts), start + 1


def _array(match: re.Match[str]) -> HloArray:
    shape = tuple(int(side.lstrip("<=")) for side in match["shape"].split(",") if side)
    order, _, rest = (match["layout"] or "").partition(":")
    axes = tuple(int(axis) for axis in order.split(",") if axis)
    tile, space = _TILE.search(rest), _SPACE.search(rest)
    return HloArray(
        match["dtype"],
        shape,
        axes if len(axes) == len(shape) else tuple(reversed(range(len(shape)))),
        tuple(int(side) for side in tile[1].split(",") if side != "*") if tile else (),
        int(space[1]) if space else HBM,
    )
