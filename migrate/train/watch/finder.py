"""First run of a script, inside its process: the lines that train. `shims.activate` loads this module."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from migrate.train.frames import script_frames
from migrate.train.watch import listening
from migrate.train.watch.seeds import seed_torch

FOLDER, SCRIPT, PLACES = "MIGRATE_TRAIN_FOLDER", "MIGRATE_TRAIN_SCRIPT", "places.json"
SAME = "same.json"
UPDATES = 2
# Updates and seconds in which each of several optimizers must have been stepped.
_MOST_UPDATES, _SECONDS = 64, 20.0
# Backwards without any step of an optimizer, after which the search ends; and steps without a backward.
_MOST = 256


def install() -> None:
    """Watch the calls of this process, until its second update of the weights."""
    if FOLDER in os.environ:
        _Finder(Path(os.environ[FOLDER]), os.environ[SCRIPT]).start()


def number_of(optimizer: Any, built: Sequence[Any]) -> int:
    """Number of an optimizer among those that were built; -1 if it is none of them."""
    return next((n for n, known in enumerate(built) if known is optimizer), -1)


def _files(script: str) -> Iterator[str]:
    """Yield the files between this call and the script that are in the script's folder, innermost first."""
    folder = f"{Path(script).parent}{os.sep}"
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != script:
        if frame.f_code.co_filename.startswith(folder):
            yield frame.f_code.co_filename
        frame = frame.f_back


def _names(frame: FrameType, value: Any) -> list[str]:
    """Names of a frame that hold a value."""
    return [n for n, held in {**frame.f_globals, **frame.f_locals}.items() if held is value]


def _same_names(script: str) -> list[str]:
    """Names of one value each in all files of the script's folder that have them."""
    folder = f"{Path(script).parent}{os.sep}"
    own = [
        module
        for name, module in sys.modules.copy().items()
        if name == "__main__" or str(getattr(module, "__file__", None) or "").startswith(folder)
    ]
    values: dict[str, dict[int, Any]] = {}
    for module in own:
        for name, value in vars(module).items():
            values.setdefault(name, {})[id(value)] = value
    return sorted(name for name, held in values.items() if len(held) == 1)


class _Finder:
    """Calls that train, with the script's frames.

    Args:
        folder: receives `places.json`.
        script: the script, as it is run.
    """

    def __init__(self, folder: Path, script: str) -> None:
        self._folder, self._script = folder, script
        self._process = os.getpid()
        self._events: list[dict[str, Any]] = []
        self._updates = self._backwards = self._prepared = 0
        self._built: list[Any] = []  # optimizers, in the order in which the script builds them
        self._steps = Counter[int]()
        self._until = 0.0

    def start(self) -> None:
        """Replace the calls."""
        seed_torch()
        listening.without_compilation()
        listening.without_scaling()
        listening.without_spawning()
        listening.to_backward(self._backward)
        listening.to_clipping(lambda name, result, args, kwargs: self._note(listening.CLIP))
        listening.to_steps(self._step, self._after)
        listening.to_optimizers(self._built.append)
        listening.to_zeroing(lambda: self._note(listening.ZERO))
        listening.to_scaling(lambda: self._note(listening.SCALE))
        listening.to_schedules(
            lambda scheduler: None, lambda scheduler: self._note(listening.SCHEDULE)
        )
        atexit.register(self._write)

    def _note(self, kind: str, which: int = 0, loss: Any = None) -> None:
        frames, frame, between = script_frames(self._script)
        self._events.append(
            {
                "kind": kind,
                "frames": [asdict(frame) for frame in frames],
                "between": between,
                "files": list(_files(self._script)),
                "which": which,
                "names": [] if frame is None or loss is None else _names(frame, loss),
            }
        )

    def _backward(self, loss: Any, run: Any) -> None:
        self._note(listening.BACKWARD, loss=loss)
        self._backwards += 1
        run()
        if self._backwards >= _MOST and not self._updates:
            self._end()

    def _step(self, optimizer: Any) -> None:
        if self._backwards:
            self._note(listening.STEP, number_of(optimizer, self._built))

    def _after(self, optimizer: Any) -> None:
        if (
            not self._backwards
        ):  # a reward model, say, is fitted by torch.autograd.grad before the training
            self._prepared += 1
            if self._prepared >= _MOST:
                self._end()
            return
        self._updates += 1
        self._steps[number_of(optimizer, self._built)] += 1
        if self._updates <= UPDATES:
            return
        self._until = self._until or time.monotonic() + _SECONDS
        waits = any(self._steps[number] <= UPDATES for number in range(len(self._built)))
        if not waits or self._updates >= _MOST_UPDATES or time.monotonic() > self._until:
            self._end()

    def _end(self) -> None:
        self._write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _write(self) -> None:
        if os.getpid() == self._process and self._events:
            (self._folder / SAME).write_text(json.dumps(_same_names(self._script)))
            temporary = self._folder / f"{PLACES}.new"
            temporary.write_text(json.dumps(self._events))
            temporary.rename(self._folder / PLACES)
