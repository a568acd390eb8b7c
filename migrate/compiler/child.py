"""The process in which libtpu runs: a request in a file, the answer in another."""

from __future__ import annotations

import base64
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile what the request holds; a refusal by the compiler is an answer too."""
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    # One chip needs to be told that a host has one only.
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if request["topology"].endswith("1x1") else {}
    topology = topologies.get_topology_desc(request["topology"], platform="tpu", **bounds)
    device = topology.devices[0]
    data = base64.b64decode(request["data"])
    if request["format"] == "hlo":
        data = _jax.mlir.hlo_to_stablehlo(data)
    texts: list[str] = []
    undetermined = ""
    for options in request["options"]:
        context = mlir.make_ir_context()
        with context:
            module = ir.Module.parse(data, context=context)
            compile_options = compiler.get_compile_options(
                num_replicas=1,
                num_partitions=1,
                device_assignment=np.array([[device.id]]),
                backend=device.client,
                env_options_overrides=options,
            )
            devices = _jax.DeviceList((device,))
            try:
                executable = device.client.compile(module, devices, compile_options)
            except jax.errors.JaxRuntimeError as error:
                first = str(error).strip().splitlines()[0]
                undetermined = f"the TPU compiler refuses the program: {first}"
                texts = []
                break
            texts.append(executable.hlo_modules()[0].to_string())
    return {
        "texts": texts,
        "device": device.device_kind,
        "libtpu": version("libtpu"),
        "undetermined": undetermined,
    }


if __name__ == "__main__":
    found = answer(json.loads(Path(sys.argv[1]).read_text()))
    # Renamed at the end: a file that is there is whole.
    part = Path(sys.argv[2] + ".part")
    part.write_text(json.dumps(found))
    part.rename(sys.argv[2])
