"""Progress of a script that runs, in optimizer steps."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK_SECONDS = 0.5


@contextlib.contextmanager
def steps_told(
    tell: Callable[[int], None],
    made: Callable[[], int],
    seconds: float = _LOOK_SECONDS,
) -> Iterator[None]:
    """While the block runs, report the number of steps each time that it has grown.

    Args:
        tell: takes the number of steps.
        made: counts the steps so far.
        seconds: the time between two counts.
    """
    over = threading.Event()

    def watch() -> None:
        last = 0
        while not over.wait(seconds):
            if (now := made()) > last:
                last = now
                tell(now)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def recorded_steps(folder: Path) -> int:
    """The optimizer steps that the rank which has come farthest has recorded in a folder."""
    # The first line of each is its header.
    return max((_lines(path) - 1 for path in folder.glob("rank*.pid*.jsonl")), default=0)


class ObservedSteps:
    """The optimizer steps that the replicas of a watched run have written of.

    Args:
        folder: of `migrate.observe`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Of each file: how much of it was read, and the steps in that.
        self._read: dict[Path, tuple[int, int]] = {}

    def __call__(self) -> int:
        """Those of the replica that has come farthest."""
        for path in self._folder.glob("observed.*.jsonl"):
            begin, steps = self._read.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(begin)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    begin += len(line)
                    steps += json.loads(line)["optimizer_steps"]
            self._read[path] = begin, steps
        return max((steps for _, steps in self._read.values()), default=0)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
