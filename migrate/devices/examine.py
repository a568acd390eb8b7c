"""Is every local chip sound? The same small programs on all of them, repeated, compared bit for bit.

`examine` runs them in a process of its own (`probe`), which may hang or die; `judge` says
what its events mean. docs/devices.md tells what is run and what each finding means.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.installing import how_to_install, install_command, is_installed
from migrate import process
from migrate.devices.faults import plant
from migrate.devices.judge import judge
from migrate.devices.report import ChipFinding, DevicesReport
from migrate.errors import MigrateError
from shims.tpu import tpu_device_files

# Of a whole probe: starting a runtime takes up to two minutes on a fresh VM, the programs a few seconds each.
SECONDS = 300.0
# Of one program on one chip, once it is compiled.
ANSWER_SECONDS = 30.0
REPEATS = 5
# Frameworks that can run the programs, each with the code that asks it for its devices.
RUNTIMES = {
    "jax": "import jax; jax.devices()",
    "torch_xla": "import torch_xla; torch_xla.devices()",
}
_NO_RUNTIME = ChipFinding(
    "not installed",
    (),
    f"no chip was checked: {' and '.join(RUNTIMES)} are not installed",
    f"{install_command('xla')}, or {how_to_install('jax')}",
)


@dataclass(frozen=True)
class ProbeOptions:
    """Options of a probe of the chips.

    Attributes:
        repeats: number of runs of each program.
        size: side of the square matrices; None: 2048, on a CPU 256.
        seconds: time limit for everything, the start of the runtime included.
        answer_seconds: time limit for one program on one chip.
        runtime: "jax" or "torch_xla"; "": JAX, or torch_xla where JAX does not see the TPU.
        fault: "ID:KIND" of `faults`, to see that the probe finds it; "": none.
    """

    repeats: int = REPEATS
    size: int | None = None
    seconds: float = SECONDS
    answer_seconds: float = ANSWER_SECONDS
    runtime: str = ""
    fault: str = ""

    def to_json(self) -> str:
        """JSON for the process of the probe."""
        return json.dumps(vars(self))


def probe_options(*, repeats: int, seconds: float, fault: str) -> ProbeOptions:
    """Return the options that a user gives.

    Raises:
        MigrateError: the fault is none that is known.
    """
    try:
        plant(fault)
    except ValueError as error:
        raise MigrateError(f"--plant {error}", "docs/devices.md lists them") from None
    return ProbeOptions(repeats=repeats, seconds=seconds, fault=fault)


def examine(
    options: ProbeOptions = ProbeOptions(),
    environment: Mapping[str, str] = os.environ,
    progress: Callable[[str], None] = lambda _: None,
) -> DevicesReport:
    """Probe the local chips and say what was found.

    Args:
        options: see there.
        environment: environment of the started process.
        progress: is told what is being run.
    """
    start = time.monotonic()
    if not any(map(is_installed, RUNTIMES)):
        return judge([], seconds=0.0).with_finding(_NO_RUNTIME)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        progress("starting the runtime of the chips")
        ended, output = process.run(
            [sys.executable, "-m", "migrate.devices.probe", str(file), options.to_json()],
            seconds=options.seconds,
            environment=_environment(environment),
            meanwhile=_told(file, progress),
        )
        events = read_events(file)
    report = judge(events, seconds=time.monotonic() - start)
    if any(event["event"] == "done" for event in events):
        return report
    return report.with_finding(_unfinished(events, ended, output, options))


def read_events(file: Path) -> list[dict[str, Any]]:
    """Read what the probe wrote, one JSON value a line. A truncated line is left out."""
    events = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def _told(file: Path, progress: Callable[[str], None]) -> Callable[[], None]:
    """Tells each program that the events say is run, once."""
    reported = ""

    def tell() -> None:
        nonlocal reported
        running = [event for event in read_events(file) if event["event"] == "running"]
        if running and running[-1]["op"] != reported:
            reported = running[-1]["op"]
            progress(f"chips: {reported}")

    return tell


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    environment = dict(variables)
    if not tpu_device_files() and not Path("/dev/nvidiactl").exists():
        # An installed libtpu would look for a TPU and its metadata server for a long time.
        environment.setdefault("JAX_PLATFORMS", "cpu")
        environment.setdefault("PJRT_DEVICE", "CPU")
    return environment


def _unfinished(
    events: list[dict[str, Any]], ended: int | None, output: str, options: ProbeOptions
) -> ChipFinding:
    running = [event["op"] for event in events if event["event"] == "running"]
    where = f"in {running[-1]}" if running else "when the runtime started"
    if ended is None:
        what = f"the probe did not end within {options.seconds:g} s; it hung {where}"
        return ChipFinding("hung", (), what, "see that no other process holds the chips")
    lines = output.strip().splitlines() or ["no message"]
    died = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
    what = f"the probe died {where} ({died}): {lines[-1][:200]}"
    code = next((code for name, code in RUNTIMES.items() if is_installed(name)), "")
    return ChipFinding("died", (), what, f"python -c '{code}' shows the rest")
