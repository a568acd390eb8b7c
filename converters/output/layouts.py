"""Where everything is in an output file, known before a value is read: its frame and each leaf's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from converters.checkpoint.pytree import PytreeLeaf


@dataclass(frozen=True)
class Stretch:
    """Bytes of a leaf that lie together in the file.

    Attributes:
        start: the first of them, in the leaf.
        stop: the one after the last, in the leaf.
        offset: where the first is in the file.
        file: which file of an output that is a folder; "" for an output that is a file.
    """

    start: int
    stop: int
    offset: int
    file: str = ""


@dataclass(frozen=True)
class PlacedLeaf:
    """A leaf and its places in the file, in the order of its bytes."""

    leaf: PytreeLeaf
    stretches: tuple[Stretch, ...]

    def spans(self, start: int, stop: int) -> Iterator[Stretch]:
        """The places of the leaf's bytes from `start` to `stop`."""
        for stretch in self.stretches:
            first, last = max(start, stretch.start), min(stop, stretch.stop)
            if first < last:
                offset = stretch.offset + first - stretch.start
                yield Stretch(first, last, offset, stretch.file)


@dataclass(frozen=True)
class FrameBytes:
    """Bytes of an output that are not values.

    Attributes:
        offset: where they begin.
        data: the bytes.
        file: as in `Stretch`.
    """

    offset: int
    data: bytes
    file: str = ""


@dataclass(frozen=True)
class OutputLayout:
    """An output.

    Attributes:
        frames: what is not values; the first one is what tells readers that something is there at all.
        placed: the leaves, in the order in which they are written.
        sizes: file → its size in bytes; of an output that is a file "" → its size.
        wholes: a placed leaf that is only a part of one (a chunk) → that one.
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
    """A file layout that grows from its start to its end."""

    def __init__(self, file: str = "") -> None:
        self._file = file
        self._frame: list[tuple[int, bytearray]] = []
        self._placed: list[PlacedLeaf] = []
        self._size = 0

    def add(self, text: bytes) -> None:
        """Put bytes of the frame next."""
        if self._frame and self._frame[-1][0] + len(self._frame[-1][1]) == self._size:
            self._frame[-1][1].extend(text)
        else:
            self._frame.append((self._size, bytearray(text)))
        self._size += len(text)

    def place(self, start: int, stop: int) -> Stretch:
        """Keep room for a leaf's bytes next."""
        stretch = Stretch(start, stop, self._size, self._file)
        self._size += stop - start
        return stretch

    def placed(self, leaf: PytreeLeaf, stretches: Sequence[Stretch]) -> None:
        """Say that these are all the places of a leaf."""
        self._placed.append(PlacedLeaf(leaf, tuple(stretches)))

    def built(self) -> OutputLayout:
        """The whole."""
        frames = tuple(FrameBytes(offset, bytes(text), self._file) for offset, text in self._frame)
        return OutputLayout(frames, tuple(self._placed), {self._file: self._size})
