"""Parent's end of a side: has the interface of `Runner`, and passes requests to the side's process.

Two runtimes cannot hold one TPU. If both sides need it, the process of one side ends before the other's gets
a request, and restarts when it is needed (`Turns`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import migrate
from converters.errors import MisfitError
from migrate.parity.ground.errors import (
    ArgumentsError,
    ParityError,
    SideDiedError,
    WeightsError,
)
from migrate.parity.sides.load import port_constants
from migrate.parity.sides.protocol import (
    Load,
    Loaded,
    LoadWeights,
    Request,
    answer_type,
    to_plain,
    to_typed,
)
from migrate.parity.sides.side import Answer, ComparedSide
from migrate.parity.sides.target import Target
from migrate.process import end, start
from shims._simulated_tpu.variables import AUTOLOAD
from shims.tpu import tpu_present

# Packages of this environment that the other environment of --python-a sees; their neighbors stay hidden.
_PACKAGES = ("migrate", "converters", "shims")
# Environment variables of both sides, unless the user sets them.
SETTINGS = {
    # Torch's threads sleep between layers, while a tensor is measured: by default they spin for a while,
    # which costs a sixth of all processor time.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Models iterate over sets of words (Gemma 3 over its kinds of attention, which share the called layer):
    # without this, each process has its own order.
    "PYTHONHASHSEED": "0",
    # `import torch` does not look for a TPU; a side that needs torch_tpu loads it itself.
    AUTOLOAD: "0",
}
_TAIL_LINES = 40
_LEAVING_SECONDS = 5.0


class Turns:
    """Sides that may run at the same time: all without a TPU, one at a time if they share a TPU.

    Attributes:
        shared: whether they share a TPU.
    """

    def __init__(self) -> None:
        self._sides: list[SideProcess] = []
        self.shared = tpu_present()

    def join(self, side: SideProcess) -> None:
        """Add a side."""
        self._sides.append(side)

    def take(self, side: SideProcess) -> None:
        """End the processes of other sides if they hold the device that this side needs."""
        if self.shared:
            for other in self._sides:
                if other is not side:
                    other.rest()


class SideProcess(ComparedSide):
    """Side of a comparison, in a process of its own.

    Args:
        label: "A" or "B", for messages.
        target: the user's name for the model.
        work: a folder for its log and for files that are passed.
        python: the interpreter; its environment may have other versions.
        timeout: seconds for one request.
        environment: variables of the process besides those of this process.

    Raises (every method):
        ParityError: an error of the side, with its label in front.
        SideDiedError: the process ended or gave no answer.
    """

    def __init__(
        self,
        label: str,
        target: Target,
        work: Path,
        turns: Turns,
        *,
        python: str = sys.executable,
        timeout: float = 600.0,
        seed: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(work)
        self.label, self.target = label, target
        if target.kind == "port":
            self.lies_as_torch = self.ported = True
            self.constants = port_constants(target)
        self._python, self._timeout, self._seed = python, timeout, seed
        self._turns = turns
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: IO[bytes] | None = None
        self._weights: Path | None = None
        self._log = work / f"{label}.log"
        turns.join(self)

    @property
    def takes_turns(self) -> bool:  # type: ignore[override]
        """See `ComparedSide`."""
        return self._turns.shared

    def start(self) -> None:
        """Start the process and load the model; weights that were loaded before the pause are restored."""
        self._turns.take(self)
        reading, writing = os.pipe()
        with self._log.open("ab") as log:
            self._process = start(
                [self._python, "-m", "migrate.parity.sides.child", str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                env=self._variables(),
            )
        os.close(writing)
        self._replies = os.fdopen(reading, "rb", buffering=0)
        try:
            self._load()
        except BaseException:
            self._end()
            raise

    def _load(self) -> None:
        loaded: Loaded = to_typed(Loaded, self._exchange(Load(self.target, self._seed)))
        self.kind = loaded.kind
        self.lies_as_torch = self.lies_as_torch or loaded.lies_as_torch
        self._weights = self._weights or loaded.weights
        if self._weights is not None:
            self._exchange(LoadWeights(self._weights))

    def rest(self) -> None:
        """End the process; the next request starts it again."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVING_SECONDS)
        self._end()

    def __enter__(self) -> SideProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.rest()

    def ask(self, request: Request[Answer]) -> Answer:
        """Send a request, start the process if it is paused, and wait for the answer."""
        if self._process is None:
            self.start()
        self._turns.take(self)
        answer: Answer = to_typed(answer_type(request), self._exchange(request))
        if isinstance(request, LoadWeights):
            self._weights = request.file
        return answer

    def _variables(self) -> dict[str, str]:
        variables = SETTINGS | dict(os.environ)
        if not tpu_present():
            # Without this, both runtimes would first search for a TPU.
            variables |= {
                "JAX_PLATFORMS": variables.get("JAX_PLATFORMS", "cpu"),
                "PJRT_DEVICE": "CPU",
            }
        variables |= self._environment
        if os.path.realpath(self._python) != os.path.realpath(sys.executable) or (
            Path(self._python).parent != Path(sys.executable).parent
        ):
            variables["PYTHONPATH"] = str(self._packages())
            variables.pop("PYTHONHOME", None)
        return variables

    def _packages(self) -> Path:
        """Folder with this project's packages alone, for the interpreter of another environment."""
        folder = Path(tempfile.mkdtemp(dir=self.work, prefix="packages-"))
        root = Path(migrate.__file__).parents[1]
        for name in _PACKAGES:
            (folder / name).symlink_to(root / name)
        return folder

    def _exchange(self, request: Request[Any] | Load) -> Any:
        process, replies = self._process, self._replies
        assert process is not None
        assert process.stdin is not None
        assert replies is not None
        doing = request.words
        line = json.dumps([type(request).__name__, to_plain(request)])
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died(doing) from None
        answer = json.loads(self._line(replies, doing))
        if "error" in answer:
            raise self._error(**answer["error"])
        if "crash" in answer:
            raise SideDiedError(
                f"side {self.label} ({self.target.shown}): {doing} failed ({answer['crash']})",
                "the last output is below",
                "\n".join([*self._tail(), answer["traceback"]]),
            )
        return answer["ok"]

    def _error(self, kind: str, what: str, remedy: str, names: Sequence[str]) -> ParityError:
        """Error of the side's process, as one of the classes that callers catch."""
        said = f"side {self.label}: {what}"
        if kind == ArgumentsError.__name__:
            return ArgumentsError(said, remedy, tuple(names))
        return (WeightsError if kind == MisfitError.__name__ else ParityError)(said, remedy)

    def _line(self, replies: IO[bytes], doing: str) -> bytes:
        """Read a line of the child; end of file means that it died."""
        read, until = b"", time.monotonic() + self._timeout
        while not read.endswith(b"\n"):
            ready, _, _ = select.select([replies], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._end()
                raise SideDiedError(
                    f"side {self.label} ({self.target.shown}): no answer within "
                    f"{self._timeout:g} s ({doing}); its process was stopped",
                    "raise the limit with --timeout, or run that side alone",
                    "\n".join(self._tail()),
                )
            chunk = os.read(replies.fileno(), 1 << 16)
            if not chunk:
                raise self._died(doing)
            read += chunk
        return read

    def _died(self, doing: str) -> SideDiedError:
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVING_SECONDS)
        code = process.poll()
        self._end()
        return SideDiedError(
            f"side {self.label} ({self.target.shown}): its process ended during: {doing} "
            f"({_how(code)})",
            "the last output is below",
            "\n".join(self._tail()),
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process)
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        if self._replies is not None:
            self._replies.close()

    def _tail(self) -> Sequence[str]:
        try:
            text = self._log.read_text(errors="replace")
        except OSError:
            return ()
        return text.splitlines()[-_TAIL_LINES:]


def _how(code: int | None) -> str:
    if code is None:
        return "it closed its pipe"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, out of memory?" if name == "SIGKILL" else name
