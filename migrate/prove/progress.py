"""Progress of a running script, in optimizer steps."""

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
    count_steps: Callable[[], int],
    seconds: float = _LOOK_SECONDS,
) -> Iterator[None]:
    """While the block runs, report the number of steps each time it has grown.

    Args:
        tell: takes the number of steps.
        count_steps: counts the steps so far.
        seconds: the time between two counts.
    """
    over = threading.Event()

    def watch() -> None:
        last = 0
        while not over.wait(seconds):
            if (now := count_steps()) > last:
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
    """Number of optimizer steps recorded in a folder, on the rank with the most."""
    # The first line of each is its header.
    return max((_lines(path) - 1 for path in folder.glob("rank*.pid*.jsonl")), default=0)


class ObservedSteps:
    """Count of the optimizer steps that the replicas of a watched run have written.

    Args:
        folder: folder of `migrate.observe`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # For each file: the length that was read, and the steps in that part.
        self._read: dict[Path, tuple[int, int]] = {}

    def __call__(self) -> int:
        """Number of steps of the replica with the most."""
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
