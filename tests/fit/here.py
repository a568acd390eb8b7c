"""One process for the programs of all tests of `migrate fit`.

What the command does in two processes for each program is done here with its own functions in one, which
lives as long as the session: starting a process costs more than such small programs do. What the compiler
has said is kept for the session too. Scripts and torch modules still run in processes of their own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "PJRT_DEVICE": "CPU",
    "CPU_NUM_DEVICES": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Here:
    """The process; started when it is first asked.

    Args:
        cache: where it keeps what the compiler has said.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._pipe: Connection | None = None

    def ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function of a module gives there.

        Raises:
            AssertionError: it raised, with the traceback; or the process ended.
        """
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._cache))
            self._process.start()
            theirs.close()
        self._pipe.send((function, args))
        assert self._pipe.poll(LIMIT), f"no answer in {LIMIT:.0f} s"
        done, said = self._pipe.recv()
        assert done, said
        return said

    def fitted(self, *args: object, code: int = 0) -> dict[str, Any]:
        """What `migrate fit --json` says; it has to end with this exit code."""
        ended, out, err = self.ask(_fit, ("--json", *map(str, args)))
        assert ended == code, out + err
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        """End it."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(LIMIT)


def _serve(pipe: Connection, cache: Path) -> None:
    os.environ |= {**_ENVIRONMENT, "XDG_CACHE_HOME": str(cache)}
    _in_this_process()
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, function(*args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def _in_this_process() -> None:
    """Let `migrate fit` lower Flax models and compile without starting processes."""
    from migrate.compiler import child
    from migrate.compiler.compile import ONE_CHIP, TOPOLOGY, Compiled, answered, request
    from migrate.compiler.program import CompilerProgram
    from migrate.fit import judge, pipeline
    from migrate.fit.lowered.of_jax import lower_jax
    from migrate.fit.lowered.start import lowered
    from migrate.fit.lowered.step import LoweredStep, Wanted
    from migrate.parity.sides.jax.runner import JaxRunner
    from migrate.parity.sides.load import load_runner
    from migrate.parity.sides.target import parse_target

    def lowered_here(wanted: Wanted, *, timeout: float) -> LoweredStep:
        runner, _ = load_runner(parse_target(wanted.target))
        if isinstance(runner, JaxRunner):
            return lower_jax(runner, wanted)
        return lowered(wanted, timeout=timeout)

    def compiled_here(
        program: CompilerProgram,
        options: Any,
        *,
        topology: str = TOPOLOGY,
        topology_options: Any = ONE_CHIP,
        devices: int = 1,
        timeout: float = 0.0,
    ) -> Compiled:
        return answered(
            child.answer(request(program, options, topology, topology_options, devices))
        )

    pipeline.lowered = lowered_here
    judge.compile_for_tpu = compiled_here


def _fit(args: tuple[str, ...]) -> tuple[int, str, str]:
    from click.testing import CliRunner

    from migrate.cli import commands

    done = CliRunner().invoke(commands, ["fit", *args])
    return done.exit_code, done.stdout, done.stderr
