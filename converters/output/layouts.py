"""Where everything is in an output file, known before a value is read: its frame and each leaf's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from converters.checkpoint.pytree import Leaf


@dataclass(frozen=True)
class Stretch:
    """Bytes of a leaf that lie together in the file.

    Attributes:
        start: the first of them, in the leaf.
        stop: the one after the last, in the leaf.
        offset: where the first is in the file.
    """

    start: int
    stop: int
    offset: int


@dataclass(frozen=True)
class Placed:
    """A leaf and its places in the file, in the order of its bytes."""

    leaf: Leaf
    stretches: tuple[Stretch, ...]

    def spans(self, start: int, stop: int) -> Iterator[Stretch]:
        """The places of the leaf's bytes from `start` to `stop`."""
        for stretch in self.stretches:
            first, last = max(start, stretch.start), min(stop, stretch.stop)
            if first < last:
                yield Stretch(first, last, stretch.offset + first - stretch.start)


@dataclass(frozen=True)
class FileLayout:
    """An output file.

    Attributes:
        frame: what is not values: offset and bytes; the first is at the start of the file.
        placed: the leaves, in the order of the file.
        size: of the file, in bytes.
    """

    frame: tuple[tuple[int, bytes], ...]
    placed: tuple[Placed, ...]
    size: int


class FileLayoutBuilder:
    """A file layout that grows from its start to its end."""

    def __init__(self) -> None:
        self._frame: list[tuple[int, bytearray]] = []
        self._placed: list[Placed] = []
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
        stretch = Stretch(start, stop, self._size)
        self._size += stop - start
        return stretch

    def placed(self, leaf: Leaf, stretches: Sequence[Stretch]) -> None:
        """Say that these are all the places of a leaf."""
        self._placed.append(Placed(leaf, tuple(stretches)))

    def built(self) -> FileLayout:
        """The whole."""
        frame = tuple((offset, bytes(text)) for offset, text in self._frame)
        return FileLayout(frame, tuple(self._placed), self._size)
