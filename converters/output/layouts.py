"""Layout of an output file, known before a value is read: its frame and each leaf's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from converters.checkpoint.pytree import PytreeLeaf


@dataclass(frozen=True)
class Stretch:
    """Contiguous bytes of a leaf in the file.

    Attributes:
        start: the first byte within the leaf.
        stop: the end within the leaf.
        offset: the offset in the file.
        file: the file in a folder output; "" for a single-file output.
    """

    start: int
    stop: int
    offset: int
    file: str = ""


@dataclass(frozen=True)
class PlacedLeaf:
    """Leaf and its ranges in the file, in the order of its bytes."""

    leaf: PytreeLeaf
    stretches: tuple[Stretch, ...]

    def spans(self, start: int, stop: int) -> Iterator[Stretch]:
        """Yield the ranges of the leaf's bytes from `start` to `stop`."""
        for stretch in self.stretches:
            first, last = max(start, stretch.start), min(stop, stretch.stop)
            if first < last:
                offset = stretch.offset + first - stretch.start
                yield Stretch(first, last, offset, stretch.file)


@dataclass(frozen=True)
class FrameBytes:
    """Bytes of an output that are not values.

    Attributes:
        offset: the offset in the file.
        data: the bytes.
        file: as in `Stretch`.
    """

    offset: int
    data: bytes
    file: str = ""


@dataclass(frozen=True)
class OutputLayout:
    """Layout of an output.

    Attributes:
        frames: the bytes that are not values; readers recognize the output by the first frame.
        placed: the leaves, in the order of writing.
        sizes: file → its size in bytes; "" is the file of a single-file output.
        wholes: path of a chunk → the leaf that it is a part of.
    """

    frames: tuple[FrameBytes, ...]
    placed: tuple[PlacedLeaf, ...]
    sizes: Mapping[str, int]
    wholes: Mapping[str, PytreeLeaf] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder of files."""
        return "" not in self.sizes


class FileLayoutBuilder:
    """Builder of a file layout, from the start of the file to its end."""

    def __init__(self, file: str = "") -> None:
        self._file = file
        self._frame: list[tuple[int, bytearray]] = []
        self._placed: list[PlacedLeaf] = []
        self._size = 0

    def add(self, text: bytes) -> None:
        """Append bytes of the frame."""
        if self._frame and self._frame[-1][0] + len(self._frame[-1][1]) == self._size:
            self._frame[-1][1].extend(text)
        else:
            self._frame.append((self._size, bytearray(text)))
        self._size += len(text)

    def reserve(self, start: int, stop: int) -> Stretch:
        """Reserve space for a leaf's bytes."""
        stretch = Stretch(start, stop, self._size, self._file)
        self._size += stop - start
        return stretch

    def add_leaf(self, leaf: PytreeLeaf, stretches: Sequence[Stretch]) -> None:
        """Declare the ranges of a leaf as complete."""
        self._placed.append(PlacedLeaf(leaf, tuple(stretches)))

    def layout(self) -> OutputLayout:
        """Return the layout."""
        frames = tuple(FrameBytes(offset, bytes(text), self._file) for offset, text in self._frame)
        return OutputLayout(frames, tuple(self._placed), {self._file: self._size})
