"""Run a script in a process group of its own: the original on the CPU, or the rewrite on its target."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from converters.installing import require_installed
from migrate import process
from migrate.observe.records import OBSERVE_DIRECTORY
from migrate.place import Place
from migrate.prove.errors import (
    HangError,
    NoScriptError,
    RunTimeoutError,
)
from migrate.prove.record.stop import all_stopped
from migrate.prove.recording.records import RECORD_DIRECTORY
from migrate.prove.reference import gpus
from migrate.prove.runtimes import SIDES, Side
from migrate.prove.settings import CHECKPOINT, STEPS, On, Settings
from migrate.prove.waiting import DIRECTORY, Watch, noted
from migrate.quick_xla import rounding_as_written
from shims import activate
from shims._started import stand_in

Output = Literal["inherit", "stderr", "capture"]

# Enough for the traceback of a process; earlier output of a script is not needed here.
_TAIL_LINES = 80
# Time between asking the processes of a run to end and killing them: more than `python -m shims` gives the
# ranks of its script.
_GRACE_SECONDS = 5.0
# Time for a script to end by itself after all its ranks have made their last step.
_LEAVING_SECONDS = 30.0
# Without `timeout`: seconds in which a run neither prints nor records a step. Compiling may take long.
SILENT_SECONDS = 3600.0
_SILENT_LOOKS_SECONDS = 5.0
# No exit code of a process.
_STOPPED = -1000


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Attributes:
        returncode: exit code of the script's main process; negative, or 128 + n: the signal that ended it.
        seconds: wall time from its start to its end.
        output: the last lines that it wrote, if they were captured, otherwise "".
        ranks: number of processes with a rank.
    """

    returncode: int
    seconds: float
    output: str
    ranks: int = 0


