"""Compile a program with the real TPU compiler, on a machine without a TPU.

libtpu compiles ahead of time on any x86-64 Linux machine. It is noisy, it can hang, and it takes a lock
file: so it runs in a process of its own, with a time limit. What did not come back is "undetermined", which
is neither yes nor no.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.installing import how_to_install, missing_modules
from migrate import process
from migrate.compiler.program import CompilerProgram
from migrate.compiler.written import NOTHING, WrittenProgram, from_json

# One chip of TPU v5e. Its compiler is the one that later jobs of this package use too.
TOPOLOGY = "v5e:1x1"
NEEDED = ("jax", "libtpu")
ONE_CHIP = {"chips_per_host_bounds": (1, 1, 1)}  # or libtpu expects a host with more
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server: this is no TPU VM
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a second process fails on libtpu's lock file
    "XLA_FLAGS": "",  # those of this machine's CPU: they would reach libtpu too
}
_TAIL = 400  # characters of the last line that the compiler said
# What it says before it aborts: `F1123 19:08:23.596898   22195 rewriter.cc:2101] Unsupported …`.
_FATAL = re.compile(r"^F\d{4} \S+ +\d+ ([\w.]+:\d+)\] (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Stats:
    """The compiler's figures for a program, in bytes and operations of one device.

    Attributes:
        arguments, outputs, temporaries: bytes in HBM. Outputs include those in donated arguments.
        aliased: outputs that take the memory of arguments.
        peak: the most that is held at once, as libtpu counts: arguments that are not donated twice.
        flops: floating point operations.
        code: bytes of the program itself.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int
    flops: float
    code: int

    @property
    def reserved(self) -> int:
        """Bytes of HBM that the program takes; what it takes too much is said by this figure too."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclass(frozen=True)
class Compiled:
    """Answer of the compiler.

    Attributes:
        texts: the optimized HLO, for each of the wanted sets of options; () if it is undetermined.
        device: the kind of chip ("TPU v5 lite").
        libtpu: the version of the compiler.
        undetermined: why there is no answer, in one line; "" if there is.
        stats: the figures, one for each text.
        refused: what the compiler says of a program that it does not take, or "" if it takes it, or gave no
            answer at all.
        seconds: total time of the compiler.
        worked: seconds of processors in these: fewer, where other programs ran beside it.
        written: what stands in the program before it is compiled.
    """

    texts: tuple[str, ...]
    device: str
    libtpu: str
    undetermined: str = ""
    stats: tuple[Stats, ...] = ()
    refused: str = ""
    seconds: float = 0.0
    worked: float = 0.0
    written: WrittenProgram = NOTHING


def missing_packages() -> str:
    """Packages that the compiler needs and that are not installed, as "jax and libtpu"; "" if none."""
    return " and ".join(missing_modules(NEEDED))


def compile_for_tpu(
    program: CompilerProgram,
    options: Sequence[Mapping[str, bool | int | float | str]],
    *,
    topology: str = TOPOLOGY,
    topology_options: Mapping[str, object] = ONE_CHIP,
    devices: int = 1,
    timeout: float = 300.0,
) -> Compiled:
    """Compile a program once for each set of the compiler's options.

    Args:
        topology: a name of `jax.experimental.topologies`.
        topology_options: what libtpu has to be told of it beside.
        devices: number of devices of the topology on which the program runs.
        timeout: seconds for all of them together.
    """
    if missing := missing_packages():
        return Compiled((), "", "", f"{missing} not installed; {how_to_install('tpu')}")
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request(program, options, topology, topology_options, devices)))
        said = _run([str(asked), str(answer)], timeout)
        if not answer.exists():
            return Compiled((), "", "", said)
        return answered(json.loads(answer.read_text()))


def request(
    program: CompilerProgram,
    options: Sequence[Mapping[str, bool | int | float | str]],
    topology: str,
    topology_options: Mapping[str, object],
    devices: int,
) -> dict[str, object]:
    """Request for the compiler's process (`migrate.compiler.child`), as JSON values."""
    return {
        "format": program.format,
        "data": base64.b64encode(program.data).decode(),
        "options": [dict(option_values) for option_values in options],
        "topology": topology,
        "topology_options": dict(topology_options),
        "devices": devices,
        "partitioned": program.partitioned,
        "aliases": program.aliases,
    }


def answered(value: Mapping[str, Any]) -> Compiled:
    """Parse the answer of the compiler's process."""
    refused = value["refused"]
    first = refused.strip().splitlines()[0] if refused.strip() else ""
    return Compiled(
        tuple(value["texts"]),
        value["device"],
        value["libtpu"],
        f"the TPU compiler refuses the program: {first}" if first else "",
        tuple(Stats(**stats) for stats in value["stats"]),
        refused,
        value["seconds"],
        value["worked"],
        from_json(value["written"]),
    )


def _run(arguments: list[str], timeout: float) -> str:
    """Run the compiler's process; give why there is no answer, should there be none."""
    code, errors = process.run(
        [sys.executable, "-m", "migrate.compiler.child", *arguments],
        seconds=timeout,
        environment={
            **os.environ,
            **_ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        keep="errors",
    )
    if code is None:
        return f"timed out: the TPU compiler gave no answer in {timeout:g} s"
    if code < 0:
        said = _FATAL.search(errors)
        why = f": {said[2].strip()[:_TAIL]} ({said[1]})" if said else ""
        return f"the TPU compiler ended by {signal.Signals(-code).name}{why}"
    last = next(iter(reversed(errors.strip().splitlines())), "it said nothing")
    return f"the TPU compiler ended with {code}: {last[-_TAIL:]}"
