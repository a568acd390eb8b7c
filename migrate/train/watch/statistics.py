"""Statements of the script that move running statistics outside of its updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from migrate.train.frames import Frame, script_frames


@dataclass(frozen=True)
class MovedStatistics:
    """Buffers that one statement moves outside of the updates.

    Attributes:
        line: line of the statement.
        modules: modules of the step that it runs.
        buffers: names of the buffers, as the step's state has them.
        before: whether it moves them before the last recorded update.
        text: position and text of the statement, for messages.
    """

    line: int
    modules: tuple[str, ...]
    buffers: tuple[str, ...]
    before: bool
    text: str = ""


class StatisticsWatch:
    """Forward calls of a step's modules that change buffers, with the statement that makes each.

    Args:
        step: the step.
        script: the script, as it is run.
        losses: statements that the program has: function, first line of the function, spans of lines.
    """

    def __init__(
        self,
        step: nn.Module,
        script: str,
        losses: Sequence[tuple[str, int, Sequence[tuple[int, int]]]],
    ) -> None:
        self._script, self._losses = script, losses
        self._frames: list[Frame] = []  # of the outermost call of a module that runs
        self._depth = 0
        self._held: list[dict[str, torch.Tensor]] = []
        self._moved: dict[int, dict[str, bool]] = {}  # line → buffer → whether an update follows
        self._fresh: set[tuple[int, str]] = set()  # since the last update
        owners = {name for name, module in step.named_modules() if name and module._buffers}
        around = {name[:end] for name in owners for end in _ends(name)}
        for name, module in step.named_modules():
            if name in around:
                module.register_forward_pre_hook(self._before)
                module.register_forward_hook(self._noting(name), always_call=True)

    def _before(self, module: nn.Module, _: Any) -> None:
        if not self._depth:
            self._frames, _, _ = script_frames(self._script)
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

        return after

    def _note(self, name: str) -> None:
        if self._frames and not any(map(self._is_in_loss, self._frames)):
            line = self._frames[0].line
            self._moved.setdefault(line, {}).setdefault(name, False)
            self._fresh.add((line, name))

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
            )
            for line, names in sorted(self._moved.items())
        ]


def _ends(name: str) -> list[int]:
    """Ends of the names of a module and of those around it."""
    return [*(n for n, letter in enumerate(name) if letter == "."), len(name)]
