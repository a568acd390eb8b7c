"""How far a script that runs has come, told while it runs: step i of n."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from migrate.counts import many

# How often it is looked at, and the least between two messages: in a log each is a line.
_LOOK_SECONDS, _TELL_SECONDS = 0.5, 5.0


@contextlib.contextmanager
def steps_told(
    tell: Callable[[str], None],
    made: Callable[[], int],
    total: int | None = None,
    seconds: float = _TELL_SECONDS,
) -> Iterator[None]:
    """While the block runs, tell of each further step that was made, now and then.

    Args:
        tell: takes "step 3 of 16", or "3 steps" where nobody knows how many there will be.
        made: how many were made so far.
        total: how many there will be; None: unknown.
        seconds: the least between two messages.
    """
    over = threading.Event()

    def watch() -> None:
        last, waited = 0, seconds
        while not over.wait(min(_LOOK_SECONDS, seconds)):
            waited += _LOOK_SECONDS
            if waited >= seconds and (now := made()) > last:
                last, waited = now, 0.0
                tell(f"step {now} of {total}" if total else many(now, "step"))

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
