"""Another run of a script, whose weights start a rounding away: how far its own losses move.

`shims.activate` loads this module. Dropout and autocast are off, as in the recorded run.
"""

from __future__ import annotations

import atexit
import builtins
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from migrate.train.noise import StatementNoise
from migrate.train.watch import listening
from migrate.train.watch.finder import FOLDER, SCRIPT
from migrate.train.watch.runner import BEGINS, ECHO, LOOP, QUESTION, STATEMENT
from migrate.train.watch.values import held_modules

# How far each weight starts from the script's, relative to itself: float32's rounding, up or down.
ROUNDING = 2.0**-23


def install() -> None:
    """Move the weights of this process once, and record its losses."""
    if FOLDER in os.environ:
        _Echo(Path(os.environ[FOLDER])).start()


class _Echo:
    """Losses of one run.

    Args:
        folder: has the question, and receives the losses of each update (`echo.json`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._question: dict[str, Any] = json.loads((folder / QUESTION).read_text())
        self._process = os.getpid()
        self._moved = False
        self._losses: list[list[float]] = []
        self._micro: list[float] = []
        self._noise = StatementNoise(
            os.environ[SCRIPT], self._question, is_drawn=self._question["noise"]
        )

    def start(self) -> None:
        """Replace the calls that train."""
        listening.as_compared()
        listening.to_backward(self._backward)
        listening.to_steps(lambda optimizer: None, self._after_step)
        atexit.register(self._write)
        setattr(builtins, BEGINS, self._begins)
        for name in (STATEMENT, LOOP):
            setattr(builtins, name, lambda *values: None)

    def _begins(self, local: dict[str, Any], of_module: dict[str, Any]) -> None:
        if not self._moved:
            self._move({**of_module, **local})
        self._noise.begin()

    def _move(self, values: dict[str, Any]) -> None:
        """Move the weights among the values of the script's names."""
        self._moved = True
        generator = torch.Generator().manual_seed(self._question["draw"])
        named = (values[name] for name in self._question["free"] if name in values)
        parameters = {id(p): p for value in named for p in _parameters(value)}
        with torch.no_grad():
            for parameter in parameters.values():
                if parameter.requires_grad and parameter.is_floating_point():
                    sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + sign * ROUNDING)

    def _backward(self, loss: Any, run: Any) -> None:
        self._noise.end()
        self._micro.append(float(loss.detach()))
        run()

    def _after_step(self, optimizer: Any) -> None:
        self._losses.append(self._micro)
        self._micro = []
        if len(self._losses) >= self._question["echo"]:
            self._write()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _write(self) -> None:
        if os.getpid() == self._process and self._losses:
            temporary = self._folder / f"{ECHO}.new"
            temporary.write_text(json.dumps(self._losses))
            temporary.rename(self._folder / ECHO)


def _parameters(value: Any) -> Iterator[torch.nn.Parameter]:
    modules = (
        [value]
        if isinstance(value, torch.nn.Module)
        else [module for _, module in held_modules(value)]
    )
    for module in modules:
        yield from module.parameters()
