"""A side as the comparison sees it: it is asked (`protocol`), and something that holds a model answers.

The model is in a process of its own (`process.SideProcess`), or, in tests, in this one (`InProcess`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TypeVar

from migrate.parity.ground.requests import Kind
from migrate.parity.sides.protocol import Request, answer_type, to_plain, to_typed
from migrate.parity.sides.runner import Runner

Answer = TypeVar("Answer")


class Side(ABC):
    """One of the two that are compared.

    Args:
        work: a folder for what is passed on files.

    Attributes:
        kind: what its model is.
        takes_turns: whether it starts anew after the other one ran.
        lies_as_torch: whether it takes and gives all as torch lays it out, though it is Flax's: a port, or a
            model of transformers 4.
        constants: arrays that its model has beside weights (a port's), by path; None: it has none.
    """

    kind: Kind
    takes_turns = False
    lies_as_torch = False
    constants: Path | None = None

    def __init__(self, work: Path) -> None:
        self.work = work

    @abstractmethod
    def ask(self, request: Request[Answer]) -> Answer:
        """Have a request answered."""


class InProcess(Side):
    """A side whose model is in this process.

    Args:
        runner: the model.
        work: as of `Side`.
    """

    def __init__(self, runner: Runner, work: Path) -> None:
        super().__init__(work)
        self.kind = runner.kind
        self.lies_as_torch = runner.lies_as_torch
        self._runner = runner

    def ask(self, request: Request[Answer]) -> Answer:
        """See `Side`; what passes is what would pass between processes."""
        given = to_typed(type(request), json.loads(json.dumps(to_plain(request))))
        answer = json.loads(json.dumps(to_plain(given.answer(self._runner))))
        found: Answer = to_typed(answer_type(request), answer)
        return found
