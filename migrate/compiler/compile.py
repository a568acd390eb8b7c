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
from typing import Any, Literal

from migrate import process

# One chip of TPU v5e. Its compiler is the one that later jobs of this package use too.
TOPOLOGY = "v5e:1x1"
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server: this is no TPU VM
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a second process fails on libtpu's lock file
}
_TAIL = 400  # characters of the last line that the compiler said


@dataclass(frozen=True)
class Program:
    """A program as a framework hands it to a compiler.

    Attributes:
        name: for messages.
        format: "stablehlo" is MLIR as text, "hlo" an HLO module as protobuf.
        data: it.
    """

    name: str
    format: Literal["stablehlo", "hlo"]
    data: bytes


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


def program_of_jax(function: Any, *args: Any, name: str = "") -> Program:
    """A JAX function lowered for a TPU, with its source lines; arguments may be shapes only."""
    import jax

    # A function that is jitted already keeps its static arguments.
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    lowered = jitted.trace(*args).lower(lowering_platforms=("tpu",))
    text = lowered.as_text(debug_info=True)
    return Program(name or getattr(function, "__name__", "function"), "stablehlo", text.encode())


def program_of_torch(module: Any, inputs: Sequence[Any] | Mapping[str, Any]) -> Program:
    """A torch module as torch_xla lowers it, with the source lines of the calls.

    Has to run in a process that has torch_xla (`PJRT_DEVICE=CPU` will do); `XLA_HLO_DEBUG=1` is not needed.
    The module is copied, and left where it is.

    Args:
        inputs: the arguments of its forward pass, in order or by name.
    """
    import copy

    import torch
    import torch_xla
    from torch.utils._pytree import tree_leaves, tree_map

    device = torch_xla.device()
    torch_xla._XLAC._set_ir_debug(True)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    placed: Any = tree_map(
        lambda value: value.to(device) if isinstance(value, torch.Tensor) else value,
        ([] if named else list(inputs), named),
    )
    model = copy.deepcopy(module).to(device)
    torch_xla.sync()  # what made the weights and the inputs is no part of the program
    with torch.no_grad():
        outputs = tree_leaves(model(*placed[0], **placed[1]))
    tensors = [value for value in outputs if isinstance(value, torch.Tensor)]
    proto = torch_xla._XLAC._get_xla_tensors_hlo_proto(tensors)
    return Program(type(module).__name__, "hlo", bytes(proto))


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
