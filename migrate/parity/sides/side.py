"""Side of a comparison: requests (`protocol`) are answered by the holder of a model.

The model is in a process of its own (`process.SideProcess`), or, in tests, in this process (`InProcess`).
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


class ComparedSide(ABC):
    """Side of a comparison.

    Args:
        work: a folder for files that are passed.

    Attributes:
        kind: kind of its model.
        takes_turns: whether it restarts after the other side ran.
        lies_as_torch: whether its inputs and outputs have torch's layout, though it is Flax's: a port, or a
            model of transformers 4.
        constants: arrays that its model has besides weights (a port's), by path; None: there are none.
        ported: whether it is a folder of `migrate port`.
    """

    kind: Kind
    takes_turns = False
    lies_as_torch = False
    constants: Path | None = None
    ported = False

    def __init__(self, work: Path) -> None:
        self.work = work

    @abstractmethod
    def ask(self, request: Request[Answer]) -> Answer:
        """Return the answer to a request."""


class InProcess(ComparedSide):
    """Side whose model is in this process.

    Args:
        runner: the model.
        work: as in `ComparedSide`.
    """

    def __init__(self, runner: Runner, work: Path) -> None:
        super().__init__(work)
        self.kind = runner.kind
        self.lies_as_torch = runner.lies_as_torch
        self._runner = runner

    def ask(self, request: Request[Answer]) -> Answer:
        """See `ComparedSide`; requests and answers are converted as between processes."""
        typed_request = to_typed(type(request), json.loads(json.dumps(to_plain(request))))
        answer = json.loads(json.dumps(to_plain(typed_request.answer(self._runner))))
        typed_answer: Answer = to_typed(answer_type(request), answer)
        return typed_answer
