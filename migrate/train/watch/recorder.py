"""Second run of a script, inside its process: its first steps, and its loss as Flax source.

`shims.activate` loads this module. Dropout and autocast are off, so that values can be compared.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from migrate.prove.record.noise.elements import divides
from migrate.train.frames import leave_out, script_frames
from migrate.train.noise import StatementNoise
from migrate.train.watch import listening
from migrate.train.watch.averages import Averages
from migrate.train.watch.calls import building_call, common
from migrate.train.watch.constructors import Constructors
from migrate.train.watch.copies import CopyWatch
from migrate.train.watch.epochs import Epochs
from migrate.train.watch.evaluations import EvaluationWatch
from migrate.train.watch.factors import common_factor
from migrate.train.watch.finder import FOLDER, SCRIPT, number_of
from migrate.train.watch.gate import Gate, Refusal
from migrate.train.watch.modes import follow_modes
from migrate.train.watch.optimizers import OptimizerRecorder
from migrate.train.watch.runner import (
    BEGINS,
    CALLS,
    DRAWN,
    ENDS,
    LOOP,
    PASSED,
    QUESTION,
    SETS_RATE,
    STATEMENT,
    TURN,
)
from migrate.train.watch.seeds import unseeded
from migrate.train.watch.statistics import ForwardQuestion, StatisticsWatch
from migrate.train.watch.values import held_modules, is_data, leaves, plain, snapshot
from migrate.train.watch.wide import WideRun

RECORD = "record.pickle"
_MORE = "pass arguments with which the first two updates show it"
_MOST_LOOPS = 1024
# The script is watched after the recorded updates: for this many of them, and this many seconds. A busy
# machine has more, until as many updates were watched as recorded: a schedule of epochs shows its period.
_MOST_LATER, _SECONDS, _MOST_SECONDS = 200, 20.0, 120.0
_MOST_BYTES = 1 << 26


def install() -> None:
    """Record the steps of this process."""
    if FOLDER in os.environ:
        _Recorder(Path(os.environ[FOLDER]), os.environ[SCRIPT]).start()


class _Recorder:
    """Steps of one script.

    Args:
        folder: has the question (`question.json`), and receives the record.
        script: the script, as it is run.
    """

    def __init__(self, folder: Path, script: str) -> None:
        self._folder, self._script = folder, script
        self._question: dict[str, Any] = json.loads((folder / QUESTION).read_text())
        self._process = os.getpid()
        self._values: dict[str, Any] | None = None
        self._data: dict[str, Any] = {}
        self._grown = ""  # a value of the statements that the model has computed before them
        self._gate: Gate | None = None
        self._expected: dict[str, torch.Tensor | None] = {}
        self._zeroed = False
        leave_out((name, first) for name, first in self._question["handed"])
        rate = self._question["rate"]
        self._optimizers = OptimizerRecorder(
            script, tuple(rate) if rate else None, self._question["setters"]
        )
        self._optimizer: Any = None
        self._built: list[Any] = []  # all optimizers, in the order in which the script builds them
        self._steps = 0  # of all optimizers
        self._earlier: torch.Tensor | None = (
            None  # sum of the losses of earlier backwards of this update
        )
        self._builders: dict[int, Any] = {}
        self._constructors = Constructors()
        self._states: list[Any] = []
        self._loops: list[Any] = []
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._record: dict[str, Any] = {
            "updates": [],
            "autocast": "",
            "later_losses": [],
            "later_scaled": [],
            "rounding": [],
            "scaled": 0,
            "wide": self._question.get("wide", False),
        }
        self._micro: list[dict[str, Any]] = []
        # Factors of the losses of the first backwards, if the script is to weight its micro-batches.
        self._shares: list[float] = self._question.get("shares", [])
        self._later, self._began, self._stepping = 0, 0.0, False
        self._weights: dict[str, torch.Tensor] = {}
        self._clips: list[Any] = []
        self._factor = 1.0  # of the gradients of this update
        self._kept = 0  # bytes of the batches of watched updates
        self._averages: Averages | None = None
        self._copies: CopyWatch | None = None
        self._statistics: StatisticsWatch | None = None
        self._updated = False
        self._noise = StatementNoise(script, self._question)
        self._wide = WideRun() if self._question.get("wide") else None
        self._done = False
        self._epochs = Epochs(script, self._question["batches"], self._question["ends"])
        self._evaluations: EvaluationWatch | None = None
        if self._question["optimizer"] < 0 and self._wide is None and not self._shares:
            self._evaluations = EvaluationWatch(
                script, self._question, folder, self._updates_so_far
            )

    def start(self) -> None:
        """Replace the calls that train, and follow the script's lines."""
        listening.as_compared()
        listening.to_backward(self._backward)
        listening.to_clipping(self._clipped, self._before_clipping)
        listening.to_steps(self._before_step, self._after_step)
        self._constructors.follow()
        listening.to_optimizers(self._built_optimizer)
        listening.to_schedules(self._built_schedule, self._stepped_schedule)
        self._epochs.follow()
        if self._evaluations is not None:
            self._evaluations.listen()
        listening.to_autocast(self._autocast)
        self._modes = follow_modes(self._script)
        atexit.register(self._end_of_script)
        original = sys.excepthook

        def failed(kind: Any, error: Any, trace: Any) -> None:
            self._record["failed"] = f"{kind.__name__}: {error}"
            original(kind, error, trace)

        sys.excepthook = failed
        setattr(builtins, BEGINS, self._begins)
        setattr(builtins, STATEMENT, self._note_draws)
        setattr(builtins, LOOP, self._note_loop)
        setattr(builtins, TURN, self._turn)
        setattr(builtins, DRAWN, self._drawn)
        setattr(builtins, PASSED, self._passed)
        setattr(builtins, SETS_RATE, self._sets_rate)
        setattr(builtins, CALLS, self._calls)
        setattr(builtins, ENDS, self._write_port)

    # ------------------------------------------------------------------ lines of the script

    def _begins(self, local: dict[str, Any], of_module: dict[str, Any]) -> None:
        """Keep what the statements of the loss read, as it is before the first of them."""
        if self._done:
            return
        values = {**of_module, **local}
        for name, expression in self._question["selected"].items():
            with contextlib.suppress(Exception):  # a name without a value is reported by the gate
                values[name] = eval(expression, of_module, local)
        self._values = {name: values[name] for name in self._question["free"] if name in values}
        if self._wide is not None:
            self._wide.begin(_modules(self._values))
        self._data = {
            name: snapshot(value)
            for name, value in self._values.items()
            if not isinstance(value, torch.nn.Module) and is_data(value)
        }
        self._grown = next(
            (
                name
                for name in self._data
                if any(tensor.grad_fn is not None for _, tensor in leaves(self._values[name]))
            ),
            "",
        )
        if self._gate is None:
            self._buffers = [
                (buffer, buffer.detach().clone())
                for module in _modules(self._values)
                for buffer in module.buffers()
            ]
        self._noise.begin()

    def _drawn(self, local: dict[str, Any], of_module: dict[str, Any]) -> None:
        """Keep random numbers that belong to the batch, and are drawn between the statements of the loss."""
        if self._done or self._values is None:
            return
        for name in self._question["drawn"]:
            values = local if name in local else of_module
            if name in values:
                self._values[name], self._data[name] = values[name], snapshot(values[name])

    def _note_draws(self, line: int) -> None:
        """Keep the state of the random generators before a statement of the training function."""
        if len(self._states) < 4096 and not self._record["updates"] and not self._micro:
            self._states.append((line, _generators()))

    def _passed(self, line: int, local: dict[str, Any], of_module: dict[str, Any]) -> None:
        """Note a statement around the training step, before it runs."""
        if self._averages is not None and "average" not in self._record:
            self._averages.before(line, {**of_module, **local})

    def _note_loop(self) -> None:
        """Keep the state of the random generators before each run of the loop over batches."""
        if len(self._loops) < _MOST_LOOPS and not self._done:
            self._loops.append(_generators())
        self._epochs.begin()
        if self._epochs.shown and os.getpid() == self._process:
            self._write_epochs(ended=False)
            self._leave()

    def _turn(self, local: dict[str, Any], of_module: dict[str, Any]) -> bool:
        """Note a turn of the loop over batches; return whether to skip it."""
        return self._epochs.turn(local, of_module)

    def _autocast(self, autocast: Any) -> None:
        frames, _, between = script_frames(self._script)
        if frames and not between:
            self._record["autocast"] = str(autocast.fast_dtype).removeprefix("torch.")

    # ------------------------------------------------------------------ calls that train

    def _built_optimizer(self, optimizer: Any) -> None:
        self._optimizers.built_optimizer(optimizer)
        self._built.append(optimizer)
        self._builders[id(optimizer)] = building_call(self._script)
        if self._wide is not None and self._question["optimizer"] >= 0:
            self._wide.widen(p for group in optimizer.param_groups for p in group["params"])

    def _built_schedule(self, scheduler: Any) -> None:
        self._optimizers.built_schedule(scheduler)
        self._record["schedule_builder"] = building_call(self._script)

    def _stepped_schedule(self, scheduler: Any) -> None:
        self._optimizers.stepped_schedule(scheduler)
        self._epochs.step(id(scheduler))

    def _sets_rate(
        self, name: str, first: int, line: int, local: dict[str, Any], of_module: dict[str, Any]
    ) -> None:
        self._epochs.step(self._optimizers.called_setter((name, first, line), local, of_module))

    def _calls(self, name: str, local: dict[str, Any], of_module: dict[str, Any]) -> None:
        """Follow a function of another file that the loop is about to call, if it sets rates."""
        self._optimizers.follow(name, local, of_module, self._epochs.step)

    def _backward(self, loss: Any, run: Any) -> None:
        if self._evaluations is not None and self._evaluations.runs_again:
            raise RuntimeError("it trains")  # statements of an evaluation, run again
        frames, frame, _ = script_frames(self._script)
        if self._is_other(frames):
            run()
            return
        *earlier, _ = self._question["backwards"]
        if not (frames and frames[0].line in earlier):
            self._noise.end()
        if self._done:
            run()
            return
        try:
            if frames and frames[0].line in earlier:
                self._earlier_backward(loss, run)
            else:
                self._backward_of(loss, run, frames, frame)
                if self._wide is not None:
                    self._wide.end()
        except Refusal as refusal:
            self._refuse(refusal.line or (frames[0].line if frames else 0), refusal)

    def _is_other(self, frames: Any) -> bool:
        """Whether a call belongs to another update than the one that is recorded."""
        return bool(frames) and frames[0].line in self._question["others"]

    def _earlier_backward(self, loss: Any, run: Any) -> None:
        """Run a backward whose loss is a part of this update's."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Refusal("backward starts from more than one number", "sum the losses first")
        if self._shares:
            raise Refusal("an update has several backwards", "leave --global-mean out")
        if self._earlier is None and self._gate is not None:
            self._require_accumulated()
        if self._earlier is None and self._gate is None:
            self._require_fresh()
        value = loss.detach()
        self._earlier = value if self._earlier is None else self._earlier + value
        run()

    def _require_fresh(self) -> None:
        """Require that no gradient is left before the first backward of an update."""
        dirty = [p for p in self._own() if p.grad is not None and p.grad.any()]
        if dirty:
            raise Refusal("gradients are there before the first backward", "start with zero_grad()")

    def _own(self) -> list[torch.Tensor]:
        """Parameters of the optimizer of this update, if there are several updates."""
        number = self._question["optimizer"]
        groups = self._built[number].param_groups if number >= 0 else []
        return [parameter for group in groups for parameter in group["params"]]

    def _owners(self) -> dict[int, tuple[int, int]]:
        """Parameters of all optimizers: the optimizer's number, and the position in it."""
        return {
            id(parameter): (number, position)
            for number, optimizer in enumerate(self._built)
            for position, parameter in enumerate(
                [p for group in optimizer.param_groups for p in group["params"]]
            )
        }

    def _backward_of(self, loss: Any, run: Any, frames: Any, frame: Any) -> None:
        if self._values is None or frame is None:
            raise Refusal("its backward came before its statements", "report this with the script")
        if self._grown:
            raise Refusal(
                f"{self._grown} is computed from the model, and from numbers that change between steps",
                "compute what changes between steps before the model is called",
                computed=[self._grown],
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Refusal("backward starts from more than one number", "sum the losses first")
        share = self._shares.pop(0) if self._shares else 1.0
        if self._gate is None:
            # What is put back counts as unchanged: a later loss of the script may read the same graph.
            modules = [*_modules(self._values)]
            tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
            silent = self._evaluations.silent() if self._evaluations else contextlib.nullcontext()
            with torch.autograd._unsafe_preserve_version_counter(tuple(tensors)), silent:
                self._open(loss, run, frame, share)
            assert self._gate is not None
            if self._evaluations is not None:
                self._gate.evaluations = self._evaluations
                self._evaluations.state = self._gate.state
        else:
            if frames[0].line not in self._question["backwards"]:
                raise Refusal("a second backward, after the first updates", _MORE)
            self._gate.compare_state(frame, self._values)
            self._observe_averages()
            if self._earlier is None:
                self._require_accumulated()
            with self._apart():
                self._gate.require_settings(self._data)
            run(share)
            with self._apart():
                self._gate.note_sizes(self._data)
            self._record |= self._gate.port_facts()
        self._zeroed = False
        self._expected = self._gate.copied_gradients()
        if self._earlier is not None:
            loss, self._earlier = loss.detach() + self._earlier, None
        self._note_rounding(float(loss.detach()))
        if self._is_later:
            self._micro.append({"loss": float(loss.detach()), "batch": self._later_batch()})
            self._values = None
            return
        self._record["frames"] = common(self._record["frames"], self._gate.running(frame))
        leaf_names = self._gate.inputs
        batch = {name: plain(self._data[name]) for name in self._gate.data}
        missing = [key for key in leaf_names if not _has(self._data, *key)]
        if missing:
            raise Refusal(
                f"the batch has no {missing[0]} in a later step", "give each batch the same keys"
            )
        flat = {
            argument: plain(_leaf(self._data[root], path))
            for (root, path), argument in leaf_names.items()
        }
        value = share * float(loss.detach()) if share else 0.0
        self._micro.append({"batch": batch, "inputs": flat, "loss": value})
        if len(self._record["updates"]) == 0 and len(self._micro) == 1:
            self._record["gradients"] = self._expected
        if len(self._record["updates"]) == 0:
            self._record["summed"] = self._expected
        self._values = None

    def _open(self, loss: torch.Tensor, run: Any, frame: Any, share: float) -> None:
        """Compare the statements of the first loss with the script, and keep what the program depends on."""
        self._noise.decide()
        drawn = bool(self._noise.is_drawn)
        self._gate = Gate(
            self._question, self._folder, frame, self._constructors.arguments, noise=drawn
        )
        self._gate.earlier = self._earlier
        if self._question["optimizer"] >= 0:
            self._gate.owners = self._owners()
        assert self._values is not None
        self._gate.open(loss, run, self._values, self._data, self._buffers)
        self._gate.scale_gradients(share)
        self._record |= self._gate.facts()
        self._record["unseeded"] = unseeded()
        self._record["trained"] = self._gate.trained_names(frame)
        self._record["places"] = self._gate.module_places(frame)
        self._averages = Averages(self._gate.step, frame)
        self._copies = CopyWatch(self._gate.step)
        question = self._question
        asked = ForwardQuestion(
            tuple(question["loop"]),
            lambda: self._steps,
            question["updates"],
            self._folder,
            [name for name, _ in question["known"]],
            question["ports"],
        )
        self._statistics = StatisticsWatch(
            self._gate.step,
            self._script,
            question["losses"],
            asked if question["optimizer"] >= 0 else None,
        )
        self._record["frames"] = self._gate.running(frame)
        self._record["constructors"] = self._constructors.of(self._gate.step)

    def _note_rounding(self, loss: float) -> None:
        """Note how large the rounding of a loss's terms is, where they cancel: the update, and the part."""
        assert self._gate is not None
        if self._gate.may_cancel(loss) and all(_has(self._data, *key) for key in self._gate.inputs):
            with self._apart():
                rounding = self._gate.rounding({n: self._data[n] for n in self._gate.data})
            update = len(self._record["updates"]) + self._later
            self._record["rounding"].append((update, rounding))

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Context for runs of the step that are none of the script's. Their time is none of the watch."""
        assert self._gate is not None
        start, stepping = time.monotonic(), self._stepping
        self._stepping = True
        # What is put back counts as unchanged: a later loss of the script may read the same graph.
        tensors = (*self._gate.step.parameters(), *self._gate.step.buffers())
        silent = self._statistics.silent() if self._statistics else contextlib.nullcontext()
        unseen = self._evaluations.silent() if self._evaluations else contextlib.nullcontext()
        try:
            with silent, unseen, torch.autograd._unsafe_preserve_version_counter(tensors):
                yield
        finally:
            self._stepping = stepping
            self._began += time.monotonic() - start

    def _write_port(self) -> None:
        """Write the loss of the recorded updates as Flax source, once."""
        if self._gate is None or self._done or not self._record["updates"]:
            return
        try:
            with self._apart():
                self._gate.write_port()
            self._record |= self._gate.port_facts()
        except Refusal as refusal:
            self._refuse(refusal.line or self._question["backwards"][-1], refusal)

    def _later_batch(self) -> dict[str, Any]:
        """The batch of a watched update if its gradients are scaled, for as long as memory is left for it."""
        assert self._gate is not None
        named = {name: self._data[name] for name in self._gate.data}
        self._kept += sum(tensor.nbytes for value in named.values() for _, tensor in leaves(value))
        if not self._record["scaled"] or self._kept > _MOST_BYTES:
            return {}
        return {name: plain(value) for name, value in named.items()}

    def _observe_averages(self) -> None:
        """Note the averages of the weights once after each update, before the next one."""
        if self._updated and self._averages is not None:
            self._averages.observe(self._weights)
            if len(self._record["updates"]) == self._question["updates"] and not self._later:
                self._record["average"] = self._averages.recorded()
                self._record["unknown_averages"] = self._averages.unknown()
        self._updated = False

    def _require_accumulated(self) -> None:
        """The gradients must be what the last call left of them: the sum since the last update."""
        assert self._gate is not None
        now = self._gate.gradients()
        fresh = not self._micro
        for name, gradient in now.items():
            if fresh:
                if gradient is not None and bool(gradient.any()):
                    raise Refusal(
                        "gradients of an earlier update are still there at this backward",
                        "call optimizer.zero_grad() once in each update",
                    )
            elif not _same(gradient, self._expected[name]):
                raise Refusal(
                    "gradients change between two backwards of one update",
                    "accumulate gradients by backward alone",
                )

    def _clipped(self, name: str, result: Any, args: Any, kwargs: Any) -> None:
        frames, _, _ = script_frames(self._script)
        line = frames[0].line if frames else 0
        if self._gate is None or self._done or self._is_others_clip(line):
            return
        clip = self._gate.clip(name, args, kwargs, line)
        if not self._record["updates"]:
            self._optimizers.clips.append(clip)
        self._clips.append(clip)
        self._expected = self._gate.copied_gradients()

    def _is_others_clip(self, line: int) -> bool:
        """Whether a line clips the gradients of another update."""
        return self._question["optimizer"] >= 0 and line not in self._question["clips"]

    def _before_clipping(self) -> None:
        frames, _, _ = script_frames(self._script)
        if (
            self._gate is None
            or self._done
            or self._is_others_clip(frames[0].line if frames else 0)
        ):
            return
        try:
            self._settle_gradients(frames[0].line if frames else 0)
        except Refusal as refusal:
            self._refuse(refusal.line, refusal)

    def _settle_gradients(self, line: int) -> None:
        """Require the gradients that the last backward left, or all of them times one factor."""
        assert self._gate is not None
        now = self._gate.gradients()
        changed = [n for n, gradient in now.items() if not _same(gradient, self._expected.get(n))]
        if not changed:
            return
        once = self._factor == 1 and not self._clips
        factor = common_factor(self._expected, now) if once else None
        if factor is None:
            raise _at(
                line,
                Refusal(
                    f"the gradient of {changed[0]} is changed between backward and here",
                    "scale the loss instead of its gradients, or all gradients by one factor before they "
                    "are clipped",
                ),
            )
        self._factor, self._record["scaled"] = factor, line
        self._expected = self._gate.copied_gradients()
        if not self._record["updates"]:
            self._record["summed"] = self._expected

    def _is_others_step(self, optimizer: Any) -> bool:
        """Whether another optimizer is stepped than that of the update that is recorded."""
        own = self._question["optimizer"]
        return own >= 0 and number_of(optimizer, self._built) != own

    def _before_step(self, optimizer: Any) -> None:
        frames, frame, _ = script_frames(self._script)
        line = frames[0].line if frames else 0
        self._optimizers.stepped_optimizer(optimizer)
        if self._is_others_step(optimizer) and line in self._question["others"]:
            return
        if self._gate is None or self._done:
            return
        try:
            self._settle_gradients(line)
            if self._optimizer is None:
                self._optimizer = optimizer
            elif self._optimizer is not optimizer:
                raise Refusal("a second optimizer is stepped", "one optimizer is supported")
            self._require_same_update(line)
            self._stepping = True
            names = self._gate.names()
            self._rates = self._optimizers.before_update(optimizer, names, frame)
        except Refusal as refusal:
            self._refuse(refusal.line or line, refusal)

    def _require_same_update(self, line: int) -> None:
        """The update must be made of the calls of the first, from the weights that the last one left."""
        assert self._gate is not None
        if line not in self._question["steps"]:
            raise Refusal("a call of step that the first updates do not reach", _MORE)
        if not self._micro:
            raise Refusal("the optimizer is stepped without a backward", "step it after a backward")
        if self._clips != self._optimizers.clips:
            raise Refusal(
                "the clipping of gradients is not the one of the first update",
                "clip in each update alike",
            )
        self._clips = []
        changed = [
            name
            for name, weight in self._gate.step.named_parameters()
            if name in self._weights
            and self._gate.is_own(weight)
            and not torch.equal(weight, self._weights[name])
        ]
        update = len(self._record["updates"]) + self._later
        copies = self._copies
        if changed and not (copies and copies.explain(changed, update, self._weights)):
            raise Refusal(
                f"{changed[0]} is changed between two updates, not by the optimizer",
                "only changes by the optimizer, and copies of trained weights, are supported",
            )

    def _after_step(self, optimizer: Any) -> None:
        was_later = self._is_later
        frames, _, _ = script_frames(self._script)
        if frames and frames[0].line in (*self._question["steps"], *self._question["others"]):
            self._steps += 1
        if self._gate is None or self._done:
            return
        if self._is_others_step(optimizer):
            if self._is_later and not was_later:
                self._watch()
            return
        self._weights = {
            name: weight.detach().clone() for name, weight in self._gate.step.named_parameters()
        }
        self._updated = True
        if was_later:
            self._record["later_losses"].append([micro["loss"] for micro in self._micro])
            if self._record["scaled"]:
                batches = [micro["batch"] for micro in self._micro]
                whole = batches if all(batches) else []
                self._record["later_scaled"].append((whole, self._factor))
            self._micro, self._factor = [], 1.0
            self._later += 1
            self._stepping = False
            if self._evaluations is not None and self._evaluations.fresh:
                self._write_port()
            if self._has_seen_enough():
                self._end_watch()
            return
        if self._statistics is not None:
            self._statistics.updated()
        updates = self._record["updates"]
        updates.append(
            {
                "micro": self._micro,
                "rates": self._rates,
                "factor": self._factor,
                "number": self._steps - 1,
            }
        )
        self._micro, self._factor = [], 1.0
        # The last one is kept at once: what the script does after its training may change the weights.
        self._record["last" if len(updates) > 1 else "first"] = self._gate.state()
        self._record["divides"] = divides(optimizer)
        self._stepping = False
        if self._is_later:
            self._watch()

    def _watch(self) -> None:
        """Watch the script for some time after the recorded updates."""
        if self._wide is not None:  # its other run is watched
            self._write()
            self._leave()
        self._write_port()
        self._began = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            # An evaluation between two updates may take longer than the time to watch.
            signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, _SECONDS)

    def _alarm(self, number: int, frame: Any) -> None:
        """End the watch, unless an update is just being made: its end does."""
        if self._epochs.hurried and os.getpid() == self._process:
            self._write_epochs(ended=False)
            self._leave()
        if self._stepping or os.getpid() != self._process or self._done:
            return
        running = self._evaluations is not None and self._evaluations.fresh
        if running or not self._has_seen_enough():
            signal.setitimer(signal.ITIMER_REAL, 1.0)
        else:
            self._end_watch()

    def _end_watch(self) -> None:
        """End the run, or hurry through an epoch if the updates do not show when a schedule is stepped."""
        self._write()
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or self._optimizers.shows_steps():
            self._leave()
        self._epochs.hurry()
        signal.signal(signal.SIGALRM, self._alarm)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)

    def _write_epochs(self, *, ended: bool) -> None:
        """Write the record again, with the updates in an epoch of each schedule that is stepped after it."""
        counts = {len(update["micro"]) for update in self._record["updates"]}
        epochs = {}
        for scheduler in self._optimizers.schedulers():
            turns = self._epochs.turns(scheduler, ended=ended)
            if len(counts) == 1 and turns % (count := max(counts)) == 0:
                epochs[scheduler] = turns // count
        recorded = self._record["optimizer"]
        self._record["optimizer"] = self._optimizers.with_epochs(recorded, epochs)
        self._record["modes"] = sorted(self._modes)
        self._record["schedule_lines"] = sorted(self._optimizers.lines)
        self._dump()

    def _updates_so_far(self) -> int:
        return len(self._record["updates"]) + self._later

    def _has_seen_enough(self) -> bool:
        """Whether the watch may end."""
        seconds = time.monotonic() - self._began
        return watched_enough(self._later, self._question["updates"], seconds)

    @property
    def _is_later(self) -> bool:
        """Whether all updates are recorded, and the script is only watched."""
        if self._question["optimizer"] >= 0:
            return self._steps >= self._question["updates"]
        return len(self._record["updates"]) >= self._question["updates"]

    # ------------------------------------------------------------------ the end

    def _refuse(self, line: int, refusal: Refusal) -> None:
        refused = (line, refusal.what, refusal.remedy)
        self._record = {
            "refused": refused,
            "changing": refusal.changing,
            "computed": refusal.computed,
        }
        self._write()
        self._leave()

    def _end_of_script(self) -> None:
        if os.getpid() != self._process or self._gate is None:
            return
        if self._done:
            if self._epochs.hurried:
                self._write_epochs(ended="failed" not in self._record)
            return
        if self._record["updates"]:
            self._observe_averages()
            ended = self._record["ended"] = "failed" not in self._record
            self._write()
            if not self._optimizers.shows_steps():  # one epoch or two: their ends show it
                self._write_epochs(ended=ended)

    def _write(self) -> None:
        self._done = True
        self._record["later"], self._record["steps"] = self._later, self._steps
        self._record["copies"] = self._copies.recorded if self._copies else None
        self._record["moved"] = self._statistics.recorded() if self._statistics else []
        if (average := self._record.get("average")) and self._averages is not None:
            now = self._averages.recorded()
            if now is None or now.decay != average.decay:
                self._record["average"] = None  # its rule changes after the recorded updates
                self._record["unknown_averages"].append(average.name)
        if self._question["optimizer"] >= 0 and self._averages is not None:
            average = self._averages.recorded()
            names = [average.name] if average else []
            self._record["unknown_averages"] = [*names, *self._averages.unknown()]
        # A script that ended has shown all of its steps.
        self._record["idle"] = [] if self._record.get("ended") else self._optimizers.idle_lines()
        self._record["modes"] = sorted(self._modes)
        if self._evaluations is not None and "refused" not in self._record:
            self._record["evaluations"] = self._evaluations.recorded()
            self._record["evaluated_states"] = self._evaluations.states
        if self._gate is not None and "refused" not in self._record:
            without = [n for n, g in self._record["gradients"].items() if g is None]
            self._record["optimizer"] = self._optimizers.recorded(
                tuple(without), self._question["file"]
            )
            self._record["draws"], self._record["loops"] = self._states, self._loops
            self._record["builder"] = self._builders.get(id(self._optimizer))
        self._record["schedule_lines"] = sorted(self._optimizers.lines)
        self._dump()

    def _dump(self) -> None:
        temporary = self._folder / f"{RECORD}.new"
        with temporary.open("wb") as file:
            pickle.dump(self._record, file)
        temporary.rename(self._folder / RECORD)

    def _leave(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def watched_enough(later: int, recorded: int, seconds: float) -> bool:
    """Whether a watch after the recorded updates may end.

    Args:
        later: number of watched updates.
        recorded: number of recorded updates.
        seconds: how long it has watched.
    """
    if later >= _MOST_LATER or seconds > _MOST_SECONDS:
        return True
    return seconds >= _SECONDS and later >= recorded


def _modules(values: dict[str, Any]) -> Iterator[torch.nn.Module]:
    for value in values.values():
        if isinstance(value, torch.nn.Module):
            yield value
        else:
            yield from (module for _, module in held_modules(value))


def _generators() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state().numpy().copy(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
    }


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return (a is None or not bool(a.any())) and (b is None or not bool(b.any()))
    return torch.equal(a, b)


def _at(line: int, refusal: Refusal) -> Refusal:
    refusal.line = line
    return refusal


def _has(data: dict[str, Any], root: str, path: tuple[Any, ...]) -> bool:
    return root in data and path in {known for known, _ in leaves(data[root])}


def _leaf(value: Any, path: tuple[Any, ...]) -> torch.Tensor:
    return next(tensor for known, tensor in leaves(value) if known == path)