def run_script(
    script: Path,
    args: Sequence[str] = (),
    *,
    side: Side,
    replicas: int,
    record_dir: Path | None = None,
    observe_dir: Path | None = None,
    timeout: float | None = None,
    output: Output = "inherit",
    settings: Settings | None = None,
    reordered: bool = False,
    start: str | None = None,
    place: Place | None = None,
    until: Callable[[], bool] | None = None,
    checkpoint: Path | None = None,
    as_written: bool = False,
) -> RunResult:
    """Run `python SCRIPT ARGS` and wait for it and for all the processes that it started.

    Args:
        script: the script, in any folder.
        args: its arguments.
        side: "original" runs CUDA code on the CPU, with `replicas` devices and gloo, started as
            `python -m shims` starts it; "xla" runs torch_xla code on this machine's TPU, or on
            `replicas` simulated replicas without one; "tpu" runs torch_tpu code on simulated TPUs.
        replicas: number of ranks, at least 1. On a TPU the number of its chips counts instead.
        record_dir: where every process records its steps; None records nothing.
        observe_dir: where every process writes what XLA does in it; None: it is not watched.
        timeout: seconds after which the run is stopped; None: as long as it prints or notes a step in an
            hour, so far as that is seen.
        output: of the script: "inherit" passes it through, "stderr" passes all of it to stderr,
            "capture" keeps its last lines for the result.
        settings: what a recorded run changes in the script, and when it stops; None: nothing, never. Its
            `start` and `timeout` are not looked at.
        reordered: True makes a recorded run round otherwise (`record.noise`).
        start: how the ranks of an original that can start them in several ways are started, as for
            `python -m shims --start`; None: as torchrun does. Of a rewrite, "torchrun" starts them with
            torchrun; None: as the script expects, on XLA by its `torch_xla.launch`.
        place: the mirror to run in; None: the working directory itself.
        until: ends the run, as if it had ended well, as soon as this is true.
        checkpoint: a file whose first version is kept beside the recording: see `record.capture`.
        as_written: whether XLA rounds to 16 bits wherever the script does, which fusions leave out.

    Raises:
        NoScriptError: the script is not a file.
        MissingDependencyError, NotSimulatedError: a package that the side needs is not installed.
        RunTimeoutError: it ran longer than `timeout`.
        HangError: its ranks wait for each other for ever.
        KeyboardInterrupt: Ctrl-C, after all its processes were stopped.
    """
    require_script(script)
    if side == "original":
        require_installed("torch")
    else:
        SIDES[side].require(replicas)
    settings = settings or Settings(deterministic=False)
    waiting = tempfile.TemporaryDirectory(prefix="migrate-waiting-")
    environment = _environment(
        side, replicas, record_dir, observe_dir, settings, reordered, checkpoint
    ) | stand_in.environment(script)
    environment[DIRECTORY] = waiting.name
    if as_written:
        environment |= rounding_as_written(environment)
    watch = Watch(Path(waiting.name), str if place is None else place.text_outside)
    hang: list[str] = []
    lines: list[int] = [0]
    started = time.monotonic()
    running = process.start(
        _command(
            side,
            replicas,
            script if place is None else place.inside(script),
            args if place is None else place.args(args),
            start,
            settings.on,
        ),
        cwd=None if place is None else place.folder,
        env=environment if place is None else place.environment(environment),
        stdin=None if output == "inherit" else subprocess.DEVNULL,
        stdout={"inherit": None, "stderr": sys.stderr, "capture": subprocess.PIPE}[output],
        stderr=subprocess.STDOUT if output == "capture" else None,
    )
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    reader = None
    if running.stdout is not None:
        reader = threading.Thread(target=_read, args=(running.stdout, tail, lines), daemon=True)
        reader.start()

    silent = _silence(timeout, lines, record_dir, observe_dir)

    def stopped() -> bool:
        return settings.steps is not None and record_dir is not None and all_stopped(record_dir)

    def over() -> int | None:
        """Whether the run can count as ended well: its condition holds, or its ranks made their last
        step.
        """
        if until is not None and until():
            return 0
        if stopped():
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(_LEAVING_SECONDS)
            return 0
        if where := watch.hang():
            hang.append(where)
            return _STOPPED
        return _STOPPED if silent() else None

    def said() -> str:
        text = "".join(tail)
        return text if place is None else place.text_outside(text)

    try:
        returncode = process.wait(running, timeout, over)
        ranks = len(watch.ranks())
        if returncode is not None and returncode != _STOPPED and stopped():
            returncode = 0  # errors after the last step of its ranks do not count
    finally:
        # Also after a normal end: remaining children hold its pipes and the cores.
        process.end(running, _GRACE_SECONDS)
        waiting.cleanup()
        if reader is not None and running.stdout is not None:
            reader.join(_GRACE_SECONDS)
            running.stdout.close()
    if hang:
        raise HangError(
            f"{shown_script(script)} hangs: {hang[0]}; no rank has made progress for {watch.seconds:.0f} s",
            "every rank must reach the same collectives"
            + (": on GPUs this hangs too" if side == "original" else "; on a TPU this hangs too"),
            # A rank that fails may wait for the others before it ends: torch_tpu's do.
            said() if "Traceback (most recent call last)" in said() else "",
        )
    if returncode == _STOPPED:
        raise RunTimeoutError(
            f"{shown_script(script)} made no step and printed nothing for {SILENT_SECONDS:.0f} s",
            "set a time limit with --timeout",
            said(),
        )
    if returncode is None:
        raise RunTimeoutError(
            f"{shown_script(script)} was still running after {timeout:.0f} s",
            "raise --timeout, or run fewer steps",
            said(),
        )
    return RunResult(returncode, time.monotonic() - started, said(), ranks)


def shown_script(script: Path) -> str:
    """Name of a script in messages: that of its original, where it is a rewritten form of one."""
    original = stand_in.stands_for(script)
    return str(script) if original is None else f"the rewrite of {original.name}"


def _silence(timeout: float | None, lines: list[int], *folders: Path | None) -> Callable[[], bool]:
    """Whether a run without a time limit has shown no sign of life for `SILENT_SECONDS`."""
    now = time.monotonic()
    state = {"looked": now, "since": now}
    last: list[tuple[int, int]] = [(0, 0)]

    def silent() -> bool:
        now = time.monotonic()
        if timeout is not None or not any(folders):
            return False
        if now - state["looked"] >= _SILENT_LOOKS_SECONDS:
            state["looked"] = now
            signs = (lines[0], noted(folders))
            if signs != last[0]:
                last[0], state["since"] = signs, now
        return now - state["since"] > SILENT_SECONDS

    return silent


