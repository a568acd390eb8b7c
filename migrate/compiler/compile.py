"""What the real TPU compiler makes of a program, on a machine without a TPU.

libtpu compiles ahead of time on any x86-64 Linux machine. It is noisy, it can hang, and it takes a lock
file: so it runs in a process of its own, with a time limit. What did not come back is "undetermined", which
is neither yes nor no.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from migrate import process
from migrate.compiler.program import Program

# One chip of TPU v5e. Its compiler is the one that later jobs of this package use too.
TOPOLOGY = "v5e:1x1"
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server: this is no TPU VM
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a second process fails on libtpu's lock file
}
_TAIL = 400  # characters of the last line that the compiler said


@dataclass(frozen=True)
class Compiled:
    """What came back.

    Attributes:
        texts: the optimized HLO, for each of the wanted sets of options; () if it is undetermined.
        device: the kind of chip ("TPU v5 lite").
        libtpu: the version of the compiler.
        undetermined: why there is no answer, in one line; "" if there is.
    """

    texts: tuple[str, ...]
    device: str
    libtpu: str
    undetermined: str = ""


def compile_for_tpu(
    program: Program,
    options: Sequence[Mapping[str, bool | int | float | str]],
    *,
    topology: str = TOPOLOGY,
    timeout: float = 300.0,
) -> Compiled:
    """Compile a program once for each set of the compiler's options.

    Args:
        topology: a name of `jax.experimental.topologies`, of one chip.
        timeout: seconds for all of them together.
    """
    if missing := [name for name in ("jax", "libtpu") if find_spec(name) is None]:
        why = f"{' and '.join(missing)} not installed: pip install 'tpu-migrate[tpu]'"
        return Compiled((), "", "", why)
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(
            json.dumps(
                {
                    "format": program.format,
                    "data": base64.b64encode(program.data).decode(),
                    "options": [dict(one) for one in options],
                    "topology": topology,
                }
            )
        )
        said = _run([str(request), str(answer)], timeout)
        if not answer.exists():
            return Compiled((), "", "", said)
        value = json.loads(answer.read_text())
    return Compiled(tuple(value["texts"]), value["device"], value["libtpu"], value["undetermined"])


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
        return f"the TPU compiler gave no answer in {timeout:g} s"
    if code < 0:
        return f"the TPU compiler ended by {signal.Signals(-code).name}"
    last = next(iter(reversed(errors.strip().splitlines())), "it said nothing")
    return f"the TPU compiler ended with {code}: {last[-_TAIL:]}"
