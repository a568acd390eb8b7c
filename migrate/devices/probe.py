"""The process that probes the chips: `python -m migrate.devices.probe FILE OPTIONS`.

What it sees it writes to the file at once, a JSON value a line, so that all of it is there if a chip hangs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from migrate.devices.faults import lost_chip, plant
from migrate.devices.programs import (
    ALL_REDUCE,
    ChipJob,
    checksum,
    digest,
    jobs,
    lost_contribution,
    not_finite,
    relative,
)
from migrate.devices.report import Chip

Array = np.ndarray[Any, Any]
Take = Callable[[], Array]
_SIZES = {"cpu": 256}
_SIZE = 2048


class Chips(Protocol):
    """A runtime with its local devices.

    Attributes:
        runtime: name and version of the runtime.
        platform: "tpu", "gpu", "cpu".
        chips: the devices.
        left_out: kinds of jobs that it is not asked for → why.
    """

    runtime: str
    platform: str
    chips: tuple[Chip, ...]
    left_out: Mapping[str, str]

    def prepared(self, job: ChipJob) -> Callable[[], dict[int, Take]]:
        """Return a function that starts the job on all chips and returns one waiter for each chip."""


class Events:
    """The file of events."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, event: str, **values: Any) -> None:
        """Add one."""
        with self._file.open("a") as file:
            file.write(json.dumps({"event": event} | values) + "\n")


class ChipProbe:
    """Probe of all chips.

    Args:
        chips: the chips of one runtime.
        events: file for the events.
        options: options, see `devices.ProbeOptions`.
    """

    def __init__(self, chips: Chips, events: Events, options: Mapping[str, Any]) -> None:
        self._chips, self._events, self._options = chips, events, options
        self._plant = plant(options["fault"])
        self._lost = lost_chip(options["fault"])
        self._silent: set[int] = set()

    def run(self) -> None:
        """Run every program on every chip."""
        size = self._options["size"] or _SIZES.get(self._chips.platform, _SIZE)
        self._events.write(
            "chips",
            runtime=self._chips.runtime,
            chips=[dataclasses.asdict(chip) for chip in self._chips.chips],
            repeats=self._options["repeats"],
            size=size,
        )
        for job in jobs(size, len(self._chips.chips)):
            if why := self._left_out(job):
                self._events.write("left out", op=job.name, why=why)
                continue
            self._events.write("running", op=job.name, limit=job.limit)
            try:
                launch = self._chips.prepared(self._with_loss(job))
                self._repeat(job, launch)
            except Exception as error:
                self._events.write("failed", op=job.name, what=_line(error))

    def _left_out(self, job: ChipJob) -> str:
        if job.name == ALL_REDUCE and self._silent:
            return "a chip does not answer, so that it would hang"
        return self._chips.left_out.get(job.kind, "")

    def _with_loss(self, job: ChipJob) -> ChipJob:
        if self._lost is None or job.name != ALL_REDUCE:
            return job
        (array,) = job.inputs
        place = [chip.id for chip in self._chips.chips].index(self._lost)
        without = array.copy()
        without[place] = 0
        return dataclasses.replace(job, inputs=(without,))

    def _repeat(self, job: ChipJob, launch: Callable[[], dict[int, Take]]) -> None:
        known: dict[str, Array] = {}
        votes: dict[str, int] = {}
        for repeat in range(self._options["repeats"]):
            takes = {
                chip: self._planted(chip, job, repeat, take)
                for chip, take in launch().items()
                if chip not in self._silent
            }
            results = collected(takes, self._options["answer_seconds"])
            for chip in takes:
                if chip not in results:
                    self._silent.add(chip)
                    self._events.write("no answer", op=job.name, repeat=repeat, chip=chip)
                    continue
                value = results[chip]
                if isinstance(value, Exception):
                    self._events.write(
                        "error", op=job.name, repeat=repeat, chip=chip, what=_line(value)
                    )
                    continue
                key = digest(value)
                known.setdefault(key, value)
                votes[key] = votes.get(key, 0) + 1
                self._result(job, repeat, chip, key, value)
        self._differences(job, known, votes)

    def _planted(self, chip: int, job: ChipJob, repeat: int, take: Take) -> Take:
        planted = self._plant
        if planted is None:
            return take
        return lambda: planted(chip, job.name, repeat, take())

    def _result(self, job: ChipJob, repeat: int, chip: int, key: str, value: Array) -> None:
        lost = lost_contribution(value, job) if job.name == ALL_REDUCE else None
        self._events.write(
            "result",
            op=job.name,
            repeat=repeat,
            chip=chip,
            digest=key,
            checksum=checksum(value),
            not_finite=not_finite(value),
            error=relative(value, job.truth),
            lost=None if lost is None else self._chips.chips[lost].id,
        )

    def _differences(self, job: ChipJob, known: dict[str, Array], votes: dict[str, int]) -> None:
        """Return how far the rarer results are from the commonest."""
        common = max(votes, key=lambda key: votes[key], default="")
        for key, value in known.items():
            if key != common:
                a, b = (array.astype(np.float64) for array in (value, known[common]))
                with np.errstate(invalid="ignore"):
                    apart = np.abs(a - b)
                self._events.write(
                    "difference",
                    op=job.name,
                    digest=key,
                    elements=int((~(a == b)).sum()),
                    largest=float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max()),
                )


def collected(takes: Mapping[int, Take], seconds: float) -> dict[int, Array | Exception]:
    """Return the result of each chip within the time. Chips that do not answer are left out."""
    results: dict[int, Array | Exception] = {}

    def take(chip: int) -> None:
        try:
            results[chip] = takes[chip]()
        except Exception as error:
            results[chip] = error

    threads = [threading.Thread(target=take, args=(chip,), daemon=True) for chip in takes]
    for thread in threads:
        thread.start()
    deadline = threading.Event()
    timer = threading.Timer(seconds, deadline.set)
    timer.daemon = True
    timer.start()
    while any(thread.is_alive() for thread in threads) and not deadline.is_set():
        for thread in threads:
            thread.join(0.01)
    timer.cancel()
    return dict(results)


def local_chips(runtime: str = "") -> Chips:
    """The chips of a runtime: "jax" or "torch_xla".

    "" is JAX, or torch_xla where JAX is not installed or, on a machine with a TPU, sees its CPU only.

    Raises:
        ImportError: neither is installed.
    """
    from importlib.util import find_spec

    from shims.tpu import tpu_device_files

    if runtime != "torch_xla" and find_spec("jax") is not None:
        from migrate.devices.jax import JaxChips

        chips = JaxChips()
        if runtime or chips.platform != "cpu" or not tpu_device_files():
            return chips
        if find_spec("torch_xla") is None:
            return chips
    from migrate.devices.xla import TorchXlaChips

    return TorchXlaChips()


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def main(file: Path, options: Mapping[str, Any]) -> None:
    """Probe and write; a thread that waits for a dead chip does not keep the process."""
    events = Events(file)
    ChipProbe(local_chips(options["runtime"]), events, options).run()
    events.write("done")
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
