"""Catch the steady training step of a script, from inside its process; loaded through `shims.activate`.

A step is all that syncs run up to the one after the optimizer has stepped: one program, or several where
gradients are accumulated. The first steps differ from those that follow: they make the optimizer's state, or
compile another shape. When the programs of a step come a second time, those of the next one are traced with
the collectives of all replicas, written, and not run. What ran before the step's forward pass began, as an
evaluation does, is no part of it and is run.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrate.fit.lowered import began
from migrate.fit.lowered.began import Began, moment
from migrate.fit.lowered.changed import change
from migrate.fit.lowered.pending import (
    Role,
    World,
    exchanges_nothing,
    is_pending,
    pending_hash,
    pending_program,
    roles,
    runs_alone,
    take_for_run,
    takes_weights,
)
from shims import activate

FOLDER, DEVICES, AT = "MIGRATE_FIT_FOLDER", "MIGRATE_FIT_DEVICES", "MIGRATE_FIT_AT"
PORT = "MIGRATE_FIT_PORT"  # where the process group of the script meets
CHANGED = "MIGRATE_FIT_CHANGED"
PROGRAM, FACTS, STEPS = "program{}.hlo", "program.json", "steps"
# What the reads of a first run gave, for a second one; why a step could not be taken.
VALUES, WHY = "values.json", "why"
# Operators of the steps before the traced one that ran on the host: their inputs have no values in a step
# that is only traced.
ON_HOST = "on_host"
# torch_xla counts a read value as an operator of the host, too.
_READ_COUNTERS = {"aten::_local_scalar_dense", "aten::item"}
_OURS = (__file__, began.__file__)
# So many steps are looked at; where none of them repeats, each would be compiled anew.
MOST_STEPS = 6
# Elements of a value that is kept for a second run.
_LARGE = 100_000
# What a script reads a value with, as far as it is a method of tensors.
_READS = ("item", "tolist", "cpu", "to", "numpy", "__float__", "__int__", "__bool__", "__index__")


def install() -> None:
    """Watch this process, once it imports torch_xla."""
    activate.after_import("torch_xla", lambda: _StepWatch().start())
    if PORT in os.environ:
        activate.after_import("torch_xla._internal.rendezvous", _meet)


def _meet() -> None:
    """Have the process group of the script meet at a port of its own; the script sees no address of it."""
    from shims._simulated.meeting import meet_at

    meet_at(int(os.environ[PORT]))


def graphs_taken() -> int:
    """Number of pending graphs that have been taken to run, counted when they are taken.

    `ExecuteTime` would count when they end: a step that still runs beside a read looks as if the read ran it.
    """
    from torch_xla.debug import metrics

    data = metrics.metric_data("TensorsGraphSize")
    return data[0] if data else 0


def _place() -> str:
    """The line of the script that is running: the innermost one outside of packages and of this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename in _OURS or "-packages" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}"


def written_value(place: str, name: str, value: Any) -> str:
    """A line of `VALUES`: what a read gave; "" of what has no form in JSON, or a large one."""
    import torch

    record = {"place": place, "name": name}
    if isinstance(value, torch.Tensor) or hasattr(value, "dtype"):
        if math.prod(value.shape) > _LARGE:
            return ""
        array = torch.as_tensor(value)
        record |= {"dtype": str(array.dtype), "as": type(value).__name__}
        value = array.tolist()
    try:
        return f"{json.dumps(record | {'value': value})}\n"
    except TypeError:
        return ""


def read_values(text: str) -> dict[tuple[str, str], Any]:
    """Values that the reads of a run returned last, by location and method."""
    import torch

    values: dict[tuple[str, str], Any] = {}
    for line in text.splitlines():
        record = json.loads(line)
        value = record["value"]
        if "dtype" in record:
            value = torch.tensor(
                value, dtype=getattr(torch, record["dtype"].removeprefix("torch."))
            )
            value = value.numpy() if record["as"] == "ndarray" else value
        values[record["place"], record["name"]] = value
    return values


