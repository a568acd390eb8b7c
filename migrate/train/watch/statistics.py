"""Statements of the script that move running statistics outside of its updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from migrate.train.frames import Frame, script_frames
from migrate.train.watch.forwards import SeenForwards, inputs_of, note, write_forward


@dataclass(frozen=True)
class MovedStatistics:
    """Buffers that one statement moves outside of the updates.

    Attributes:
        line: line of the statement.
        modules: modules of the step that it runs.
        buffers: names of the buffers, as the step's state has them.
        before: whether it moves them before the last recorded update.
        text: position and text of the statement, for messages.
        forwards: its calls of one module of the step, if it makes no other ones.
        frame: frame of the statement.
    """

    line: int
    modules: tuple[str, ...]
    buffers: tuple[str, ...]
    before: bool
    text: str = ""
    forwards: SeenForwards | None = None
    frame: Frame | None = None


@dataclass(frozen=True)
class ForwardQuestion:
    """Limits within which calls are kept, and ported.

    Attributes:
        function: name of the function with the training loop, and its first line.
        updates: gives the number of updates so far.
        most: number of updates after which no call is kept.
        folder: receives the ports.
        known: modules of updates before this one, which keep their own calls.
        ports: whether the calls are ported.
    """

    function: tuple[str, int]
    updates: Callable[[], int]
    most: int
    folder: Path
    known: Sequence[str]
    ports: bool


class StatisticsWatch:
    """Forward calls of a step's modules that change buffers, with the statement that makes each.

    Args:
        step: the step.
        script: the script, as it is run.
        losses: statements that the program has: function, first line of the function, spans of lines.
        asked: what to keep of the calls; None: nothing.
    """

    def __init__(
        self,
        step: nn.Module,
        script: str,
        losses: Sequence[tuple[str, int, Sequence[tuple[int, int]]]],
        asked: ForwardQuestion | None = None,
    ) -> None:
        self._step, self._script, self._losses, self._asked = step, script, losses, asked
        self._seen: dict[int, SeenForwards] = {}  # by line
        self._frame_of: dict[int, Frame] = {}
        self._inputs: dict[str, Any] | None = None  # of the outermost call
        self._frames: list[Frame] = []  # of the outermost call of a module that runs
        self._depth = 0
        self._held: list[dict[str, torch.Tensor]] = []
        self._moved: dict[int, dict[str, bool]] = {}  # line → buffer → whether an update follows
        self._fresh: set[tuple[int, str]] = set()  # since the last update
        self._hooks: list[Any] = []
        self._listen()

    def _listen(self) -> None:
        modules = dict(self._step.named_modules())
        owners = {name for name, module in modules.items() if name and module._buffers}
        around = {name[:end] for name in owners for end in _ends(name)}
        for name in around & modules.keys():
            before = modules[name].register_forward_pre_hook(self._before, with_kwargs=True)
            after = modules[name].register_forward_hook(self._noting(name), always_call=True)
            self._hooks += [before, after]

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._depth:
            self._frames, _, _ = script_frames(self._script)
            self._inputs = inputs_of(module, args, kwargs)
            if self._inputs is not None:
                self._inputs = {name: x.detach().clone() for name, x in self._inputs.items()}
        self._depth += 1
        buffers = {n: b.detach().clone() for n, b in module._buffers.items() if b is not None}
        self._held.append(buffers)

    def _noting(self, name: str) -> Any:
        def after(module: nn.Module, *_: Any) -> None:
            self._depth -= 1
            held = self._held.pop()
            for key, value in held.items():
                if not torch.equal(value, module._buffers[key]):
                    self._note(f"{name}.{key}")
            if not self._depth:
                self._note_call(name, module)

        return after

    def _note(self, name: str) -> None:
        if self._frames and not any(map(self._is_in_loss, self._frames)):
            line = self._frames[0].line
            self._frame_of[line] = self._frames[0]
            self._moved.setdefault(line, {}).setdefault(name, False)
            self._fresh.add((line, name))

    def _note_call(self, name: str, module: nn.Module) -> None:
        """Keep a call of a module by a statement that moves statistics; port the first one."""
        asked, line = self._asked, self._frames[0].line if self._frames else 0
        if asked is None or line not in self._moved or name.partition(".")[0] in asked.known:
            return
        if any(map(self._is_in_loss, self._frames)) or asked.updates() >= asked.most:
            return
        frame, known = self._frames[0], line in self._seen
        seen = self._seen.setdefault(line, SeenForwards(name))
        plain_call = (frame.function, frame.first) == asked.function and "." not in name
        inputs = self._inputs if plain_call and seen.module == name else None
        note(seen, asked.updates(), inputs)
        if seen.calls is not None and not known and asked.ports and inputs is not None:
            count = sum(other.module == name for other in self._seen.values())
            title = f"{name}_forward" + (f"_{count}" if count > 1 else "")
            seen.port, seen.refused = write_forward(
                title, name, module, inputs, asked.folder, f"line {line}", self.silent
            )

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Context in which the step has no hooks; after it the step is as before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        state = torch.get_rng_state()
        flags = {module: module.training for module in self._step.modules()}
        buffers = dict(self._step.named_buffers())
        held = {name: buffer.detach().clone() for name, buffer in buffers.items()}
        try:
            # What is put back counts as unchanged: a later loss of the script may read the same graph.
            with torch.autograd._unsafe_preserve_version_counter(tuple(buffers.values())):
                yield
                with torch.no_grad():
                    for name, buffer in buffers.items():
                        buffer.copy_(held[name])
        finally:
            for module, training in flags.items():
                module.training = training
            torch.set_rng_state(state)
            self._listen()

    def _is_in_loss(self, frame: Frame) -> bool:
        return any(
            (frame.function, frame.first) == (function, first)
            and any(start <= frame.line <= end for start, end in spans)
            for function, first, spans in self._losses
        )

    def updated(self) -> None:
        """Note that a recorded update follows what was seen."""
        for line, name in self._fresh:
            self._moved[line][name] = True
        self._fresh.clear()

    def recorded(self) -> list[MovedStatistics]:
        """Statements that were seen, with the buffers that each moves."""
        return [
            MovedStatistics(
                line,
                tuple(dict.fromkeys(name.partition(".")[0] for name in names)),
                tuple(names),
                any(names.values()),
                forwards=self._seen.get(line),
                frame=self._frame_of[line],
            )
            for line, names in sorted(self._moved.items())
        ]


def _ends(name: str) -> list[int]:
    """Ends of the names of a module and of those around it."""
    return [*(n for n, letter in enumerate(name) if letter == "."), len(name)]