def require_script(script: Path, *, or_folder: bool = False) -> None:
    """Require a script that can be run.

    Args:
        script: the script.
        or_folder: whether the command also takes the folder of a project.

    Raises:
        NoScriptError: it is not a file, or a notebook.
    """
    if not script.is_file():
        folder = " or of the rewritten project's folder" if or_folder else ""
        what = "is a folder" if script.is_dir() else "does not exist"
        from converters.model import nearest

        advice = f"give the path of a Python script{folder}"
        near = nearest(script.name, [file.name for file in script.parent.glob("*.py")])
        if near and not script.is_dir():
            advice = f"did you mean {script.with_name(near)}?"
        raise NoScriptError(f"{script} {what}", advice)
    if script.suffix == ".ipynb":
        remedy = f"make a script of it: jupyter nbconvert --to script {script.name}"
        raise NoScriptError(f"{script} is a notebook", remedy)


def joins_over_nccl(script: Path) -> bool:
    """Whether `script` joins a process group over NCCL and does not import torch_xla: it needs GPUs."""
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return False
    nodes = list(ast.walk(tree))
    imported = {
        name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    return not imported & {"torch_xla", "shims", "torch_tpu"} and any(
        isinstance(value, ast.Constant) and value.value == "nccl"
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("init_process_group")
        for value in (*node.args, *(keyword.value for keyword in node.keywords))
    )


def _command(
    side: Side, replicas: int, script: Path, args: Sequence[str], start: str | None, on: On = "cpu"
) -> list[str]:
    if side != "original":
        return SIDES[side].command(script, args, replicas, start)
    # The ranks are started as the script expects: by itself, or as torchrun would. -P: a folder of the
    # user's may be called shims too.
    command = [sys.executable, "-P", "-m", "shims", "--backend", on, "--ranks", str(replicas)]
    return [*command, *(["--start", start] if start else []), str(script), *args]


def _environment(
    side: Side,
    replicas: int,
    record_dir: Path | None,
    observe_dir: Path | None,
    settings: Settings,
    reordered: bool,
    checkpoint: Path | None,
) -> dict[str, str]:
    plugins = []
    if record_dir is not None:
        plugins = ["migrate.prove.record.record:install", *settings.plugins()]
    if plugins and reordered:
        how = "install_in_half" if settings.half else "install"
        plugins.append(f"migrate.prove.record.noise.summation:{how}")
        if settings.weights_move:
            plugins.append("migrate.prove.record.noise.rounding:install_in_weights")
    if plugins and checkpoint is not None:
        plugins.append("migrate.prove.record.capture:install")
    if observe_dir is not None and side != "original":
        plugins.append(SIDES[side].observer)
    plugins.append("migrate.prove.record.stacks:install")
    if side == "original":
        variables = {activate.PLUGINS: ",".join(plugins)}
        if settings.on == "cuda":
            variables |= gpus.environment(replicas, tf32=settings.tf32)
    else:
        variables = SIDES[side].environment(replicas, plugins, observe_dir)
    if record_dir is not None:
        variables[RECORD_DIRECTORY] = str(record_dir.resolve())
        variables[STEPS] = "" if settings.steps is None else str(settings.steps)
    if checkpoint is not None:
        variables[CHECKPOINT] = str(checkpoint)
    if observe_dir is not None:
        variables[OBSERVE_DIRECTORY] = str(observe_dir.resolve())
    # As torchrun does: N ranks with a thread for each core each would hinder one another.
    defaults = {"OMP_NUM_THREADS": "1"}
    if record_dir is not None:
        # Both sides iterate over sets of words in the same order.
        defaults["PYTHONHASHSEED"] = "0"
    return {**defaults, **os.environ, **variables}


def _read(stream: IO[bytes], tail: deque[str], lines: list[int]) -> None:
    for line in stream:
        lines[0] += 1
        tail.append(line.decode(errors="replace"))