def _is_read(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a method of a tensor brings its values from the device."""
    import torch

    if not args or not isinstance(args[0], torch.Tensor) or args[0].device.type != "xla":
        return False
    if name != "to":
        return True
    meant = (*args[1:2], kwargs.get("device"), kwargs.get("other"))
    places = (target.device if isinstance(target, torch.Tensor) else target for target in meant)
    return any(
        torch.device(device).type == "cpu"
        for device in places
        if isinstance(device, str | torch.device)
    )


class _StepWatch:
    """The steps of one process."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[FOLDER])
        self._at = int(os.environ[AT])  # the step to take; 0: the first after one that repeats
        self._world = World(int(os.environ[DEVICES]))
        # Whether what `--try` was to change was there.
        self._changed: Callable[[], bool] = lambda: True
        self._optimizers = 0
        self._began = Began(_place)
        # The programs of the step that is running, and where it was cut, with autograd's moment of each.
        self._step: list[tuple[int, str]] = []
        self._cuts: list[tuple[int, str]] = []
        self._steps: list[tuple[str, ...]] = []
        self._programs: list[tuple[int, dict[str, Any]]] = []  # of the step that is traced
        self._host = (
            0.0  # seconds of this processor's thread when its tracing began, then that it took
        )
        self._steady = self._traced = False
        self._roles: dict[int, Role] = {}  # when the step that is traced began
        self._waits: list[str] = []  # where a value was read that has nothing to do with the step
        # What each read gave last, by place and method; where a first run was needed, also in that.
        self._values: dict[tuple[str, str], Any] = {}
        if self._at and (self._folder / VALUES).exists():
            self._values = read_values((self._folder / VALUES).read_text())

    def start(self) -> None:
        """Register for each sync, each optimizer step and the end."""
        import torch
        import torch_xla
        from torch.nn.parallel import distributed
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from shims._simulated import resize

        if name := os.environ.get(CHANGED):
            self._changed = change(name)
        self._world.install(self._began.has_begun)
        self._began.install()
        # The ranks of DDP tell each other the shapes of their weights; here is one.
        distributed._verify_param_shape_across_processes = lambda *_, **__: True
        resize.install(lambda: self._traced)
        core = torch_xla._XLAC
        core._set_ir_debug(True)
        # The ends of steps, and shims' collectives, which run at once what is pending.
        for name in ("_xla_step_marker", "_xla_sync_live_tensors"):
            setattr(core, name, functools.partial(self._synchronize, getattr(core, name)))
        register_optimizer_step_post_hook(self._stepped)
        for name in _READS:
            setattr(torch.Tensor, name, self._watched(name, getattr(torch.Tensor, name)))
        if self._at == 1:
            self._trace()

    def _stepped(self, *_: Any) -> None:
        self._optimizers += 1

    def _watched(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of a tensor to record where it made XLA run pending work."""

        @functools.wraps(read)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not _is_read(name, args, kwargs):
                return read(*args, **kwargs)
            place = _place()
            if (
                self._traced
                and (self._programs or not runs_alone(args[0]))
                and not self._is_before(args[0])
            ):
                return self._as_before(place, name, args[0])
            of_the_step = takes_weights(args[0])  # afterwards nothing tells
            before = graphs_taken()
            value = read(*args, **kwargs)
            if graphs_taken() > before:
                if of_the_step:
                    self._cuts.append((moment(), place))
                else:
                    self._waits.append(place)
            self._values[place, name] = value
            if not self._at:
                with (self._folder / VALUES).open("a") as file:
                    file.write(written_value(place, name, value))
            return value

        return watched

    def _as_before(self, place: str, name: str, read: Any) -> Any:
        """Return what a read between the programs of the step that is only traced returned the last time.

        Nothing has been computed: what was all-reduced among N replicas cannot run here.
        """
        import torch

        if (place, name) not in self._values:
            (self._folder / WHY).write_text(place)
            os._exit(1)
        value = self._values[place, name]
        if is_pending(read):  # by then it is there: it is no part of the programs that follow
            known = torch.as_tensor(value, dtype=read.dtype).reshape(read.shape)
            read.data = known.to(read.device)
        return value

    def _is_before(self, read: Any = None) -> bool:
        """Whether the forward pass has not begun yet, and what is pending can run on one replica."""
        return not self._began.has_begun() and exchanges_nothing(read)

    def _trace(self) -> None:
        self._traced = True
        from torch_xla.debug import metrics

        on_host = {name for name in metrics.counter_names() if name.startswith("aten::")}
        on_host = on_host - _READ_COUNTERS or on_host
        (self._folder / ON_HOST).write_text(" ".join(sorted(on_host)))
        self._roles = roles()
        self._began.reset()
        self._world.trace_for_all()
        self._host = time.thread_time()

    def _synchronize(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Inspect what is pending before it runs. If it is only traced, it does not run."""
        if self._traced and not self._optimizers and self._is_before():
            result = run(*args, **kwargs)
            self._host = time.thread_time()
            return result
        if self._traced:
            if self._optimizers:
                self._host = time.thread_time() - self._host
            self._keep(pending_program(self._roles))
            if self._optimizers:
                self._write()
                os._exit(0)  # what was traced for N replicas cannot run on one
            take_for_run()
            return None
        graph_hash = pending_hash()
        if graph_hash is not None:
            self._step.append((moment(), graph_hash))
        if self._optimizers and graph_hash is not None:
            self._stepped_once()
        return run(*args, **kwargs)

    def _stepped_once(self) -> None:
        """Decide after a step whether it equals an earlier one and the next one is to be taken."""
        step = tuple(program for at, program in self._step if self._began.holds(at))
        self._part_cuts()
        self._steady = step in self._steps
        self._steps.append(step)
        (self._folder / STEPS).write_text(str(len(self._steps)))
        if self._at == len(self._steps) + 1 or (
            not self._at and (self._steady or len(self._steps) == MOST_STEPS)
        ):
            if self._cuts:  # parts of the next one would run for N replicas
                self._keep(pending_program())
                self._write()
                os._exit(0)
            self._trace()
        else:
            self._waits.clear()
            self._began.reset()
        self._step, self._optimizers = [], 0
        self._cuts.clear()

    def _part_cuts(self) -> None:
        """Leave the reads of what ran before the step began out of it."""
        self._waits += [place for at, place in self._cuts if not self._began.holds(at)]
        self._cuts = [(at, place) for at, place in self._cuts if self._began.holds(at)]

    def _keep(self, facts: dict[str, Any] | None) -> None:
        """Note a program of the step; one that comes several times in it counts."""
        if facts is None:
            return
        self._programs.append((moment(), facts))

    def _write(self) -> None:
        """Write the programs; the facts last, so that who sees them finds all of it."""
        self._part_cuts()
        programs: dict[str, dict[str, Any]] = {}
        for at, program in self._programs:
            if self._began.holds(at):
                same = programs.setdefault(program["hash"], program | {"times": 0})
                same["times"] += 1
        for number, program in enumerate(programs.values()):
            (self._folder / PROGRAM.format(number)).write_bytes(program.pop("hlo"))
        part = self._folder / f"{FACTS}.part"
        facts = {
            "programs": list(programs.values()),
            "host": self._host if self._traced else 0.0,
            "steady": self._steady,
            "steps": len(self._steps) + int(self._traced),
            "optimizers": self._optimizers,
            "cuts": list(dict.fromkeys(place for _, place in self._cuts)),
            "waits": list(dict.fromkeys(self._waits)),
            "changed": self._changed(),
            "backward": self._began.backward,
        }
        part.write_text(json.dumps(facts))
        part.rename(self._folder / FACTS)
